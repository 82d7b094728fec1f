#!/bin/sh
# The test command: sets up what the tests need, then lints, checks types and tests.
#   sh tests/check.sh [arguments for pytest]
# Needs Python 3.11 (PYTHON names it if `python3` is another one). With Node the official Node client is tested too, with
# Prometheus a real scrape, with nginx a stream through it, with Chromium the inspector's page; as root on Debian these
# are seen to, elsewhere their tests say why they were skipped.
set -eu
cd "$(dirname "$0")/.."

[ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check -e '.[test]'

if command -v npm >/dev/null; then
    npm ci --prefix tests/clients --prefer-offline --silent || echo "check: npm ci failed, the Node client is not tested" >&2
fi
missing=
for program in prometheus nginx; do command -v $program >/dev/null || missing="$missing $program"; done
if [ -n "$missing" ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    # RUNLEVEL=1: installed, not started.
    { apt-get -qq update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        $missing >/dev/null; } || echo "check: apt-get failed, the tests go without$missing" >&2
fi
if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        chromium >/dev/null; } || echo "check: apt-get failed, the inspector's page is not tested" >&2
fi

if [ -n "${CI:-}" ]; then
    .venv/bin/pip install --quiet --disable-pip-version-check -e '.[audit]'
    .venv/bin/python tests/audit.py
fi

.venv/bin/ruff check
.venv/bin/mypy
exec .venv/bin/pytest -q "$@"
