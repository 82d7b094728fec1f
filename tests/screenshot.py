#!/usr/bin/env python3
"""Makes the README's picture: a real Prometheus over the proxy of config/demo.toml, some minutes of its traffic, and
Chromium, which needs to be installed.

    python tests/screenshot.py [MINUTES]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

import test_walkthrough as walkthrough
from proxy.replay.backend import running as backend_running
from test_prometheus import prometheus

PICTURE = Path(__file__).resolve().parent / "data" / "prometheus.png"
SIZE = "1200,1530"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars --virtual-time-budget=15000"
)
# (query of Prometheus' own graph page, whether as a table)
SHOWN = (
    ('sum by (backend, verdict) (rate(wholecall_tool_calls_total{verdict!="valid"}[1m])) > 0', False),
    ("sort_desc(sum by (backend, quirk) (wholecall_quirks_total))", True),
)


def page(server: str, minutes: float) -> str:
    parameters: list[tuple[str, str]] = []
    for number, (query, is_table) in enumerate(SHOWN):
        fields = {"expr": query, "tab": str(int(is_table)), "range_input": f"{max(1, round(minutes))}m"}
        parameters += [(f"g{number}.{name}", value) for name, value in fields.items()]
    return f"{server}/classic/graph?{urllib.parse.urlencode(parameters)}"


def main(minutes: float) -> None:
    browser = shutil.which("chromium") or sys.exit("chromium is not installed")
    with (
        tempfile.TemporaryDirectory() as name,
        backend_running() as backend,
        walkthrough.serving(Path(name), backend.url) as (proxy, admin),
        prometheus(Path(name), admin.removeprefix("http://")) as server,
        walkthrough.traffic(Path(name), proxy),
    ):
        time.sleep(60 * minutes)
        command = [browser, *FLAGS.split(), f"--user-data-dir={name}/browser", f"--window-size={SIZE}"]
        subprocess.run([*command, f"--screenshot={PICTURE}", page(server, minutes)], check=True, capture_output=True)
    print(PICTURE)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
