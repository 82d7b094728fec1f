"""The HTTP client towards backends: what it makes of every response, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohappyeyeballs import start_connection
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.faults import Fault, FaultKind
from proxy.server import http_client
from proxy.server.http_client import MAX_FIELDS, MAX_HEAD_BYTES, MAX_UNREAD_BYTES, Connection, Origin, Pool, Reply
from support.tls import Authority
from support.upstream import Conversation, Script, Upstream

ORIGIN = Origin(tls=False, host="127.0.0.1", port=80)
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


# --- without a socket ---------------------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """The transport of a connection whose other end is the test."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.sent = bytearray()
        self.unsent = 0
        self.paused = False
        self.pauses = 0
        self.connection = Connection(pool, ORIGIN)
        self._closing = False
        self.connection.connection_made(self)

    def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self._closing:
                self.connection.data_received(piece)

    def end(self) -> None:
        """The backend closes the connection in order."""
        if not self._closing:
            self.connection.eof_received()
            self.abort()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.sent += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True
        self.pauses += 1

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    async def ask(self, body: bytes | AsyncIterator[bytes] = b"{}", method: str = "POST") -> Reply:
        length = len(body) if isinstance(body, bytes) else None
        return await self.connection.ask("backend 'b'", b"HEAD", body, method=method, length=length)

    async def answered(self, *pieces: bytes) -> Reply:
        """The reply to a request that is answered with these pieces at once."""
        asking = asyncio.create_task(self.ask())
        await asyncio.sleep(0)
        self.feed(*pieces)
        return await asking


@dataclass
class Outcome:
    """What a response comes to. `kept`: its connection may be used again."""

    status: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""
    fault: Fault | None = None
    kept: bool = False
    told: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        fault = self.fault
        self.told = (self.status, self.headers, self.body, fault and (fault.kind, fault.detail), self.kept)


async def read_all(reply: Reply) -> tuple[bytes, Fault | None]:
    body = bytearray()
    try:
        while data := await reply.read():
            body += data
    except Fault as fault:
        return bytes(body), fault
    return bytes(body), None


async def outcome(*pieces: bytes, method: str = "POST", end: bool = True, at_once: bool = False) -> Outcome:
    """What these reads of the socket come to; `end`: after them the backend closes the connection, if it is needed."""
    pool = Pool()
    wire = Wire(pool)

    async def use() -> Outcome:
        try:
            reply = await wire.ask(method=method)
        except Fault as fault:
            return Outcome(fault=fault)
        body, broken = await read_all(reply)
        await reply.aclose()
        return Outcome(reply.status, reply.raw_headers, body, broken, wire.connection.is_usable)

    using = asyncio.create_task(use())
    await asyncio.sleep(0)
    for piece in pieces:
        wire.feed(piece)
        if not at_once:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    if end:
        for _ in range(5):
            await asyncio.sleep(0)
        if not using.done():
            wire.end()
    async with asyncio.timeout(60):
        result = await using
    await pool.aclose()
    await asyncio.sleep(0)
    assert pool.open == set()
    return result


def outcomes(responses: Iterable[Sequence[bytes]], **options: Any) -> list[Outcome]:
    async def main() -> list[Outcome]:
        return [await outcome(*pieces, **options) for pieces in responses]

    return asyncio.run(main())


BODY = b'{"a":1}\r\n\r\n0\r\n\r\n'  # that looks like framing
WHOLE: dict[str, tuple[bytes, bytes, bool]] = {  # response, body, kept
    "length": (OK + b"Content-Length: 16\r\n\r\n" + BODY, BODY, True),
    "no body": (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    "chunked": (CHUNKED + b"5\r\n" + BODY[:5] + b"\r\nb\r\n" + BODY[5:] + b"\r\n0\r\n\r\n", BODY, True),
    "extensions": (CHUNKED + b'2;a=b;c="d"\r\nhi\r\n000\r\nX: y\r\nZ:\r\n\r\n', b"hi", True),
    "until close": (OK + b"Content-Type: text/plain\r\n\r\n" + BODY, BODY, False),
    "nothing until close": (OK + b"\r\n", b"", False),
    "to be closed": (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
    "1.0 kept": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", b"hi", True),
    "204": (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", b"", True),
    "304": (b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", b"", True),
    "1xx": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + OK
        + b"Content-Length: 1\r\n\r\na",
        b"a",
        True,
    ),
    "blank lines first": (b"\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\na", b"a", True),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", b"a", True),
    "folded": (OK + b"X-A: b\r\n  c\r\nContent-Length: 1\r\n\r\na", b"a", True),
    "surplus": (OK + b"Content-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno", b"hi", False),
    "surplus junk": (CHUNKED + b"2\r\nhi\r\n0\r\n\r\n<html>", b"hi", False),
    "surplus after its end": (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi???", b"hi", False),
}

BROKEN: dict[str, tuple[bytes, bytes, FaultKind, str]] = {  # response, what can be read of it, fault
    "no answer": (b"", b"", FaultKind.UNREACHABLE, "closed the connection before it answered"),
    "half a head": (OK + b"Content-Le", b"", FaultKind.UNREACHABLE, "closed the connection before it answered"),
    "no http": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "a request": (b"GET / HTTP/1.1\r\n\r\n", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "http 2": (b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "bare LF": (b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "bare LF in a field": (OK + b"X: a\nContent-Length: 0\r\n\r\n", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "bare CR": (OK + b"X: a\rContent-Length: 0\r\n\r\n", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "NUL": (OK + b"X: a\0\r\nContent-Length: 0\r\n\r\n", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "blank in a name": (OK + b"Content-Length : 0\r\n\r\n", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "101": (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc",
        b"",
        FaultKind.BAD_BODY,
        "no valid HTTP",
    ),
    "101 of nothing": (b"HTTP/1.1 101 Switching\r\n\r\n", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "1xx that closes": (
        b"HTTP/1.0 100 Continue\r\n\r\n" + OK + b"Content-Length: 0\r\n\r\n",
        b"",
        FaultKind.BAD_BODY,
        "no valid HTTP",
    ),
    "two lengths": (
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"",
        FaultKind.BAD_BODY,
        "no valid HTTP",
    ),
    "length and chunked": (
        OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"",
        FaultKind.BAD_BODY,
        "no valid HTTP",
    ),
    "chunked and length": (
        CHUNKED[:-2] + b"Content-Length: 1\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"",
        FaultKind.BAD_BODY,
        "no valid HTTP",
    ),
    "no number": (OK + b"Content-Length: x\r\n\r\na", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "huge number": (OK + b"Content-Length: 99999999999999999999\r\n\r\na", b"", FaultKind.BAD_BODY, "no valid HTTP"),
    "other coding": (OK + b"Transfer-Encoding: gzip\r\n\r\na", b"", FaultKind.BAD_BODY, "transfer-encoding"),
    "two codings": (
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"",
        FaultKind.BAD_BODY,
        "transfer-encoding",
    ),
    "chunked twice": (
        CHUNKED[:-2] + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"",
        FaultKind.BAD_BODY,
        "transfer-encoding",
    ),
    "short": (OK + b"Content-Length: 3\r\n\r\nhi", b"hi", FaultKind.STREAM_CUT, "in the middle of its reply"),
    "no last chunk": (CHUNKED + b"2\r\nhi\r\n", b"hi", FaultKind.STREAM_CUT, "in the middle of its reply"),
    "cut in the end": (CHUNKED + b"2\r\nhi\r\n0\r\n\r", b"hi", FaultKind.STREAM_CUT, "in the middle of its reply"),
    "no chunk": (CHUNKED + b"2\r\nhi\r\nzz\r\n", b"hi", FaultKind.STREAM_CUT, "broken framing"),
    "long chunk": (CHUNKED + b"2\r\nhi!\r\n0\r\n\r\n", b"hi", FaultKind.STREAM_CUT, "broken framing"),
    "negative chunk": (CHUNKED + b"2\r\nhi\r\n-1\r\n\r\n", b"hi", FaultKind.STREAM_CUT, "broken framing"),
    "huge chunk": (CHUNKED + b"fffffffffffffffff\r\nhi", b"", FaultKind.STREAM_CUT, "broken framing"),
    "bad trailer": (CHUNKED + b"2\r\nhi\r\n0\r\na b\r\n\r\n", b"hi", FaultKind.STREAM_CUT, "broken framing"),
}


def cuts(response: bytes) -> list[Sequence[bytes]]:
    """Whole, in two at every place, byte by byte."""
    halves = [(response[:at], response[at:]) for at in range(1, len(response))]
    return [(response,), *halves, [response[at : at + 1] for at in range(len(response))]]


@pytest.mark.parametrize("name", WHOLE)
def test_a_response_is_the_same_however_it_is_cut(name: str) -> None:
    response, body, kept = WHOLE[name]
    first, *others = outcomes(cuts(response))
    assert (first.body, first.fault, first.kept) == (body, None, kept)
    if "surplus" in name:  # what comes after the reply was closed is not known when it is
        others = [other for other in others if not other.kept]
    for other in others:
        assert other.told == first.told
    assert b"link" not in dict(first.headers)  # of a 1xx


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_response_is_the_same_fault_however_it_is_cut(name: str) -> None:
    response, body, kind, words = BROKEN[name]
    first, *others = outcomes(cuts(response))
    assert first.fault is not None
    assert (first.body, first.fault.kind, first.kept) == (body, kind, False)
    assert first.fault.detail.startswith("backend 'b' ")
    assert words in first.fault.detail
    for other in others:
        assert other.told == first.told


@pytest.mark.parametrize("whole", ["length", "chunked", "204"])
@pytest.mark.parametrize("more", [b"\r\n", b"?", OK + b"Content-Length: 0\r\n\r\n"])
def test_a_connection_that_says_more_than_its_response_is_closed(whole: str, more: bytes) -> None:
    response, body, _ = WHOLE[whole]

    async def main() -> None:
        for early in (False, True):
            pool = Pool()
            wire = Wire(pool)
            reply = await wire.answered(response)
            if early:
                wire.feed(more)
            assert await read_all(reply) == (body, None)
            await reply.aclose()
            wire.feed(more)
            assert wire.is_closing()
            assert not wire.connection.is_usable
            await pool.aclose()

    asyncio.run(main())


def test_field_names_are_in_lower_case_in_the_order_they_came_and_values_without_blanks_around_them() -> None:
    response = OK + b"X-B: \t1 \t\r\nx-A:\r\nX-b: \xe9\r\nX-Odd: \x01\r\nX-F: a\r\n\tb\r\nContent-Length: 0\r\n\r\n"
    [result] = outcomes([(response,)])
    assert list(result.headers) == [
        (b"x-b", b"1"),
        (b"x-a", b""),
        (b"x-b", b"\xe9"),
        (b"x-odd", b"\x01"),
        (b"x-f", b"a\tb"),
        (b"content-length", b"0"),
    ]


def test_no_reply_to_head_has_a_body_and_its_connection_is_not_used_again() -> None:
    for fields in (b"Content-Length: 5\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n", b"\r\n"):
        for result in outcomes(cuts(OK + fields), method="HEAD", end=False):
            assert (result.status, result.body, result.fault, result.kept) == (200, b"", None, False)
    [result] = outcomes([(OK + b"Content-Length: 5\r\n\r\nhello",)], method="HEAD", end=False)
    assert (result.body, result.fault) == (b"", None)


@pytest.mark.parametrize("status", [99, 199, 200, 299, 404, 599, 600, 999])
def test_any_other_status_is_told_as_it_is(status: int) -> None:
    response = b"HTTP/1.1 %03d X\r\nContent-Length: 0\r\n\r\n" % status
    [result] = outcomes([(response,)])
    assert result.status == (0 if status == 199 else status)  # that one announces another


def test_a_head_may_have_so_many_fields_and_bytes_and_no_more() -> None:
    length = b"Content-Length: 0\r\n"
    most = OK + b"a: b\r\n" * (MAX_FIELDS - 1) + length + b"\r\n"
    more = OK + b"a: b\r\n" * MAX_FIELDS + length + b"\r\n"
    room = MAX_HEAD_BYTES - len(OK + length + b"x: \r\n\r\n")
    largest = OK + length + b"x: " + b"a" * room + b"\r\n\r\n"
    larger = OK + length + b"x: " + b"a" * (room + 1) + b"\r\n\r\n"
    hints = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    flood = hints * (MAX_HEAD_BYTES // len(hints) + 1) + OK + length + b"\r\n"
    assert len(largest) == MAX_HEAD_BYTES
    for response, words in [
        (most, None),
        (more, f"more than {MAX_FIELDS} fields"),
        (largest, None),
        (larger, f"larger than {MAX_HEAD_BYTES} bytes"),
        (larger + b"x" * MAX_HEAD_BYTES, f"larger than {MAX_HEAD_BYTES} bytes"),
        (flood, f"larger than {MAX_HEAD_BYTES} bytes"),
        (OK + b"x: " + b"a" * 10 * MAX_HEAD_BYTES, f"larger than {MAX_HEAD_BYTES} bytes"),
        (b"a" * 10 * MAX_HEAD_BYTES, "no valid HTTP"),
    ]:
        pieces = [response[at : at + 1000] for at in range(0, len(response), 1000)]
        for result in outcomes([(response,), pieces, (response[:-1], response[-1:])]):
            if words is None:
                assert (result.status, result.fault) == (200, None)
            else:
                assert result.fault is not None
                assert result.fault.kind is FaultKind.BAD_BODY
                assert words in result.fault.detail


@pytest.mark.parametrize(
    "framing", [b"0\r\n" + b"x: y\r\n" * 20_000, b"0\r\nx: " + b"y" * 100_000, b"1;" + b"x" * 100_000]
)
def test_endless_framing_without_a_byte_of_the_body_is_a_cut(framing: bytes) -> None:
    pieces = [framing[at : at + 4096] for at in range(0, len(framing), 4096)]
    [result] = outcomes([(CHUNKED + b"2\r\nhi\r\n", *pieces)], end=False)
    assert result.fault is not None
    assert (result.body, result.fault.kind) == (b"hi", FaultKind.STREAM_CUT)


def _junk() -> st.SearchStrategy[list[bytes]]:
    parts = [
        OK, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 N\r\n\r\n", b"HTTP/1.0 200 OK\r\n",
        b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
        b"Connection: upgrade\r\n", b"Upgrade: x\r\n", b"\r\n", b"\r\n\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n",
        b"0\r\n", b"abc", b"a: b\r\n", b"\n", b"\0",
    ]  # fmt: skip
    return st.lists(st.one_of(st.sampled_from(parts), st.binary(max_size=20)), max_size=12)


@settings(max_examples=300, deadline=None)
@given(_junk(), st.booleans(), st.booleans(), st.sampled_from(["GET", "HEAD"]))
def test_whatever_comes_ends_in_a_response_or_a_fault(
    pieces: list[bytes], with_head: bool, at_once: bool, method: str
) -> None:
    reads = [CHUNKED, *pieces] if with_head else pieces
    [result] = outcomes([reads], at_once=at_once, method=method)
    assert (result.fault is None) or result.fault.kind in (
        FaultKind.BAD_BODY,
        FaultKind.STREAM_CUT,
        FaultKind.UNREACHABLE,
    )
    [joined] = outcomes([[b"".join(reads)] if any(reads) else []], method=method)
    if not (result.kept or joined.kept):
        assert (joined.status, joined.body) == (result.status, result.body)


# --- reading ------------------------------------------------------------------------------------------------------


def test_a_read_gives_what_one_read_of_the_socket_brought_however_many_chunks_it_is() -> None:
    async def main() -> None:
        wire = Wire(Pool())
        reply = await wire.answered(CHUNKED + b"1\r\na\r\n1\r\nb\r\n")
        assert await reply.read() == b"ab"
        reading = asyncio.create_task(reply.read())
        await asyncio.sleep(0)
        wire.feed(b"1\r\nc\r\n1\r\nd\r\n1\r\ne\r\n0\r\n\r\n")
        assert await reading == b"cde"
        assert await reply.read() == b""
        assert await reply.read() == b""
        await reply.aclose()

    asyncio.run(main())


def test_a_slow_reader_slows_the_backend_down() -> None:
    async def main() -> None:
        wire = Wire(Pool())
        reply = await wire.answered(OK + b"Content-Length: 1000000\r\n\r\n")
        fed = 0
        while wire.pauses == 0:
            wire.feed(b"x" * 1000)
            fed += 1000
        assert wire.paused
        assert MAX_UNREAD_BYTES < fed <= MAX_UNREAD_BYTES + 1000
        assert len(await reply.read()) == fed
        while fed < 1_000_000:
            wire.feed(b"x" * 1000)
            fed += 1000
            if wire.paused:
                await reply.read()
        assert wire.pauses == 1_000_000 // (MAX_UNREAD_BYTES + 464)
        await reply.aclose()
        assert wire.connection.is_usable
        assert not wire.paused

    asyncio.run(main())


def test_a_connection_that_was_paused_reads_again_when_it_is_kept() -> None:
    async def main() -> None:
        wire = Wire(Pool())
        size = MAX_UNREAD_BYTES + 1
        reply = await wire.answered(OK + b"Content-Length: %d\r\n\r\n" % (size + 1), b"x" * size)
        assert wire.paused
        wire.feed(b"x")  # was on its way
        await reply.aclose()
        assert wire.connection.is_usable
        assert not wire.paused

    asyncio.run(main())


def test_a_read_may_be_cancelled_and_called_again_without_losing_anything() -> None:
    async def main() -> None:
        for turns in range(6):
            wire = Wire(Pool())
            reply = await wire.answered(CHUNKED)
            taken: list[bytes] = []

            def take(data: bytes, taken: list[bytes] = taken) -> bool:
                taken.append(data)
                return data != b"b"

            reading = asyncio.create_task(reply.read(take))
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(wire.feed, b"1\r\na\r\n")
            asyncio.get_running_loop().call_soon(wire.feed, b"1\r\nb\r\n")
            asyncio.get_running_loop().call_soon(wire.feed, b"1\r\nc\r\n")
            for _ in range(turns):
                await asyncio.sleep(0)
            reading.cancel()
            try:
                got = await reading
            except asyncio.CancelledError:
                got = b""
            await asyncio.sleep(0)
            wire.feed(b"0\r\n\r\n")
            rest, fault = await read_all(reply)
            seen = b"".join(data for data in taken if data != b"b") + got + rest
            assert (seen, fault) == (b"abc", None)
            await reply.aclose()

    asyncio.run(main())


# --- the push path ------------------------------------------------------------------------------------------------


def test_what_comes_while_the_reader_waits_goes_to_take_at_once() -> None:
    async def main() -> None:
        wire = Wire(Pool())
        reply = await wire.answered(CHUNKED + b"1\r\n0\r\n")
        taken: list[bytes] = []
        keep = {b"no"}

        def take(data: bytes) -> bool:
            taken.append(data)
            return data not in keep

        assert await reply.read(take) == b"0"  # was there before
        assert taken == []
        reading = asyncio.create_task(reply.read(take))
        await asyncio.sleep(0)
        wire.feed(b"1\r\na\r\n1\r\nb\r\n")
        assert taken == [b"ab"]
        wire.feed(b"1\r", b"\nc\r\n")
        assert taken == [b"ab", b"c"]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reading.done()
        wire.feed(b"2\r\nno\r\n", b"1\r\nd\r\n")  # the reader has been woken: what follows waits for it
        assert taken == [b"ab", b"c", b"no"]
        assert await reading == b"nod"
        reading = asyncio.create_task(reply.read(take))
        await asyncio.sleep(0)
        wire.feed(b"1\r\ne\r\n0\r\n\r\n")
        assert taken[-1] == b"e"
        assert await reading == b""
        await reply.aclose()
        assert wire.connection.is_usable

    asyncio.run(main())


@pytest.mark.parametrize("taken", [True, False])
def test_a_fault_comes_after_what_came_before_it(taken: bool) -> None:
    async def main() -> None:
        wire = Wire(Pool())
        reply = await wire.answered(CHUNKED)
        reading = asyncio.create_task(reply.read(lambda _: taken))
        await asyncio.sleep(0)
        wire.feed(b"1\r\na\r\nzz\r\n")
        if not taken:
            assert await reading == b"a"
            reading = asyncio.create_task(reply.read(lambda _: taken))
        for attempt in (reading, reply.read(), reply.read()):
            with pytest.raises(Fault, match="broken framing"):
                await attempt
        await reply.aclose()
        assert wire.is_closing()

    asyncio.run(main())


def test_what_take_raises_ends_the_read() -> None:
    async def main() -> None:
        wire = Wire(Pool())
        reply = await wire.answered(CHUNKED)

        def take(_: bytes) -> bool:
            raise KeyError("odd")

        reading = asyncio.create_task(reply.read(take))
        await asyncio.sleep(0)
        wire.feed(b"1\r\na\r\n", b"1\r\nb\r\n")
        with pytest.raises(KeyError, match="odd"):
            await reading
        assert await reply.read() == b"b"
        await reply.aclose()

    asyncio.run(main())


def test_take_is_not_offered_what_comes_for_the_next_request() -> None:
    async def main() -> None:
        wire = Wire(Pool())
        reply = await wire.answered(CHUNKED)
        reading = asyncio.create_task(reply.read(lambda _: True))
        await asyncio.sleep(0)
        wire.feed(b"1\r\na\r\n0\r\n\r\n")
        assert await reading == b""
        await reply.aclose()
        reply = await wire.answered(OK + b"Content-Length: 1\r\n\r\nb")
        assert await read_all(reply) == (b"b", None)
        await reply.aclose()

    asyncio.run(main())


def test_take_may_cancel_its_reader() -> None:
    async def main() -> None:
        for answer in (True, False):
            wire = Wire(Pool())
            reply = await wire.answered(CHUNKED)
            tasks: list[asyncio.Task[bytes]] = []

            def take(_: bytes, tasks: list[asyncio.Task[bytes]] = tasks, answer: bool = answer) -> bool:
                tasks[0].cancel()
                return answer

            tasks.append(asyncio.create_task(reply.read(take)))
            await asyncio.sleep(0)
            wire.feed(b"1\r\na\r\n", b"1\r\nb\r\n")
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            assert await reply.read() == (b"b" if answer else b"ab")
            await reply.aclose()

    asyncio.run(main())


def test_pushing_creates_no_future_no_task_and_no_timer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        wire = Wire(Pool())
        reply = await wire.answered(CHUNKED)
        count = 0
        reading = asyncio.create_task(reply.read(lambda _: True))
        await asyncio.sleep(0)

        def counted(make: Callable[..., Any]) -> Callable[..., Any]:
            def made(*args: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                return make(*args, **options)

            return made

        for name in ("create_future", "create_task", "call_later", "call_at", "call_soon"):
            setattr(loop, name, counted(getattr(loop, name)))
        for _ in range(100):
            wire.feed(b"1\r\na\r\n")
        assert count == 0
        wire.feed(b"0\r\n\r\n")
        assert count <= 1  # the reader is woken
        assert await reading == b""
        await reply.aclose()

    asyncio.run(main())


# --- over sockets -------------------------------------------------------------------------------------------------


def run(script: Script, test: Callable[[Pool, Upstream], Coroutine[Any, Any, None]], **options: Any) -> None:
    """The test on uvloop and on asyncio's own loop."""
    both(lambda: over(script, test, **options))


async def over(script: Script, test: Callable[[Pool, Upstream], Coroutine[Any, Any, None]], **options: Any) -> None:
    """The test over one upstream and one pool, of which nothing may be left then."""
    async with Upstream(script, **options) as up:
        pool = Pool()
        tasks = asyncio.all_tasks()
        await test(pool, up)
        await pool.aclose()
        await settled(lambda: not pool.open)
        await settled(lambda: asyncio.all_tasks() - up.tasks <= tasks)
        await up.none_open(60)


def both(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(main())
    asyncio.run(main())
    gc.collect()  # whatever was left open is told of now


async def settled(done: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.001)


async def send(
    pool: Pool,
    up: Upstream,
    body: bytes | AsyncIterator[bytes] = b"{}",
    *,
    url: str = "",
    headers: Sequence[tuple[str, str]] = (),
    method: str = "POST",
) -> Reply:
    return await pool.send("backend 'b'", url or up.url + "/x", headers, body, connect_s=60, method=method)


async def exchange(pool: Pool, up: Upstream, body: bytes | AsyncIterator[bytes] = b"{}", **options: Any) -> bytes:
    """The body of a whole exchange. Raises Fault."""
    reply = await send(pool, up, body, **options)
    try:
        text, fault = await read_all(reply)
    finally:
        await reply.aclose()
    if fault is not None:
        raise fault
    return text


async def hello(c: Conversation) -> None:
    await c.raw(OK + b"Content-Length: 5\r\n\r\nhello")


async def silent(c: Conversation) -> None:
    await c.until_closed()


def test_a_request_is_sent_as_it_is_given() -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        headers = [("b", "1"), ("a", "2"), ("content-type", "x"), ("caf", "\xe9")]
        await exchange(pool, up, b"abc", url=up.url + "/p%20q/?a=b&c=%2F~;", headers=headers)
        await exchange(pool, up, b"", url=up.url, method="GET")
        await exchange(pool, up, b"", url=up.url.removesuffix("/v1") + "?q", method="POST")
        host = f"host: 127.0.0.1:{up.port}\r\n"
        fields = "b: 1\r\na: 2\r\ncontent-type: x\r\ncaf: \xe9\r\n"
        assert [request.head.decode("latin-1") for request in up.seen] == [
            f"POST /v1/p%20q/?a=b&c=%2F~; HTTP/1.1\r\n{host}{fields}content-length: 3\r\n\r\n",
            f"GET /v1 HTTP/1.1\r\n{host}\r\n",
            f"POST /?q HTTP/1.1\r\n{host}content-length: 0\r\n\r\n",
        ]
        assert up.seen[0].body == b"abc"
        assert up.connections == 1

    run(hello, test)


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("http://Example.org/a", "example.org", "/a"),
        ("http://example.org:80/a", "example.org", "/a"),
        ("http://example.org:443/a", "example.org:443", "/a"),
        ("https://example.org:443", "example.org", "/"),
        ("https://example.org:8443?a", "example.org:8443", "/?a"),
        ("http://[::1]:80/a", "[::1]", "/a"),
        ("http://[::1]:8000/a", "[::1]:8000", "/a"),
    ],
)
def test_the_host_field_and_the_target_come_from_the_url(url: str, host: str, target: str) -> None:
    origin, *rest = http_client._parsed(url)
    assert rest == [host, target]
    assert origin.tls == url.startswith("https")
    assert origin.host == ("::1" if "[" in url else "example.org")


@pytest.mark.parametrize("url", ["/a b", "/a\r\nX: y", "/\0", "/a#b", "/\xe9", "/a\x7f"])
def test_a_url_that_holds_what_none_may_hold_is_refused(url: str) -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        with pytest.raises(Fault) as caught:
            await send(pool, up, url=up.url + url)
        assert caught.value.kind is FaultKind.INVALID_REQUEST
        assert up.connections == 0

    run(hello, test)


@pytest.mark.parametrize("header", [("a", "b\r\nX: y"), ("a", "b\n"), ("a\r", "b"), ("a", "\0"), ("a", "\u20ac")])
def test_a_header_that_holds_what_none_may_hold_is_refused(header: tuple[str, str]) -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        with pytest.raises(Fault) as caught:
            await send(pool, up, headers=[header])
        assert caught.value.kind is FaultKind.INVALID_REQUEST
        assert up.connections == 0

    run(hello, test)


def test_connections_are_used_again_the_newest_first() -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        replies = [await send(pool, up) for _ in range(3)]
        assert up.connections == 3
        for reply in replies:
            await read_all(reply)
            await reply.aclose()
        for _ in range(5):
            assert await exchange(pool, up) == b"hello"
        assert up.connections == 3
        last = up.conversations[2].writer
        assert all(conversation.writer is last for conversation in up.conversations[3:])

    run(hello, test)


def test_a_reply_that_is_closed_before_its_end_closes_its_connection() -> None:
    async def slow(c: Conversation) -> None:
        await c.raw(OK + b"Content-Length: 10\r\n\r\nhello")
        await c.until_closed()

    async def test(pool: Pool, up: Upstream) -> None:
        reply = await send(pool, up)
        await reply.aclose()
        await reply.aclose()
        await up.none_open(60)
        await settled(lambda: not pool.open)

    run(slow, test)


def test_what_little_is_left_of_a_body_may_be_drained() -> None:
    async def late(c: Conversation) -> None:
        await c.raw(CHUNKED + b"2\r\nhi\r\n")
        await asyncio.sleep(0.01)
        await c.raw(b"0\r\n\r\n")

    async def endless(c: Conversation) -> None:
        await c.raw(CHUNKED)
        while True:
            await c.chunk(b"x" * 1000)

    async def test(pool: Pool, up: Upstream) -> None:
        for script, connections in ((late, 1), (late, 1), (silent_after_head, 1), (endless, 2)):
            up.script = script
            reply = await send(pool, up)
            await reply.drain()
            await reply.aclose()
            assert up.connections == connections

    async def silent_after_head(c: Conversation) -> None:
        await c.raw(CHUNKED)
        await c.until_closed()

    run(late, test)


def test_a_connection_that_is_idle_for_too_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        replies = [await send(pool, up) for _ in range(3)]
        for reply in replies:
            await read_all(reply)
            await reply.aclose()
            await asyncio.sleep(0.02)
        assert up.open == 3
        await up.none_open(60)
        await settled(lambda: not pool.open)
        assert pool._idle == {}
        assert await exchange(pool, up) == b"hello"
        assert up.connections == 4
        await up.none_open(60)
        assert pool._expiry is None

    monkeypatch.setattr(http_client, "KEEPALIVE_EXPIRY_S", 0.1)
    run(hello, test)


def test_an_idle_connection_that_is_too_old_is_not_used_even_before_the_timer_fires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        await exchange(pool, up)
        monkeypatch.setattr(http_client, "KEEPALIVE_EXPIRY_S", 0.0)
        await exchange(pool, up)
        monkeypatch.setattr(http_client, "KEEPALIVE_EXPIRY_S", 4.0)
        assert up.connections == 2

    run(hello, test)


@pytest.mark.parametrize("how", ["close", "reset", "speak"])
def test_an_idle_connection_that_ends_or_speaks_is_dropped(how: str) -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        assert await exchange(pool, up) == b"hello"
        conversation = up.conversations[0]
        if how == "close":
            conversation.writer.close()
        elif how == "reset":
            conversation.reset()
        else:
            await conversation.raw(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await settled(lambda: not pool.open)
        assert pool._idle == {}
        assert await exchange(pool, up) == b"hello"
        assert up.connections == 2

    run(hello, test)


# --- a kept connection that dies ----------------------------------------------------------------------------------


def dies(*numbers: int, first: bytes = b"", reset: bool = False) -> Script:
    """Answers, but the requests with these numbers are met by a connection that ends, after the bytes of `first`."""
    count = 0

    async def script(c: Conversation) -> None:
        nonlocal count
        count += 1
        if count % 10 not in numbers:
            await hello(c)
            return
        if first:
            await c.raw(first)
            await asyncio.sleep(0.02)
        if reset:
            c.reset()
        else:
            c.writer.close()
        raise ConnectionResetError

    return script


async def pieces(*values: bytes) -> AsyncIterator[bytes]:
    for value in values:
        yield value


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_request_that_meets_a_dying_connection_is_sent_once_more(reset: bool, method: str) -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        seen, connections = len(up.seen), up.connections
        assert await exchange(pool, up, method=method) == b"hello"
        assert await exchange(pool, up, method=method) == b"hello"
        assert (len(up.seen) - seen, up.connections - connections) == (3, 2)
        for _ in range(7):
            await exchange(pool, up)

    run(dies(2, reset=reset), test)


@pytest.mark.parametrize("reset", [False, True])
def test_it_is_not_sent_a_third_time(reset: bool) -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        assert await exchange(pool, up) == b"hello"
        with pytest.raises(Fault, match="before it answered") as caught:
            await exchange(pool, up)
        assert caught.value.kind is FaultKind.UNREACHABLE
        assert (len(up.seen), up.connections) == (3, 2)
        for _ in range(7):
            await exchange(pool, up)

    run(dies(2, 3, reset=reset), test)


@pytest.mark.parametrize("reset", [False, True])
def test_nothing_is_sent_again_once_a_byte_of_the_answer_has_come_or_over_a_new_connection(reset: bool) -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        with pytest.raises(Fault, match="before it answered"):
            await exchange(pool, up)
        assert await exchange(pool, up) == b"hello"
        with pytest.raises(Fault, match="before it answered"):
            await exchange(pool, up)
        assert (len(up.seen), up.connections) == (3, 2)
        for _ in range(7):
            await exchange(pool, up)

    run(dies(1, 3, first=b"H", reset=reset), test)


def test_a_body_that_comes_in_pieces_takes_a_new_connection() -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        await exchange(pool, up)
        await exchange(pool, up, pieces(b"a"))
        assert up.connections == 2

    run(hello, test)


# --- uploads ------------------------------------------------------------------------------------------------------


def test_a_body_in_pieces_goes_out_chunked_or_with_the_length_that_is_given() -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        assert await exchange(pool, up, pieces(b"ab", b"", b"c" * 100_000)) == b"hello"
        assert await exchange(pool, up, pieces(b"ab", b"c"), headers=[("content-length", "3")]) == b"hello"
        assert await exchange(pool, up, pieces()) == b"hello"
        assert [request.body for request in up.seen] == [b"ab" + b"c" * 100_000, b"abc", b""]
        assert "transfer-encoding" not in up.seen[1].headers
        assert "content-length" not in up.seen[0].headers

    run(hello, test)


class Source:
    """Pieces without end, counted."""

    def __init__(self, size: int = 65536, wait: float = 0.0) -> None:
        self.count = 0
        self.closed = False
        self._size = size
        self._wait = wait

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                await asyncio.sleep(self._wait)
                self.count += 1
                yield b"x" * self._size
        finally:
            self.closed = True


def scripted(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Any:
    """A server that does not read requests of itself: `async with scripted(handle) as url`."""

    class Server:
        async def __aenter__(self) -> str:
            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                self.tasks.append(asyncio.current_task())
                try:
                    await handle(reader, writer)
                except (ConnectionError, asyncio.CancelledError):
                    pass
                finally:
                    writer.transport.abort()

            self.tasks: list[asyncio.Task[Any] | None] = []
            self.server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 16)
            return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/x"

        async def __aexit__(self, *_: object) -> None:
            self.server.close()
            for task in self.tasks:
                if task is not None:
                    task.cancel()
            await asyncio.gather(*filter(None, self.tasks), return_exceptions=True)

    return Server()


def test_an_upload_is_no_faster_than_the_backend_takes_it() -> None:
    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async def main() -> None:
        async with scripted(stalls) as url:
            pool, source = Pool(), Source()
            asking = asyncio.create_task(pool.send("b", url, [], aiter(source), connect_s=60))
            before = -1
            while source.count != before:
                before = source.count
                await asyncio.sleep(0.1)
            assert 0 < source.count < 400  # the kernel's buffers
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await settled(lambda: source.closed and not pool.open)
            await pool.aclose()

    both(main)


def test_an_upload_that_is_refused_early_is_stopped_and_the_answer_is_read() -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.write(b"no!")
        await reader.read()

    async def main() -> None:
        async with scripted(refuses) as url:
            pool, source = Pool(), Source(1000, 0.001)
            reply = await pool.send("b", url, [], aiter(source), connect_s=60)
            assert reply.status == 413
            await settled(lambda: source.closed)
            assert await read_all(reply) == (b"no!", None)
            await reply.aclose()
            await settled(lambda: not pool.open)
            await pool.aclose()

    both(main)


def test_an_upload_goes_on_while_its_answer_is_read() -> None:
    async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"\r\n")
        while data := await reader.read(1000):
            writer.write(data)
            if b"0\r\n\r\n" in data:
                return

    async def main() -> None:
        async with scripted(echoes) as url:
            pool = Pool()
            heard: asyncio.Queue[bytes] = asyncio.Queue()

            async def spoken() -> AsyncIterator[bytes]:
                while data := await heard.get():
                    yield data

            reply = await pool.send("b", url, [], spoken(), connect_s=60)
            for word in (b"one", b"two"):
                heard.put_nowait(word)
                assert word in await reply.read()
            heard.put_nowait(b"")
            assert b"0\r\n\r\n" in await reply.read()
            await reply.aclose()
            await settled(lambda: not pool.open)
            await pool.aclose()

    both(main)


class OddError(Exception):
    pass


@pytest.mark.parametrize("early", [False, True])
def test_what_an_uploads_source_raises_is_raised_and_the_connection_closed(early: bool) -> None:
    async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if early:
            writer.write(CHUNKED)
        await reader.read()

    async def main() -> None:
        async with scripted(takes) as url:
            pool = Pool()
            fails = asyncio.Event()

            async def broken() -> AsyncIterator[bytes]:
                yield b"a"
                await fails.wait()
                raise OddError

            async def use() -> None:
                reply = await pool.send("b", url, [], broken(), connect_s=60)
                assert early
                fails.set()
                try:
                    await reply.read()
                finally:
                    await reply.aclose()

            if not early:
                fails.set()
            with pytest.raises(OddError):
                await use()
            await settled(lambda: not pool.open)
            await pool.aclose()

    both(main)


@pytest.mark.parametrize("body", [(b"ab",), (b"abcd",)])
def test_a_body_of_another_length_than_it_says_is_refused(body: tuple[bytes, ...]) -> None:
    async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(-1))

    async def main() -> None:
        received.clear()
        async with scripted(takes) as url:
            pool = Pool()
            with pytest.raises(Fault, match="content-length") as caught:
                await pool.send("b", url, [("content-length", "3")], pieces(*body), connect_s=60)
            assert caught.value.kind is FaultKind.INVALID_REQUEST
            await settled(lambda: bool(received) and not pool.open)
            assert b"abcd" not in received[0]
            await pool.aclose()

    received: list[bytes] = []
    both(main)


# --- connecting ---------------------------------------------------------------------------------------------------


async def fault_of(url: str, connect_s: float = 60.0) -> Fault:
    pool = Pool()
    with pytest.raises(Fault) as caught:
        await pool.send("backend 'b'", url, [], b"{}", connect_s=connect_s)
    await settled(lambda: not pool.open)
    await pool.aclose()
    return caught.value


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_why_there_is_no_connection_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        fault = await fault_of(f"http://127.0.0.1:{unused_port()}/")
        assert (fault.kind, fault.detail) == (
            FaultKind.UNREACHABLE,
            "backend 'b' cannot be reached: the connection was refused; nothing listens at that host and port",
        )
        fault = await fault_of(f"http://{'a' * 64}.example/")
        assert (fault.kind, fault.detail) == (
            FaultKind.UNREACHABLE,
            "backend 'b' cannot be reached: its host name does not resolve",
        )

    both(main)

    async def unresolved() -> None:
        fault = await fault_of("http://a.example/")
        assert fault.detail == "backend 'b' cannot be reached: its host name does not resolve"

    async def getaddrinfo(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    asyncio.run(unresolved())


def test_connect_s_bounds_names_connections_and_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async def main() -> None:
        with socket.socket() as full, socket.socket() as one, socket.socket() as two:
            full.bind(("127.0.0.1", 0))
            full.listen(0)  # the kernel takes a connection or two, and then no more
            for sock in (one, two):
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            fault = await fault_of(f"http://127.0.0.1:{full.getsockname()[1]}/", 0.05)
            assert (fault.kind, fault.detail) == (
                FaultKind.TIMEOUT,
                "backend 'b' took no connection within 0.05 s (connect_s)",
            )
        async with scripted(silent_server) as url:
            fault = await fault_of(url.replace("http:", "https:"), 0.05)
            assert (fault.kind, "(connect_s)" in fault.detail) == (FaultKind.TIMEOUT, True)

    both(main)

    async def unresolved() -> None:
        fault = await fault_of("http://a.example/", 0.05)
        assert (fault.kind, "(connect_s)" in fault.detail) == (FaultKind.TIMEOUT, True)

    async def getaddrinfo(*_: object, **__: object) -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    asyncio.run(unresolved())


def test_a_busy_process_is_not_taken_for_a_backend_that_takes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of making a connection is followed by something that takes longer than `connect_s`."""

    async def busy(*arguments: Any, **options: Any) -> socket.socket:
        asyncio.get_running_loop().call_soon(time.sleep, 0.3)
        sock = await start_connection(*arguments, **options)
        asyncio.get_running_loop().call_soon(time.sleep, 0.3)
        return sock

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(OK + b"content-length: 0\r\n\r\n")
        await reader.read()

    monkeypatch.setattr(http_client, "start_connection", busy)

    async def main() -> None:
        async with scripted(answers) as url:
            pool = Pool()
            reply = await pool.send("backend 'b'", url, [], b"{}", connect_s=0.2)
            assert reply.status == 200
            await reply.aclose()
            await pool.aclose()

    both(main)


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[Any] = []

    async def getaddrinfo(*_: object, **__: object) -> list[Any]:
        return addresses

    def address(port: int, host: str = "127.0.0.1") -> Any:
        return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))

    async def main() -> None:
        nothing = address(unused_port())
        async with Upstream(hello) as up:
            pool = Pool()
            v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", unused_port(), 0, 0))
            addresses[:] = [v6, nothing, nothing, address(up.port)]
            assert await exchange(pool, up, url=f"http://a.example:{up.port}/") == b"hello"
            assert up.seen[0].headers["host"] == f"a.example:{up.port}"
            await pool.aclose()
        addresses[:] = [nothing, nothing]
        assert "refused" in (await fault_of("http://a.example/")).detail

    async def first_is_silent() -> None:
        with socket.socket() as full, socket.socket() as one, socket.socket() as two:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for sock in (one, two):
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            async with Upstream(hello) as up:
                pool = Pool()
                addresses[:] = [address(full.getsockname()[1]), address(up.port)]
                assert await exchange(pool, up, url="http://a.example/") == b"hello"
                await pool.aclose()

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    asyncio.run(main())
    asyncio.run(first_is_silent())


@pytest.mark.parametrize("found", [True, False])
def test_all_who_ask_for_a_name_at_once_share_one_look_up(found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = port = 0

    async def getaddrinfo(*_: object, **__: object) -> list[Any]:
        nonlocal lookups
        lookups += 1
        await asyncio.sleep(0.02)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async def test(pool: Pool, up: Upstream) -> None:
        nonlocal port
        port = up.port
        for count in (1, 2):
            tasks = [asyncio.create_task(exchange(pool, up, pieces(), url="http://a.example/")) for _ in range(20)]
            await asyncio.sleep(0.001)
            tasks[0].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[0], asyncio.CancelledError)
            if found:
                assert results[1:] == [b"hello"] * 19
            else:
                assert all("does not resolve" in str(result) for result in results[1:])
            assert lookups == count
        alone = asyncio.create_task(exchange(pool, up, pieces(), url="http://b.example/"))
        await asyncio.sleep(0.001)
        alone.cancel()
        await asyncio.gather(alone, return_exceptions=True)
        assert len(asyncio.all_tasks() - up.tasks) == 2  # the look-up goes on for who may yet come

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    asyncio.run(over(hello, test))
    gc.collect()


@pytest.mark.parametrize(("number", "words"), [(errno.ETIMEDOUT, "does not answer"), (errno.EMFILE, "open files")])
def test_what_the_system_says_of_a_connection_is_told(number: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start_connection(*_: object, **__: object) -> socket.socket:
        raise OSError(number, os.strerror(number))

    async def main() -> None:
        fault = await fault_of("http://127.0.0.1/")
        assert (fault.kind, words in fault.detail) == (FaultKind.UNREACHABLE, True)

    monkeypatch.setattr(http_client, "start_connection", start_connection)
    both(main)


def test_a_backend_that_speaks_or_closes_before_it_is_asked_is_a_clear_fault() -> None:
    async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read(-1)

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return

    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def main() -> None:
        for handle in (banner, closes, resets):
            async with scripted(handle) as url:
                for _ in range(5):
                    fault = await fault_of(url)
                    assert fault.kind in (FaultKind.UNREACHABLE, FaultKind.BAD_BODY)

    both(main)


# --- TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a folder of certificates")
def test_a_backend_is_trusted_by_its_certificate_and_its_name(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(pool: Pool, up: Upstream) -> None:
        monkeypatch.delenv("SSL_CERT_DIR", raising=False)
        fault = await fault_of(up.url)
        assert (fault.kind, fault.detail) == (
            FaultKind.UNREACHABLE,
            "backend 'b' has a TLS certificate that is not trusted",
        )
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        assert await exchange(pool, up) == b"hello"
        assert await exchange(pool, up) == b"hello"
        assert up.connections == 1  # of those whose handshake was over
        protocol = up.conversations[0].writer.get_extra_info("ssl_object").selected_alpn_protocol()
        assert protocol == "http/1.1"
        monkeypatch.delenv("SSL_CERT_FILE")
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
        other = Pool()
        assert await exchange(other, up) == b"hello"
        await other.aclose()

    async def untrusted(pool: Pool, up: Upstream) -> None:
        fault = await fault_of(up.url)
        assert fault.detail == "backend 'b' has a TLS certificate that is not trusted"

    contexts = [authority.server(), authority.server("127.0.0.2"), authority.server(expired=True)]
    for context in contexts:
        context.set_alpn_protocols(["h2", "http/1.1"])
    shutil.copy(authority.file, tmp_path / "authority.pem")
    subprocess.run(["openssl", "rehash", str(tmp_path)], check=True, capture_output=True)
    run(hello, test, tls=contexts[0])
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    for context in contexts[1:]:
        run(hello, untrusted, tls=context)


def test_a_backend_that_speaks_no_tls_is_a_failed_handshake() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read(-1)

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async def main() -> None:
        async with scripted(plain) as url:
            fault = await fault_of(url.replace("http:", "https:"))
            assert (fault.kind, fault.detail) == (
                FaultKind.UNREACHABLE,
                "backend 'b' cannot be reached: the TLS handshake failed",
            )
        async with scripted(closes) as url:
            fault = await fault_of(url.replace("http:", "https:"))
            assert (fault.kind, "cannot be reached: " in fault.detail) == (FaultKind.UNREACHABLE, True)

    both(main)


def test_a_reply_over_tls_comes_whole_to_a_slow_reader_though_the_backend_has_closed(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 300_000

    async def test(pool: Pool, up: Upstream) -> None:
        for wait in (0, 0.01, 0.1):
            reply = await send(pool, up)
            await asyncio.sleep(wait)
            body = bytearray()
            while data := await reply.read():
                body += data
                await asyncio.sleep(wait)
            assert len(body) == size
            await reply.aclose()

    async def script(c: Conversation) -> None:
        await c.raw(OK + b"Content-Length: %d\r\n\r\n" % size + b"x" * (size - 100_000))
        await asyncio.sleep(0.02)  # meanwhile the client has stopped reading
        await c.raw(b"x" * 100_000)
        await asyncio.sleep(0.02)
        c.writer.transport.abort()
        raise ConnectionResetError

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    run(script, test, tls=authority.server())


def test_a_reply_over_tls_that_lasts_until_the_end_is_cut_where_the_connection_just_ends(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(c: Conversation) -> None:
        await c.raw(OK + b"\r\nhello")
        await asyncio.sleep(0.05)
        c.writer.transport.abort()  # no close_notify
        raise ConnectionResetError

    async def test(pool: Pool, up: Upstream) -> None:
        reply = await send(pool, up)
        body, fault = await read_all(reply)
        assert body == b"hello"
        assert fault is not None
        assert fault.kind is FaultKind.STREAM_CUT
        await reply.aclose()

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    uvloop.run(over(cut, test, tls=authority.server()))  # asyncio's own loop does not tell


# --- cancellation -------------------------------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def half(c: Conversation) -> None:
    await c.raw(CHUNKED)
    await c.chunk(b"one")
    await asyncio.sleep(0)
    await c.chunk(b"two")
    await c.end()


@pytest.mark.parametrize("kind", ["plain", "tls", "upload", "kept"])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_nothing_is_left_of_a_request_that_is_cancelled_whenever_it_is(
    kind: str, loop: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Upstream(half, authority.server() if kind == "tls" else None) as up:
            pool = Pool()
            assert await exchange(pool, up) == b"onetwo"
            tasks = asyncio.all_tasks() - up.tasks
            before = -1
            done = turns = 0
            while done < 3:  # until it is over before it is cancelled
                if kind != "kept":
                    for connection in list(pool.open):
                        connection.abort()
                    await settled(lambda: not pool.open)
                else:
                    await exchange(pool, up)
                source = Source(10, 0)
                body = aiter(source) if kind == "upload" else b"{}"
                task = asyncio.create_task(exchange(pool, up, body))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    done += await task == b"onetwo"
                turns += 1
                done += kind == "upload" and turns > 60  # which has no end
                await settled(lambda: len(pool.open) == sum(map(len, pool._idle.values())))
                await settled(lambda: asyncio.all_tasks() - up.tasks <= tasks)
                await settled(lambda: up.open == len(pool.open))
                if turns == 1:
                    before = descriptors() - 2 * len(pool.open)
            await settled(lambda: descriptors() - 2 * len(pool.open) <= before)
            assert turns > 5
            assert await exchange(pool, up) == b"onetwo"
            await pool.aclose()

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    uvloop.run(main()) if loop == "uvloop" else asyncio.run(main())
    gc.collect()


def test_a_connection_that_is_given_up_while_it_is_made_waits_for_no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Connection.connection_made
    asking: list[asyncio.Task[bytes]] = []

    def given_up(connection: Connection, transport: asyncio.BaseTransport) -> None:
        made(connection, transport)
        asking.pop().cancel()

    def connections() -> int:
        return sum(isinstance(one, Connection) for one in gc.get_objects())

    async def main() -> None:
        async with Upstream(hello) as up:
            pool = Pool()
            task = asyncio.create_task(exchange(pool, up))
            asking.append(task)
            with pytest.raises(asyncio.CancelledError):
                await task
            del task
            await settled(lambda: connections() == before, 10)
            await pool.aclose()

    monkeypatch.setattr(Connection, "connection_made", given_up)
    gc.collect()
    before = connections()
    gc.disable()
    try:
        uvloop.run(main())
    finally:
        gc.enable()


def test_impatient_callers_leave_nothing_and_the_next_are_served() -> None:
    async def slow(c: Conversation) -> None:
        await asyncio.sleep(0.005)
        await hello(c)

    async def test(pool: Pool, up: Upstream) -> None:
        async def impatient(number: int) -> None:
            try:
                async with asyncio.timeout(number % 20 / 1000):
                    await exchange(pool, up)
            except TimeoutError:
                pass

        for _ in range(5):
            await asyncio.gather(*(impatient(number) for number in range(50)))
        await settled(lambda: len(pool.open) == sum(map(len, pool._idle.values())))
        assert await asyncio.gather(*(exchange(pool, up) for _ in range(20))) == [b"hello"] * 20

    run(slow, test)


def test_closing_the_pool_closes_what_is_idle_and_what_is_used() -> None:
    async def slow(c: Conversation) -> None:
        await c.raw(CHUNKED)
        await c.until_closed()

    async def test(pool: Pool, up: Upstream) -> None:
        assert await exchange(pool, up) == b"hello"
        up.script = slow
        reply = await send(pool, up)
        up.script = silent
        waiting = asyncio.create_task(send(pool, up))
        reading = asyncio.create_task(reply.read())
        await settled(lambda: len(up.seen) == 3)
        await pool.aclose()
        for task in (waiting, reading):
            with pytest.raises(Fault):
                await task
        await reply.aclose()
        await up.none_open(60)
        with pytest.raises(Fault):
            await send(pool, up)

    run(hello, test)


def test_a_reply_that_came_before_its_request_was_sent_whole_costs_the_connection() -> None:
    async def main() -> None:
        wire = Wire(Pool())
        reply = await wire.answered(OK + b"Content-Length: 2\r\n\r\nhi")
        wire.unsent = 1
        assert await read_all(reply) == (b"hi", None)
        await reply.aclose()
        assert wire.is_closing()

    asyncio.run(main())
