"""MiniMax M3: a token before every tag, parameters named by their tags, objects and `<item>` lists nested in them."""

from __future__ import annotations

from proxy.dialects.markup.base import Cursor, LeakedCall, Mismatch, Parsed, Steps, Stops, Unfinished
from proxy.dialects.markup.bodies.members import Members
from proxy.dialects.markup.bodies.tagged import attribute_head
from proxy.dialects.markup.schema import Shape

TOKEN = "]<]minimax[>["  # noqa: S105 - a token of markup
_DEPTH = 32
_STOPS = Stops(TOKEN)
_head = attribute_head()


def invoke(cursor: Cursor) -> Steps[Parsed]:
    """Behind `<invoke name=`."""
    written, _ = yield from _head(cursor)
    name = cursor.name(written)
    shape = cursor.tools.shape(name)
    members = Members(cursor)
    while True:
        yield from cursor.space()
        tag = yield from _tag(cursor)
        if tag == "/invoke":
            break
        if tag.startswith("/"):
            raise Mismatch
        value = yield from _element(cursor, tag, shape, shape.properties.get(tag), 1)
        members.add(tag, value)
    return Parsed([LeakedCall(name, members.json())])


def _tag(cursor: Cursor) -> Steps[str]:
    """The name in the tag that stands here, with its slash."""
    yield from cursor.expect(TOKEN)
    yield from cursor.space()
    yield from cursor.expect("<")
    name = yield from cursor.word()
    yield from cursor.expect(">")
    if not name.strip("/"):
        raise Mismatch
    return name


def _element(cursor: Cursor, name: str, shape: Shape, schema: object, depth: int) -> Steps[str]:
    """The JSON text of what stands between a tag and its closer."""
    if depth > _DEPTH:
        raise Mismatch
    members = Members(cursor)
    items: list[str] = []
    while True:
        text = yield from _text(cursor)
        tag = yield from _tag(cursor)
        if tag == "/" + name:
            break
        if tag.startswith("/") or text.strip():
            raise Mismatch
        if tag == "item":
            cursor.keep(items, (yield from _element(cursor, tag, shape, shape.items_of(schema), depth + 1)))
        else:
            members.add(tag, (yield from _element(cursor, tag, shape, shape.property_of(schema, tag), depth + 1)))
    if items and members.found:
        raise Mismatch
    if items:
        return "[" + ", ".join(items) + "]"
    return members.json() if members.found else shape.typed(text, schema)


def _text(cursor: Cursor) -> Steps[str]:
    """Text up to the next token, which stays unread."""
    text, stop = yield from cursor.until_before(_STOPS)
    if not stop:
        raise Unfinished
    return text
