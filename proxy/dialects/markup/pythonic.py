"""Python literals as JSON text, by a scanner of its own: never `eval`, never `ast`."""

from __future__ import annotations

import json
import re

_DEPTH = 64
_SPACE = re.compile(r"\s*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z]+(?!\w)")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_STRINGS = {
    "'": re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL),
    '"': re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL),
}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|\n|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\\": "\\", "'": "'", '"': '"', "\n": ""}


class _NoLiteral(Exception):
    pass


def to_json(text: str) -> str | None:
    """The JSON text of the literal that `text` is, numbers as written; None if it is none.

    Strings, numbers, lists, tuples, dicts with string keys, and True, False, None in Python's or JSON's spelling.
    """
    out: list[str] = []
    try:
        end = _space(text, _value(text, _space(text, 0), out, 0))
    except _NoLiteral:
        return None
    return "".join(out) if end == len(text) else None


def _space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # also matches nothing


def _value(text: str, at: int, out: list[str], depth: int) -> int:
    char = text[at : at + 1]
    if char in ("'", '"'):
        return _string(text, at, out)
    if char in ("[", "("):
        return _list(text, at, out, depth + 1)
    if char == "{":
        return _dict(text, at, out, depth + 1)
    number = _NUMBER.match(text, at)
    if number is not None:
        out.append(number.group())
        return number.end()
    word = _WORD.match(text, at)
    if word is None or word.group() not in _WORDS:
        raise _NoLiteral
    out.append(_WORDS[word.group()])
    return word.end()


def _string(text: str, at: int, out: list[str]) -> int:
    found = _STRINGS[text[at]].match(text, at)
    if found is None:
        raise _NoLiteral
    out.append(json.dumps(_ESCAPE.sub(_unescaped, found.group(1)), ensure_ascii=False))
    return found.end()


def _unescaped(found: re.Match[str]) -> str:
    code = found.group(1)
    if len(code) > 1:
        point = int(code[1:], 16)
        if point > 0x10FFFF:
            raise _NoLiteral
        return chr(point)
    return _ESCAPES.get(code, found.group())  # Python keeps the backslash of an escape that it does not know


def _list(text: str, at: int, out: list[str], depth: int) -> int:
    closer = "]" if text[at] == "[" else ")"
    if depth > _DEPTH:
        raise _NoLiteral
    out.append("[")
    at = _space(text, at + 1)
    items = commas = 0
    while text[at : at + 1] != closer:
        if items:
            out.append(", ")
        at = _space(text, _value(text, at, out, depth))
        items += 1
        commas += text[at : at + 1] == ","
        at = _comma(text, at, closer)
    if closer == ")" and items == 1 and not commas:
        raise _NoLiteral  # brackets round one value make no tuple
    out.append("]")
    return at + 1


def _dict(text: str, at: int, out: list[str], depth: int) -> int:
    if depth > _DEPTH:
        raise _NoLiteral
    out.append("{")
    at = _space(text, at + 1)
    first = True
    while text[at : at + 1] != "}":
        if not first:
            out.append(", ")
        if text[at : at + 1] not in ("'", '"'):
            raise _NoLiteral
        at = _space(text, _string(text, at, out))
        if text[at : at + 1] != ":":
            raise _NoLiteral
        out.append(": ")
        at = _space(text, _value(text, _space(text, at + 1), out, depth))
        first = False
        at = _comma(text, at, "}")
    out.append("}")
    return at + 1


def _comma(text: str, at: int, closer: str) -> int:
    if text[at : at + 1] == ",":
        return _space(text, at + 1)
    if text[at : at + 1] != closer:
        raise _NoLiteral
    return at
