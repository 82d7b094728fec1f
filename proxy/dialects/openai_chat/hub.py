"""Chat completion requests into the hub and out of it, where the other side speaks another dialect."""

from __future__ import annotations

from typing import Any

from proxy.dialects.base import sequence_of
from proxy.faults import Fault, FaultKind
from proxy.model.conversation import (
    CallPart,
    Conversation,
    ImagePart,
    Options,
    Part,
    ResultPart,
    TextPart,
    ThinkingPart,
    ToolDeclaration,
    Turn,
)
from proxy.model.requests import Request
from proxy.wire.jsondoc import dump

# Fields that ask for something in the answer that no other dialect gives.
_REFUSED = frozenset({"modalities", "audio", "web_search_options", "logprobs", "top_logprobs", "logit_bias"})
# Fields that are carried, or that mean nothing once they were read.
_CARRIED = frozenset(
    {
        "model",
        "messages",
        "stream",
        "stream_options",
        "n",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "reasoning_effort",
        "response_format",
        "user",
    }
)


def conversation(request: Request) -> Conversation:
    """The request in the hub's form. Raises Fault (UNSUPPORTED_FIELD) naming what cannot cross."""
    body = request.body
    lost: list[str] = []
    for key, value in body.items():
        if key in _CARRIED or value is None:
            continue
        # web_search_options asks for a search even where it is {}
        if key in _REFUSED and (value or key == "web_search_options") and value != ["text"]:
            raise _unsupported(key)
        lost.append(key)
    turns = [turn for i, m in enumerate(sequence_of(body.get("messages"))) for turn in _turns(m, f"messages[{i}]")]
    return Conversation(
        turns,
        _tools(body.get("tools")),
        request.tool_choice,
        request.parallel,
        request.stream,
        request.choices,
        _options(body),
        lost,
    )


def write_conversation(talk: Conversation, model: str) -> bytes:
    """The hub's form as a chat completion request. Raises Fault (UNSUPPORTED_FIELD) for custom tools; names of what is
    harmlessly lost go to `talk.lost`."""
    body: dict[str, Any] = {"model": model, "messages": [m for turn in talk.turns for m in _messages(turn)]}
    if any(isinstance(part, ThinkingPart) for turn in talk.turns for part in turn.parts):
        talk.lost.append("reasoning of earlier turns")  # some backends refuse it
    if talk.tools:
        body["tools"] = [_tool(tool, f"tools[{position}]") for position, tool in enumerate(talk.tools)]
    choice = talk.tool_choice
    if choice.mode == "forced" and choice.names:
        body["tool_choice"] = {"type": "function", "function": {"name": next(iter(choice.names))}}
    elif choice.names is not None:
        allowed = [{"type": "function", "function": {"name": name}} for name in sorted(choice.names)]
        body["tool_choice"] = {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": allowed}}
    elif talk.tools and choice.mode != "auto":
        body["tool_choice"] = choice.mode
    if talk.tools and not talk.parallel:
        body["parallel_tool_calls"] = False
    if talk.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    if talk.choices > 1:
        body["n"] = talk.choices
    _write_options(talk, body)
    return dump(body)


def _write_options(talk: Conversation, body: dict[str, Any]) -> None:
    options = talk.options
    for key in ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "user"):
        value = getattr(options, key)
        if value is not None:
            body[key] = value
    if options.max_tokens is not None:
        # the old name: every OpenAI-compatible engine reads it, not all read max_completion_tokens
        body["max_tokens"] = options.max_tokens
    if options.stop:
        body["stop"] = options.stop
    if options.reasoning_effort is not None:
        body["reasoning_effort"] = options.reasoning_effort
    if options.reasoning_budget is not None:
        talk.lost.append("reasoning_budget")
    if options.output_schema == {}:
        body["response_format"] = {"type": "json_object"}
    elif options.output_schema is not None:
        named: dict[str, Any] = {"name": options.output_schema_name, "schema": options.output_schema}
        if options.output_strict is not None:
            named["strict"] = options.output_strict
        body["response_format"] = {"type": "json_schema", "json_schema": named}


# --- reading -----------------------------------------------------------------------------------------------------


def _turns(message: Any, where: str) -> list[Turn]:
    if not isinstance(message, dict):
        raise Fault(FaultKind.INVALID_REQUEST, f"{where} is no object", param=where)
    role = message.get("role")
    content = message.get("content")
    if role in ("system", "developer"):
        parts: list[Part] = [p for p in _content(content, where) if isinstance(p, TextPart)]
        return [Turn(role, parts)]
    if role == "user":
        return [Turn("user", list(_content(content, where)))]
    if role == "tool":
        result = ResultPart(str(message.get("tool_call_id") or ""), _content(content, where))
        return [Turn("user", [result])]
    if role == "assistant":
        return [Turn("assistant", _assistant(message, where))]
    raise Fault(FaultKind.UNSUPPORTED_FIELD, f"{where}.role is none that other dialects have", param=f"{where}.role")


def _assistant(message: dict[str, Any], where: str) -> list[Part]:
    parts: list[Part] = []
    for key in ("reasoning_content", "reasoning"):
        if isinstance(message.get(key), str) and message[key]:
            parts.append(ThinkingPart(message[key]))
            break
    parts += _content(message.get("content"), where)
    if isinstance(message.get("refusal"), str) and message["refusal"]:
        parts.append(TextPart(message["refusal"]))
    for position, call in enumerate(sequence_of(message.get("tool_calls"))):
        at = f"{where}.tool_calls[{position}]"
        kind = "custom" if isinstance(call, dict) and call.get("type") == "custom" else "function"
        body = call.get(kind) if isinstance(call, dict) else None
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            raise Fault(FaultKind.INVALID_REQUEST, f"{at}.{kind}.name is missing", param=at)
        if kind == "custom":
            raise _unsupported(at)
        arguments = body.get("arguments")
        text = arguments if isinstance(arguments, str) else dump(arguments).decode() if arguments else ""
        parts.append(CallPart(str(call.get("id") or ""), body["name"], text, signature=_signature(call)))
    return parts


def _signature(call: dict[str, Any]) -> str | None:
    """A Gemini signature that the client returned beside the call (Google's own field)."""
    extra = call.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    return signature if isinstance(signature, str) and signature else None


def _content(content: Any, where: str) -> list[TextPart | ImagePart]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [TextPart(content)]
    if not isinstance(content, list):
        what = f"{where}.content is neither a string nor a list of parts"
        raise Fault(FaultKind.INVALID_REQUEST, what, param=f"{where}.content")
    parts: list[TextPart | ImagePart] = []
    for position, part in enumerate(content):
        at = f"{where}.content[{position}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal") and isinstance(part.get(kind), str):
            if part[kind]:
                parts.append(TextPart(part[kind]))
        elif kind == "image_url":
            parts.append(_image(part.get("image_url"), at))
        else:
            raise _unsupported(at)
    return parts


def _image(value: Any, where: str) -> ImagePart:
    url = value.get("url") if isinstance(value, dict) else value
    detail = value.get("detail") if isinstance(value, dict) else None
    if not isinstance(url, str) or not url:
        raise Fault(FaultKind.INVALID_REQUEST, f"{where}.image_url.url is missing", param=where)
    return image_of(url, detail if isinstance(detail, str) else None, f"{where}.image_url")


def image_of(url: str, detail: str | None, where: str) -> ImagePart:
    """An image by its URL; a `data:` URL with base64 becomes its data."""
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return ImagePart(media_type=head[5:-7].partition(";")[0] or "image/png", data=data, detail=detail)
    return ImagePart(url=url, detail=detail, where=where)


def _tools(value: Any) -> list[ToolDeclaration]:
    tools = []
    for position, entry in enumerate(sequence_of(value)):
        if not isinstance(entry, dict) or entry.get("type") != "function":
            raise _unsupported(f"tools[{position}]")
        body = entry["function"]
        description = body.get("description")
        strict = body.get("strict")
        tools.append(
            ToolDeclaration(
                body["name"],
                description if isinstance(description, str) else "",
                body.get("parameters"),
                strict if isinstance(strict, bool) else None,
            )
        )
    return tools


def _options(body: dict[str, Any]) -> Options:
    stop = body.get("stop")
    options = Options(
        max_tokens=_integer(body.get("max_completion_tokens")) or _integer(body.get("max_tokens")),
        temperature=_number(body.get("temperature")),
        top_p=_number(body.get("top_p")),
        top_k=_integer(body.get("top_k")),
        stop=[stop] if isinstance(stop, str) else [s for s in sequence_of(stop) if isinstance(s, str)],
        seed=_integer(body.get("seed")),
        presence_penalty=_number(body.get("presence_penalty")),
        frequency_penalty=_number(body.get("frequency_penalty")),
        user=body["user"] if isinstance(body.get("user"), str) else None,
    )
    if isinstance(body.get("reasoning_effort"), str):
        options.reasoning_effort = body["reasoning_effort"]
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_object":
        options.output_schema = {}
    elif isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        named = wanted.get("json_schema")
        if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
            raise Fault(
                FaultKind.INVALID_REQUEST, "response_format.json_schema.schema is missing", param="response_format"
            )
        options.output_schema = named["schema"]
        if isinstance(named.get("name"), str):
            options.output_schema_name = named["name"]
        if isinstance(named.get("strict"), bool):
            options.output_strict = named["strict"]
    return options


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) else None


# --- writing -----------------------------------------------------------------------------------------------------


def _messages(turn: Turn) -> list[dict[str, Any]]:
    if turn.role in ("system", "developer"):
        return [{"role": turn.role, "content": "\n\n".join(p.text for p in turn.parts if isinstance(p, TextPart))}]
    if turn.role == "assistant":
        return [_assistant_message(turn)]
    # every result is a message of its own, and all of them stand directly behind the calls
    messages: list[dict[str, Any]] = [_result_message(p) for p in turn.parts if isinstance(p, ResultPart)]
    rest = [p for p in turn.parts if isinstance(p, (TextPart, ImagePart))]
    images = [p for r in turn.parts if isinstance(r, ResultPart) for p in r.content if isinstance(p, ImagePart)]
    if rest or images:
        messages.append({"role": "user", "content": _written([*images, *rest])})
    return messages


def _assistant_message(turn: Turn) -> dict[str, Any]:
    text = "".join(p.text for p in turn.parts if isinstance(p, TextPart))
    calls = [
        {"id": p.call_id, "type": "function", "function": {"name": p.name, "arguments": p.arguments}}
        for p in turn.parts
        if isinstance(p, CallPart)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    return message


def _result_message(result: ResultPart) -> dict[str, Any]:
    """Chat carries text only in a result; its images follow in a user message, an error is said in words."""
    text = "\n".join(p.text for p in result.content if isinstance(p, TextPart))
    if result.is_error:
        text = "Error: " + text
    return {"role": "tool", "tool_call_id": result.call_id, "content": text}


def _written(parts: list[TextPart | ImagePart]) -> str | list[dict[str, Any]]:
    if all(isinstance(p, TextPart) for p in parts) and len(parts) == 1:
        assert isinstance(parts[0], TextPart)
        return parts[0].text
    out: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            out.append({"type": "text", "text": part.text})
        else:
            image: dict[str, Any] = {"url": part.url or f"data:{part.media_type};base64,{part.data}"}
            if part.detail:
                image["detail"] = part.detail
            out.append({"type": "image_url", "image_url": image})
    return out


def _tool(tool: ToolDeclaration, where: str) -> dict[str, Any]:
    if tool.kind == "custom":
        raise _unsupported(where)
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.schema is not None:
        function["parameters"] = tool.schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _unsupported(where: str) -> Fault:
    return Fault(
        FaultKind.UNSUPPORTED_FIELD,
        f"{where} cannot be carried to this model's backend, which speaks another dialect",
        param=where,
    )
