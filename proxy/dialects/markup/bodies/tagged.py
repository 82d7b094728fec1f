"""Tags: a call with one tag a parameter, whose values are plain text. Also key and value in tags of their own (GLM).

A closing tag inside a value is text unless what follows it can follow a value: another parameter, or the end of the
call. Engines cut at the first closer, and lose what a file that is written through such a call says of the markup.
Where a value holds an opener, only a closer of its own ends it: the tags and closers of the inner call are text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from proxy.dialects.markup.base import (
    Body,
    Cursor,
    LeakedCall,
    Mismatch,
    Parsed,
    Steps,
    Stops,
    Unfinished,
)
from proxy.dialects.markup.bodies.json_calls import call_of
from proxy.dialects.markup.bodies.members import Members
from proxy.dialects.markup.schema import Shape, as_json, quoted

_WRAPPERS = ("arguments", "input", "parameters")  # a lone parameter of this name that holds the arguments
_FLAG = re.compile(r"(?:string|type)\s*=\s*[\"']?([a-z]{1,16})")
_TEXT_FLAGS = ("true", "string", "str", "text")
_KEY_LIMIT = 128  # characters of a parameter's key
_REST_LIMIT = 64  # of the other attributes of a tag
_TAG_LIMIT = 256  # of the whole tag

Head = Callable[[Cursor], Steps[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one format.

    `head` reads the call's name and the end of its tag; it also gives a first key where that stands there. `begin` and
    `tag` (groups `key` and `rest`) are a parameter's tag up to its value, `end` and `call_end` the closers. `outer` may
    follow where `call_end` is missing. `newline`: one line break on each side of a value is markup.
    """

    head: Head
    begin: str
    tag: re.Pattern[str]
    end: str
    call_end: str
    outer: tuple[str, ...] = ()
    newline: bool = False


def attribute_head(end: str = ">") -> Head:
    """`"NAME" ...>` behind `name=`, with double, single or no quotes."""
    rest = re.compile(rf"[^<>|]{{0,{_REST_LIMIT}}}+{re.escape(end)}")

    def head(cursor: Cursor) -> Steps[tuple[str, str]]:
        quote = yield from cursor.take('"', "'")
        name = yield from _name(cursor)
        if quote:
            yield from cursor.expect(quote)
        if (yield from cursor.match(rest, _REST_LIMIT + len(end))) is None:
            raise Unfinished if cursor.ended else Mismatch
        return name, ""

    return head


def bare_head(cursor: Cursor) -> Steps[tuple[str, str]]:
    """`NAME>` behind `<function=`; the bracket is sometimes a line break."""
    name = yield from _name(cursor)
    yield from cursor.expect(">", "\n")
    return name, ""


def pairs_head(cursor: Cursor) -> Steps[tuple[str, str]]:
    """`NAME` up to a line break, a tag or the closer. Where the first key's tag was eaten, the key is glued on."""
    tools = cursor.tools

    def split(written: str) -> tuple[str, str] | None:
        for name in tools.names:
            if written.startswith(name):
                key = written[len(name) :]
                if any(known.startswith(key) for known in tools.shape(name).properties):
                    return name, key
        return None

    def watch(written: str) -> None:
        if split(written) is None:
            cursor.watch(written)

    yield from cursor.space()
    written = yield from cursor.word(watch)
    if not written:
        raise Mismatch
    if tools.find(written) is None and (yield from cursor.take("</arg_key>")):
        glued = split(written)
        if glued is None or glued[1] not in tools.shape(glued[0]).properties:
            cursor.name(written)
            raise Mismatch
        yield from cursor.space()
        yield from cursor.expect("<arg_value>")
        cursor.name(glued[0])
        return glued
    cursor.name(written)
    yield from cursor.take("<tool_sep>")
    return written, ""


def bare_tag(end: str) -> re.Pattern[str]:
    """`KEY>` behind `<parameter=`."""
    return re.compile(rf"(?P<key>[^<>\n]{{1,{_KEY_LIMIT}}}+)(?P<rest>){end}")


def attribute_tag(end: str = ">") -> re.Pattern[str]:
    """`"KEY" ...>` behind `<parameter name=`."""
    name = r"(?P<quote>[\"']?)(?P<key>[^\s\"'<>|]{1,128}+)(?P=quote)"
    return re.compile(rf"{name}(?P<rest>(?:\s[^<>|]{{0,{_REST_LIMIT}}}+)?){re.escape(end)}")


PAIR_TAG = re.compile(rf"(?P<key>[^<]{{1,{_KEY_LIMIT}}}+)(?P<rest>)</arg_key>\s{{0,64}}<arg_value>")


def tagged(tags: Tags) -> Body:
    def body(cursor: Cursor) -> Steps[Parsed]:
        written, first = yield from tags.head(cursor)
        name = cursor.name(written)
        yield from cursor.space()
        if (yield from cursor.peek("{")):
            arguments = yield from cursor.json()
            yield from cursor.closing(tags.call_end, *tags.outer)
            return Parsed([call_of(cursor, name, arguments)])
        parameters = _Parameters(tags, cursor, cursor.tools.shape(name))
        yield from parameters.read(_Key(first) if first else None)
        return Parsed([LeakedCall(name, parameters.json())])

    return body


def _name(cursor: Cursor) -> Steps[str]:
    name = yield from cursor.word(cursor.watch)
    if not name:
        raise Unfinished if cursor.ended else Mismatch
    return cursor.name(name)


@lru_cache(maxsize=256)
def _stops(end: str, begin: str, call_end: str, *markers: str) -> Stops:
    """What ends a value, or begins a call inside it. Only openers that are tags: a fence or a bracket is no call's."""
    return Stops(end, begin, call_end, *(one for one in markers if one.startswith("<") and one != begin))


@dataclass(frozen=True, slots=True)
class _Key:
    name: str
    flag: str = ""  # what the tag itself says of the value's type


class _Parameters:
    """The parameters of one call, as they are read."""

    def __init__(self, tags: Tags, cursor: Cursor, shape: Shape) -> None:
        self._tags = tags
        self._cursor = cursor
        self._shape = shape
        self._members = Members(cursor)
        self._stops = _stops(tags.end, tags.begin, tags.call_end, *cursor.markers)
        self._after_value = (tags.begin, tags.call_end, *tags.outer)
        self._after_call = (*tags.outer, *cursor.markers)

    def read(self, key: _Key | None) -> Steps[None]:
        """Up to the end of the call. `key`: its tag was read already."""
        cursor, tags = self._cursor, self._tags
        closed = False
        while not closed:
            if key is None:
                yield from cursor.space()
                if (yield from cursor.take(tags.call_end)):
                    return
                if not (yield from cursor.take(tags.begin)):
                    yield from self._end_without_closer()
                    return
                key = yield from self._key()
                if key is None:
                    raise Unfinished if cursor.ended else Mismatch
            value, following, closed = yield from self._value()
            self._add(key, value)
            key = following

    def _key(self) -> Steps[_Key | None]:
        """The key of the parameter whose tag has begun, read up to the value; None if this is no such tag."""
        tag = yield from self._cursor.match(self._tags.tag, _TAG_LIMIT)
        if tag is None:
            return None
        flag = _FLAG.search(tag["rest"])
        return _Key(tag["key"].strip(), flag[1] if flag else "")

    def _value(self) -> Steps[tuple[str, _Key | None, bool]]:
        """A value; the key of the next parameter if its tag ended it; whether the call's closer ended it."""
        cursor, tags = self._cursor, self._tags
        parts: list[str] = []
        nested = False  # an opener stands in the value
        inner = 0  # parameters behind it that are open
        while True:
            text, stop = yield from cursor.until(self._stops)
            cursor.keep(parts, text)
            if not stop:
                raise Unfinished
            if stop == tags.begin:
                # a parameter's tag inside a value: the closer was forgotten if the key is declared, else it is text
                begin = cursor.offset
                key = yield from self._key()
                if nested:
                    inner += key is not None
                elif key is not None and key.name in self._shape.properties:
                    return "".join(parts), key, False
                cursor.keep(parts, stop, cursor.since(begin))
            elif stop == tags.end and inner:
                inner -= 1
                cursor.keep(parts, stop)
            elif stop == tags.end or (stop == tags.call_end and not nested):
                gap = yield from cursor.space()
                ahead = self._after_value if stop == tags.end else self._after_call
                if (yield from cursor.peek(*ahead)) or self._ends(stop, parts, ahead):
                    return "".join(parts), None, stop == tags.call_end
                cursor.keep(parts, stop, gap)
            else:
                nested = nested or stop != tags.call_end
                cursor.keep(parts, stop)

    def _ends(self, stop: str, parts: list[str], ahead: tuple[str, ...]) -> bool:
        """Whether the text ends behind this closer, and with it the value. The call's closer without the value's own
        is also what a value that breaks off may say."""
        cursor, tags = self._cursor, self._tags
        if not cursor.ended or not cursor.begun(*ahead):
            return False
        return stop == tags.end or (cursor.whole and tags.newline and parts[-1].endswith("\n"))

    def _add(self, key: _Key, text: str) -> None:
        if self._tags.newline:
            text = _trimmed(text)
        value = as_json(text.strip()) if key.flag else None
        if key.flag in _TEXT_FLAGS:
            value = quoted(text)
        elif value is None:
            value = self._shape.typed(text, self._shape.properties.get(key.name))
        self._members.add(key.name, value)

    def _end_without_closer(self) -> Steps[None]:
        """Only where all that is required is there, and nothing more was begun, is the call whole."""
        cursor, tags = self._cursor, self._tags
        outer = (yield from cursor.peek(*tags.outer)) if tags.outer else ""
        if not outer and not (cursor.ended and cursor.begun(tags.call_end, *tags.outer)):
            raise Mismatch
        found = self._members.found
        if cursor.doom is None and (not found or not self._shape.required <= found.keys()):
            raise Unfinished
        if not outer:
            if not cursor.whole or len(cursor.rest) == 1:  # the first character of a closer or of another parameter
                raise Unfinished
            cursor.finish()

    def json(self) -> str:
        """The arguments' JSON text."""
        found = self._members.found
        if len(found) == 1:
            key, value = next(iter(found.items()))
            if key in _WRAPPERS and key not in self._shape.properties:
                inner = as_json(json.loads(value).strip()) if value.startswith('"') else value
                if inner is not None and inner.startswith("{"):
                    return inner
        return self._members.json()


def _trimmed(text: str) -> str:
    """One line break on each side belongs to the markup, all else to the value."""
    for end in ("\r\n", "\n"):
        if text.startswith(end):
            text = text[len(end) :]
            break
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
