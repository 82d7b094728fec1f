"""The response path: an input's bytes through one exchange, and what holds for every answer whatever the bytes are."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import jsonschema_rs

from casefile import Call, Reply
from dialect_clients import CLIENTS
from fuzz import inputs, oracle
from fuzz.inputs import Input
from proxy.checks.judge import judge
from proxy.dialects import upstream_request
from proxy.exchange import Exchange
from proxy.faults import Fault, FaultKind
from proxy.model.calls import Verdict
from proxy.model.commands import Ask, Check, Command, Finish, Record, Retry, Send, Start, Stop
from proxy.model.requests import Request
from proxy.replay.inprocess import Answer
from proxy.replay.recording import CREATED

OUTCOMES = ("ok", "blocked", "error", "gone")
REASONS = ("stop", "tool_calls", "length", "content_filter")
# Bytes that an exchange may hold beside the reply's texts: 64 KiB of odd lines, as many of text that may come again.
MACHINERY = 200_000
BIG = 20_000  # bytes of a body, of which it is looked at what is held


@dataclass(slots=True)
class Played:
    """What became of one exchange: the answer, and what its commands were."""

    answer: Answer = field(default_factory=Answer)
    started: int = 0
    asked: int = 0
    over: bool = False
    deadlines: int = 0


class Shell:
    """Carries out an exchange's commands and asserts their order."""

    def __init__(self, request: Request, value: Input, dialect: str) -> None:
        self.value = value
        self.dialect = dialect
        self.exchange = Exchange(request, value.settings(), seed="fuzz", created=CREATED)
        self.played = Played()
        self.now = 0.0
        self.stopped = False
        self.wants_turn = False
        self.came = 0  # bytes of all turns
        self.held = 0  # the most that the machine held on to while a big body came, beside what it needs

    def play(self, turns: Sequence[Sequence[bytes]], *, pauses: bool = False) -> Played:
        number = 0
        while True:
            self.stopped = self.wants_turn = False
            value, headers = self.value, self.value.headers()
            status = value.status if number == 0 else 200
            self.carry_out(self.exchange.opened(status, headers, self.now, dialect=self.dialect))
            pieces = turns[min(number, len(turns) - 1)]
            weighed = value.small and sum(map(len, pieces)) > BIG
            for place, piece in enumerate(pieces):
                if self.stopped or self.played.over:
                    break
                if self.exchange.flow(piece, self.now):
                    self.carry_out([Send(piece)])
                else:
                    self.carry_out(self.exchange.receive(piece, self.now))
                self.came += len(piece)
                if value.interrupt and place == value.seed % len(pieces):
                    self.interrupt()
                if weighed and place % (len(pieces) // 3 + 1) == 0:
                    self.held = max(self.held, _reachable(self.exchange) - self.needed())
                if pauses:
                    self.wake()
            self.end()
            if not self.wants_turn:
                break
            number += 1
            assert number <= value.reask, "asked again more often than allowed"
        assert self.played.over, "the exchange never finished"
        self.nothing_more()
        return self.played

    def needed(self) -> int:
        """Bytes of texts that stay: for a Responses client's last event, to compare with a Responses backend's; for
        asking again, said and asked."""
        responses = (self.value.client, self.dialect).count("openai-responses")
        return self.came * (responses + 2 * (self.value.reask > 0))

    def interrupt(self) -> None:
        if self.played.over or self.stopped:
            return
        match self.value.interrupt:
            case "gone":
                self.carry_out(self.exchange.gone(self.now))
            case "abandon":
                self.carry_out(self.exchange.abandon(Fault(FaultKind.SHUTDOWN, "the proxy shuts down"), self.now))
            case "timeout":
                self.carry_out(self.exchange.broken(Fault(FaultKind.TIMEOUT, "no byte came in time"), self.now))

    def end(self) -> None:
        if not self.stopped and not self.played.over:
            if self.value.end == "eof":
                self.carry_out(self.exchange.ended(self.now))
            else:
                cut = Fault(FaultKind.STREAM_CUT, "the upstream closed the connection in the middle of its reply")
                self.carry_out(self.exchange.broken(cut, self.now))
        assert self.played.over or self.wants_turn, "the body has ended, and the exchange has not"

    def wake(self) -> None:
        """The clock runs on to whenever the machine asked to be woken."""
        due = self.exchange.deadline
        if due is not None and not self.stopped:
            self.now = max(self.now, due)
            self.carry_out(self.exchange.tick(self.now))

    def nothing_more(self) -> None:
        """An exchange that is over says nothing more, whatever comes."""
        late: list[Command] = [*self.exchange.receive(b"data: {}\n\n", self.now), *self.exchange.ended(self.now)]
        late += self.exchange.tick(self.now + 1e6)
        late += self.exchange.broken(Fault(FaultKind.TIMEOUT, "late"), self.now)
        late += self.exchange.gone(self.now)
        late += self.exchange.abandon(Fault(FaultKind.SHUTDOWN, "late"), self.now)
        assert late == [], f"commands after Finish: {[type(one).__name__ for one in late]}"
        assert self.exchange.deadline is None, "a deadline after Finish"

    def carry_out(self, commands: Sequence[Command]) -> None:
        played, answer, waiting = self.played, self.played.answer, list(commands)
        while waiting:
            command = waiting.pop(0)
            assert not played.over, f"{type(command).__name__} after Finish"
            match command:
                case Start(status, headers):
                    played.started += 1
                    assert played.started == 1, "Start twice"
                    answer.status = status
                    answer.headers = dict(headers)
                    assert all(name == name.lower() and "\n" not in text for name, text in headers)
                case Send(data):
                    assert played.started == 1, "Send before Start"
                    assert data, "an empty Send"
                    answer.body += data
                case Check(jobs):
                    results = [judge(job) for job in jobs]
                    waiting += self.exchange.checked(results[::-1], self.now)  # in any order
                case Ask(request):
                    self.wants_turn = True
                    with suppress(Fault):  # what cannot cross is the shell's to tell
                        json.loads(upstream_request(request, self.dialect, "m").body)
                case Retry(fault, transient):
                    assert transient == fault.is_transient
                    answer.faults.append(fault)
                    self.stopped = True  # there is no other backend here
                    waiting += self.exchange.abandon(fault, self.now)
                case Stop():
                    self.stopped = True
                case Finish(record):
                    assert answer.record is None, "Finish twice"
                    answer.record = record
                    played.over = True


def check(data: bytes, dialect: str) -> None:
    """Everything that holds for every input. Raises AssertionError, or whatever the machine itself let out."""
    value = inputs.read(data)
    if value is None:
        return
    request = inputs.request_of(value)
    if request is None:
        return
    turns = value.bodies()
    shell = Shell(request, value, dialect)
    played = shell.play(turns, pauses=value.pauses)
    record = played.answer.record
    assert record is not None
    _check_record(record, played, value)
    _check_memory(shell)
    if record.outcome == "gone":
        assert value.interrupt == "gone"
        return
    reply = CLIENTS[value.client].read(played.answer, request.stream)
    _check_reply(reply, played, value, request)
    _check_calls(reply, value, request)
    oracle.check(reply, value, request, dialect)
    if not value.pauses and not value.interrupt:
        other = Shell(request, value, dialect).play([value.other_cut(turn) for turn in turns])
        _check_same(played, other)


# --- the properties ------------------------------------------------------------------------------------------------


def _check_same(one: Played, other: Played) -> None:
    """The answer does not depend on the cut, nor does what is written down about it."""
    a, b = one.answer, other.answer
    assert a.record is not None
    assert b.record is not None
    if "bad_encoding" in (a.record.code, b.record.code) and b"-fold" in a.body + b.body:
        return  # how much a bomb gives before it is told from text depends on what came with it
    codes = f"{a.record.code or 'ok'} and {b.record.code or 'ok'}"
    heads = (a.status, a.headers) == (b.status, b.headers)
    assert heads, f"another cut, another status: {codes}\n{a.status} {_first(a)}\n{b.status} {_first(b)}"
    assert a.body == b.body, f"another cut, another body: {codes}\n{_difference(bytes(a.body), bytes(b.body))}"
    for name in (
        "outcome",
        "status",
        "code",
        "verdicts",
        "quirks",
        "repairs",
        "recovered",
        "refused",
        "reask",
        "usage",
    ):
        ours, theirs = getattr(a.record, name), getattr(b.record, name)
        assert ours == theirs, f"another cut, another {name} in the record\n{ours}\n{theirs}"


def _first(answer: Answer) -> str:
    return bytes(answer.body[:160]).decode("utf-8", "replace")


def _difference(a: bytes, b: bytes) -> str:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"at {at}: {a[max(at - 30, 0) : at + 60]!r} {b[max(at - 30, 0) : at + 60]!r}"


def _check_record(record: Record, played: Played, value: Input) -> None:
    assert record.outcome in OUTCOMES, record.outcome
    assert record.status == played.answer.status
    if record.outcome == "error" or (value.status >= 300 and record.outcome != "gone"):
        assert record.code, "an error without its code in the record"
    limit = value.settings().max_held_bytes
    event = value.settings().max_event_bytes
    assert record.peak_held_bytes <= limit + event + 65_536, f"{record.peak_held_bytes} held, the limit is {limit}"


def _check_memory(shell: Shell) -> None:
    """What the machine holds of a big body is bounded by its limits, not by the body."""
    assert shell.held < MACHINERY, f"{shell.held} bytes are held on to, with small limits"


def _reachable(root: object) -> int:
    """Bytes of the texts and buffers that an object holds on to."""
    skip = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
    seen, todo, total = {id(root)}, [root], 0
    while todo:
        one = todo.pop()
        if isinstance(one, str | bytes | bytearray):
            total += len(one)
            continue
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, skip):
                seen.add(id(other))
                todo.append(other)
    return total


def _check_reply(reply: Reply, played: Played, value: Input, request: Request) -> None:
    """The answer is one that a strict client reads, and says itself whether it failed."""
    record = played.answer.record
    assert record is not None
    assert reply.noncanonical == [], f"not canonical: {reply.noncanonical[0]}"
    assert all(line.isascii() or _utf8(line) for line in (bytes(played.answer.body),))
    failed = reply.error is not None or reply.status >= 400
    assert failed == (record.outcome in ("blocked", "error")), f"{record.outcome}, yet the client reads {failed}"
    if failed:
        assert isinstance(reply.error, dict), "an error that is no object"
        assert isinstance(reply.error.get("message"), str), "an error without a message"
        assert reply.error["message"], "an error without a message"
        assert reply.error.get("type") or reply.error.get("code"), "an error with neither type nor code"
        assert not reply.finish or reply.status >= 400, "a finish reason in a reply that failed"
        if value.client != "openai-responses":
            assert reply.done == 0, "a proper end behind an error"
    else:
        assert reply.done == 1, "no proper end"
        assert reply.finish, "no finish reason"
        for choice, reason in reply.finish.items():
            assert reason in REASONS, f"finish reason {reason!r}"
            called = any(call.choice == choice for call in reply.calls.values())
            if reason not in ("length", "content_filter"):
                assert (reason == "tool_calls") == called, f"{reason} and calls: {called}"
        assert all(0 <= choice < request.choices for choice in reply.finish), f"choices {sorted(reply.finish)}"
    if value.client == "openai-chat" and value.stream:
        assert reply.usages <= request.include_usage, "usage that was not asked for"
    size = sum(map(len, (*reply.content.values(), *reply.reasoning.values())))
    assert size <= (sum(map(len, inputs.plain(value)))) * (1 + value.reask), "more text than came in"


def _utf8(data: bytes) -> bool:
    data.decode("utf-8")
    return True


def _check_calls(reply: Reply, value: Input, request: Request) -> None:
    """Each delivered call is whole, and one that counts as valid is valid by an independent look at it."""
    failed = reply.error is not None or reply.status >= 400
    calls = list(reply.calls.values())
    if failed:
        for call in calls:
            assert value.live, f"a failed reply delivered {call.name}"
            assert not inputs.is_json(call.arguments), f"an error, yet {call.name} can be run: {call.arguments[:80]!r}"
        assert len(calls) <= 1
        return
    ids = [call.id for call in calls]
    assert all(ids), "a call without an id"
    assert all(type(one) is str for one in ids), "an id that is no text"
    assert len(set(ids)) == len(ids), "two calls of one id"
    assert not set(ids) & request.used_ids, "an id that the request's messages have used"
    sent = {(e["choice"], e["sent_index"]): e for e in reply.report if e["sent_index"] is not None}
    assert {entry["verdict"] for entry in reply.report} <= set(Verdict)
    if value.annotations == "always":
        assert set(sent) == set(reply.calls), f"reported as sent: {sorted(sent)}, sent: {sorted(reply.calls)}"
    for key, call in reply.calls.items():
        assert isinstance(call.name, str), "a call whose name is no text"
        assert call.name, "a call without a name"
        verdict = sent[key]["verdict"] if key in sent else "valid"
        assert verdict != "incomplete", "an unfinished call was delivered"
        assert verdict == "valid" or value.mode == "annotate", f"{verdict} was delivered"
        # without a report a call that was annotated and delivered tells nothing
        if verdict == "valid" and (key in sent or value.mode != "annotate" or value.annotations == "problems"):
            _check_valid(call, request)


def _check_valid(call: Call, request: Request) -> None:
    tool = request.tools.get(call.name)
    assert tool is not None, f"valid, yet {call.name!r} is not declared"
    choice = request.tool_choice
    assert choice.mode != "none", "valid, yet tool_choice is none"
    assert choice.names is None or call.name in choice.names, "valid, yet tool_choice excludes it"
    assert request.parallel or call.index == 0, "a further call where the request allows one"
    if tool.kind != "function":
        return
    value = strict(call.arguments)
    assert isinstance(value, dict) or tool.schema is not None, "valid arguments that are no object"
    validator = _validator(tool.schema) if tool.schema is not None else None
    if validator is not None:
        assert validator.is_valid(value), f"valid, yet the schema refuses {call.arguments[:80]!r}"


def strict(text: str) -> Any:
    """RFC 8259 without doubled keys, at most 64 levels; by the standard library, not by what the product uses."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refused)
    except RecursionError:
        raise AssertionError("valid arguments that are nested without end") from None
    except ValueError as error:
        raise AssertionError(f"valid arguments that are no JSON: {error}: {text[:80]!r}") from None
    assert _depth(value) <= 64, "valid arguments of more than 64 levels"
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key twice")
    return out


def _refused(word: str) -> Any:
    raise ValueError(word)


def _depth(value: Any) -> int:
    level: list[Any] = [value]
    for depth in range(1_000):
        nested = [one for one in level if isinstance(one, dict | list)]
        if not nested:
            return depth
        level = [inner for one in nested for inner in (one.values() if isinstance(one, dict) else one)]
    return 1_000


@lru_cache(maxsize=512)
def _validator(schema: bytes) -> Any:
    try:
        return jsonschema_rs.validator_for(json.loads(schema))
    except ValueError:
        return None  # one that the product mends, or tells the client of
