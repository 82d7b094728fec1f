"""Chat completion requests: what the core needs of one, and what goes upstream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from proxy.dialects.base import Note, invalid, request_head, sequence_of, tool_schema
from proxy.dialects.history import guard_chat_body
from proxy.faults import Fault, FaultKind
from proxy.model.calls import JudgedCall
from proxy.model.requests import ChoiceMode, Request, Tool, ToolChoice
from proxy.wire.jsondoc import dump

_MAX_CHOICES = 128


def read(body: bytes) -> Request:
    """The request in `body`. Raises Fault (INVALID_JSON, INVALID_REQUEST, UNSUPPORTED_FIELD, INVALID_TOOL_SCHEMA)."""
    document, model, stream = request_head(body)
    for key in ("functions", "function_call"):
        if document.get(key) not in (None, [], ""):
            raise Fault(
                FaultKind.UNSUPPORTED_FIELD, f"{key} is the old form: declare the functions as tools", param=key
            )
    options = document.get("stream_options")
    choices = document.get("n")
    if choices is None:
        choices = 1
    if type(choices) is not int or not 1 <= choices <= _MAX_CHOICES:
        raise invalid(f"n is no integer from 1 to {_MAX_CHOICES}", "n")
    tools = _tools(document.get("tools"))
    return Request(
        dialect="openai-chat",
        model=model,
        stream=stream,
        body=document,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        choices=choices,
        tools=tools,
        tool_choice=_tool_choice(document.get("tool_choice")),
        parallel=document.get("parallel_tool_calls") is not False,
        used_ids=_used_ids(document.get("messages")),
    )


def path(model: str, stream: bool) -> str:
    return "/chat/completions"


def write(request: Request, model: str, note: Note) -> bytes:
    """The upstream's body: the client's own, with the model's name there and a history that it will take."""
    return dump({**guard_chat_body(request.body, note), "model": model})


def follow_up(request: Request, text: str, answers: Sequence[tuple[JudgedCall, str]], message: str) -> Request:
    """`request` with the assistant's turn added, what each of its calls is answered, and a user's message if any."""
    turn: dict[str, Any] = {"role": "assistant", "content": text or None}
    if answers:
        turn["tool_calls"] = [_made(call) for call, _ in answers]
    results = [{"role": "tool", "tool_call_id": call.call_id, "content": told} for call, told in answers]
    asked = [{"role": "user", "content": message}] if message else []
    messages = [*sequence_of(request.body.get("messages")), turn, *results, *asked]
    body = {**request.body, "messages": messages}
    return replace(request, body=body, used_ids=request.used_ids | {call.call_id for call, _ in answers})


def _made(call: JudgedCall) -> dict[str, Any]:
    """A call as its assistant's message holds it, with what the backend put beside it (a thought's signature ...)."""
    field = "input" if call.kind == "custom" else "arguments"
    made = {**call.function_extra, "name": call.name, field: call.text}
    return {**call.extra, "id": call.call_id, "type": call.kind, call.kind: made}


def _tools(value: Any) -> dict[str, Tool]:
    if value is None:
        return {}
    if not isinstance(value, list):
        raise invalid("tools is no list", "tools")
    tools: dict[str, Tool] = {}
    for position, entry in enumerate(value):
        where = f"tools[{position}]"
        if not isinstance(entry, dict):
            raise invalid(f"{where} is no object", where)
        kind = entry.get("type")
        if kind not in ("function", "custom"):
            continue  # a tool that the backend runs itself: no call of it reaches the client
        body = entry.get(kind)
        if not isinstance(body, dict) or not isinstance(body.get("name"), str) or not body["name"]:
            raise invalid(f"{where}.{kind}.name is missing", f"{where}.{kind}")
        name = body["name"]
        if name in tools:
            raise invalid(f"{where}: a tool named {name[:80]!r} is declared twice", where)
        if kind == "custom":
            tools[name] = Tool(name, None, "custom")
        else:
            tools[name] = Tool(name, tool_schema(name, body.get("parameters"), f"{where}.function.parameters"))
    return tools


def _tool_choice(value: Any) -> ToolChoice:
    if value is None or value == "auto":
        return ToolChoice()
    if value in ("none", "required"):
        return ToolChoice(mode=value)
    if isinstance(value, dict):
        kind = value.get("type")
        body = value.get(kind) if isinstance(kind, str) else None
        if kind in ("function", "custom") and isinstance(body, dict) and isinstance(body.get("name"), str):
            return ToolChoice("forced", frozenset({body["name"]}))
        if kind == "allowed_tools" and isinstance(body, dict):
            mode: ChoiceMode = "required" if body.get("mode") == "required" else "auto"
            return ToolChoice(mode, frozenset(_allowed_names(body.get("tools"))))
    raise invalid('tool_choice is none of "none", "auto", "required", a named tool or allowed_tools', "tool_choice")


def _allowed_names(tools: Any) -> list[str]:
    names = []
    for entry in sequence_of(tools):
        kind = entry.get("type") if isinstance(entry, dict) else None
        body = entry.get(kind) if isinstance(kind, str) else None
        if isinstance(body, dict) and isinstance(body.get("name"), str):
            names.append(body["name"])
    return names


def _used_ids(messages: Any) -> frozenset[str]:
    """Every call id in the request's history: a new call must not take one of them again."""
    ids: set[str] = set()
    for message in sequence_of(messages):
        if not isinstance(message, dict):
            continue
        if isinstance(message.get("tool_call_id"), str):
            ids.add(message["tool_call_id"])
        for call in sequence_of(message.get("tool_calls")):
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                ids.add(call["id"])
    return frozenset(ids)
