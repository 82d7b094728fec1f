"""Whether a text is the whole of what came before: backends send a message again at its end."""

from __future__ import annotations

import hashlib

_RECENT = 65_536  # characters, and 64 for each piece: their strings' own size


class TextMemory:
    """Remembers a text that grows by pieces, in constant memory: its digest, and the latest pieces."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._recent: list[str] = []
        self._size = 0
        self._empty = True

    def add(self, text: str) -> None:
        self._recent.append(text)
        self._empty = False
        self._size += len(text) + 64
        if self._size >= _RECENT:
            self._digest()

    def is_all(self, text: str) -> bool:
        """Whether `text` is exactly what was added so far, and that is not nothing."""
        if self._empty:
            return False
        self._digest()
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() == self._hash.digest()

    def _digest(self) -> None:
        self._hash.update("".join(self._recent).encode("utf-8", "surrogatepass"))
        self._recent.clear()
        self._size = 0
