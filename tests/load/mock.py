"""The scripted upstream: `python -m load.mock` prints its port and serves all dialects until its standard input ends.

POST /SIDE/DIALECT/... answers as the kind in the model's name says; SIDE is "-" or a letter that goes into the text.
GET /counts gives what it was asked so far, by kind and dialect, and how many answers are under way and were at most.
GET /has/TOKEN tells whether the answer to that request is under way.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, cycle, zip_longest
from random import Random
from typing import Any

import uvloop

from load.plan import LIMPING, TOKEN, call_of, text_of
from upstream_writers import WRITERS, Made, Pen, Said, Text, Tokens, Writer

# Of a model's name, in a body or in Gemini's path.
MODEL = re.compile(rb'(?:"model": ?"|/models/)([a-z]+)(\d*)\.')
LATE_S, PACED_S, CROWD_S, ENDLESS_S = 0.7, 2.5, 0.05, 0.05
LONGER_S = 600.0  # than anybody waits
ERRORS: dict[str, Any] = {
    "openai-responses": {"type": "error", "code": "boom", "message": "boom", "param": None, "sequence_number": 99},
    "anthropic-messages": {"type": "error", "error": {"type": "boom", "message": "boom"}},
    "gemini": {"error": {"code": 500, "message": "boom", "status": "boom"}},
    "ollama-chat": {"error": "boom"},
}
CHAT_ERROR = {"error": {"message": "boom", "type": "server_error", "param": None, "code": "boom"}}

# To send; seconds to wait; answers under way to wait for; "end" of the body, "cut" or "reset" of the connection.
Step = bytes | float | int | str


class Words(Pen):
    """Cuts a text before each blank: twenty events where the random pen has four."""

    def cut(self, text: str) -> list[str]:
        return re.findall(r"\s*\S+|\s+$", text)


def pieces(kind: str, dialect: str, token: str, side: str, stream: bool) -> list[bytes]:
    """A good reply's events, lines or document."""
    text, calls = text_of(kind, token, side), [Made(*call_of(kind, token, number)) for number in (0, 1)]
    parts: list[Any] = [Text(text)]
    if kind in ("calls", "invalid", "late", "tangled", "failover", "crowd"):
        parts += calls
    elif kind == "cut":  # where the end goes with the last part, losing that must not lose a call
        half = text.index(" ", len(text) // 2)
        parts = [Text(text[:half]), *calls, Text(text[half:])]
    writer = _writer(dialect, stream)
    said = writer.fitting(Said(parts, "stop", Tokens(12, 34)))
    return writer.write(said, Words(Random(token)))


def _writer(dialect: str, stream: bool) -> Writer:
    want = "stream" if stream else "plain"
    return next(writer for name, writer in WRITERS.items() if writer.dialect == dialect and name.endswith(want))


def tangled(dialect: str, token: str, side: str) -> list[bytes]:
    """Both calls at once: their fragments in turn, where the dialect has fragments; else the same id twice."""
    calls = [Made(*call_of("tangled", token, number)) for number in (0, 1)]
    if dialect == "openai-chat":
        return _tangled_chat(calls, text_of("tangled", token, side))
    if dialect in ("gemini", "ollama-chat"):
        calls[1] = Made(calls[0].call_id, calls[1].name, calls[1].arguments)
    writer = _writer(dialect, True)
    said = Said([Text(text_of("tangled", token, side)), *calls], "stop", Tokens(12, 34))
    events = writer.write(said, Words(Random(token)))
    if dialect in ("gemini", "ollama-chat"):
        return events
    groups: dict[int, list[bytes]] = {1: [], 2: []}
    rest: list[bytes] = []
    for event in events:
        found = re.search(rb'"(?:output_)?index": ?([12])\b', event)
        (groups[int(found[1])] if found else rest).append(event)
    end = next(n for n, event in enumerate(rest) if re.search(rb"message_delta|response\.completed", event))
    mixed = [event for event in chain.from_iterable(zip_longest(groups[1], groups[2])) if event is not None]
    return [*rest[:end], *mixed, *rest[end:]]


def _tangled_chat(calls: list[Made], text: str) -> list[bytes]:
    """Without indexes: the id on every fragment, the name on the first."""
    deltas: list[Any] = [{"role": "assistant", "content": text}]
    fragments: list[list[dict[str, Any]]] = []
    for call, step in zip(calls, (9, 13), strict=True):
        cuts = [call.arguments[at : at + step] for at in range(0, len(call.arguments), step)]
        fragments.append([{"id": call.call_id, "function": {"arguments": cut}} for cut in cuts])
        fragments[-1][0]["function"]["name"] = call.name
    deltas += [{"tool_calls": [e]} for e in chain.from_iterable(zip_longest(*fragments)) if e is not None]
    head = {"id": "chatcmpl-u", "object": "chat.completion.chunk", "created": 1790000000, "model": "up"}
    choices: list[Any] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    return [*(b"data: %b\n\n" % json.dumps({**head, "choices": [c]}).encode() for c in choices), b"data: [DONE]\n\n"]


def script(kind: str, crowd: int, dialect: str, token: str, side: str, stream: bool) -> tuple[int, Iterable[Step]]:
    """Status and steps of an answer. A plain one is a single step, or `reset` behind half of it."""
    error = json.dumps(ERRORS.get(dialect, CHAT_ERROR)).encode()
    match kind:
        case "limited" | "failing":
            return (429 if kind == "limited" else 500), [error, "end"]
        case "never" | "silent":
            return 200, [LONGER_S, "cut"]
        case "tangled":
            return 200, [*tangled(dialect, token, side), "end"]
    good = pieces(kind, dialect, token, side, stream)
    if not stream:
        late: list[Step] = [LATE_S] if kind in ("late", "invalid") else []
        return 200, [*late, *good, "reset" if kind == "reset" else "end"]
    words = [n for n, piece in enumerate(good) if token.encode() in piece]
    half = good[: words[len(words) // 2]]
    proof = {"openai-chat": 3, "anthropic-messages": 2}.get(dialect, 1)  # events at the end that tell of it, or usage
    match kind:
        case "cut":
            return 200, [*good[:-proof], "cut"]
        case "reset":
            return 200, [*half, 0.05, "reset"]
        case "stall":
            return 200, [*half, LONGER_S, "cut"]
        case "error":
            framed = error + b"\n" if dialect == "ollama-chat" else b"data: " + error + b"\n\n"
            named = b"event: error\n" if dialect in ("anthropic-messages", "openai-responses") else b""
            return 200, [*half, named + framed, "end"]
        case "endless":
            return 200, chain(half, cycle((ENDLESS_S, good[words[0]])))
        case "late" | "invalid":
            return 200, [LATE_S, *good, "end"]
        case "crowd":
            return 200, [*half, crowd, *(step for piece in good[len(half) :] for step in (CROWD_S, piece)), "end"]
        case "paced":
            return 200, [*(step for piece in good for step in (piece, PACED_S / len(good))), "end"]
    return 200, [*good, "end"]


class Mock:
    """`asked`: requests by kind and dialect. `tokens` of the answers under way, and the `most` of them at once."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.tokens: set[str] = set()
        self.most = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, target = head.split(b" ", 2)[:2]
        if method == b"GET":
            if target.startswith(b"/has/"):
                document = b"yes" if target.decode().removeprefix("/has/") in self.tokens else b"no"
            else:
                document = json.dumps({"open": len(self.tokens), "most": self.most, "asked": self.asked}).encode()
            await self._answer(reader, writer, 200, b"application/json", [document, "end"], chunked=False)
            return True
        found = re.search(rb"content-length: *(\d+)", head.lower())
        body = await reader.readexactly(int(found[1]) if found else 0)
        side, dialect = target.decode().split("/")[1:3]
        if dialect == LIMPING:
            self.asked[LIMPING] += 1
            return await self._answer(reader, writer, 503, b"application/json", [b"{}", "end"], chunked=False)
        model, token = MODEL.search(target) or MODEL.search(body), TOKEN.search(body.decode())
        assert model is not None, (target, body)
        assert token is not None, (target, body)
        kind = model[1].decode()
        stream = b"stream" in target if dialect == "gemini" else bool(json.loads(body).get("stream"))
        self.asked[f"{kind} {dialect}"] += 1
        status, steps = script(kind, int(model[2] or 0), dialect, token[0], side.strip("-"), stream)
        media = _writer(dialect, stream).content_type.encode() if status == 200 else b"application/json"
        self.tokens.add(token[0])
        self.most = max(self.most, len(self.tokens))
        try:
            return await self._answer(reader, writer, status, media, steps, chunked=status == 200 and stream)
        finally:
            self.tokens.discard(token[0])

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        status: int,
        media: bytes,
        steps: Iterable[Step],
        chunked: bool,
    ) -> bool:
        head = b"HTTP/1.1 %d OK\r\ncontent-type: %b\r\n" % (status, media)
        head += b"transfer-encoding: chunked\r\n\r\n" if chunked else b""
        for step in steps:
            if writer.transport.is_closing():
                return False
            if isinstance(step, float):
                if await _left(reader, step):
                    return False
            elif isinstance(step, int):
                while self.most < step:
                    if await _left(reader, 0.2):
                        return False
            elif isinstance(step, bytes):
                if chunked:
                    writer.write(head + b"%x\r\n%b\r\n" % (len(step), step))
                    head = b""
                    await writer.drain()
                else:  # held back until it is known whether all of it shall go
                    head += b"content-length: %d\r\n\r\n%b" % (len(step), step)
            elif step == "end":
                writer.write(b"0\r\n\r\n" if chunked else head)
            elif step == "cut":
                return False
            elif step == "reset":
                if not chunked:
                    writer.write(head[: -len(head) // 4])
                    await asyncio.sleep(0.05)
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
        await writer.drain()
        return True


async def _left(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Wait; at once True where the other side has closed the connection."""
    try:
        async with asyncio.timeout(seconds):
            return not await reader.read(1)
    except TimeoutError:
        return False


async def main() -> None:
    mock = Mock()
    server = await asyncio.start_server(mock.connected, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(main())
