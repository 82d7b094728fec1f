"""Keys that stand twice around a call: parsers differ on which one counts, so that an event may hold another call for
its reader than it does for the proxy."""

from __future__ import annotations

from typing import Any

from proxy.dialects.base import BadEvent
from proxy.wire.jsondoc import doubled_keys, keys_once


def check_keys(document: Any, data: bytes | None, opaque: frozenset[str]) -> None:
    """For events with a call. `data` is what `document` was read from; None: an event of several documents. `opaque`
    are the fields that hold arguments, which are judged by themselves. Raises BadEvent."""
    if data is not None and not keys_once(document, data) and doubled_keys(data, opaque):
        raise BadEvent("a call in an event with a doubled key: parsers differ on which one counts")
