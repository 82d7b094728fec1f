"""Where a JSON value ends and where its parts stand, without decoding it.

The scanners look at brackets, strings and escapes only; whether the text is strict JSON is decided elsewhere. They
jump from one structural character to the next with regular expressions, keep nesting in a list instead of recursing,
and read every character once, so that neither long strings nor deep nesting costs more than its length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

_BLANK = " \t\n\r"
_SPACE = re.compile(r"[ \t\n\r]*+")
_IN_STRING = re.compile(r'[^"\\]*+')
_OUTSIDE = re.compile(r'[^"{}\[\]]*+')
_SCALAR_RUN = re.compile(r'[^"{}\[\] \t\n\r,:]*+')
_SCALAR = re.compile(r"true|false|null|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SCALAR_BEGIN = re.compile(
    r"t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?|-?(?:[0-9]+(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?"
)
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# A string without an end goes to the end of the text: else each escaped quote in it would be tried as a beginning.
_TEXT = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_PART = re.compile(rf"{_TEXT.pattern}|[{{}}\[\]]", re.DOTALL)
# Up to the next bracket that opens or comma, strings left out; one without an end has neither in it.
_TO_VALUE = rb'(?:[^"\[{,]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))*+[\[{,]'
_STEPS = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")  # as signed bytes: one level down, one up
_NO_BRACKETS = bytes(set(range(256)) - set(b"{[}]"))
_CLOSER = {"{": "}", "[": "]"}


class JsonScan:
    """Follows the text of one JSON value through fragments that may be cut anywhere."""

    __slots__ = ("_begun", "_closed", "_closers", "_escaped", "_in_string", "_scalar", "_seen", "_wrong", "end")

    def __init__(self) -> None:
        self.end = 0
        """Offset (characters since the first fragment) behind the value; 0 while no whole value was seen."""
        self._seen = 0
        self._closers: list[str] = []
        self._in_string = self._escaped = False
        self._scalar = ""
        self._begun = self._closed = self._wrong = False

    @property
    def complete(self) -> bool:
        """Exactly one whole value was seen, and nothing but white space after it. (A number may still grow.)"""
        return not self._wrong and (self._closed or _SCALAR.fullmatch(self._scalar) is not None)

    @property
    def prefix(self) -> bool:
        """What was seen can, by its brackets and strings, be the beginning of one JSON value, or the whole of it."""
        return not self._wrong and (not self._scalar or _SCALAR_BEGIN.fullmatch(self._scalar) is not None)

    def feed(self, text: str) -> None:
        at, length = 0, len(text)
        while at < length and not self._wrong:
            if self._in_string:
                at = self._string(text, at)
            elif self._closers:
                at = self._inside(text, at)
            else:
                at = self._top(text, at)
        self._seen += length

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        at = _IN_STRING.match(text, at).end()  # type: ignore[union-attr]  # the pattern also matches nothing
        if at < len(text):
            if text[at] == "\\":
                self._escaped = True
            else:
                self._in_string = False
                if not self._closers:
                    self._close(at + 1)
            at += 1
        return at

    def _inside(self, text: str, at: int) -> int:
        at = _OUTSIDE.match(text, at).end()  # type: ignore[union-attr]
        if at < len(text):
            char = text[at]
            if char == '"':
                self._in_string = True
            elif char in _CLOSER:
                self._closers.append(_CLOSER[char])
            elif self._closers.pop() != char:
                self._wrong = True
            elif not self._closers:
                self._close(at + 1)
            at += 1
        return at

    def _top(self, text: str, at: int) -> int:
        """Outside every bracket: before the value, in a bare number or word, or behind the value."""
        if self._scalar and not self._closed:
            stop = _SCALAR_RUN.match(text, at).end()  # type: ignore[union-attr]
            self._grow(text[at:stop], stop)
            if stop < len(text) and text[stop] in _BLANK and self.complete:
                self._closed = True
            elif stop < len(text):
                self._wrong = True
            return stop
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return at
        char = text[at]
        if self._begun or char in "}],:":
            self._wrong = True
            return at
        self._begun = True
        if char == '"':
            self._in_string = True
        elif char in _CLOSER:
            self._closers.append(_CLOSER[char])
        else:
            self._grow(char, at + 1)
        return at + 1

    def _grow(self, text: str, end: int) -> None:
        # No number that a double can hold is written with so many characters; the rest of such a text is not kept.
        if len(self._scalar) + len(text) > 4096:
            self._wrong = True
        self._scalar += text
        self.end = self._seen + end

    def _close(self, end: int) -> None:
        self._closed = True
        self.end = self._seen + end


def is_deeper(text: str, levels: int) -> bool:
    """Whether brackets outside strings are nested deeper than `levels`; brackets that do not match are only counted."""
    if text.count("{") + text.count("[") <= levels:
        return False
    brackets = _TEXT.sub("", text).encode("utf-8", "surrogatepass").translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(brackets).cast("b")), default=0) > levels


def has_more_values(data: bytes, most: int) -> bool:
    """Whether brackets that open and commas, outside strings, are more than `most`: what a document takes in memory
    grows with them. Reads no further than up to there."""
    if data.count(b",") + data.count(b"[") + data.count(b"{") <= most:
        return False
    return re.compile(b"(?:%b){%d}+" % (_TO_VALUE, most + 1), re.DOTALL).match(data) is not None


def value_end(text: str, at: int) -> int:
    """The offset behind the value that begins at `at` (no white space before it). ValueError if it never ends."""
    char = text[at : at + 1]
    if char == '"':
        whole = _STRING.match(text, at)
        if whole is None:
            raise ValueError("the string does not end")
        return whole.end()
    if char not in _CLOSER:
        end = _SCALAR_RUN.match(text, at).end()  # type: ignore[union-attr]
        if end == at:
            raise ValueError("no value here")
        return end
    depth = 0
    for part in _PART.finditer(text, at):
        char = text[part.start()]
        if char in "{[":
            depth += 1
        elif char != '"':
            depth -= 1
            if depth == 0:
                return part.end()
    raise ValueError("the value does not end")


def skip_blanks(text: str, at: int) -> int:
    """Where the first character from `at` on is that is no white space of JSON (RFC 8259, 2)."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # also matches nothing


def _object_spans(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """(decoded key, begin, end) of each member's value of the object that begins at `at`."""
    at = skip_blanks(text, at + 1)
    while text[at : at + 1] != "}":
        key = _STRING.match(text, at)
        if key is None:
            raise ValueError("no key here")
        at = skip_blanks(text, key.end())
        if text[at : at + 1] != ":":
            raise ValueError("no colon here")
        begin = skip_blanks(text, at + 1)
        end = value_end(text, begin)
        source = key.group()
        yield (json.loads(source, strict=False) if "\\" in source else source[1:-1]), begin, end
        at = skip_blanks(text, end)
        if text[at : at + 1] == ",":
            at = skip_blanks(text, at + 1)
        elif text[at : at + 1] != "}":
            raise ValueError("no comma here")


def _item_spans(text: str, at: int) -> Iterator[tuple[int, int]]:
    at = skip_blanks(text, at + 1)
    while text[at : at + 1] != "]":
        end = value_end(text, at)
        yield at, end
        at = skip_blanks(text, end)
        if text[at : at + 1] == ",":
            at = skip_blanks(text, at + 1)
        elif text[at : at + 1] != "]":
            raise ValueError("no comma here")


def members(text: str) -> list[tuple[str, str]]:
    """The members of the JSON object that `text` is: decoded key and the value's own characters, doubled keys too.

    ValueError if the text is no object.
    """
    at = skip_blanks(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not an object")
    return [(key, text[begin:end]) for key, begin, end in _object_spans(text, at)]


def member_spans(text: str, key: str) -> list[tuple[int, int]]:
    """Where the values of the object's own members `key` stand: begin and end of each, doubled keys too.

    ValueError if the text is no object.
    """
    at = skip_blanks(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not an object")
    return [(begin, end) for name, begin, end in _object_spans(text, at) if name == key]


def items(text: str) -> list[str]:
    """The source characters of each element of the JSON array that `text` is. ValueError if the text is no array."""
    at = skip_blanks(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("not an array")
    return [text[begin:end] for begin, end in _item_spans(text, at)]


def value_span(text: str, path: Sequence[str | int]) -> str | None:
    """The source characters of the value at `path` in the JSON document `text`; None if there is none.

    Of doubled keys the last counts, as for every decoder in use here. Reads the document once for each component.
    """
    try:
        at = skip_blanks(text, 0)
        end = value_end(text, at)
        for part in path:
            found: tuple[int, int] | None = None
            if isinstance(part, str) and text[at] == "{":
                for key, begin, stop in _object_spans(text, at):
                    if key == part:
                        found = begin, stop
            elif isinstance(part, int) and text[at] == "[":
                for index, span in enumerate(_item_spans(text, at)):
                    if index == part:
                        found = span
                        break
            if found is None:
                return None
            at, end = found
        return text[at:end]
    except ValueError:
        return None
