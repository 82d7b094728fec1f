"""A real Prometheus scrapes the running proxy and is asked for its counters."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dashboard
import running
from test_clients import DOCUMENTS, END, STREAMS, chunk, python_raw

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def leaked(name: str) -> running.Script:
    """A reply whose call is written in the text, as Hermes models do."""
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "Paris"}}}}\n</tool_call>'
    return running.Script((chunk({"role": "assistant", "content": call}), chunk({}, "stop"), END[-1]))


REPLIES = {
    **STREAMS,
    "leaked": leaked("get_weather"),
    "undeclared": leaked("get_stock"),
    "asked-again": STREAMS["blocked-early"],
}
ASK_AGAIN = '[[routes]]\nmodels = ["asked-again"]\nbackends = ["scripted"]\n[routes.policy]\nreask = 1'

# Every panel has something to show after this, and the alerts on quality and on errors have enough to fire.
TRAFFIC = ["interleaved"] * 5 + ["blocked"] * 3 + ["cut"] * 6 + ["leaked", "undeclared", "asked-again"]
VERDICTS = {
    "valid": 5 * 2 + 3 + 1 + 1,
    "schema_violation": 3 + 1,
    "incomplete": 6 * 2,
}
ALERTS = {"WholecallFaultyCalls", "WholecallUpstreamErrors"}


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Prometheus with the shipped scrape job and alerts, pointed at `target` and hurried; gives its root URL."""
    program = shutil.which("prometheus")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have prometheus: tests/check.sh installs it")
        pytest.skip("prometheus is not installed")
    config = folder / "prometheus.yml"
    config.write_text((ROOT / "config" / config.name).read_text().replace("proxy:8081", target).replace("15s", "500ms"))
    alerts = folder / "prometheus-alerts.yml"
    alerts.write_text(re.sub(r"\bfor: \w+", "for: 0s", (ROOT / "config" / alerts.name).read_text()))
    port = running.free_port()
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        running.until(lambda: running.get(f"{url}/-/ready")[0] == 200, "Prometheus is ready", process)
        yield url
    except AssertionError as error:
        error.add_note((folder / "prometheus.log").read_text(errors="replace")[-4000:])
        raise
    finally:
        running.stop(process)


def api(url: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as reply:
        answer = json.load(reply)
    assert answer["status"] == "success"
    return answer["data"]


def ask(url: str, query: str) -> list[tuple[dict[str, str], float]]:
    """An instant query: labels and number of each series."""
    return [(row["metric"], float(row["value"][1])) for row in api(url, "query", query=query)["result"]]


def by_label(url: str, query: str, label: str) -> dict[str, float]:
    return {labels[label]: value for labels, value in ask(url, query) if value}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_prometheus_counts_calls_fires_its_alerts_and_fills_every_panel(tmp_path: Path, workers: str) -> None:
    with (
        running.upstream(REPLIES, DOCUMENTS) as upstream,
        running.proxy(tmp_path, upstream.url, arguments=("--workers", workers), routes=ASK_AGAIN) as proxy,
        prometheus(tmp_path, proxy.removeprefix("http://")) as server,
    ):
        # An increase is one from scrape to scrape: what the first one found does not count.
        for times in (1, 2):
            for model in TRAFFIC:
                python_raw(f"{proxy}/v1", model)
            expected = {verdict: times * count for verdict, count in VERDICTS.items()}

            def calls() -> dict[str, float]:
                return by_label(server, "sum by (verdict) (wholecall_tool_calls_total)", "verdict")

            running.until(lambda: sum(calls().values()) >= sum(expected.values()), "the calls are in Prometheus")  # noqa: B023
            assert calls() == expected
        assert by_label(server, "wholecall_backend_up", "backend") == {"scripted": 1}
        requests = by_label(server, "sum by (backend) (wholecall_requests_total)", "backend")
        assert requests == {"scripted": 2 * len(TRAFFIC)}

        def firing() -> set[str]:
            return set(by_label(server, 'ALERTS{alertstate="firing"}', "alertname"))

        running.until(lambda: firing() >= ALERTS, "the alerts fire")
        assert firing() == ALERTS
        rules = [rule for group in api(server, "rules")["groups"] for rule in group["rules"]]
        assert [rule for rule in rules if rule["health"] != "ok"] == []
        for alert in api(server, "alerts")["alerts"]:
            assert alert["annotations"]["summary"].startswith("scripted: "), alert
            assert "<error" not in "".join(alert["annotations"].values()), "a template that does not expand"

        for query, labels in dashboard.queries():
            series = ask(server, query.removesuffix(" > 0"))
            assert series, f"no data for {query}"
            assert all(labels <= found.keys() for found, _ in series), f"the legend needs {labels}: {query}"
        for metric, label in dashboard.label_values():
            assert all(found.get(label) for found, _ in ask(server, metric)), f"{metric} has no label {label}"
