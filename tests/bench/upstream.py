"""The mock backend: `python -m bench.upstream --port N` serves every workload at /v1/chat/completions.

It streams as a batching engine decodes: at every turn of the event loop each active stream is sent one event, as one
write, or one burst of them. Timed workloads (`Turn.waits`) are sent by the clock. Everything is rendered beforehand.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import uvloop

from bench import workloads

_MODEL = re.compile(rb'"model"\s*:\s*"(?:openai/)?([^"]*)"')
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_TOOL_RESULT = re.compile(rb'"role"\s*:\s*"tool"')
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-request-id: req_bench\r\ntransfer-encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@lru_cache(maxsize=32)
def _frames(name: str, turn: int) -> list[bytes]:
    """The writes of a reply: each event as an HTTP chunk of its own."""
    reply = workloads.named(name).turns[turn]
    rendered: dict[bytes, bytes] = {}
    frames = []
    for event in reply.events:
        if event not in rendered:
            rendered[event] = _framed(event)
        frames.append(rendered[event])
    if reply.burst > 1:
        frames = [b"".join(frames[at : at + reply.burst]) for at in range(0, len(frames), reply.burst)]
    frames[-1] += _END
    return frames


class Ticker:
    """Sends every active stream its next event, once a turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._active: list[Connection] = []
        self._ticking = False

    def add(self, connection: Connection) -> None:
        self._active.append(connection)
        self.wake()

    def wake(self) -> None:
        if not self._ticking:
            self._ticking = True
            self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        over = False
        for connection in self._active:
            if connection.paused:
                continue
            frames, at = connection.frames, connection.at
            if at < len(frames):
                connection.transport.write(frames[at])
                connection.at = at = at + 1
            over = over or at >= len(frames)
        if over:
            active, self._active = self._active, []
            for connection in active:
                if connection.at < len(connection.frames):
                    self._active.append(connection)
                else:
                    connection.finish()
        self._ticking = any(not connection.paused for connection in self._active)
        if self._ticking:
            self.loop.call_soon(self._tick)


class Connection(asyncio.Protocol):
    """One connection of a client; requests are answered one after the other."""

    def __init__(self, ticker: Ticker) -> None:
        self.ticker = ticker
        self.transport: asyncio.Transport
        self.frames: list[bytes] = []
        self.at = 0
        self.paused = False
        self._waits: Sequence[float] = ()
        self._received = b""
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport.set_write_buffer_limits(high=256 * 1024)

    def connection_lost(self, exc: Exception | None) -> None:
        self.frames, self.at, self.paused = [], 0, False
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.frames:
            self.ticker.wake()

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        if not self._busy:
            self._next_request()

    def _next_request(self) -> None:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head, rest = self._received[:end], self._received[end + 4 :]
        if length := _LENGTH.search(head):
            size = int(length[1])
            if len(rest) < size:
                return
            body, self._received = rest[:size], rest[size:]
        elif _CHUNKED.search(head):
            if not rest.endswith(_END):  # no client here sends a request before it has the reply to the one before
                return
            body, self._received = rest, b""
        else:
            body, self._received = b"", rest
        self._busy = True
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        model = _MODEL.search(body)
        if model is None:  # a peer's question for the list of models, or for health
            return self._send_document(200, b'{"object":"list","data":[]}')
        name = model[1].decode()
        try:
            workload = workloads.named(name)
        except (KeyError, ValueError):
            return self._send_document(404, b'{"error":{"message":"no such workload","type":"invalid_request_error"}}')
        number = 1 if len(workload.turns) > 1 and _TOOL_RESULT.search(body) else 0
        turn = workload.turns[number]
        if not workload.stream:
            return self._send_document(200, turn.events[0])
        self.transport.write(_STREAM_HEAD)
        self.frames, self.at, self._waits = _frames(name, number), 0, turn.waits
        if self._waits:
            return self._send_timed()
        return self.ticker.add(self)

    def _send_document(self, status: int, document: bytes) -> None:
        head = (
            b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\nx-request-id: req_bench\r\ncontent-length: %d\r\n\r\n"
        )
        self.transport.write(head % (status, len(document)) + document)
        self.finish()

    def _send_timed(self) -> None:
        while self.at < len(self.frames):
            frame = self.frames[self.at]
            if workloads.MARK in frame:
                frame = frame.replace(workloads.MARK, b"t=%019d" % time.monotonic_ns())
            self.transport.write(frame)
            self.at += 1
            if self.at < len(self.frames) and self._waits[self.at]:
                self._timer = self.ticker.loop.call_later(self._waits[self.at], self._send_timed)
                return
        self.finish()

    def finish(self) -> None:
        self.frames, self.at, self._busy, self._timer = [], 0, False, None
        if self._received:
            self.ticker.loop.call_soon(self._next_request)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    ticker = Ticker(loop)
    server = await loop.create_server(lambda: Connection(ticker), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, required=True)
    try:
        uvloop.run(serve(options.parse_args().port))
    except KeyboardInterrupt:
        sys.exit(130)
