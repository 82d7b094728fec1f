"""Where in its lines a text stands: in a code fence, behind a quote. What stands there is an example, not a call."""

from __future__ import annotations

import re

from proxy.dialects.markup.base import Rule

_HEAD = 64  # characters of a line that can begin a fence
_FENCE = re.compile(r"[ \t]{0,40}+(?:(?:[-*+]|[0-9]{1,3}[.)])[ \t]{1,8}+)?(`{3,}+|~{3,}+)")
_MARKS = "`'\"“‘«„‚‹「『”"  # noqa: RUF001
_PAIRS = (("«", "»"), ("‹", "›"), ("「", "」"), ("『", "』"))  # noqa: RUF001
_CURVED = re.compile("[„“”]")


class Lines:
    """Follows a text piece by piece, in constant memory."""

    def __init__(self) -> None:
        self._fence = ""  # the run of characters that opened the fence
        self._new_line()

    def _new_line(self) -> None:
        self._head = self._last = ""
        self._longer = False  # visible characters beyond the head
        self._ticks = self._quotes = self._open = self._low = 0
        self._accent = False  # the last character is a backtick behind a word: one more letter, and it is an accent

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
        if self._accent and text[0].isalpha():
            self._ticks -= 1
        self._accent = False
        if "`" in text:
            self._count_ticks(text)
        if '"' in text:
            self._count_quotes(text)
        if not text.isascii():
            self._open += sum(text.count(left) - text.count(right) for left, right in _PAIRS)
            for mark in _CURVED.findall(text):
                self._count_curved(mark)
        self._last = text[-1]

    def _count_ticks(self, text: str) -> None:
        """One inside a word, where none is open, is an accent: It`s."""
        at = text.find("`")
        while at >= 0:
            before = text[at - 1] if at else self._last
            inside = not self._ticks % 2 and before.isalpha()
            if not (inside and text[at + 1 : at + 2].isalpha()):
                self._ticks += 1
            self._accent = inside and at + 1 == len(text)
            at = text.find("`", at + 1)

    def _count_quotes(self, text: str) -> None:
        """One behind a digit, where none is open, says inches."""
        at = text.find('"')
        while at >= 0:
            before = text[at - 1] if at else self._last
            if self._quotes % 2 or not before.isdigit():
                self._quotes += 1
            at = text.find('"', at + 1)

    def _count_curved(self, mark: str) -> None:
        """“ opens in English, and ends in German what „ opens."""
        if mark == "„":
            self._low += 1
        elif self._low > 0:
            self._low -= 1
        else:
            self._open += 1 if mark == "“" else -1

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

    @property
    def blank(self) -> bool:
        """Whether nothing visible stands before in the line."""
        return not self._longer and not self._head.strip()

    def refusal(self) -> Rule | None:
        """Why nothing that begins here is a call, if so."""
        if self._fence or _FENCE.match(self._head) is not None:
            return Rule.FENCE
        if self._last in _MARKS and self._last:
            return Rule.QUOTE
        if self._ticks % 2 or self._quotes % 2 or self._open > 0 or self._low or self._head.lstrip().startswith(">"):
            return Rule.QUOTE
        return None
