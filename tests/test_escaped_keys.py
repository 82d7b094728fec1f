"""A key that is written with escapes is the same key: what an event says is decided on parsed keys.

Every case again, with the keys and words of its reply that name calls written in another way: the client gets the same.
"""

from __future__ import annotations

import dataclasses
import re

import pytest

import casefile
from casefile import FOLDERS, Case
from dialect_clients import CLIENTS
from proxy.replay.inprocess import run

# What a decoder may look for to find a call, an end or an error.
WORDS = (
    rb"tool_calls|function_call|functionCall|tool_use|function|arguments|partial_json|choices|delta|message|content|error"
    rb"|finish_reason|finishReason|input_json_delta|content_block|candidates|parts|item|output|name|type"
)
QUOTED = re.compile(rb'(?<=")(' + WORDS + rb')(?="[ \t]*[:,}\]])')
# Cases about the very characters that are changed here: a document that has to pass as it came, keys that stand twice.
OTHER = re.compile(r"doubled-key|escaped")


def escaped(data: bytes, at: int) -> bytes:
    """The words with one of their letters as \\uXXXX: the first, the last, or every one."""

    def one(found: re.Match[bytes]) -> bytes:
        word = found[1]
        places = range(len(word)) if at == 2 else [-at % len(word)]
        return b"".join(b"\\u%04x" % c if i in places else b"%c" % c for i, c in enumerate(word))

    return QUOTED.sub(one, data)


CASES = [
    case
    for case in casefile.read_all(*FOLDERS)
    if not OTHER.search(case.id) and QUOTED.search(b"".join(case.recording.pieces))
]


@pytest.mark.parametrize("at", [0, 1, 2], ids=["first letter", "last letter", "every letter"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_an_escaped_key_hides_nothing(case: Case, at: int) -> None:
    pieces = [escaped(piece, at) for piece in case.recording.pieces]
    assert pieces != list(case.recording.pieces) or b"".join(pieces) == b""
    client = CLIENTS.get(case.recording.dialect, CLIENTS["openai-chat"])
    recording = dataclasses.replace(case.recording, pieces=tuple(pieces))
    answer = run(client.request(case), recording, casefile.settings("block"))
    reply = client.read(answer, bool(case.recording.request.get("stream")))
    missed = casefile.judge(case, "block", reply, client=client.name)
    assert [line for line in missed if "did not survive" not in line] == []  # in other characters it may have


def test_most_cases_are_among_them() -> None:
    assert len(CASES) > 400
