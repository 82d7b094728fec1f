"""What is written down of one request: the source of its log line and its metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from proxy.faults import Fault, FaultKind
from proxy.model.commands import Record
from proxy.server.logs import cut

INTERNAL = "internal"  # the code of a mistake of ours
NONE = "none"  # as a metric label: the request never came to have one


@dataclass(slots=True)
class Entry:
    """`started` and the other times are seconds of the monotonic clock. `route` is the pattern that matched, `model`
    the client's text. `attempts` are the backends that failed before the one that answered, each with its fault.
    `decided` is false where the record's error was the last attempt's, which is already among them.
    `unread`: not all of the request's body has been read. `head_sent`: of the answer."""

    request_id: str
    started: float
    endpoint: str = NONE
    dialect: str = NONE
    client: str = ""
    route: str = NONE
    backend: str = NONE
    model: str = ""
    stream: bool = False
    attempts: list[tuple[str, Fault]] = field(default_factory=list)
    decided: bool = True
    head_sent: bool = False
    unread: bool = False
    upstream_id: str = ""
    opened_at: float | None = None
    first_byte_at: float | None = None
    ended_at: float = 0.0
    overhead_s: float = 0.0
    record: Record = field(default_factory=Record)

    @property
    def seconds(self) -> float:
        return self.ended_at - self.started

    @property
    def first_byte_s(self) -> float | None:
        return None if self.first_byte_at is None else self.first_byte_at - self.started

    @property
    def hold_s(self) -> float | None:
        began, ended = self.record.hold_began_at, self.record.hold_ended_at
        return None if began is None or ended is None else max(0.0, ended - began)

    def log_fields(self) -> dict[str, object]:
        """One log record. No text of the conversation, no credential; empty fields are left out."""
        record = self.record
        fields: dict[str, object] = {
            "event": "exchange",
            "request_id": self.request_id,
            "client": self.client,
            "endpoint": self.endpoint,
            "route": self.route,
            "backend": self.backend,
            "model": cut(self.model, 128),
            "stream": self.stream,
            "status": record.status,
            "outcome": record.outcome,
            "code": cut(record.code, 64),
            "seconds": round(self.seconds, 4),
            "first_byte_s": _rounded(self.first_byte_s),
            "overhead_s": round(self.overhead_s, 6),
            "hold_s": _rounded(self.hold_s),
            "upstream_id": self.upstream_id,
            "upstream_events": record.upstream_events,
            "upstream_bytes": record.upstream_bytes,
            "verdicts": dict(Counter(verdict.value for verdict in record.verdicts)),
            "quirks": sorted(set(record.quirks)),
            "repairs": sorted(set(record.repairs)),
            "reask": record.reask,
            "failed": [_failed(backend, fault) for backend, fault in self.attempts],
            "usage": {name: count for name, count in (record.usage or {}).items() if isinstance(count, int)},
        }
        return {name: value for name, value in fields.items() if value not in ("", None, [], {})}


def _failed(backend: str, fault: Fault) -> str:
    """The backend and the code; of faults whose words are always ours, those too."""
    told = f"{backend}: {fault.kind.value.code}"
    if fault.kind not in (FaultKind.UNREACHABLE, FaultKind.TIMEOUT):
        return told
    return cut(f"{told}: {fault.detail.removeprefix(f'backend {backend!r} ')}")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
