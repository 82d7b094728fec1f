"""Calls that leaked as text: what of a choice's text and reasoning passes on, and which calls are taken from it.

A call in the content counts wherever it stands; one in the reasoning only where the reply ends with it, without
content and without a structured call. A call that also came structured is an echo, and what is left of markup beside a
structured call is no text. Everything else stays text as it came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from proxy.assembly.slots import HeldCall
from proxy.checks.jsontext import NotStrict, parse_exact, same_value
from proxy.dialects.markup import Channel, Format, LeakedCall, Rule, Scanned, Scanner, chosen
from proxy.dialects.retext import opened, opening, place, signs, with_text
from proxy.model.calls import JudgedCall
from proxy.model.deltas import Piece
from proxy.model.findings import Quirk
from proxy.model.requests import Request

HOLD_LIMIT = 1_048_576  # characters of one candidate; a limit of 8 KB broke real calls (vllm-project/vllm#37184)
_QUOTATION_CHECKS = 256  # searches in the request's messages; what comes after so many stays text
_WITHOUT_BLOCKS = ("openai-chat", "ollama-chat")
_MESSAGES = ("messages", "input", "system", "instructions")  # where the dialects keep them

Refusals = Counter[tuple[str, str]]  # (format, rule) -> candidates that stayed text


class Quotations:
    """Tells whether a text stands in a request's messages, white space aside: a model that repeats it calls nothing."""

    def __init__(self, request: Request) -> None:
        self._body = request.body
        self._texts: list[str] | None = None
        self._left = _QUOTATION_CHECKS

    def __call__(self, text: str) -> bool:
        if self._texts is None:
            self._texts = [_squeezed(text) for text in _strings([self._body.get(key) for key in _MESSAGES])]
        self._left -= 1
        if self._left < 0:
            return True
        text = _squeezed(text)
        return any(text in one for one in self._texts)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _strings(value: Any) -> Iterator[str]:
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            todo.extend(one.values())
        elif isinstance(one, list):
            todo.extend(one)


class Recovery:
    """What one exchange's choices share. `formats` are names; `max_held` the characters that may be held in all."""

    def __init__(self, request: Request, dialect: str, formats: tuple[str, ...], max_held: int) -> None:
        choice = request.tool_choice
        self.dialect = dialect
        self.formats = _chosen(formats, weak=not _wants_json(request.body))
        self.schemas = {
            name: tool.schema
            for name, tool in request.tools.items()
            if tool.kind == "function" and (choice.mode != "forced" or choice.names is None or name in choice.names)
        }
        self.quoted = Quotations(request)
        self.hold_limit = min(HOLD_LIMIT, max_held // (2 * request.choices))
        self.refusals: Refusals = Counter()

    def refuse(self, calls: Sequence[LeakedCall | HeldCall], rule: Rule) -> None:
        for call in calls:
            self.refusals[call.format, rule.value] += 1

    @staticmethod
    def wanted(request: Request, formats: Sequence[str]) -> bool:
        return bool(formats) and bool(request.tools) and request.tool_choice.mode != "none"

    def scanner(self, channel: Channel) -> Scanner:
        return Scanner(
            self.schemas.keys(),
            self.schemas,
            self.formats,
            channel=channel,
            quoted=self.quoted,
            hold_limit=self.hold_limit,
        )


@lru_cache(maxsize=64)
def _chosen(names: tuple[str, ...], *, weak: bool) -> tuple[Format, ...]:
    return chosen(names, weak=weak)


def _wants_json(body: dict[str, Any]) -> bool:
    """Whether the answer is asked to be JSON, so that JSON without markers says nothing."""
    wishes = [body.get("response_format"), body.get("output_format")]
    holders = (body.get("text"), body.get("output_config"))
    wishes += [holder["format"] for holder in holders if isinstance(holder, dict) and "format" in holder]
    if any(isinstance(wish, dict) and wish.get("type") in ("json_object", "json_schema") for wish in wishes):
        return True
    return any(body.get(key) for key in ("guided_json", "structured_outputs"))  # vLLM's own


@dataclass(slots=True)
class Recovered:
    """What a choice's end brought: pieces to pass on, and the calls that were found in all of its text.

    If the schemas refuse a `weak` one of them, none of those is a call and `source` is passed on instead.
    """

    pieces: list[Piece] = field(default_factory=list)
    calls: list[HeldCall] = field(default_factory=list)
    source: Piece | None = None
    quirks: list[Quirk] = field(default_factory=list)


class Leaks:
    """The text of one choice."""

    def __init__(self, recovery: Recovery, choice: int) -> None:
        self._recovery = recovery
        self._choice = choice
        self._content = recovery.scanner("content")
        self._reasoning: Scanner | None = None  # made for the first of it
        self._reasoning_counts = True  # a call may still be found in it
        self._text_piece = Piece(choice)  # the last ones that had any: what is held goes out as their like
        self._reasoning_piece = Piece(choice)
        self._said = False  # visible content has come
        self._found: list[LeakedCall] = []
        self._source = ""
        self._opening: list[dict[str, Any]] = []
        self._size = 0
        self._dropped = False

    @property
    def held(self) -> int:
        """Characters that are held, and those of the arguments that were found."""
        return self._size + self._content.held + (self._reasoning.held if self._reasoning is not None else 0)

    @property
    def calls(self) -> int:
        return len(self._found)

    def _place(self, piece: Piece) -> object:
        return place(self._recovery.dialect, piece)

    def passes(self, piece: Piece, text: str) -> bool:
        """Whether `text` goes on as it is, which most does; then it is taken note of. It is that of a piece of content,
        or of several of which `piece` is the last."""
        if not self._said or self._reasoning_counts or piece.reasoning or self._opening:
            return False
        if self._recovery.dialect not in _WITHOUT_BLOCKS or not self._content.passes(text):
            return False
        self._text_piece = piece
        return True

    def is_ordinary(self, text: str) -> bool:
        """Whether text that follows what passed would pass too."""
        return self._content.is_ordinary(text)

    def take(self, piece: Piece) -> list[Piece]:
        """What passes on in place of a piece."""
        text, reasoning = piece.text, piece.reasoning
        out: list[Piece] = []
        if self._recovery.dialect not in _WITHOUT_BLOCKS:
            out = self._leave_block(piece)
        elif reasoning and self._content.held and not self._content.busy:
            # white space of the text before it: a client that reads in order would get it as a text of its own
            out = self._alone(self._content.release(), "")
        if reasoning:
            self._reasoning_piece = piece
            if self._reasoning_counts:
                if self._reasoning is None:
                    self._reasoning = self._recovery.scanner("reasoning")
                reasoning = self._scanned(self._reasoning.feed(reasoning)).text
        if text:
            self._text_piece = piece
            if not self._said and not text.isspace():
                self._said = True
                released = self._end_reasoning()
                if piece.reasoning:
                    reasoning += released
                else:
                    out += self._alone("", released)
            scanned = self._scanned(self._content.feed(text))
            text = scanned.text
            out += self._alone("", scanned.reasoning)
        if text != piece.text or reasoning != piece.reasoning:
            if not text and not reasoning:
                self._opening += opening(self._recovery.dialect, piece)
            piece = with_text(self._recovery.dialect, piece, text, reasoning)
        return self._announced([*out, piece])

    def _announced(self, pieces: list[Piece]) -> list[Piece]:
        """The first text of an item goes out with what announced the item."""
        for number, piece in enumerate(pieces):
            if self._opening and (piece.text or piece.reasoning):
                pieces[number], self._opening = opened(piece, self._opening), []
        return pieces

    def _leave_block(self, piece: Piece) -> list[Piece]:
        """Where text stands in blocks, what is held of one goes out before anything else comes."""
        out: list[Piece] = []
        thinking, content = self._reasoning, self._content
        same = self._place(piece) == self._place(self._reasoning_piece) and piece.reasoning
        if thinking is not None and signs(piece):
            # the signature is of the text as it came: nothing is taken from it, nor moved behind the signature
            out += self._alone("", thinking.release())
        elif thinking is not None and thinking.held and not thinking.busy and not same:
            out += self._alone("", thinking.release())
        same = self._place(piece) == self._place(self._text_piece) and piece.text
        if content.held and not content.busy and not same:
            out += self._alone(content.release(), "")
        return out

    @property
    def structured_seen(self) -> bool:
        return self._content.structured

    def structured(self, *, flush: bool) -> list[Piece]:
        """A structured call has come; `flush`: it is sent at once, and the text before it has to go first."""
        self._content.structured = True
        out = self._alone("", self._end_reasoning())
        if flush and not self._content.busy:
            out += self._alone(self._content.release(), "")
        return out

    def _end_reasoning(self) -> str:
        """Reasoning holds no calls any more: what was held of it."""
        scanner, self._reasoning, self._reasoning_counts = self._reasoning, None, False
        return scanner.release() if scanner is not None else ""

    def release(self) -> list[Piece]:
        """The reply is broken: what is held stays text."""
        return self._announced([*self._alone("", self._end_reasoning()), *self._alone(self._content.release(), "")])

    def close(self, structured: Sequence[HeldCall], *, whole: bool) -> Recovered:
        """The choice has ended; `whole`: neither by a token limit nor by a filter."""
        out = Recovered()
        reasoning = self._reasoning
        scanned = self._scanned(self._content.close(whole=whole))
        if reasoning is not None:
            thought = self._scanned(reasoning.close(whole=whole), keep=False)
            takes = thought.calls and not self._said and not structured
            out.pieces += self._alone("", thought.text + thought.residue + ("" if takes else thought.source))
            if takes:
                self._found += thought.calls
            else:
                self._recovery.refuse(thought.calls, Rule.NOT_LAST)
        out.pieces += self._alone("", scanned.reasoning)
        out.pieces += self._alone(scanned.text + ("" if structured else scanned.residue), "")
        if self._dropped or (structured and scanned.residue.strip()):
            out.quirks.append(Quirk.MARKUP_RESIDUE)
        for call in self._found:
            held = HeldCall(self._choice, len(structured) + len(out.calls), name=call.name, call_id=call.call_id)
            held.fragments, held.objects, held.size = [call.arguments], [False], len(call.arguments)
            held.whole, held.format, held.weak = True, call.format, call.weak
            held.quirks = [Quirk.LEAKED_AS_TEXT]
            out.calls.append(held)
        self._announced(out.pieces)
        if self._source:
            (out.source,) = self._announced(self._alone(self._source, ""))
        return out

    def _scanned(self, scanned: Scanned, *, keep: bool = True) -> Scanned:
        if keep:
            self._found += scanned.calls
            self._size += sum(len(call.arguments) for call in scanned.calls)
            self._source += scanned.source
        self._dropped = self._dropped or scanned.dropped
        for refusal in scanned.refusals:
            self._recovery.refusals[refusal.format, refusal.rule.value] += 1
        return scanned

    def _alone(self, text: str, reasoning: str) -> list[Piece]:
        if not text and not reasoning:
            return []
        like = self._text_piece if text else self._reasoning_piece
        return [with_text(self._recovery.dialect, like, text, reasoning, alone=True)]


def without_echoes(judged: Sequence[JudgedCall], held: Sequence[HeldCall]) -> tuple[list[JudgedCall], list[HeldCall]]:
    """The calls that did not come structured as well, in the same choice, once their arguments are settled. Each
    structured one has one echo at most."""
    if not any(call.format for call in judged):
        return list(judged), list(held)
    values: dict[tuple[int, str], list[Any]] = {}
    for call in judged:
        if not call.format:
            values.setdefault((call.choice, call.name), []).append(_value(call.text))
    out: list[tuple[JudgedCall, HeldCall]] = []
    dropped: Counter[int] = Counter()
    for call, came in zip(judged, held, strict=True):
        if call.format and (left := values.get((call.choice, call.name))):
            value = _value(call.text)
            twin = next((number for number, one in enumerate(left) if same_value(value, one)), None)
            if twin is not None:
                del left[twin]
                dropped[call.choice] += 1
                continue
        if call.format:
            call.index -= dropped[call.choice]
        out.append((call, came))
    return [call for call, _ in out], [came for _, came in out]


def _value(text: str) -> Any:
    """What arguments say. Those of a call that its name or place already decides are not settled: nothing, null and
    JSON in a string are settled here. What is no JSON is its own text."""
    for _ in range(2):
        text = text.strip()
        if text in ("", "null"):
            return {}
        try:
            value = parse_exact(text)
        except NotStrict:
            return text
        if not isinstance(value, str):
            return value
        text = value
    return text
