"""One client on one connection to the proxy, which does as it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from faults.asking import PATHS, Asker, understand
from support.client import Client, Reply
from support.upstream import Conversation

PATIENCE_S = 60.0  # of the clients: on a machine that is busy with other things too


@dataclass
class Visit:
    """`how`: close, reset or half-close. `wrong`: what no answer may be, in words. `asked`: what the upstream has of it
    so far; `running`: how many exchanges the proxy carries out."""

    client: Client
    asker: Asker
    model: str
    how: str
    asked: Callable[[], Sequence[Conversation]]
    running: Callable[[], int]
    wrong: list[str] = field(default_factory=list)
    _reply: Reply | None = None
    _pushing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.model.partition("/")[2]

    # --- what it sends

    def body(self, **more: Any) -> bytes:
        return self.asker.request(self.model, **more)

    def head(self, *fields: bytes) -> bytes:
        line = f"POST {PATHS[self.asker.dialect]} HTTP/1.1".encode()
        return b"\r\n".join([line, b"host: proxy", b"content-type: application/json", *fields]) + b"\r\n\r\n"

    def request(self, *fields: bytes, **more: Any) -> bytes:
        body = self.body(**more)
        return self.head(b"content-length: %d" % len(body), *fields) + body

    async def ask(self, *fields: bytes, **more: Any) -> None:
        await self.client.send(self.request(*fields, **more))

    def push(self, *pieces: bytes) -> None:
        """Send that as far as it is taken, until there is an answer."""

        async def push() -> None:
            with suppress(ConnectionError):
                for piece in pieces:
                    await self.client.send(piece)

        self._pushing = asyncio.create_task(push())

    # --- what it waits for

    async def until_asked(self, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.asked()) < times:
                await asyncio.sleep(0.005)

    async def until(self, text: bytes) -> None:
        """Read on until `text` is there."""
        self._reply = self._reply or await self.client.head(PATIENCE_S)
        await self.client.until(text, self._reply, PATIENCE_S)

    async def answer(self, at_once: int = 0) -> str:
        """The cell that the next answer comes to. `at_once`: so many bytes are read at once, up to the end of the
        connection."""
        if at_once:
            read = bytearray()
            while data := await self.client.reader.read(at_once):
                read += data
            self.client.reader = asyncio.StreamReader(limit=1 << 24)
            self.client.reader.feed_data(bytes(read))
            self.client.reader.feed_eof()
        reply = self._reply or await self.client.head(PATIENCE_S)
        self._reply = None
        await self.client.rest(reply, PATIENCE_S)
        if self._pushing is not None:
            self._pushing.cancel()
            self.client.leave()  # with what it still wants to send
        cell, wrong = understand(self.asker, reply)
        self.wrong += wrong
        return cell

    async def closed(self) -> str:
        """The proxy closes the connection, and says nothing more."""
        said = await self.client.closed(PATIENCE_S)
        return "closed" if not said else f"closed after {said!r}"

    async def dropped(self) -> str:
        """The proxy gives the client up, which has not read a thing."""
        async with asyncio.timeout(PATIENCE_S):
            while self.running():
                await asyncio.sleep(0.005)
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self.client.reader.read(65_536):
                    pass
        return "dropped"

    async def leave(self) -> str:
        if self.how == "reset":
            self.client.leave()
        elif self.how == "close":
            self.client.writer.close()
        else:
            self.client.writer.write_eof()
        return "gone"
