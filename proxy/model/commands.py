"""What the machine of one exchange asks of its shell. Values only; the shell carries them out in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.faults import Fault
from proxy.model.calls import CallCheck, Verdict
from proxy.model.findings import Quirk
from proxy.model.requests import Request


@dataclass(frozen=True, slots=True)
class Start:
    """Send the response head. Comes at most once, before any `Send`."""

    status: int
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send these body bytes to the client."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Check:
    """Judge these calls (a killable child does what may be costly) and answer with `Exchange.checked`."""

    jobs: tuple[CallCheck, ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed before anything of its answer was used. Either open another attempt
    (`Exchange.opened`) or end the exchange with `Exchange.abandon(fault)`. `transient`: another backend may do
    better (connect failure, 429, 5xx, a 200 that is an error, HTML or empty)."""

    fault: Fault
    transient: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the same backend once more, with this request: it tells the model what was wrong with its calls. Then go
    on with `Exchange.opened` and what follows; the first reply needs no more reading."""

    request: Request


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more of the upstream's body is needed: close that response."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The exchange is over and everything has been sent: end the response body and write `record` down once."""

    record: Record


Command = Start | Send | Check | Ask | Retry | Stop | Finish


@dataclass(slots=True)
class Record:
    """What happened in one exchange: the only source of its log line, its metrics and its inspector row.

    Times are the shell's clock in seconds; None: it never came to that.
    """

    outcome: str = "ok"  # ok | blocked | error | gone
    status: int = 0  # towards the client; 0: nothing was sent
    code: str = ""  # of the error that the client got
    verdicts: list[Verdict] = field(default_factory=list)
    quirks: list[Quirk] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)  # the markup of each call that came as text
    refused: dict[tuple[str, str], int] = field(default_factory=dict)  # (markup, rule): candidates that stayed text
    reask: str = ""  # corrected | exhausted | failed; "": the model was not asked again
    usage: dict[str, object] | None = None
    upstream_events: int = 0
    upstream_bytes: int = 0
    first_output_at: float | None = None
    hold_began_at: float | None = None
    hold_ended_at: float | None = None
    peak_held_bytes: int = 0
