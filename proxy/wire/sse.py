"""Server-sent events on bytes. Source: WHATWG HTML, "Server-sent events", 9.2.6 (living standard, read 2026-11).

Tolerated besides, each a quirk: an event that is still pending when the body ends; a field named `error`; lines that
are no fields at all (kept, since relays write their error there without `data:`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from proxy.faults import Fault, limit_fault
from proxy.model.findings import Quirk

_LEFTOVER_LIMIT = 65_536
_LF, _CR = b"\n\r"  # a number is found at once in bytes, while bytes are first tried, and refused, as a number
_EVENT = "one event of the upstream's stream"
_new_tuple = tuple.__new__


class Frame(NamedTuple):
    """One event: its name (b"" is the default) and its data, the data lines joined by LF."""

    event: bytes
    data: bytes


@dataclass(slots=True, eq=False)
class Overfull(Fault):
    """A limit was reached. `frames` were complete before that, and count: another cut had given them already."""

    frames: list[Frame] = field(default_factory=list)


def overfull(frames: list[Frame], limit_bytes: int, what: str) -> Overfull:
    fault = limit_fault("max_event_bytes", limit_bytes, what)
    return Overfull(fault.kind, fault.detail, code=fault.code, status=fault.status, frames=frames)


class SseDecoder:
    """Events out of bytes cut anywhere. Holds at most one event of `limit_bytes` (`max_event_bytes`).

    What was odd about the last bytes waits in `odd`, each with the number of frames that came before it, until
    `settle`: behind the frame that ends a reply nothing counts, wherever the network cut.
    """

    def __init__(self, limit_bytes: int, note: Callable[[Quirk], None]) -> None:
        self._limit = limit_bytes
        self._note = note
        self._parts: list[bytes] = []  # the event in progress; a list, so that a drip of bytes stays linear
        self._size = 0
        self._after_cr = False
        self._at_start = True
        self._head = b""
        self.comments = 0
        self.odd: deque[tuple[int, Quirk | bytes]] = deque()
        self.leftover = bytearray()
        """Lines that were no fields."""

    @property
    def between_events(self) -> bool:
        """Whether no event is in progress."""
        return not (self._at_start or self._after_cr or self._parts)

    def payloads(self, data: bytes) -> list[bytes] | None:
        """The data of the events completed by `data`, where each is one unnamed `data: ` line, as in most reads: a few
        calls for all of them. None: not so, or not known; then `data` is still to be fed."""
        if self._at_start:
            if self._head or data[:6] != b"data: ":
                return None
            self._at_start = False  # no byte order mark
        if self._after_cr or _CR in data:
            return None
        if self._parts:
            if b"\n\n" not in self._parts[-1][-1:] + data:
                return None
            data = b"".join([*self._parts, data])
        end = data.rfind(b"\n\n")
        if end < 0 or data[:6] != b"data: " or len(data) > self._limit:
            return None
        payloads = data[6:end].split(b"\n\ndata: ")
        for payload in payloads:
            if _LF in payload:
                return None
        rest = data[end + 2 :]
        self._parts = [rest] if rest else []
        self._size = len(rest)
        return payloads

    def feed(self, data: bytes) -> list[Frame]:
        """Events completed by `data`, in order. Raises Overfull (limit max_event_bytes)."""
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
        if _CR in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not data:
            return []
        if self._parts:
            if b"\n\n" not in self._parts[-1][-1:] + data:
                self._hold(data, [])
                return []
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        frames: list[Frame] = []
        may_exceed = len(data) > self._limit
        for block in blocks:
            if may_exceed and len(block) > self._limit:
                raise overfull(frames, self._limit, _EVENT)
            if block.startswith(b"data: ") and _LF not in block:
                frames.append(_new_tuple(Frame, (b"", block[6:])))  # a NamedTuple's own constructor takes twice as long
            else:
                self._block(block, frames)
        if rest:
            self._hold(rest, frames)
        return frames

    def settle(self, count: int | None = None) -> None:
        """Take note of what was odd before the frame of this number; None: of all."""
        while self.odd and (count is None or self.odd[0][0] <= count):
            _, what = self.odd.popleft()
            if isinstance(what, Quirk):
                self._note(what)
            elif len(self.leftover) < _LEFTOVER_LIMIT:
                self.leftover += what

    def close(self) -> list[Frame]:
        """The event that was still pending when the body ended, if any."""
        pending = self._head + b"".join(self._parts)
        self._parts.clear()
        self._head = b""
        frames: list[Frame] = []
        if pending:
            self._block(pending, frames)
        return frames

    def _hold(self, data: bytes, frames: list[Frame]) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._limit + data.endswith(b"\n"):  # which may be the first of the two that end the event
            raise overfull(frames, self._limit, _EVENT)

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
                self.odd.append((len(frames), Quirk.ERROR_FIELD))
                event = b"error"
                lines.append(value)
            elif name not in (b"id", b"retry"):
                self.odd.append((len(frames), line + b"\n"))
        if lines:
            frames.append(Frame(event, b"\n".join(lines)))
