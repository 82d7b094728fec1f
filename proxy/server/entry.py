"""What is written down of one request: the source of its log line and its metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from proxy.config.mask import NO_MASK, Mask
from proxy.faults import Fault, FaultKind
from proxy.model.calls import Verdict
from proxy.model.commands import Record
from proxy.server.logs import cut, harmless_id

if TYPE_CHECKING:
    from proxy.server.inspector.notes import Notes
    from proxy.server.telemetry import ExchangeSpan

INTERNAL = "internal"  # the code of a mistake of ours
NONE = "none"  # as a metric label: the request never came to have one

_MAX_COUNTS = 24
_COUNT_NAME = re.compile(r"[A-Za-z_]{1,40}")


@dataclass(slots=True)
class Entry:
    """`started` and the other times are seconds of the monotonic clock. `route` is the pattern that matched, `model`
    the client's text. `attempts` are the backends that failed before the one that answered, each with its fault.
    `decided` is false where the record's error was the last attempt's, which is already among them.
    `unread`: not all of the request's body has been read. `head_sent`: of the answer. `key`: what the client showed,
    and `mask` over what backends are sent: a backend may quote both."""

    request_id: str
    started: float
    endpoint: str = NONE
    dialect: str = NONE
    client: str = ""
    key: str = field(default="", repr=False)
    mask: Mask = NO_MASK
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
    span: ExchangeSpan | None = field(default=None, repr=False)  # None: there are no traces of it
    notes: Notes | None = field(default=None, repr=False)  # None: the inspector is off

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
            "code": cut(self.harmless(record.code), 64),
            "seconds": round(self.seconds, 4),
            "first_byte_s": _rounded(self.first_byte_s),
            "overhead_s": round(self.overhead_s, 6),
            "hold_s": _rounded(self.hold_s),
            "upstream_id": self.harmless(harmless_id(self.upstream_id.encode("latin-1"))),
            "upstream_events": record.upstream_events,
            "upstream_bytes": record.upstream_bytes,
            "verdicts": _counted(record.verdicts),
            "quirks": sorted(set(record.quirks)),
            "repairs": sorted(set(record.repairs)),
            "reask": record.reask,
            "failed": [_failed(backend, fault) for backend, fault in self.attempts],
            "usage": _counts(record.usage or {}),
        }
        return {name: value for name, value in fields.items() if value not in ("", None, [], {})}

    def harmless(self, text: str) -> str:
        """A word of the backend's without the credentials that it may have been sent."""
        return "..." if self.key and self.key in text else self.mask.over_text(text)


def _counts(usage: Mapping[str, object]) -> dict[str, int]:
    """The plain counts of a backend's usage. Their names are the backend's text: a few that look like names."""
    return {
        name: count
        for name, count in islice(usage.items(), _MAX_COUNTS)
        if isinstance(count, int) and abs(count) < 1 << 53 and _COUNT_NAME.fullmatch(name)
    }


def _counted(verdicts: Sequence[Verdict]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for verdict in verdicts:
        counts[verdict.value] = counts.get(verdict.value, 0) + 1
    return counts


def _failed(backend: str, fault: Fault) -> str:
    """The backend, the code and an error's own status; of faults whose words are always ours, those too."""
    told = f"{backend}: {fault.kind.value.code}{f' {fault.status}' if fault.status else ''}"
    if fault.kind not in (FaultKind.UNREACHABLE, FaultKind.TIMEOUT):
        return told
    return cut(f"{told}: {fault.detail.removeprefix(f'backend {backend!r} ')}")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
