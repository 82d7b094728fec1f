"""The members of an object that markup writes one by one."""

from __future__ import annotations

from proxy.dialects.markup.base import Cursor, Mismatch, Rule
from proxy.dialects.markup.schema import quoted


class Members:
    """Keys and the JSON text of their values. One that is given twice with different values is a guess. A doomed
    candidate, which may be as long as the reply, keeps none."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.found: dict[str, str] = {}

    def add(self, key: str, value: str) -> None:
        if self._cursor.doom is None and self.found.setdefault(key, value) != value:
            raise Mismatch(Rule.PARAMETER_TWICE)

    def json(self) -> str:
        return "{" + ", ".join(f"{quoted(key)}: {value}" for key, value in self.found.items()) + "}"
