"""Keys that stand twice around a call: parsers differ on which one counts, so that an event may hold another call for
its reader than it does for the proxy."""

from __future__ import annotations

from typing import Any

from proxy.dialects.base import BadEvent
from proxy.wire.jsondoc import doubled_keys


def check_keys(document: Any, data: bytes | None, opaque: frozenset[str]) -> None:
    """For events with a call. `data` is what `document` was read from; None: an event of several documents. `opaque`
    are the fields that hold arguments, which are judged by themselves. Raises BadEvent."""
    if data is not None and not _has_no_more(document, data) and doubled_keys(data, opaque):
        raise BadEvent("a call in an event with a doubled key: parsers differ on which one counts")


def _has_no_more(document: Any, data: bytes) -> bool:
    """Whether `data` has just the quotation marks of the keys and strings that were read: a doubled key has two more.
    Counting costs a fifth of reading the event again."""
    if b"\\\\" in data:
        return False  # a backslash before a quotation mark may be one that is escaped itself
    try:
        return data.count(b'"') - data.count(b'\\"') == _quotes(document)
    except RecursionError:
        return False


def _quotes(value: Any) -> int:
    if type(value) is str:
        return 2
    if type(value) is dict:
        return 2 * len(value) + sum(map(_quotes, value.values()))
    return sum(map(_quotes, value)) if type(value) is list else 0
