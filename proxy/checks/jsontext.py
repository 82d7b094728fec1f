"""Strict JSON: RFC 8259 as orjson reads it, no duplicate keys, at most 64 levels, integers kept exact.

orjson decides what is JSON (no NaN, no raw control characters, no lone surrogates, no byte order mark; all 95 `y_` and
188 `n_` files of nst/JSONTestSuite as they should be). It turns integers over 64 bits into floats and keeps the last
of doubled keys without a word, so the value itself comes from `json` with hooks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import orjson

from proxy.wire.jsondoc import has_long_integer, keys_once
from proxy.wire.jsonscan import is_deeper

MAX_LEVELS = 64

_MESSAGES = {
    "not_json": "the text is not JSON",
    "number_out_of_range": "a number is too large for any JSON reader in use",
    "lone_surrogate": "half of a surrogate pair stands alone: no UTF-8 text can hold it",
    "duplicate_key": "an object has the same key twice",
    "too_deep": f"the value is nested deeper than {MAX_LEVELS} levels",
}


class NotStrict(ValueError):
    """Why a text is not strict JSON: `rule`, a `message` without any part of the text, and the `path` of the place."""

    def __init__(self, rule: str, message: str | None = None, path: tuple[str | int, ...] = ()) -> None:
        self.rule = rule
        self.message = message or _MESSAGES[rule]
        self.path = path
        super().__init__(self.message)

    def as_value(self) -> NotStrict:
        """The same without its traceback, whose frames, kept in a value, would keep the whole exchange."""
        return NotStrict(self.rule, self.message, self.path)


class _Doubled(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Doubled
    return made


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


def _decoder(pairs: Callable[[list[tuple[str, Any]]], Any], number: Callable[[str], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=pairs, parse_float=number, parse_constant=_refuse)


def _exact_number(text: str) -> Any:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond what decimal holds: only the same characters are the same number
        return text.encode()


_DECODER = _decoder(_once, float)
_EXACT = _decoder(_once, _exact_number)
_PAIRS = _decoder(tuple, float)


def parse_strict(text: str) -> Any:
    """The value of a strict JSON text, integers exact and other numbers as floats. Raises `NotStrict`."""
    data = text.encode("utf-8", "surrogatepass")
    if data.count(b"{") + data.count(b"[") <= MAX_LEVELS and not has_long_integer(data):
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            return _parse(text, _DECODER)  # it says why
        if keys_once(value, data):
            return value
    return _parse(text, _DECODER)


def parse_exact(text: str) -> Any:
    """As `parse_strict`, but numbers with a fraction or an exponent are `Decimal`s, for `same_value`."""
    return _parse(text, _EXACT)


def _parse(text: str, decoder: json.JSONDecoder) -> Any:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _not_json(text, error) from None
    if is_deeper(text, MAX_LEVELS):
        raise NotStrict("too_deep")
    try:
        return decoder.decode(text)
    except _Doubled:
        raise NotStrict("duplicate_key", path=_doubled_path(text)) from None


def _not_json(text: str, error: orjson.JSONDecodeError) -> NotStrict:
    if error.msg.startswith("number is infinity"):
        return NotStrict("number_out_of_range")
    if any(mark in error.msg for mark in ("depth limit", "recursion")):
        return NotStrict("too_deep")
    if "surrogate" in error.msg:
        return NotStrict("lone_surrogate")
    if not text.strip(" \t\n\r"):
        return NotStrict("not_json", "the text is empty")
    if error.pos >= len(text):
        return NotStrict("not_json", "the text is not JSON: it ends too early")
    return NotStrict("not_json", f"the text is not JSON (at character {error.pos + 1})")


def _doubled_path(text: str) -> tuple[str | int, ...]:
    """Where the first doubled key of a JSON text (64 levels at most) stands. Objects are decoded to tuples of pairs."""
    todo: list[tuple[Any, tuple[str | int, ...]]] = [(_PAIRS.decode(text), ())]
    while todo:
        value, path = todo.pop()
        if isinstance(value, tuple):
            seen: set[str] = set()
            for key, _ in value:
                if key in seen:
                    return *path, key
                seen.add(key)
            todo.extend((member, (*path, key)) for key, member in reversed(value))
        elif isinstance(value, list):
            todo.extend((item, (*path, index)) for index, item in reversed(list(enumerate(value))))
    raise AssertionError("no key is doubled")


def same_value(one: Any, other: Any) -> bool:
    """Whether two values of `parse_exact` are the same JSON value: numbers by their exact value, `true` is not 1, the
    order of keys does not matter."""
    todo = [(one, other)]
    while todo:
        a, b = todo.pop()
        if isinstance(a, bool) or isinstance(b, bool):
            if a is not b:
                return False
        elif isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            todo.extend((a[key], b[key]) for key in a)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            todo.extend(zip(a, b, strict=True))
        elif a != b or isinstance(a, str) != isinstance(b, str):
            return False
    return True
