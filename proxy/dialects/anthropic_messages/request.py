"""Messages requests: what the core needs of one, and what goes to an upstream that speaks the same dialect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from proxy.dialects.base import IdForm, Note, invalid, request_head, sequence_of, tool_schema
from proxy.dialects.history import CallIds, object_text
from proxy.model.calls import JudgedCall
from proxy.model.findings import Quirk
from proxy.model.requests import Request, Tool, ToolChoice
from proxy.wire.jsondoc import NotJson, dump, load

ID_FORM = IdForm(64, "a-zA-Z0-9_-")
HEADERS = (("anthropic-version", "2023-06-01"),)
"""What an upstream wants besides the key. A client's own anthropic-version and anthropic-beta go before it."""

OWN_TOOLS = (None, "custom")
"""Values of a tool's `type` that mean a tool of the client's own; any other names one that Anthropic defines."""

_CLEARS_THINKING = ("clear_thinking_20251015",)


def path(model: str, stream: bool) -> str:
    return "/messages"


def read(body: bytes) -> Request:
    """The request in `body`. Raises Fault (INVALID_JSON, INVALID_REQUEST, INVALID_TOOL_SCHEMA)."""
    document, model, stream = request_head(body)
    messages = document.get("messages")
    if not isinstance(messages, list):
        raise invalid("messages is no list", "messages")
    choice = document.get("tool_choice")
    return Request(
        dialect="anthropic-messages",
        model=model,
        stream=stream,
        body=document,
        include_usage=True,
        tools=_tools(document.get("tools")),
        tool_choice=_tool_choice(choice),
        parallel=not (isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True),
        used_ids=frozenset(_used_ids(messages)),
    )


def write(request: Request, model: str, note: Note) -> bytes:
    """The upstream's body: the client's own, with the model's name there and a history that it will take."""
    return dump({**_guarded(request.body, note), "model": model})


def follow_up(request: Request, text: str, answers: Sequence[tuple[JudgedCall, str]], message: str) -> Request:
    """`request` with the assistant's turn added, what each of its calls is answered, and a user's message if any."""
    turn: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    for call, _ in answers:  # with what the API put beside it (who the caller was ...)
        turn.append(
            {**call.extra, "type": "tool_use", "id": call.call_id, "name": call.name, "input": _input(call.text)}
        )
    told: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": call.call_id, "content": answer} for call, answer in answers
    ]
    told += [{"type": "text", "text": message}] if message else []
    turns = (("assistant", turn), ("user", told))
    added = [{"role": role, "content": content} for role, content in turns if content]
    body = {**_without_budgeted_thinking(request.body), "messages": [*request.body["messages"], *added]}
    return replace(request, body=body, used_ids=request.used_ids | {call.call_id for call, _ in answers})


def _without_budgeted_thinking(body: dict[str, Any]) -> dict[str, Any]:
    """`body` with thinking off where the API would want a call's signed thinking before it (`enabled`; `adaptive` does
    without), and without the context edits that it refuses where thinking is off."""
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return body
    body = {key: value for key, value in body.items() if key != "thinking"}
    context = body.get("context_management")
    if isinstance(context, dict) and isinstance(context.get("edits"), list):
        edits = [e for e in context["edits"] if not (isinstance(e, dict) and e.get("type") in _CLEARS_THINKING)]
        body["context_management"] = {**context, "edits": edits}
        if not edits:
            del body["context_management"]
    return body


def _input(text: str) -> Any:
    """Arguments as a block holds them; what is no JSON stays text, and is wrapped on its way up."""
    try:
        return load(text.encode("utf-8", "surrogatepass")) if text.strip() else {}
    except NotJson:
        return text


def _tools(value: Any) -> dict[str, Tool]:
    """Every tool that has a name. One that Anthropic defines (bash, text_editor ...) has no schema to judge by."""
    if value is None:
        return {}
    if not isinstance(value, list):
        raise invalid("tools is no list", "tools")
    tools: dict[str, Tool] = {}
    for position, entry in enumerate(value):
        where = f"tools[{position}]"
        if not isinstance(entry, dict):
            raise invalid(f"{where} is no object", where)
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            if entry.get("type") in OWN_TOOLS:
                raise invalid(f"{where}.name is missing", where)
            continue
        if name in tools:
            raise invalid(f"{where}: a tool named {name[:80]!r} is declared twice", where)
        tools[name] = Tool(name, tool_schema(name, entry.get("input_schema"), f"{where}.input_schema"))
    return tools


def _tool_choice(value: Any) -> ToolChoice:
    if value is None:
        return ToolChoice()
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "auto":
        return ToolChoice()
    if kind == "none":
        return ToolChoice("none")
    if kind == "any":
        return ToolChoice("required")
    if kind == "tool" and isinstance(value.get("name"), str):
        return ToolChoice("forced", frozenset({value["name"]}))
    raise invalid("tool_choice.type is none of auto, any, tool (with a name) and none", "tool_choice")


def blocks_of(message: Any) -> list[Any]:
    """A message's content blocks; text alone is none."""
    return list(sequence_of(message.get("content"))) if isinstance(message, dict) else []


def _used_ids(messages: list[Any]) -> Iterator[str]:
    """Every call id in the request's history: a new call must not take one of them again."""
    for message in messages:
        for block in blocks_of(message):
            if isinstance(block, dict):
                for key in ("id", "tool_use_id"):
                    if isinstance(block.get(key), str):
                        yield block[key]


# --- the history guard -------------------------------------------------------------------------------------------


def _guarded(body: dict[str, Any], note: Note) -> dict[str, Any]:
    """`body` with inputs that are objects, results that have calls, and ids that are unique: what the API asks for.
    Only what has to change is changed."""
    messages = body["messages"]
    ids = CallIds(ID_FORM, note)
    out: list[Any] = []
    changed = False
    for message in messages:
        blocks = blocks_of(message)
        new = [b for block in blocks for b in _guard_block(block, ids, note)]
        if len(new) != len(blocks) or any(a is not b for a, b in zip(blocks, new, strict=True)):
            changed = True
            new.sort(key=lambda block: not _is_result(block))  # they have to stand first
            message = {**message, "content": new}
        out.append(message)
    return {**body, "messages": out} if changed else body


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _guard_block(block: Any, ids: CallIds, note: Note) -> list[Any]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "tool_use" and isinstance(block.get("id"), str):
        call_id = ids.of_call(block["id"])
        if call_id != block["id"]:
            block = {**block, "id": call_id}
        given = block.get("input")
        if not isinstance(given, dict):
            source = given if isinstance(given, str) else "" if given is None else dump(given).decode()
            block = {**block, "input": load(object_text(source, note).encode("utf-8", "surrogatepass"))}
    elif kind == "tool_result" and isinstance(block.get("tool_use_id"), str):
        found = ids.of_result(block["tool_use_id"])
        if found is None:
            note(Quirk.HISTORY_RESULT_ORPHANED)
            content = block.get("content")
            rest = list(sequence_of(content))
            text = [{"type": "text", "text": content}] if isinstance(content, str) and content else []
            return [{"type": "text", "text": "Result of an earlier tool call:"}, *text, *rest]
        if found != block["tool_use_id"]:
            block = {**block, "tool_use_id": found}
    return [block]
