"""One ASGI callable a path. No request or response objects on the way of a chat completion: they cost more than the
proxy's own work on a plain reply."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from proxy.checks.schema import unusable_schema
from proxy.config import Client, Config
from proxy.dialects import CLIENT_DIALECTS
from proxy.faults import Fault, FaultKind, limit_fault
from proxy.model.requests import Request
from proxy.routing.plan import RoutePlan
from proxy.server.auth import identify, is_rebound, presented_key
from proxy.server.entry import Entry
from proxy.server.guard import Downstream
from proxy.server.limits import Ticket
from proxy.server.metrics import CONTENT_TYPE
from proxy.server.pump import Pump
from proxy.server.respond import read_some, respond
from proxy.server.state import Service, clock
from proxy.server.upstream import Headers
from proxy.wire.jsonscan import has_more_values

# A request's tool schemas together, and their number: fixed. One schema's size is `max_schema_bytes`.
MAX_SCHEMAS_BYTES = 1_048_576
MAX_TOOLS = 512
# The JSON values of a request's body: fixed. One takes up to 100 bytes in memory, and three of its body's.
MAX_REQUEST_VALUES = 1_000_000


def header(headers: Headers, name: bytes) -> bytes | None:
    for field, value in headers:
        if field == name:
            return value
    return None


def entry_of(scope: Scope) -> Entry:
    entry: Entry = scope["state"]["entry"]
    return entry


def allow(scope: Scope, *methods: str) -> None:
    """Raises Fault (405) for another method."""
    if scope["method"] not in methods:
        fault = Fault(FaultKind.INVALID_REQUEST, f"{scope['path']} takes {' or '.join(methods)}", status=405)
        fault.headers = (("allow", ", ".join(methods)),)
        raise fault


def refuse_rebound(config: Config, scope: Scope) -> None:
    """Raises Fault (403)."""
    if is_rebound(config.listen.host, header(scope["headers"], b"host") or b"", config.listen.hosts):
        what = "the proxy listens on a local address, and Host is a public name: ask for localhost or the address, or "
        what += "add the name to listen.hosts"
        raise Fault(FaultKind.FOREIGN_HOST, what)


def admit(service: Service, config: Config, entry: Entry, scope: Scope) -> tuple[str | None, Ticket]:
    """The key that the client showed, and a place for its exchange. Raises Fault (401, 403, 429, 503)."""
    headers: Headers = scope["headers"]
    key = presented_key(headers)
    entry.key, entry.mask = key or "", config.mask
    client: Client | None = identify(config, key)
    if client is not None:
        entry.client = client.name
        service.admission.count_request(client.name, client.requests_per_minute, clock())
    elif _is_of_other_page(headers):  # browsers let any page send a POST, though not read its answer
        what = (
            "without clients' keys this proxy takes no requests from pages of other sites; ask it from the page's own "
        )
        what += "server, or configure [[clients]]"
        raise Fault(FaultKind.FOREIGN_PAGE, what)
    else:
        refuse_rebound(config, scope)
    ticket = service.admission.enter(config.limits.max_streams, service.metrics.end)
    service.metrics.begin()
    if client is not None:
        try:
            service.admission.enter_client(ticket, client.name, client.max_streams)
        except Fault:
            ticket.leave()
            raise
    return key, ticket


def _is_of_other_page(headers: Headers) -> bool:
    """Whether a page of another site makes the request. Where the proxy is reached by plain HTTP and not as localhost,
    browsers only tell the page's origin."""
    site, origin = header(headers, b"sec-fetch-site"), header(headers, b"origin")
    if site is not None or origin is None:
        return site == b"cross-site"
    return origin.lower().partition(b":")[0] in (b"http", b"https", b"null") and not is_own_origin(headers, origin)


def is_own_origin(headers: Headers, origin: bytes) -> bool:
    """Whether the page was loaded from where its request goes; the scheme, which a front may have changed, aside."""
    return origin.lower().partition(b"://")[2] == (header(headers, b"host") or b"").lower()


def find_route(config: Config, entry: Entry, model: str) -> RoutePlan:
    """Raises Fault (404) for a model that no route has."""
    plan = config.router.match(model)
    if plan is None:
        raise Fault(
            FaultKind.MODEL_NOT_FOUND,
            f"no route of this proxy has a model {model[:128]!r}; GET /v1/models lists them",
            param="model",
        )
    entry.route = plan.label
    return plan


async def read_body(scope: Scope, receive: Receive, config: Config) -> bytes:
    """The request's body, which is to be JSON. Raises Fault: `max_request_bytes` or `max_request_values` (413),
    `body_s` (408), compressed (415); ClientGone."""
    body = await _whole_body(scope, receive, config)
    check_values(body)
    return body


async def _whole_body(scope: Scope, receive: Receive, config: Config) -> bytes:
    headers: Headers = scope["headers"]
    check_encoding(headers)
    limit = config.limits.max_request_bytes
    check_length(headers, limit)
    downstream: Downstream = scope["state"]["downstream"]
    if downstream.request_is_whole:  # as most are by now: there is nothing to wait for
        body, _ = await read_some(receive)
        if len(body) > limit:
            raise too_large(limit)
        return body
    parts = []
    size = 0
    try:
        async with asyncio.timeout(config.limits.body_s):
            more = True
            while more:
                data, more = await read_some(receive)
                size += len(data)
                if size > limit:
                    raise too_large(limit)
                parts.append(data)
    except TimeoutError:
        raise limit_fault("body_s", config.limits.body_s, "the time for the request's body", status=408) from None
    return b"".join(parts)


def check_values(body: bytes) -> None:
    """Raises Fault (`max_request_values`): a body whose JSON would take memory out of proportion."""
    if has_more_values(body, MAX_REQUEST_VALUES):
        what = "the number of values (commas and opening brackets outside strings) in the request's JSON"
        raise limit_fault("max_request_values", MAX_REQUEST_VALUES, what, status=413)


def is_encoded(headers: Headers) -> bool:
    coding = header(headers, b"content-encoding")
    return coding is not None and coding.strip().lower() not in (b"", b"identity")


def check_encoding(headers: Headers) -> None:
    if is_encoded(headers):
        raise Fault(FaultKind.INVALID_REQUEST, "the request's body is compressed; send it as it is", status=415)


def check_length(headers: Headers, limit: int) -> None:
    length = header(headers, b"content-length")
    if length is not None and int(length) > limit:  # the guard lets only digits pass
        raise too_large(limit)


def too_large(limit: int) -> Fault:
    return limit_fault("max_request_bytes", limit, "the request's body", status=413)


class Completions:
    """A client dialect's own endpoint: `POST /v1/chat/completions`, `/v1/responses` or `/v1/messages`."""

    def __init__(self, service: Service, dialect: str) -> None:
        self._service = service
        self._dialect = dialect
        self._read = CLIENT_DIALECTS[dialect].read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, entry = self._service, entry_of(scope)
        config = service.config  # the one that this exchange keeps
        headers: Headers = scope["headers"]
        entry.endpoint = entry.dialect = self._dialect
        allow(scope, "POST")
        key, ticket = admit(service, config, entry, scope)
        try:
            body = await read_body(scope, receive, config)
            entry.unread = False
            began = clock()
            request = self._read(body)
            del body
            entry.model, entry.stream = request.model, request.stream
            plan = find_route(config, entry, request.model)
            await self._check_tools(request, config, plan, entry.client)
            entry.overhead_s += clock() - began
            downstream = scope["state"]["downstream"]
            await Pump(service, config, entry, ticket, request, plan, headers, key, downstream, send).run()
        finally:
            ticket.leave()

    async def _check_tools(self, request: Request, config: Config, plan: RoutePlan, client: str) -> None:
        """Raises Fault: tools that are too many or too large (413), a schema that does not compile (400, named)."""
        tools = request.tools
        if not tools:
            return
        if len(tools) > MAX_TOOLS:
            raise _too_many("max_tools", MAX_TOOLS, f"the number of tools ({len(tools)})")
        limit = config.limits.max_schema_bytes
        total = 0
        for name, tool in tools.items():
            size = len(tool.schema or b"")
            total += size
            if size > limit:
                what = f"tool {name[:128]!r}: the size of its schema ({size} bytes)"
                raise _too_many("max_schema_bytes", limit, what)
        if total > MAX_SCHEMAS_BYTES:
            what = f"the size of all tools' schemas together ({total} bytes)"
            raise _too_many("max_schemas_bytes", MAX_SCHEMAS_BYTES, what)
        backends = map(config.backend, plan.route.backends)
        if all(config.settings_for(plan.route, backend).skip_uncompilable for backend in backends):
            return
        judged = [(name, tool.schema) for name, tool in tools.items() if tool.schema is not None]
        problems = await self._service.checker.compile_problems([schema for _, schema in judged], client)
        for (name, _), problem in zip(judged, problems, strict=True):
            if problem is not None:
                raise unusable_schema(name, problem)


def _too_many(key: str, limit: int, what: str) -> Fault:
    fault = limit_fault(key, limit, what, status=413)
    fault.param = "tools"
    return fault


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise Fault(FaultKind.NOT_FOUND, "there is nothing here; the API's paths begin with /v1")


# --- about the proxy itself --------------------------------------------------------------------------------------


class Health:
    """`/healthz`: the process answers. `/readyz`: it takes requests, and a backend is not known to be down."""

    def __init__(self, service: Service, ready: bool) -> None:
        self._service = service
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allow(scope, "GET", "HEAD")
        if not self._ready or self._service.is_ready():
            await respond(send, entry_of(scope), 200, b"ok\n", "text/plain")
            return
        why = b"draining\n" if self._service.draining else b"every backend is down\n"
        await respond(send, entry_of(scope), 503, why, "text/plain")


class Exposition:
    """`/metrics`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allow(scope, "GET", "HEAD")
        refuse_rebound(self._service.config, scope)
        text = await asyncio.to_thread(self._service.metrics.render)
        await respond(send, entry_of(scope), 200, text, CONTENT_TYPE)
