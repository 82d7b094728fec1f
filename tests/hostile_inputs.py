"""Inputs that are small to send and made to be dear to read: requests of clients, replies of backends, calls of models.

Each is a name and the pieces that go over the wire. What reading them costs is measured by `cost`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZE = 100_000  # bytes of most inputs
STEP = 65_536  # what a network hands over at once


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of this process, and by how many bytes its memory was larger at its peak than before."""

    cpu_s: float
    peak_bytes: int


def cost(work: Callable[[], object]) -> Cost:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before would hide what is taken now
    resident = _status("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew (proc(5))
        peak = "VmHWM"
    except OSError:
        peak = "VmRSS"
    since = time.process_time()
    work()
    seconds = time.process_time() - since
    return Cost(seconds, max(0, _status(peak) - resident))


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(key)


def repeated(text: str, size: int = SIZE) -> str:
    return text * (size // len(text))


# --- what a client sends ------------------------------------------------------------------------------------------


def chat(**fields: Any) -> bytes:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}], **fields}
    return json.dumps(body).encode()


def function(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def called(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def turns(count: int, same: bool) -> list[dict[str, Any]]:
    """Calls and their results, the ids all the same or all different."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    for number in range(count):
        call_id = "search_web:0" if same else f"call_{number}"
        messages.append({"role": "assistant", "content": None, "tool_calls": [called(call_id)]})
        messages.append({"role": "tool", "tool_call_id": call_id, "content": "x"})
    return messages


def requests() -> Iterator[tuple[str, bytes]]:
    yield "open brackets", b"[" * SIZE
    yield "nested lists", b"[" * SIZE + b"]" * SIZE
    yield "nested objects", b'{"a":' * (SIZE // 5) + b"1" + b"}" * (SIZE // 5)
    yield "nested lists in a field", b'{"model":"m","messages":' + b"[" * SIZE + b"]" * SIZE + b"}"
    yield "900 levels", b'{"model":"m","messages":' + b"[" * 900 + b"]" * 900 + b"}"
    yield "one key many times", b'{"model":"m",' + b'"a":1,' * (SIZE // 6) + b'"b":1}'
    yield "many keys", json.dumps({"model": "m", **{f"k{i}": i for i in range(SIZE // 12)}}).encode()
    yield "a long integer", b'{"model":"m","max_tokens":' + b"9" * SIZE + b"}"
    yield "many long integers", b'{"model":"m","a":[' + b",".join([b"9" * 4000] * (SIZE // 4000)) + b"]}"
    yield "many integers over 64 bits", b'{"model":"m","a":[' + b",".join([b"9" * 20] * (SIZE // 21)) + b"]}"
    yield "exponents", b'{"model":"m","a":[' + b",".join([b"1e-999999999"] * (SIZE // 13)) + b"]}"
    yield (
        "halves of characters",
        b'{"model":"m","messages":[{"role":"user","content":"' + b"\\ud800" * (SIZE // 6) + b'"}]}',
    )
    yield "no UTF-8", b'{"model":"m","messages":"' + b"\xff" * SIZE + b'"}'
    yield "backslashes", b'{"model":"m","messages":"' + b"\\\\" * (SIZE // 2)
    yield "many messages", chat(messages=[{"role": "user", "content": ""}] * (SIZE // 32))
    yield "many parts", chat(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * (SIZE // 30)}])
    yield "one id in every turn", chat(messages=turns(SIZE // 200, same=True))
    yield "an id of its own in every turn", chat(messages=turns(SIZE // 200, same=False))
    many = [called(f"c{i}") for i in range(SIZE // 90)]
    yield "many calls in a turn", chat(messages=[{"role": "assistant", "content": None, "tool_calls": many}])
    same = [called("c") for _ in range(SIZE // 90)]
    yield "calls with one id in a turn", chat(messages=[{"role": "assistant", "content": None, "tool_calls": same}])
    lone = [{"role": "tool", "tool_call_id": "nobody", "content": ""}] * (SIZE // 60)
    yield "results without calls", chat(messages=lone)
    broken = [called("c", arguments="[" * 1000)] * (SIZE // 1100)
    yield (
        "broken arguments in the history",
        chat(messages=[{"role": "assistant", "content": None, "tool_calls": broken}]),
    )
    yield "many tools", chat(tools=[function(f"t{i}", {"type": "object"}) for i in range(512)])
    yield "one tool many times", chat(tools=[function("t", {})] * 512)
    yield "a long name of a tool", chat(tools=[function("t" * SIZE, {})])
    yield "a long pattern", chat(tools=[function("t", {"type": "object", "pattern": "a" * SIZE})])
    deep: Any = {}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}, "items": deep}
        if len(json.dumps(deep)) > SIZE:
            break
    yield "a wide and deep schema", chat(tools=[function("t", deep)])
    named = [{"type": "function", "function": {"name": f"t{i}"}} for i in range(SIZE // 55)]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    yield "many allowed tools", chat(tools=[function("t0", {})], tool_choice=allowed)
    yield "the most choices", chat(n=128)
    yield "a long model", chat(model="m" * SIZE)
    yield (
        "markup in every message",
        chat(messages=[{"role": "user", "content": repeated("<tool_call>")}], tools=[function("t", {})]),
    )


# --- what a backend sends -----------------------------------------------------------------------------------------


def chunk(delta: Any = None, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text_of(*texts: str) -> bytes:
    return b"".join(event(chunk({"content": text})) for text in texts) + event(chunk({}, "stop")) + b"data: [DONE]\n\n"


def fragment(arguments: str | None = None, name: str | None = None, index: Any = 0, call_id: str | None = None) -> Any:
    entry: dict[str, Any] = {"index": index, "function": {}}
    if arguments is not None:
        entry["function"]["arguments"] = arguments
    if name is not None:
        entry |= {"id": call_id or f"c{index}", "type": "function"}
        entry["function"]["name"] = name
    return chunk({"tool_calls": [entry]})


def calls_of(*fragments: Any) -> bytes:
    return b"".join(map(event, fragments)) + event(chunk({}, "tool_calls")) + b"data: [DONE]\n\n"


def arguments_of(text: str) -> bytes:
    """One call with this text, in fragments of a kilobyte."""
    pieces = [text[at : at + 1024] for at in range(0, len(text), 1024)]
    return calls_of(fragment("", "f"), *map(fragment, pieces))


ODD: list[Any] = [-1, True, 1.5, "7", None, [], 10**30]  # as an index
MARKUP = {
    "tags": "<tool_call>",
    "half tags": "<tool_cal",
    "angle brackets": "<",
    "brackets": "[",
    "braces": "{",
    "backticks": "`",
    "fences": "```\n",
    "quotes": '"',
    "pythonic": "[f(",
    "functions": "<function=f>",
    "invokes": '<invoke name="f">',
    "parameters": "<function=f><parameter=a>",
    "arg keys": "<tool_call>f<arg_key>",
    "harmony": "<|channel|>commentary to=functions.f",
    "kimi": "<|tool_call_begin|>functions.f:0",
    "deepseek": "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "mistral": "[TOOL_CALLS]",
    "thinking": "<think>",
    "closers": "</tool_call>",
    "minimax": "]<]minimax[>[",
    "JSON heads": '{"name": "f", "arguments": ',
    "JSON calls": '{"name": "f", "arguments": {}}',
    "whole calls": '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "nested": '<tool_call>{"name": "f", "arguments": {"a": ',
    "backslashes": '<tool_call>{"name": "f", "arguments": {"a": "\\',
}


def replies() -> Iterator[tuple[str, bytes]]:
    """Bodies of event streams in the chat dialect."""
    yield "line ends", b"\n" * SIZE
    yield "carriage returns", b"\r" * SIZE
    yield "colons", b":\n" * (SIZE // 2)
    yield "comments", b": ping\n\n" * (SIZE // 8)
    yield "empty data lines", b"data\n" * (SIZE // 5) + b"\n"
    yield "empty events", b"data:\n\n" * (SIZE // 7)
    yield "lines that are no fields", b"x\n" * (SIZE // 2)
    yield "a line without an end", b"data: " + b"x" * SIZE
    yield "a field of one letter a line", b"d: x\n" * (SIZE // 5) + b"\n\n"
    yield "null events", b"data: null\n\n" * (SIZE // 12)
    yield "two documents an event", b"data: {}\ndata: {}\n\n" * (SIZE // 19)
    yield "many documents in an event", b"data: " + b"{}" * (SIZE // 2) + b"\n\n"
    yield "open brackets", event(b"[" * SIZE)
    yield "nested lists", event(b"[" * SIZE + b"]" * SIZE)
    yield "nested objects in a delta", event(b'{"choices":[{"delta":' + b'{"a":' * 40_000 + b"1" + b"}" * 40_003)
    yield (
        "900 levels in a delta",
        event(b'{"choices":[{"index":0,"delta":{"x":' + b"[" * 900 + b"]" * 900 + b'},"finish_reason":null}]}'),
    )
    yield "a long integer", event(b'{"choices":[],"created":' + b"9" * SIZE + b"}")
    yield "many long integers", event(b'{"choices":[],"a":[' + b",".join([b"9" * 4000] * 50) + b"]}")
    yield "one key many times", event(b'{"choices":[' + b'{"index":0,"delta":{}},' * 8000 + b'{"index":0}]}')
    yield "many choices", b"".join(event(chunk({"content": "x"}, index=i)) for i in range(1500))
    yield "large indexes of choices", b"".join(event(chunk({"content": "x"}, index=10**9 + i)) for i in range(1500))
    yield "one letter a delta", text_of(*"x" * 1500)
    yield "a text in one delta", text_of("x" * SIZE)
    yield "white space", text_of(*[" "] * 1500)
    yield "white space in one delta", text_of(" " * SIZE)
    yield "line separators", text_of("\u2028" * (SIZE // 6))
    yield (
        "halves of characters",
        event(
            b'{"choices":[{"index":0,"delta":{"content":"' + b"\\ud800" * (SIZE // 6) + b'"},"finish_reason":null}]}'
        ),
    )
    yield "halves of characters, one a delta", b"".join(event(chunk({"content": "\ud800"})) for _ in range(1500))
    yield "unknown fields", event({**chunk({"content": "x"}), **{f"k{i}": i for i in range(SIZE // 12)}})
    yield "usage again and again", b"".join(event({**chunk(), "usage": {"total_tokens": 1}}) for _ in range(1200))
    for name, opener in MARKUP.items():
        text = repeated(opener)
        yield f"markup: {name}", text_of(text)
        yield f"markup in small deltas: {name}", text_of(*(text[at : at + 7] for at in range(0, 10_000, 7)))
    yield "fragments of one letter", calls_of(fragment("", "f"), *([fragment("x")] * 1800))
    yield (
        "growing fragments",
        calls_of(
            fragment("", "f"),
            *(fragment('{"a":"' + "x" * size) for size in range(600)),
            fragment('{"a":"' + "x" * 600 + '"}'),
        ),
    )
    yield "a name on every fragment", calls_of(*([fragment("x", "f")] * 1400))
    yield "a name in pieces", calls_of(*([fragment("", "x")] * 1400))
    yield "another name every time", calls_of(*(fragment("{}", f"n{i}") for i in range(1400)))
    yield "a large index", calls_of(fragment("{}", "f", index=50_000_000))
    yield "indexes far apart", calls_of(*(fragment("{}", "f", index=i * 10**6) for i in range(1400)))
    yield "odd indexes", calls_of(*(fragment("{}", "f", index=i) for i in ODD))
    yield (
        "many calls in a delta",
        event(
            chunk(
                {
                    "tool_calls": [
                        {"index": i, "id": f"c{i}", "function": {"name": "f", "arguments": "{}"}} for i in range(2500)
                    ]
                }
            )
        ),
    )
    yield "one id for all", calls_of(*(fragment("{}", "f", index=i, call_id="c") for i in range(1400)))
    for name, text in ARGUMENTS.items():
        yield f"arguments: {name}", arguments_of(text)


ARGUMENTS: dict[str, str] = {
    "open brackets": "[" * SIZE,
    "open braces": '{"a":' * (SIZE // 5),
    "nested lists": "[" * (SIZE // 2) + "]" * (SIZE // 2),
    "300 levels": '{"a":' * 300 + "1" + "}" * 300,
    "empty objects": "{}" * (SIZE // 2),
    "empty objects before one": "{}" * (SIZE // 2) + '{"a":1}',
    "the same object": '{"a":1}' * (SIZE // 7),
    "almost the same object": '{"a":1}' * (SIZE // 7) + '{"a":2}',
    "control tokens": '{"a":1}' + "</s>" * (SIZE // 4),
    "half a control token": '{"a":1}' + "<|" * (SIZE // 2),
    "blanks": '{"a":1}' + " " * SIZE,
    "blanks before": " " * SIZE + "{",
    "commas": '{"a":[' + "," * SIZE + "]}",
    "trailing commas": '{"a":[' + "[1,]," * (SIZE // 5) + "]}",
    "unquoted keys": "{" + "a:1," * (SIZE // 4) + "}",
    "single quotes": "{'a':[" + "''," * (SIZE // 3) + "]}",
    "raw line ends": '{"a":"' + "\n" * SIZE + '"}',
    "quotation marks": '"' * SIZE,
    "backslashes": '{"a":"' + "\\" * SIZE,
    "closers": '{"a":1}' + "}" * SIZE,
    "fences": "```" * (SIZE // 3),
    "a doubled key": '{"a":1,' * 60 + '"b":1,"b":2' + "}" * 60,
    "many keys": "{" + ",".join(f'"k{i}":{i}' for i in range(SIZE // 12)) + "}",
    "keys in two cases": "{" + ",".join(f'"{"kK"[i % 2]}{i // 2}":1' for i in range(SIZE // 12)) + "}",
    "many long integers": "[" + ",".join(["9" * 4000] * (SIZE // 4000)) + "]",
    "integers over 64 bits": '{"a":[' + ",".join(["9" * 20] * (SIZE // 21)) + "]}",
    "halves of characters": '{"a":"' + "\\ud800" * (SIZE // 6) + '"}',
    "a string that holds an object": json.dumps(json.dumps({"a": "x" * SIZE})),
    "a string in a string in a string": json.dumps(json.dumps(json.dumps({"a": "\\" * 20_000}))),
}


def named(*events: Any) -> bytes:
    """Events with their type as their name."""
    return b"".join(b"event: %s\n%s" % (one["type"].encode(), event(one)) for one in events)


def messages_replies() -> Iterator[tuple[str, bytes]]:
    """The same in Anthropic's Messages dialect."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    start = {"type": "message_start", "message": message}
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}, {"type": "message_stop"}

    def opened(index: Any, kind: str = "tool_use", **more: Any) -> dict[str, Any]:
        block = {"type": kind, "id": f"t{index}", "name": "f", "input": {}, "text": "", "thinking": "", **more}
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index: Any, **fields: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": fields}

    json_delta = delta(0, type="input_json_delta", partial_json="x")
    yield "fragments of one letter", named(start, opened(0), *[json_delta] * 1500, *end)
    yield "blocks that never stop", named(start, *(opened(i) for i in range(1000)), *end)
    yield "one block opened again", named(start, *[opened(0)] * 1000, *end)
    yield "large indexes", named(start, *(opened(10**9 + i) for i in range(1000)), *end)
    yield "odd indexes", named(start, *(opened(i) for i in ODD), *end)
    yield "text blocks", named(start, *(opened(i, "text", text="x") for i in range(1000)), *end)
    yield "thinking blocks", named(start, *(opened(i, "thinking", signature="s") for i in range(1000)), *end)
    signed = delta(0, type="signature_delta", signature="x")
    yield "signatures in pieces", named(start, opened(0, "thinking"), *[signed] * 1500, *end)
    yield "deltas of no block", named(start, *(delta(i, type="text_delta", text="x") for i in range(1500)), *end)
    yield "text after a call", named(start, opened(0), *(opened(i, "text", text="x") for i in range(1, 1000)), *end)
    yield "stops", named(start, *[{"type": "content_block_stop", "index": 0}] * 2000, *end)
    yield "ends", named(start, *[end[0]] * 1500)
    yield "starts", named(*[start] * 1000)
    yield "pings", named(start, *[{"type": "ping"}] * 4000, *end)
    yield "a large input", named(start, opened(0, input={"a": ["x"] * 40_000}), *end)


def responses_replies() -> Iterator[tuple[str, bytes]]:
    """The same in OpenAI's Responses dialect."""
    response = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": []}
    start = {"type": "response.created", "response": response}
    end = {"type": "response.completed", "response": {**response, "status": "completed"}}

    def item(index: Any, kind: str = "function_call", **more: Any) -> dict[str, Any]:
        entry = {"type": kind, "id": f"i{index}", "call_id": f"c{index}", "name": "f", "arguments": "", **more}
        return {"type": "response.output_item.added", "output_index": index, "item": entry}

    def delta(index: Any, what: str = "function_call_arguments", text: str = "x") -> dict[str, Any]:
        place = {"item_id": f"i{index}", "output_index": index, "content_index": 0}
        return {"type": f"response.{what}.delta", **place, "delta": text}

    message = item(0, "message", role="assistant", content=[])
    yield "fragments of one letter", named(start, item(0), *[delta(0)] * 1500, end)
    yield "items that are never done", named(start, *(item(i) for i in range(900)), end)
    yield "one item added again", named(start, *[item(0)] * 900, end)
    yield "large indexes", named(start, *(item(10**9 + i) for i in range(900)), end)
    yield "odd indexes", named(start, *(item(i) for i in ODD), end)
    yield "deltas of no item", named(start, *(delta(i) for i in range(1200)), end)
    yield "text in small deltas", named(start, message, *[delta(0, "output_text")] * 1500, end)
    yield "messages", named(start, *(item(i, "message", content=[]) for i in range(900)), end)
    yield (
        "parts",
        named(
            start,
            message,
            *(
                {"type": "response.content_part.added", "output_index": 0, "content_index": i, "part": {}}
                for i in range(1500)
            ),
            end,
        ),
    )
    reasoning = [item(i, "reasoning", summary=[], encrypted_content="x") for i in range(900)]
    yield "reasoning items", named(start, *reasoning, end)
    yield "reasoning after a call", named(start, item(1000), *reasoning, end)
    output = [
        {"type": "function_call", "id": f"i{i}", "call_id": f"c{i}", "name": "f", "arguments": "{}"}
        for i in range(1500)
    ]
    yield (
        "calls in the last event only",
        named(start, {**end, "response": {**response, "status": "completed", "output": output}}),
    )
    again = {
        "type": "message",
        "id": "i0",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "x" * 1000}],
    }
    yield (
        "the text again in the last event",
        named(
            start,
            message,
            *[delta(0, "output_text")] * 1000,
            {**end, "response": {**response, "output": [again] * 100}},
        ),
    )
    yield "unknown events", named(start, *[{"type": "response.x"}] * 4000, end)


def gemini_replies() -> Iterator[tuple[str, bytes]]:
    """The same in Gemini's dialect, as events."""

    def said(*parts: Any, **more: Any) -> dict[str, Any]:
        return {"candidates": [{"index": 0, "content": {"role": "model", "parts": list(parts)}, **more}]}

    def partial(path: str, **value: Any) -> dict[str, Any]:
        return said({"functionCall": {"partialArgs": [{"jsonPath": path, **value}], "willContinue": True}})

    end = event(said(finishReason="STOP"))
    begin = event(said({"functionCall": {"name": "f", "willContinue": True}}))
    call = {"functionCall": {"name": "f", "args": {"a": 1}}}
    yield "many calls in a part list", event(said(*[call] * 4000)) + end
    yield "one call again and again", event(said(call)) * 1500 + end
    yield "text parts", event(said(*[{"text": "x"}] * 12_000)) + end
    yield "thoughts", event(said({"text": "x", "thought": True, "thoughtSignature": "s"})) * 1500 + end
    yield "candidates", event({"candidates": [{"index": i} for i in range(12_000)]}) + end
    deep, other = "$" + ".a" * 63, "$" + ".b" * 63
    steps = b"".join(event(partial(path, numberValue=1)) for path in (deep, other) * 300)
    yield "paths that go up and down", begin + steps + end
    yield "indexes in a path", begin + b"".join(event(partial(f"$.a[{i}]", numberValue=1)) for i in range(1300)) + end
    yield "a large index in a path", begin + event(partial("$.a[999999999]", numberValue=1)) + end
    yield "a long path", begin + event(partial("$" + ".a" * 100_000, numberValue=1)) + end
    yield "quotes in a path", begin + event(partial("$['" + "\\'" * 2000 + "']", numberValue=1)) * 20 + end
    yield "pieces of a string", begin + event(partial("$.a", stringValue="x", willContinue=True)) * 1300 + end
    yield "pieces of no call", event(partial("$.a", stringValue="x", willContinue=True)) * 1300 + end
    nested: Any = 1
    for _ in range(200):
        nested = {"a": nested}
    yield "deep arguments", event(said({"functionCall": {"name": "f", "args": nested}})) * 50 + end


def gemini_arrays() -> Iterator[tuple[str, bytes]]:
    """Bodies that are one JSON array."""
    yield "blanks", b"[" + b" " * SIZE
    yield "commas", b"[" + b"," * SIZE
    yield "open brackets", b"[" * SIZE
    yield "empty objects", b"[" + b"{}," * (SIZE // 3)
    yield "quotation marks", b'["' + b'"' * SIZE
    yield "backslashes", b'["' + b"\\" * SIZE
    yield "behind the end", b"[]" + b"x" * SIZE


def ollama_replies() -> Iterator[tuple[str, bytes]]:
    """Bodies of JSON lines in Ollama's dialect."""

    def line(**message: Any) -> bytes:
        return json.dumps({"model": "m", "message": {"role": "assistant", **message}, "done": False}).encode() + b"\n"

    end = b'{"model":"m","message":{"content":""},"done":true,"done_reason":"stop"}\n'
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    yield "line ends", b"{" + b"\n" * SIZE
    yield "open brackets a line", b"{\n" * (SIZE // 2)
    yield "a line without an end", b'{"' + b"x" * SIZE
    yield "one letter a line", line(content="x") * 2000 + end
    yield "calls", line(content="", tool_calls=[call]) * 1500 + end
    yield "many calls in a line", line(content="", tool_calls=[call] * 4000) + end
    yield "blanks", line(content=" ") * 2000 + end
    yield "thinking", line(content="", thinking="x") * 2000 + end
    yield "a document over many lines", b'{"model":"m",\n' + b'"a":1,\n' * (SIZE // 7) + b'"done":true}'
    yield "many documents in a line", b'{"a":1}' * (SIZE // 7) + b"\n"


def responses_requests() -> Iterator[tuple[str, bytes]]:
    """Requests in OpenAI's Responses dialect."""

    def asks(*items: Any, **fields: Any) -> bytes:
        return json.dumps({"model": "m", "stream": True, "input": list(items), **fields}).encode()

    def call(call_id: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}

    def result(call_id: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": call_id, "output": "x"}

    count = SIZE // 200
    yield "one id in every turn", asks(*(one for _ in range(count) for one in (call("c"), result("c"))))
    yield (
        "an id of its own in every turn",
        asks(*(one for i in range(count) for one in (call(f"c{i}"), result(f"c{i}")))),
    )
    yield "calls with one id", asks(*[call("c")] * (SIZE // 90))
    yield "results without calls", asks(*[result("nobody")] * (SIZE // 70))
    yield "reasoning", asks(*[{"type": "reasoning", "summary": [], "encrypted_content": "x"}] * (SIZE // 70))
    yield "messages", asks(*[{"role": "user", "content": ""}] * (SIZE // 32))
    yield "parts", asks({"role": "user", "content": [{"type": "input_text", "text": ""}] * (SIZE // 36)})
    yield "tools", asks(tools=[{"type": "function", "name": f"t{i}", "parameters": {}} for i in range(512)])
    yield "nested lists", b'{"model":"m","input":' + b"[" * SIZE + b"]" * SIZE + b"}"


def messages_requests() -> Iterator[tuple[str, bytes]]:
    """Requests in Anthropic's Messages dialect."""

    def asks(*turns: Any, **fields: Any) -> bytes:
        return json.dumps({"model": "m", "max_tokens": 9, "stream": True, "messages": list(turns), **fields}).encode()

    def call(call_id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": call_id, "name": "f", "input": {}}

    def result(call_id: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call_id, "content": "x"}

    def turn(call_id: str) -> list[dict[str, Any]]:
        return [{"role": "assistant", "content": [call(call_id)]}, {"role": "user", "content": [result(call_id)]}]

    count = SIZE // 200
    yield "one id in every turn", asks(*(one for _ in range(count) for one in turn("c")))
    yield "an id of its own in every turn", asks(*(one for i in range(count) for one in turn(f"c{i}")))
    yield "calls with one id", asks({"role": "assistant", "content": [call("c")] * (SIZE // 60)})
    yield "results without calls", asks({"role": "user", "content": [result("nobody")] * (SIZE // 70)})
    thinking = {"type": "thinking", "thinking": "x", "signature": "s"}
    yield "thinking", asks({"role": "assistant", "content": [thinking] * (SIZE // 60)})
    yield "messages", asks(*[{"role": "user", "content": ""}] * (SIZE // 32))
    yield "parts", asks({"role": "user", "content": [{"type": "text", "text": ""}] * (SIZE // 30)})
    yield "parts of the system", asks(system=[{"type": "text", "text": ""}] * (SIZE // 30))
    yield "tools", asks(tools=[{"name": f"t{i}", "input_schema": {"type": "object"}} for i in range(512)])
    yield "nested inputs", b'{"model":"m","max_tokens":9,"messages":' + b"[" * SIZE + b"]" * SIZE + b"}"


def compressed() -> Iterator[tuple[str, str, bytes]]:
    """(name, content-encoding, body): small, and large when unpacked."""
    large = b"data: {}\n\n" * 20_000_000
    yield "a gzip bomb of events", "gzip", gzip.compress(large[: 100 << 20])
    yield "a gzip bomb of nothing", "gzip", gzip.compress(bytes(100 << 20))
    yield "a deflate bomb of blanks", "deflate", zlib.compress(b" " * (100 << 20))
    yield "many empty members", "gzip", gzip.compress(b"") * 5000
    yield "brotli", "br", bytes.fromhex("5bffffff070000") * 100
    yield "zstd", "zstd", b"\x28\xb5\x2f\xfd" * 100


def cut(body: bytes) -> list[bytes]:
    return [body[at : at + STEP] for at in range(0, len(body), STEP)]
