"""Captured replies are told by their look."""

from __future__ import annotations

import json

import pytest

from proxy.replay.capture import is_stream, read_capture

CHUNK = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "hi"}}]}
PLAIN = {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}


def encoded(document: object) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"data: " + encoded(CHUNK) + b"\n\ndata: [DONE]\n\n",
        b": ping\r\n\r\ndata:" + encoded(CHUNK) + b"\r\n\r\n",
        b"\xef\xbb\xbfdata: " + encoded(CHUNK) + b"\n\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: " + encoded(CHUNK) + b"\n\n",
        encoded(PLAIN) + b"\n\ndata: [DONE]\n\n",
    ],
    ids=["sse", "sse with a comment first", "sse with a byte order mark", "curl -i", "json and done"],
)
def test_a_raw_stream_is_kept_byte_for_byte(data: bytes) -> None:
    recording = read_capture(data, "x")
    assert is_stream(recording)
    assert b"".join(recording.pieces) == data


def test_each_line_of_an_ndjson_capture_becomes_an_event() -> None:
    recording = read_capture(encoded(CHUNK) + b"\r\n\n" + encoded(CHUNK) + b"\n", "x")
    assert is_stream(recording)
    assert b"".join(recording.pieces).count(b"data: {") == 2


@pytest.mark.parametrize(
    "data", [encoded(PLAIN), json.dumps(PLAIN, indent=2).encode(), encoded({"error": {"message": "x"}})]
)
def test_one_document_is_a_plain_reply(data: bytes) -> None:
    recording = read_capture(data, "x")
    assert not is_stream(recording)
    assert b"".join(recording.pieces) == data


def test_a_plain_reply_that_was_cut_is_still_a_reply() -> None:
    assert not is_stream(read_capture(encoded(PLAIN)[:-20], "x"))


def test_a_case_file_keeps_its_request_and_its_end() -> None:
    case = {
        "id": "a",
        "dialect": "openai-chat",
        "request": {"stream": True},
        "upstream": {"body": [CHUNK, {"$hex": "0a"}], "end": "reset"},
    }
    recording = read_capture(encoded(case), "x")
    assert (recording.id, recording.end, recording.request) == ("a", "reset", {"stream": True})
    assert recording.pieces == (b"data: " + encoded(CHUNK) + b"\n\n", b"\n")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"<html><body>Bad gateway</body></html>", "neither SSE nor NDJSON nor a JSON object"),
        (b"\x00\xff\xfe", "neither SSE nor NDJSON nor a JSON object"),
        (b"[1, 2]", "neither SSE nor NDJSON nor a JSON object"),
        (b'{"a": 1}', "neither choices nor an error"),
        (b"[" * 100_000, "neither SSE nor NDJSON nor a JSON object"),
        (b'event: message_start\ndata: {"type": "message_start"}\n\n', "anthropic-messages"),
        (b'data: {"type": "response.created"}\n\n', "openai-responses"),
        (b'data: {"candidates": []}\n\n', "gemini"),
        (b'{"message": {"content": "a"}, "done": false}\n{"message": {"content": ""}, "done": true}\n', "ollama-chat"),
        (b'{"dialect": "palm", "upstream": {"body": []}}', "no known dialect"),
        (b'{"dialect": "openai-chat", "upstream": {}}', "upstream.body"),
        (b'{"dialect": "openai-chat", "upstream": {"body": [5]}}', "upstream.body[0]"),
        (b'{"dialect": "openai-chat", "upstream": {"body": [{"$hex": "zz"}]}}', "$hex"),
        (b'{"dialect": "openai-chat", "upstream": {"body": [], "status": "x"}}', "upstream.status"),
        (b'{"dialect": "openai-chat", "upstream": {"body": [], "end": "x"}}', "upstream.end"),
        (b'{"dialect": "openai-chat", "upstream": {"body": [], "pace_s": -1}}', "upstream.pace_s"),
        (b'{"dialect": "openai-chat", "upstream": {"body": [], "headers": []}}', "upstream.headers"),
        (b'{"dialect": "openai-chat", "request": [], "upstream": {"body": []}}', "request"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(data: bytes, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_capture(data, "x")
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
