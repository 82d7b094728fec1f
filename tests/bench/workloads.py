"""The work that is measured. A request names it by its `model`, so the mock backend and the load need only that.

    text-N        N text deltas (long-N: the same)
    tools-CxF     C interleaved calls of F fragments of 8 characters
    bigargs-1m    one call of 1 MiB in fragments of 4 KiB
    paced         50 text deltas, 20 ms apart, each with the time at which it was sent
    nonstream     a plain reply with two calls
    leaky-text    200 text deltas, of which some spell out two calls in a model's own markup
    schema-N      N tools declared, ten of them called
    reask         a call that its schema refuses; the right one once the model is asked again

and for growth: burst-N (N text deltas, 50 in a write), args-N (one call of N characters, one in a fragment, 50 in a
write), calls-N (N calls), slow (20 text deltas, 250 ms apart), idle and held-N (a reply that stops for 20 s after a
text delta, or after a call of N characters).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MARK = b"t=0000000000000000000"  # where the mock backend writes CLOCK_MONOTONIC, in nanoseconds
QUIET_S = 20.0
BURST = 50  # one read then holds as many events on a busy machine as on a quiet one

_DONE = b"data: [DONE]\n\n"
_USAGE = {"prompt_tokens": 300, "completion_tokens": 200, "total_tokens": 500}
_WORDS = (" the", " quick", " brown", " fox", " jumps", " over", " a", " lazy", " dog", ".")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a right reply holds: counts of characters and calls. `events`: of the backend's replies behind it."""

    events: int
    content: int = 0
    arguments: int = 0
    calls: int = 0

    @property
    def finish(self) -> str:
        return "tool_calls" if self.calls else "stop"


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of the backend: server-sent events, or one JSON document.

    `waits`: seconds before each event. `burst`: events in one write, where there are no waits.
    """

    events: Sequence[bytes]
    waits: Sequence[float] = ()
    burst: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """`turns`: what the backend answers, and what it answers once a tool result has come back.

    `passed` is what a client gets from a proxy that hands bytes on, `mended` what it gets from Wholecall.
    """

    request: bytes
    turns: tuple[Turn, ...]
    passed: Expected
    mended: Expected
    stream: bool = True

    @property
    def timed(self) -> bool:
        return any(MARK in event for event in self.turns[0].events[1:3])


@lru_cache(maxsize=16)
def named(name: str) -> Workload:
    """Raises KeyError."""
    kind, _, size = name.partition("-")
    match kind:
        case "text" | "long":
            return _plain(name, _text(name, int(size)))
        case "burst":
            return _plain(name, _text(name, int(size)), BURST)
        case "tools":
            calls, fragments = map(int, size.split("x"))
            return _plain(name, _calls(name, [_arguments(8 * fragments, call) for call in range(calls)], 8))
        case "bigargs":
            return _plain(name, _calls(name, [_arguments(1 << 20, 0)], 4096))
        case "args":
            return _plain(name, _calls(name, [_arguments(int(size), 0)], 1), BURST)
        case "calls":
            return _plain(name, _calls(name, [_arguments(64, call) for call in range(int(size))], 16))
        case "schema":
            return _schema(name, int(size))
        case "paced":
            return _paced(name, 50, 0.02)
        case "slow":
            return _paced(name, 20, 0.25)
        case "idle":
            return _quiet(_plain(name, _text(name, 1)), 2)
        case "held":
            workload = _plain(name, _calls(name, [_arguments(int(size), 0)], 4096))
            return _quiet(workload, len(workload.turns[0].events) - 3)
        case "nonstream":
            return _document(name)
        case "leaky":
            return _leaky(name)
        case "reask":
            return _reask(name)
    raise KeyError(name)


def _chunk(model: str, delta: dict[str, Any] | None, finish: str | None = None) -> bytes:
    """A chunk of a reply; `delta` None: the last one, with usage."""
    chunk: dict[str, Any] = {
        "id": "chatcmpl-bench00000000000000000001",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": model,
        "system_fingerprint": "fp_bench",
        "choices": [],
    }
    if delta is None:
        chunk["usage"] = _USAGE
    else:
        chunk["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return b"data: %b\n\n" % _json(chunk)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _said(model: str, pieces: Sequence[str]) -> list[bytes]:
    """A whole text reply."""
    rendered = {piece: _chunk(model, {"content": piece}) for piece in set(pieces)}
    return [
        _chunk(model, {"role": "assistant", "content": ""}),
        *[rendered[piece] for piece in pieces],
        _chunk(model, {}, "stop"),
        _chunk(model, None),
        _DONE,
    ]


def _text(model: str, count: int) -> tuple[list[bytes], Expected]:
    pieces = list(itertools.islice(itertools.cycle(_WORDS), count))
    events = _said(model, pieces)
    return events, Expected(len(events), content=sum(map(len, pieces)))


def _arguments(size: int, number: int) -> str:
    """The arguments of a call of write_file: `size` characters of ASCII."""
    head, tail, fill = f'{{"path":"src/file{number}.py","text":"', '"}', "lorem ipsum dolor sit amet, consectetur "
    room = size - len(head) - len(tail)
    return head + (fill * (room // len(fill) + 1))[:room] + tail


def _calls(
    model: str, arguments: Sequence[str], size: int, names: Sequence[str] = ("write_file",)
) -> tuple[list[bytes], Expected]:
    """A reply of calls whose arguments take turns, in fragments of `size` characters."""
    events = [_chunk(model, {"role": "assistant", "content": None})]
    rendered: dict[tuple[int, str], bytes] = {}
    for index, name in zip(range(len(arguments)), itertools.cycle(names), strict=False):
        function = {"name": name, "arguments": ""}
        head = {"index": index, "id": f"call_bench{index:020d}", "type": "function", "function": function}
        events.append(_chunk(model, {"tool_calls": [head]}))
    for at in range(0, max(map(len, arguments)), size):
        for index, text in enumerate(arguments):
            if fragment := text[at : at + size]:
                key = index, fragment
                if key not in rendered:
                    delta = {"index": index, "function": {"arguments": fragment}}
                    rendered[key] = _chunk(model, {"tool_calls": [delta]})
                events.append(rendered[key])
    events += [_chunk(model, {}, "tool_calls"), _chunk(model, None), _DONE]
    return events, Expected(len(events), arguments=sum(map(len, arguments)), calls=len(arguments))


def _tool(name: str, properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    description = f"Tool {name} used by the benchmark; takes a path and a text."
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_PATH_AND_TEXT = {
    "path": {"type": "string", "description": "where"},
    "text": {"type": "string", "description": "what"},
}
_TOOLS = [_tool(name, _PATH_AND_TEXT, ("path", "text")) for name in ("write_file", "read_file", "search")]


def _request(model: str, tools: Sequence[dict[str, Any]] = _TOOLS, *, stream: bool = True) -> bytes:
    request = {
        "model": model,
        "messages": [
            {"role": "system", "content": "You are a careful coding agent. " * 8},
            {"role": "user", "content": "Write two files, please. " * 8},
        ],
        "tools": tools,
        "stream": stream,
    }
    if stream:
        request["stream_options"] = {"include_usage": True}
    return _json(request)


def _plain(model: str, reply: tuple[list[bytes], Expected], burst: int = 1) -> Workload:
    events, expected = reply
    return Workload(_request(model), (Turn(events, burst=burst),), expected, expected)


def _paced(model: str, count: int, interval_s: float) -> Workload:
    events = _said(model, [MARK.decode()] * count)
    waits = [0.0, 0.0, *[interval_s] * (count - 1), interval_s, 0.0, 0.0]
    expected = Expected(len(events), content=count * len(MARK))
    return Workload(_request(model), (Turn(events, waits),), expected, expected)


def _quiet(workload: Workload, at: int) -> Workload:
    events = workload.turns[0].events
    waits = [QUIET_S if index == at else 0.0 for index in range(len(events))]
    return Workload(workload.request, (Turn(events, waits),), workload.passed, workload.mended)


def _document(model: str) -> Workload:
    arguments = [_arguments(200, number) for number in range(2)]
    calls = [
        {"id": f"call_bench{n:020d}", "type": "function", "function": {"name": "write_file", "arguments": text}}
        for n, text in enumerate(arguments)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    document = _json(
        {
            "id": "chatcmpl-bench00000000000000000001",
            "object": "chat.completion",
            "created": 1700000000,
            "model": model,
            "system_fingerprint": "fp_bench",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}],
            "usage": _USAGE,
        }
    )
    expected = Expected(1, arguments=400, calls=2)
    return Workload(_request(model, stream=False), (Turn([document]),), expected, expected, stream=False)


def _leaky(model: str) -> Workload:
    calls = [{"name": "write_file", "arguments": json.loads(_arguments(200, number))} for number in range(2)]
    markup = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
    prose = list(itertools.islice(itertools.cycle([*_WORDS, " if a < b", " <br>"]), 120))
    leaked = [text[at : at + 6] for text in markup for at in range(0, len(text), 6)]
    events = _said(model, [*prose, *leaked])
    passed = Expected(len(events), content=sum(map(len, [*prose, *leaked])))
    arguments = sum(len(json.dumps(call["arguments"])) for call in calls)  # as written, blanks and all
    mended = Expected(len(events), content=sum(map(len, prose)), arguments=arguments, calls=2)
    return Workload(_request(model), (Turn(events),), passed, mended)


def _schema(model: str, count: int) -> Workload:
    def properties(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from _PATH_AND_TEXT.items()
        yield "mode", {"enum": ["create", "append", f"mode{number}"]}
        yield "lines", {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 100 + number}
        yield (
            "options",
            {
                "type": "object",
                "properties": {"force": {"type": "boolean"}, "owner": {"type": "string", "maxLength": 64}},
                "additionalProperties": False,
            },
        )

    tools = [_tool(f"tool_{number}", dict(properties(number)), ("path", "text")) for number in range(count)]
    called = [f"tool_{number * count // 10}" for number in range(10)]
    events, expected = _calls(model, [_arguments(80, number) for number in range(10)], 8, called)
    return Workload(_request(model, tools), (Turn(events),), expected, expected)


def _reask(model: str) -> Workload:
    wrong, passed = _calls(model, ['{"path":"src/file0.py","text":7}'], 8)
    right, once = _calls(model, [_arguments(160, 0)], 8)
    mended = Expected(len(wrong) + len(right), arguments=once.arguments, calls=1)
    return Workload(_request(model), (Turn(wrong), Turn(right)), passed, mended)
