"""JSON call objects: `{"name": ..., "arguments": {...}}`, alone, in an array or in a sequence."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from proxy.dialects.markup.base import Body, Cursor, LeakedCall, Mismatch, Parsed, Rule, Steps
from proxy.dialects.markup.bodies.members import Members
from proxy.wire.jsonscan import members

_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_WRAPPER_KEYS = ("tool_call", "tool_calls", "function_call", "function")
_OTHER_KEYS = ("id", "tool_call_id", "call_id", "type", "index")


_DEPTH = 3  # of wrapper keys and arrays inside each other


@dataclass(frozen=True, slots=True)
class _Style:
    """`keep_id`: the model needs its own `id` back. `name_is_key`: `{"NAME": {...}}`. `strict`: with arguments only."""

    keep_id: bool = False
    name_is_key: bool = False
    strict: bool = False


_STRICT = _Style(strict=True)


def json_calls(
    *closers: str, keep_id: bool = False, name_is_key: bool = False, array: bool = True, several: bool = False
) -> Body:
    """One object, or an array of them (`array=False`: no array); with `several` a sequence of objects too.

    `closers`: those of plain tags; one has to follow unless the text ends or another marker comes.
    """
    style = _Style(keep_id, name_is_key)

    def body(cursor: Cursor) -> Steps[Parsed]:
        yield from cursor.space()
        first = yield from cursor.expect("{", *(("[",) if array else ()))
        if first == "[":
            calls = yield from _array(cursor, style)
        else:
            calls = yield from _object(cursor, style)
            while several and (yield from _another(cursor)):
                cursor.keep(calls, *(yield from _object(cursor, style)))
        if closers:
            if not all(call.arguments.lstrip()[:1] in ("{", '"', "n", "") for call in calls):
                raise Mismatch(Rule.ARGUMENTS)
            yield from cursor.closing(*closers)
        return Parsed(calls)

    return body


def whole_content(*closers: str, prefix: str = "") -> Body:
    """Nothing but call objects is the whole content: bare (behind `prefix`), or in one code fence; one of `closers` may
    follow.

    A form without a marker: name and arguments have to be there, and the calls have to satisfy their schemas.
    """

    def body(cursor: Cursor) -> Steps[Parsed]:
        fenced = yield from cursor.expect(prefix) if prefix else cursor.take("```")
        if fenced == "```":
            if (yield from cursor.word()).lower() not in ("json", ""):
                raise Mismatch
            yield from cursor.space()
        if (yield from cursor.expect("{", "[")) == "[":
            calls = yield from _array(cursor, _STRICT)
        else:
            calls = yield from _object(cursor, _STRICT)
            while (yield from _another(cursor)):
                cursor.keep(calls, *(yield from _object(cursor, _STRICT)))
        yield from cursor.space()
        if fenced == "```":
            yield from cursor.expect("```")
        elif closers:
            yield from cursor.take(*closers)
        yield from cursor.space()
        if not (yield from cursor.at_end()):
            raise Mismatch(Rule.NOT_WHOLE)
        return Parsed([replace(call, weak=True) for call in calls])

    return body


def call_of(cursor: Cursor, name: str, arguments: str, call_id: str = "") -> LeakedCall:
    """A call with JSON arguments as they stand; a parameter given twice with different values is a guess."""
    given = Members(cursor)
    with suppress(ValueError):  # no object, or none that can be taken apart: the checks say so
        for key, value in members(arguments):
            given.add(key, value)
    return LeakedCall(cursor.name(name), arguments, call_id=call_id)


def _another(cursor: Cursor) -> Steps[bool]:
    """Whether one more object follows, its bracket read: behind white space, a semicolon or a comma."""
    yield from cursor.space()
    if (yield from cursor.take(";", ",")):
        yield from cursor.space()
    return (yield from cursor.take("{")) != ""


def _array(cursor: Cursor, style: _Style, depth: int = 0) -> Steps[list[LeakedCall]]:
    """The call objects of an array whose bracket was read. Commas may be missing."""
    calls: list[LeakedCall] = []
    while True:
        yield from cursor.space()
        found = yield from cursor.expect("]", "{", ",")
        if found == "{":
            cursor.keep(calls, *(yield from _object(cursor, style, depth)))
        elif found == "]":
            break
    if not calls:
        raise Mismatch
    return calls


def _object(cursor: Cursor, style: _Style, depth: int = 0) -> Steps[list[LeakedCall]]:
    """The call, or wrapped calls, of an object whose bracket was read."""
    if depth > _DEPTH:
        raise Mismatch
    envelope = _Envelope(style, depth)
    while True:
        yield from cursor.space()
        if (yield from cursor.take(",")):
            yield from cursor.space()
        if (yield from cursor.take("}")):
            return envelope.calls(cursor)
        key = yield from cursor.string(watch=cursor.watch if style.name_is_key else None)
        yield from cursor.space()
        yield from cursor.expect(":")
        yield from cursor.space()
        yield from envelope.member(cursor, key)


class _Envelope:
    """What the members of one call object say."""

    def __init__(self, style: _Style, depth: int) -> None:
        self._style = style
        self._depth = depth
        self._name: str | None = None
        self._arguments: str | None = None
        self._call_id = ""
        self._inner: list[LeakedCall] = []

    def member(self, cursor: Cursor, key: str) -> Steps[None]:
        """Read the value of a member. A key that no call has ends the attempt."""
        if self._style.name_is_key:
            self._name = _once(self._name, key)
            cursor.name(key)
            self._arguments = yield from cursor.json()
        elif key in _NAME_KEYS or (key == "function" and (yield from cursor.peek('"'))):
            self._name = _once(self._name, (yield from cursor.string(watch=cursor.watch)))
            cursor.name(self._name)
        elif key in _ARGUMENT_KEYS:
            self._arguments = _once(self._arguments, (yield from cursor.json()))
        elif key in _WRAPPER_KEYS:
            found = yield from cursor.expect("{", "[")
            read = _array if found == "[" else _object
            cursor.keep(self._inner, *(yield from read(cursor, self._style, self._depth + 1)))
        elif key in _OTHER_KEYS:
            value = yield from cursor.json()
            if key == "id" and self._style.keep_id and value.startswith('"'):
                self._call_id = value[1:-1]
        else:
            raise Mismatch(Rule.FOREIGN_KEY)

    def calls(self, cursor: Cursor) -> list[LeakedCall]:
        if self._inner and self._name is None and self._arguments is None:
            return self._inner
        if self._inner or self._name is None or (self._style.strict and self._arguments is None):
            raise Mismatch(Rule.ARGUMENTS)
        return [call_of(cursor, self._name, "{}" if self._arguments is None else self._arguments, self._call_id)]


def _once(old: str | None, new: str) -> str:
    if old is not None and old != new:
        raise Mismatch(Rule.PARAMETER_TWICE)
    return new
