"""What the runs say about a backend. Damage and behaviour are two things and are counted apart:

    damage      the backend broke a reply or a call on its way: cut, mixed up, doubled, not JSON, a wrong finish reason.
                Another server with the same model would not.
    behaviour   the model did not do what it was asked: no call, another tool, arguments that the schema refuses.
                Another server with the same model would do so too.

The core's verdicts, quirks and repairs are all that is looked at: here they are only sorted and counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from proxy.conformance.items import FORMS, Item
from proxy.conformance.runs import CallSeen, Run
from proxy.model.calls import Verdict
from proxy.model.findings import Quirk

Kind = Literal["damage", "finish", "form", "model", "request"]
Group = Literal["reach", "damage", "behaviour", "both ways"]

# A client that takes the reply at its word gets a call wrong, twice, in pieces or not at all.
DAMAGE = frozenset(
    {
        Quirk.EVENT_UNTERMINATED, Quirk.EVENTS_GLUED, Quirk.ERROR_FIELD, Quirk.INVALID_UTF8, Quirk.SURROGATES_SPLIT,
        Quirk.JSON_FOR_STREAM, Quirk.STREAM_FOR_JSON, Quirk.CHOICE_INDEX_IGNORED, Quirk.MESSAGE_FOR_DELTA,
        Quirk.CONTENT_REPEATED, Quirk.FRAGMENT_AFTER_FINISH, Quirk.INDEX_MISSING, Quirk.INDEX_UNUSABLE,
        Quirk.INDEX_REUSED, Quirk.INDEX_SHIFTED, Quirk.INDEX_GAP, Quirk.CALL_REPEATED, Quirk.PHANTOM_CALL,
        Quirk.FUNCTION_MISSING, Quirk.TOOL_CALLS_OBJECT, Quirk.FIELDS_IN_FUNCTION, Quirk.LEGACY_FUNCTION_CALL,
        Quirk.FUNCTION_CALL_ECHO, Quirk.ID_MISSING, Quirk.ID_LATE, Quirk.ID_REPEATED, Quirk.ID_CHANGED,
        Quirk.ID_DUPLICATE, Quirk.ID_NUMBER, Quirk.ITEM_ID_CHANGED, Quirk.ITEM_UNANNOUNCED, Quirk.NAME_REPEATED,
        Quirk.NAME_LATE, Quirk.NAME_SPLIT, Quirk.NAME_TRIMMED, Quirk.NAME_PREFIXED, Quirk.NAME_MISSING,
        Quirk.FINAL_TEXT_DIFFERS, Quirk.ARGS_EMPTY, Quirk.ARGS_NULL, Quirk.ARGS_OBJECT, Quirk.ARGS_MERGED,
        Quirk.ARGS_LEADING_EMPTY, Quirk.ARGS_CUMULATIVE, Quirk.ARGS_REPEATED, Quirk.ARGS_CONTROL_TAIL,
        Quirk.ARGS_DOUBLE_ENCODED, Quirk.REPLACEMENT_CHARACTER, Quirk.TOKENS_WITHOUT_OUTPUT, Quirk.LEAKED_AS_TEXT,
        Quirk.LEAKED_ECHO, Quirk.MARKUP_RESIDUE,
    }
)  # fmt: skip
# What the end says is missing, said twice, or not so.
FINISH = frozenset({Quirk.FINISH_MISSING, Quirk.FINISH_REPEATED, Quirk.FINISH_WORD, Quirk.FINISH_WRONG})
# Of what the model wrote, not of how it came.
MODEL = frozenset(
    {Quirk.REQUIRED_CALL_MISSING, Quirk.BIG_INTEGER, Quirk.KEYS_DIFFER_IN_CASE, Quirk.PROTOTYPE_KEY, Quirk.REASK_REPEAT}
)
# Of the request as it was written for the backend's dialect.
REQUEST = frozenset(
    {
        Quirk.SCHEMA_MENDED, Quirk.SCHEMA_UNCOMPILABLE, Quirk.FIELD_NOT_CARRIED, Quirk.HISTORY_ARGS_WRAPPED,
        Quirk.HISTORY_RESULT_ORPHANED, Quirk.HISTORY_ID_DOUBLED, Quirk.HISTORY_ID_MAPPED,
    }
)  # fmt: skip
# All others are odd in form only: clients in general live with them.
FORM = frozenset(Quirk) - DAMAGE - FINISH - MODEL - REQUEST

KIND_OF: dict[Quirk, Kind] = {
    **dict.fromkeys(DAMAGE, "damage"),
    **dict.fromkeys(FINISH, "finish"),
    **dict.fromkeys(FORM, "form"),
    **dict.fromkeys(MODEL, "model"),
    **dict.fromkeys(REQUEST, "request"),
}

# What is nobody's fault where the dialect itself is so: blocks, parts and lines hold objects, and need no arguments
# or ids where there is nothing to say.
_NATIVE: Mapping[str, frozenset[Quirk]] = {
    "anthropic-messages": frozenset({Quirk.ARGS_EMPTY, Quirk.ARGS_OBJECT}),
    "gemini": frozenset({Quirk.ARGS_EMPTY, Quirk.ARGS_OBJECT, Quirk.ID_MISSING}),
    "ollama-chat": frozenset({Quirk.ARGS_EMPTY, Quirk.ARGS_OBJECT, Quirk.ID_MISSING}),
}

# The arguments as they came, put together, were no JSON object.
_NO_JSON = frozenset(
    {
        Quirk.ARGS_EMPTY, Quirk.ARGS_NULL, Quirk.ARGS_MERGED, Quirk.ARGS_LEADING_EMPTY, Quirk.ARGS_CUMULATIVE,
        Quirk.ARGS_REPEATED, Quirk.ARGS_CONTROL_TAIL, Quirk.ARGS_DOUBLE_ENCODED,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScoreKind:
    """`title` heads the score, `meaning` says what is counted of what."""

    name: str
    group: Group
    title: str
    meaning: str


SCORES: tuple[ScoreKind, ...] = (
    ScoreKind("answered", "reach", "Requests answered", "requests that were answered with a success status"),
    ScoreKind("undamaged", "damage", "Replies undamaged", "replies without any of the damage below"),
    ScoreKind("replies", "damage", "Replies whole", "replies that came to a confirmed end, in their dialect's form"),
    ScoreKind("whole", "damage", "Calls whole", "calls that were whole, once, with id, name and fragments in place"),
    ScoreKind("json", "damage", "Valid JSON", "calls whose arguments were strict JSON objects as they came"),
    ScoreKind("finish", "damage", "Finish reason right", "ended replies whose finish reason was there and true"),
    ScoreKind("as_asked", "behaviour", "Replies as asked", "ended replies without any of the misbehaviour below"),
    ScoreKind("called", "behaviour", "Called as asked", "ended replies with as many calls as the item asks for"),
    ScoreKind("name", "behaviour", "Right name", "calls of a declared tool that the item allows"),
    ScoreKind("schema", "behaviour", "Schema valid", "calls with JSON arguments that their schema accepts"),
    ScoreKind("agree", "both ways", "Streamed = plain", "items that gave the same calls, as valid, in both forms"),
)  # fmt: skip
BY_NAME = {kind.name: kind for kind in SCORES}

GROUP_MEANING: dict[Group, str] = {
    "reach": "whether there was an answer at all",
    "damage": "what the backend broke on the way; another server with the same model need not",
    "behaviour": "what the model did other than it was asked; another server would not help",
    "both ways": "the same question streamed and plain; a model that draws lots differs too",
}


@dataclass(slots=True)
class Score:
    """`good` of `of`. Nothing was there to be counted where `of` is 0."""

    good: int = 0
    of: int = 0

    def count(self, is_good: bool) -> None:
        self.good += is_good
        self.of += 1

    @property
    def share(self) -> float | None:
        return self.good / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true share lies with 95 % (Wilson's interval): with few runs a share says little."""
        if not self.of:
            return 0.0, 1.0
        n, z = self.of, 1.959964
        share = self.good / n
        middle = (share + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(slots=True)
class Finding:
    """One call or reply with something wrong: `codes` say what, `detail` where."""

    run: Run
    group: Group
    codes: list[str]
    detail: str = ""
    call: CallSeen | None = None


@dataclass(slots=True)
class Cell:
    """The runs of one item in one form. `refused` ones count in neither."""

    undamaged: Score = field(default_factory=Score)
    as_asked: Score = field(default_factory=Score)
    refused: int = 0


@dataclass(slots=True)
class Tally:
    """All that is known of one target. Quirks are counted once a run. Times are in seconds, sorted."""

    scores: dict[str, Score] = field(default_factory=lambda: {kind.name: Score() for kind in SCORES})
    quirks: Counter[Quirk] = field(default_factory=Counter)
    repairs: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    cells: dict[tuple[str, bool], Cell] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unasked: dict[str, str] = field(default_factory=dict)  # item -> why
    first_event_s: list[float] = field(default_factory=list)
    streamed_s: list[float] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)
    runs: int = 0


def tally(dialect: str, items: Sequence[Item], runs: Iterable[Run]) -> Tally:
    """What the runs of one target, which speaks `dialect`, come to."""
    out = Tally()
    known = {item.id: item for item in items}
    native = _NATIVE.get(dialect, frozenset())
    pairs: dict[tuple[str, int], dict[bool, Run]] = {}
    for run in runs:
        out.runs += 1
        cell = out.cells.setdefault((run.item, run.streamed), Cell())
        if run.outcome == "unasked":
            out.unasked[run.item] = run.message
            continue
        out.scores["answered"].count(run.answered)
        if run.code:
            out.errors[run.code, run.message] += 1
        if not run.answered:
            cell.refused += 1
            continue
        _count_run(out, cell, run, known[run.item], native)
        if run.outcome == "ended":
            pairs.setdefault((run.item, run.number), {})[run.streamed] = run
    for pair in pairs.values():
        if len(pair) == len(FORMS):
            out.scores["agree"].count(_kind_of_answer(pair[True]) == _kind_of_answer(pair[False]))
    for times in (out.first_event_s, out.streamed_s, out.plain_s):
        times.sort()
    return out


def _count_run(out: Tally, cell: Cell, run: Run, item: Item, native: frozenset[Quirk]) -> None:
    scores = out.scores
    ended = run.outcome == "ended"
    damage, misbehaviour = _of_the_reply(out, run, item, native)
    for call in run.calls:
        broken, wrong = _of_the_call(out, run, call, item, native, bool(_damaging(run.quirks, native)))
        damage, misbehaviour = damage or broken, misbehaviour or wrong
    scores["undamaged"].count(not damage)
    cell.undamaged.count(not damage)
    if ended:
        scores["as_asked"].count(not misbehaviour)
        cell.as_asked.count(not misbehaviour)
        (out.streamed_s if run.streamed else out.plain_s).append(run.seconds)
    if run.streamed and run.first_event_s is not None:
        out.first_event_s.append(run.first_event_s)
    seen = {*run.quirks, *(quirk for call in run.calls for quirk in call.quirks)}
    out.quirks.update(seen - native)
    out.repairs.update({repair for call in run.calls for repair in call.repairs})
    out.verdicts.update(call.verdict for call in run.calls)


def _of_the_reply(out: Tally, run: Run, item: Item, native: frozenset[Quirk]) -> tuple[bool, bool]:
    """Whether the reply as a whole was damaged, and whether the model misbehaved in it."""
    codes = _damaging(run.quirks, native)
    if run.outcome == "broken":
        codes = [run.code, *codes]
    out.scores["replies"].count(not codes)
    damage = bool(codes)
    misbehaviour = False
    if run.outcome == "ended":
        odd_end = [quirk.value for quirk in run.quirks if quirk in FINISH and not _said_stop(quirk, run, item)]
        out.scores["finish"].count(not odd_end)
        codes += odd_end
        damage = damage or bool(odd_end)
        expect = item.expect
        if expect is not None:
            as_many = expect.takes(len(run.calls))
            out.scores["called"].count(as_many)
            if not as_many:
                misbehaviour = True
                detail = f"{len(run.calls)} came, {expect} asked for"
                out.findings.append(Finding(run, "behaviour", ["call_count"], detail))
    if codes:
        out.findings.append(Finding(run, "damage", codes, run.message))
    return damage, misbehaviour


def _said_stop(quirk: Quirk, run: Run, item: Item) -> bool:
    """OpenAI itself ends the reply to a named tool_choice with `stop`, and says so in its reference."""
    return quirk is Quirk.FINISH_WRONG and bool(run.calls) and isinstance(item.request.get("tool_choice"), Mapping)


def _of_the_call(
    out: Tally, run: Run, call: CallSeen, item: Item, native: frozenset[Quirk], reply_damaged: bool
) -> tuple[bool, bool]:
    """Whether the call was damaged, and whether the model chose wrongly in it."""
    scores = out.scores
    verdict = call.verdict
    detail = "; ".join(f"{error['rule']} at {error['path'] or '/'}: {error['message']}" for error in call.errors)
    codes = _damaging(call.quirks, native)
    cut_by_limit = verdict is Verdict.INCOMPLETE and run.outcome == "ended" and run.finish == "length"
    if verdict is Verdict.INCOMPLETE and not cut_by_limit:
        codes.append(verdict.value)
    if not cut_by_limit:
        scores["whole"].count(not codes and not reply_damaged)
    broken = bool(codes)
    if verdict is not Verdict.INCOMPLETE:
        slips = [*call.repairs, *([verdict.value] if verdict is Verdict.INVALID_JSON else [])]
        no_json = (_NO_JSON - native) & {*call.quirks}
        scores["json"].count(not slips and not no_json)
        codes += slips
        broken = broken or bool(slips)
    if codes:
        out.findings.append(Finding(run, "damage", codes, detail, call))
    wrong: list[str] = []
    names = item.expect.names if item.expect is not None else None
    right_name = verdict is not Verdict.UNKNOWN_TOOL and (names is None or call.name in names)
    scores["name"].count(right_name)
    if not right_name:
        wrong.append(f"name {call.name}" if verdict is not Verdict.UNKNOWN_TOOL else verdict.value)
    if verdict in (Verdict.VALID, Verdict.SCHEMA_VIOLATION) and Quirk.SCHEMA_UNCOMPILABLE not in call.quirks:
        scores["schema"].count(verdict is Verdict.VALID)
    if verdict in (Verdict.SCHEMA_VIOLATION, Verdict.NOT_ALLOWED):
        wrong.append(verdict.value)
    if cut_by_limit:
        wrong.append("length")
    if wrong:
        out.findings.append(Finding(run, "behaviour", wrong, detail, call))
    return broken, bool(wrong)


def _damaging(quirks: Iterable[Quirk], native: frozenset[Quirk]) -> list[str]:
    return [quirk.value for quirk in quirks if quirk in DAMAGE - native]


def _kind_of_answer(run: Run) -> list[tuple[str, bool]]:
    return sorted((call.name, call.verdict is Verdict.VALID) for call in run.calls)


def quantile(times: Sequence[float], share: float) -> float | None:
    """The nearest-rank quantile of sorted times."""
    return times[max(0, math.ceil(share * len(times)) - 1)] if times else None


# --- thresholds ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Threshold:
    """`name` is a score, a group, or "" for all."""

    name: str
    least: float

    @classmethod
    def read(cls, text: str) -> Threshold:
        """NUMBER, SCORE=NUMBER or GROUP=NUMBER. Raises ValueError."""
        name, equals, number = text.rpartition("=")
        groups = [group for group in GROUP_MEANING if " " not in group]
        if equals and name not in BY_NAME and name not in groups:
            known = ", ".join([*groups, *BY_NAME])
            raise ValueError(f"{name!r} is neither a group nor a score; there are {known}")
        try:
            least = float(number)
        except ValueError:
            least = math.nan
        if not 0 <= least <= 1:
            raise ValueError(f"{number!r} is no share; give a number from 0 to 1, like 0.95 or whole=0.99")
        return cls(name, least)

    def missed(self, result: Tally) -> list[str]:
        """The scores below it. One that is named and could not be counted is missed: nothing shows that it holds."""
        out = []
        for kind in SCORES:
            share = result.scores[kind.name].share
            if share is None:
                is_missed = kind.name == self.name or not result.runs
            else:
                is_missed = self.name in ("", kind.name, kind.group) and share < self.least
            if is_missed:
                out.append(kind.name)
        return out
