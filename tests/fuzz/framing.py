"""Framing: bytes -> events, lines, elements of an array, or one document."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from fuzz import mutate
from fuzz.common import cases, head_and_body, number_of, pieces_of
from proxy.faults import Fault
from proxy.model.findings import Quirk
from proxy.wire.body import BodyReader
from proxy.wire.jsonarray import ArrayDecoder
from proxy.wire.ndjson import NdjsonDecoder
from proxy.wire.sse import Frame, Overfull, SseDecoder

FRAMINGS = ("sse", "lines", "array", "body-events", "body-lines", "body-array")
_BLANK = b" \t\r\n"


def check(data: bytes) -> None:
    """KIND LIMIT\\nBYTES: the same frames for every cut, none beyond the limit, and those of the standard."""
    words, body = head_and_body(data)
    kind = words[0] if words and words[0] in FRAMINGS else FRAMINGS[0]
    limit = number_of(words[1:], 65_536)
    if "array" in kind and not body.startswith(b"["):
        body = b"[" + body  # what begins otherwise is no array
    whole = _framed(kind, limit, [body])
    draw = Random(len(body) * 31 + limit)
    for pieces in (pieces_of(body, draw), pieces_of(body, draw)):
        assert _framed(kind, limit, pieces) == whole, f"{kind}: another cut, other frames"
    frames, _, _, fault = whole
    if kind.startswith("body"):
        return
    assert all(len(frame.data) <= limit for frame in frames), f"{kind}: a frame beyond the limit"
    if fault:
        return
    if kind == "sse":
        assert frames == _standard(body), "sse: not what the standard says"
    elif kind == "lines":
        lines = [line.strip() for line in body.split(b"\n")]
        assert [frame.data for frame in frames] == [line for line in lines if line], "lines: not the lines"
    else:
        _compare_array(body, frames)


def _framed(kind: str, limit: int, pieces: Sequence[bytes]) -> tuple[list[Frame], list[Quirk], bytes, str]:
    quirks: list[Quirk] = []
    reader: Any
    if kind == "sse":
        reader = SseDecoder(limit, quirks.append)
    elif kind == "lines":
        reader = NdjsonDecoder(limit)
    elif kind == "array":
        reader = ArrayDecoder(limit)
    else:
        reader = BodyReader(limit, 2 * limit, quirks.append, kind.partition("-")[2])  # type: ignore[arg-type]
    frames: list[Frame] = []
    fault = ""
    try:
        for piece in pieces:
            frames += reader.feed(piece)
        frames += reader.close()
    except Overfull as reached:
        frames += reached.frames
        fault = reached.public_code
    except Fault as reached:
        fault = reached.public_code
    if hasattr(reader, "settle") and not fault:  # behind a fault nothing counts
        reader.settle()
    return frames, sorted(set(quirks)), b"" if fault else bytes(getattr(reader, "leftover", b"")), fault


def _standard(body: bytes) -> list[Frame]:
    """Events as WHATWG HTML says, line by line; what is pending at the end counts, and a field `error`, as said."""
    text = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    out, event, data = [], b"", deque[bytes]()
    for line in [*text.split(b"\n"), b""]:
        if not line:
            if data:
                out.append(Frame(event, b"\n".join(data)))
            event, data = b"", deque()
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event = value
        elif name == b"error":
            event = b"error"
            data.append(value)
    return out


def _compare_array(body: bytes, frames: list[Frame]) -> None:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        return
    if isinstance(values, list):
        assert [json.loads(frame.data) for frame in frames] == values, "array: other elements"


def mutated(data: bytes, most: int, draw: Random, plain: mutate.Bytes) -> bytes:
    words, body = head_and_body(data)
    kind = words[0] if words and words[0] in FRAMINGS and draw.random() < 0.9 else draw.choice(FRAMINGS)
    limit = number_of(words[1:], 65_536)
    if draw.random() < 0.2:
        limit = draw.choice((0, 1, 7, 20, 60, len(body), max(len(body) // 2, 1), 65_536))
    for _ in range(draw.choice((1, 2, 4))):
        at = draw.randint(0, len(body))
        match draw.randint(0, 4):
            case 0:
                body = body[:at] + draw.choice(mutate.TOKENS) + body[at:]
            case 1:
                body = body[:at] + body[at + draw.choice((1, 1, 2, 9)) :]
            case 2:
                body = body[: at + draw.randint(1, 30)] + body[at:]
            case 3:
                body = body.replace(b"\n", draw.choice((b"\r", b"\r\n", b"\n\n")), draw.randint(1, 4))
            case _:
                body = plain(body, most - 30)
    return (f"{kind} {limit}\n".encode() + body)[:most]


def seeds() -> list[bytes]:
    kinds = {"ollama-chat": "lines", "gemini": "array"}
    out = []
    for case in cases()[::3]:
        body = b"".join(case.recording.pieces)
        kind = kinds.get(case.recording.dialect, "sse")
        out += [f"{kind} 65536\n".encode() + body, f"body-{kind.replace('sse', 'events')} 300\n".encode() + body]
    return out
