"""A name, a separator, JSON arguments: Kimi, DeepSeek, Mistral."""

from __future__ import annotations

import re

from proxy.dialects.markup.base import Body, Cursor, Mismatch, Parsed, Steps
from proxy.dialects.markup.bodies.json_calls import call_of

_INDEX = re.compile(r":[0-9]{0,9}$")


def named(*separators: str, kind: str = "", fenced: bool = False, indexed: bool = False) -> Body:
    """`NAME`, one of `separators` (none: the bracket itself), JSON.

    `kind`: a word and a separator before the name. `fenced`: the arguments stand in a code fence of their own.
    `indexed`: the name is a header `functions.NAME:3`, which is the call's id.
    """

    def body(cursor: Cursor) -> Steps[Parsed]:
        yield from cursor.space()
        if kind:
            yield from cursor.expect(kind)
            yield from cursor.expect(*separators)
            yield from cursor.space()
        name, call_id = yield from _header(cursor, indexed)
        yield from cursor.space()
        if separators and not kind:
            yield from cursor.expect(*separators)
            yield from cursor.space()
        fence = (yield from cursor.take("```")) if fenced else ""
        if fence:
            yield from cursor.word()
            yield from cursor.space()
        arguments = yield from _object(cursor)
        if fence:
            yield from cursor.space()
            yield from cursor.take("```")
        return Parsed([call_of(cursor, name, arguments, call_id)])

    return body


def _header(cursor: Cursor, indexed: bool) -> Steps[tuple[str, str]]:
    def watch(written: str) -> None:
        cursor.watch(_INDEX.sub("", written))

    header = yield from cursor.word(watch if indexed else cursor.watch)
    if not header:
        raise Mismatch
    if not indexed:
        return cursor.name(header), ""
    bare = _INDEX.sub("", header)
    return cursor.name(bare), header if bare != header else ""


def _object(cursor: Cursor) -> Steps[str]:
    """The arguments: only an object, or text that holds one, can be told from prose."""
    if (yield from cursor.char()) not in '{"':
        raise Mismatch
    return (yield from cursor.json())


def mistral(cursor: Cursor) -> Steps[Parsed]:
    """`NAME[CALL_ID]ID[ARGS]{...}` behind the marker, both inner markers optional."""
    yield from cursor.space()
    name = yield from cursor.word(cursor.watch)
    if not name:
        raise Mismatch
    name = cursor.name(name)
    call_id = ""
    yield from cursor.space()
    if (yield from cursor.take("[CALL_ID]")):
        yield from cursor.space()
        call_id = yield from cursor.word()
        yield from cursor.space()
    yield from cursor.take("[ARGS]")
    yield from cursor.space()
    return Parsed([call_of(cursor, name, (yield from _object(cursor)), call_id)])


def headless(marker: str) -> Body:
    """`NAME:3`, `marker`, JSON at the start of the content: the opener was eaten. The header is the id."""

    def body(cursor: Cursor) -> Steps[Parsed]:
        name, _ = yield from _header(cursor, True)
        yield from cursor.expect(marker)
        yield from cursor.space()
        arguments = yield from _object(cursor)
        return Parsed([call_of(cursor, name, arguments)])

    return body
