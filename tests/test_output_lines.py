"""What goes out is framed so that no text of a model can end a line or begin an event, whatever reads it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from casefile import read_all, settings
from dialect_clients import CLIENTS, Client
from proxy.replay.inprocess import Runner

# Whatever some reader of lines takes for the end of one, and an event of its own.
FORGED = '\n\ndata: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}\n\nevent: error\r\rdata: [DONE]\n\n'
ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
TEXT = f"one{FORGED}two{ENDS}three"
LINE = re.compile(r"(?:event: [a-z_.]+|data: [^\n]+|: wholecall|)")
CASE = next(case for case in read_all("own") if case.id == "after-done")


def chunk(**delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def answer(client: Client, *pieces: bytes) -> bytes:
    runner = Runner(client.request(CASE), settings("annotate"))
    runner.open(200, {"content-type": "text/event-stream"})
    for piece in pieces:
        runner.receive(piece)
    runner.end()
    assert runner.answer.status == 200
    return bytes(runner.answer.body)


def data(event: dict[str, Any], ascii_only: bool) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=ascii_only).encode() + b"\n\n"


@pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)
@pytest.mark.parametrize("ascii_only", [True, False], ids=["escaped", "as they are"])
@pytest.mark.parametrize("place", ["content", "reasoning_content", "refusal", "arguments", "name"])
def test_a_text_with_line_ends_and_events_in_it_stays_one_line(client: Client, ascii_only: bool, place: str) -> None:
    function = {"name": "save_note", "arguments": json.dumps({"title": TEXT}, ensure_ascii=ascii_only)}
    if place == "name":
        function = {"name": TEXT, "arguments": "{}"}
    call = {"index": 0, "id": "c1", "type": "function", "function": function}
    # Twice and more: the first event of a kind is parsed, the next ones may be known by their frame.
    told = [chunk(content="Hi")] + ([chunk(tool_calls=[call])] if place in function or place == "name" else [])
    told += [chunk(**{place: TEXT})] * 4 if not told[1:] else []
    events = [data(event, ascii_only) for event in told]
    finish = chunk()
    finish["choices"][0]["finish_reason"] = "tool_calls" if told[1:] and place in ("arguments", "name") else "stop"
    body = answer(client, *events, data(finish, ascii_only), b"data: [DONE]\n\n").decode()
    lines = body.split("\n")
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert "".join(body.split("\n")) == "".join(body.splitlines())  # no other line end than LF, for any reader of text
    assert [line for line in lines if "\r" in line] == []
    if place == "content":
        assert said(body).count(TEXT) == 4
    events_out = [line[6:] for line in lines if line.startswith("data: ")]
    assert all(event == "[DONE]" or json.loads(event) for event in events_out)
    assert events_out.count("[DONE]") <= 1


def said(body: str) -> str:
    """The visible text in a stream of whichever dialect."""
    text = ""
    for line in body.split("\n"):
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
            if event.get("type") == "response.output_text.delta":
                text += event["delta"]
            elif event.get("type") == "content_block_delta":
                text += event["delta"].get("text", "")
    return text


@pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)
def test_ids_retries_comments_and_event_names_of_the_upstream_stay_behind(client: Client) -> None:
    events = [
        b": a comment\nid: 7\nretry: 1\nevent: message\n" + data(chunk(content="Hi"), True),
        b"id: 8\ndata: " + json.dumps(chunk(content=" there")).encode() + b"\nretry: 5\n\n",
        b":\n\n",
        data({**chunk(), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, True),
        b"data: [DONE]\nid: 9\n\n",
    ]
    body = answer(client, *events)
    assert said(body.decode()) == "Hi there"
    for word in (b"a comment", b"\nid:", b"retry:", b"event: message\n"):
        assert word not in body
    assert not body.startswith(b"id:")


@pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)
def test_an_event_of_several_data_lines_goes_out_as_one(client: Client) -> None:
    text = json.dumps(chunk(content="Hi"), indent=1)
    event = "".join(f"data: {line}\r\n" for line in text.split("\n")) + "\r\n"
    finish = {**chunk(), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    body = answer(client, data(chunk(content="Well: "), True), event.encode(), data(finish, True), b"data: [DONE]\n\n")
    assert said(body.decode()) == "Well: Hi"
    assert [line for line in body.decode().split("\n") if not LINE.fullmatch(line)] == []
