"""What a client may send at all: uvicorn's httptools protocol with limits on the request head and on bad framing.

httptools (llhttp) refuses most of what request smuggling needs. It lets through, and this class refuses: a head, a
trailer or chunk extensions of any size, no Host or several, a transfer coding besides chunked, an absolute URL as the
target, and a client that connects and never finishes its head. Whatever is refused costs one log line and one JSON
answer, never a traceback. A trailer's fields are thrown away: nobody here may take them for the head's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from proxy.dialects import error_body
from proxy.faults import Fault, FaultKind, limit_fault
from proxy.server.logs import request_id

# After an answer that came before the request's body had ended: how long the client may take to read it, and how
# much of its body is thrown away meanwhile. Closing at once would reset the connection, and a client that is still
# writing would see the reset in place of the answer.
LINGER_S = 2.0
LINGER_BYTES = 2 * 1024 * 1024
# What a chunk may cost besides its data: sixteen digits of its size and two line ends.
CHUNK_BYTES = 20
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # as uvicorn writes it: the one thing before a response's head

logger = logging.getLogger("wholecall.http")


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """`max_head_bytes`: request line and header fields, and what comes behind them that is no body: chunk extensions
    and the trailer. `head_s`: from the connection's or the head's first moment."""

    max_head_bytes: int = 32768
    max_headers: int = 100
    head_s: float = 10.0


class GuardedApp(Protocol):
    """The ASGI application of a guarded server; its limits may change while it runs."""

    @property
    def head_limits(self) -> HeadLimits: ...


class _Refused(Exception):
    """Raised inside a parser callback; `GuardedProtocol._refusal` says why."""


class _ResponseTransport:
    """What uvicorn writes a response to. The head goes out with what follows it at once: a `write` costs as much as
    all else that is done for a plain reply's head. `close` gives a client that may still be sending time to read."""

    __slots__ = ("_has_body", "_head", "_protocol", "_transport")

    def __init__(self, protocol: GuardedProtocol, has_body: bool) -> None:
        self._protocol = protocol
        self._transport = protocol.transport
        self._has_body = has_body
        self._head: bytes | None = None  # until it has gone out; b"" from then on

    def write(self, data: bytes) -> None:
        if self._head is None and data != CONTINUE:
            self._head = data
            self._protocol.loop.call_soon(self.flush)
            return
        if self._head:
            data, self._head = self._head + data, b""
        self._transport.write(data)

    def flush(self) -> None:
        """Send the head, if it still waits."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def is_closing(self) -> bool:
        return self._protocol.lingering or self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        if self._has_body:
            self._protocol.close_gently()
        else:
            self._transport.close()


class Downstream:
    """What an endpoint can do with its client's connection that ASGI has no word for: `scope["state"]["downstream"]`.

    Belongs to one request and its answer.
    """

    __slots__ = ("_gone", "_protocol", "_transport", "cycle")

    def __init__(self, protocol: GuardedProtocol, cycle: RequestResponseCycle, transport: _ResponseTransport) -> None:
        self._protocol = protocol
        self.cycle = cycle
        self._transport = transport
        self._gone: Callable[[], None] | None = None

    def abort(self) -> None:
        """Drop the connection, whatever is still buffered, and with it this answer: uvicorn would complain that it is
        not complete."""
        self._gone = None
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self._transport.flush()
        self._protocol.transport.abort()

    @property
    def request_is_whole(self) -> bool:
        """Whether all of the request's body is here."""
        return not self.cycle.more_body

    def watch(self, gone: Callable[[], None] | None) -> bool:
        """Call `gone` when the client leaves; None: no more. False: it has left."""
        self._gone = gone
        return not self.cycle.disconnected

    def push(self, data: bytes) -> bool:
        """Send more of a body that has begun, now. False: not now, since the client does not read; ASGI's `send` waits
        for it."""
        cycle = self.cycle
        if not cycle.chunked_encoding or cycle.response_complete or cycle.disconnected:
            return False
        if self._protocol.flow.write_paused:
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def lost(self) -> None:
        """The client has left."""
        self.cycle.disconnected = True  # uvicorn tells only the last request on the connection
        self.cycle.message_event.set()
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()


class GuardedProtocol(HttpToolsProtocol):
    """One client connection. What ASGI does not say of it is at `scope["state"]["downstream"]`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = cast(GuardedApp, config.app).head_limits
        self._refusal: Fault | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._expects_head = True
        self._begun = False  # the head's first byte is here
        self._known = 0  # bytes of the head that the parser has given out
        self._raw = 0  # bytes of reads that lay wholly inside the head
        self._fields = 0
        self._content = 0  # bytes of the current read that are the body's, with what its chunks may cost
        self._surplus = 0  # bytes of reads that lay wholly behind the head and before the request's end, less those
        self._length = 0  # of the body, as announced
        self._bypassed = 0  # bytes of a body that the parser will not see
        self._deaf = False  # nothing that this client sends is listened to any more
        self._served: list[Downstream] = []  # by the requests whose answers are not complete, in order
        self.lingering = False
        self._linger_budget = LINGER_BYTES
        self._linger_timer: asyncio.TimerHandle | None = None

    # --- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self._limits.head_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_head_timer()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does so only where the client closed in order
        self._all_lost()
        # Nothing of this connection waits for the garbage collector: what it refers to refers to it.
        self.cycle = None  # type: ignore[assignment]
        while self.pipeline:
            self._forget_last()

    def data_received(self, data: bytes) -> None:
        if self.lingering:
            self._throw_away(len(data))
            return
        if self._deaf:
            return
        was_inside = self._begun and self._expects_head
        was_behind = not self._expects_head
        self._content = 0
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._is_done():
            return
        if self._expects_head:
            self._watch_head(len(data) if was_inside else 0)
        elif was_behind:
            self._watch_surplus(len(data))

    def _feed(self, data: bytes) -> None:
        """Hand `data` to the parser.

        httptools stops behind the head of a request that asks for an upgrade, calls it complete and gives the rest
        back. Nothing is upgraded here, so the rest is that request's body: taken for the next request it would be a way
        to smuggle one in.
        """
        while data and not self._is_done():
            if self._bypassed:
                body, data = data[: self._bypassed], data[self._bypassed :]
                self._bypassed -= len(body)
                self.on_body(body)
                if not self._bypassed:
                    self.on_message_complete()
                continue
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stop:
                data = data[stop.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("")
                return

    def _watch_head(self, size: int) -> None:
        """A head is not complete yet: it has a limit in bytes and in time. `size`: of a read that lay inside it."""
        if size:
            self._raw += size
            if self._raw > self._limits.max_head_bytes:
                self._refusal = self._head_too_large()
                self.send_400_response("")
                return
        if self._head_timer is None and (self._begun or self._unanswered is None):
            self._head_timer = self.loop.call_later(self._limits.head_s, self._head_is_late)

    def _watch_surplus(self, size: int) -> None:
        """A request's end has not come yet: what is no body has a limit. `size`: of a read that lay before the end.

        The parser tells of a trailer's field when it is whole and of chunk extensions never, so reads are counted. Of
        what chunks may cost, no more than one chunk's is saved up.
        """
        self._surplus = max(self._surplus + size - self._content, -CHUNK_BYTES)
        if self._surplus > self._limits.max_head_bytes:
            self._refusal = self._head_too_large()
            self.send_400_response("")

    def _is_done(self) -> bool:
        return self._deaf or self.lingering or self.transport.is_closing()

    def _all_lost(self) -> None:
        served, self._served = self._served, []
        for downstream in served:
            downstream.lost()

    def _forget_last(self) -> None:
        """The last request that waits will not be answered."""
        cycle, _ = self.pipeline.popleft()
        cycle.scope["state"].clear()  # there its `Downstream` is, which refers to it

    def close_gently(self) -> None:
        """Close; where the request's body is still coming, only after the client had time to read the answer."""
        cycle: RequestResponseCycle | None = self.cycle  # None where the connection is lost
        if cycle is not None and cycle.more_body and self.transport.can_write_eof():
            self._linger()
        else:
            self.transport.close()

    # --- the parser's callbacks

    def on_message_begin(self) -> None:
        self._begun = True
        self._known = self._raw = self._surplus = self._fields = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._known += len(url)
        if self._known > self._limits.max_head_bytes:
            self._stop(self._head_too_large())
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > self._limits.max_headers:
            limit = self._limits.max_headers
            self._stop(limit_fault("max_headers", limit, "the number of header fields", status=431))
        self._known += len(name) + len(value) + 4  # ": " and CRLF
        if self._known > self._limits.max_head_bytes:
            self._stop(self._head_too_large())
        if self._expects_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._unset_head_timer()
        has_body = self._check_head()
        if self.parser.should_upgrade():
            self._bypassed = self._length
        self._expects_head = self._begun = False
        super().on_headers_complete()
        transport = _ResponseTransport(self, has_body)
        self.cycle.transport = cast(asyncio.Transport, transport)
        downstream = Downstream(self, self.cycle, transport)
        self._served.append(downstream)
        self.scope["state"]["downstream"] = downstream

    def on_chunk_header(self) -> None:
        self._content += CHUNK_BYTES

    def on_body(self, body: bytes) -> None:
        self._content += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._bypassed:
            return  # the parser's mistake: see _feed
        self._expects_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._served:
            del self._served[0]
        cycle = self.cycle
        if self.pipeline or self.transport.is_closing():  # the connection may be lost, and `cycle` with it
            return
        if cycle.response_complete and cycle.more_body:
            self.close_gently()  # nobody will read the rest of this body

    @property
    def _unanswered(self) -> RequestResponseCycle | None:
        """The last request whose answer is not complete."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first and after the end
        return None if cycle is None or cycle.response_complete else cycle

    # --- refusals

    def send_400_response(self, msg: str) -> None:
        """The parser gave up: our reason, or bad HTTP."""
        fault = self._refusal or Fault(FaultKind.INVALID_REQUEST, "the request is not valid HTTP/1.1")
        cycle = self._unanswered
        if cycle is not None and cycle.more_body and self.pipeline:
            # It waits behind good requests, whose answers come first: it is forgotten, and they are the last.
            self._forget_last()
            self._served.pop()
            cycle = self.cycle = self._served[-1].cycle
        if cycle is not None and (cycle.response_started or not cycle.more_body):
            # An answer is under way: it must not be mixed with another one. It ends, and then the connection does.
            self._deaf = True
            cycle.keep_alive = False
            if cycle.more_body:
                self.transport.abort()
            return
        self._refuse(fault)

    def _check_head(self) -> bool:
        """Whether a body follows. Refuses what RFC 9112 forbids or what only attacks need."""
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._stop(Fault(FaultKind.INVALID_REQUEST, "HTTP/1.1 and HTTP/1.0 are spoken here"))
        hosts = 0
        has_body = False
        self._length = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                has_body = True
                if version == "1.0" or value.strip().lower() != b"chunked":
                    self._stop(Fault(FaultKind.INVALID_REQUEST, "the only transfer coding taken is chunked"))
                if self.parser.should_upgrade():
                    self._stop(Fault(FaultKind.INVALID_REQUEST, "a chunked request cannot ask for an upgrade"))
            elif name == b"content-length":
                self._length = int(value)  # llhttp lets only digits pass
                has_body = self._length > 0
        if hosts != 1 and not (hosts == 0 and version == "1.0"):
            self._stop(Fault(FaultKind.INVALID_REQUEST, "a request needs exactly one Host header field"))
        if not self.url.startswith(b"/"):
            self._stop(Fault(FaultKind.INVALID_REQUEST, "the request target must be a path"))
        return has_body

    def _head_too_large(self) -> Fault:
        limit = self._limits.max_head_bytes
        what = "the request's head" if self._expects_head else "what the request's chunks hold besides its body"
        return limit_fault("max_head_bytes", limit, what, status=431)

    def _stop(self, fault: Fault) -> NoReturn:
        self._refusal = fault
        raise _Refused

    def _refuse(self, fault: Fault) -> None:
        peer = self.client[0] if self.client is not None else ""
        name = request_id(None)
        logger.info("refused: %s", fault, extra={"fields": {"event": "refused", "request_id": name, "client": peer}})
        self._deaf = True
        if self._unanswered is not None:
            self._all_lost()
        body = error_body("openai-chat", fault)
        head = [STATUS_LINE[fault.public_status]]
        head += [b"%s: %s\r\n" % field for field in self.server_state.default_headers]
        head.append(
            b"content-type: application/json\r\nx-should-retry: false\r\nconnection: close\r\n"
            b"x-request-id: %s\r\ncontent-length: %d\r\n\r\n" % (name.encode(), len(body))
        )
        self.transport.write(b"".join(head) + body)
        self._linger()

    # --- time

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # the head waits for us, not for the client
            self._head_timer = self.loop.call_later(self._limits.head_s, self._head_is_late)
        elif self._begun:
            self._refusal = limit_fault("head_s", self._limits.head_s, "the time for the request's head", status=408)
            self.send_400_response("")
        else:
            self.transport.close()

    def _unset_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _linger(self) -> None:
        if self.lingering:
            return
        self.lingering = True
        self._unset_head_timer()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def _throw_away(self, size: int) -> None:
        self._linger_budget -= size
        if self._linger_budget < 0:
            self.flow.pause_reading()
