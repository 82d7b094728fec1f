"""The HTTP/1.1 client towards backends: llhttp (httptools) on the event loop's transports.

A client of our own because the known ones cost more than all else that is done with a plain reply (aiohttp under httpx:
0.3 of 1.3 ms), and lose what a proxy must not lose: httpcore 1.0 a pool slot for ever when a request is cancelled,
aiohttp 3.14 the bytes that came before a reset, and broken chunking leaves its reader waiting.

Theory of operation. A `Connection` is the protocol of one transport and carries one request at a time:

    state    what may come               left by
    IDLE     nothing: it is kept         a request; anything that comes, or KEEPALIVE_EXPIRY_S, closes it
    HEAD     1xx heads, then the head    the head's last byte; a fault
    BODY     the body's bytes            its last byte; a fault
    OVER     nothing                     `release`: kept again where nothing speaks against it, else closed
    CLOSED   nothing: closed by us       -

All parsing happens inside `data_received`: llhttp calls back for each field and for each piece of the body, and at
the end of each read what came is joined and handed out once: to the reader's `take`, or to where `read` finds it. A
fault is told after what came before it has been read. llhttp knows no end of the connection (httptools does not give
out llhttp_finish), so how the body ends is known here too: `_until_close`.

One event loop, no locks. Whoever cancels a wait, whenever, closes the connection; the exception is `read`, which may be
cancelled and called again. There is no timer but the pool's one for idle connections, and no task but an upload's.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from functools import lru_cache
from traceback import clear_frames
from typing import Any, NamedTuple, cast

import certifi
import httptools
from aiohappyeyeballs import start_connection

from proxy.faults import Fault, FaultKind

# Idle connections are dropped before the backend drops them: uvicorn, under vLLM and many others, waits 5 s, and a
# request that meets a connection being closed is lost.
KEEPALIVE_EXPIRY_S = 4.0
# Of all heads of one response together, those of 1xx included; of a body's framing between two bytes of it, trailers
# included. nginx takes 4 to 8 KiB of a head, curl 300 KiB.
MAX_HEAD_BYTES = 65536
MAX_FIELDS = 200
# So much may wait unread before the backend is slowed down.
MAX_UNREAD_BYTES = 65536
# How much of a body is thrown away, and for how long, to give its connection back in place of closing it.
DRAIN_BYTES = 65536
DRAIN_S = 0.1
# A further address of a name is tried after this long (RFC 8305, section 5).
NEXT_ADDRESS_S = 0.25
# The time for a connection is waited for in so many parts. Where this process is busy the loop comes late to a part's
# end, and looks at its sockets before the next one begins: in one part, a burst of requests would pass for a backend
# that cannot be reached.
CONNECT_PARTS = 10

Headers = Sequence[tuple[bytes, bytes]]  # as ASGI has them: lower-case names
Take = Callable[[bytes], bool]

_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[^/?:@\[\]]+)(?::([0-9]+))?([/?].*)?")
_PRINTABLE = re.compile(r"[!-\"$-~]+")  # no control characters, no blanks, no fragment

# Why there is no connection. Where a name has several addresses that fail in different ways, none of these is said.
_REASONS = {
    errno.ECONNREFUSED: "the connection was refused; nothing listens at that host and port",
    errno.ENETUNREACH: "there is no route to its network",
    errno.EHOSTUNREACH: "there is no route to its host",
    errno.ETIMEDOUT: "its host does not answer",
    errno.ECONNRESET: "the connection was broken at once",
    errno.EMFILE: "this process has too many open files",
    errno.ENFILE: "this machine has too many open files",
}


class Origin(NamedTuple):
    """Where connections lead; the pool's key."""

    tls: bool
    host: str
    port: int


class _State(Enum):
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    OVER = "over"
    CLOSED = "closed"


@asynccontextmanager
async def _patience(loop: asyncio.AbstractEventLoop, seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, see CONNECT_PARTS."""

    part_s = seconds / CONNECT_PARTS
    timer: asyncio.TimerHandle

    # Given itself: a function that names itself is a cycle, and `limit` refers to the exchange's task.
    def part_is_over(again: Callable[..., None], left: int) -> None:
        nonlocal timer
        if left:
            timer = loop.call_later(part_s, again, again, left - 1)
        else:
            limit.reschedule(loop.time())

    timer = loop.call_later(part_s, part_is_over, part_is_over, CONNECT_PARTS - 1)
    try:
        async with asyncio.timeout(None) as limit:
            yield
    finally:
        timer.cancel()


class _Stale(Exception):
    """A kept connection turned out to be closed before any byte of the response."""


class Connection(asyncio.Protocol):
    """One connection. Used by `Pool` and by the `Reply` that is being read from it."""

    __slots__ = (
        "_drained", "_error", "_fields", "_framing_bytes", "_head_bytes", "_head_only", "_interim", "_keep_alive",
        "_parser", "_paused", "_peer", "_pieces", "_pool", "_ready", "_refusal", "_reused", "_state", "_status",
        "_surplus_from", "_take", "_transport", "_unread_bytes", "_until_close", "_upload", "_waiter", "idle_since",
        "on_body", "origin",
    )  # fmt: skip

    def __init__(self, pool: Pool, origin: Origin) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self._pool = pool
        self._state = _State.IDLE
        self._pieces: list[bytes] = []  # of the read that is being parsed
        self._ready: list[bytes] = []  # of earlier reads, not handed out yet
        self._paused = self._reused = False
        self._waiter: asyncio.Future[None] | None = None  # whoever waits for the head or for the body
        self._take: Take | None = None
        self._error: Exception | None = None
        self._upload: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        # Control characters and folded lines in a field's value, which RFC 9112 (5.2) has us read as a blank. Who
        # passes a value on looks at it. NUL, and a blank before the colon, are refused below.
        self._parser.set_dangerous_leniencies(lenient_headers=True)

    # --- the request -------------------------------------------------------------------------------------------

    async def ask(
        self, peer: str, head: bytes, body: bytes | AsyncIterator[bytes], *, method: str, length: int | None
    ) -> Reply:
        """Send a request and wait for its response's head. `length` of a body that comes in pieces; None: chunked.

        Raises _Stale, Fault, and what `body` raises; the connection is closed then.
        """
        self._begin(peer, method)
        try:
            if self._transport.is_closing():  # a new one that spoke first, or was closed at once
                raise self._fault(FaultKind.UNREACHABLE, "broke the connection before it was asked")
            if isinstance(body, bytes):
                self._transport.writelines((head, body) if body else (head,))
            else:
                self._transport.write(head)
                self._upload = self._pool.loop.create_task(self._send(body, length))
            while self._state is _State.HEAD:
                await self._wait()
            if self._status is None:
                assert self._error is not None
                raise self._error
        except BaseException:
            self.abort()
            self._error = None  # its traceback refers to this connection
            raise
        if self._upload is not None and self._status >= 300:
            self._upload.cancel()  # it has been refused before it was whole
        return Reply(self, self._status, self._fields)

    def _begin(self, peer: str, method: str) -> None:
        """Nothing of the response is known yet."""
        self._state = _State.HEAD
        self._peer = peer
        self._head_only = method == "HEAD"
        self._fields: list[tuple[bytes, bytes]] = []
        self._status: int | None = None
        self._head_bytes = self._framing_bytes = self._unread_bytes = 0
        self._interim = self._until_close = self._keep_alive = False
        self._error = None
        self._refusal = ""
        self._surplus_from: int | None = None

    async def _send(self, body: AsyncIterator[bytes], length: int | None) -> None:
        """Send a body that comes in pieces, no faster than the backend takes it."""
        left = length
        try:
            async for piece in body:
                if self._drained is not None:
                    await self._drained
                if self._transport.is_closing():
                    return
                if left is not None:
                    left -= len(piece)
                    if left < 0:
                        break
                    self._transport.write(piece)
                elif piece:
                    self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if left:
                raise Fault(FaultKind.INVALID_REQUEST, "the body is not as long as its content-length says")
            if left is None and not self._transport.is_closing():
                self._transport.write(b"0\r\n\r\n")
            self._upload = None
        except asyncio.CancelledError:
            self._keep_alive = False  # the backend waits for the rest
            self._upload = None  # the task keeps this exception, whose traceback holds this connection
            raise
        except Exception as error:  # noqa: BLE001 - whatever the body's source raises is told to whoever reads the reply
            self._upload = None
            self._fail(error)
        finally:
            if isinstance(body, AsyncGenerator):
                await body.aclose()

    def pause_writing(self) -> None:
        self._drained = self._pool.loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # --- the response ------------------------------------------------------------------------------------------

    async def read(self, take: Take | None = None) -> bytes:
        """See `Reply.read`."""
        ready = self._ready
        while not ready:
            if self._state is _State.OVER:
                return b""
            if self._state is not _State.BODY:
                assert self._error is not None
                raise self._error
            self._take = take
            try:
                await self._wait()
            finally:
                self._take = None
        data = ready[0] if len(ready) == 1 else b"".join(ready)
        ready.clear()
        self._unread_bytes = 0
        self._resume()
        return data

    async def _wait(self) -> None:
        assert self._waiter is None, "one reader at a time"
        self._waiter = self._pool.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        state = self._state
        try:
            if state is _State.BODY:
                self._parser.feed_data(data)
            elif state is _State.HEAD:
                self._feed_head(data)
            else:  # nobody asked for it
                self._end("broke")
                return
            broken = bool(self._refusal)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            broken = True
        pieces = self._pieces
        if self._surplus_from is not None:
            del pieces[self._surplus_from :]
        if pieces:
            self._framing_bytes = 0
            whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            if whole and self._state is not _State.HEAD:
                self._hand_out(whole)
        elif state is _State.BODY:
            self._framing_bytes += len(data)
            broken = broken or self._framing_bytes > MAX_HEAD_BYTES
        if self._state is _State.OVER:
            if broken or self._surplus_from is not None:
                self._keep_alive = False
            self._wake()
        elif broken:
            if self._state is _State.HEAD:
                self._fail(self._fault(FaultKind.BAD_BODY, self._refusal or "sent an answer that is no valid HTTP"))
            else:
                self._fail(self._fault(FaultKind.STREAM_CUT, "sent broken framing in the middle of its reply"))
        elif state is _State.HEAD and self._state is _State.BODY:
            self._wake()

    def _feed_head(self, data: bytes) -> None:
        """Parse what may belong to a head. Cut at the limit, so that the outcome does not depend on the reads."""
        room = MAX_HEAD_BYTES - self._head_bytes
        self._head_bytes += len(data)
        if len(data) <= room:
            self._parser.feed_data(data)
            return
        self._parser.feed_data(data[:room])
        if self._state is not _State.HEAD:
            self._parser.feed_data(data[room:])
        elif not self._refusal:
            self._refusal = f"sent an answer whose head is larger than {MAX_HEAD_BYTES} bytes"

    def _hand_out(self, data: bytes) -> None:
        """Give `data` to whoever waits for it, else keep it."""
        waiter = self._waiter
        if self._take is not None and waiter is not None and not waiter.done():
            try:
                if self._take(data):
                    return
            except Exception as error:  # noqa: BLE001 - raised where the reader waits
                waiter.set_exception(error)
                waiter = None  # the error's traceback holds this frame: a cycle, and in it all of the exchange
                return
        self._ready.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > MAX_UNREAD_BYTES and self._state is _State.BODY and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    # llhttp's callbacks. They must not raise: httptools would go on as if the answer were no HTTP.

    def on_message_begin(self) -> None:
        if self._state is _State.OVER and self._surplus_from is None:
            self._surplus_from = len(self._pieces)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._state is not _State.HEAD:  # a trailer
            return
        if len(self._fields) == MAX_FIELDS:
            self._refusal = f"sent an answer whose head has more than {MAX_FIELDS} fields"
        elif b"\0" in value or b" " in name:
            self._refusal = "sent an answer that is no valid HTTP"
        else:
            self._fields.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._state is not _State.HEAD or self._refusal:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:  # after 101 llhttp refuses to go on
            self._interim = True
            self._fields.clear()
            return
        codings = [value for name, value in self._fields if name == b"transfer-encoding"]
        if codings and (len(codings) > 1 or codings[0].lower() != b"chunked"):
            self._refusal = "sent an answer with a transfer-encoding that is not just chunked"
            return
        if self._parser.get_http_version() not in ("1.0", "1.1"):
            self._refusal = "sent an answer that is no valid HTTP"
            return
        self._status = status
        self._keep_alive = self._parser.should_keep_alive()
        if self._head_only:  # llhttp cannot be told, and takes what follows for a body
            self._keep_alive = False
            self._surplus_from = 0
            self._state = _State.OVER
            return
        self._until_close = not (codings or any(name == b"content-length" for name, _ in self._fields))
        self._state = _State.BODY

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif self._state is _State.BODY:
            self._state = _State.OVER

    # --- the end -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        if self.origin.tls:
            # While reading is paused TLS may not read on: uvloop 0.23 drops what waits there at the connection's end.
            cast(Any, transport).set_read_buffer_limits(high=1)
        self._pool.open.add(self)

    def eof_received(self) -> None:
        """The backend ended the connection in order (over TLS: with its close_notify)."""
        if self._state is _State.BODY and self._until_close:
            self._state = _State.OVER
            self._wake()
        self._end("closed")

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.open.discard(self)
        self._end("broke" if error else "closed")
        self.part()

    def part(self) -> None:
        """Nothing more will be read: the parser and this refer to each other."""
        self._parser = cast(httptools.HttpResponseParser, None)

    def _end(self, how: str) -> None:
        """Nothing more comes over this connection."""
        self._keep_alive = False
        if self._state is _State.HEAD:
            fault = self._fault(FaultKind.UNREACHABLE, f"{how} the connection before it answered")
            self._fail(_Stale() if self._reused and not self._head_bytes else fault)
        elif self._state is _State.BODY:
            self._fail(self._fault(FaultKind.STREAM_CUT, "broke the connection in the middle of its reply"))
        elif self._state is _State.IDLE:
            self.abort()

    def _fault(self, kind: FaultKind, what: str) -> Fault:
        return Fault(kind, f"{self._peer} {what}")

    def _fail(self, error: Exception) -> None:
        """The reply is cut off here: `error` is raised where it has been read up to this point."""
        if self._state in (_State.HEAD, _State.BODY):
            self._error = error
            self._state = _State.CLOSED
        self.abort()

    def abort(self) -> None:
        """Close the connection at once, whatever goes on."""
        if self._state is _State.HEAD or self._state is _State.BODY:
            self._error = self._fault(FaultKind.STREAM_CUT, "was let go in the middle of its reply")
        if self._state is not _State.OVER:
            self._state = _State.CLOSED
        self._keep_alive = False
        self._pool.forget(self)
        if self._upload is not None:
            self._upload.cancel()
        self._transport.abort()
        self._wake()

    def release(self) -> None:
        """Its reply is closed: keep the connection where the next request may have it, else close it."""
        is_free = self._state is _State.OVER and self._waiter is None and self._upload is None
        is_free = is_free and self._keep_alive and not self._transport.is_closing()
        self._ready.clear()
        if is_free and not self._transport.get_write_buffer_size():  # answered before it had read the request: odd
            self._resume()
            self._state = _State.IDLE
            self._reused = True
            self._pool.keep(self)
        else:
            self.abort()
            self._error = None  # its traceback refers to this connection

    @property
    def is_usable(self) -> bool:
        return self._state is _State.IDLE and not self._transport.is_closing()

    @property
    def is_over(self) -> bool:
        return self._state is _State.OVER


def joined(headers: Headers) -> dict[str, str]:
    """Each field's value; of one that came several times a list of them (RFC 9110, 5.3)."""
    fields: dict[str, str] = {}
    for name_bytes, value_bytes in headers:
        name, value = name_bytes.decode("latin-1"), value_bytes.decode("latin-1")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


class Reply:
    """One response whose body is being read. Close it, whatever happens. Field names are in lower case."""

    __slots__ = ("_connection", "headers", "raw_headers", "status")

    def __init__(self, connection: Connection, status: int, raw_headers: Headers) -> None:
        self._connection: Connection | None = connection
        self.status = status
        self.raw_headers = raw_headers
        self.headers = joined(raw_headers)

    def read(self, take: Take | None = None) -> Coroutine[Any, Any, bytes]:
        """The next bytes of the body, as they came, without their framing; b"" at its end. Raises Fault (STREAM_CUT).

        While it waits, what comes is first offered to `take`, once for each read of the socket and without a task
        switch: where that returns True the bytes are gone and the wait goes on, else they are returned here. `take`
        runs outside of any task, in the transport's context; what it raises is raised here.
        May be cancelled and called again: nothing is lost.
        """
        assert self._connection is not None, "the reply is closed"
        return self._connection.read(take)

    async def drain(self) -> None:
        """Read what little may be left of a body that is over, so that its connection can be used again."""
        connection = self._connection
        if connection is None or connection.is_over:
            return
        left = DRAIN_BYTES
        try:
            async with asyncio.timeout(DRAIN_S):
                while left > 0 and (data := await connection.read()):
                    left -= len(data)
        except (TimeoutError, Fault):
            return

    async def aclose(self) -> None:
        """Give the connection back where the body has come whole, else close it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()


class Pool:
    """Connections by origin, the kept ones included. Without a limit of its own. Belongs to one event loop."""

    def __init__(self) -> None:
        self.open: set[Connection] = set()
        self._idle: dict[Origin, dict[Connection, None]] = {}  # the oldest first
        self._expiry: asyncio.TimerHandle | None = None
        self._lookups: dict[Origin, asyncio.Future[Any]] = {}
        self._context: ssl.SSLContext | None = None
        self._closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def send(
        self,
        peer: str,
        url: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | AsyncIterator[bytes],
        *,
        connect_s: float,
        method: str = "POST",
    ) -> Reply:
        """Send a request and wait for its response's head. `peer`: what faults call the other end.

        Where a kept connection dies before a byte of the response, a body that is at hand is sent once more, on a new
        connection; one that comes in pieces goes over a new connection from the start. Raises Fault, and what `body`
        raises.
        """
        origin, host, target = _parsed(url)
        length, head = _head(method, target, host, headers, body)
        if isinstance(body, bytes):
            kept = self._newest(origin)
            if kept is not None:
                try:
                    return await kept.ask(peer, head, body, method=method, length=length)
                except _Stale:
                    pass
        connection = await self._connect(origin, peer, connect_s)
        return await connection.ask(peer, head, body, method=method, length=length)

    async def aclose(self) -> None:
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for lookup in self._lookups.values():
            lookup.cancel()
        for connection in list(self.open):
            connection.abort()
        await asyncio.sleep(0)  # the loop closes the descriptors

    # --- connections -------------------------------------------------------------------------------------------

    async def _connect(self, origin: Origin, peer: str, connect_s: float) -> Connection:
        try:
            async with _patience(self.loop, connect_s):
                connection = await self._connected(origin, connect_s)
        except TimeoutError as error:
            if error.errno is None:
                what = f"took no connection within {connect_s:g} s (connect_s)"
                raise Fault(FaultKind.TIMEOUT, f"{peer} {what}") from None
            what = f"cannot be reached: {_REASONS[errno.ETIMEDOUT]}"
        except ssl.SSLCertVerificationError:
            what = "has a TLS certificate that is not trusted"
        except ssl.SSLError:
            what = "cannot be reached: the TLS handshake failed"
        except (socket.gaierror, UnicodeError):
            what = "cannot be reached: its host name does not resolve"
        except OSError as error:
            what = f"cannot be reached: {_REASONS.get(error.errno or 0, 'no connection could be made')}"
        else:
            if self._closed:
                connection.abort()
                raise Fault(FaultKind.SHUTDOWN, "the proxy is shutting down; ask again")
            return connection
        raise Fault(FaultKind.UNREACHABLE, f"{peer} {what}")

    async def _connected(self, origin: Origin, connect_s: float) -> Connection:
        loop = self.loop
        options: dict[str, Any] = {}
        if origin.tls:
            if self._context is None:
                self._context = _new_context()
            options = {
                "ssl": self._context,
                "server_hostname": origin.host,
                "ssl_handshake_timeout": connect_s + 1,  # `connect_s` comes first, and closes at once
            }
        addresses = await self._addresses(origin)
        try:
            sock = await start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_S)
        except OSError as error:
            clear_frames(error.__traceback__)  # aiohappyeyeballs 2.7.1 keeps the error in a frame that it refers to
            raise
        connection = Connection(self, origin)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.create_connection(lambda: connection, sock=sock, **options)
        except BaseException:
            if connection in self.open:  # it was there, which uvloop forgets and asyncio closes too politely
                self.open.discard(connection)
                connection.abort()
                del connection._transport  # they refer to each other, and of what uvloop forgets it ends nothing
            connection.part()
            sock.close()
            raise
        return connection

    async def _addresses(self, origin: Origin) -> Sequence[Any]:
        """What the host's name stands for, as getaddrinfo has it. All who ask at once share one look-up: each takes one
        of libuv's four threads, and a burst of streams would wait for them longer than `connect_s`."""
        lookup = self._lookups.get(origin)
        if lookup is None:
            work = self.loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
            lookup = self._lookups[origin] = asyncio.ensure_future(work)
            lookup.add_done_callback(lambda _: self._lookups.pop(origin))
        try:
            return await asyncio.shield(lookup)  # who leaves does not take it from the others
        finally:
            del lookup  # it keeps its error, whose traceback holds this frame

    def keep(self, connection: Connection) -> None:
        connection.idle_since = self.loop.time()
        self._idle.setdefault(connection.origin, {})[connection] = None
        if self._expiry is None:
            self._expiry = self.loop.call_later(KEEPALIVE_EXPIRY_S, self._expire)

    def forget(self, connection: Connection) -> None:
        """It is not to be used again."""
        idle = self._idle.get(connection.origin)
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[connection.origin]

    def _newest(self, origin: Origin) -> Connection | None:
        """The kept connection that was used last: it is the least likely to be closed by now."""
        oldest = self.loop.time() - KEEPALIVE_EXPIRY_S
        while idle := self._idle.get(origin):
            connection = next(reversed(idle))
            self.forget(connection)
            if connection.is_usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    def _expire(self) -> None:
        self._expiry = None
        oldest = self.loop.time() - KEEPALIVE_EXPIRY_S
        kept = [connection for idle in self._idle.values() for connection in idle]
        for connection in kept:
            if connection.idle_since <= oldest:
                connection.abort()
        if self._idle:
            first = min(next(iter(idle)).idle_since for idle in self._idle.values())
            self._expiry = self.loop.call_later(first - oldest, self._expire)


def _new_context() -> ssl.SSLContext:
    """certifi's list of authorities, or the file or the folder that the usual variables name. Takes some 15 ms."""
    if file := os.environ.get("SSL_CERT_FILE"):
        context = ssl.create_default_context(cafile=file)
    elif folder := os.environ.get("SSL_CERT_DIR"):
        context = ssl.create_default_context(capath=folder)
    else:
        context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


# --- the request's head ------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _parsed(url: str) -> tuple[Origin, str, str]:
    """Where a URL leads, the Host field and the request's target. Raises Fault."""
    parts = _URL.fullmatch(url) if _PRINTABLE.fullmatch(url) else None
    if parts is None:
        raise Fault(FaultKind.INVALID_REQUEST, "the backend cannot be asked for this path")
    scheme, host, port, target = parts.groups()
    default = 443 if scheme == "https" else 80
    number = int(port) if port else default
    host = host.lower()
    if not target or target[0] == "?":
        target = "/" + (target or "")
    return Origin(scheme == "https", host.strip("[]"), number), host if number == default else f"{host}:{port}", target


def _head(
    method: str, target: str, host: str, headers: Iterable[tuple[str, str]], body: bytes | AsyncIterator[bytes]
) -> tuple[int | None, bytes]:
    """The body's length, None where it goes out chunked, and the head. Raises Fault."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}"]
    length: int | None = None
    for name, value in headers:
        lines.append(f"{name}: {value}")
        if name == "content-length":
            length = int(value)
    if not isinstance(body, bytes):
        if length is None:
            lines.append("transfer-encoding: chunked")
    elif body or method in ("POST", "PUT", "PATCH"):
        length = len(body)
        lines.append(f"content-length: {length}")
    lines.append("\r\n")
    text = "\r\n".join(lines)
    if text.count("\r") == text.count("\n") == len(lines) and "\0" not in text:
        try:
            return length, text.encode("latin-1")
        except UnicodeEncodeError:
            pass
    raise Fault(FaultKind.INVALID_REQUEST, "a header holds a character that no header may hold")
