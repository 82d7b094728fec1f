"""Starting, reloading, draining, worker processes: `wholecall serve` as a process, or the server in a test's loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from support.client import REQUEST, Client, ask, chat
from support.proxy import Proxy, document, metric, running, write_config
from support.upstream import Conversation, Upstream, chunk, says

STREAM = {**REQUEST, "stream": True}


async def until_told(c: Conversation) -> None:
    """One word, then nothing until the proxy closes the connection."""
    await c.head()
    await c.event(chunk({"content": "one"}))
    await c.until_closed()


async def slow(c: Conversation) -> None:
    await c.head()
    for word in ("one", "two", "three"):
        await c.event(chunk({"content": word}))
        await asyncio.sleep(0.15)
    for value in (chunk({}, "stop"), "[DONE]"):
        await c.event(value)
    await c.end()


# --- draining -----------------------------------------------------------------------------------------------------


def test_a_running_stream_ends_well_while_the_process_drains(tmp_path: Path) -> None:
    async def main() -> None:
        async with Upstream(slow) as up:
            config = write_config(tmp_path / "c.toml", document(up.url, listen={"drain_s": 10.0}))
            async with running(config) as process, Client(process.port) as client, Client(process.port) as idle:
                await idle.ask(None, "/healthz", "GET")
                await idle.rest(await idle.head())
                await client.ask(STREAM)
                reply = await client.head()
                await client.until(b"one", reply)
                process.kill(signal.SIGTERM)
                assert await idle.closed() == b""
                try:
                    async with Client(process.port):
                        raise AssertionError("a new connection was taken")
                except ConnectionRefusedError:
                    pass
                await client.rest(reply)
                assert (reply.text, reply.events[-1], reply.broken) == ("onetwothree", "[DONE]", False)
                assert await client.closed() == b""
                assert await process.ended() == 0

    uvloop.run(main())


def test_while_notice_is_given_requests_are_taken_and_answers_end_their_connections() -> None:
    async def main() -> None:
        async with (
            Upstream(slow) as up,
            Proxy(up.url, listen={"notice_s": 600.0, "drain_s": 600.0}) as proxy,
            Client(proxy.port) as running,
            Client(proxy.port) as waiting,
            Client(proxy.port) as kept,
        ):
            await kept.ask(None, "/healthz", "GET")
            await kept.rest(await kept.head())
            await running.ask(STREAM)
            begun = await running.head()
            await waiting.ask({**REQUEST, "model": "waiting"})
            while len(up.seen) < 2:
                await asyncio.sleep(0.01)
            proxy.server.stop()
            await asyncio.sleep(0.05)
            ready = await ask(proxy.port, None, "/readyz")
            assert (ready.status, ready.body) == (503, b"draining\n")
            await kept.ask(STREAM)  # a kept connection is served once more
            new = await chat(proxy.port, stream=True)
            for reply in (await kept.rest(await kept.head()), await waiting.rest(await waiting.head()), new, ready):
                assert (reply.broken, reply.headers["connection"]) == (False, "close")
            assert new.text == (await running.rest(begun)).text == "onetwothree"
            assert await kept.closed() == b""
            proxy.server.stop()  # enough

    uvloop.run(main())


def test_at_the_drain_limit_a_stream_ends_with_an_error_and_a_clean_end(tmp_path: Path) -> None:
    async def silent(c: Conversation) -> None:
        if c.request.json["model"] == "silent":
            await c.until_closed()
        await until_told(c)

    async def main() -> None:
        async with Upstream(silent) as up:
            config = write_config(tmp_path / "c.toml", document(up.url, listen={"drain_s": 0.3}))
            async with running(config) as process:
                async with Client(process.port) as client, Client(process.port) as waiting:
                    await client.ask(STREAM)
                    reply = await client.head()
                    await client.until(b"one", reply)
                    await waiting.ask({**STREAM, "model": "silent"})
                    while len(up.seen) < 2:
                        await asyncio.sleep(0.01)
                    began = time.monotonic()
                    process.kill(signal.SIGTERM)
                    await client.rest(reply)
                    assert reply.error["code"] == "proxy_shutdown"
                    assert b"[DONE]" not in reply.body
                    assert not reply.broken
                    late = await waiting.rest(await waiting.head())
                    assert (late.status, late.error["code"]) == (503, "proxy_shutdown")
                    assert await process.ended() == 0
                    assert time.monotonic() - began >= 0.3
                await up.none_open()

    uvloop.run(main())


def test_a_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    async def flood(c: Conversation) -> None:
        await c.head()
        while True:
            await c.event(chunk({"content": "x" * 65536}))

    async def main() -> None:
        async with (
            Upstream(flood) as up,
            Proxy(up.url, listen={"drain_s": 0.2}) as proxy,
            Client(proxy.port, receive_buffer=65536) as client,
        ):
            await client.ask(STREAM)
            await client.head()
            await asyncio.sleep(0.2)
            proxy.server.stop()
            await up.none_open(5.0)

    uvloop.run(main())


def test_a_second_signal_ends_the_draining() -> None:
    async def main() -> None:
        async with (
            Upstream(until_told) as up,
            Proxy(up.url, listen={"drain_s": 600.0}) as proxy,
            Client(proxy.port) as client,
        ):
            await client.ask(STREAM)
            reply = await client.head()
            proxy.server.stop()
            await asyncio.sleep(0.05)
            assert not proxy.service.is_ready()
            proxy.server.stop()
            await client.rest(reply)
            assert reply.error["code"] == "proxy_shutdown"
            await proxy.quiet()
            assert proxy.metric("wholecall_upstream_errors_total") == 0  # the backend's fault it was not

    uvloop.run(main())


def test_the_admin_port_says_that_the_process_drains() -> None:
    async def main() -> None:
        async with Upstream(until_told) as spare:
            port = spare.port
        async with (
            Upstream(until_told) as up,
            Proxy(up.url, listen={"drain_s": 600.0, "admin_port": port}) as proxy,
            Client(proxy.port) as client,
        ):
            await client.ask(STREAM)
            await client.head()
            proxy.server.stop()
            await asyncio.sleep(0.05)
            reply = await ask(proxy.admin_port, None, "/readyz")
            assert (reply.status, reply.body) == (503, b"draining\n")
            assert (await ask(proxy.admin_port, None, "/healthz")).status == 200
            proxy.server.stop()

    uvloop.run(main())


# --- reloading ----------------------------------------------------------------------------------------------------


def test_a_good_file_is_taken_at_sighup_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with Upstream(slow) as first, Upstream(says("second")) as second:
            config = write_config(tmp_path / "c.toml", document(first.url))
            async with running(config) as process, Client(process.port) as client:
                await client.ask(STREAM)
                reply = await client.head()
                await client.until(b"one", reply)

                config.write_text('[listen]\nport = "x"\n[[backends]]\nname = "b"\n')
                process.kill(signal.SIGHUP)
                line = await process.logged("reload")
                assert line["level"] == "error"
                assert any("listen.port" in problem for problem in line["problems"])
                assert len(line["problems"]) > 1
                process.log.clear()

                write_config(config, document(second.url))
                process.kill(signal.SIGHUP)
                assert (await process.logged("reload"))["level"] == "info"
                assert (await chat(process.port, stream=True)).text == "second"
                await client.rest(reply)  # it keeps the configuration that it began with
                assert reply.text == "onetwothree"

    uvloop.run(main())


def test_what_a_reload_cannot_change_stays_as_it_is_bound(tmp_path: Path) -> None:
    """A file that names every address of the machine must not open a proxy that is bound to this one alone."""

    async def main() -> None:
        async with Upstream(says("Hello")) as up:
            config = write_config(tmp_path / "c.toml", document(up.url))
            async with running(config) as process:

                async def reload(**listen: Any) -> list[str]:
                    process.log.clear()
                    write_config(config, document(up.url, listen=listen))
                    process.kill(signal.SIGHUP)
                    await process.logged("reload")
                    return [line["message"] for line in process.log if line["level"] == "warning"]

                told = await reload(host="0.0.0.0")  # noqa: S104
                assert told == ["changes of listen.host only count after a restart"]
                rebound = {"host": "attacker.example"}
                for path in ("/metrics", "/v1/models"):
                    assert (await ask(process.port, None, path, headers=rebound)).status == 403
                assert await reload(hosts=["attacker.example"]) == []
                for path in ("/metrics", "/v1/models"):
                    assert (await ask(process.port, None, path, headers=rebound)).status == 200

    uvloop.run(main())


def test_a_worker_that_starts_after_a_reload_keeps_to_what_is_bound_too(tmp_path: Path) -> None:
    async def main() -> None:
        config = write_config(tmp_path / "c.toml", document("http://127.0.0.1:1/v1"))
        async with running(config, "--workers", "2") as process:
            write_config(config, document("http://127.0.0.1:1/v1", listen={"host": "0.0.0.0"}))  # noqa: S104
            process.kill(signal.SIGHUP)
            parent = process.process.pid
            async with asyncio.timeout(30):
                while [line.get("event") for line in process.log].count("reload") < 2:
                    await asyncio.sleep(0.02)
                old = set(_children(parent))
                for child in old:
                    os.kill(child, signal.SIGKILL)
                while len(set(_children(parent)) - old) < 2:
                    await asyncio.sleep(0.02)
            rebound = {"host": "attacker.example"}
            for _ in range(4):
                assert (await ask(process.port, None, "/metrics", headers=rebound)).status == 403

    uvloop.run(main())


# --- starting -----------------------------------------------------------------------------------------------------


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment, check=False)


def test_what_keeps_the_server_from_starting_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        good = write_config(tmp_path / "good.toml", document("http://127.0.0.1:1/v1", listen={"port": port}))
        wrong: dict[str, Any] = {
            "a taken port": (good, [str(port), "choose another", "listen.port", "--port"]),
            "no file": (tmp_path / "none.toml", ["none.toml", "cannot be read"]),
        }
        for path, words in wrong.values():
            result = serve("serve", "--config", str(path))
            assert result.returncode == 2
            last = result.stderr.strip().splitlines()[-1]
            assert all(word in last for word in words), result.stderr
            assert "Traceback" not in result.stderr


def test_check_config_reports_every_mistake_and_describes_a_good_file(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(
        '[listen]\nport = 99999\n[polices]\n[limits]\nidle_s = "long"\n[[backends]]\nname = "a"\n'
        'dialect = "openai-chat"\nbase_url = "ftp://x"\n[[routes]]\nmodels = ["*"]\nbackends = ["b"]\n'
    )
    result = serve("check-config", str(bad))
    assert result.returncode == 2
    for key in ("listen.port", "polices", "limits.idle_s", "backends[0].base_url", "routes[0].backends[0]"):
        assert key in result.stderr
    assert len(result.stderr.strip().splitlines()) == 5
    good = write_config(tmp_path / "good.toml", document("http://127.0.0.1:1/v1", backend={"api_key": "s3cret"}))
    result = serve("check-config", str(good))
    assert (result.returncode, "b0" in result.stdout, "s3cret" in result.stdout) == (0, True, False)
    assert result.stderr == ""


def test_keys_of_clients_that_would_go_to_a_backend_are_warned_of_at_each_start_and_reload(tmp_path: Path) -> None:
    tables = {"backend": {"api_key": "forward"}, "clients": [{"name": "agents", "key": "s3cret"}]}
    path = write_config(tmp_path / "c.toml", document("http://127.0.0.1:1/v1", **tables))
    result = serve("check-config", str(path))
    assert (result.returncode, result.stderr.startswith("warning: backends[0].api_key")) == (0, True)
    assert len(result.stderr.splitlines()) == 1

    async def main() -> None:
        async with running(path) as process:
            assert "backends[0].api_key" in (await process.logged("config"))["message"]
            process.kill(signal.SIGHUP)
            await process.logged("reload")
            assert len([line for line in process.log if line["event"] == "config"]) == 2

    asyncio.run(main())


# --- workers ------------------------------------------------------------------------------------------------------


def test_the_supervisor_outlives_a_pause_of_itself(tmp_path: Path) -> None:
    async def main() -> None:
        config = write_config(tmp_path / "c.toml", document("http://127.0.0.1:1/v1"))
        async with running(config, "--workers", "2") as process:
            process.kill(signal.SIGSTOP)
            await asyncio.sleep(1.5)  # longer than it waits for a signal
            process.kill(signal.SIGCONT)
            await asyncio.sleep(1.5)
            assert process.process.returncode is None
            assert (await ask(process.port, None, "/healthz")).status == 200
            process.kill(signal.SIGTERM)
            assert await process.ended() == 0

    asyncio.run(main())


def test_two_workers_share_a_port_and_their_metrics_add_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with Upstream(says("Hello")) as up:
            config = write_config(tmp_path / "c.toml", document(up.url))
            async with running(config, "--workers", "2") as process:
                for _ in range(40):
                    assert (await chat(process.port)).status == 200
                texts = [(await ask(process.port, None, "/metrics")).body.decode() for _ in range(8)]
                assert {metric(text, "wholecall_requests_total", status="200") for text in texts} == {40.0}
                assert {metric(text, "wholecall_backend_up", backend="b0") for text in texts} == {1.0}
                assert {metric(text, "wholecall_streams_limit") for text in texts} == {2000.0}

                up.script = until_told
                async with Client(process.port) as one, Client(process.port) as two, Client(process.port) as three:
                    for client in (one, two, three):
                        await client.ask(STREAM)
                        await client.until(b"one", await client.head())
                    assert await _streams(process.port) == 3
                    children = _children(process.process.pid)
                    assert len(children) == 2
                    for child in children:  # one after the other: the first may have had none of the streams
                        os.kill(child, signal.SIGKILL)
                        async with asyncio.timeout(10):
                            while child in _children(process.process.pid) or len(_children(process.process.pid)) < 2:
                                await asyncio.sleep(0.05)
                        async with asyncio.timeout(10):  # a dead worker's streams no longer count
                            while await _streams(process.port) != 3 - sum(
                                client.reader.at_eof() for client in (one, two, three)
                            ):
                                await asyncio.sleep(0.05)
                    assert await _streams(process.port) == 0
                text = (await ask(process.port, None, "/metrics")).body.decode()
                assert metric(text, "wholecall_requests_total", status="200") >= 40

                process.kill(signal.SIGTERM)
                assert await process.ended() == 0
                assert _children(process.process.pid) == []

    uvloop.run(main())


def test_workers_drain_and_reload_like_one_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with Upstream(slow) as first, Upstream(says("second")) as second:
            config = write_config(tmp_path / "c.toml", document(first.url, listen={"drain_s": 10.0}))
            async with running(config, "--workers", "2") as process, Client(process.port) as client:
                await client.ask(STREAM)
                reply = await client.head()
                await client.until(b"one", reply)
                write_config(config, document(second.url, listen={"drain_s": 10.0}))
                process.kill(signal.SIGHUP)
                async with asyncio.timeout(10):
                    while [line.get("event") for line in process.log].count("reload") < 2:
                        await asyncio.sleep(0.02)
                assert {(await chat(process.port, stream=True)).text for _ in range(8)} == {"second"}
                process.kill(signal.SIGTERM)
                await client.rest(reply)
                assert reply.text == "onetwothree"
                assert await process.ended() == 0

    uvloop.run(main())


async def _streams(port: int) -> float:
    return metric((await ask(port, None, "/metrics")).body.decode(), "wholecall_streams")


def _children(pid: int) -> list[int]:
    """The process's children that have not ended."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in found]
