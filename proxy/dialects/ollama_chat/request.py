"""Requests to Ollama's `/api/chat`, written from the hub.

What this dialect cannot ask for is enforced on the answer (tool_choice, one call at most) and named in `lost`. Tools
that may not be called are left out. Images go as base64 only: the proxy fetches nothing.
"""

from __future__ import annotations

from typing import Any

from proxy.dialects.base import IdForm
from proxy.faults import Fault, FaultKind
from proxy.model.conversation import (
    CallPart,
    Conversation,
    ImagePart,
    Options,
    ResultPart,
    TextPart,
    ThinkingPart,
    ToolDeclaration,
    Turn,
)
from proxy.wire.jsondoc import dump, load

IDS = IdForm(1 << 20, r"\s\S")

_LEVELS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


def path(model: str, stream: bool) -> str:
    return "/api/chat"


def write_conversation(talk: Conversation, model: str) -> bytes:
    """The body. Raises Fault (UNSUPPORTED_FIELD) for image URLs, several choices and custom tools."""
    if talk.choices > 1:
        raise _unsupported("n", "several choices")
    names: dict[str, str] = {}
    messages: list[dict[str, Any]] = []
    for turn in talk.turns:
        messages += _messages(turn, names)
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": talk.stream}
    tools = _tools(talk)
    if tools:
        body["tools"] = tools
    options = talk.options
    sampling = _sampling(options)
    if sampling:
        body["options"] = sampling
    think = _think(options)
    if think is not None:
        body["think"] = think
    if options.output_schema is not None:
        body["format"] = options.output_schema or "json"
    if options.user is not None:
        talk.lost.append("user")
    return dump(body)


def _messages(turn: Turn, names: dict[str, str]) -> list[dict[str, Any]]:
    """`names` holds the tool of each call so far, by id."""
    if turn.role in ("system", "developer"):
        return [{"role": "system", "content": _joined(turn.parts)}]
    if turn.role == "assistant":
        return [_assistant(turn, names)]
    messages = []
    pictures: list[ImagePart] = []
    for part in turn.parts:
        if isinstance(part, ResultPart):
            messages.append(_result(part, names))
            pictures += [p for p in part.content if isinstance(p, ImagePart)]  # a result carries text only
    pictures += [p for p in turn.parts if isinstance(p, ImagePart)]
    text = _joined(turn.parts)
    if text or pictures or not messages:
        message: dict[str, Any] = {"role": "user", "content": text}
        if pictures:
            message["images"] = [_picture(p) for p in pictures]
        messages.append(message)
    return messages


def _assistant(turn: Turn, names: dict[str, str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _joined(turn.parts)}
    thinking = "".join(p.text for p in turn.parts if isinstance(p, ThinkingPart))
    if thinking:
        message["thinking"] = thinking
    calls = []
    for part in turn.parts:
        if isinstance(part, CallPart):
            names[part.call_id] = part.name
            arguments = load(part.arguments.encode("utf-8", "surrogatepass"))
            calls.append({"id": part.call_id, "function": {"name": part.name, "arguments": arguments}})
    if calls:
        message["tool_calls"] = calls
    return message


def _result(part: ResultPart, names: dict[str, str]) -> dict[str, Any]:
    text = _joined(part.content)
    return {
        "role": "tool",
        "tool_name": part.name or names.get(part.call_id, ""),
        "tool_call_id": part.call_id,
        "content": f"Error: {text}" if part.is_error else text,
    }


def _joined(parts: Any) -> str:
    return "\n\n".join(p.text for p in parts if isinstance(p, TextPart))


def _picture(image: ImagePart) -> str:
    if image.url:
        raise _unsupported(image.where, "an image by its URL: send the image itself, in base64")
    return image.data


def _tools(talk: Conversation) -> list[dict[str, Any]]:
    choice = talk.tool_choice
    if any(tool.strict for tool in talk.tools):
        talk.lost.append("tools.strict")
    if choice.mode in ("required", "forced"):
        talk.lost.append("tool_choice")
    if not talk.parallel:
        talk.lost.append("parallel_tool_calls")
    if choice.mode == "none":
        return []
    return [
        _tool(tool, f"tools[{position}]")
        for position, tool in enumerate(talk.tools)
        if choice.names is None or tool.name in choice.names
    ]


def _tool(tool: ToolDeclaration, where: str) -> dict[str, Any]:
    if tool.kind == "custom":
        raise _unsupported(where, f"the custom tool {tool.name[:80]!r}")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.schema or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _sampling(options: Options) -> dict[str, Any]:
    values = {
        "num_predict": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "stop": options.stop or None,
        "seed": options.seed,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    return {key: value for key, value in values.items() if value is not None}


def _think(options: Options) -> bool | str | None:
    if options.reasoning_budget is not None:
        return options.reasoning_budget > 0
    if options.reasoning_effort is None:
        return None
    if options.reasoning_effort == "none":
        return False
    return _LEVELS.get(options.reasoning_effort, True)


def _unsupported(param: str, what: str) -> Fault:
    return Fault(FaultKind.UNSUPPORTED_FIELD, f"{param}: an Ollama backend cannot be given {what}", param=param)
