"""JSON documents of the wire: fast where they are clean, tolerant where an event would be lost otherwise."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import orjson

from proxy.model.findings import Quirk
from proxy.wire.jsonscan import is_deeper, skip_blanks

MAX_DOCUMENTS = 65_536  # in one event or body: a long reply in chunks; 4,000,000 empty ones took 5 s
MAX_LEVELS = 240  # of brackets: orjson writes 254 with what an event adds, Python's own reader stops below 1,000
_TOO_DEEP = f"nested too deeply: over {MAX_LEVELS} levels"


def _finite(source: str) -> float | None:
    number = float(source)
    return number if isfinite(number) else None


# Some Python servers write a logprob of -Infinity, and no strict parser takes it: such a number becomes null.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None, parse_float=_finite)


def _no_number(source: str) -> float:
    raise ValueError(f"{source[:20]} is no number that JSON has")


def _number(source: str) -> float:
    number = float(source)
    return number if isfinite(number) else _no_number(source)


_STRICT = json.JSONDecoder(parse_constant=_no_number, parse_float=_number)
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_LONG = b"0" * 19  # digits of the shortest integer that 64 bits may not hold
_BEFORE_NUMBERS = b"[:, \t\r\n-"
_LINE_ENDS = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))


class NotJson(ValueError):
    """The bytes are no JSON document, nor several."""


class TooDeep(NotJson):
    """They may be: nested so deep that they are not read."""


def load(data: bytes, *, strict: bool = False) -> Any:
    """The one document in `data`, integers exact. Raises NotJson; `strict`: also for NaN, Infinity and numbers that no
    double holds, which are null else.

    orjson refuses lone surrogate escapes and turns integers beyond 64 bit into floats; `json` does neither.
    """
    if not has_long_integer(data):
        try:
            return checked(orjson.loads(data), data)
        except orjson.JSONDecodeError:
            pass
    text = _shallow(decode(data)[0])
    try:
        return (_STRICT if strict else _DECODER).decode(text)
    except ValueError as error:
        raise NotJson(str(error)) from None


def checked(document: Any, data: bytes) -> Any:
    """`document`, which orjson read from `data`, if it can be written again. Raises NotJson for too many levels."""
    if len(data) > 2 * MAX_LEVELS and data.count(b"[") + data.count(b"{") > MAX_LEVELS:
        try:
            orjson.dumps(document)
        except orjson.JSONEncodeError:  # for its levels, or for half a character
            _shallow(decode(data)[0])
    return document


def _shallow(text: str) -> str:
    """`text`, unless its brackets are nested so deep that a parser or a writer would give up. Raises NotJson."""
    if len(text) > 2 * MAX_LEVELS and is_deeper(text, MAX_LEVELS):
        raise TooDeep(_TOO_DEEP)
    return text


def exact(document: Any, data: bytes) -> Any:
    """`document`, which orjson read from `data`, with its long integers whole: what is written anew must keep them."""
    return load(data) if has_long_integer(data) else document


def has_long_integer(data: bytes) -> bool:
    """Whether orjson may have made a float of an integer. (A regular expression takes twenty times as long.)"""
    zeros = data.translate(_DIGITS_TO_ZERO)
    at = zeros.find(_LONG)
    while at > 0 and data[at - 1] not in _BEFORE_NUMBERS:  # digits of an id
        at = zeros.find(_LONG, at + len(_LONG))
    return at >= 0


def keys_once(document: Any, data: bytes) -> bool:
    """Whether surely no object in `data`, of which orjson read `document`, has a key twice. False: unknown.

    A key that was read over leaves two quotation marks less in `document` written anew. Counting them takes a tenth of
    what reading all keys takes.
    """
    if b"\\\\" in data:
        return False  # a backslash before a quotation mark may be one that is escaped itself
    try:
        again = orjson.dumps(document)
    except TypeError:  # long integers, or too many levels
        return False
    if b"\\\\" in again:
        return False
    return data.count(b'"') - data.count(b'\\"') == again.count(b'"') - again.count(b'\\"')


def doubled_keys(data: bytes, opaque: frozenset[str] = frozenset()) -> bool:
    """Whether an object in the document has a key twice, escapes resolved: parsers differ on which one counts.

    What stands under a key of `opaque` (a call's arguments, which are judged by themselves) is not looked into.
    """
    flagged: dict[int, Any] = {}  # objects with a doubled key in them, kept so that no other takes their identity

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs) or any(key not in opaque and _holds(item, flagged) for key, item in pairs):
            flagged[id(value)] = value
        return value

    try:
        return _holds(json.loads(decode(data)[0], object_pairs_hook=check), flagged)
    except (ValueError, RecursionError):
        return False


def _holds(value: Any, flagged: dict[int, Any]) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict) and id(item) in flagged:
            return True
        if isinstance(item, list):
            waiting += item
    return False


def documents(data: bytes) -> tuple[list[Any], list[Quirk]]:
    """The documents in one event's data (one, where all is well), and what was odd. Raises NotJson."""
    try:
        return [checked(orjson.loads(data), data)], []
    except orjson.JSONDecodeError:
        pass
    text, quirks = decode(data)
    found: list[Any] = []
    at = skip_blanks(text, 0)
    try:
        while at < len(text):
            at = _read(text, at, found)
    except ValueError as error:
        raise NotJson(str(error)) from None
    if not found:
        raise NotJson("empty")
    if len(found) > 1:
        quirks.append(Quirk.EVENTS_GLUED)
    return found, quirks


def leading_documents(data: bytes) -> tuple[list[Any], bytes, bytes]:
    """The documents that `data` begins with, their bytes, and the bytes behind them. Raises NotJson where one is
    broken."""
    text = decode(data)[0]
    found: list[Any] = []
    at = skip_blanks(text, 0)
    try:
        while at < len(text) and text[at] in "{[" and not text.startswith("[DONE]", at):
            at = _read(text, at, found)
    except ValueError as error:
        raise NotJson(str(error)) from None
    return found, text[:at].encode("utf-8", "surrogatepass"), text[at:].encode("utf-8", "surrogatepass")


def _read(text: str, at: int, found: list[Any]) -> int:
    """Read the document at `at`. Returns where the next one may stand."""
    if len(found) == MAX_DOCUMENTS:
        raise NotJson(f"more than {MAX_DOCUMENTS} documents in a row")
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError:
        raise TooDeep(_TOO_DEEP) from None
    except ValueError:
        _shallow(text[at:])  # how deep the parser gets depends on the stack that it is called on: say the same for all
        raise
    if end - at > 2 * MAX_LEVELS:
        _shallow(text[at:end])
    found.append(value)
    return skip_blanks(text, end)


def decode(data: bytes) -> tuple[str, list[Quirk]]:
    """UTF-8 text; surrogates written as UTF-8 stay (they are joined later), other bytes become U+FFFD, a quirk."""
    try:
        return data.decode("utf-8", "surrogatepass"), []
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), [Quirk.INVALID_UTF8]


def is_strict(data: bytes) -> bool:
    """Whether any parser reads this document: no NaN, no half a character, nothing but UTF-8."""
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def is_utf8(data: bytes) -> bool:
    """Whether `data` may go to a client as it is: UTF-8, without surrogates written as such."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def dump(value: Any) -> bytes:
    """JSON of `value`. orjson refuses lone surrogates, integers beyond 64 bit and more than 254 levels; halves of
    characters are joined, or replaced: strict parsers refuse them."""
    try:
        return orjson.dumps(value)
    except TypeError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return join_surrogates(text).encode()


def one_line(payload: bytes) -> bytes:
    """`payload` with U+2028, U+2029 and U+0085 escaped: some clients split lines at them (httpx `aiter_lines`).

    They can stand in a JSON document inside strings only, so that the escapes mean the same.
    """
    if not payload.isascii() and (b"\xe2\x80" in payload or b"\xc2\x85" in payload):
        for character, escape in _LINE_ENDS:
            payload = payload.replace(character, escape)
    return payload


def join_surrogates(text: str) -> str:
    """Halves of a character that stand side by side become that character; one that is left alone U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
