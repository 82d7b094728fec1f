"""Credentials in what a backend says: it may quote what it was sent, and its words go to clients and logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

# Shorter ones hide nothing, and stars in place of every "1" would make messages unreadable.
MIN_CHARS = 4


class Mask:
    """Writes stars over these secrets: as they are, as they stand in JSON, and the last word of each ("Bearer KEY").

    Lengths stay as they are, so that a Content-Length does.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        words = {word for secret in secrets for word in (secret, secret.rpartition(" ")[2]) if len(word) >= MIN_CHARS}
        quoted = {json.dumps(word)[1:-1] for word in words}
        forms = {form.encode() for form in words | quoted | {text.replace("/", r"\/") for text in quoted}}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self.longest = len(longest_first[0]) if longest_first else 0
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None

    def over(self, data: bytes) -> bytes:
        return data if self._pattern is None else self._pattern.sub(lambda found: b"*" * len(found[0]), data)

    def over_text(self, text: str) -> str:
        return text if self._pattern is None else self.over(text.encode("utf-8", "replace")).decode()


NO_MASK = Mask(())


class MaskedPieces:
    """A text that comes in pieces, masked: a secret may lie across them. `rest` is what was kept back until the end."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        text = self._mask.over(self._kept + data)
        end = max(0, len(text) - max(0, self._mask.longest - 1))
        self._kept = text[end:]
        return text[:end]

    def rest(self) -> bytes:
        kept, self._kept = self._kept, b""
        return kept
