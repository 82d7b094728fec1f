"""No text about calls is a call: documentation of every markup, fences, quotes, logs, XML, JSON, chat about tools."""

from __future__ import annotations

import pytest

from markup_samples import MENTIONS, ORDINARY, SAMPLES, WHOLE, scan, wrapped
from proxy.dialects.markup import FORMATS

OPENERS = sorted({one for f in FORMATS for row in f.rows for one in (*row.openers, *row.groups) if f.tier != "opt-in"})
TEXTS = [
    *ORDINARY,
    *(text for _, sample in SAMPLES for text in wrapped(sample)),
    *(mention.format(opener) for mention in MENTIONS for opener in OPENERS),
    *(f"This would be a call:\n\n{sample}\n\nBut it is data." for _, sample in WHOLE if "<|" not in sample),
    *(f"{sample} is what it prints." for _, sample in WHOLE if "<|" not in sample),
]


def test_there_are_many_texts() -> None:
    assert len(set(TEXTS)) > 800


@pytest.mark.parametrize("pieces", [list, lambda text: [text]], ids=["by character", "whole"])
def test_no_text_is_a_call_and_every_text_stays_as_it_is(pieces: type[list[str]]) -> None:
    wrong = []
    for text in TEXTS:
        result = scan(pieces(text))
        if result.calls or result.text + result.residue != text:
            wrong.append((text, result.calls))
    assert wrong == []


def test_of_ordinary_prose_little_is_held() -> None:
    held = {text: scan(list(text)).most_held for text in ORDINARY}
    assert {text: most for text, most in held.items() if most > 25 and text[0] not in "{[`"} == {}
    # JSON from the first character on may be a call until a key says that it is none
    assert max(held.values()) <= 64


def test_text_without_markers_is_never_held_but_for_white_space_at_its_end() -> None:
    for text in ORDINARY:
        if text.isalpha() or set(text) & set("<[]{`"):
            continue
        for end in range(20, len(text)):
            if not text[:end].endswith((" ", "\n")):
                assert scan([text[:end]]).text == text[:end]


def test_a_call_is_still_found_behind_each_of_these_texts() -> None:
    """What is refused does not make the scanner deaf, unless a fence, a quote or a block is open."""
    call = '\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    missed = []
    for text in ORDINARY:
        result = scan([text + call])
        if [found.name for found in result.calls] != ["now"] or result.text != text.rstrip():
            missed.append(text)
    assert missed == []
