"""A strict Responses client: reads an answer, and lists in words what no client should have to bear."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from casefile import Call, Reply

_TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_LIFECYCLE = ("response.created", "response.in_progress", "response.queued", *_TERMINAL)
_TEXTS = {
    "response.output_text.delta": ("content", "content_index", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "text"),
}
_ARGUMENTS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
_DONES = {
    "response.function_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
}
_PARTS = {"response.content_part.added": ("content", "content_index")} | {
    "response.reasoning_summary_part.added": ("summary", "summary_index")
}


_PART_TYPES = ("output_text", "refusal", "reasoning_text", "summary_text")  # others are the upstream's own


@dataclass(slots=True)
class Answer:
    """`items` are those of the terminal event, or of the document; `events` their types in order."""

    reply: Reply
    items: list[dict[str, Any]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    response: dict[str, Any] = field(default_factory=dict)


def as_responses(request: Mapping[str, Any], model: str) -> bytes:
    """A case's request (OpenAI chat) as a Responses request."""
    items: list[dict[str, Any]] = []
    for message in request["messages"]:
        if message["role"] == "tool":
            result = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **result})
            continue
        if message.get("content"):
            items.append({"role": message["role"], "content": message["content"]})
        calls = message.get("tool_calls") or ()
        items += [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]
    body: dict[str, Any] = {"model": model, "stream": bool(request.get("stream")), "input": items}
    tools = [t["function"] for t in request.get("tools", ()) if t["type"] == "function"]
    if tools:
        body["tools"] = [{"type": "function", "strict": False, "parameters": {}, **tool} for tool in tools]
    choice = request.get("tool_choice")
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        allowed = choice["allowed_tools"]
        names = [{"type": "function", "name": tool["function"]["name"]} for tool in allowed["tools"]]
        body["tool_choice"] = {"type": "allowed_tools", "mode": allowed["mode"], "tools": names}
    elif choice is not None:
        body["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", **choice["function"]}
    if "parallel_tool_calls" in request:
        body["parallel_tool_calls"] = request["parallel_tool_calls"]
    return json.dumps(body).encode()


def read(status: int, headers: Mapping[str, str], body: bytes, *, stream: bool) -> Answer:
    answer = Answer(Reply(status, dict(headers), body))
    is_stream = "event-stream" in headers.get("content-type", "")
    if status >= 400 or not is_stream:
        document = json.loads(body)
        _report(document, answer.reply)
        answer.reply.error = document.get("error")
        if status >= 400 and not isinstance(answer.reply.error, dict):
            answer.reply.noncanonical.append("an error status without an error object")
        if status < 400:
            _finish(document, answer)
            answer.reply.done = 1
            if stream:
                answer.reply.noncanonical.append("a document where a stream was asked for")
    else:
        _Stream(answer).read(body)
    return answer


def _report(document: dict[str, Any], reply: Reply) -> None:
    report = document.get("wholecall") or {}
    reply.report += report.get("calls", [])
    reply.quirks += report.get("quirks", [])


def _finish(response: dict[str, Any], answer: Answer) -> None:
    reply = answer.reply
    answer.response = response
    answer.items = response["output"]
    reply.usage = response["usage"] or {}
    said = thought = ""
    for item in answer.items:
        if item["type"] in ("function_call", "custom_tool_call"):
            text = item["arguments"] if item["type"] == "function_call" else item["input"]
            count = len(reply.calls)
            reply.calls[0, count] = Call(0, count, item["call_id"], item["name"], text)
        elif item["type"] == "message":
            reply.refusal += "".join(part["refusal"] for part in item["content"] if part["type"] == "refusal")
            texts = [part["text"] for part in item["content"] if part["type"] == "output_text"]
            said += "".join(texts)
        elif item["type"] == "reasoning":
            parts = [part for name in ("summary", "content") for part in item.get(name) or ()]
            thought += "".join(part["text"] for part in parts if part["type"] in _PART_TYPES)
    reply.reasoning[0] = thought
    if reply.content.setdefault(0, said) != said:
        reply.noncanonical.append("the final text differs from its deltas")
    details = response.get("incomplete_details") or {}
    word = details.get("reason")
    reason = "content_filter" if word == "content_filter" else "length" if word and isinstance(word, str) else None
    if (response["status"] == "incomplete") != (reason is not None):
        reply.noncanonical.append(f"status {response['status']} with {details}")
    reply.finish[0] = reason or ("tool_calls" if reply.calls else "stop")


class _Stream:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.bad = answer.reply.noncanonical.append
        self.open: dict[str, Any] | None = None
        self.done: list[dict[str, Any]] = []
        self.response_id = ""

    def read(self, body: bytes) -> None:
        blocks = body.decode("utf-8").split("\n\n")
        if blocks.pop():
            self.bad("the body ends inside an event")
        for block in blocks:
            lines = [line for line in block.split("\n") if not line.startswith(":")]
            if lines:
                self.event(lines)

    def event(self, lines: list[str]) -> None:
        answer, reply = self.answer, self.answer.reply
        if len(lines) != 2 or not lines[0].startswith("event: ") or not lines[1].startswith("data: "):
            self.bad(f"an event of {lines[:3]}")
            return
        event = json.loads(lines[1][6:])
        kind = event["type"]
        if lines[0] != f"event: {kind}":
            self.bad(f"{lines[0]} carries {kind}")
        if event["sequence_number"] != len(answer.events):
            self.bad(f"sequence_number {event['sequence_number']} of event {len(answer.events)}")
        if reply.done:
            self.bad(f"{kind} after the terminal event")
        answer.events.append(kind)
        if len(answer.events) <= 2 and kind != ("response.created", "response.in_progress")[len(answer.events) - 1]:
            self.bad(f"event {len(answer.events)} is {kind}")
        _report(event, reply)
        if kind in _LIFECYCLE:
            self.lifecycle(kind, event["response"])
        elif kind == "error":
            reply.error = event["error"]
            if event["message"] != event["error"]["message"] or not event["code"]:
                self.bad("the error is not flat and nested alike")
        elif reply.error is not None:
            self.bad(f"{kind} after the error")
        else:
            self.item_event(kind, event)

    def lifecycle(self, kind: str, response: dict[str, Any]) -> None:
        if self.response_id not in ("", response["id"]):
            self.bad("the response's id changes")
        self.response_id = response["id"]
        missing = {"object", "created_at", "model", "tools", "tool_choice", "parallel_tool_calls"} - set(response)
        if missing:
            self.bad(f"the response lacks {missing}")
        if kind not in _TERMINAL:
            return
        self.answer.reply.done += 1
        if kind == "response.failed":
            if self.answer.reply.error is None:
                self.bad("response.failed without an error event")
            return
        if self.open is not None:
            self.bad("the response ends inside an item")
        if response["output"] != self.done:
            self.bad("the final output differs from the items that were done")
        _finish(response, self.answer)

    def item_event(self, kind: str, event: dict[str, Any]) -> None:
        if type(event["output_index"]) is not int or event["output_index"] != len(self.done):
            self.bad(f"{kind} has output_index {event['output_index']}, want {len(self.done)}")
        if kind == "response.output_item.added":
            if self.open is not None:
                self.bad("an item begins inside another")
            self.open = json.loads(json.dumps(event["item"]))
            return
        if self.open is None:
            self.bad(f"{kind} outside an item")
            return
        if kind == "response.output_item.done":
            self.item_done(self.open, event["item"])
            self.open = None
            return
        if event["item_id"] != self.open["id"]:
            self.bad(f"{kind} with another item_id")
        if kind in _DONES:
            holder = self.open[_DONES[kind]]
            if event[_DONES[kind]] != holder:
                self.bad(f"{kind} differs from its deltas")
        elif kind in _PARTS:
            holder, index = _PARTS[kind]
            self.open.setdefault(holder, []).append(event["part"])
            if event[index] != len(self.open[holder]) - 1:
                self.bad(f"part {event[index]} is not the next one")
        elif kind in _TEXTS:
            holder, index, name = _TEXTS[kind]
            self.open[holder][event[index]][name] += event["delta"]
            if kind == "response.output_text.delta":
                content = self.answer.reply.content
                content[0] = content.get(0, "") + event["delta"]
        elif kind in _ARGUMENTS:
            self.open[_ARGUMENTS[kind]] += event["delta"]

    def item_done(self, built: dict[str, Any], item: dict[str, Any]) -> None:
        self.done.append(item)
        names = ("id", "type", "call_id", "name", "arguments", "input")
        for name in names if item["type"] in ("function_call", "custom_tool_call") else names[:2]:
            if built.get(name) != item.get(name):
                self.bad(f"{name} of the finished item is {item.get(name)!r}, was {built.get(name)!r}")
        for holder, name in (("content", "text"), ("content", "refusal"), ("summary", "text")):
            if item["type"] != "reasoning" and (item["type"], holder) != ("message", "content"):
                continue
            ours = [part.get(name) for part in built.get(holder) or ()]
            if ours != [part.get(name) for part in item.get(holder) or () if part.get("type") in _PART_TYPES]:
                self.bad(f"{holder} of the finished item differs from its deltas")
