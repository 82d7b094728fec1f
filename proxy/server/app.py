"""Paths to endpoints; a request id for each request; the last line of error handling."""

from __future__ import annotations

import logging

from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.faults import Fault, FaultKind
from proxy.model.commands import Record
from proxy.server.endpoints import Completions, Exposition, Health, header, not_found
from proxy.server.entry import INTERNAL, NONE, Entry
from proxy.server.guard import HeadLimits
from proxy.server.inspector.web import Inspect
from proxy.server.logs import request_id
from proxy.server.passthrough import Models, Passthrough
from proxy.server.respond import ClientGone, respond_fault
from proxy.server.state import Service, clock

COMPLETIONS = {
    "openai-chat": "/chat/completions",
    "openai-responses": "/responses",
    "anthropic-messages": "/messages",
}

logger = logging.getLogger("wholecall")


class App:
    """The ASGI application; it needs the guard below it. `api`: the paths of /v1; `admin`: metrics, health,
    inspector; at least one of them."""

    def __init__(self, service: Service, *, api: bool, admin: bool) -> None:
        self._service = service
        routes: list[BaseRoute] = []
        self._completions: dict[str, ASGIApp] = {}  # by path: the router takes longer than uvicorn does for a request
        if api:
            for dialect, path in COMPLETIONS.items():
                self._completions[path] = self._completions[f"/v1{path}"] = Completions(service, dialect)
            models = Models(service)
            routes += [
                Route("/v1/models", models),
                Route("/models", models),
                Route("/v1/{rest:path}", Passthrough(service)),
            ]
        if admin:
            routes += [
                Route("/metrics", Exposition(service)),
                Route("/healthz", Health(service, ready=False)),
                Route("/readyz", Health(service, ready=True)),
                Route("/inspect", inspect := Inspect(service)),
                Route("/inspect/{rest:path}", inspect),
            ]
        self._router: ASGIApp = Router(routes, redirect_slashes=False, default=not_found)

    @property
    def head_limits(self) -> HeadLimits:
        """For the guard; read anew for each connection."""
        limits = self._service.config.limits
        return HeadLimits(limits.max_head_bytes, limits.max_headers, limits.head_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        entry = Entry(request_id(header(headers, b"x-request-id")), clock())
        length = header(headers, b"content-length")
        entry.unread = header(headers, b"transfer-encoding") is not None or (length is not None and length != b"0")
        scope["state"]["entry"] = entry
        try:
            await (self._completions.get(scope["path"]) or self._router)(scope, receive, send)
        except Fault as fault:
            await respond_fault(send, entry, fault)
            fault.__traceback__ = None  # its frames may hold it: all would wait for the garbage collector
        except ClientGone:
            entry.record = Record(outcome="gone", status=entry.record.status)
        except Exception:  # a mistake of ours: a trace for us, nothing internal for the client
            logger.exception(
                "an exchange failed by a mistake in the proxy", extra={"fields": {"request_id": entry.request_id}}
            )
            await self._apologise(scope, send, entry)
        finally:
            del scope["state"]["downstream"]  # it refers to this scope: nothing waits for the garbage collector
            if entry.endpoint != NONE or entry.record.outcome != "ok":
                self._service.write_down(entry)

    async def _apologise(self, scope: Scope, send: Send, entry: Entry) -> None:
        fault = Fault(FaultKind.UPSTREAM_ERROR, "the proxy failed; its log has the reason", code=INTERNAL, status=500)
        if entry.head_sent:
            entry.record = Record(outcome="error", status=entry.record.status, code=INTERNAL)
            scope["state"]["downstream"].abort()
        else:
            await respond_fault(send, entry, fault)
