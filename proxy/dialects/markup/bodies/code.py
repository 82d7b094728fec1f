"""Calls written as Python: `[f(a="x"), g()]`, or one a line. Read by a scanner, never evaluated."""

from __future__ import annotations

from proxy.dialects.markup.base import Body, Cursor, LeakedCall, Mismatch, Parsed, Rule, Steps, Unfinished
from proxy.dialects.markup.bodies.members import Members
from proxy.dialects.markup.pythonic import to_json


def call_list(*, weak: bool = False, closers: tuple[str, ...] = ()) -> Body:
    """`[f(a=1), g()]`. `weak`: it has to be the whole content, but for `closers`."""

    def body(cursor: Cursor) -> Steps[Parsed]:
        yield from cursor.space()
        yield from cursor.expect("[")
        calls: list[LeakedCall] = []
        while True:
            yield from cursor.space()
            cursor.keep(calls, (yield from _call(cursor, weak)))
            yield from cursor.space()
            if (yield from cursor.expect(",", "]")) == "]":
                break
        if weak:
            yield from _whole(cursor, closers)
        return Parsed(calls)

    return body


def call_lines(closer: str) -> Body:
    """`f(a=1)` a line, up to `closer`."""

    def body(cursor: Cursor) -> Steps[Parsed]:
        yield from cursor.space()
        calls = [(yield from _call(cursor, False))]
        while True:
            yield from cursor.space()
            if (yield from cursor.take(closer)):
                return Parsed(calls)
            if cursor.ended and cursor.begun(closer):
                cursor.finish()
                return Parsed(calls)
            yield from cursor.take(",", ";")
            cursor.keep(calls, (yield from _call(cursor, False)))

    return body


def tool_code(cursor: Cursor) -> Steps[Parsed]:
    """Gemma 3: a fence `tool_code` with one call a line, perhaps inside `print(...)`; the whole content."""
    yield from cursor.expect("```tool_code")
    calls: list[LeakedCall] = []
    while True:
        yield from cursor.space()
        if calls and (yield from cursor.take("```")):
            break
        printed = yield from cursor.take("print(")
        cursor.keep(calls, (yield from _call(cursor, True)))
        if printed:
            yield from cursor.space()
            yield from cursor.expect(")")
    yield from _whole(cursor, ())
    return Parsed(calls)


def _whole(cursor: Cursor, closers: tuple[str, ...]) -> Steps[None]:
    yield from cursor.space()
    if closers:
        yield from cursor.take(*closers)
        yield from cursor.space()
    if not (yield from cursor.at_end()):
        raise Mismatch(Rule.NOT_WHOLE)


def _call(cursor: Cursor, weak: bool) -> Steps[LeakedCall]:
    """One call with keyword arguments; a positional one would have to be guessed."""
    name = yield from cursor.word(cursor.watch)
    if not name:
        raise Unfinished if cursor.ended and not cursor.rest else Mismatch
    name = cursor.name(name)
    yield from cursor.expect("(")
    found = Members(cursor)
    while True:
        yield from cursor.space()
        if (yield from cursor.take(")")):
            break
        key = yield from cursor.word()
        yield from cursor.space()
        if not key:
            raise Mismatch
        yield from cursor.expect("=")
        source = yield from cursor.python()
        value = to_json(source)
        if value is None and cursor.doom is None:
            raise Mismatch(Rule.ARGUMENTS)
        found.add(key, value or "")
        if (yield from cursor.expect(",", ")")) == ")":
            break
    return LeakedCall(name, found.json(), weak=weak)
