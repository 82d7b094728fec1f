"""Server-sent events on bytes. Source: WHATWG HTML, "Server-sent events", 9.2.6 (living standard, read 2026-11).

Tolerated besides, each a quirk: an event that is still pending when the body ends; a field named `error`; lines that
are no fields at all (kept, since relays write their error there without `data:`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from proxy.faults import limit_fault
from proxy.model.findings import Quirk

_LEFTOVER_LIMIT = 65_536
_new_tuple = tuple.__new__


class Frame(NamedTuple):
    """One event: its name (b"" is the default) and its data, the data lines joined by LF."""

    event: bytes
    data: bytes


class SseDecoder:
    """Events out of bytes cut anywhere. Holds at most one event of `limit_bytes` (`max_event_bytes`)."""

    def __init__(self, limit_bytes: int, note: Callable[[Quirk], None]) -> None:
        self._limit = limit_bytes
        self._note = note
        self._parts: list[bytes] = []  # the event in progress; a list, so that a drip of bytes stays linear
        self._size = 0
        self._after_cr = False
        self._at_start = True
        self._head = b""
        self.comments = 0
        self.leftover = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Events completed by `data`, in order. Raises Fault (limit max_event_bytes)."""
        if self._at_start:
            self._head += data
            if len(self._head) < 3 and b"\xef\xbb\xbf".startswith(self._head):
                return []
            data, self._head, self._at_start = self._head, b"", False
            if data.startswith(b"\xef\xbb\xbf"):
                self._note(Quirk.BOM)
                data = data[3:]
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not data:
            return []
        if self._parts:
            if b"\n\n" not in self._parts[-1][-1:] + data:
                self._hold(data)
                return []
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        if rest:
            self._hold(rest)
        frames: list[Frame] = []
        may_exceed = len(data) > self._limit
        for block in blocks:
            if may_exceed and len(block) > self._limit:
                raise limit_fault("max_event_bytes", self._limit, "one event of the upstream's stream")
            if block.startswith(b"data: ") and b"\n" not in block:
                frames.append(_new_tuple(Frame, (b"", block[6:])))  # a NamedTuple's own constructor takes twice as long
            else:
                self._block(block, frames)
        return frames

    def close(self) -> list[Frame]:
        """The event that was still pending when the body ended, if any."""
        pending = self._head + b"".join(self._parts)
        self._parts.clear()
        self._head = b""
        frames: list[Frame] = []
        if pending:
            self._block(pending, frames)
        return frames

    def _hold(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._limit:
            raise limit_fault("max_event_bytes", self._limit, "one event of the upstream's stream")

    def _block(self, block: bytes, frames: list[Frame]) -> None:
        event, lines = b"", []
        for line in block.split(b"\n"):
            if not line:
                continue
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if not name:
                self.comments += 1
            elif name == b"data":
                lines.append(value)
            elif name == b"event":
                event = value
            elif name == b"error":
                self._note(Quirk.ERROR_FIELD)
                event = b"error"
                lines.append(value)
            elif name not in (b"id", b"retry") and len(self.leftover) < _LEFTOVER_LIMIT:
                self.leftover += line + b"\n"
        if lines:
            frames.append(Frame(event, b"\n".join(lines)))
