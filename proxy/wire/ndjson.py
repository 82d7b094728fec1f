"""JSON lines on bytes: one document a line. Lines end in LF or CRLF, blank ones are nothing, and the last one counts
without its end. U+2028 is no line end. Source: github.com/ndjson/ndjson-spec; Ollama's API reference, streaming."""

from __future__ import annotations

from proxy.wire.sse import Frame, overfull

_LINE = "one line of the upstream's stream"


class NdjsonDecoder:
    """Lines out of bytes cut anywhere. Holds at most one line of `limit_bytes` (`max_event_bytes`)."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._parts: list[bytes] = []  # the line in progress; a list, so that a drip of bytes stays linear
        self._size = 0

    @property
    def pending(self) -> bytes:
        """The line that has no end yet."""
        return b"".join(self._parts)

    def feed(self, data: bytes) -> list[Frame]:
        """Lines completed by `data`, in order. Raises Overfull (limit max_event_bytes)."""
        *lines, rest = data.split(b"\n")
        if lines and self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        frames: list[Frame] = []
        for line in lines:
            if len(line) > self._limit:
                raise overfull(frames, self._limit, _LINE)
            if document := line.strip():
                frames.append(Frame(b"", document))
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                raise overfull(frames, self._limit, _LINE)
        return frames

    def close(self) -> list[Frame]:
        """The line that was still pending when the body ended, if any."""
        document = self.pending.strip()
        self._parts.clear()
        return [Frame(b"", document)] if document else []
