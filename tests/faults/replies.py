"""The reply that all faults spoil: a text and two calls, in each upstream dialect; and the request for it.

Small on purpose, since some faults come at every byte of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TEXT = ("Let me", " look.")
CALLS = (("look", '{"city": "Cork"}'), ("ping", '{"n": [1, 2]}'))

_ANY = {"type": "object", "additionalProperties": True}
_TOOLS = [{"type": "function", "function": {"name": name, "parameters": _ANY}} for name, _ in CALLS]
# As a chat request; other clients ask for the same in their own words (tests/dialect_clients.py).
REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "Where, and how far?"}], "tools": _TOOLS}


@dataclass(frozen=True, slots=True)
class Stream:
    """A streamed reply, event by event. Once the event `proof` is whole, the end of the reply is confirmed."""

    dialect: str
    content_type: str
    events: Sequence[bytes]
    proof: int

    @property
    def body(self) -> bytes:
        return b"".join(self.events)

    def upto(self, marker: bytes) -> int:
        """Index behind the first event that holds `marker`."""
        return next(n for n, event in enumerate(self.events) if marker in event) + 1

    def seen(self, size: int, *, closed: bool = False) -> list[bytes]:
        """The events that are whole within the first `size` bytes. `closed`: the body ended there, and the last event
        needs no end."""
        whole: list[bytes] = []
        for event in self.events:
            if size < len(event.rstrip(b"\n") if closed else event):
                break
            size -= len(event)
            whole.append(event)
        return whole


def _sse(*documents: Any, named: bool = False) -> list[bytes]:
    out = []
    for document in documents:
        name = f"event: {document['type']}\n" if named else ""
        data = document if isinstance(document, str) else json.dumps(document, separators=(",", ":"))
        out.append(f"{name}data: {data}\n\n".encode())
    return out


def _halves(text: str) -> tuple[str, str]:
    return text[:9], text[9:]


# --- chat completions ---------------------------------------------------------------------------------------------


def chat_chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "delta": delta}
    return {"id": "c", "choices": [choice if finish is None else {**choice, "finish_reason": finish}]}


def _chat() -> Stream:
    documents: list[Any] = [chat_chunk({"role": "assistant", "content": ""})]
    documents += [chat_chunk({"content": piece}) for piece in TEXT]
    for index, (name, arguments) in enumerate(CALLS):
        first, rest = _halves(arguments)
        head = {"index": index, "id": f"call_{index}", "type": "function"}
        documents.append(chat_chunk({"tool_calls": [{**head, "function": {"name": name, "arguments": first}}]}))
        documents.append(chat_chunk({"tool_calls": [{"index": index, "function": {"arguments": rest}}]}))
    documents += [chat_chunk({}, "tool_calls"), "[DONE]"]
    return Stream("openai-chat", "text/event-stream", _sse(*documents), len(documents) - 2)


def _chat_plain() -> bytes:
    functions = [{"name": name, "arguments": arguments} for name, arguments in CALLS]
    calls = [{"id": f"call_{n}", "type": "function", "function": function} for n, function in enumerate(functions)]
    message = {"role": "assistant", "content": "".join(TEXT), "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return json.dumps(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    ).encode()


# --- the others ---------------------------------------------------------------------------------------------------


def _responses() -> Stream:
    items: list[dict[str, Any]] = [{"id": "m0", "type": "message", "role": "assistant", "status": "completed"}]
    items[0]["content"] = [{"type": "output_text", "text": "".join(TEXT), "annotations": []}]
    documents: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**items[0], "content": []}},
    ]
    where = {"item_id": "m0", "output_index": 0, "content_index": 0}
    documents += [{"type": "response.output_text.delta", **where, "delta": piece} for piece in TEXT]
    documents.append({"type": "response.output_item.done", "output_index": 0, "item": items[0]})
    for index, (name, arguments) in enumerate(CALLS, 1):
        item = {"id": f"f{index}", "type": "function_call", "call_id": f"call_{index}", "name": name}
        place = {"item_id": item["id"], "output_index": index}
        begun, done = {**item, "arguments": ""}, {**item, "arguments": arguments, "status": "completed"}
        documents.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        for piece in _halves(arguments):
            documents.append({"type": "response.function_call_arguments.delta", **place, "delta": piece})
        documents.append({"type": "response.output_item.done", "output_index": index, "item": done})
        items.append(done)
    whole = {"id": "r", "object": "response", "status": "completed", "output": items}
    documents.append({"type": "response.completed", "response": whole})
    events = _sse(*documents, named=True)
    return Stream("openai-responses", "text/event-stream", events, len(events) - 1)


def _messages() -> Stream:
    head = {"id": "m", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 1}}
    documents: list[dict[str, Any]] = [{"type": "message_start", "message": head}]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in TEXT])
    ]
    for index, (name, arguments) in enumerate(CALLS):
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _halves(arguments)]
        blocks.append(({"type": "tool_use", "id": f"call_{index}", "name": name, "input": {}}, deltas))
    for index, (block, deltas) in enumerate(blocks):
        documents.append({"type": "content_block_start", "index": index, "content_block": block})
        documents += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        documents.append({"type": "content_block_stop", "index": index})
    documents.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}})
    documents.append({"type": "message_stop"})
    return Stream("anthropic-messages", "text/event-stream", _sse(*documents, named=True), len(documents) - 2)


def _gemini() -> Stream:
    parts: list[dict[str, Any]] = [{"text": piece} for piece in TEXT]
    parts += [{"functionCall": {"name": name, "args": json.loads(arguments)}} for name, arguments in CALLS]
    documents: list[dict[str, Any]] = [{"candidates": [{"index": 0, "content": {"parts": [part]}}]} for part in parts]
    documents.append({"candidates": [{"index": 0, "finishReason": "STOP"}]})
    return Stream("gemini", "text/event-stream", _sse(*documents), len(documents) - 1)


def _ollama() -> Stream:
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": piece} for piece in TEXT]
    for name, arguments in CALLS:
        call = {"function": {"name": name, "arguments": json.loads(arguments)}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    documents: list[dict[str, Any]] = [{"model": "m", "message": message, "done": False} for message in messages]
    documents.append({"model": "m", "message": {"role": "assistant", "content": ""}, "done": True})
    lines = [json.dumps(document, separators=(",", ":")).encode() + b"\n" for document in documents]
    return Stream("ollama-chat", "application/x-ndjson", lines, len(lines) - 1)


CHAT = _chat()
PLAIN = _chat_plain()
STREAMS = {stream.dialect: stream for stream in (CHAT, _responses(), _messages(), _gemini(), _ollama())}
