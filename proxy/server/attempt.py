"""One backend's turn within an exchange, and what its circuit breaker is told of it: exactly one thing."""

from __future__ import annotations

from collections.abc import Callable

from proxy.config import Backend
from proxy.routing.health import Breaker
from proxy.server.state import Service, clock
from proxy.server.upstream import Reply, retry_after_s


class Attempt:
    """The first of `succeeded`, `failed` and `came_to_nothing` counts; the last one is always called at the end."""

    def __init__(self, service: Service, backend: Backend) -> None:
        self.backend = backend
        self.reply: Reply | None = None
        self._service = service
        self._breaker: Breaker | None = service.breaker(backend.name)
        self._breaker.begin(clock())  # refused where every backend is down: then this one is tried all the same

    def answered(self, reply: Reply) -> None:
        """The head is here. 429 and 5xx are the backend's failure; success is told when it has gone on to answer."""
        self.reply = reply
        if reply.status == 429 or reply.status >= 500:
            self.failed(retry_after_s(reply))

    def succeeded(self) -> None:
        self._tell(lambda breaker: breaker.record_success(clock()))

    def failed(self, retry_after_s: float | None = None) -> None:
        self._tell(lambda breaker: breaker.record_failure(clock(), retry_after_s))

    def came_to_nothing(self) -> None:
        """The attempt ended without saying anything about the backend, or has said it already."""
        self._tell(Breaker.release)

    def _tell(self, how: Callable[[Breaker], None]) -> None:
        if self._breaker is not None:
            how(self._breaker)
            self._breaker = None
            self._service.show_health(self.backend.name)
