"""What a format of leaked markup is, and the reader that the bodies of all formats are written against.

A format is a few rows; a row is one or more openers and a body. A body is a generator that reads a `Cursor` and
yields wherever it needs text that has not come yet, so that it is written as if all text were there and is resumed
where it stood: every character is read once. It ends in one of three ways: it returns what it found, it raises
`Mismatch` (this is no call, as early as that shows), or the text ends inside it (`Unfinished`).
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Literal, TypeVar

from proxy.dialects.markup.schema import Shape

T = TypeVar("T")
Steps = Generator[None, None, T]

# Namespaces that models write before a name: Kimi's and GPT's `functions.`, Gemini's `default_api`.
NAMESPACES = ("functions.", "default_api.", "default_api:")

NAME_LIMIT = 256  # characters of a name, key or header; what is longer is none
_SCALAR_LIMIT = 4096  # characters of a bare number or word
_LEVELS = 1024  # of brackets in a value of a doomed candidate; orjson reads no more
_SPACE = re.compile(r"\s*+")
_WORD = re.compile(r"[^\s<>{}\[\]()\"'`,;|=]*+")
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_IN_STRING = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_OUTSIDE = re.compile(r'[^"{}\[\]]*+')
_SCALAR = re.compile(r"[^\s,}\]]*+")
_CLOSER = {"{": "}", "[": "]", "(": ")"}
_IN_PYTHON = re.compile(r"[^\"'()\[\]{},]*+")
_QUOTED = {"'": re.compile(r"(?:[^'\\]++|\\.)*+", re.DOTALL), '"': _IN_STRING}


class Rule(StrEnum):
    """Why a candidate stayed text."""

    GRAMMAR = "grammar"  # the text behind the opener is no call of this format
    FOREIGN_KEY = "foreign_key"  # a JSON object with keys that no call has
    ARGUMENTS = "arguments"  # arguments that are no object, or none at all
    PARAMETER_TWICE = "parameter_twice"  # with different values
    UNDECLARED = "undeclared"  # no tool of this name may be called
    UNFINISHED = "unfinished"  # the text ended inside it
    HOLD_LIMIT = "hold_limit"  # it is longer than may be held
    FENCE = "fence"  # in a code fence
    QUOTE = "quote"  # behind a quote or a backtick, or in a quoted line
    QUOTATION = "quotation"  # it stands so in the request's messages
    NOT_WHOLE = "not_whole"  # a form that has to be the whole content
    NOT_LAST = "not_last"  # in reasoning that went on
    SCHEMA = "schema"  # a weak form that the tool's schema refuses
    TOO_MANY = "too_many"  # so many stayed text before it that nothing behind it is looked at


class Mismatch(Exception):
    """This text is no call."""

    def __init__(self, rule: Rule = Rule.GRAMMAR) -> None:
        super().__init__(rule.value)
        self.rule = rule


class Unfinished(Mismatch):
    """The text ended inside the candidate."""

    def __init__(self) -> None:
        super().__init__(Rule.UNFINISHED)


@dataclass(frozen=True, slots=True)
class LeakedCall:
    """A call that was written as text. `name` is a declared name, `arguments` JSON text: the source's own characters
    where the markup holds JSON, else built from the parameters. `call_id` only where the model needs its own back.
    `weak`: a form without markers, which also has to satisfy the tool's schema."""

    name: str
    arguments: str
    format: str = ""
    call_id: str = ""
    weak: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A candidate that stayed text."""

    format: str
    rule: Rule


@dataclass(slots=True)
class Parsed:
    """What a body found: calls, and the text and reasoning of messages that are written in the same markup.
    `group`: the opener of a group was read, and this opener of a unit behind it."""

    calls: list[LeakedCall] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    group: str = ""


Body = Callable[["Cursor"], Steps[Parsed]]
Tier = Literal["strong", "medium", "weak", "opt-in"]


@dataclass(frozen=True, slots=True)
class Row:
    """Literals and a body. `groups` may stand directly before a unit, `closers` and further units directly behind.

    `at_start` instead of openers: the body itself reads the first visible character of the content.
    """

    openers: tuple[str, ...]
    body: Body
    closers: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    at_start: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """`strong`: markers that do not occur in prose. `medium`: plain tags with a full grammar. `weak`: no marker worth
    the name, the whole content only. `opt-in`: off unless the configuration names it."""

    name: str
    tier: Tier
    rows: tuple[Row, ...]


_NO_SHAPE = Shape(None)


class Tools:
    """The tools that may be called, for the names and parameters of markup."""

    def __init__(self, declared: Collection[str], schemas: Mapping[str, bytes | None]) -> None:
        self._names = sorted(declared)
        self._declared = frozenset(declared)
        self._schemas = schemas
        self._shapes: dict[str, Shape] = {}

    @property
    def names(self) -> list[str]:
        return self._names

    def find(self, name: str) -> str | None:
        """The declared name that `name` spells, with or without a namespace; exact, never fuzzy."""
        name = name.strip()
        if name in self._declared:
            return name
        for namespace in NAMESPACES:
            rest = name.removeprefix(namespace)
            if rest != name and rest in self._declared:
                return rest
        return None

    def begins(self, text: str) -> bool:
        """Whether `text` is the beginning of a declared name, with or without a namespace."""
        text = text.strip()  # as `find` does
        if self._begins(text):
            return True
        return any(
            namespace.startswith(text) or (text.startswith(namespace) and self._begins(text[len(namespace) :]))
            for namespace in NAMESPACES
        )

    def _begins(self, text: str) -> bool:
        at = bisect_left(self._names, text)
        return at < len(self._names) and self._names[at].startswith(text)

    def shape(self, name: str) -> Shape:
        """The parameters of a tool; of one that is not declared: none."""
        if name not in self._declared:
            return _NO_SHAPE  # not kept by its name: a reply may write any number of names
        shape = self._shapes.get(name)
        if shape is None:
            shape = self._shapes[name] = Shape(self._schemas.get(name))
        return shape


class Stops:
    """Literals that end a run of text. None of them is the beginning of another."""

    __slots__ = ("_pattern", "_prefixes", "_reach", "literals")

    def __init__(self, *literals: str) -> None:
        self.literals = literals
        self._pattern = re.compile("|".join(map(re.escape, literals)))
        self._prefixes = frozenset(one[:size] for one in literals for size in range(1, len(one)))
        self._reach = max(map(len, literals)) - 1

    def search(self, text: str, at: int) -> re.Match[str] | None:
        return self._pattern.search(text, at)

    def begun(self, text: str, at: int) -> int:
        """How many characters at the end of `text[at:]` may begin one of the literals."""
        for size in range(min(self._reach, len(text) - at), 0, -1):
            if text[-size:] in self._prefixes:
                return size
        return 0


class Cursor:
    """The text of one candidate. What was read is given back (`offset` counts it) and never looked at again.

    `doom` says that the candidate will stay text whatever comes: it is read on, so that nothing inside it is taken
    for a call, but nobody waits for it, and nothing more is kept of it: it may be as long as the reply. `whole`: the
    reply was not cut by a token limit or a filter.
    """

    __slots__ = ("_at", "_base", "_window", "called", "doom", "ended", "markers", "tools", "whole")

    def __init__(self, tools: Tools, markers: tuple[str, ...], offset: int, doom: Rule | None) -> None:
        self.tools = tools
        self.markers = markers
        self.doom = doom
        self.called = False  # a declared name was read
        self.ended = False
        self.whole = True
        self._window = ""
        self._at = 0
        self._base = offset

    @property
    def offset(self) -> int:
        """Characters read since the candidate began, its opener among them."""
        return self._base + self._at

    @property
    def rest(self) -> str:
        """What has come and was not read."""
        return self._window[self._at :]

    def since(self, offset: int) -> str:
        """What was read since `offset` in the step that has just ended."""
        return self._window[offset - self._base : self._at]

    def finish(self) -> None:
        """Read all that is left."""
        self._at = len(self._window)

    def feed(self, text: str) -> None:
        self._base += self._at
        self._window = self._window[self._at :] + text
        self._at = 0

    def name(self, written: str) -> str:
        """The declared name that was written; one that may not be called dooms the candidate."""
        name = self.tools.find(written)
        if name is None:
            self.doom = self.doom or Rule.UNDECLARED
            return written
        self.called = self.called or self.doom is None
        return name

    def watch(self, written: str) -> None:
        """A name is still arriving: as soon as it cannot become a declared one, nobody has to wait for it."""
        if not self.tools.begins(written):
            self.doom = self.doom or Rule.UNDECLARED

    def keep(self, kept: list[T], *more: T) -> None:
        """Collect what was read; of a doomed candidate one stands for all."""
        if self.doom is None or not kept:
            kept += more

    # --- steps: each reads on, and yields while it has to wait -------------------------------------------------

    def at_end(self) -> Steps[bool]:
        """Whether the text has ended here."""
        while self._at == len(self._window) and not self.ended:
            yield
        return self._at == len(self._window)

    def peek(self, *literals: str) -> Steps[str]:
        """The one of `literals` that stands here, or nothing. None of them is the beginning of another."""
        longest = max(map(len, literals))
        while True:
            rest = self._window[self._at : self._at + longest]
            for literal in literals:
                if rest.startswith(literal):
                    return literal
            if self.ended or not any(literal.startswith(rest) for literal in literals):
                return ""
            yield

    def take(self, *literals: str) -> Steps[str]:
        found = yield from self.peek(*literals)
        self._at += len(found)
        return found

    def expect(self, *literals: str) -> Steps[str]:
        found = yield from self.take(*literals)
        if not found:
            raise Unfinished if self.ended and self.begun(*literals) else Mismatch
        return found

    def begun(self, *literals: str) -> bool:
        """Whether all that is left is nothing, or the beginning of one of `literals`."""
        rest = self._window[self._at :]
        return any(literal.startswith(rest) for literal in literals)

    def char(self) -> Steps[str]:
        """The next character, which stays unread."""
        if (yield from self.at_end()):
            raise Unfinished
        return self._window[self._at]

    def space(self) -> Steps[str]:
        """White space, however much."""
        parts: list[str] = []
        while True:
            end = _SPACE.match(self._window, self._at).end()  # type: ignore[union-attr]  # also matches nothing
            self._keep(parts, end)
            if end < len(self._window) or self.ended:
                return "".join(parts)
            yield

    def word(self, watch: Callable[[str], None] | None = None, limit: int = NAME_LIMIT) -> Steps[str]:
        """A run of characters that names are made of; `watch` sees it while it arrives."""
        while True:
            end = _WORD.match(self._window, self._at).end()  # type: ignore[union-attr]
            if end - self._at > limit:
                raise Mismatch
            word = self._window[self._at : end]
            if watch is not None and word:
                watch(word)  # also when it came at once: what is known must not depend on the cut
            if end < len(self._window) or self.ended:
                self._at = end
                return word
            yield

    def match(self, pattern: re.Pattern[str], limit: int) -> Steps[re.Match[str] | None]:
        """The match of `pattern` here, within `limit` characters; read if there is one."""
        while True:
            found = pattern.match(self._window, self._at, self._at + limit)
            if found is not None:
                self._at = found.end()
                return found
            if self.ended or len(self._window) - self._at >= limit:
                return None
            yield

    def until(self, stops: Stops) -> Steps[tuple[str, str]]:
        """The text up to the first of `stops`, and which one it was, both read; "" if the text ended before."""
        parts: list[str] = []
        while True:
            found = stops.search(self._window, self._at)
            if found is not None:
                self._keep(parts, found.start())
                self._at = found.end()
                return "".join(parts), found.group()
            if self.ended:
                self._keep(parts, len(self._window))
                return "".join(parts), ""
            self._keep(parts, len(self._window) - stops.begun(self._window, self._at))
            yield

    def until_before(self, stops: Stops) -> Steps[tuple[str, str]]:
        """As `until`, but the stop stays unread."""
        text, stop = yield from self.until(stops)
        self._at -= len(stop)
        return text, stop

    def string(self, limit: int = NAME_LIMIT, watch: Callable[[str], None] | None = None) -> Steps[str]:
        """A JSON string of at most `limit` characters, decoded."""
        if (yield from self.char()) != '"':
            raise Mismatch
        while True:
            found = _STRING.match(self._window, self._at, self._at + limit)
            if found is not None:
                self._at = found.end()
                if watch is not None and len(found.group()) > 2:
                    watch(found.group()[1:-1])
                try:
                    return str(json.loads(found.group(), strict=False))
                except ValueError:
                    raise Mismatch from None
            if len(self._window) - self._at >= limit:
                raise Mismatch(Rule.FOREIGN_KEY)
            if self.ended:
                raise Unfinished
            if watch is not None and len(self._window) - self._at > 1:
                watch(self._window[self._at + 1 :])
            yield

    def json(self) -> Steps[str]:
        """The characters of one JSON value, told by brackets, strings and escapes alone; a raw line break in a string
        is no end. Whether it is strict JSON is judged later."""
        first = yield from self.char()
        if first not in '{["':
            return (yield from self._scalar())
        parts: list[str] = []
        closers: list[str] = []
        in_string = False
        while True:
            end, in_string, state = _follow(self._window, self._at, closers, in_string, self._levels)
            self._keep(parts, end)
            if state == "done":
                return "".join(parts)
            if state == "wrong":
                raise Mismatch
            if self.ended:
                raise Unfinished
            yield

    def _scalar(self) -> Steps[str]:
        while True:
            end = _SCALAR.match(self._window, self._at).end()  # type: ignore[union-attr]
            if end - self._at > _SCALAR_LIMIT or end == self._at < len(self._window):
                raise Mismatch
            if end < len(self._window):
                text = self._window[self._at : end]
                self._at = end
                return text
            if self.ended:
                raise Unfinished
            yield

    def python(self) -> Steps[str]:
        """The characters of one Python value, up to the comma or bracket that ends it, told by brackets and quotes."""
        parts: list[str] = []
        closers: list[str] = []
        quote = ""
        while True:
            end, quote, state = _follow_python(self._window, self._at, closers, quote, self._levels)
            self._keep(parts, end)
            if state == "done":
                return "".join(parts)
            if state == "wrong":
                raise Mismatch
            if self.ended:
                raise Unfinished
            yield

    def closing(self, *closers: str) -> Steps[None]:
        """The end of a unit of plain tags: white space and a closer; it may be missing where the text ends or another
        marker follows. Whatever else stands behind it: then it is an example in prose."""
        yield from self.space()
        if (yield from self.take(*closers)):
            return
        if self.ended and self.begun(*closers):
            self.finish()
        elif not (yield from self.peek(*self.markers)):
            raise Mismatch

    @property
    def _levels(self) -> float:
        """How deep a value may be: its open brackets have to be kept."""
        return inf if self.doom is None else _LEVELS

    def _keep(self, parts: list[str], end: int) -> None:
        """Read up to `end`; the characters of a doomed candidate are nobody's."""
        if self.doom is None and end > self._at:
            parts.append(self._window[self._at : end])
        self._at = end


_State = Literal["more", "done", "wrong"]


def _follow(text: str, at: int, closers: list[str], in_string: bool, most: float) -> tuple[int, bool, _State]:
    """Follow a JSON value that began before or at `at` to its end or the end of `text`, `most` levels deep."""
    size = len(text)
    while at < size:
        if in_string:
            at = _IN_STRING.match(text, at).end()  # type: ignore[union-attr]
            if at == size or text[at] == "\\":  # an escape whose other half has not come
                break
            in_string = False
        else:
            at = _OUTSIDE.match(text, at).end()  # type: ignore[union-attr]
            if at == size:
                break
            char = text[at]
            if char == '"':
                in_string = True
            elif char in "{[":
                if len(closers) >= most:
                    return at, in_string, "wrong"
                closers.append(_CLOSER[char])
            elif closers[-1] != char:
                return at, in_string, "wrong"
            else:
                closers.pop()
        at += 1
        if not closers and not in_string:
            return at, in_string, "done"
    return at, in_string, "more"


def _follow_python(text: str, at: int, closers: list[str], quote: str, most: float) -> tuple[int, str, _State]:
    size = len(text)
    while at < size:
        if quote:
            at = _QUOTED[quote].match(text, at).end()  # type: ignore[union-attr]
            if at == size or text[at] == "\\":
                break
            quote = ""
        else:
            at = _IN_PYTHON.match(text, at).end()  # type: ignore[union-attr]
            if at == size:
                break
            char = text[at]
            if char in "\"'":
                quote = char
            elif char in "([{":
                if len(closers) >= most:
                    return at, quote, "wrong"
                closers.append(_CLOSER[char])
            elif not closers:
                return at, quote, "done"
            elif char != "," and closers.pop() != char:
                return at, quote, "wrong"
        at += 1
    return at, quote, "more"
