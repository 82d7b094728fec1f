"""Responses requests: what the core needs of one, and what goes upstream to a backend of this dialect as it came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from proxy.dialects.base import IdForm, Note, invalid, request_head, sequence_of, tool_schema
from proxy.dialects.history import guard
from proxy.dialects.openai_responses.hub import conversation, write_conversation
from proxy.dialects.openai_responses.items import CALL_BY_ITEM, CUSTOM_CALL, FUNCTION_CALL, NAME
from proxy.model.calls import JudgedCall
from proxy.model.conversation import CallPart, Conversation, Options, ResultPart, TextPart, Turn
from proxy.model.requests import ChoiceMode, Request, Tool, ToolChoice
from proxy.wire.jsondoc import dump

__all__ = ["conversation", "follow_up", "path", "read", "write", "write_conversation"]

_ANY_ID = IdForm(1 << 20, r"\s\S")
_HOSTED_CHOICES_ARE_AUTO = ToolChoice()
_STORED = ("previous_response_id", "conversation", "prompt")


def read(body: bytes) -> Request:
    """The request in `body`. Raises Fault (INVALID_JSON, INVALID_REQUEST, INVALID_TOOL_SCHEMA)."""
    document, model, stream = request_head(body)
    if not isinstance(document.get("input"), str | list | None):
        raise invalid("input is neither a string nor a list of items", "input")
    return Request(
        dialect=NAME,
        model=model,
        stream=stream,
        body=document,
        include_usage=True,  # the terminal event has usage always
        tools=_tools(document),
        tool_choice=_tool_choice(document.get("tool_choice")),
        parallel=document.get("parallel_tool_calls") is not False,
        used_ids=frozenset(item["call_id"] for item in _items(document) if isinstance(item.get("call_id"), str)),
    )


def path(model: str, stream: bool) -> str:
    return "/responses"


def write(request: Request, model: str, note: Note) -> bytes:
    """The upstream's body: the client's own, with the model's name there and a history that it will take."""
    return dump({**_guarded(request.body, note), "model": model})


def follow_up(request: Request, text: str, answers: Sequence[tuple[JudgedCall, str]], message: str) -> Request:
    """`request` with the assistant's turn added, what each of its calls is answered, and a user's message if any.

    Calls go without an item id: with one, the API would want the reasoning item that led to it.
    """
    given = request.body.get("input")
    items: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else [*sequence_of(given)]
    if text.strip():
        items.append({"role": "assistant", "content": text})
    for call, _ in answers:
        kind = CUSTOM_CALL if call.kind == "custom" else FUNCTION_CALL
        beside = {key: value for key, value in call.extra.items() if key not in ("id", "status")}  # namespace ...
        items.append({**beside, "type": kind.item, "call_id": call.call_id, "name": call.name, kind.field: call.text})
    for call, told in answers:
        kind = CUSTOM_CALL if call.kind == "custom" else FUNCTION_CALL
        items.append({"type": f"{kind.item}_output", "call_id": call.call_id, "output": told})
    items += [{"role": "user", "content": message}] if message else []
    used = request.used_ids | {call.call_id for call, _ in answers}
    return replace(request, body={**request.body, "input": items}, used_ids=used)


def _items(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (item for item in sequence_of(document.get("input")) if isinstance(item, dict))


# --- tools -----------------------------------------------------------------------------------------------------------


def _tools(document: dict[str, Any]) -> dict[str, Tool]:
    """The tools whose calls reach the client: declared ones, those of namespaces, and those that a search loaded."""
    value = document.get("tools")
    if value is not None and not isinstance(value, list):
        raise invalid("tools is no list", "tools")
    tools: dict[str, Tool] = {}
    for where, entry in _declared(value or [], "tools"):
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            raise invalid(f"{where}.name is missing", f"{where}.name")
        if name in tools and where.count("[") == 1:
            raise invalid(f"{where}: a tool named {name[:80]!r} is declared twice", where)
        _add(tools, name, entry, where)
    for position, item in enumerate(sequence_of(document.get("input"))):
        if isinstance(item, dict) and item.get("type") in ("tool_search_output", "additional_tools"):
            for where, entry in _declared(sequence_of(item.get("tools")), f"input[{position}].tools"):
                if isinstance(entry.get("name"), str) and entry["name"]:
                    _add(tools, entry["name"], entry, where)
    return tools


def _declared(entries: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Functions and custom tools with their place; others the backend runs itself."""
    for position, entry in enumerate(entries):
        place = f"{where}[{position}]"
        if not isinstance(entry, dict):
            raise invalid(f"{place} is no object", place)
        if entry.get("type") in ("function", "custom"):
            yield place, entry
        elif entry.get("type") == "namespace":
            yield from _declared(sequence_of(entry.get("tools")), f"{place}.tools")


def _add(tools: dict[str, Tool], name: str, entry: dict[str, Any], where: str) -> None:
    schema = None
    if entry["type"] == "function":
        schema = tool_schema(name, entry.get("parameters"), f"{where}.parameters")
    tool = Tool(name, schema, entry["type"])
    if name in tools and tools[name] != tool:
        tool = Tool(name, None, entry["type"])  # of two namespaces: the name alone does not tell which is meant
    tools[name] = tool


def _tool_choice(value: Any) -> ToolChoice:
    if value is None or value == "auto":
        return ToolChoice()
    if value in ("none", "required"):
        return ToolChoice(mode=value)
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise invalid('tool_choice is none of "none", "auto", "required", a tool or allowed_tools', "tool_choice")
    if kind in ("function", "custom"):
        if not isinstance(value.get("name"), str):
            raise invalid("tool_choice.name is missing", "tool_choice.name")
        return ToolChoice("forced", frozenset({value["name"]}))
    if kind == "allowed_tools":
        mode: ChoiceMode = "required" if value.get("mode") == "required" else "auto"
        allowed = (e for e in sequence_of(value.get("tools")) if isinstance(e, dict))
        return ToolChoice(mode, frozenset(e["name"] for e in allowed if isinstance(e.get("name"), str)))
    return _HOSTED_CHOICES_ARE_AUTO  # a tool that the backend runs: it says nothing about the client's


# --- the history guard -----------------------------------------------------------------------------------------------


def _guarded(body: dict[str, Any], note: Note) -> dict[str, Any]:
    """`body` with function calls and results in its input that a backend will take; the same object if they are.

    Where the backend stores the conversation its input is no whole history, and stays as it is.
    """
    items = body.get("input")
    if not isinstance(items, list) or any(body.get(key) for key in _STORED):
        return body
    if any(isinstance(item, dict) and item.get("type") in ("item_reference", "compaction") for item in items):
        return body
    places = [n for n, item in enumerate(items) if isinstance(item, dict) and _part_of(item) is not None]
    if not places:
        return body
    turns = [Turn("user", [part]) for n in places if (part := _part_of(items[n])) is not None]
    guarded = guard(Conversation(turns, [], ToolChoice(), True, False, 1, Options()), _ANY_ID, note)
    out = list(items)
    for n, turn in zip(places, guarded.turns, strict=True):
        out[n] = _back(items[n], turn)
    return {**body, "input": out}


def _part_of(item: dict[str, Any]) -> CallPart | ResultPart | None:
    kind, call_id = str(item.get("type")), item.get("call_id")
    if not isinstance(call_id, str):
        return None
    if kind in CALL_BY_ITEM:
        arguments = item.get("arguments") if kind == FUNCTION_CALL.item else "{}"
        return CallPart(call_id, str(item.get("name")), arguments if isinstance(arguments, str) else "{}")
    if kind.removesuffix("_output") in CALL_BY_ITEM:
        output = item.get("output")
        return ResultPart(call_id, [TextPart(output if isinstance(output, str) else dump(output).decode())])
    return None


def _back(item: dict[str, Any], turn: Turn) -> dict[str, Any]:
    part = turn.parts[0]
    if isinstance(part, CallPart):
        new = {**item, "call_id": part.call_id}
        if isinstance(item.get("arguments"), str):
            new["arguments"] = part.arguments
        return new
    if isinstance(part, ResultPart):
        return {**item, "call_id": part.call_id}
    assert isinstance(part, TextPart)
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": part.text}]}
