#!/bin/sh
# The test command: sets up what the tests need, then lints, checks types and tests.
#   sh tests/check.sh [arguments for pytest]
# Needs Python 3.11 (PYTHON names it if `python3` is another one). With Node the official Node client is tested too, and
# with Prometheus a real scrape; as root on Debian both are seen to, elsewhere their tests say why they were skipped.
set -eu
cd "$(dirname "$0")/.."

[ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check -e '.[test]'

if command -v npm >/dev/null; then
    npm ci --prefix tests/clients --prefer-offline --silent || echo "check: npm ci failed, the Node client is not tested" >&2
fi
if ! command -v prometheus >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    # RUNLEVEL=1: installed, not started.
    { apt-get -qq update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        prometheus >/dev/null; } || echo "check: apt-get failed, no real Prometheus in the tests" >&2
fi

if [ -n "${CI:-}" ]; then
    .venv/bin/pip install --quiet --disable-pip-version-check -e '.[audit]'
    .venv/bin/python tests/audit.py
fi

.venv/bin/ruff check
.venv/bin/mypy
exec .venv/bin/pytest -q "$@"
