"""A reply that breaks off: at each of its bytes, by a reset or a close, in each framing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from faults.replies import CALLS, PLAIN, STREAMS, TEXT, Stream
from support.upstream import Conversation

Framing = Literal["chunked", "length", "none"]


@dataclass(frozen=True, slots=True)
class Cut:
    """What came before the break: the part of the reply that it came in (the name of a row), what of the text was
    whole, and how many calls had begun."""

    part: Literal[
        "in the head", "before the text", "in the reply", "behind the finish", "in a plain reply", "with nothing in it"
    ]
    text: str
    begun: int


@dataclass(frozen=True, slots=True)
class Breaking:
    """One reply that breaks off. `stream` None: the plain one. `step`: only at every so manieth byte."""

    name: str
    how: Literal["reset", "close"]
    framing: Framing
    stream: Stream | None
    step: int = 1

    @property
    def pieces(self) -> list[tuple[bytes, int]]:
        """The reply as it goes over the wire: bytes, and how many of them are the body's."""
        events = [PLAIN] if self.stream is None else self.stream.events
        kind = "application/json" if self.stream is None else self.stream.content_type
        size = sum(map(len, events))
        field = {"chunked": "transfer-encoding: chunked", "length": f"content-length: {size}", "none": "x: y"}
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{field[self.framing]}\r\n\r\n"
        out = [(head.encode(), 0)]
        for event in events:
            if self.framing == "chunked":
                out += [(b"%x\r\n" % len(event), 0), (event, len(event)), (b"\r\n", 0)]
            else:
                out.append((event, len(event)))
        return [*out, (b"0\r\n\r\n", 0)] if self.framing == "chunked" else out

    @property
    def body(self) -> bytes:
        return PLAIN if self.stream is None else self.stream.body

    @property
    def data(self) -> bytes:
        return b"".join(piece for piece, _ in self.pieces)

    def cuts(self) -> Iterator[tuple[int, Cut]]:
        """Each place where it breaks off short of its end: behind how many bytes, and what they held."""
        for at in range(0, len(self.data), self.step):
            yield at, self.cut(at)

    def cut(self, at: int) -> Cut:
        head = len(self.pieces[0][0])
        if at < head:
            return Cut("in the head", "", 0)
        body, left = 0, at
        for piece, size in self.pieces:
            body += min(left, size)
            left -= min(left, len(piece))
        if self.framing == "none" and self.body[:body] in (b"", b"data", b"data:", b"data: "):
            return Cut("with nothing in it", "", 0)
        if self.stream is None:
            return Cut("in a plain reply", "", 0)
        events = self.stream.seen(body, closed=self.framing == "none")
        text = "".join(piece for piece in TEXT if json.dumps(piece).encode() in b"".join(events))
        begun = sum(f'"{name}"'.encode() in b"".join(events) for name, _ in CALLS)
        if len(events) > self.stream.proof:
            return Cut("behind the finish", text, begun)
        return Cut("in the reply" if text else "before the text", text, begun)

    async def __call__(self, c: Conversation) -> None:
        """The script: where it breaks off is in the request's model."""
        at = int(c.model.partition("#")[2])
        if at:
            await c.raw(self.data[:at])
        if self.how == "reset":
            c.reset()
        else:
            c.writer.close()


def _of(dialect: str, how: Literal["reset", "close"], framing: Framing, step: int = 1) -> Breaking:
    return Breaking(f"{dialect}, {framing}, {how}", how, framing, STREAMS[dialect], step)


WAYS = [
    _of("openai-chat", "reset", "chunked"),
    _of("openai-chat", "close", "chunked"),
    _of("openai-chat", "close", "length"),
    _of("openai-chat", "close", "none"),
    Breaking("plain, chunked, reset", "reset", "chunked", None),
    Breaking("plain, length, close", "close", "length", None),
    Breaking("plain, none, close", "close", "none", None),
    _of("openai-responses", "reset", "chunked", 13),
    _of("anthropic-messages", "reset", "chunked", 11),
    _of("gemini", "reset", "chunked", 5),
    _of("ollama-chat", "reset", "chunked", 5),
    _of("ollama-chat", "close", "none", 5),
]
