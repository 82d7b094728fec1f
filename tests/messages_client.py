"""A strict Messages client: reads an answer, and lists in words what no client should have to bear."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from casefile import Call, Reply

_WORDS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_USAGE = {"input_tokens", "output_tokens"}
_FIELDS = {"text_delta": "text", "thinking_delta": "thinking"}
_NUMBER = re.compile(r'"\\u0000number ([^"]*)"')


@dataclass(slots=True)
class Message:
    """What a client understood: the content blocks as the API would have them in the next request."""

    reply: Reply
    blocks: list[dict[str, Any]] = field(default_factory=list)
    head: dict[str, Any] = field(default_factory=dict)
    stop: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        return bool(self.reply.done)

    @property
    def usage(self) -> dict[str, Any]:
        return self.reply.usage

    @property
    def error(self) -> Any:
        return self.reply.error

    @property
    def calls(self) -> list[tuple[str, str, Any]]:
        return [(b["id"], b["name"], b["input"]) for b in self.blocks if b["type"] == "tool_use"]

    @property
    def text(self) -> str:
        return "".join(b["text"] for b in self.blocks if b["type"] == "text")

    @property
    def quirks(self) -> list[str]:
        return [*self.reply.quirks, *(quirk for entry in self.reply.report for quirk in entry["quirks"])]


def as_messages(request: Mapping[str, Any], model: str) -> bytes:
    """A case's request (OpenAI chat) as a Messages request."""
    messages: list[dict[str, Any]] = []
    for message in request["messages"]:
        blocks: list[dict[str, Any]] = []
        if message["role"] == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}]
        elif message.get("content"):
            blocks = [{"type": "text", "text": message["content"]}]
        for call in message.get("tool_calls") or ():
            function = call["function"]
            value = json.loads(function["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": value})
        role = "assistant" if message["role"] == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    body: dict[str, Any] = {"model": model, "max_tokens": 1024, "messages": messages}
    body["stream"] = bool(request.get("stream"))
    functions = [tool["function"] for tool in request.get("tools", ()) if tool["type"] == "function"]
    if functions:
        body["tools"] = [{"name": f["name"], "input_schema": f.get("parameters", {})} for f in functions]
    choice = request.get("tool_choice")
    if isinstance(choice, dict):
        body["tool_choice"] = {"type": "tool", "name": choice["function"]["name"]}
    elif choice is not None:
        body["tool_choice"] = {"type": "any" if choice == "required" else choice}
    if request.get("parallel_tool_calls") is False:
        body["tool_choice"] = {"type": "auto", **body.get("tool_choice", {}), "disable_parallel_tool_use": True}
    return json.dumps(body).encode()


def read(status: int, headers: Mapping[str, str], body: bytes, *, stream: bool) -> Message:
    message = Message(Reply(status, dict(headers), body))
    is_stream = "event-stream" in headers.get("content-type", "")
    if status < 400 and is_stream:
        _Stream(message).read(body)
    else:
        _read_document(body, message)
    if status < 400 and is_stream != stream:
        message.reply.noncanonical.append(f"asked stream={stream}, got {headers.get('content-type')}")
    if message.ended:
        _finish(message)
    return message


def _read_report(document: dict[str, Any], message: Message) -> None:
    message.report = document.pop("wholecall", message.report)
    if message.report is not None:
        message.reply.report = message.report["calls"]
        message.reply.quirks = message.report["quirks"]


def _read_document(body: bytes, message: Message) -> None:
    reply = message.reply
    document = json.loads(body)
    _read_report(document, message)
    if document["type"] == "error":
        _read_error(document["error"], reply)
        return
    message.blocks = document.pop("content")
    message.stop = {key: document[key] for key in ("stop_reason", "stop_sequence")}
    reply.usage = document.pop("usage")
    message.head, reply.done = document, 1
    if document["type"] != "message" or document["role"] != "assistant":
        reply.noncanonical.append("the document is no message of the assistant")
    sources = [block.get("input") for block in _numbers_as_written(body)["content"]]
    for block, source in zip(message.blocks, sources, strict=True):
        if block["type"] == "tool_use":
            text = _NUMBER.sub(r"\1", json.dumps(source))
            reply.calls[0, len(reply.calls)] = Call(0, len(reply.calls), block["id"], block["name"], text)


def _numbers_as_written(body: bytes) -> Any:
    """The document with each number as a marked string of its own characters."""
    return json.loads(body, parse_int=lambda text: f"\0number {text}", parse_float=lambda text: f"\0number {text}")


def _read_error(error: Any, reply: Reply) -> None:
    reply.error = error
    if not isinstance(error, dict) or not error.get("message") or not error.get("type"):
        reply.noncanonical.append("the error is no object with a type and a message")


def _finish(message: Message) -> None:
    reply = message.reply
    reply.content[0] = message.text
    reply.reasoning[0] = "".join(b["thinking"] for b in message.blocks if b["type"] == "thinking")
    reply.finish[0] = _WORDS[message.stop["stop_reason"]]
    if not reply.usage.keys() >= _USAGE:
        reply.noncanonical.append(f"usage is {reply.usage}: typed clients need {_USAGE}")
    for block in message.blocks:
        if block["type"] == "text" and not any(value for key, value in block.items() if key != "type"):
            reply.noncanonical.append("an empty text block: the API takes none back")


class _Stream:
    def __init__(self, message: Message) -> None:
        self.message = message
        self.reply = message.reply
        self.bad = message.reply.noncanonical.append
        self.open: dict[str, Any] | None = None
        self.source: list[str] = []  # of the open block's input

    def read(self, body: bytes) -> None:
        blocks = body.decode("utf-8").split("\n\n")
        if blocks.pop():
            self.bad("the body ends inside an event")
        for block in blocks:
            lines = [line for line in block.split("\n") if not line.startswith(":")]
            if len(lines) == 2 and lines[0].startswith("event: ") and lines[1].startswith("data: "):
                self.event(lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: ")))
            elif lines:
                self.bad(f"an event of {lines[:3]}")
        if not self.reply.done and self.reply.error is None:
            self.bad("the stream has neither message_stop nor an error")

    def event(self, name: str, item: dict[str, Any]) -> None:
        reply, message, kind = self.reply, self.message, item["type"]
        if name != kind:
            self.bad(f"event {name!r} carries type {kind!r}")
        if reply.done or reply.error is not None:
            self.bad(f"{kind} after the end")
        if not message.head and kind not in ("message_start", "error"):
            self.bad(f"{kind} before message_start")
        _read_report(item, message)
        match kind:
            case "message_start":
                self.start(item["message"])
            case "content_block_start" | "content_block_delta" | "content_block_stop":
                self.block_event(kind, item)
            case "message_delta":
                message.stop = item["delta"]
                reply.usage = {**reply.usage, **item["usage"]}
                if self.open is not None:
                    self.bad("message_delta inside a block")
            case "message_stop":
                reply.done += 1
                if not message.stop:
                    self.bad("message_stop without a message_delta")
            case "error":
                _read_error(item["error"], reply)
                reply.content[0] = message.text
            case _:
                self.bad(f"an event that some clients take for an error: {kind}")

    def start(self, head: dict[str, Any]) -> None:
        if self.message.head or head["content"] or head["stop_reason"] is not None:
            self.bad("message_start comes once, with no content and no stop_reason")
        self.message.head = head
        self.reply.usage = dict(head["usage"])

    def block_event(self, kind: str, item: dict[str, Any]) -> None:
        blocks, opens = self.message.blocks, kind == "content_block_start"
        if type(item["index"]) is not int:
            self.bad(f"index {item['index']!r}")
        if opens != (self.open is None) or item["index"] != len(blocks) - (not opens):
            self.bad(f"{kind} of block {item['index']} at block {len(blocks)}, open: {self.open is not None}")
            return
        if opens:
            self.open = dict(item["content_block"])
            self.source.clear()
            blocks.append(self.open)
            self.opened(self.open)
        elif kind == "content_block_delta":
            assert self.open is not None
            self.delta(item["delta"], self.open)
        else:
            assert self.open is not None
            if self.open["type"] == "tool_use" and not self.source:
                self.bad("a call without its input: some clients then have none")
            if self.source:
                with suppress(ValueError) if self.open["type"] != "tool_use" else nullcontext():  # not judged
                    self.open["input"] = json.loads("".join(self.source))
            self.open = None

    def opened(self, block: dict[str, Any]) -> None:
        if block["type"] == "tool_use":
            if not block.get("id") or not block.get("name") or block.get("input") != {}:
                self.bad("the start of a call lacks id or name, or has an input")
            if type(block["id"]) is not str or type(block["name"]) is not str:
                self.bad("id or name of a call is no text")
            count = len(self.reply.calls)
            self.reply.calls[0, count] = Call(0, count, block["id"], block["name"])
        elif block["type"] in ("text", "thinking") and block.get(block["type"]):
            self.bad("a block starts with text: some clients lose it")

    def delta(self, delta: dict[str, Any], block: dict[str, Any]) -> None:
        kind = delta["type"]
        if kind in _FIELDS:
            if not delta[_FIELDS[kind]]:
                self.bad(f"an empty {kind}")
            block[_FIELDS[kind]] += delta[_FIELDS[kind]]
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        elif kind == "input_json_delta":
            self.source.append(delta["partial_json"])
            if block["type"] == "tool_use":
                self.reply.calls[0, len(self.reply.calls) - 1].arguments += delta["partial_json"]
        elif not isinstance(kind, str) or not kind or block["type"] == "tool_use":  # new kinds are the upstream's own
            self.bad(f"a delta of type {kind!r}")
        else:
            block["more"] = True
