"""Responses requests into the hub of requests, and from it."""

from __future__ import annotations

from typing import Any

from proxy.dialects.base import invalid, sequence_of
from proxy.faults import Fault, FaultKind
from proxy.model.conversation import (
    CallPart,
    Conversation,
    ImagePart,
    Options,
    ResultPart,
    Role,
    TextPart,
    ThinkingPart,
    ToolDeclaration,
    Turn,
)
from proxy.model.requests import Request, ToolChoice
from proxy.wire.jsondoc import dump

# Fields that the hub carries, or that say nothing where nothing is stored. Every other one is lost, without harm.
_CARRIED = frozenset(
    {"model", "stream", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens"}
) | {"temperature", "top_p", "reasoning", "text", "user", "store", "stream_options"}
# Fields whose loss would change what the client gets; what each value means is on the backend's side.
_REFUSED = {
    "previous_response_id": "the backend stores no responses: send the whole conversation as input",
    "conversation": "the backend stores no conversations: send the whole conversation as input",
    "prompt": "the backend knows no stored prompts: send instructions and input",
    "background": "the backend has no background mode",
    "top_logprobs": "log probabilities do not cross dialects",
}
_ROLES: dict[str, Role] = {"system": "system", "developer": "developer", "user": "user", "assistant": "assistant"}


def conversation(request: Request) -> Conversation:
    """The request in the hub's form. Raises Fault: UNSUPPORTED_FIELD for what cannot cross, INVALID_REQUEST."""
    body = request.body
    for name, why in _REFUSED.items():
        if body.get(name):
            raise _unsupported(name, why)
    lost = [name for name, value in body.items() if name not in _CARRIED and name not in _REFUSED and value is not None]
    lost += ["store"] if body.get("store") else []
    turns: list[Turn] = []
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise invalid("instructions is no string", "instructions")
    if instructions:
        turns.append(Turn("system", [TextPart(instructions)]))
    items = body.get("input")
    if isinstance(items, str):
        turns.append(Turn("user", [TextPart(items)]))
    else:
        _Reader(turns, lost).read(sequence_of(items))
    if not turns:
        raise invalid("input is missing: a string or a list of items", "input")
    return Conversation(
        turns=turns,
        tools=_tools(sequence_of(body.get("tools"))),
        tool_choice=_choice(request),
        parallel=request.parallel,
        stream=request.stream,
        choices=1,
        options=_options(body, lost),
        lost=list(dict.fromkeys(lost)),
    )


class _Reader:
    """Input items -> turns. Items of one assistant turn (reasoning, text, calls) stand side by side in the input."""

    def __init__(self, turns: list[Turn], lost: list[str]) -> None:
        self._turns = turns
        self._lost = lost

    def read(self, items: Any) -> None:
        for position, item in enumerate(items):
            where = f"input[{position}]"
            if not isinstance(item, dict):
                raise invalid(f"{where} is no object", where)
            match item.get("type") or ("message" if "role" in item else None):
                case "message":
                    self._message(item, where)
                case "function_call":
                    self._call(item, where, "arguments", custom=False)
                case "custom_tool_call":
                    self._call(item, where, "input", custom=True)
                case "function_call_output" | "custom_tool_call_output":
                    self._result(item, where)
                case "reasoning":
                    self._thinking(item)
                case "item_reference":
                    raise _unsupported(where, "the backend stores no items: send the item itself (store: false)")
                case kind:
                    raise _unsupported(where, f"an item of type {str(kind)[:60]!r} means nothing to this backend")

    def _assistant(self) -> Turn:
        if not self._turns or self._turns[-1].role != "assistant":
            self._turns.append(Turn("assistant", []))
        return self._turns[-1]

    def _message(self, item: dict[str, Any], where: str) -> None:
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise invalid(f"{where}.role is none of system, developer, user, assistant", f"{where}.role")
        content = item.get("content")
        if content is None and role == "assistant":
            return
        parts = _content(content, f"{where}.content")
        if role in ("system", "developer") and not all(isinstance(part, TextPart) for part in parts):
            raise _unsupported(f"{where}.content", f"a {role} message holds text only")
        if role == "assistant" and not any(isinstance(part, TextPart) for part in self._assistant().parts):
            self._assistant().parts += parts
        else:
            self._turns.append(Turn(role, [*parts]))

    def _call(self, item: dict[str, Any], where: str, field: str, *, custom: bool) -> None:
        values = [item.get(name) for name in ("call_id", "name", field)]
        for name, value in zip(("call_id", "name", field), values, strict=True):
            if not isinstance(value, str):
                raise invalid(f"{where}.{name} is no string", f"{where}.{name}")
        call_id, name, text = map(str, values)
        self._assistant().parts.append(CallPart(call_id, name, text, "custom" if custom else "function"))

    def _result(self, item: dict[str, Any], where: str) -> None:
        if not isinstance(item.get("call_id"), str):
            raise invalid(f"{where}.call_id is no string", f"{where}.call_id")
        result = ResultPart(item["call_id"], _content(item.get("output"), f"{where}.output"))
        last = self._turns[-1] if self._turns else None
        if last is not None and last.role == "user" and isinstance(last.parts[-1], ResultPart):
            last.parts.append(result)
        else:
            self._turns.append(Turn("user", [result]))

    def _thinking(self, item: dict[str, Any]) -> None:
        """Its text crosses; what only its own provider can read is lost."""
        texts = [p.get("text") for f in ("summary", "content") for p in sequence_of(item.get(f)) if isinstance(p, dict)]
        text = "\n\n".join(t for t in texts if isinstance(t, str) and t)
        if item.get("encrypted_content") or not text:
            self._lost.append("input.reasoning")
        if text:
            self._assistant().parts.append(ThinkingPart(text))


def _content(value: Any, where: str) -> list[TextPart | ImagePart]:
    """Text or a list of parts: a message's content, a call's output."""
    if isinstance(value, str):
        return [TextPart(value)]
    if not isinstance(value, list):
        raise invalid(f"{where} is neither a string nor a list of parts", where)
    parts: list[TextPart | ImagePart] = []
    for position, part in enumerate(value):
        place = f"{where}[{position}]"
        if not isinstance(part, dict):
            raise invalid(f"{place} is no object", place)
        kind = part.get("type")
        if kind in ("input_text", "output_text", "text", "summary_text") and isinstance(part.get("text"), str):
            parts.append(TextPart(part["text"]))
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            parts.append(TextPart(part["refusal"]))
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            parts.append(_image(part, place))
        else:
            raise _unsupported(place, f"a part of type {str(kind)[:60]!r} of this form does not cross dialects")
    return parts


def _image(part: dict[str, Any], where: str) -> ImagePart:
    url = part["image_url"]
    detail = part.get("detail") if isinstance(part.get("detail"), str) else None
    if not url.startswith("data:"):
        return ImagePart(url=url, detail=detail, where=f"{where}.image_url")
    head, comma, data = url[5:].partition(",")
    media_type, _, encoding = head.partition(";")
    if not comma or not encoding.endswith("base64"):
        raise _unsupported(where, "a data URL of an image is expected in base64")
    return ImagePart(media_type=media_type or "image/png", data=data, detail=detail)


def _tools(entries: Any) -> list[ToolDeclaration]:
    out = []
    for position, entry in enumerate(entries):
        where = f"tools[{position}]"
        kind = entry.get("type")
        described = entry.get("description") if isinstance(entry.get("description"), str) else ""
        if kind == "function":
            schema = entry.get("parameters")
            strict = entry.get("strict")
            if strict is None:  # this dialect is strict by default where the schema allows it
                strict = True if isinstance(schema, dict) and _is_closed(schema) else None
            out.append(ToolDeclaration(entry["name"], described, schema, strict))
        elif kind == "custom" and _is_free_text(entry.get("format"), where):
            out.append(ToolDeclaration(entry["name"], described, kind="custom"))
        else:
            what = "a custom tool with a grammar" if kind == "custom" else f"a tool of type {str(kind)[:60]!r}"
            raise _unsupported(where, f"{what} exists only in the Responses API, and this backend speaks another")
    return out


def _is_free_text(form: Any, where: str) -> bool:
    """Whether a custom tool takes any text, rather than that of a grammar."""
    if form is not None and not isinstance(form, dict):
        raise invalid(f"{where}.format is no object", f"{where}.format")
    return not form or form.get("type") in (None, "text")


def _is_closed(schema: Any) -> bool:
    """Whether every object of a schema is closed and requires all that it names: what strict mode asks for."""
    if isinstance(schema, list):
        return all(_is_closed(part) for part in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        names = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(names):
            return False
    return all(_is_closed(value) for value in schema.values())


def _choice(request: Request) -> ToolChoice:
    value = request.body.get("tool_choice")
    if isinstance(value, dict) and value.get("type") not in ("function", "custom", "allowed_tools"):
        raise _unsupported("tool_choice", f"a tool of type {str(value.get('type'))[:60]!r} is the backend's own")
    return request.tool_choice


def _options(body: dict[str, Any], lost: list[str]) -> Options:
    options = Options(
        max_tokens=_number(body, "max_output_tokens", int),
        temperature=_number(body, "temperature", float),
        top_p=_number(body, "top_p", float),
        user=body["user"] if isinstance(body.get("user"), str) else None,
    )
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict):
        effort = reasoning.get("effort")
        options.reasoning_effort = effort if isinstance(effort, str) else None
        lost += [f"reasoning.{key}" for key, value in reasoning.items() if key != "effort" and value is not None]
    text = body.get("text")
    if isinstance(text, dict):
        _format(text.get("format"), options)
        lost += [f"text.{key}" for key, value in text.items() if key != "format" and value is not None]
    return options


def _format(value: Any, options: Options) -> None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "json_object":
        options.output_schema = {}
    elif kind == "json_schema":
        if not isinstance(value.get("schema"), dict):
            raise invalid("text.format.schema is no JSON object", "text.format.schema")
        options.output_schema = value["schema"]
        if isinstance(value.get("name"), str):
            options.output_schema_name = value["name"]
        if isinstance(value.get("strict"), bool):
            options.output_strict = value["strict"]
    elif kind not in (None, "text"):
        raise _unsupported("text.format", f"the format {str(kind)[:60]!r} does not cross dialects")


def _number(body: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        raise invalid(f"{name} is no {'integer' if kind is int else 'number'}", name)
    return value


# --- from the hub ----------------------------------------------------------------------------------------------------


def write_conversation(talk: Conversation, model: str) -> bytes:
    """The upstream's body. Raises Fault (UNSUPPORTED_FIELD) for several choices and stop sequences."""
    if talk.choices > 1:
        raise _unsupported("n", "the Responses API gives one choice: ask several times")
    if talk.options.stop:
        raise _unsupported("stop", "the Responses API has no stop sequences")
    body: dict[str, Any] = {"model": model, "stream": talk.stream, "store": False}
    turns = list(talk.turns)
    if turns and turns[0].role == "system":
        body["instructions"] = "\n\n".join(part.text for part in turns.pop(0).parts if isinstance(part, TextPart))
    custom: set[str] = set()
    body["input"] = [item for turn in turns for item in _turn_items(turn, custom, talk.lost)]
    if talk.tools:
        body["tools"] = [_tool(tool) for tool in talk.tools]
        body |= _written_choice(talk)
        if not talk.parallel:
            body["parallel_tool_calls"] = False
    body |= _written_options(talk)
    return dump(body)


def _turn_items(turn: Turn, custom: set[str], lost: list[str]) -> list[dict[str, Any]]:
    """A turn's items in order. `custom` remembers the calls whose results need the custom form."""
    items: list[dict[str, Any]] = []
    run: list[TextPart | ImagePart] = []

    def flush() -> None:
        if run:
            items.append(_written_message(turn.role, run))
            run.clear()

    for part in turn.parts:
        if isinstance(part, TextPart | ImagePart):
            run.append(part)
            continue
        flush()
        if isinstance(part, ThinkingPart):
            lost.append("reasoning of earlier turns")  # an item of it needs an id of the provider's own
        elif isinstance(part, CallPart):
            items.append(_written_call(part, custom))
        elif isinstance(part, ResultPart):
            lost += ["is_error"] if part.is_error else []
            kind = "custom_tool_call_output" if part.call_id in custom else "function_call_output"
            items.append({"type": kind, "call_id": part.call_id, "output": _written_output(part.content)})
    flush()
    return items


def _written_message(role: Role, parts: list[TextPart | ImagePart]) -> dict[str, Any]:
    content: Any
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        content = parts[0].text
    elif role == "assistant":
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    else:
        content = [_written_part(part) for part in parts]
    return {"type": "message", "role": role, "content": content}


def _written_part(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    url = part.url or f"data:{part.media_type};base64,{part.data}"
    return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}


def _written_call(part: CallPart, custom: set[str]) -> dict[str, Any]:
    if part.kind == "custom":
        custom.add(part.call_id)
        return {"type": "custom_tool_call", "call_id": part.call_id, "name": part.name, "input": part.arguments}
    return {"type": "function_call", "call_id": part.call_id, "name": part.name, "arguments": part.arguments}


def _written_output(content: list[TextPart | ImagePart]) -> Any:
    if all(isinstance(part, TextPart) for part in content):
        return "\n".join(part.text for part in content if isinstance(part, TextPart))
    return [_written_part(part) for part in content]


def _tool(tool: ToolDeclaration) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    if tool.kind == "custom":
        return {"type": "custom", "name": tool.name, **described}
    return {
        "type": "function",
        "name": tool.name,
        **described,
        "parameters": tool.schema or {"type": "object", "properties": {}},
        "strict": bool(tool.strict),  # not said is false elsewhere, and true here
    }


def _written_choice(talk: Conversation) -> dict[str, Any]:
    choice = talk.tool_choice
    kinds = {tool.name: tool.kind for tool in talk.tools}
    named = [{"type": kinds.get(name, "function"), "name": name} for name in sorted(choice.names or ())]
    if choice.mode == "forced" and named:
        return {"tool_choice": named[0]}
    if choice.names is not None and choice.mode in ("auto", "required"):
        return {"tool_choice": {"type": "allowed_tools", "mode": choice.mode, "tools": named}}
    return {} if choice.mode == "auto" else {"tool_choice": choice.mode}


def _written_options(talk: Conversation) -> dict[str, Any]:
    options = talk.options
    talk.lost += [
        name
        for name in ("top_k", "seed", "presence_penalty", "frequency_penalty", "reasoning_budget")
        if getattr(options, name) is not None
    ]
    body: dict[str, Any] = {
        "max_output_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "user": options.user,
        "reasoning": {"effort": options.reasoning_effort} if options.reasoning_effort else None,
    }
    if options.output_schema is not None:
        form: dict[str, Any] = {"type": "json_object"}
        if options.output_schema:
            form = {"type": "json_schema", "name": options.output_schema_name, "schema": options.output_schema}
            if options.output_strict is not None:
                form["strict"] = options.output_strict
        body["text"] = {"format": form}
    return {name: value for name, value in body.items() if value is not None}


def _unsupported(param: str, why: str) -> Fault:
    return Fault(FaultKind.UNSUPPORTED_FIELD, f"{param} cannot be carried: {why}", param=param)
