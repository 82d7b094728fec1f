"""What a reply's body is, told by the body itself and not only by its label.

Backends answer a stream request with one JSON document, a plain one with events, and both with an HTML page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from proxy.faults import limit_fault
from proxy.model.findings import Quirk
from proxy.wire.sse import Frame, SseDecoder

_BLANK_LIMIT = 65_536  # white space before the first significant byte; what begins with more is read as events

BodyKind = Literal["unknown", "events", "document", "page"]


class BodyReader:
    """Frames out of a body whose kind shows at its first significant byte.

    `events`: frames as they come. `document` (JSON) and `page` (HTML): one frame, at the end. A document is limited
    by `document_limit` (`max_reply_bytes`), an event by `event_limit` (`max_event_bytes`).
    """

    def __init__(self, event_limit: int, document_limit: int, note: Callable[[Quirk], None]) -> None:
        self.kind: BodyKind = "unknown"
        self._sse = SseDecoder(event_limit, note)
        self._document_limit = document_limit
        self._note = note
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def comments(self) -> int:
        """Comment lines seen so far: signs of life that are no data."""
        return self._sse.comments

    @property
    def leftover(self) -> bytes:
        """Lines of an event stream that were no fields: relays write their error there, without `data:`."""
        return bytes(self._sse.leftover)

    def feed(self, data: bytes) -> list[Frame]:
        """Frames completed by `data`. Raises Fault (limits)."""
        if self.kind == "events":
            return self._sse.feed(data)
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._document_limit:
            raise limit_fault("max_reply_bytes", self._document_limit, "the upstream's reply")
        if self.kind == "unknown":
            self._sniff()
            if self.kind == "events":
                data = b"".join(self._parts)
                self._parts.clear()
                return self._sse.feed(data)
        return []

    def close(self) -> list[Frame]:
        """What was pending when the body ended."""
        if self.kind == "events":
            return self._sse.close()
        whole = b"".join(self._parts)
        self._parts.clear()
        if self.kind == "unknown":
            return []
        if whole.startswith(b"\xef\xbb\xbf"):
            self._note(Quirk.BOM)
            whole = whole[3:]
        return [Frame(b"", whole)]

    def _sniff(self) -> None:
        head = b"".join(self._parts) if len(self._parts) > 1 else self._parts[0]
        self._parts = [head]
        text = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
        if len(head) < _BLANK_LIMIT and (not text or b"\xef\xbb\xbf".startswith(text)):
            return
        self.kind = "document" if text[:1] in b"{[" else "page" if text[:1] == b"<" else "events"
