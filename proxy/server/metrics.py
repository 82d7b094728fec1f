"""Prometheus metrics. Label values come from the configuration and from enums only, so their number is bounded.

With several workers every process writes to files of its own in one directory, which PROMETHEUS_MULTIPROC_DIR names:
it has to be set before this module is imported (prometheus_client decides on import). `lifecycle` looks after it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from proxy import __version__
from proxy.faults import FaultKind
from proxy.server.entry import INTERNAL, Entry

_M = TypeVar("_M", Counter, Gauge, Histogram)

CONTENT_TYPE = CONTENT_TYPE_LATEST
MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"

_MAX_LABEL_CHARS = 64
_LONG = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600, 1800)
_SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
_BYTES = tuple(float(4**power) for power in range(4, 13))  # 256 B to 16 MiB

# What `wholecall_upstream_errors_total` may call an error of a backend; the client's and the proxy's own are none.
_UPSTREAM_KINDS = frozenset(
    kind.value.code for kind in FaultKind if kind.value.type == "upstream_error" and kind is not FaultKind.SHUTDOWN
) | {FaultKind.LIMIT.value.code}

_OUR_CODES = frozenset({FaultKind.SHUTDOWN.value.code, INTERNAL})


class Metrics:
    """All of one process's metrics; made after a fork, not before."""

    def __init__(self) -> None:
        self._directory = os.environ.get(MULTIPROCESS_DIR)
        self._registry = registry = CollectorRegistry()
        if self._directory is None:
            ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"wholecall_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(f"wholecall_{name}", text, ("route", "backend"), buckets=tuple(buckets), registry=registry)

        self._requests = counter("requests_total", "Answered requests", "route", "backend", "dialect", "status")
        self._seconds = histogram("request_seconds", "From the request's head to the end of its answer", _LONG)
        self._first_byte = histogram("first_byte_seconds", "From the request's head to the answer's first byte", _LONG)
        self._overhead = histogram("overhead_seconds", "Of that, the proxy's own work", _SHORT)
        self._hold = histogram("hold_seconds", "How long finished tool calls waited for the reply's end", _LONG)
        self._held_bytes = histogram("held_bytes", "The most that was held back of one reply", _BYTES)
        self._streams = Gauge(
            "wholecall_streams", "Exchanges that run now", registry=registry, multiprocess_mode="livesum"
        )
        self._streams_limit = Gauge(
            "wholecall_streams_limit",
            "Exchanges that may run at once: limits.max_streams of all workers",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._calls = counter("tool_calls_total", "Judged tool calls", "route", "backend", "verdict")
        self._quirks = counter("quirks_total", "Mended departures from a clean stream", "backend", "quirk")
        self._repairs = counter("repairs_total", "Repairs of arguments", "backend", "repair")
        self._recovered = counter("recovered_total", "Calls that came as text", "backend", "format")
        self._refused = counter(
            "recovery_refused_total", "Text that looked like a call and stayed text", "backend", "format", "rule"
        )
        self._reasks = counter("reasks_total", "Replies for which the model was asked again", "backend", "outcome")
        self._errors = counter("upstream_errors_total", "Failed attempts and replies", "backend", "kind")
        self._up = Gauge(
            "wholecall_backend_up",
            "1 unless the circuit breaker holds the backend for down",
            ("backend",),
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._shown_up: dict[str, bool] = {}
        self._known: dict[tuple[Any, tuple[str, ...]], Any] = {}  # bounded as the labels' values are
        info = Gauge(
            "wholecall_build_info", "Always 1", ("version", "python"), registry=registry, multiprocess_mode="livemax"
        )
        info.labels(__version__, platform.python_version()).set(1)

    def begin(self) -> None:
        self._streams.inc()

    def end(self) -> None:
        self._streams.dec()

    def streams_limit(self, limit: int) -> None:
        self._streams_limit.set(limit)

    def backend_up(self, backend: str, is_up: bool) -> None:
        if self._shown_up.get(backend) is not is_up:
            self._shown_up[backend] = is_up
            self._up.labels(label(backend)).set(1 if is_up else 0)

    def record(self, entry: Entry) -> None:
        """Count one request that is over: everything that is measured of it, at this one place."""
        record = entry.record
        route, backend = label(entry.route), label(entry.backend)
        status = str(record.status) if 100 <= record.status <= 599 else "none"
        series, place = self._series, (route, backend)
        series(self._requests, (route, backend, entry.dialect, status)).inc()
        series(self._seconds, place).observe(entry.seconds)
        if (first_byte_s := entry.first_byte_s) is not None:
            series(self._first_byte, place).observe(first_byte_s)
        if entry.opened_at is not None:
            series(self._overhead, place).observe(entry.overhead_s)
        if (hold_s := entry.hold_s) is not None:
            series(self._hold, place).observe(hold_s)
        if record.peak_held_bytes:
            series(self._held_bytes, place).observe(record.peak_held_bytes)
        for verdict in record.verdicts:
            series(self._calls, (route, backend, verdict.value)).inc()
        for quirk in record.quirks:
            self._quirks.labels(backend, quirk.value).inc()
        for repair in record.repairs:
            self._repairs.labels(backend, label(repair)).inc()
        for name in record.recovered:
            self._recovered.labels(backend, name).inc()
        for (name, rule), count in record.refused.items():
            self._refused.labels(backend, name, rule).inc(count)
        if record.reask:
            self._reasks.labels(backend, label(record.reask)).inc()
        for failed, fault in entry.attempts:
            if fault.kind.value.code in _UPSTREAM_KINDS:  # not what cannot be asked of this backend
                self._errors.labels(label(failed), fault.kind.value.code).inc()
        is_upstreams = entry.opened_at is not None and entry.decided and record.code not in _OUR_CODES
        if record.outcome == "error" and is_upstreams:
            self._errors.labels(backend, kind_label(record.code)).inc()

    def _series(self, metric: _M, labels: tuple[str, ...]) -> _M:
        """One metric with these labels, which `labels()` takes five times as long to find."""
        key = (metric, labels)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = metric.labels(*labels)
        return found

    def render(self) -> bytes:
        """The exposition text, of all workers. Takes milliseconds: call it in a thread."""
        registry = self._registry
        if self._directory is not None:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=self._directory)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def kind_label(code: str) -> str:
    """A code as the label `kind`: a limit's code is its key, an upstream's is anybody's text, and neither is a kind."""
    if code in _UPSTREAM_KINDS:
        return code
    return FaultKind.LIMIT.value.code if code.startswith("max_") else FaultKind.UPSTREAM_ERROR.value.code


def label(text: str) -> str:
    """Valid UTF-8 of at most 64 characters: one lone surrogate would break every later scrape."""
    if text.isascii() and len(text) <= _MAX_LABEL_CHARS:
        return text
    return text[:_MAX_LABEL_CHARS].encode("utf-8", "replace").decode()
