"""Markup: text that may hold calls, through the scanner."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import markup_samples
from fuzz import mutate
from fuzz.common import head_and_body, number_of
from proxy.dialects.markup import AUTO, FORMATS

FORMAT_NAMES = tuple(one.name for one in FORMATS)


def check(data: bytes) -> None:
    """FLAGS\\nTEXT: nothing depends on the cut, no character is lost but those of calls, and calls are whole."""
    words, body = head_and_body(data)
    text = body.decode("utf-8", "replace")
    channel = "reasoning" if "reasoning" in words else "content"
    options: dict[str, Any] = {
        "names": FORMAT_NAMES if "all" in words else AUTO,
        "channel": channel,
        "whole": "cut" not in words,
        "hold_limit": number_of(words, 1 << 20),
    }
    told = markup_samples.scan([text], **options)
    draw = Random(len(text))
    edges = sorted({0, len(text), *(draw.randint(0, len(text)) for _ in range(6))})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    for other in (pieces, list(text) if len(text) < 2_000 else pieces):
        again = markup_samples.scan(other, **options)
        assert again.said() == told.said(), "another cut, another text or other calls"
    left = told.text + told.residue
    if not told.calls:
        assert left == text, f"text is lost or added: {left[:60]!r}"
    elif channel == "reasoning":
        assert told.text + told.source == text, "what the exchange does not take is lost"
    elif all(call.weak for call in told.calls):
        assert told.source.strip() == text.strip(), "what the exchange does not take is lost"
    for call in told.calls:
        assert call.name in markup_samples.SCHEMAS, "a call of an undeclared tool"
        with suppress(ValueError):  # arguments in JSON are the source's own, and judged later
            value = json.loads(call.arguments)
            assert isinstance(value, dict) or call.arguments in body.decode("utf-8", "replace")


def mutated(data: bytes, most: int, draw: Random, plain: mutate.Bytes) -> bytes:
    words, body = head_and_body(data)
    if draw.random() < 0.15:
        flags = ("reasoning", "all", "cut", "40", "300", "content")
        words = [word for word in flags if draw.random() < 0.3]
    text = body.decode("utf-8", "replace")
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randint(0, len(text))
        match draw.randint(0, 6):
            case 0 | 1:
                text = text[:at] + draw.choice(_fragments()) + text[at:]
            case 2:
                text = text[:at] + text[at + draw.choice((1, 1, 2, 10, 60)) :]
            case 3:
                text = text[: at + draw.randint(1, 80)] + text[at:]
            case 4:
                other = draw.choice(_texts())
                text = text[:at] + other[draw.randint(0, len(other)) :]
            case 5:
                text = draw.choice(_texts()) + text[at:]
            case _:
                text = plain(text.encode("utf-8", "replace"), most - 60).decode("utf-8", "replace")
    return (" ".join(words).encode() + b"\n" + text.encode("utf-8", "replace"))[:most]


@cache
def _texts() -> list[str]:
    return [*(text for _, text in markup_samples.SAMPLES), *markup_samples.ORDINARY]


@cache
def _fragments() -> list[str]:
    marks = [one for f in FORMATS for row in f.rows for one in (*row.openers, *row.groups, *row.closers)]
    names = ["now", "get_weather", "write_file", "nothing", "functions.now:0", "city", "[now(), now()]", "now()"]
    signs = [
        "\n",
        " ",
        " " * 300,
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        '"',
        "'",
        "`",
        "```",
        "“",
        "\\",
        ";",
        "|",
        "=",
        ":",
        ",",
    ]
    return [
        *marks,
        *names,
        *signs,
        '{"name": "now", "arguments": {}}',
        "<parameter=city>",
        "</parameter>",
        "<|im_end|>",
    ]


def seeds() -> list[bytes]:
    flags = ("", "reasoning", "all", "cut", "all reasoning", "40")
    return [flags[n % len(flags)].encode() + b"\n" + text.encode() for n, text in enumerate(_texts())]
