"""Upstreams that never get as far as a request: ports of 127.0.0.1 on which something is wrong before it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

Listener = Callable[[], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def refusing() -> AsyncIterator[int]:
    """Nothing listens, and nothing will."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@asynccontextmanager
async def full() -> AsyncIterator[int]:
    """The queue of connections is full."""
    with socket.socket() as sock, socket.socket() as one, socket.socket() as two:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        for waiting in (one, two):
            waiting.setblocking(False)
            waiting.connect_ex(sock.getsockname())
        yield sock.getsockname()[1]


@asynccontextmanager
async def rude(how: Literal["closes", "resets", "stalls", "answers"], *, reads: bool = False) -> AsyncIterator[int]:
    """Does that to each connection as it comes; `reads`: once the first bytes are here. `answers`: in plain HTTP."""

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

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


# By the name of the backend; one with "tls" in it is asked over TLS.
LISTENERS: dict[str, Listener] = {
    "refuses": refusing,
    "full": full,
    "closes": lambda: rude("closes"),
    "resets": lambda: rude("resets"),
    "closes-tls": lambda: rude("closes", reads=True),
    "resets-tls": lambda: rude("resets", reads=True),
    "no-tls": lambda: rude("answers", reads=True),
    "stalls-tls": lambda: rude("stalls"),
}
