"""Finds calls in the text of one channel while it streams. Text flows on; only what may be a call is held.

Theory of operation. The scanner is in one of three states:

    text       everything passes on but a run of white space at the end (it goes with a call that follows it, if nothing
               visible comes after) and the beginning of a marker
    candidate  from an opener on, the bodies of all rows with this opener read on side by side. The first that finds a
               call wins and the text of it is gone. When none can be one, the text is released as it came, and what
               they have read is not looked through again: neither is there a way to make the scanner read twice, nor
               can the value of a broken call become a call of its own
    chain      directly behind a call: white space, closers and further units

A candidate that can only stay text (an undeclared name, a quotation mark before it, longer than may be held) is still
read to its end, but its text passes on meanwhile. Nothing depends on how the text was cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from proxy.dialects.markup.base import (
    Cursor,
    Format,
    LeakedCall,
    Mismatch,
    Parsed,
    Refusal,
    Row,
    Rule,
    Steps,
    Tools,
    Unfinished,
)
from proxy.dialects.markup.lines import Lines

BLANK_LIMIT = 256  # characters of white space that are held before a possible call
_FIRST_STEP = 64  # characters that a candidate is given first; doubled each time, so that a short one copies little
_LAST_STEP = 65_536
_GROUPS = 3  # openers of groups inside each other
REFUSALS = 4096  # of one channel: what follows stays text. An opener that begins no call costs 30 to 70 us
_RESIDUE = 4  # characters that the beginning of a marker must have to be more than the end of a sentence
# What chat templates end a turn with; it may stand behind a call.
_TAILS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_msg|>", "<|return|>", "</s>")

Channel = Literal["content", "reasoning"]
_Chain = Literal["", "removed", "refused", "stray"]
_SPACE = re.compile(r"\s*+")
_FENCE = re.compile(r"```[A-Za-z_]{0,16}\s*+")


@dataclass(slots=True)
class Scanned:
    """What one feed, or the end, brought. `text` may pass on now, `reasoning` belongs to the reasoning channel.

    Calls of the content channel are final, but for `weak` ones: if the exchange does not take those, `source` is the
    text in their place. In the reasoning channel calls come with `close` only, and `source` is theirs too. `residue`
    (`close`) is the beginning of a call that never came, or closers without a call: nothing to a reader if the reply
    has a structured call, else text that follows `text`. `dropped`: such closers were removed in the middle.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[LeakedCall, ...] = ()
    source: str = ""
    residue: str = ""
    dropped: bool = False
    refusals: tuple[Refusal, ...] = ()


@dataclass(slots=True)
class _Attempt:
    """One row's reading of a candidate."""

    order: int
    format: Format
    cursor: Cursor
    steps: Generator[None, None, Parsed]

    def go_on(self) -> Parsed | None:
        """What was found, or None while text is missing. Raises Mismatch."""
        try:
            next(self.steps)
        except StopIteration as end:
            parsed: Parsed = end.value
            return parsed
        if self.cursor.ended:
            raise Unfinished
        return None


def _group(cursor: Cursor) -> Steps[Parsed]:
    """Behind a group's opener: only if a unit follows it, it is one."""
    yield from cursor.space()
    return Parsed(group=(yield from cursor.expect(*cursor.markers)))


_GROUP = Row((), _group)


class _Markers:
    """The literals of a set of formats, found by their first two characters."""

    def __init__(self, formats: Sequence[Format]) -> None:
        self.rows: dict[str, list[tuple[Format, Row]]] = {}
        self.start: list[tuple[Format, Row]] = []
        closers: dict[str, None] = {}
        for one in formats:
            for row in one.rows:
                for opener in row.openers:
                    self.rows.setdefault(opener, []).append((one, row))
                for group in row.groups:
                    rows = self.rows.setdefault(group, [])
                    if all(known is not _GROUP for _, known in rows):
                        rows.append((one, _GROUP))
                if row.at_start:
                    self.start.append((one, row))
                closers.update(dict.fromkeys(row.closers))
        self.openers = tuple(self.rows)
        self.closers = closers.keys() - self.rows.keys()
        every = self.rows.keys() | self.closers | set(_TAILS)
        self._heads: dict[str, list[str]] = {}
        for literal in every:
            self._heads.setdefault(literal[:2], []).append(literal)
        self._prefixes = frozenset(literal[:size] for literal in every for size in range(1, len(literal)))
        self._longest = max(map(len, every))
        first = re.escape("".join({literal[0] for literal in every}))
        self.first = re.compile(f"[{first}]")
        self.ordinary = re.compile(rf"[^{first}]*+(?<!\s)")  # without markers, no white space at the end

    def at(self, text: str, at: int) -> str:
        """The marker that stands at `at`, or nothing. None is the beginning of another."""
        for literal in self._heads.get(text[at : at + 2], ()):
            if text.startswith(literal, at):
                return literal
        return ""

    def begun(self, text: str, at: int) -> bool:
        """Whether all of `text[at:]` may be the beginning of a marker."""
        return len(text) - at < self._longest and text[at:] in self._prefixes

    def unit(self, source: str) -> str:
        """A call's own markup: without what groups it, and without the code fence that is the whole content."""
        at = _space(source, 0)
        while literal := self.at(source, at):
            inner = _space(source, at + len(literal))
            if self.at(source, inner) not in self.rows:
                break
            at = inner
        fence = _FENCE.match(source, at)
        return source[fence.end() :].rstrip("`\n\r\t ") if fence is not None else source[at:].rstrip()

    def only(self, text: str) -> bool:
        """Whether `text` is nothing but markers, and perhaps the beginning of one."""
        at = 0
        while (at := _space(text, at)) < len(text):
            literal = self.at(text, at)
            if not literal:
                return self.begun(text, at)
            at += len(literal)
        return True


class _Candidate:
    """Text from an opener on, while its rows read. `at_start`: there is no opener."""

    def __init__(self, tools: Tools, markers: _Markers, opener: str, doom: Rule | None) -> None:
        self._tools = tools
        self._markers = markers
        self.at_start = not opener
        self.size = len(opener)  # characters given to it
        self.reach = 0  # characters read by the attempt that came farthest
        self.passed = 0  # of these, characters that have passed on as text
        self.step = _FIRST_STEP
        self.format = ""
        self.rule = Rule.GRAMMAR
        self.called = False  # a declared name was read
        self._groups = 0
        self._farthest = (-1, 0)  # how far, and which of the rows: of equal ones the first names the refusal
        self._held = [opener]
        self._refused: tuple[_Attempt, Parsed] | None = None  # a whole unit that stays text
        self.attempts = self._attempts(markers.rows[opener] if opener else markers.start, self.size, doom)

    def _attempts(self, rows: Sequence[tuple[Format, Row]], offset: int, doom: Rule | None) -> list[_Attempt]:
        found = []
        for order, (one, row) in enumerate(rows):
            cursor = Cursor(self._tools, self._markers.openers, offset, doom)
            found.append(_Attempt(order, one, cursor, row.body(cursor)))
        return found

    @property
    def doomed(self) -> bool:
        """Whether it stays text whatever comes."""
        return all(attempt.cursor.doom is not None for attempt in self.attempts)

    def doom(self, rule: Rule) -> None:
        for attempt in self.attempts:
            attempt.cursor.doom = attempt.cursor.doom or rule

    def feed(self, text: str, ended: bool, whole: bool) -> tuple[_Attempt, Parsed] | None:
        """Read on; what was found, if so. Without attempts left it was no call."""
        self.size += len(text)
        self._held.append(text)
        return self._go_on(text, ended, whole)

    def _go_on(self, text: str, ended: bool, whole: bool) -> tuple[_Attempt, Parsed] | None:
        for attempt in list(self.attempts):
            cursor = attempt.cursor
            cursor.ended, cursor.whole = ended, whole
            cursor.feed(text)
            try:
                parsed = attempt.go_on()
            except Mismatch as refused:
                self._give_up(attempt, refused)
                continue
            self.reach = max(self.reach, cursor.offset)
            self.called = self.called or cursor.called
            if parsed is None:
                continue
            if parsed.group:
                # the rows of the unit's opener, which was read, go on
                self._groups += 1
                self.attempts = []
                if self._groups > _GROUPS:
                    self.reach = cursor.offset - len(parsed.group)
                    self.format, self.rule = attempt.format.name, cursor.doom or Rule.GRAMMAR
                    return None
                self.attempts = self._attempts(self._markers.rows[parsed.group], cursor.offset, cursor.doom)
                return self._go_on(cursor.rest, ended, whole)
            if cursor.doom is None:
                return attempt, parsed
            self._give_up(attempt, Mismatch(cursor.doom))
            self._refused = self._refused or (attempt, parsed)
        return self._refused if self.doomed else None

    def give_up(self) -> None:
        for attempt in list(self.attempts):
            self._give_up(attempt, Mismatch())

    def _give_up(self, attempt: _Attempt, refused: Mismatch) -> None:
        self.attempts.remove(attempt)
        ended = isinstance(refused, Unfinished) and attempt.cursor.ended
        read = self.size if ended else attempt.cursor.offset
        self.reach = max(self.reach, read)
        if (read, -attempt.order) > self._farthest:
            self._farthest = (read, -attempt.order)
            self.format, self.rule = attempt.format.name, attempt.cursor.doom or refused.rule
        self.called = self.called or attempt.cursor.called

    def take(self, end: int) -> str:
        """The text up to `end` that has not passed on."""
        text = "".join(self._held)
        count = end - self.passed
        self._held = [text[count:]]
        self.passed = end
        return text[:count]

    def give_back(self, text: str) -> None:
        self._held.insert(0, text)
        self.passed -= len(text)


def _space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # also matches nothing


class Scanner:
    """The text of one choice's content or reasoning. `declared`: the names that may be called (a forced tool: only
    that); `schemas` their parameters' JSON text; `quoted` tells whether a text stands verbatim in the request's
    messages; `hold_limit`: characters of one candidate.

    `structured` is for the exchange to set, at each structured call: closers that the text behind it begins with are
    its residue, and so are those in lines of their own that the text ends with.
    """

    def __init__(
        self,
        declared: Collection[str],
        schemas: Mapping[str, bytes | None],
        formats: Sequence[Format],
        *,
        channel: Channel,
        quoted: Callable[[str], bool],
        hold_limit: int,
    ) -> None:
        self._structured = False
        self._said = False  # visible text came since the last structured call
        self._tools = Tools(declared, schemas)
        self._markers = _markers(tuple(formats))
        self._reasoning = channel == "reasoning"
        self._quoted = quoted
        self._hold_limit = hold_limit
        self._lines = Lines()
        self._at_start = bool(self._markers.start) and not self._reasoning
        self._waiting = True  # the next text is not all that matters
        self._out: list[str] = []
        self._found: list[LeakedCall] = []
        self._refusals: list[Refusal] = []
        self._refused = 0  # so many in all
        self._result = Scanned()
        self._blank = ""  # white space that waits for what follows it
        self._tail = ""  # the beginning of a marker
        self._candidate: _Candidate | None = None
        self._chain: _Chain = ""
        self._chain_doom: Rule | None = None
        self._removed = False  # a call was removed and nothing visible came since
        self._strays = ""  # closers that no call stands before, and white space between them
        self._source: list[str] = []  # reasoning: the text of calls, from the white space before the first on
        self._source_size = 0
        self._calls: list[LeakedCall] = []  # reasoning: those calls

    @property
    def structured(self) -> bool:
        return self._structured

    @structured.setter
    def structured(self, value: bool) -> None:
        self._structured, self._said = value, False

    @property
    def held(self) -> int:
        """Characters that are held now."""
        candidate = self._candidate
        waiting = candidate.size - candidate.passed if candidate is not None else 0
        return len(self._blank) + len(self._tail) + len(self._strays) + waiting + self._source_size

    @property
    def busy(self) -> bool:
        """Whether more than white space is held, or a call was just removed."""
        return self._candidate is not None or self._removed or bool(self._strays or self._tail)

    def is_ordinary(self, text: str) -> bool:
        """Whether nothing is held, and no marker can begin in `text`, nor white space at its end be in question."""
        return not self._waiting and self._markers.ordinary.fullmatch(text) is not None

    def passes(self, text: str) -> bool:
        """Whether `text` goes on as it is: nothing is held and no marker can begin in it. Then it is taken note of,
        and is not to be fed."""
        if not self.is_ordinary(text):
            return False
        self._lines.advance(text)
        self._said = True
        return True

    def feed(self, text: str) -> Scanned:
        """What `text` brings. Holds at most `hold_limit` characters and some more."""
        if self.passes(text):
            return Scanned(text)
        self._run(text, ended=False, whole=True)
        result = self._done()
        self._waiting = bool(
            self._candidate or self._chain or self._tail or self._blank or self._removed or self._at_start
        )
        return result

    def close(self, *, whole: bool = True) -> Scanned:
        """The channel has ended; `whole`: neither by a token limit nor by a filter."""
        self._run("", ended=True, whole=whole)
        result = self._result
        if self._source:
            self._found, result.source = self._calls, "".join(self._source)
            self._forget_source()
        elif self._strays:
            result.residue = self._blank + self._strays
        elif not self._removed:
            self._out.append(self._blank)
        self._blank = self._strays = ""
        return self._done()

    def release(self) -> str:
        """All that is held, as text: the reply is broken, or goes on where this channel's calls do not count."""
        candidate = self._candidate
        waiting = candidate.take(candidate.size) if candidate is not None else ""
        text = "".join(self._source) + self._blank + self._strays + waiting + self._tail
        self._forget_source()
        self._candidate, self._chain, self._removed = None, "", False
        self._blank = self._strays = self._tail = ""
        return text

    def _done(self) -> Scanned:
        result, self._result = self._result, Scanned()
        result.text = "".join(self._out)
        self._out.clear()
        if self._found:
            result.calls, self._found = tuple(self._found), []
        if self._refusals:
            result.refusals, self._refusals = tuple(self._refusals), []
        return result

    # --- the states --------------------------------------------------------------------------------------------

    def _run(self, text: str, *, ended: bool, whole: bool) -> None:
        data, self._tail, at = self._tail + text, "", 0
        while True:
            if self._candidate is not None:
                data, at = self._read(data, at, ended, whole)
                if self._candidate is not None:
                    return
            elif self._chain:
                at = self._follow(data, at, ended)
            else:
                at = self._pass(data, at, ended)
            if at == len(data) and self._candidate is None:
                return

    def _pass(self, data: str, at: int, ended: bool) -> int:
        """Text: up to the next marker. Returns where to go on."""
        markers = self._markers
        if self._refused > REFUSALS:
            self._emit(data[at:])
            return len(data)
        if self._at_start:
            visible = _space(data, at)
            self._emit(data[at:visible])
            at = visible
            if at < len(data):
                self._at_start = False
                self._candidate = _Candidate(self._tools, markers, "", None)
            return at
        begin = at
        while (found := markers.first.search(data, at)) is not None:
            at = found.start()
            literal = markers.at(data, at)
            if literal in markers.rows or literal in markers.closers:
                self._emit(data[begin:at])
                return self._open(literal, at)
            if markers.begun(data, at):
                self._emit(data[begin:at])
                self._begin(data[at:], ended)
                return len(data)
            at += 1
        self._emit(data[begin:])
        return len(data)

    def _open(self, literal: str, at: int) -> int:
        """A marker stands at `at`, where all text before it has passed. Returns where to go on."""
        refusal = self._lines.refusal()
        rows = self._markers.rows.get(literal)
        if rows is not None and refusal is not Rule.FENCE:
            self._candidate = _Candidate(self._tools, self._markers, literal, refusal)
        elif rows is None and refusal is None and (self._lines.blank or (self._structured and not self._said)):
            self._strays = literal
            self._chain = "stray"
        else:
            if rows is not None:
                self._refuse(rows[0][0].name, Rule.FENCE)
            self._emit(literal)
        return at + len(literal)

    def _begin(self, text: str, ended: bool) -> None:
        """The beginning of a marker stands at the end of what has come."""
        if not ended:
            self._tail = text
        elif len(text) >= _RESIDUE and self._lines.refusal() is None:
            self._leave(text)
        else:
            self._emit(text)

    def _read(self, data: str, at: int, ended: bool, whole: bool) -> tuple[str, int]:
        """Candidate: give it text until it is decided. Returns the text and where to go on in it."""
        candidate = self._candidate
        assert candidate is not None
        found = None
        while True:
            room = self._hold_limit + 1 - candidate.size
            step = min(candidate.step, room) if room > 0 else candidate.step
            block = data[at : at + step]
            at += len(block)
            last = ended and at == len(data)
            if not block and not last:
                return data, at
            candidate.step = min(2 * candidate.step, _LAST_STEP)
            found = candidate.feed(block, last, whole)
            if found is not None or not candidate.attempts:
                break
            if candidate.size > self._hold_limit:
                candidate.doom(Rule.HOLD_LIMIT)
            if candidate.doomed:
                if candidate.at_start:
                    candidate.give_up()
                    break
                self._emit(candidate.take(candidate.reach))
        self._candidate = None
        end = self._decide(candidate, found)
        back = candidate.size - end  # it read ahead: that is looked at again
        if back <= at:
            return data, at - back
        return candidate.take(candidate.size) + data[at:], 0

    def _follow(self, data: str, at: int, ended: bool) -> int:
        """Chain: directly behind a call, a refused one, or closers. Returns where to go on."""
        markers, kind = self._markers, self._chain
        if kind == "refused" and self._refused > REFUSALS:
            self._leave_chain()
            return at
        place = _space(data, at)
        self._behind(data[at:place])
        if place == len(data) or len(self._strays) > BLANK_LIMIT:
            if len(self._strays) > BLANK_LIMIT:
                self._leave_chain()
            return place
        literal = markers.at(data, place)
        if literal in markers.rows:
            self._leave_chain()
            if kind == "stray" or (kind == "refused" and self._chain_doom is None):
                return self._open(literal, place)
            self._candidate = _Candidate(self._tools, markers, literal, self._chain_doom)
        elif literal and (kind == "removed" or literal in markers.closers):
            self._behind(literal)
        elif not literal and markers.begun(data, place) and (not ended or kind == "removed"):
            if ended:
                self._behind(data[place:])  # a closer that was cut
            else:
                self._tail = data[place:]
            return len(data)
        else:
            self._leave_chain()
            return place
        return place + len(literal)

    def _behind(self, text: str) -> None:
        """White space or a closer in a chain."""
        if self._chain == "removed":
            self._lines.advance(text)
            if self._source:
                self._keep_source(text)
        elif self._chain == "stray":
            self._strays += text
        else:
            self._emit(text)

    def _leave_chain(self) -> None:
        if self._chain == "stray":
            strays, self._strays = self._strays, ""
            if self._structured and not self._said:
                self._lines.advance(strays)
                self._removed = self._result.dropped = True
            else:
                self._emit(strays)
        self._chain = ""

    # --- what becomes of a candidate ---------------------------------------------------------------------------

    def _decide(self, candidate: _Candidate, found: tuple[_Attempt, Parsed] | None) -> int:
        """Take or refuse it. Returns how many of its characters are dealt with."""
        if found is None:
            return self._no_call(candidate)
        attempt, parsed = found
        rule = attempt.cursor.doom
        if rule is None:
            source = candidate.take(attempt.cursor.offset)
            if not self._quoted(self._markers.unit(source)):
                self._take(attempt.format.name, parsed, source)
                return candidate.passed
            candidate.give_back(source)
            rule = Rule.QUOTATION
        if candidate.at_start:
            if candidate.called:
                self._refuse(attempt.format.name, rule)
            return 0
        self._refuse(attempt.format.name, rule)
        self._emit(candidate.take(max(attempt.cursor.offset, candidate.passed)))
        self._chain, self._chain_doom = "refused", rule if rule is Rule.QUOTE else None
        return candidate.passed

    def _no_call(self, candidate: _Candidate) -> int:
        if candidate.at_start:
            if candidate.called:
                self._refuse(candidate.format, candidate.rule)
            return 0  # what begins the content like a call may still hold an opener
        self._refuse(candidate.format, candidate.rule)
        whole = candidate.passed == 0 and candidate.rule is Rule.UNFINISHED
        text = candidate.take(max(candidate.reach, candidate.passed))
        if whole and self._markers.only(text):
            self._leave(text)
        else:
            self._emit(text)
            self._chain, self._chain_doom = "refused", None
        return candidate.passed

    def _take(self, name: str, parsed: Parsed, source: str) -> None:
        """A call was found: its text is gone."""
        calls = [replace(call, format=name) for call in parsed.calls]
        if self._reasoning:
            if parsed.text or parsed.reasoning:
                self._refuse(name, Rule.NOT_LAST)
                self._emit(source)
                return
            self._keep_source(self._blank + source)
            self._blank = ""
            self._calls += calls
        else:
            if calls[0].weak:
                self._result.source = self._blank + source
            self._emit(parsed.text)
            self._result.reasoning += parsed.reasoning
            self._found += calls
        self._removed = True
        self._chain, self._chain_doom = "removed", None

    def _leave(self, text: str) -> None:
        """The beginning of a call that never came, at the very end."""
        if self._removed or self._reasoning:
            self._emit(text)
        else:
            self._result.residue, self._blank = self._blank + text, ""
            self._lines.advance(text)

    def _keep_source(self, text: str) -> None:
        self._source.append(text)
        self._source_size += len(text)

    def _forget_source(self) -> None:
        self._source, self._source_size, self._calls = [], 0, []

    def _refuse(self, name: str, rule: Rule) -> None:
        self._refusals.append(Refusal(name, rule if self._refused < REFUSALS else Rule.TOO_MANY))
        self._refused += 1

    def _emit(self, text: str) -> None:
        """Pass text on, all but the white space at its end."""
        if not text:
            return
        self._lines.advance(text)
        visible = text.rstrip()
        if not visible:
            if not self._removed:
                self._wait(text)
            elif self._source:
                self._keep_source(text)
            return
        self._said = True
        if self._removed:
            self._removed = False
            if self._source:  # reasoning goes on: what looked like the call that ends it was a draft
                for call in self._calls:
                    self._refuse(call.format, Rule.NOT_LAST)
                self._out += self._source
                self._forget_source()
            else:
                visible = visible.lstrip()
        self._out += (self._blank, visible)
        self._blank = ""
        self._wait(text[len(text.rstrip()) :])

    def _wait(self, blank: str) -> None:
        self._blank += blank
        if len(self._blank) > BLANK_LIMIT:
            self._out.append(self._blank[:-BLANK_LIMIT])
            self._blank = self._blank[-BLANK_LIMIT:]


@lru_cache(maxsize=64)
def _markers(formats: tuple[Format, ...]) -> _Markers:
    return _Markers(formats)
