"""The README's way from nothing to a dashboard, without the containers: the same files, commands and traffic."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import dashboard
import running
from proxy.replay.backend import ReplayBackend
from support.proxy import metric
from test_packaging import COMPOSE, readme_commands, run, tool
from test_prometheus import ask, by_label, prometheus

ROOT = Path(__file__).resolve().parent.parent
OVERLAY: dict[str, Any] = yaml.safe_load((ROOT / "config/compose-demo.yaml").read_text())
CONFIG = (ROOT / "config/demo.toml").read_text()
ASIDE = ("damaged", "traffic")


def test_the_overlay_follows_the_specification_and_the_readme_names_it() -> None:
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", "config/compose-demo.yaml")
    assert "docker compose -f compose.yaml -f config/compose-demo.yaml up --build" in (ROOT / "README.md").read_text()


def test_the_overlay_mounts_its_configuration_where_the_image_reads_it() -> None:
    (own,) = COMPOSE["services"]["proxy"]["volumes"]
    (other,) = OVERLAY["services"]["proxy"]["volumes"]
    assert other.split(":")[1:] == own.split(":")[1:]
    assert other.split(":")[0] == "./config/demo.toml"
    run(tool("wholecall"), "check-config", "config/demo.toml")


@pytest.mark.parametrize("name", ASIDE)
def test_what_stands_beside_the_proxy_can_do_no_more_than_it_must(name: str) -> None:
    service = OVERLAY["services"][name]
    assert service["image"] == COMPOSE["services"]["proxy"]["image"]
    assert service["network_mode"] == "service:proxy", "127.0.0.1 is the same for all of them"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert "ports" not in service


def test_the_backend_is_started_at_the_port_that_the_configuration_asks() -> None:
    port = OVERLAY["services"]["damaged"]["command"][-1]
    assert OVERLAY["services"]["damaged"]["command"] == ["backend", "--port", port]
    assert set(re.findall(r"base_url = \"(.*)\"", CONFIG)) == {f"http://127.0.0.1:{port}/v1"}
    assert f"port = {COMPOSE['services']['proxy']['ports'][0].rpartition(':')[2]}\n" in CONFIG
    assert "admin_port = 8081 " in CONFIG, "which config/prometheus.yml scrapes"


@contextmanager
def serving(folder: Path, backend: str) -> Iterator[tuple[str, str]]:
    """The proxy with config/demo.toml, on other ports; its URL and that of its metrics."""
    port, admin = running.free_port(), running.free_port()
    file = folder / "demo.toml"
    text = CONFIG.replace("port = 8080", f"port = {port}").replace("admin_port = 8081", f"admin_port = {admin}")
    file.write_text(text.replace("http://127.0.0.1:8090/v1", backend).replace('"0.0.0.0"', '"127.0.0.1"'))
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen([running.WHOLECALL, "serve", "--config", file], stdout=log, stderr=log)
    try:
        admin_url = f"http://127.0.0.1:{admin}"
        running.until(lambda: running.get(f"{admin_url}/readyz")[0] == 200, "the proxy is ready", process)
        yield f"http://127.0.0.1:{port}", admin_url
    finally:
        running.stop(process)


@contextmanager
def traffic(folder: Path, proxy: str) -> Iterator[None]:
    service = OVERLAY["services"]["traffic"]
    assert service["entrypoint"] == ["python", "-u", "-c"]
    with (folder / "traffic.log").open("wb") as log:
        command = [sys.executable, "-u", "-c", *service["command"]]
        process = subprocess.Popen(command, env={**os.environ, "PROXY": proxy}, stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, (folder / "traffic.log").read_text()
    finally:
        running.stop(process)


@pytest.mark.slow
def test_the_readmes_loop_asks_for_every_recording(tmp_path: Path, wholecall_backend: ReplayBackend) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (loop,) = [command for command in readme_commands() if "demo/request" in command]
    with serving(tmp_path, wholecall_backend.url) as (proxy, admin):
        subprocess.run(["sh", "-c", loop.replace("http://127.0.0.1:8080", proxy)], check=True)
        metrics = running.get(f"{admin}/metrics")[1].decode()
    assert metric(metrics, "wholecall_requests_total", dialect="openai-chat") == len(wholecall_backend.models)
    assert metric(metrics, "wholecall_quirks_total", quirk="args_cumulative") == 1


@pytest.mark.slow
def test_the_dashboard_shows_the_damaged_backends_quirks_and_faulty_calls_and_none_of_the_clean_one(
    tmp_path: Path, wholecall_backend: ReplayBackend
) -> None:
    with (
        serving(tmp_path, wholecall_backend.url) as (proxy, admin),
        prometheus(tmp_path, admin.removeprefix("http://")) as server,
        traffic(tmp_path, proxy),
    ):
        panels = {
            panel["title"]: panel["targets"][0]["expr"] for panel in dashboard.DASHBOARD["panels"] if "targets" in panel
        }

        def shown(title: str) -> str:
            query = str(panels[title])
            for name, value in dashboard.VARIABLES.items():
                query = query.replace(name, value)
            return query

        def quirks() -> set[tuple[str, str]]:
            return {(labels["backend"], labels["quirk"]) for labels, value in ask(server, shown("Quirks")) if value}

        expected = {("damaged", quirk) for quirk in ("args_cumulative", "finish_wrong", "index_missing")}
        running.until(lambda: quirks() >= expected, "the quirks are on the dashboard")
        assert {backend for backend, _ in quirks()} == {"damaged"}

        def verdicts() -> dict[str, float]:
            return by_label(server, shown("Faulty calls by backend and verdict"), "verdict")

        faulty = {"incomplete", "invalid_json", "schema_violation", "unknown_tool"}
        running.until(lambda: verdicts().keys() >= faulty, "the faulty calls are on the dashboard")

        def share() -> dict[str, float]:
            return {labels["backend"]: value for labels, value in ask(server, shown("Faulty share by backend"))}

        running.until(lambda: share().keys() >= {"clean", "damaged"}, "both backends' shares are on the dashboard")
        assert share()["damaged"] > 0.1
        assert share()["clean"] == 0
        running.until(lambda: bool(ask(server, shown("Re-asks"))), "the re-asks are on the dashboard")
