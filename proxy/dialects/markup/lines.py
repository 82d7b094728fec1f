"""Where in its lines a text stands: in a code fence, behind a quote. What stands there is an example, not a call."""

from __future__ import annotations

import re

from proxy.dialects.markup.base import Rule

_HEAD = 64  # characters of a line that can begin a fence
_FENCE = re.compile(r"[ \t]{0,40}+(?:(?:[-*+]|[0-9]{1,3}[.)])[ \t]{1,8}+)?(`{3,}+|~{3,}+)")
_MARKS = "`'\"“‘«"  # noqa: RUF001
_PAIRS = (("“", "”"), ("«", "»"))


class Lines:
    """Follows a text piece by piece, in constant memory."""

    def __init__(self) -> None:
        self._fence = ""  # the run of characters that opened the fence
        self._new_line()

    def _new_line(self) -> None:
        self._head = self._last = ""
        self._longer = False  # visible characters beyond the head
        self._ticks = self._quotes = self._open = 0

    def advance(self, text: str) -> None:
        if "\n" not in text:
            self._more(text)
            return
        at = 0
        while (end := text.find("\n", at)) >= 0:
            self._more(text[at:end])
            self._end_line()
            at = end + 1
        if at < len(text):
            self._more(text[at:])

    def _more(self, text: str) -> None:
        if not text:
            return
        if not self._longer:
            room = _HEAD - len(self._head)
            self._head += text[:room]
            self._longer = len(text) > room and not text[room:].isspace()
        self._last = text[-1]
        if "`" in text:
            self._ticks += text.count("`")
        if '"' in text:
            self._quotes += text.count('"')
        if not text.isascii():
            self._open += sum(text.count(left) - text.count(right) for left, right in _PAIRS)

    def _end_line(self) -> None:
        found = _FENCE.match(self._head)
        if found is not None:
            run = found[1]
            if self._fence:
                rest = self._head[found.end() :]
                if run.startswith(self._fence) and not rest.strip() and not self._longer:
                    self._fence = ""
            elif run[0] != "`" or self._ticks == len(run):  # else it is inline code
                self._fence = run
        self._new_line()

    def refusal(self) -> Rule | None:
        """Why nothing that begins here is a call, if so."""
        if self._fence or _FENCE.match(self._head) is not None:
            return Rule.FENCE
        if self._last in _MARKS and self._last:
            return Rule.QUOTE
        if self._ticks % 2 or self._quotes % 2 or self._open > 0 or self._head.lstrip().startswith(">"):
            return Rule.QUOTE
        return None
