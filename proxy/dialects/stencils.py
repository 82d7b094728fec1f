"""Events that differ from one another in one string only, read without parsing each of them.

Most events of a stream are an earlier one with another text in it. Once such an event was parsed and understood, the
bytes before and behind that text are its *stencil*. An event that begins and ends with the same bytes, and has exactly
one JSON string between them, is the same document with another string in that place: this follows from the grammar
(RFC 8259), and `learn` proves for each stencil that the place is the one it takes it for. Nothing is guessed from a
substring: what fits no stencil, or is no string there, is parsed as ever.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import orjson

# A stream whose events all differ (random padding, a sequence number) would have each of them learnt in vain.
_UNUSED_LIMIT = 4
_STENCILS_LIMIT = 32
# So many strings are read at once at most: of those behind one that is none, fewer and fewer.
_TOGETHER = 64
_LF, _CR = b"\n\r"
_STRING_END = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Stencil:
    """`choice` and `index` are those of the event's text or, where `index` is not None, of its call's arguments;
    `document` is the event that it was learnt from. `before` and `behind` are the bytes around the string with its
    quotation marks, `begin` and `end` their lengths. `first`: `before` as the beginning of a server-sent
    event; `one_line`: no client finds a line's end in what is around the string."""

    before: bytes
    behind: bytes
    begin: int
    end: int
    choice: int
    index: int | None
    document: dict[str, Any]
    used: bool = False
    texts: list[str] | None = None  # for whoever collects them: those of the events that fitted
    first: bytes = field(init=False)
    one_line: bool = field(init=False)

    def __post_init__(self) -> None:
        self.first = b"data: " + self.before
        self.one_line = self.before.isascii() and self.behind.isascii()

    def texts_of(self, data: bytes) -> list[str] | None:
        """The texts of `data` where it is whole server-sent events that all fit, and none of their texts is empty."""
        if data[-2:] != b"\n\n" or _CR in data:  # a line's end in an event, white space in JSON
            return None
        texts = []
        at = self.begin + 6
        for event in data[:-2].split(b"\n\n"):
            end = len(event) - self.end
            if event[:at] != self.first or event[end:] != self.behind or event.find(_LF, at) >= 0:
                return None
            try:
                text = orjson.loads(event[at:end])
            except orjson.JSONDecodeError:
                return None
            if type(text) is not str or not text:
                return None
            texts.append(text)
        return texts


class Stencils:
    """Those of one reply. `text` is what the event that fitted last has in its place.

    `paused`: the decoder waits for something that the next event may bring, so that no event is to fit.
    """

    def __init__(self) -> None:
        self.text = ""
        self.paused = False
        self.last: Stencil | None = None  # the one that fitted last, until the decoder has taken note of it
        self._known: list[Stencil] = []
        self._unused = 0
        self._together = _TOGETHER

    def fit(self, data: bytes) -> Stencil | None:
        """The stencil that an event's data fits, with a text that is not empty."""
        if self.paused:
            return None
        size = len(data)
        for stencil in self._known:  # slices: `startswith` takes twice as long to read its arguments
            if data[: stencil.begin] == stencil.before and data[size - stencil.end :] == stencil.behind:
                break
        else:
            return None
        try:
            # With its quotation marks: two strings, or a broken one, are no JSON document.
            text = orjson.loads(data[stencil.begin : size - stencil.end])
        except orjson.JSONDecodeError:
            return None
        if type(text) is not str or not text:
            return None
        self.text = text
        if not stencil.used:
            stencil.used = True
            self._unused -= 1
        self.last = stencil
        return stencil

    def collect(self, payloads: list[bytes], at: int) -> int:
        """Add the strings of the events from `at` on to the `texts` of the stencils that they fit, as long as each fits
        one of the last one's choice that has `texts`. Gives how many were taken: of a long run the first ones only. To
        read strings together takes half the time."""
        takers: list[list[str]] = []
        strings: list[bytes] = []
        last = self.last
        assert last is not None, "one has fitted"
        choice = last.choice
        for data in payloads[at : at + self._together]:
            size = len(data)
            for stencil in self._known:
                if data[: stencil.begin] == stencil.before and data[size - stencil.end :] == stencil.behind:
                    break
            else:
                break
            string = data[stencil.begin : size - stencil.end]
            if stencil.texts is None or stencil.choice != choice or string == b'""':
                break
            takers.append(stencil.texts)
            strings.append(string)
            last = stencil
        if not strings:
            return 0
        texts = _texts(strings)
        if texts is None:
            self._together = max(len(strings) // 2, 1)
            return 0
        self._together = min(2 * self._together, _TOGETHER)
        for taker, text in zip(takers, texts, strict=True):
            taker.append(text)
        self.last = last
        return len(texts)

    def learn(self, data: bytes, document: dict[str, Any], path: Path, choice: int, index: int | None = None) -> None:
        """`data` is an event without line ends, `document` what it says, with a string at `path`."""
        if self._unused >= _UNUSED_LIMIT or len(self._known) >= _STENCILS_LIMIT:
            return
        places = [found.end() for found in _beginning(str(path[-1])).finditer(data)]
        if len(places) != 1:
            return
        end = _STRING_END.match(data, places[0])
        if end is None:
            return
        before, behind = data[: places[0] - 1], data[end.end() :]
        if not _proven(before, behind, document, path):
            return
        self._unused += 1
        self._known.append(Stencil(before, behind, len(before), len(behind), choice, index, document))


@cache
def _beginning(name: str) -> re.Pattern[bytes]:
    """Finds where the string of a member of this name begins."""
    return re.compile(rb'"%b"[ \t]*:[ \t]*"' % re.escape(name.encode()))


def _texts(strings: list[bytes]) -> list[str] | None:
    """The texts that each of `strings` is as one JSON string that is not empty; None where one of them is none.

    They are read as one array with a line's end at each comma, which no string can hold: as many elements as there are
    commas between them, all of them strings, are one each.
    """
    try:
        texts = orjson.loads(b"[%b]" % b",\n".join(strings))
    except orjson.JSONDecodeError:
        return None
    if len(texts) != len(strings) or not all(texts) or set(map(type, texts)) != {str}:
        return None
    return texts  # type: ignore[no-any-return]


def _proven(before: bytes, behind: bytes, document: dict[str, Any], path: Path) -> bool:
    """Whether another string between the two gives the same document with that string at `path`."""
    try:
        other = orjson.loads(b'%b"\\u0001"%b' % (before, behind))
        holder = other
        original: Any = document
        for step in path[:-1]:
            holder, original = holder[step], original[step]
        if holder[path[-1]] != "\x01":
            return False
        holder[path[-1]] = original[path[-1]]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return False
    return bool(other == document)
