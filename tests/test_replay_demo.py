"""`wholecall demo`: one process, a real server on a free port, a real request."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.cli import main
from proxy.replay.app import shipped
from proxy.replay.embedded import listening_on

ROOT = Path(__file__).parent.parent


def started(*, once: bool = False, port: int = 0, columns: int = 80) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    return subprocess.Popen(
        [sys.executable, "-c", f"from proxy.demo import run; raise SystemExit(run({once}, {port}))"],
        cwd=ROOT,
        env={**env, "COLUMNS": str(columns), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("columns", [80, 120])
def test_once_shows_what_came_what_went_and_the_verdicts_and_ends(columns: int) -> None:
    process = started(once=True, columns=columns)
    shown, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    came, went = shown.partition("What went out")[::2]
    assert "null" in came
    assert "[DONE]" in came
    assert "null" not in went.partition("Verdicts")[0]
    for text in ("get_weather", "add_reminder", "valid", "args_cumulative", "2 of 2 calls", "tool_calls"):
        assert text in went
    assert max(map(len, shown.splitlines())) <= columns
    assert "\x1b" not in shown


def test_it_serves_at_the_address_it_names_until_interrupted() -> None:
    process = started()
    try:
        assert process.stdout is not None
        address = ""
        for line in process.stdout:
            if "listens on" in line:
                address = line.split("listens on ")[1].split(" ")[0]
            if "Ctrl-C" in line:
                break
        with urllib.request.urlopen(f"{address}/demo/request?model=demo/undeclared-tool", timeout=10) as answer:
            body = answer.read()
        request = urllib.request.Request(f"{address}/chat/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            last = [line for line in answer.read().decode().splitlines() if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "unknown_tool"
        process.send_signal(signal.SIGINT)
    except BaseException:
        process.kill()
        raise
    finally:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert '"level":"error"' not in errors


def test_an_embedded_server_does_not_wait_for_acknowledgements() -> None:
    async def main() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listening_on("127.0.0.1") as listening:
            server = await asyncio.start_server(connected, sock=listening)
            async with server:
                _, writer = await asyncio.open_connection(*listening.getsockname())
                writer.close()
                return await accepted

    assert asyncio.run(main())


def test_a_port_that_is_taken_gets_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = started(port=taken.getsockname()[1])
        shown, errors = process.communicate(timeout=30)
    assert (process.returncode, shown) == (2, "")
    assert len(errors.splitlines()) == 1
    assert "--port (0: a free one)" in errors
    assert "listen.port" not in errors


@pytest.mark.parametrize("early", [True, False])
def test_it_ends_with_its_terminal(early: bool) -> None:
    process = started()
    try:
        assert process.stdout is not None
        while ("Asked" if early else "Ctrl-C") not in (line := process.stdout.readline()):
            assert line
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0


def test_where_to_go_fits_into_eighty_columns() -> None:
    process = started()
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while "Ctrl-C" not in (line := process.stdout.readline()):
            assert line
            lines.append(line.rstrip("\n"))
    finally:
        process.kill()
        process.communicate()
    after = lines[next(i for i, line in enumerate(lines) if "listens on" in line) :]
    assert max(map(len, after)) <= 80
    assert "\n".join(after).split("NAME is one of\n")[1].replace(",", " ").split() == list(shipped())


@pytest.mark.parametrize(
    ("options", "port"), [(["--once"], 0), ([], 8080), (["--once", "--port", "99"], 99), (["--port", "0"], 0)]
)
def test_a_free_port_is_taken_where_nobody_needs_it_afterwards(
    options: list[str], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def run(once: bool, port: int) -> int:
        asked.append(port)
        return 0

    monkeypatch.setattr("proxy.demo.run", run)
    assert CliRunner().invoke(main, ["demo", *options]).exit_code == 0
    assert asked == [port]
