#!/bin/sh
# Sets up what Wholecall is measured beside: setup.sh DIR
# nginx comes from Debian (as root); DIR/venvs/{core,litellm} and DIR/npm are made. Then: run.py --environments DIR
set -eu
dir=$1
mkdir -p "$dir/venvs" "$dir/npm"
command -v nginx >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends nginx; }
"${PYTHON:-python3}" -m venv "$dir/venvs/core"
"$dir/venvs/core/bin/pip" install -q starlette 'uvicorn[standard]' httpx httpx-aiohttp aiohttp
"${PYTHON:-python3}" -m venv "$dir/venvs/litellm"
"$dir/venvs/litellm/bin/pip" install -q 'litellm[proxy]==1.108.7'
# With its own choice of server it answers every stream with a 500 (Portkey-AI/gateway#1389).
echo '{"dependencies":{"@portkey-ai/gateway":"1.15.2"},"overrides":{"@hono/node-server":"1.14.1"}}' >"$dir/npm/package.json"
npm install --silent --no-audit --no-fund --prefix "$dir/npm"
