"""Credentials in what a backend says: it may quote what it was sent, and its words go to clients and logs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

# Shorter ones hide nothing, and stars in place of every "1" would make messages unreadable.
MIN_CHARS = 4

_OR_THE_END = rb"\Z|"


class Mask:
    """Writes stars over these secrets: as they are, as they stand in JSON, and the last word of each ("Bearer KEY").

    Lengths stay as they are, so that a Content-Length does. In JSON any character may be escaped but ASCII's letters
    and digits, which no writer escapes.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        words = {word for secret in secrets for word in (secret, secret.rpartition(" ")[2]) if len(word) >= MIN_CHARS}
        self._words = sorted(words, key=lambda word: (-len(word), word))  # the longest of what fits
        self._pattern = re.compile(_forms(self._words, b"")) if words else None

    def over(self, data: bytes) -> bytes:
        return data if self._pattern is None else self._pattern.sub(_stars, data)

    def over_text(self, text: str) -> str:
        return text if self._pattern is None else self.over(text.encode("utf-8", "replace")).decode()

    def over_cut(self, data: bytes) -> bytes:
        """Also over the beginning of a secret at the end."""
        pieces = MaskedPieces(self)
        return pieces.feed(data) + pieces.rest()

    @cached_property
    def begun(self) -> re.Pattern[bytes] | None:
        """Finds a secret, or what may become one at the end of a text that goes on."""
        return re.compile(_forms(self._words, _OR_THE_END)) if self._words else None


NO_MASK = Mask(())


class MaskedPieces:
    """A text that comes in pieces, masked the same however it is cut: a secret may lie across them. `rest` is what was
    kept back until the end; where that is the beginning of a secret it is masked, as the text may have broken off."""

    def __init__(self, mask: Mask) -> None:
        self._begun = mask.begun
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        if self._begun is None:
            return data
        text, self._kept = self._kept + data, b""
        out, at = [], 0
        for found in self._begun.finditer(text):
            out.append(text[at : found.start()])
            at = found.end()
            if at == len(text):
                self._kept = found[0]  # raw: with what follows it may be another secret, or none
                break
            out.append(_stars(found))
        return b"".join([*out, text[at:]])

    def rest(self) -> bytes:
        kept, self._kept = self._kept, b""
        return kept if len(kept) < MIN_CHARS else b"*" * len(kept)


def _stars(found: re.Match[bytes]) -> bytes:
    return b"*" * len(found[0])


def _forms(words: Iterable[str], or_end: bytes) -> bytes:
    """What these words look like. A form reads a text in one way only: several could take exponential time."""
    forms = []
    for word in words:
        if "\\" in word or '"' in word:
            forms.append(_form([[_bytes_of(c)] for c in word], or_end))
        forms.append(_form([_in_json(c) for c in word], or_end))
    return b"|".join(forms)


def _form(characters: list[list[list[bytes]]], or_end: bytes) -> bytes:
    """Characters that are each written in one of several ways. `or_end`: or as many of them as there are, if any."""
    first, *others = (b"|".join(_in_turn(way, or_end) for way in ways) for ways in characters)
    return b"(?:%s)" % first + b"".join(b"(?:%s%s)" % (or_end, other) for other in others)


def _in_turn(way: list[bytes], or_end: bytes) -> bytes:
    pattern = b""
    for byte in reversed(way):
        pattern = b"%s(?:%s%s)" % (byte, or_end, pattern) if pattern else byte
    return pattern


def _bytes_of(character: str) -> list[bytes]:
    return [re.escape(bytes([byte])) for byte in character.encode()]


def _in_json(character: str) -> list[list[bytes]]:
    ways = [] if character in '"\\' else [_bytes_of(character)]
    if character in '"\\/':
        ways.append([rb"\\", *_bytes_of(character)])
    if not (character.isascii() and character.isalnum()):
        units = re.findall("....", character.encode("utf-16-be").hex())
        ways.append([step for unit in units for step in (rb"\\", b"u", *map(_digit, unit))])
    return ways


def _digit(digit: str) -> bytes:
    """A hexadecimal one, in either case."""
    return f"[{digit}{digit.upper()}]".encode() if digit.isalpha() else digit.encode()
