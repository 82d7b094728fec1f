"""How many exchanges at once, and how many a minute. Pure: the clock is an argument. One worker process counts for
itself alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.faults import Fault, limit_fault

# What Retry-After says where a place may become free at any moment.
RETRY_SOON_S = 1


@dataclass(slots=True)
class Slots:
    """Places for exchanges that run at once."""

    used: int = 0

    def take(self, limit: int) -> bool:
        """Whether there was a place. `limit` 0: no limit."""
        if limit and self.used >= limit:
            return False
        self.used += 1
        return True

    def give_back(self) -> None:
        self.used -= 1


@dataclass(slots=True)
class TokenBucket:
    """At most `per_minute` requests in a minute's supply, which refills evenly; it begins full."""

    per_minute: int
    tokens: float = field(init=False)
    at: float = 0.0  # when `tokens` was true, seconds

    def __post_init__(self) -> None:
        self.tokens = float(self.per_minute)

    def take(self, now: float) -> float:
        """Take one; 0, or in how many seconds there is one."""
        rate = self.per_minute / 60
        self.tokens = min(float(self.per_minute), self.tokens + (now - self.at) * rate)
        self.at = now
        if self.tokens < 1:
            return (1 - self.tokens) / rate
        self.tokens -= 1
        return 0.0


class Admission:
    """Who may begin an exchange. Outlives a reload: running exchanges keep their places, limits are looked up anew."""

    def __init__(self) -> None:
        self._total = Slots()
        self._clients: dict[str, Slots] = {}
        self._backends: dict[str, Slots] = {}
        self._buckets: dict[str, TokenBucket] = {}

    @property
    def running(self) -> int:
        return self._total.used

    def enter(self, max_streams: int, on_leave: Callable[[], None]) -> Ticket:
        """A place among all. Raises Fault (503, Retry-After) at `max_streams`."""
        if not self._total.take(max_streams):
            raise _busy("max_streams", max_streams, "the number of exchanges at once", 503)
        return Ticket([self._total], on_leave)

    def enter_client(self, ticket: Ticket, name: str, max_streams: int) -> None:
        """A place for one more of a client's. Raises Fault (429, Retry-After) at `clients.max_streams`."""
        slots = self._clients.setdefault(name, Slots())
        if not slots.take(max_streams):
            raise _busy("clients.max_streams", max_streams, f"the number of exchanges of client {name!r} at once", 429)
        ticket.slots.append(slots)

    def enter_backend(self, ticket: Ticket, name: str, max_streams: int) -> None:
        """A place at a backend. Raises Fault (503, Retry-After) at the backend's `max_streams`."""
        slots = self._backends.setdefault(name, Slots())
        if not slots.take(max_streams):
            raise _busy("max_streams", max_streams, f"the number of exchanges at backend {name!r} at once", 503)
        ticket.slots.append(slots)

    def count_request(self, name: str, per_minute: int, now: float) -> None:
        """Raises Fault (429, Retry-After) where a client has used up its `clients.requests_per_minute`."""
        if not per_minute:
            return
        bucket = self._buckets.get(name)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = self._buckets[name] = TokenBucket(per_minute, at=now)
        wait_s = bucket.take(now)
        if wait_s:
            what = f"the number of requests of client {name!r} in a minute"
            raise _busy("clients.requests_per_minute", per_minute, what, 429, math.ceil(wait_s))


@dataclass(slots=True)
class Ticket:
    """The places that one exchange holds."""

    slots: list[Slots]
    on_leave: Callable[[], None]

    def leave(self) -> None:
        """Give back all; once is enough."""
        if self.slots:
            self.leave_backend(0)
            self.on_leave()

    def leave_backend(self, since: int) -> None:
        """Give back what was taken after the first `since` places: one attempt's."""
        while len(self.slots) > since:
            self.slots.pop().give_back()


def _busy(key: str, limit: int, what: str, status: int, retry_after_s: int = RETRY_SOON_S) -> Fault:
    fault = limit_fault(key, limit, what, status=status)
    fault.headers = (("retry-after", str(retry_after_s)),)
    fault.transient = True
    return fault
