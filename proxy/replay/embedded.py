"""The replay backend as a server within another program."""

from __future__ import annotations

import asyncio
import contextlib
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


async def accepting(server: uvicorn.Server, task: asyncio.Task[Any]) -> None:
    """Returns when `server`, which `task` runs, accepts connections, or has ended without doing so."""
    while not server.started and not task.done():  # noqa: ASYNC110
        await asyncio.sleep(0.005)  # uvicorn has no event for it
