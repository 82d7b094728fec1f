"""What a reply's body is, told by the body itself and not only by its label.

Backends answer a stream request with one JSON document, a plain one with events, and both with an HTML page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from proxy.faults import limit_fault
from proxy.model.findings import Quirk
from proxy.wire.jsonarray import ArrayDecoder
from proxy.wire.jsondoc import decode
from proxy.wire.jsonscan import JsonScan
from proxy.wire.ndjson import NdjsonDecoder
from proxy.wire.sse import Frame, Overfull, SseDecoder

_BOM = b"\xef\xbb\xbf"
_BLANK_LIMIT = 65_536  # white space before the first significant byte; what begins with more is read as events

BodyKind = Literal["unknown", "events", "lines", "array", "document", "page"]
Framing = Literal["events", "lines", "array"]


class BodyReader:
    """Frames out of a body whose kind shows at its first significant byte.

    `events`, `lines` and `array`: frames as they come. `document` (JSON) and `page` (HTML): one frame, at the end. A
    document is held whole, so `document_limit` is that of what is held (`max_held_bytes`); an event is limited by
    `event_limit` (`max_event_bytes`).

    `framing` is what the dialect's streams may be besides events: JSON lines, or one JSON array (then what begins
    with a bracket is no document). Use `events` where no stream was asked for.
    """

    def __init__(
        self, event_limit: int, document_limit: int, note: Callable[[Quirk], None], framing: Framing = "events"
    ) -> None:
        self.kind: BodyKind = "unknown"
        self._sse = SseDecoder(event_limit, note)
        self._lines = NdjsonDecoder(event_limit)
        self._array = ArrayDecoder(event_limit)
        self._framing = framing
        self._first_line_seen = False
        self._document_limit = document_limit
        self._note = note
        self._parts: list[bytes] = []
        self._size = 0
        self._lead = b""  # of what came while the kind is unknown, what may be half a byte order mark
        self._at_start = True  # neither a blank nor the whole mark has come

    @property
    def streamed(self) -> bool:
        """Whether frames are given as they come."""
        return self.kind in ("events", "lines", "array")

    @property
    def comments(self) -> int:
        """Comment lines seen so far: signs of life that are no data."""
        return self._sse.comments

    @property
    def between_events(self) -> bool:
        """Whether the bytes so far are events, and the last one is whole."""
        return self.kind == "events" and self._sse.between_events

    @property
    def odd(self) -> deque[tuple[int, Quirk | bytes]]:
        """What was odd about the last bytes, each with the number of frames before it; see `settle`."""
        return self._sse.odd

    def settle(self, count: int | None = None) -> None:
        """Take note of what was odd before the frame of this number; None: of all."""
        self._sse.settle(count)

    @property
    def leftover(self) -> bytes:
        """What was no frame: lines that were no fields of an event (relays write their error there, without `data:`),
        or what stood behind the array."""
        return bytes(self._array.leftover if self.kind == "array" else self._sse.leftover)

    def payloads(self, data: bytes) -> list[bytes] | None:
        """As `SseDecoder.payloads`."""
        if self.kind == "unknown" and not self._parts and data[:6] == b"data: ":
            self.kind = "events"
        return self._sse.payloads(data) if self.kind == "events" else None

    def feed(self, data: bytes) -> list[Frame]:
        """Frames completed by `data`. Raises Overfull or Fault (limits)."""
        if self.kind == "events":
            return self._sse.feed(data)
        if self.kind == "array":
            return self._array.feed(data)
        if self.kind == "lines":
            return self._lines.feed(data) if self._first_line_seen else self._first_line(data)
        self._parts.append(data)
        self._size += len(data)
        return self._sniff() if self.kind == "unknown" else self._held()

    def _held(self) -> list[Frame]:
        if self._size > self._document_limit:
            raise limit_fault("max_held_bytes", self._document_limit, "the upstream's reply, one JSON document,")
        return []

    def close(self) -> list[Frame]:
        """What was pending when the body ended."""
        if self.kind == "events":
            return self._sse.close()
        if self.kind == "array":
            return self._array.close()
        if self.kind == "lines":
            return self._lines.close()
        whole = b"".join(self._parts)
        self._parts.clear()
        if self.kind == "unknown":
            return []
        return [Frame(b"", self._without_mark(whole))]

    def _without_mark(self, data: bytes) -> bytes:
        if not data.startswith(_BOM):
            return data
        self._note(Quirk.BOM)
        return data[len(_BOM) :]

    def _sniff(self) -> list[Frame]:
        text = self._lead + self._parts[-1]  # all before it was blank: a drip of blanks stays linear
        bare = text.removeprefix(_BOM) if self._at_start else text
        bare = bare.lstrip(b" \t\r\n")
        if self._size < _BLANK_LIMIT and (not bare or _BOM.startswith(bare)):
            self._at_start = self._at_start and len(bare) == len(text)
            self._lead = bare
            return []
        first = bare[:1]
        head = b"".join(self._parts)
        self._parts = [head]
        if first == b"{" and self._framing == "lines":
            self.kind = "lines"
        elif first == b"[" and self._framing == "array":
            self.kind = "array"
        else:
            self.kind = "document" if first in (b"{", b"[") else "page" if first == b"<" else "events"
        if not self.streamed:
            return self._held()
        self._parts.clear()
        return self.feed(head if self.kind == "events" else self._without_mark(head))

    def _first_line(self, data: bytes) -> list[Frame]:
        """The frames of lines, unless the first one shows that this is one document over several lines."""
        self._parts.append(data)
        frames: list[Frame] = []
        at = 0
        while at < len(data) and not frames:  # line by line: what follows may be of a document, which has no lines
            end = data.find(b"\n", at) + 1 or len(data)
            frames = self._lines.feed(data[at:end])
            at = end
        if not frames:
            return []
        self._first_line_seen = True
        scan = JsonScan()
        scan.feed(decode(frames[0].data)[0])
        if scan.complete or not scan.prefix:
            self._parts.clear()
            try:
                return frames + self._lines.feed(data[at:])
            except Overfull as reached:
                reached.frames[:0] = frames
                raise
        self.kind = "document"
        self._size = sum(len(part) for part in self._parts)
        return self._held()
