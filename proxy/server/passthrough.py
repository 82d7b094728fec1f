"""Everything else under /v1: passed on unchanged to the route's backend, streamed both ways, and the list of models."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from proxy.config import Backend, Config
from proxy.faults import Fault, FaultKind, limit_fault
from proxy.model.commands import Record
from proxy.policy.upstream_faults import own_key_refused
from proxy.routing.plan import RoutePlan
from proxy.server.attempt import Attempt
from proxy.server.endpoints import (
    admit,
    allow,
    check_length,
    check_values,
    entry_of,
    find_route,
    header,
    is_encoded,
    read_body,
    too_large,
)
from proxy.server.entry import Entry
from proxy.server.guard import Downstream
from proxy.server.limits import Ticket
from proxy.server.respond import ClientGone, header_block, read_some, respond
from proxy.server.state import Service, clock
from proxy.server.upstream import Headers, Reply, request_headers, response_headers
from proxy.wire.jsondoc import NotJson, TooDeep, dump, load
from proxy.wire.jsonscan import has_more_values, member_spans

# A path goes upstream behind the backend's base URL, so it is taken only as plain segments: no dot segments, no
# encoded slashes, dots, backslashes, percent signs or control characters, which somebody might decode once more.
_PATH = re.compile(
    rb"(?:/(?!\.{1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%(?!2[eEfF5]|5[cC]|[01]|7[fF])[0-9A-Fa-f]{2})+)+/?"
)

# Where these backends have OpenAI's other paths, behind their base URL; they want the credential as OpenAI does there.
_OPENAI_PATHS = {"ollama-chat": "/v1", "gemini": "/openai"}

# What describes the body travels with it, both ways.
_REQUEST_HEADERS = frozenset(
    {"content-type", "content-length", "content-encoding", "accept", "accept-encoding", "range"}
)
_RESPONSE_HEADERS = frozenset(
    {"content-type", "content-length", "content-encoding", "content-disposition", "content-range", "accept-ranges"}
    | {"etag", "last-modified"}
)

_JSON = frozenset({b"application/json", b"text/json"})
# What HTTP libraries write by themselves, whatever the body is.
_UNTOLD = frozenset({b"", b"application/octet-stream", b"application/x-www-form-urlencoded", b"text/plain"})
_BOM = b"\xef\xbb\xbf"
_BEFORE_JSON = b" \t\r\n" + _BOM
# In lines of JSON, and in no single document: a string has no raw line end in it.
_BETWEEN_LINES = (b"}\n{", b"}\r\n{")

T = TypeVar("T")

# Asking a backend for its models must not make `GET /v1/models` hang.
MODELS_S = 5.0
MODELS_BYTES = 4 * 1024 * 1024
MODELS_VALUES = 200_000  # what 500 models with all that is said of them have, five times
MODELS = 5_000  # of one backend


class Passthrough:
    """Any other path below /v1, with any method, in both directions as it comes. Nothing is looked at but `model`.

    A JSON body that cannot be read is refused: it may name a model whose route leads to another backend.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, entry = self._service, entry_of(scope)
        config = service.config
        entry.endpoint = "passthrough"
        if scope["method"] in ("TRACE", "CONNECT"):
            raise Fault(FaultKind.INVALID_REQUEST, f"{scope['method']} is not passed on", status=405)
        path = upstream_path(scope)
        key, ticket = admit(service, config, entry, scope)
        try:
            body, model = await self._body(scope, receive, config, entry)
            plan = config.router.default if model is None else find_route(config, entry, model)
            if plan is None:
                raise Fault(FaultKind.NOT_FOUND, "no model is named, and this proxy has no route with the model *")
            entry.route = plan.label
            if isinstance(body, bytes) and model is not None:
                body = _with_model(body, model, plan.model)
            passage = _Passage(service, config, entry, ticket, scope, path, body, key, receive, send)
            await passage.run(plan)
        finally:
            ticket.leave()

    async def _body(
        self, scope: Scope, receive: Receive, config: Config, entry: Entry
    ) -> tuple[bytes | _Upload, str | None]:
        """The body, whole only where it is JSON, and the model that it names."""
        if not entry.unread:
            return b"", None
        headers: Headers = scope["headers"]
        limit = config.limits.max_request_bytes
        check_length(headers, limit)
        _check_said_once(headers)
        kind = (header(headers, b"content-type") or b"").partition(b";")[0].strip().lower()
        upload = _Upload(receive, limit, config.limits.body_s, entry)
        is_json = kind in _JSON or kind.endswith(b"+json")
        if is_json:
            body = await read_body(scope, receive, config)
            entry.unread = False
        elif not is_encoded(headers) and await upload.begins_like_json():
            body = await upload.whole()
            if kind not in _UNTOLD and any(between in body for between in _BETWEEN_LINES):
                return body, None
            check_values(body)
        else:
            return upload, None
        try:
            entry.model = _model_of(body)
        except NotJson as error:
            # Called something else, it may be a text or a binary that begins with a brace.
            if is_json or kind in _UNTOLD or isinstance(error, TooDeep) or body.startswith(_BOM):
                raise Fault(FaultKind.INVALID_JSON, f"the request body is no JSON: {error}") from None
        return body, entry.model or None


def _check_said_once(headers: Headers) -> None:
    """Raises Fault: what is looked at here must be what the backend goes by."""
    for name in (b"content-type", b"content-encoding"):
        if sum(field == name for field, _ in headers) > 1:
            raise Fault(FaultKind.INVALID_REQUEST, f"{name.decode()} is sent more than once; send it once")


def _model_of(body: bytes) -> str:
    """The model that a JSON body names, or "". Raises NotJson; Fault where parsers differ on whether it names one."""
    document = load(body) if body else None
    if not isinstance(document, dict) or "model" not in document:
        return ""
    model = document["model"]
    if isinstance(model, str) and model:
        return model
    # Of doubled keys some parsers take the first.
    if any(body[begin] == ord('"') and end - begin > len('""') for begin, end in _models(body)):
        raise Fault(FaultKind.INVALID_REQUEST, "model is given twice, and not as a name each time", param="model")
    return ""


def _models(body: bytes) -> list[tuple[int, int]]:
    """Where the values of the object's own keys `model` stand. ValueError for no object."""
    return member_spans(body.decode("latin-1"), "model")  # one character a byte


def _with_model(body: bytes, named: str, model: str) -> bytes:
    """`body`, which names the model `named`, with `model` in its place and everything else byte for byte.

    Of doubled keys some parsers take the first: each gets `model`.
    """
    if model == named and body.count(b"model") == 1 and b"\\u" not in body:
        return body
    spans = _models(body)
    if model == named and len(spans) == 1:
        return body
    source = dump(model)
    parts, at = [], 0
    for begin, end in spans:
        parts += [body[at:begin], source]
        at = end
    return b"".join((*parts, body[at:]))


class _Upload:
    """A request body that is passed on while it comes in. `fault`: why it was broken off."""

    def __init__(self, receive: Receive, limit: int, body_s: float, entry: Entry) -> None:
        self.over = asyncio.Event()
        self.fault: Fault | ClientGone | None = None
        self._receive = receive
        self._limit = limit
        self._body_s = body_s
        self._entry = entry
        self._begun: list[bytes] = []  # read ahead
        self._more = True
        self._size = 0

    async def begins_like_json(self) -> bool:
        """Whether the body opens an object. Raises Fault, ClientGone."""
        while self._more:
            self._begun.append(await self._next())
            begin = self._begun[-1].lstrip(_BEFORE_JSON)
            if begin:
                return begin.startswith(b"{")
        return False

    async def whole(self) -> bytes:
        """All of it. Raises Fault, ClientGone."""
        try:
            async with asyncio.timeout(self._body_s):
                while self._more:
                    self._begun.append(await self._next())
        except TimeoutError:
            raise limit_fault("body_s", self._body_s, "the time for the request's body", status=408) from None
        self._entry.unread = False
        return b"".join(self._begun)

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(self._body_s):
                data, self._more = await read_some(self._receive)
        except TimeoutError:
            what = "the wait for more of the request's body"
            raise limit_fault("body_s", self._body_s, what, status=408) from None
        self._size += len(data)
        if self._size > self._limit:
            raise too_large(self._limit)
        return data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for data in self._begun:
                if data:
                    yield data
            while self._more:
                if data := await self._next():
                    yield data
            self._entry.unread = False
        except (Fault, ClientGone) as fault:
            self.fault = fault
            raise
        finally:
            self.over.set()


class _Passage:
    """One request on its way to a backend, and its response on the way back."""

    def __init__(
        self,
        service: Service,
        config: Config,
        entry: Entry,
        ticket: Ticket,
        scope: Scope,
        path: str,
        body: bytes | _Upload,
        key: str | None,
        receive: Receive,
        send: Send,
    ) -> None:
        self._service = service
        self._config = config
        self._entry = entry
        self._ticket = ticket
        self._method: str = scope["method"]
        self._headers: Headers = scope["headers"]
        query: bytes = scope["query_string"]
        self._target = path + ("?" + query.decode("latin-1") if query else "")
        self._downstream: Downstream = scope["state"]["downstream"]
        self._body = body
        self._key = key
        self._receive = receive
        self._send = send

    async def run(self, plan: RoutePlan) -> None:
        """Raises Fault while nothing of the response has been sent; ClientGone."""
        task = asyncio.current_task()
        assert task is not None
        gone = False

        def leave() -> None:
            nonlocal gone
            gone = True
            task.cancel()

        if not self._downstream.watch(leave):
            raise ClientGone
        try:
            await self._run(plan)
        except asyncio.CancelledError:
            if not gone:
                raise
            task.uncancel()
            raise ClientGone from None
        finally:
            self._downstream.watch(None)
            if isinstance(self._body, _Upload):
                self._body.fault = None  # its traceback holds the upload

    async def _run(self, plan: RoutePlan) -> None:
        attempt = await self._open(plan)
        reply = attempt.reply
        assert reply is not None
        try:
            if reply.status in (401, 403) and attempt.backend.api_key.mode != "forward":
                attempt.succeeded()
                raise own_key_refused(reply.status)
            await self._relay(reply, self._config.limits_for(attempt.backend).max_reply_bytes, attempt)
        finally:
            self._downstream.watch(None)
            attempt.came_to_nothing()
            await reply.aclose()

    async def _open(self, plan: RoutePlan) -> Attempt:
        """The first backend that can be reached; a body that is passed on as it comes has one try only."""
        fault: Fault | None = None
        for name in self._service.order(plan):
            backend = self._config.backend(name)
            self._entry.backend = name
            limits = self._config.limits_for(backend)
            places = len(self._ticket.slots)
            try:
                self._service.admission.enter_backend(self._ticket, name, limits.max_streams)
            except Fault as busy:
                fault = fault or busy.with_traceback(None)  # whose frames hold this request
                continue
            attempt = Attempt(self._service, backend)
            try:
                async with asyncio.timeout(limits.first_byte_s if isinstance(self._body, bytes) else limits.total_s):
                    reply = await self._ask(backend)
            except TimeoutError:
                attempt.failed()
                fault = _timeout("first_byte_s", limits.first_byte_s, f"an answer of backend {name!r}")
            except Fault as failed:
                if isinstance(self._body, _Upload) and self._body.fault is not None:
                    raise self._body.fault from None
                attempt.failed()
                fault = failed
            else:
                attempt.answered(reply)
                self._entry.opened_at = clock()
                return attempt
            finally:
                if attempt.reply is None:
                    attempt.came_to_nothing()
                    self._ticket.leave_backend(places)
            self._entry.attempts.append((name, fault.with_traceback(None)))
            if isinstance(self._body, _Upload):
                break
        assert fault is not None
        raise fault

    async def _ask(self, backend: Backend) -> Reply:
        headers = request_headers(backend, self._headers, self._key, self._entry.request_id, _dialect(backend))
        body = self._body
        for field, value in self._headers:
            name = field.decode("latin-1")
            if name in _REQUEST_HEADERS and not (name == "content-length" and isinstance(body, bytes)):
                headers[name] = value.decode("latin-1")
        # Nothing that `ErrorReply` could not decode.
        headers["accept-encoding"] = "gzip" if "gzip" in headers["accept-encoding"].lower() else "identity"
        content = body if isinstance(body, bytes) else aiter(body)
        url = _base_url(backend) + self._target
        return await self._service.upstream.open(
            self._config, backend, url, headers.items(), content, method=self._method
        )

    async def _relay(self, reply: Reply, max_bytes: int, attempt: Attempt) -> None:
        """Status, body headers and body, as they come."""
        limits = self._config.limits_for(attempt.backend)
        entry = self._entry
        record = entry.record = Record(status=reply.status)
        length = reply.headers.get("content-length", "")
        if self._method != "HEAD" and length.isdigit() and int(length) > max_bytes:
            raise limit_fault("max_reply_bytes", max_bytes, "the backend's reply")
        extra = [field for field in reply.raw_headers if field[0].decode("latin-1") in _RESPONSE_HEADERS]
        block = header_block((), entry.request_id, [*extra, *response_headers(reply, self._config.mask)])
        entry.upstream_id = reply.headers.get("x-request-id", "")
        entry.head_sent = True
        entry.first_byte_at = clock()
        try:
            async with asyncio.timeout(limits.total_s):
                await self._send({"type": "http.response.start", "status": reply.status, "headers": block})
                while data := await _within(limits.idle_s, "idle_s", "the next bytes", reply.read()):
                    attempt.succeeded()
                    record.upstream_bytes += len(data)
                    if record.upstream_bytes > max_bytes:
                        raise limit_fault("max_reply_bytes", max_bytes, "the backend's reply")
                    if not await self._sent(data, limits.send_s):
                        record.outcome = "gone"
                        record.code = "send_s"
                        self._downstream.abort()
                        return
        except (Fault, TimeoutError) as fault:
            # Its status and a part of it are with the client: a broken connection is the only sign that is left.
            record.outcome = "error"
            record.code = fault.public_code if isinstance(fault, Fault) else FaultKind.TIMEOUT.value.code
            self._downstream.abort()
            return
        attempt.succeeded()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _sent(self, data: bytes, seconds: float) -> bool:
        """Whether the client took it within that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            return False
        return True


class Models:
    """`GET /v1/models`: what the routes name, and what their backends list as far as a route leads there."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, entry = self._service, entry_of(scope)
        config = service.config
        entry.endpoint = "models"
        allow(scope, "GET", "HEAD")
        key, ticket = admit(service, config, entry, scope)
        try:
            names = dict.fromkeys(name for route in config.router.routes for name in route.backends)
            listed = await asyncio.gather(*(self._listed(config, config.backend(name), scope, key) for name in names))
        finally:
            ticket.leave()
        models = self._merged(config, dict(zip(names, listed, strict=True)))
        await respond(send, entry, 200, dump({"object": "list", "data": models}))

    def _merged(self, config: Config, listed: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        models = {name: self._entry(name, "wholecall") for name in config.router.plain_models}
        for route in config.router.routes:
            for backend in () if route.model else route.backends:
                for model in listed[backend]:
                    name = route.strip_prefix + model["id"]
                    plan = config.router.match(name)
                    if plan is not None and plan.route is route:
                        models[name] = {**self._entry(name, backend), **model, "id": name}
        return list(models.values())

    def _entry(self, name: str, owner: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._service.started, "owned_by": owner}

    async def _listed(self, config: Config, backend: Backend, scope: Scope, key: str | None) -> list[dict[str, Any]]:
        """The backend's own list; nothing where it has none, or fails."""
        headers = request_headers(backend, scope["headers"], key, entry_of(scope).request_id, _dialect(backend))
        if backend.dialect == "anthropic-messages":
            headers.setdefault("anthropic-version", "2023-06-01")
        try:
            async with asyncio.timeout(MODELS_S):
                reply = await self._service.upstream.open(
                    config, backend, f"{_base_url(backend)}/models", headers.items(), b"", method="GET"
                )
                try:
                    text = bytearray()
                    while reply.status == 200 and len(text) <= MODELS_BYTES and (piece := await reply.read()):
                        text += piece
                finally:
                    await reply.aclose()
            if has_more_values(bytes(text), MODELS_VALUES):
                return []
            document = load(bytes(text))
        except (Fault, TimeoutError, NotJson):
            return []
        data = document.get("data") if isinstance(document, dict) else None
        entries = data if isinstance(data, list) else []
        return [entry for entry in entries[:MODELS] if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _base_url(backend: Backend) -> str:
    return backend.base_url + _OPENAI_PATHS.get(backend.dialect, "")


def _dialect(backend: Backend) -> str:
    return "openai-chat" if backend.dialect in _OPENAI_PATHS else backend.dialect


def upstream_path(scope: Scope) -> str:
    """What follows /v1 in the request's path. Raises Fault for one that could lead elsewhere at the backend."""
    raw: bytes = scope["raw_path"]
    path = raw.removeprefix(b"/v1")
    if path == raw or not _PATH.fullmatch(path):
        raise Fault(
            FaultKind.INVALID_REQUEST,
            "this path is not passed on: no empty or dot segments, no encoded slashes, dots or percent signs",
        )
    return path.decode("ascii")


def _timeout(key: str, seconds: float, what: str) -> Fault:
    return Fault(FaultKind.TIMEOUT, f"{what} took more than {seconds:g} s ({key})")


async def _within(seconds: float, key: str, what: str, work: Awaitable[T]) -> T:
    """Wait for `work` no longer than that. Raises Fault (TIMEOUT)."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise _timeout(key, seconds, what) from None
