"""Arguments that Vertex streams as values at JSON paths (`partialArgs`), written as the text of one object.

Values are written in the order they came, so that the text grows as the model writes it. A path that leads back into
an object or list that was left, or past a gap in a list, gives text that is no strict JSON (a doubled key, a hole):
models do confuse paths (vercel/ai issue 14358), and where such a value belongs would be a guess.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

Path = tuple[str | int, ...]

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"\s]+)|\[(?P<index>[0-9]{1,9})\]|\['(?P<single>(?:[^'\\]|\\.)*)'\]|\[(?P<double>"(?:[^"\\]|\\.)*")\]"""
)
_ESCAPED = re.compile(r"\\(['\\])")
_LONGEST_PATH = 4096
_MOST_STEPS = 64
_HOLE = ",,"


def parse_path(text: str) -> Path:
    """The steps of a JSON path of names and indexes (RFC 9535). Raises ValueError."""
    if not text.startswith("$") or len(text) > _LONGEST_PATH:
        raise ValueError("no JSON path of names and indexes")
    steps: list[str | int] = []
    at = 1
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None or len(steps) == _MOST_STEPS:
            raise ValueError(f"no JSON path of names and indexes, or one of more than {_MOST_STEPS} steps")
        at = step.end()
        if step["name"] is not None:
            steps.append(step["name"])
        elif step["index"] is not None:
            steps.append(int(step["index"]))
        elif step["single"] is not None:
            steps.append(_ESCAPED.sub(r"\1", step["single"]))
        else:
            steps.append(json.loads(step["double"], strict=False))
    if not steps:
        raise ValueError("a path to the whole of the arguments")
    return tuple(steps)


class _Open(NamedTuple):
    """An object or list that is being written; `last` is the index written last, in an object only whether any was."""

    closer: str
    last: int


class ArgumentText:
    """`value` and `string` give the characters that go on with the text; `close` those that end it."""

    def __init__(self) -> None:
        self._path: Path = ()  # of what `_stack` has open below the arguments' own object
        self._stack: list[_Open] = []
        self._string: Path | None = None  # the path of a string that goes on

    def value(self, path: Path, source: str) -> str:
        """A whole value by its own characters."""
        return self._go_to(path) + source

    def string(self, path: Path, piece: str, *, more: bool) -> str:
        """A piece of a string. Pieces at one path are one string while `more` was said."""
        text = "" if path == self._string else self._go_to(path) + '"'
        self._string = path if more else None
        return text + json.dumps(piece, ensure_ascii=False)[1:-1] + ("" if more else '"')

    def goes_on_at(self, path: Path) -> bool:
        """Whether a string at `path` waits for more."""
        return path == self._string

    def close(self) -> str:
        """The end of the text; nothing where nothing was begun."""
        text = self._end_string() + "".join(container.closer for container in reversed(self._stack))
        self._stack.clear()
        return text

    def _end_string(self) -> str:
        ended = '"' if self._string is not None else ""
        self._string = None
        return ended

    def _go_to(self, path: Path) -> str:
        """Leave what `path` does not lead through, enter what it does, up to the place of its value."""
        out = [self._end_string()]
        if not self._stack:
            self._open("}", out)
        common = 0
        while common < min(len(self._path), len(path) - 1) and self._path[common] == path[common]:
            common += 1
        while len(self._stack) > common + 1:
            out.append(self._stack.pop().closer)
        for step, inner in zip(path[common:], path[common + 1 :], strict=False):
            self._place(step, out)
            self._open("]" if isinstance(inner, int) else "}", out)
        self._place(path[-1], out)
        self._path = path[:-1]
        return "".join(out)

    def _open(self, closer: str, out: list[str]) -> None:
        self._stack.append(_Open(closer, -1))
        out.append("[" if closer == "]" else "{")

    def _place(self, step: str | int, out: list[str]) -> None:
        """What stands before a value in the container that is open."""
        closer, last = self._stack[-1]
        if isinstance(step, int) and closer == "]":
            out.append(_HOLE if step != last + 1 else "," if step else "")
            self._stack[-1] = _Open(closer, step)
        elif isinstance(step, str) and closer == "}":
            out.append(("," if last >= 0 else "") + json.dumps(step, ensure_ascii=False) + ":")
            self._stack[-1] = _Open(closer, 0)
        else:
            out.append(_HOLE)
