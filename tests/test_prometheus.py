"""A real Prometheus scrapes the running proxy and is asked for its counters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dashboard
import running
from test_clients import DOCUMENTS, STREAMS, python_raw

pytestmark = pytest.mark.slow


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Prometheus with the shipped scrape job, pointed at `target` and hurried; gives its root URL."""
    program = shutil.which("prometheus")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have prometheus: tests/check.sh installs it")
        pytest.skip("prometheus is not installed")
    shipped = (Path(__file__).parent.parent / "config/prometheus.yml").read_text()
    config = folder / "prometheus.yml"
    config.write_text(shipped.replace("proxy:8081", target).replace("15s", "500ms"))
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


def ask(url: str, query: str) -> list[tuple[dict[str, str], float]]:
    """An instant query: labels and number of each series."""
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=30) as reply:
        answer = json.load(reply)
    assert answer["status"] == "success"
    return [(row["metric"], float(row["value"][1])) for row in answer["data"]["result"]]


def by_label(url: str, query: str, label: str) -> dict[str, float]:
    return {labels[label]: value for labels, value in ask(url, query) if value}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_prometheus_counts_tool_calls_by_verdict_and_the_dashboard_finds_its_series(
    tmp_path: Path, workers: str
) -> None:
    with (
        running.upstream(STREAMS, DOCUMENTS) as upstream,
        running.proxy(tmp_path, upstream.url, arguments=("--workers", workers)) as proxy,
    ):
        for model in ["interleaved"] * 5 + ["blocked"] * 3 + ["cut"] * 2:
            python_raw(f"{proxy}/v1", model)
        expected = {"valid": 5 * 2 + 3, "schema_violation": 3, "incomplete": 2 * 2}
        with prometheus(tmp_path, proxy.removeprefix("http://")) as server:

            def calls() -> dict[str, float]:
                return by_label(server, "sum by (verdict) (wholecall_tool_calls_total)", "verdict")

            running.until(lambda: sum(calls().values()) >= sum(expected.values()), "the calls are in Prometheus")
            assert calls() == expected
            assert by_label(server, "wholecall_backend_up", "backend") == {"scripted": 1}
            assert by_label(server, "sum by (backend) (wholecall_requests_total)", "backend") == {"scripted": 10}
            # A rate needs two scrapes.
            running.until(lambda: bool(ask(server, "rate(wholecall_requests_total[1m])")), "a second scrape")
            for query, labels in dashboard.queries():
                series = ask(server, query.removesuffix(" > 0"))
                assert series, f"no data for {query}"
                assert all(labels <= found.keys() for found, _ in series), f"the legend needs {labels}: {query}"
            for metric, label in dashboard.label_values():
                assert all(found.get(label) for found, _ in ask(server, metric)), f"{metric} has no label {label}"
