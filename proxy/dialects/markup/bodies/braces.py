"""Gemma's call grammar: `call:NAME{key:<|"|>text<|"|>,number:42,object:{...},list:[...]}`. The delimiter of texts is
a parameter; keys are bare."""

from __future__ import annotations

import re

import orjson

from proxy.dialects.markup.base import (
    NAME_LIMIT,
    Body,
    Cursor,
    LeakedCall,
    Mismatch,
    Parsed,
    Rule,
    Steps,
    Stops,
    Unfinished,
)
from proxy.dialects.markup.bodies.members import Members
from proxy.dialects.markup.schema import Shape, quoted

_DEPTH = 64
_BARE_LIMIT = 1024
_BARE = re.compile(rf"[^,{{}}\[\]\n<]{{1,{_BARE_LIMIT}}}+(?=[,}}\]\n])")
_KEY = re.compile(rf"[^\s:,{{}}\[\]<>\"]{{1,{NAME_LIMIT}}}+(?=\s*:)")


def braces(delimiter: str) -> Body:
    stops = Stops(delimiter)

    def body(cursor: Cursor) -> Steps[Parsed]:
        yield from cursor.space()
        yield from cursor.expect("call:")
        name = yield from cursor.word(cursor.watch)
        if not name:
            raise Mismatch
        name = cursor.name(name)
        yield from cursor.space()
        yield from cursor.expect("{")
        values = _Values(cursor, stops, cursor.tools.shape(name))
        return Parsed([LeakedCall(name, (yield from values.members(None, 1)))])

    return body


class _Values:
    """Reads values as JSON text. `schema` is that of the value, None where it is not declared."""

    def __init__(self, cursor: Cursor, stops: Stops, shape: Shape) -> None:
        self._cursor = cursor
        self._stops = stops
        self._delimiter = stops.literals[0]
        self._shape = shape

    def members(self, schema: object, depth: int) -> Steps[str]:
        """Behind the opening brace."""
        cursor, shape = self._cursor, self._shape
        found = Members(cursor)
        while True:
            yield from cursor.space()
            if (yield from cursor.take("}")):
                break
            key = yield from self._key()
            member = shape.properties.get(key) if depth == 1 else shape.property_of(schema, key)
            value = yield from self._value(member, depth)
            found.add(key, value)
            yield from cursor.space()
            if (yield from cursor.expect(",", "}")) == "}":
                break
        return found.json()

    def _key(self) -> Steps[str]:
        """A key and its colon: bare, or a text."""
        cursor = self._cursor
        if (yield from cursor.take(self._delimiter)):
            key, _ = yield from cursor.until(self._stops)
        elif (yield from cursor.peek('"')):
            key = yield from cursor.string()
        else:
            found = yield from cursor.match(_KEY, NAME_LIMIT + 1)
            if found is None:
                raise Unfinished if cursor.ended else Mismatch
            key = found.group()
        yield from cursor.space()
        yield from cursor.expect(":")
        return key

    def _list(self, schema: object, depth: int) -> Steps[str]:
        cursor = self._cursor
        items: list[str] = []
        while True:
            yield from cursor.space()
            if (yield from cursor.take("]")):
                break
            cursor.keep(items, (yield from self._value(self._shape.items_of(schema), depth)))
            yield from cursor.space()
            if (yield from cursor.expect(",", "]")) == "]":
                break
        return "[" + ", ".join(items) + "]"

    def _value(self, schema: object, depth: int) -> Steps[str]:
        cursor = self._cursor
        if depth > _DEPTH:
            raise Mismatch
        yield from cursor.space()
        opened = yield from cursor.take(self._delimiter, "{", "[")
        if opened == "{":
            return (yield from self.members(schema, depth + 1))
        if opened == "[":
            return (yield from self._list(schema, depth + 1))
        if opened:
            text, stop = yield from cursor.until(self._stops)
            if not stop:
                raise Unfinished
            return quoted(text)
        if (yield from cursor.peek('"')):
            return (yield from cursor.json())
        bare = yield from cursor.match(_BARE, _BARE_LIMIT + 1)
        if bare is None:
            raise Unfinished if cursor.ended else Mismatch
        return _literal(bare.group().strip(), self._shape, schema)


def _literal(text: str, shape: Shape, schema: object) -> str:
    """A bare value is a JSON literal, or a text whose delimiters were lost if the schema wants one."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        if "string" not in shape.types(schema):
            raise Mismatch(Rule.ARGUMENTS) from None
        return quoted(text)
    return text
