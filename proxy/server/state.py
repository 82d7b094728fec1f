"""What one configuration means at run time, and what outlives it when the file is loaded anew."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

from proxy.config import Backend, Config
from proxy.routing.health import Breaker
from proxy.routing.plan import RoutePlan, order
from proxy.server import logs
from proxy.server.checker import Checker
from proxy.server.entry import Entry
from proxy.server.limits import Admission
from proxy.server.metrics import Metrics
from proxy.server.upstream import Upstream

if TYPE_CHECKING:
    from proxy.server.inspector.ring import Ring
    from proxy.server.pump import Pump
    from proxy.server.telemetry import Tracing

clock = time.monotonic
logger = logging.getLogger("wholecall")


class Service:
    """Belongs to one event loop. `reload` replaces `config` as a whole; an exchange keeps the one it began with."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.draining = False
        self.started = int(time.time())  # unix seconds
        self.admission = Admission()
        self.upstream = Upstream()
        self.checker = Checker(max_schema_bytes=config.limits.max_schema_bytes)
        self.metrics = Metrics()
        self.tracing: Tracing | None = None
        if config.telemetry.traces:
            from proxy.server.telemetry import Tracing  # an extra, which need not be there

            self.tracing = Tracing(arguments=config.telemetry.arguments)
        self.inspector = _ring(config)
        self.pumps: set[Pump] = set()
        self._breakers: dict[str, Breaker] = {}
        self._down: set[str] = set()  # as the log has it
        self._show_configuration()

    async def start(self) -> None:
        """Start ahead what would otherwise start when it is first needed. Raises RuntimeError, OSError."""
        await self.checker.start()

    async def aclose(self) -> None:
        await self.upstream.aclose()
        await self.checker.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def reload(self, config: Config) -> None:
        """New exchanges see `config` from now on. Breakers and places in use carry over by name."""
        self.config = config
        if not config.inspector.enabled:
            self.inspector = None
        elif self.inspector is None:
            self.inspector = _ring(config)
        else:
            self.inspector.configure(config.inspector)
        self._show_configuration()

    def breaker(self, backend: str) -> Breaker:
        breaker = self._breakers.get(backend)
        if breaker is None:
            breaker = self._breakers[backend] = Breaker()
        return breaker

    def order(self, plan: RoutePlan) -> list[str]:
        now = clock()
        draw = random.random()  # noqa: S311 - spreads load, hides nothing
        return order(plan, draw, lambda name: self.breaker(name).is_up(now))

    def show_health(self, backend: str) -> None:
        up = self.breaker(backend).state(clock()) == "closed"
        self.metrics.backend_up(backend, up)
        if up != (backend not in self._down):
            (self._down.discard if up else self._down.add)(backend)
            told = "answers again" if up else "failed too often: it is held for down, and asked again after a while"
            logger.log(
                logging.INFO if up else logging.WARNING,
                "backend %r %s",
                backend,
                told,
                extra={"fields": {"event": "backend", "backend": backend, "up": up}},
            )

    def usable(self, backend: Backend) -> bool:
        """Not known to be down."""
        return self.breaker(backend.name).is_up(clock())

    def is_ready(self) -> bool:
        return not self.draining and any(map(self.usable, self.config.backends))

    def write_down(self, entry: Entry) -> None:
        """For each request, when it is over; once is enough."""
        if entry.ended_at:
            return
        entry.ended_at = clock()
        self.metrics.record(entry)
        if entry.span is not None:
            entry.span.end(entry)
        if entry.notes is not None:
            entry.notes.finish(entry)
        logs.exchange(entry.log_fields)

    def _show_configuration(self) -> None:
        self.metrics.streams_limit(self.config.limits.max_streams)
        for backend in self.config.backends:
            self.show_health(backend.name)


def _ring(config: Config) -> Ring | None:
    """Of the inspector, where it is on; its modules are not needed where it is off."""
    if not config.inspector.enabled:
        return None
    from proxy.server.inspector.ring import Ring

    return Ring(config.inspector)
