"""On which line of the file a value stands. tomllib does not tell; but it reads the beginning of a file too, and a
value stands on the line with which it is there for the first time."""

from __future__ import annotations

import tomllib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

MAX_CHARS = 32_768  # of a file whose lines are told, and how often it is read for them: a reload stops all else
MAX_READS = 100


class Lines:
    """The lines of a file that is valid TOML."""

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").split("\n") if len(text) <= MAX_CHARS else []
        self._read: dict[int, dict[str, Any] | None] = {}

    def of(self, where: Sequence[str | int]) -> int:
        """The line, from 1, on which begins what sets the value at `where`, or the table around it where the value is
        missing; 0 where that is nowhere, or after `MAX_READS`."""
        if len(self._read) > MAX_READS:
            return 0
        _, whole = self._upto(len(self._lines))
        while where and not _has(whole, where):
            where = where[:-1]
        if not where:
            return 0
        end = bisect_left(range(len(self._lines) + 1), True, key=lambda count: _has(self._upto(count)[1], where))
        return self._upto(end - 1)[0] + 1

    def _upto(self, count: int) -> tuple[int, dict[str, Any]]:
        """What the first `count` lines say: without the last ones where these are inside a value. And how many."""
        while (document := self._first(count)) is None:
            count -= 1
        return count, document

    def _first(self, count: int) -> dict[str, Any] | None:
        if count not in self._read:
            try:
                self._read[count] = tomllib.loads("\n".join(self._lines[:count]))
            except tomllib.TOMLDecodeError:
                self._read[count] = None
        return self._read[count]


def _has(document: Any, where: Sequence[str | int]) -> bool:
    for part in where:
        try:
            document = document[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
