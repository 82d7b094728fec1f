"""What one exchange saw: the bytes that came and went, with their times, and the calls as they were put together."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from proxy.assembly.slots import HeldCall
from proxy.config.mask import Mask
from proxy.exchange import Exchange, ExchangeSettings
from proxy.faults import Fault
from proxy.model.calls import CheckResult, JudgedCall
from proxy.model.commands import Ask, Command, Retry, Send, Start, Stop
from proxy.model.findings import Quirk
from proxy.model.requests import Request
from proxy.server.inspector.redact import cut_like
from proxy.wire.encoding import Inflater, inflater

if TYPE_CHECKING:
    from proxy.server.entry import Entry
    from proxy.server.inspector.ring import Ring

# Of an entry's bytes, bodies may take this part; the rest is left for calls and schemas.
_BODIES = 0.75
_SCHEMAS = 0.125  # and this one the schemas of tools that were not called
_MARK = 16  # bytes that one moment costs


class Tape:
    """A body as it came or went: its bytes, and at which millisecond they were how many."""

    __slots__ = ("at_ms", "data", "ends")

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends = array("Q")
        self.at_ms = array("Q")

    def add(self, data: bytes, at_ms: int) -> int:
        """What that costs in bytes."""
        self.data += data
        if self.at_ms and self.at_ms[-1] == at_ms:
            self.ends[-1] = len(self.data)
            return len(data)
        self.ends.append(len(self.data))
        self.at_ms.append(at_ms)
        return len(data) + _MARK


@dataclass(slots=True)
class Asked:
    """One reply of a backend. `end`: `eof`, `stopped` (the core had all it wants), `reset` (it broke off, or nothing
    came), `gone` (the client left). `fault`: the code of what was wrong with the attempt."""

    backend: str
    dialect: str = ""
    status: int = 0
    content_type: str = ""
    tape: Tape = field(default_factory=Tape)
    end: str = ""
    fault: str = ""


@dataclass(slots=True)
class SeenCall:
    """A call: how it came (`fragments`; `objects`: in place of text, a JSON value), and what became of it. `verdict` ""
    where it was never judged. `turn`: which of the exchange's replies it came in."""

    turn: int
    choice: int
    index: int
    call_id: str
    name: str
    kind: str
    fragments: list[str]
    objects: list[bool]
    format: str = ""
    text: str = ""
    verdict: str = ""
    error: tuple[str, str, str] | None = None  # path, rule, message
    quirks: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    sent_index: int | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Asking:
    """Of the request, what judges calls: `tools` as (name, kind, schema); where schemas are large, only those of called
    tools."""

    tools: tuple[tuple[str, str, bytes | None], ...]
    mode: str
    names: tuple[str, ...] | None
    parallel: bool
    choices: int


@dataclass(slots=True)
class Kept:
    """A finished exchange in the ring. Times are seconds; `began` is Unix time. `cut`: something of it was too large
    and is missing. No credential is left in it."""

    number: int
    redact: bool
    began: float
    request_id: str
    client: str
    route: str
    model: str
    asked_model: str
    stream: bool
    client_dialect: str
    backend: str
    upstream_dialect: str
    status: int
    outcome: str
    code: str
    seconds: float
    first_byte_s: float | None
    hold_s: float | None
    verdicts: list[str]
    quirks: list[str]
    repairs: list[str]
    recovered: list[str]
    reask: str
    policy: dict[str, Any]
    asking: Asking
    asked: list[Asked]
    sent: Tape
    calls: list[SeenCall]
    cut: bool
    size: int = 0


class Notes:
    """Taken down while an exchange runs. What it holds counts in the ring's bytes from the beginning."""

    def __init__(self, ring: Ring, asked_model: str, began: float) -> None:
        self._ring = ring
        self._began = began
        self._asked_model = asked_model
        self._limit = ring.entry_bytes
        self.size = 0
        self.cut = False
        self.asked: list[Asked] = []
        self.inflater: Inflater | None = None  # of the reply that is open: no credential shows in compressed bytes
        self.sent = Tape()
        self.request: Request | None = None
        self.settings: ExchangeSettings | None = None
        self.pairs: list[tuple[int, JudgedCall, HeldCall]] = []

    def take(self, size: int, part: float = 1.0) -> bool:
        """Whether so many bytes more may be kept."""
        if self.size + size > self._limit * part or not self._ring.reserve(size):
            self.cut = True
            return False
        self.size += size
        return True

    def tape(self, tape: Tape, data: bytes, at_ms: int) -> None:
        """Once something did not fit, nothing that follows it is kept: a hole would look like another stream."""
        if not self.cut and self.take(len(data) + _MARK, _BODIES):
            tape.add(data, at_ms)

    def came(self, data: bytes, at_ms: int) -> None:
        """Body bytes of the reply that is open, kept as far as its coding can be undone."""
        pieces = (data,) if self.inflater is None else self.inflater.feed(data)
        with suppress(Fault):
            for piece in pieces:
                self.tape(self.asked[-1].tape, piece, at_ms)

    def finish(self, entry: Entry) -> None:
        """The exchange is over: into the ring with it, without the credentials that a backend may have quoted."""
        masks = (entry.mask, Mask((entry.key,))) if entry.key else (entry.mask,)

        def clean(text: str) -> str:
            for one in masks:
                text = one.over_text(text)
            return text

        for tape in (self.sent, *(asked.tape for asked in self.asked)):
            for one in masks:
                tape.data[:] = one.over_cut(bytes(tape.data))
        asking = self._asking()
        record = entry.record
        last = self.asked[-1] if self.asked else None
        if last is not None and not last.end:
            last.end = "gone" if record.outcome == "gone" else "reset"
        settings = self.settings
        self._ring.keep(
            Kept(
                number=0,
                redact=self._ring.redact,
                began=self._began,
                request_id=entry.request_id,
                client=entry.client,
                route=entry.route,
                model=clean(entry.model[:256]),
                asked_model=self._asked_model,
                stream=entry.stream,
                client_dialect=entry.dialect,
                backend=entry.backend,
                upstream_dialect=last.dialect if last else "",
                status=record.status,
                outcome=record.outcome,
                code=clean(record.code[:64]),
                seconds=entry.seconds,
                first_byte_s=entry.first_byte_s,
                hold_s=entry.hold_s,
                verdicts=[verdict.value for verdict in record.verdicts],
                quirks=sorted({quirk.value for quirk in record.quirks}),
                repairs=sorted(set(record.repairs)),
                recovered=sorted(set(record.recovered)),
                reask=record.reask,
                policy={}
                if settings is None
                else {
                    "mode": settings.mode,
                    "block_as": settings.block_as,
                    "delivery": settings.delivery,
                    "repair": "safe" if settings.repair else "off",
                },
                asking=asking,
                asked=self.asked,
                sent=self.sent,
                calls=[self._seen(*pair, clean) for pair in self.pairs],
                cut=self.cut,
                size=self.size,
            )
        )

    def _asking(self) -> Asking:
        request = self.request
        assert request is not None
        tools = request.tools
        sizes = {name: len(name) + len(tool.schema or b"") for name, tool in tools.items()}
        whole = sum(sizes.values()) <= self._limit * _SCHEMAS
        known = tools.keys() if whole else {judged.name for _, judged, _ in self.pairs}
        kept = []
        for name, tool in tools.items():
            if not self.take(sizes[name] if name in known else len(name)):
                break
            kept.append((name, tool.kind, tool.schema if name in known else None))
        choice = request.tool_choice
        names = None if choice.names is None else tuple(sorted(choice.names))
        return Asking(tuple(kept), choice.mode, names, request.parallel, request.choices)

    def _seen(self, turn: int, judged: JudgedCall, held: HeldCall, clean: Callable[[str], str]) -> SeenCall:
        whole = "".join(held.fragments)
        cut = not self.take(2 * (len(whole) + len(judged.text)))
        seen = SeenCall(
            turn,
            judged.choice,
            judged.index,
            clean(judged.call_id[:256]),
            clean(judged.name[:256]),
            judged.kind,
            [] if cut else cut_like(clean(whole), held.fragments),
            [] if cut else list(held.objects),
            judged.format,
            "" if cut else clean(judged.text),
            judged.verdict.value,
            quirks=[quirk.value for quirk in judged.quirks],
            repairs=list(judged.repairs),
            sent_index=judged.sent_index,
            cut=cut,
        )
        if judged.error is not None:
            seen.error = (judged.error.path, judged.error.rule, judged.error.message)
        return seen


class WatchedExchange(Exchange):
    """An exchange that tells its notes of every input and every output."""

    def __init__(
        self,
        notes: Notes,
        entry: Entry,
        request: Request,
        settings: ExchangeSettings,
        *,
        seed: str,
        created: int,
    ) -> None:
        self._notes = notes
        self._entry = entry
        notes.request, notes.settings = request, settings
        super().__init__(request, settings, seed=seed, created=created)

    def opened(
        self,
        status: int,
        headers: Mapping[str, str],
        now: float,
        *,
        dialect: str = "openai-chat",
        own_key: bool = True,
        settings: ExchangeSettings | None = None,
        quirks: Sequence[Quirk] = (),
    ) -> list[Command]:
        notes = self._notes
        notes.asked.append(Asked(self._entry.backend, dialect, status, headers.get("content-type", "")[:128]))
        notes.settings = settings = settings or self._settings
        with suppress(Fault):  # nothing of such a body is received
            notes.inflater = inflater(headers.get("content-encoding", ""), settings.max_reply_bytes)
        told = super().opened(status, headers, now, dialect=dialect, own_key=own_key, settings=settings, quirks=quirks)
        return self._told(told, now)

    def receive(self, data: bytes, now: float) -> list[Command]:
        if self._state in ("reading", "refused"):
            self._notes.came(data, self._ms(now))
        return self._told(super().receive(data, now), now)

    def flow(self, data: bytes, now: float) -> bool:
        if not super().flow(data, now):
            return False
        self._notes.tape(self._notes.asked[-1].tape, data, self._ms(now))
        self._notes.tape(self._notes.sent, data, self._ms(now))
        return True

    def ended(self, now: float) -> list[Command]:
        self._end("eof")
        return self._told(super().ended(now), now)

    def broken(self, fault: Fault, now: float) -> list[Command]:
        if self._state == "waiting":  # no reply ever began
            self._notes.asked.append(Asked(self._entry.backend))
        self._end("reset", fault)
        return self._told(super().broken(fault, now), now)

    def tick(self, now: float) -> list[Command]:
        return self._told(super().tick(now), now)

    def checked(self, results: Sequence[CheckResult], now: float) -> list[Command]:
        return self._told(super().checked(results, now), now)

    def abandon(self, fault: Fault, now: float) -> list[Command]:
        self._end("reset", fault)
        return self._told(super().abandon(fault, now), now)

    def gone(self, now: float) -> list[Command]:
        self._end("gone")
        return self._told(super().gone(now), now)

    def _refuse_weak(self) -> None:
        super()._refuse_weak()
        self._pair()  # every verdict of this turn is in, and none of its calls has been sent

    def _judge_unfinished(self) -> None:
        before = len(self._judged)
        super()._judge_unfinished()
        if len(self._judged) > before:
            self._pair()

    def _pair(self) -> None:
        turn = len(self._notes.asked) - 1
        self._notes.pairs += [(turn, *pair) for pair in zip(self._judged, self._held, strict=True)]

    def _end(self, how: str, fault: Fault | None = None) -> None:
        if self._notes.asked and not (last := self._notes.asked[-1]).end:
            last.end = how
            last.fault = "" if fault is None else fault.public_code

    def _told(self, commands: list[Command], now: float) -> list[Command]:
        notes = self._notes
        for command in commands:
            match command:
                case Send(data):
                    notes.tape(notes.sent, data, self._ms(now))
                case Retry(fault):
                    if notes.asked:
                        notes.asked[-1].fault = fault.public_code
                case Stop() | Ask():
                    self._end("stopped")
                case Start() | _:
                    pass
        return commands

    def _ms(self, now: float) -> int:
        return max(0, round((now - self._entry.started) * 1000))
