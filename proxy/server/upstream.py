"""Requests to backends: who is asked for what with which headers, and what comes back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable

from proxy import __version__
from proxy.config import Backend, Config
from proxy.config.mask import Mask, MaskedPieces
from proxy.dialects import UpstreamRequest
from proxy.faults import Fault, FaultKind
from proxy.server.http_client import Headers, Pool, Reply, Take, joined
from proxy.wire.encoding import Doses, Inflater, inflater

__all__ = [
    "ErrorReply",
    "Headers",
    "Reply",
    "Upstream",
    "completion_headers",
    "request_headers",
    "response_headers",
    "retry_after_s",
]

# So much of a body that comes compressed is read in one turn of the event loop: the costliest takes 1 us a byte.
DOSE_BYTES = 8192

_VALUE = re.compile(rb"[\t\x20-\x7e]*")

# llama-cpp-python's server answers 400 with an empty body to any other request id.
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9A-Fa-f]{32}")

# What of a backend's response reaches the client besides what the core says. Everything else stays: cookies,
# connection headers, whatever names the backend's machines.
_RESPONSE_HEADERS = frozenset({"retry-after", "retry-after-ms", "x-should-retry"})
_RESPONSE_PREFIXES = ("x-ratelimit-", "ratelimit-", "openai-", "anthropic-")


class CompressedReply(Reply):
    """A reply in a content-encoding, given out as it came, in small doses with a turn of the event loop between them:
    what 64 KiB of a bomb become takes seconds to read, and holds 64 MiB."""

    __slots__ = ("_at", "_doses", "_read")

    def __init__(self, reply: Reply) -> None:
        assert reply._connection is not None
        super().__init__(reply._connection, reply.status, reply.raw_headers)
        self._doses = Doses(self.headers.get("content-encoding", ""), DOSE_BYTES)
        self._read = b""
        self._at = 0  # so much of it has been given out

    async def read(self, take: Take | None = None) -> bytes:
        """As of any reply, but nothing goes to `take`."""
        if self._at < len(self._read):
            await asyncio.sleep(0)
        else:
            self._read, self._at = await super().read(), 0
            if not self._read:
                return b""
        begin, self._at = self._at, self._doses.end(self._read, self._at)
        return self._read[begin : self._at]


class ErrorReply(CompressedReply):
    """A reply whose status is no success, without the configured credentials, which a backend may quote."""

    __slots__ = ("_ended", "_faults", "_inflater", "_masked")

    def __init__(self, reply: Reply, mask: Mask) -> None:
        super().__init__(reply)
        self.raw_headers = [(name, mask.over(value)) for name, value in reply.raw_headers]
        self.headers = joined(self.raw_headers)
        self._masked = MaskedPieces(mask)
        self._inflater: Inflater | None = None
        self._faults: list[Fault] = []  # behind what was read last
        self._ended = False

    def decode(self, max_bytes: int) -> None:
        """Undo its coding from now on: what is compressed cannot be looked through. Where that is not possible nothing
        of the body is read. `max_bytes`: `max_reply_bytes`, where there is more `read` raises Fault.
        """
        try:
            self._inflater = inflater(self.headers.get("content-encoding", ""), max_bytes)
        except Fault:
            self._ended = True
        if self._inflater is not None or self._ended:
            gone = ("content-encoding", "content-length")
            self.raw_headers = [field for field in self.raw_headers if field[0].decode("latin-1") not in gone]
            self.headers = {name: value for name, value in self.headers.items() if name not in gone}

    async def read(self, take: Take | None = None) -> bytes:
        """As of any reply, but nothing goes to `take`."""
        while not self._ended:
            if self._faults:
                if rest := self._masked.rest():
                    return rest
                raise self._faults.pop()
            try:
                data = await (super().read() if self._inflater is not None else Reply.read(self))
            except Fault:
                if rest := self._masked.rest():
                    return rest
                raise
            if not data and self._inflater is not None and self._inflater.cut:
                self._faults.append(Fault(FaultKind.STREAM_CUT, "the upstream's compressed body ended too early"))
                continue
            if not data:
                self._ended = True
                return self._masked.rest()
            if masked := self._masked.feed(self._decoded(data)):
                return masked
        return b""

    def _decoded(self, data: bytes) -> bytes:
        """What comes of the body's bytes, up to the fault in them."""
        if self._inflater is None:
            return data
        pieces: list[bytes] = []
        try:
            pieces.extend(self._inflater.feed(data))  # up to a fault, as a list does
        except Fault as fault:
            self._faults.append(fault)
        return b"".join(pieces)


class Upstream:
    """Connections to all backends. Without a limit of its own: `limits.max_streams` is counted elsewhere."""

    def __init__(self) -> None:
        self._pool = Pool()

    async def open(
        self,
        config: Config,
        backend: Backend,
        url: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | AsyncIterator[bytes],
        *,
        method: str = "POST",
        decodes: bool = False,
    ) -> Reply:
        """Send a request and wait for the response's head, status 200 to 599. Raises Fault, and what `body` raises.

        `decodes`: the caller undoes the body's content-encoding. A request that met a kept connection just as the
        backend closed it is sent once more.
        """
        limits = config.limits_for(backend)
        peer = f"backend {backend.name!r}"
        reply = await self._pool.send(peer, url, headers, body, connect_s=limits.connect_s, method=method)
        if 200 <= reply.status < 300:
            return CompressedReply(reply) if decodes and "content-encoding" in reply.headers else reply
        error = ErrorReply(reply, config.mask)
        try:
            if not 200 <= reply.status <= 599:
                what = f"{peer} answered with status {reply.status}: none that can be passed on"
                raise Fault(FaultKind.BAD_BODY, what)
            error.decode(limits.max_reply_bytes)
        except Fault:
            await error.aclose()
            raise
        return error

    async def aclose(self) -> None:
        await self._pool.aclose()


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
    if _UUID.fullmatch(request_id):
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


def completion_headers(
    backend: Backend,
    client_headers: Headers,
    client_key: str | None,
    request_id: str,
    asked: UpstreamRequest,
    *,
    stream: bool,
) -> dict[str, str]:
    """As `request_headers`, for a request that was written in the backend's dialect."""
    headers = request_headers(backend, client_headers, client_key, request_id, backend.dialect)
    headers.update(asked.headers)
    headers["content-type"] = "application/json"
    headers["accept"] = "text/event-stream" if stream else "application/json"
    return headers


def retry_after_s(reply: Reply) -> float | None:
    """Retry-After in seconds; its other form, a date, is rare enough to do without."""
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None


def response_headers(reply: Reply, mask: Mask) -> list[tuple[bytes, bytes]]:
    """The backend's response headers that the client gets besides the core's, with `mask` over them."""
    kept = []
    for name_bytes, value in reply.raw_headers:
        name = name_bytes.decode("latin-1")
        if (name in _RESPONSE_HEADERS or name.startswith(_RESPONSE_PREFIXES)) and _VALUE.fullmatch(value):
            kept.append((name_bytes, mask.over(value)))
    return kept
