"""The HTTP client towards backends: httpx requests on the aiohttp transport.

httpx's own transport leaks pool slots when requests are cancelled, and costs several times the CPU. An `AsyncClient`
is left out on purpose: it keeps cookies for everybody, follows its own header defaults and reads proxies from the
environment. Nothing here decompresses: bodies come as the raw bytes that were sent, cut as they came.
"""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from types import SimpleNamespace
from uuid import UUID

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from httpx_aiohttp.transport import AiohttpResponseStream

from proxy import __version__
from proxy.config import Backend, Config
from proxy.config.mask import Mask, MaskedPieces
from proxy.faults import Fault, FaultKind
from proxy.wire.encoding import Inflater, inflater

# Idle connections are dropped before the backend drops them: uvicorn, under vLLM and many others, waits 5 s, and a
# request that meets a connection being closed is lost.
KEEPALIVE_EXPIRY_S = 4.0
# How much of a body is thrown away, and for how long, to give its connection back in place of closing it.
DRAIN_BYTES = 65536
DRAIN_S = 0.1

Headers = Sequence[tuple[bytes, bytes]]  # as ASGI has them: lower-case names

_VALUE = re.compile(rb"[\t\x20-\x7e]*")

# What of a backend's response reaches the client besides what the core says. Everything else stays: cookies,
# connection headers, whatever names the backend's machines.
_RESPONSE_HEADERS = frozenset({"retry-after", "retry-after-ms", "x-should-retry"})
_RESPONSE_PREFIXES = ("x-ratelimit-", "ratelimit-", "openai-", "anthropic-")

_reused: ContextVar[bool] = ContextVar("reused", default=False)

# aiohttp's exceptions in our words, the most particular first. httpx-aiohttp has a table of its own, which calls a
# refused connection a ConnectTimeout; it is only looked through (`__cause__`).
_FAULTS: tuple[tuple[type[BaseException], FaultKind, str], ...] = (
    (aiohttp.ClientConnectorCertificateError, FaultKind.UNREACHABLE, "has a TLS certificate that is not trusted"),
    (aiohttp.ClientSSLError, FaultKind.UNREACHABLE, "cannot be reached: the TLS handshake failed"),
    (aiohttp.ClientConnectorDNSError, FaultKind.UNREACHABLE, "cannot be reached: its host name does not resolve"),
    (aiohttp.ClientConnectorError, FaultKind.UNREACHABLE, "cannot be reached: {why}"),
    (aiohttp.ConnectionTimeoutError, FaultKind.TIMEOUT, "took no connection within {connect_s:g} s (connect_s)"),
    (aiohttp.ClientPayloadError, FaultKind.STREAM_CUT, "broke the connection in the middle of its reply"),
    (aiohttp.ClientResponseError, FaultKind.BAD_BODY, "sent an answer that is no valid HTTP"),
    (aiohttp.ServerDisconnectedError, FaultKind.UNREACHABLE, "closed the connection before it answered"),
    (aiohttp.ClientOSError, FaultKind.UNREACHABLE, "broke the connection before it answered"),
    (aiohttp.ClientError, FaultKind.UNREACHABLE, "cannot be reached"),
    (httpx.InvalidURL, FaultKind.INVALID_REQUEST, "cannot be asked for this path"),
    (OSError, FaultKind.UNREACHABLE, "broke the connection"),
)

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


def fault_of(error: BaseException, backend: str, *, connect_s: float | None) -> Fault:
    """The Fault for what the transport raised; what is not in the table is a mistake of ours and is raised again.
    `connect_s`: None where the response head was already here."""
    cause = error.__cause__ if isinstance(error, httpx.HTTPError) and error.__cause__ is not None else error
    for kind_of_error, kind, what in _FAULTS:
        if isinstance(cause, kind_of_error):
            if connect_s is None:
                kind, what = FaultKind.STREAM_CUT, "broke the connection in the middle of its reply"
            number = cause.errno if isinstance(cause, OSError) else None
            why = _REASONS.get(number or 0, "no connection could be made")
            return Fault(kind, f"backend {backend!r} {what.format(why=why, connect_s=connect_s)}")
    raise error


class Reply:
    """One response whose body is being read. Close it, whatever happens.

    Reads aiohttp's own stream, since httpx-aiohttp's loses two things: broken chunked framing in the middle of a body
    leaves a reader that waits waiting for ever, and where the backend resets or closes too early, what had arrived
    before is dropped (aiohttp 3.14.5).
    """

    __slots__ = ("_backend", "_closed", "_content", "_stream", "headers", "raw_headers", "status")

    def __init__(self, backend: str, response: httpx.Response) -> None:
        stream = response.stream
        assert isinstance(stream, AiohttpResponseStream)
        answer = stream._aiohttp_response
        self._backend = backend
        self._stream = stream
        self._content = answer.content
        protocol = answer.connection.protocol if answer.connection is not None else None
        self._closed = protocol.closed if protocol is not None else None
        if self._closed is not None:
            self._closed.add_done_callback(self._on_closed)
        self.status = response.status_code
        self.raw_headers: Headers = [(name.lower(), value) for name, value in response.headers.raw]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.raw_headers}

    async def read(self) -> bytes:
        """The next bytes of the body, as they came; b"" at its end. Raises Fault (STREAM_CUT).

        May be cancelled and called again: nothing is lost.
        """
        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            self._content.set_exception(None)  # type: ignore[arg-type]  # else it gives out nothing more
            rest = self._content.read_nowait(-1)
            self._content.set_exception(error)
            if rest:
                return rest
            raise fault_of(error, self._backend, connect_s=None) from error

    def _on_closed(self, closed: asyncio.Future[None]) -> None:
        if not closed.cancelled():
            closed.exception()  # seen: asyncio would log it
        if self._content.exception() is None and not self._content.is_eof():
            self._content.set_exception(aiohttp.ClientPayloadError("the connection was closed inside the body"))

    async def drain(self) -> None:
        """Read what little may be left of a body that is over, so that its connection can be used again."""
        left = DRAIN_BYTES
        try:
            async with asyncio.timeout(DRAIN_S):
                while left > 0 and (data := await self.read()):
                    left -= len(data)
        except (TimeoutError, Fault):
            return

    async def aclose(self) -> None:
        """Give the connection back where the body has been read whole, else close it."""
        if self._closed is not None:
            self._closed.remove_done_callback(self._on_closed)  # the connection may outlive many replies
        await self._stream.aclose()


class ErrorReply(Reply):
    """A reply whose status is no success, without the configured credentials, which a backend may quote."""

    __slots__ = ("_ended", "_inflater", "_masked")

    def __init__(self, backend: str, response: httpx.Response, mask: Mask) -> None:
        super().__init__(backend, response)
        self.raw_headers = [(name, mask.over(value)) for name, value in self.raw_headers]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.raw_headers}
        self._masked = MaskedPieces(mask)
        self._inflater: Inflater | None = None
        self._ended = False

    def decode(self, max_bytes: int) -> None:
        """Undo its coding from now on: what is compressed cannot be looked through. `max_bytes`: `max_reply_bytes`.

        Raises Fault (BAD_ENCODING) where it cannot be undone; `read` too, and where there is more.
        """
        self._inflater = inflater(self.headers.get("content-encoding", ""), max_bytes)
        if self._inflater is not None:
            gone = ("content-encoding", "content-length")
            self.raw_headers = [field for field in self.raw_headers if field[0].decode("latin-1") not in gone]
            self.headers = {name: value for name, value in self.headers.items() if name not in gone}

    async def read(self) -> bytes:
        while not self._ended:
            try:
                data = await super().read()
            except Fault:
                if rest := self._masked.rest():
                    return rest
                raise
            if not data:
                self._ended = True
                return self._masked.rest()
            if self._inflater is not None:
                data = b"".join(self._inflater.feed(data))
            if masked := self._masked.feed(data):
                return masked
        return b""


class Upstream:
    """Connections to all backends. Without a limit of its own: `limits.max_streams` is counted elsewhere."""

    def __init__(self) -> None:
        self._plain: AiohttpTransport | None = None
        self._tls: AiohttpTransport | None = None

    async def open(
        self,
        config: Config,
        backend: Backend,
        url: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | AsyncIterator[bytes],
        *,
        method: str = "POST",
    ) -> Reply:
        """Send a request and wait for the response's head, status 200 to 599. Raises Fault.

        A request that met a kept connection just as the backend closed it is sent once more.
        """
        limits = config.limits_for(backend)
        try:
            request = httpx.Request(
                method,
                _parsed(url),
                headers=list(headers),
                content=body,
                extensions={"timeout": {"connect": limits.connect_s, "pool": limits.connect_s}},
            )
        except httpx.InvalidURL as error:
            raise fault_of(error, backend.name, connect_s=limits.connect_s) from error
        transport = self._transport(url)
        again = isinstance(body, bytes) and method == "POST"  # aiohttp itself sends idempotent ones again
        while True:
            _reused.set(False)
            try:
                response = await transport.handle_async_request(request)
                break
            except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
                cause = error.__cause__ or error
                died = isinstance(cause, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
                if again and died and _reused.get():
                    again = False
                    continue
                raise fault_of(error, backend.name, connect_s=limits.connect_s) from error
        is_error = response.status_code >= 300
        reply = ErrorReply(backend.name, response, config.mask) if is_error else Reply(backend.name, response)
        try:
            if not 200 <= reply.status <= 599:
                what = f"backend {backend.name!r} answered with status {reply.status}: none that can be passed on"
                raise Fault(FaultKind.BAD_BODY, what)
            if isinstance(reply, ErrorReply):
                reply.decode(limits.max_reply_bytes)
        except Fault:
            await reply.aclose()
            raise
        return reply

    async def aclose(self) -> None:
        for transport in (self._plain, self._tls):
            if transport is not None:
                await transport.aclose()

    def _transport(self, url: str) -> AiohttpTransport:
        if url.startswith("https:"):
            if self._tls is None:
                # Reads certifi's list, or the file that SSL_CERT_FILE names; some 15 ms, so only where it is needed.
                self._tls = _new_transport(httpx.create_ssl_context(verify=True, trust_env=True))
            return self._tls
        if self._plain is None:
            self._plain = _new_transport(None)
        return self._plain


@lru_cache(maxsize=256)  # parsing one takes longer than all else that httpx does for a request
def _parsed(url: str) -> httpx.URL:
    return httpx.URL(url)


def _new_transport(context: ssl.SSLContext | None) -> AiohttpTransport:
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=KEEPALIVE_EXPIRY_S,
            ssl=True if context is None else context,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            trace_configs=[trace],
        )

    # `verify` only keeps the transport from loading certificates that the session above does not use.
    verify = context if context is not None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return AiohttpTransport(verify=verify, trust_env=False, client=session)


async def _note_reuse(
    _session: aiohttp.ClientSession, _context: SimpleNamespace, _params: aiohttp.TraceConnectionReuseconnParams
) -> None:
    _reused.set(True)


# --- headers ---------------------------------------------------------------------------------------------------


# How a dialect wants the credential; the others take a bearer token.
_KEY_HEADERS = {"anthropic-messages": ("x-api-key", "{}"), "gemini": ("x-goog-api-key", "{}")}


def request_headers(
    backend: Backend, client_headers: Headers, client_key: str | None, request_id: str, dialect: str
) -> dict[str, str]:
    """What goes upstream with every request: by allow-list, credentials only as configured.

    `client_key` is sent where the backend's `api_key` is "forward". `dialect`: of this request, for the form of the
    credential.
    """
    headers = {
        "accept-encoding": "identity",
        "user-agent": f"wholecall/{__version__}",
    }
    if _is_uuid(request_id):
        headers["x-request-id"] = request_id
    for name_bytes, value in client_headers:
        name = name_bytes.decode("latin-1")
        if name not in headers and backend.forwards(name) and _VALUE.fullmatch(value):
            headers[name] = value.decode("ascii")
    for name, secret in backend.headers.items():
        headers[name] = secret.reveal()
    key = client_key if backend.api_key.mode == "forward" else backend.api_key.secret.reveal()
    if key:
        name, form = _KEY_HEADERS.get(dialect, ("authorization", "Bearer {}"))
        headers[name] = form.format(key)
    return headers


def _is_uuid(text: str) -> bool:
    """llama-cpp-python's server answers 400 with an empty body to any other request id."""
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def response_headers(reply: Reply, mask: Mask) -> list[tuple[bytes, bytes]]:
    """The backend's response headers that the client gets besides the core's, with `mask` over them."""
    kept = []
    for name_bytes, value in reply.raw_headers:
        name = name_bytes.decode("latin-1")
        if (name in _RESPONSE_HEADERS or name.startswith(_RESPONSE_PREFIXES)) and _VALUE.fullmatch(value):
            kept.append((name_bytes, mask.over(value)))
    return kept
