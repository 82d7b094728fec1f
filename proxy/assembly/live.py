"""The one call of a reply that is sent while it is written (`policy.delivery = "live"`).

Only text that begins with `{` goes out, as long as it is a growing prefix of one JSON value, and the value's last
character waits for the verdict: what was sent of a faulty call never parses, so that no client can run it.
"""

from __future__ import annotations

from proxy.assembly.slots import HeldCall
from proxy.wire.jsondoc import join_surrogates
from proxy.wire.jsonscan import JsonScan


class LiveCall:
    """What of a call may go out now. `sent` is the text that was given for sending so far, in pieces."""

    def __init__(self, held: HeldCall) -> None:
        self.held = held
        self.sent: list[str] = []
        self._scan = JsonScan()
        self._taken = 0  # fragments
        self.over = False  # nothing more goes out before the verdict
        self._given = 0  # characters sent
        self._waiting = ""

    def grow(self) -> str:
        """The characters that may be sent and were not yet; "" where there are none, or never will be."""
        if self.over:
            return ""
        fresh = "".join(self.held.fragments[self._taken :])
        self._taken = len(self.held.fragments)
        if not fresh:
            return ""
        self._scan.feed(fresh)
        self.over = not self._scan.prefix or self._scan.complete
        if not self.sent and not fresh.startswith("{"):
            self.over = True  # no object: nothing of it goes out early
            return ""
        if self.over and not self._scan.end:
            return ""
        ready = self._waiting + fresh
        stop = len(ready)
        if self._scan.end:
            stop = self._scan.end - 1 - self._given  # the value's last character waits
        elif "\ud800" <= ready[-1:] <= "\udbff":
            stop -= 1  # half a character
        self._waiting = ready[stop:]
        self._given += stop
        text = join_surrogates(ready[:stop])
        if text:
            self.sent.append(text)
        return text

    @property
    def text(self) -> str:
        """What was sent, as one text."""
        return "".join(self.sent)
