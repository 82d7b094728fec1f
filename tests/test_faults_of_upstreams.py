"""The fault table, upstreams: see tests/faults."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import pytest

from faults.table import Row, upstream_rows
from faults.upstreams import ACTS
from faults.world import Loop, World, complaints
from support.tls import Authority

ROWS = upstream_rows()
SCRIPTS = {fault: act.do for fault, act in ACTS.items() if act.do is not None}


@contextmanager
def refusing() -> Iterator[int]:
    """A port where nothing listens and nothing will."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@contextmanager
def full() -> Iterator[int]:
    """A port whose queue of connections is full."""
    with socket.socket() as sock, socket.socket() as one, socket.socket() as two:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        for waiting in (one, two):
            waiting.setblocking(False)
            waiting.connect_ex(sock.getsockname())
        yield sock.getsockname()[1]


async def rude(how: Literal["closes", "resets", "stalls", "answers"], *, reads: bool = False) -> asyncio.Server:
    """Does that to each connection as it comes; `reads`: once the first bytes are here."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reads:
            await reader.read(65_536)
        if how == "stalls":
            await reader.read()
        if how == "answers":
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        if how == "resets":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


RUDE: dict[str, Callable[[], Awaitable[asyncio.Server]]] = {
    "closes": lambda: rude("closes"),
    "resets": lambda: rude("resets"),
    "closes-tls": lambda: rude("closes", reads=True),
    "resets-tls": lambda: rude("resets", reads=True),
    "no-tls": lambda: rude("answers", reads=True),
    "stalls-tls": lambda: rude("stalls"),
}


SMALL = {"max_event_bytes": 1 << 17, "max_held_bytes": 3 << 18, "max_arguments_bytes": 1 << 17}
SMALL |= {"max_reply_bytes": 1 << 20, "max_events": 3000, "max_calls": 16}
HASTE = {"first_byte_s": 0.4, "idle_s": 0.4}


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def world(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        authority = Authority(tmp_path_factory.mktemp("trusted"))
        stranger = Authority(tmp_path_factory.mktemp("stranger"))
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("SSL_CERT_FILE", str(authority.file))
        secure = {
            "tls": authority.server(),
            "self-signed": stranger.server(),
            "other-host": authority.server("elsewhere.example"),
            "expired": authority.server(expired=True),
        }
        rude = {name: loop.run(start()) for name, start in RUDE.items()}
        ports = {"refuses": stack.enter_context(refusing()), "full": stack.enter_context(full())}
        ports |= {name: server.sockets[0].getsockname()[1] for name, server in rude.items()}
        backends: dict[str, dict[str, Any]] = {
            "usual": {},
            "hasty": {"limits": HASTE},
            "brief": {"limits": {"total_s": 0.5}},
            "small": {"limits": SMALL},
        }
        for name, port in ports.items():
            backends[name] = {"base_url": f"http{'s' if 'tls' in name else ''}://127.0.0.1:{port}/v1"}
        for name in ("full", "stalls-tls"):
            backends[name]["limits"] = {"connect_s": 0.4}
        world = World(SCRIPTS, backends, secure)
        loop.run(world.open())
        yield world
        loop.run(world.close())
        for server in rude.values():
            server.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.family}: {row.fault}")
def test_a_fault_of_an_upstream_is_what_the_table_says(
    row: Row, world: World, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wrong = loop.run(world.row(row, ACTS[row.fault])) + complaints(caplog.records)
    assert not wrong, "\n".join([row.fault, *wrong])


def test_every_fault_that_can_be_done_is_in_the_table_once() -> None:
    assert sorted(row.fault for row in ROWS) == sorted(ACTS)
