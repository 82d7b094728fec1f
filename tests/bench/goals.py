"""What the proxy is to cost, in the terms of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Metric = Literal["cpu_s_per_1000_events", "requests_per_s", "event_p50_ms", "event_p99_ms"]
_SAID: dict[str, str] = {
    "cpu_s_per_1000_events": "CPU per event",
    "requests_per_s": "requests/s",
    "event_p50_ms": "median latency of an event, ms",
    "event_p99_ms": "99th percentile, ms",
}


@dataclass(frozen=True, slots=True)
class Goal:
    """`how`: the metric over the peer's, less the peer's, or as it is (then there is no peer)."""

    workload: str
    concurrency: int
    metric: Metric
    how: Literal["ratio", "difference", "value"]
    peer: str
    most: float | None = None
    least: float | None = None

    @property
    def said(self) -> str:
        beside = {"ratio": f" / {self.peer}", "difference": f" above {self.peer}", "value": ""}[self.how]
        return f"{_SAID[self.metric]}{beside}"

    @property
    def bound(self) -> str:
        return f"at most {self.most:g}" if self.most is not None else f"at least {self.least:g}"

    def is_met(self, value: float) -> bool:
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)


def _cpu(workload: str, concurrency: int, most: float) -> Goal:
    return Goal(workload, concurrency, "cpu_s_per_1000_events", "ratio", "nginx", most=most)


def _speed(workload: str, peer: str, least: float) -> Goal:
    return Goal(workload, 16, "requests_per_s", "ratio", peer, least=least)


GOALS = (
    _cpu("text-200", 16, 2),
    _cpu("text-200", 64, 3),
    _cpu("tools-2x40", 16, 2),
    _cpu("tools-2x40", 64, 2),
    _cpu("long-2000", 16, 1.5),
    _cpu("paced", 64, 3.3),
    _cpu("paced", 256, 3.3),
    Goal("paced", 64, "event_p50_ms", "difference", "nginx", most=0.3),
    Goal("paced", 256, "event_p50_ms", "difference", "nginx", most=0.3),
    Goal("paced", 64, "event_p99_ms", "value", "", most=4),
    Goal("paced", 256, "event_p99_ms", "value", "", most=4),
    _speed("text-200", "litellm", 50),
    _speed("tools-2x40", "litellm", 50),
    _speed("text-200", "portkey", 2),
    _speed("tools-2x40", "portkey", 2),
    _speed("nonstream", "naive", 4),
)
