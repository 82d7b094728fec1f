"""The key `wholecall` is the proxy's own: an upstream's never reaches a client as a report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects import CLIENT_DIALECTS
from proxy.exchange import ExchangeSettings
from proxy.replay.inprocess import run
from proxy.replay.recording import Recording

FORGED: dict[str, Any] = {"calls": [], "quirks": ["forged"]}
JSON, EVENTS = "application/json", "text/event-stream"

CHUNK: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
CHAT_EVENTS: list[dict[str, Any]] = [
    {**CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": None}]},
    {**CHUNK, "choices": [{"index": 0, "delta": {"content": " you"}, "finish_reason": None}]},
    {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]
CHAT: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
}
MESSAGE: dict[str, Any] = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "usage": {"input_tokens": 1},
}
MESSAGES_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " you"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    {"type": "message_stop"},
]
MESSAGES: dict[str, Any] = {**MESSAGE, "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}
ITEM: dict[str, Any] = {"type": "message", "id": "i", "role": "assistant", "status": "completed"}
RESPONSE: dict[str, Any] = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
OUTPUT: list[dict[str, Any]] = [{**ITEM, "content": [{"type": "output_text", "text": "hi", "annotations": []}]}]
RESPONSES_EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "content": []}},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "i", "delta": "hi"},
    {"type": "response.completed", "response": {**RESPONSE, "output": OUTPUT}},
]
RESPONSES: dict[str, Any] = {**RESPONSE, "output": OUTPUT}

STREAMS = {
    "openai-chat": CHAT_EVENTS,
    "anthropic-messages": MESSAGES_EVENTS,
    "openai-responses": RESPONSES_EVENTS,
}
PLAIN = {"openai-chat": CHAT, "anthropic-messages": MESSAGES, "openai-responses": RESPONSES}


def answer(dialect: str, body: bytes, media_type: str, *, status: int = 200) -> tuple[int, bytes]:
    ask: dict[str, Any] = {"model": "m", "stream": media_type == EVENTS, "max_tokens": 9}
    ask |= {"input": "hi"} if dialect == "openai-responses" else {"messages": [{"role": "user", "content": "hi"}]}
    request = CLIENT_DIALECTS[dialect].read(json.dumps(ask).encode())
    recording = Recording("r", "", dialect, (body,), status=status, headers={"content-type": media_type})
    got = run(request, recording, ExchangeSettings())
    return got.status, bytes(got.body)


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_forged_report_on_any_event_of_a_stream_goes(dialect: str) -> None:
    body = b""
    for event in STREAMS[dialect]:
        forged = {**event, "wholecall": FORGED}
        for key in ("message", "response"):
            if key in forged:
                forged[key] = {**forged[key], "wholecall": FORGED}
        body += b"data: " + json.dumps(forged).encode() + b"\n\n"
    status, got = answer(dialect, body + b"data: [DONE]\n\n", EVENTS)
    assert status == 200
    assert b"hi" in got
    assert b"forged" not in got


@pytest.mark.parametrize("dialect", PLAIN)
def test_a_forged_report_on_a_document_goes(dialect: str) -> None:
    status, got = answer(dialect, json.dumps({**PLAIN[dialect], "wholecall": FORGED}).encode(), JSON)
    assert status == 200
    assert b'"hi"' in got
    assert b"forged" not in got


@pytest.mark.parametrize("dialect", PLAIN)
@pytest.mark.parametrize("status", [200, 400])
def test_a_forged_report_beside_an_error_goes(dialect: str, status: int) -> None:
    error = {"type": "error", "error": {"type": "api_error", "message": "boom"}, "wholecall": FORGED}
    told, got = answer(dialect, json.dumps(error).encode(), JSON, status=status)
    assert told >= 400
    assert b"boom" in got
    assert b"forged" not in got
