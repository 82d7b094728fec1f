"""`wholecall backend` and the fixture for pytest: the recordings as a process of their own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import running
from proxy.replay.backend import ReplayBackend

ROOT = Path(__file__).resolve().parent.parent


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [str(running.WHOLECALL), "backend", "--port", "0", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return json.load(reply)


def test_it_serves_the_recordings_and_the_files_until_its_input_ends() -> None:
    file = next((ROOT / "tests/cases/gemini").glob("*.json"))
    with start("--attached", file) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        names = [model["id"] for model in read(f"{url}/models")["data"]]
        assert {"demo/clean", file.stem} <= set(names)
        assert process.stdout.readline() == f"models: {', '.join(names)}\n"
        assert read(f"{url}/demo/expected?model={file.stem}")["model"] == file.stem
        process.stdin.close()
        assert process.wait(running.WAIT_S) == 0


@pytest.mark.parametrize("name", ["nowhere.json", "README.md"])
def test_a_file_that_cannot_be_played_is_named_in_one_line(name: str) -> None:
    with start(ROOT / name) as process:
        _, told = process.communicate(timeout=running.WAIT_S)
    assert process.returncode == 2
    assert name in told
    assert len(told.splitlines()) == 1


def test_a_port_in_use_is_told_in_one_line(wholecall_backend: ReplayBackend) -> None:
    port = wholecall_backend.url.removesuffix("/v1").rpartition(":")[2]
    with start("--port", port) as process:
        _, told = process.communicate(timeout=running.WAIT_S)
    assert process.returncode == 2
    assert told == f"cannot listen on 127.0.0.1 port {port}: Address already in use; choose another with --port\n"


def test_the_fixture_has_requests_and_what_is_expected_of_their_replies(wholecall_backend: ReplayBackend) -> None:
    assert list(wholecall_backend.models) == [model["id"] for model in read(f"{wholecall_backend.url}/models")["data"]]
    for model in wholecall_backend.models:
        request = wholecall_backend.request(model)
        assert request == read(f"{wholecall_backend.url}/demo/request?model={model}")
        calls = [call.as_json() for call in wholecall_backend.expected(model).calls]
        told = read(f"{wholecall_backend.url}/demo/expected?model={model}")["calls"]
        assert json.loads(json.dumps(calls)) == told


GATEWAY_TEST = """
import sys

def test_nothing_is_loaded_before_it_is_asked_for():
    assert not {"uvicorn", "starlette", "pydantic", "proxy.replay.backend"} & set(sys.modules)

def test_my_gateway(wholecall_backend):
    assert wholecall_backend.url.startswith("http://127.0.0.1:")
    assert [c.name for c in wholecall_backend.expected("demo/clean").calls] == ["get_weather", "add_reminder"]
"""


def test_any_project_has_the_fixture_once_the_package_is_installed(tmp_path: Path) -> None:
    """In another folder, with warnings as errors, and without a word of configuration."""
    if not importlib.metadata.entry_points(group="pytest11", name="wholecall"):
        if os.environ.get("CI"):
            pytest.fail("the installed package has no entry point for pytest")
        pytest.skip("installed before the plugin was there: pip install -e '.[test]'")
    (tmp_path / "test_gateway.py").write_text(GATEWAY_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
