"""On which line of the file a value stands. tomllib does not tell; but it reads the beginning of a file too, and a
value stands on the line with which it is there for the first time."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

MAX_CHARS = 32_768  # of a file whose lines are told, and how often it is read for them: a reload stops all else
MAX_READS = 100
_STATEMENT = re.compile(r"[ \t]*(?:\[|[\w.\"'-].*=)")  # what a line that a table or a value begins on looks like


class _EnoughError(Exception):
    """`MAX_READS` was reached."""


class Lines:
    """The lines of a file that is valid TOML."""

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").split("\n") if len(text) <= MAX_CHARS else []
        begun = (number for number, line in enumerate(self._lines) if _STATEMENT.match(line))
        self._cuts = [*begun, len(self._lines)]  # how many lines may be whole statements
        self._read: dict[int, dict[str, Any] | None] = {}

    def of(self, where: Sequence[str | int]) -> int:
        """The line, from 1, on which begins what sets the value at `where`, or the table around it where the value is
        missing; 0 where that is nowhere, or after `MAX_READS`."""
        try:
            return self._of(where)
        except _EnoughError:
            return 0

    def _of(self, where: Sequence[str | int]) -> int:
        cuts = self._cuts
        _, whole = self._upto(len(cuts) - 1)
        while where and not _has(whole, where):
            where = where[:-1]
        if not where:
            return 0
        end = bisect_left(range(len(cuts)), True, key=lambda number: _has(self._upto(number)[1], where))
        return cuts[self._upto(end - 1)[0]] + 1

    def _upto(self, number: int) -> tuple[int, dict[str, Any]]:
        """What the lines up to this cut say, or up to one before it where it is inside a value. And up to which."""
        while (document := self._first(self._cuts[number])) is None:
            number -= 1
        return number, document

    def _first(self, count: int) -> dict[str, Any] | None:
        if count not in self._read:
            if len(self._read) == MAX_READS:
                raise _EnoughError
            try:
                self._read[count] = tomllib.loads("\n".join(self._lines[:count]))
            except (tomllib.TOMLDecodeError, RecursionError):  # this stack is deeper than the one it was read on
                self._read[count] = None
        return self._read[count]


def _has(document: Any, where: Sequence[str | int]) -> bool:
    for part in where:
        try:
            document = document[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
