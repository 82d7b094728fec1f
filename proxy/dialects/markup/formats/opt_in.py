"""Protocols of clients and prompts, ambiguous in ordinary text: off unless the configuration names them."""

from __future__ import annotations

from proxy.dialects.markup.base import Cursor, Format, Mismatch, Parsed, Row, Steps
from proxy.dialects.markup.bodies.json_calls import call_of


def _name(cursor: Cursor) -> Steps[str]:
    yield from cursor.space()
    name = yield from cursor.word(cursor.watch)
    if not name:
        raise Mismatch
    return cursor.name(name)


def _arguments(cursor: Cursor) -> Steps[str]:
    yield from cursor.space()
    if (yield from cursor.char()) != "{":
        raise Mismatch
    return (yield from cursor.json())


def _functionary(cursor: Cursor) -> Steps[Parsed]:
    """`>>>NAME`, a line break, JSON."""
    name = yield from _name(cursor)
    yield from cursor.expect("\n")
    return Parsed([call_of(cursor, name, (yield from _arguments(cursor)))])


def _react(cursor: Cursor) -> Steps[Parsed]:
    """`Action: NAME`, `Action Input: {...}`."""
    name = yield from _name(cursor)
    yield from cursor.space()
    yield from cursor.expect("Action Input:")
    return Parsed([call_of(cursor, name, (yield from _arguments(cursor)))])


def _imitation(cursor: Cursor) -> Steps[Parsed]:
    """`[Calling tool: NAME({...})]`: the text that an engine renders its history with."""
    name = yield from _name(cursor)
    yield from cursor.expect("(")
    arguments = yield from _arguments(cursor)
    yield from cursor.space()
    yield from cursor.expect(")")
    yield from cursor.expect("]")
    return Parsed([call_of(cursor, name, arguments)])


FUNCTIONARY = Format("functionary", "opt-in", (Row((">>>",), _functionary),))
REACT = Format("react", "opt-in", (Row(("Action:",), _react),))
IMITATION = Format("calling-tool", "opt-in", (Row(("[Calling tool:",), _imitation),))
