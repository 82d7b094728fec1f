"""What several targets share: the cases, cuts, and inputs of a line of words and a body."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from random import Random

import casefile
from casefile import Case


@cache
def cases() -> list[Case]:
    return casefile.read_all(*casefile.FOLDERS)


def pieces_of(data: bytes, draw: Random) -> list[bytes]:
    """`data` cut as a network might: a few pieces, or single bytes."""
    if draw.random() < 0.3 and len(data) < 4_000:
        return [data[i : i + 1] for i in range(len(data))]
    edges = sorted({0, len(data), *(draw.randint(0, len(data)) for _ in range(draw.randint(0, 8)))})
    return [data[a:b] for a, b in pairwise(edges)]


def head_and_body(data: bytes) -> tuple[list[str], bytes]:
    """The first line's words, and what follows it."""
    line, _, body = data.partition(b"\n")
    return line.decode("latin-1").split(), body


def number_of(words: Sequence[str], default: int) -> int:
    return next((int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 6), default)
