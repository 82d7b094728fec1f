"""Characters that a backend cut into two UTF-16 halves, one an event: joined again before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from proxy.model.findings import Quirk
from proxy.wire.jsondoc import join_surrogates

K = TypeVar("K", bound=Hashable)


class Halves(Generic[K]):
    """Texts that go on over events, each under a key of its own."""

    def __init__(self, note: Callable[[Quirk], None]) -> None:
        self._note = note
        self._waiting: dict[K, str] = {}

    def join(self, key: K, text: str) -> str:
        """`text` in whole characters; a first half at its end waits for the next text of this key."""
        if not text or (text.isascii() and not self._waiting):
            return text
        half = self._waiting.pop(key, "")
        if half:
            if "\udc00" <= text[0] <= "\udfff":
                self._note(Quirk.SURROGATES_SPLIT)
            text = half + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._waiting[key] = text[-1]
            text = text[:-1]
        return join_surrogates(text)

    def drop(self, key: K) -> None:
        """Forget the half that waits: the text comes again as a whole."""
        self._waiting.pop(key, None)

    def close(self) -> list[K]:
        """The keys of texts that ended in half a character: U+FFFD stands for it."""
        keys = list(self._waiting)
        self._waiting.clear()
        return keys
