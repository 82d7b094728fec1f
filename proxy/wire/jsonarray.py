"""The elements of one JSON array, each as soon as it is complete: a Gemini stream without `alt=sse` is such an array.

Only brackets, strings and escapes are looked at; whether an element is JSON is decided where it is read. Every byte is
looked at once, however the body is cut.
"""

from __future__ import annotations

import re

from proxy.wire.sse import Frame, overfull

_BLANK = b" \t\r\n"
_IN_STRING = re.compile(rb'["\\]')
_IN_ELEMENT = re.compile(rb'["{}\[\]]')
_BETWEEN = re.compile(rb'["{}\[\],]')
_LEFTOVER_LIMIT = 65_536


class ArrayDecoder:
    """Elements out of bytes cut anywhere. Holds at most one element of `limit_bytes` (`max_event_bytes`).

    An element that ends in a bracket is given at that bracket, without waiting for the comma behind it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._parts: list[bytes] = []  # the element in progress
        self._size = 0
        self._depth = 0  # 1: between the elements
        self._in_string = self._escaped = self._over = False
        self.leftover = bytearray()
        """What came behind the array's end."""

    def feed(self, data: bytes) -> list[Frame]:
        """Elements completed by `data`, in order. Raises Overfull (limit max_event_bytes)."""
        frames: list[Frame] = []
        at = begin = 0
        while at < len(data) and not self._over:
            if self._in_string:
                at = self._string(data, at)
                continue
            mark = (_IN_ELEMENT if self._depth > 1 else _BETWEEN).search(data, at)
            if mark is None:
                break
            at = mark.end()
            char = mark.group()
            if char == b'"':
                self._in_string = True
            elif char in b"{[":
                self._depth += 1
                if self._depth == 1:
                    begin = at
            elif char == b",":
                self._give(data[begin : mark.start()], frames)
                begin = at
            else:
                self._depth -= 1
                if self._depth <= 1:
                    self._give(data[begin : at if self._depth == 1 else mark.start()], frames)
                    begin = at
                    self._over = self._depth < 1
        if self._over:
            rest = data[begin:] if self.leftover else data[begin:].lstrip(_BLANK)
            self.leftover += rest[: max(_LEFTOVER_LIMIT - len(self.leftover), 0)]
        else:
            self._hold(data[begin:], frames)
        return frames

    def close(self) -> list[Frame]:
        """The element that was still pending when the body ended, if any."""
        frames: list[Frame] = []
        self._give(b"", frames)
        return frames

    def _string(self, data: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        mark = _IN_STRING.search(data, at)
        if mark is None:
            return len(data)
        if mark.group() == b'"':
            self._in_string = False
        else:
            self._escaped = True
        return mark.end()

    def _hold(self, data: bytes, frames: list[Frame]) -> None:
        if not self._parts:
            data = data.lstrip(_BLANK)
        if data:
            self._parts.append(data)
            self._size += len(data)
            if self._size > self._limit:
                raise overfull(frames, self._limit, "one element of the upstream's stream")

    def _give(self, data: bytes, frames: list[Frame]) -> None:
        self._hold(data, frames)
        element = b"".join(self._parts).strip(_BLANK)
        self._parts.clear()
        self._size = 0
        if element:
            frames.append(Frame(b"", element))
