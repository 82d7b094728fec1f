"""The replay backend as a server within another program."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp


class Embedded(uvicorn.Server):
    """Ends with the program around it, whose signals are its own."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listening_on(host: str, port: int = 0) -> socket.socket:
    """What an embedded server accepts on. asyncio turns Nagle's algorithm off only for sockets that name their
    protocol; with it a kept connection's answers came 40 ms late: what follows the head waited for an acknowledgement.
    """
    found = socket.create_server((host, port))
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # those that it accepts inherit it
    return found


async def accepting(server: uvicorn.Server, task: asyncio.Task[Any]) -> None:
    """Returns when `server`, which `task` runs, accepts connections, or has ended without doing so."""
    while not server.started and not task.done():  # noqa: ASYNC110
        await asyncio.sleep(0.005)  # uvicorn has no event for it
