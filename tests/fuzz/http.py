"""HTTP: bytes of one client connection through the guard, against another parser's reading of them (h11).

What an attack needs is that two parsers see different requests. So every whole request that the application gets is
also the one that h11 reads there, and the application gets the same ones however the network cuts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, cast

import h11
import uvicorn
from uvicorn.server import ServerState

from fuzz import mutate
from fuzz.common import pieces_of
from proxy.server.guard import GuardedProtocol, HeadLimits

Asked = tuple[bytes, bytes, bytes]  # method, target, body
LIMITS = HeadLimits(max_head_bytes=1_024, max_headers=12)


class _App:
    """Reads each request to its end and answers it."""

    head_limits = LIMITS

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        self.asked.append((scope["method"].encode(), scope["raw_path"] + _query(scope), body))
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
        await send(head)
        await send({"type": "http.response.body", "body": b"ok"})


def _query(scope: Any) -> bytes:
    return b"?" + scope["query_string"] if scope["query_string"] else b""


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent = bytearray()
        self.closing = False
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closing and not self.ended:
            self.sent += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


@cache
def _server() -> tuple[asyncio.AbstractEventLoop, _App, uvicorn.Config]:
    app = _App()
    config = uvicorn.Config(
        cast(Any, app),
        loop="none",
        http=GuardedProtocol,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    config.load()
    return asyncio.new_event_loop(), app, config


def check(data: bytes) -> None:
    whole, sent = _serve([data])
    draw = Random(len(data))
    for pieces in (pieces_of(data, draw), pieces_of(data, draw)):
        asked, _ = _serve(pieces)
        assert asked == whole, f"another cut, other requests\n{asked}\n{whole}"
    theirs, failed = _read_by_h11(data)
    ours = whole[: len(theirs)] if failed else whole
    assert ours == theirs[: len(ours)], f"another parser reads other requests\n{whole}\n{theirs}"
    _check_answers(sent, len(whole))


def _serve(pieces: Sequence[bytes]) -> tuple[list[Asked], bytes]:
    """The requests that the application got whole, and what the client got."""
    (loop, app, config), transport = _server(), _Transport()
    app.asked = []
    state = ServerState()
    errors: list[Any] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))

    async def connection() -> None:
        protocol = GuardedProtocol(config, state, {}, loop)
        protocol.connection_made(transport)
        for piece in pieces:
            if transport.is_closing():
                break
            protocol.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(200):  # a task that waits for more of its body does not end
            if not state.tasks:
                break
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)

    loop.run_until_complete(connection())
    assert not errors, f"the loop was told of {errors[0]}"
    return app.asked, bytes(transport.sent)


def _read_by_h11(data: bytes) -> tuple[list[Asked], bool]:
    """The whole requests in `data`, and whether h11 refused what follows them."""
    out: list[Asked] = []
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(data)
    request, body = None, b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                out.append((request.method, request.target, body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    return out, True  # it is to be closed: what follows is nobody's request
                connection.start_next_cycle()
            else:
                return out, False
    except h11.ProtocolError:
        return out, True


def _check_answers(sent: bytes, count: int) -> None:
    """The client gets whole answers: one for each request, and at most one refusal behind them."""
    rest, statuses = sent, []
    while rest:
        head, found, rest = rest.partition(b"\r\n\r\n")
        assert found, f"half an answer: {head[:80]!r}"
        lines = head.split(b"\r\n")
        status = int(lines[0].split(b" ")[1])
        if status == 100:
            continue
        lengths = [line for line in lines if line.lower().startswith(b"content-length:")]
        assert len(lengths) == 1, "an answer without its length"
        size = int(lengths[0].partition(b":")[2])
        body, rest = rest[:size], rest[size:]
        if status != 200 and body:
            assert len(body) == size, "half a refusal"
            assert json.loads(body)["error"]["message"]
        statuses.append(status)
    assert statuses[:count] == [200] * len(statuses[:count]), f"{count} requests, answered with {statuses}"
    assert len(statuses) <= count + 1, f"{count} requests, {len(statuses)} answers"


_LINES = (
    b"Host: a\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Expect: 100-continue\r\n", b"X-A: 1\r\n folded\r\n", b"Content-Length : 5\r\n", b"Content-Length: +5\r\n",
    b"\r\n", b"\n", b"\r", b" ", b"\t", b"\x00", b"5\r\nhello\r\n", b"0\r\n\r\n", b"0\r\nX-T: 1\r\n\r\n",
    b"5;a=b\r\nhello\r\n", b"GET / HTTP/1.1\r\n", b"POST /v1 HTTP/1.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"hello", b"ffffffffffffffff\r\n", b"X: " + b"a" * 600 + b"\r\n", b"HTTP/1.1", b"chunked", b":", b",", b"0x5",
    b"Transfer-Encoding: identity\r\n",
)  # fmt: skip


def mutated(data: bytes, most: int, draw: Random, plain: mutate.Bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randint(0, len(lines))
        match draw.randint(0, 6):
            case 0 | 1:
                lines.insert(at, draw.choice(_LINES))
            case 2 if at < len(lines):
                del lines[at]
            case 3 if at < len(lines):
                lines.insert(draw.randint(0, len(lines)), lines[at])
            case 4:
                lines += draw.choice(_seeds()).splitlines(keepends=True)
            case 5 if at < len(lines):
                line = lines[at]
                place = draw.randint(0, len(line))
                lines[at] = line[:place] + draw.choice(_LINES) + line[place:]
            case _:
                lines = plain(b"".join(lines), most).splitlines(keepends=True)
    return b"".join(lines)[:most]


@cache
def _seeds() -> list[bytes]:
    heads = [
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"POST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=1\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nokGET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-A: 1\r\n" * 14 + b"Host: a\r\n\r\n",
        b"GET /" + b"a" * 1_200 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
    return [*heads, *(one + other for one in heads[:6] for other in heads[:6])]


def seeds() -> list[bytes]:
    return _seeds()
