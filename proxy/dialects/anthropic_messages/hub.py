"""Messages requests into the hub and out of it, where the other side speaks another dialect."""

from __future__ import annotations

from typing import Any

from proxy.dialects.anthropic_messages.request import OWN_TOOLS
from proxy.dialects.base import invalid, sequence_of
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
from proxy.wire.jsondoc import dump, load

"""Call ids that the API takes back: other characters give a 400 (^[a-zA-Z0-9_-]+$)."""

DEFAULT_MAX_TOKENS = 4096
"""The API asks for max_tokens; this stands in where a client of another dialect gave none. No model takes less."""

_LEAST_BUDGET = 1024  # of thinking, by the API reference
_EFFORTS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_576, "max": 31_999}

# Fields that are carried, or that mean nothing once they were read.
_CARRIED = frozenset(
    {
        "model",
        "messages",
        "system",
        "stream",
        "tools",
        "tool_choice",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stop_sequences",
        "thinking",
        "metadata",
        "output_config",
        "output_format",
    }
)
_REFUSED = frozenset({"mcp_servers", "container"})  # they change what the model can do
_MISPLACED: dict[str, type[Part]] = {"user": CallPart, "assistant": ResultPart}


# --- reading -----------------------------------------------------------------------------------------------------


def conversation(request: Request) -> Conversation:
    """The request in the hub's form. Raises Fault (UNSUPPORTED_FIELD, INVALID_REQUEST) naming what cannot cross."""
    return _Reader(request).read()


def _list(content: Any, where: str) -> list[Any]:
    if not isinstance(content, list | None):
        raise invalid(f"{where} is neither a string nor a list of blocks", where)
    return content or []


class _Reader:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._lost: list[str] = []
        self._names: dict[str, str] = {}  # call id -> tool, of the calls so far

    def read(self) -> Conversation:
        request, body = self._request, self._request.body
        for key, value in body.items():
            if key in _REFUSED and value:
                raise _unsupported(key)
            if key not in _CARRIED and value is not None:
                self._lose(key)
        turns = []
        system = self._texts(body.get("system"), "system")
        if system:
            turns.append(Turn("system", list(system)))
        for position, message in enumerate(sequence_of(body.get("messages"))):
            turns.append(self._turn(message, f"messages[{position}]"))
        return Conversation(
            turns,
            self._tools(body.get("tools")),
            request.tool_choice,
            request.parallel,
            request.stream,
            request.choices,
            self._options(body),
            self._lost,
        )

    def _lose(self, name: str) -> None:
        if name not in self._lost:
            self._lost.append(name)

    def _texts(self, content: Any, where: str) -> list[TextPart]:
        parts = self._content(content, where)
        for position, part in enumerate(parts):
            if not isinstance(part, TextPart):
                raise _unsupported(f"{where}[{position}]")
        return [part for part in parts if isinstance(part, TextPart)]

    def _turn(self, message: Any, where: str) -> Turn:
        if not isinstance(message, dict):
            raise invalid(f"{where} is no object", where)
        role = message.get("role")
        content = message.get("content")
        if role == "system":
            return Turn("system", list(self._texts(content, where)))
        if role not in ("user", "assistant"):
            raise invalid(f"{where}.role is neither user nor assistant", f"{where}.role")
        if isinstance(content, str):
            return Turn(role, [TextPart(content)] if content else [])
        parts: list[Part] = []
        for position, block in enumerate(_list(content, f"{where}.content")):
            at = f"{where}.content[{position}]"
            for part in self._block(block, at):
                if isinstance(part, _MISPLACED[role]):
                    raise invalid(f"{at}: no {role} message has a {block['type']} block", at)
                parts.append(part)
        return Turn(role, parts)

    def _block(self, block: Any, where: str) -> list[Part]:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            self._hints(block)
            return [self._call(block, where)]
        if kind == "tool_result":
            self._hints(block)
            call_id = str(block.get("tool_use_id") or "")
            content = self._content(block.get("content"), f"{where}.content")
            return [ResultPart(call_id, content, block.get("is_error") is True, self._names.get(call_id, ""))]
        if kind == "thinking":
            text = block.get("thinking")
            if block.get("signature"):
                self._lose("thinking.signature")
            return [ThinkingPart(text)] if isinstance(text, str) and text else []
        if kind == "redacted_thinking":
            self._lose("redacted_thinking")
            return []
        return list(self._content([block], where, alone=True))

    def _call(self, block: dict[str, Any], where: str) -> CallPart:
        name, value = block.get("name"), block.get("input")
        if not isinstance(name, str) or not name:
            raise invalid(f"{where}.name is missing", where)
        call_id = str(block.get("id") or "")
        self._names[call_id] = name
        text = value if isinstance(value, str) else "" if value is None else dump(value).decode()
        return CallPart(call_id, name, text)

    def _content(self, content: Any, where: str, *, alone: bool = False) -> list[TextPart | ImagePart]:
        """Text and images. `alone`: `where` is already that of the only block."""
        if content is None or content == "":
            return []
        if isinstance(content, str):
            return [TextPart(content)]
        parts: list[TextPart | ImagePart] = []
        for position, block in enumerate(_list(content, where)):
            at = where if alone else f"{where}[{position}]"
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "text" and isinstance(block.get("text"), str):
                self._hints(block)
                parts += [TextPart(block["text"])] if block["text"] else []
            elif kind == "image":
                self._hints(block)
                parts.append(self._image(block.get("source"), f"{at}.source"))
            elif kind == "document":
                parts += self._document(block, at)
            else:
                raise _unsupported(f"{at} ({kind[:80]!r})" if isinstance(kind, str) else at, at)
        return parts

    def _image(self, source: Any, where: str) -> ImagePart:
        kind = source.get("type") if isinstance(source, dict) else None
        if kind == "base64" and isinstance(source.get("data"), str):
            return ImagePart(media_type=str(source.get("media_type") or "image/png"), data=source["data"])
        if kind == "url" and isinstance(source.get("url"), str):
            return ImagePart(url=source["url"], where=f"{where}.url")
        raise _unsupported(where)

    def _document(self, block: dict[str, Any], where: str) -> list[TextPart | ImagePart]:
        """A document in words is text; a file is nothing that every backend reads."""
        self._hints(block)
        given = block.get("source")
        source: dict[str, Any] = given if isinstance(given, dict) else {}
        kind = source.get("type")
        head: list[TextPart | ImagePart] = [
            TextPart(block[key]) for key in ("title", "context") if isinstance(block.get(key), str) and block[key]
        ]
        if kind == "text" and isinstance(source.get("data"), str):
            return [*head, *([TextPart(source["data"])] if source["data"] else [])]
        if kind == "content":
            return [*head, *self._content(source.get("content"), f"{where}.source.content")]
        raise _unsupported(f"{where}.source")

    def _hints(self, block: dict[str, Any]) -> None:
        """Fields of a block that help this dialect's own provider only."""
        for key in ("cache_control", "citations"):
            if block.get(key):
                self._lose(key)

    def _tools(self, value: Any) -> list[ToolDeclaration]:
        tools = []
        for position, entry in enumerate(sequence_of(value)):
            where = f"tools[{position}]"
            if entry.get("type") not in OWN_TOOLS:
                raise _unsupported(f"{where} ({str(entry['type'])[:80]!r})", where)
            for key in entry.keys() - {"type", "name", "description", "input_schema", "strict"}:
                self._lose(f"tools.{key}")
            description, strict = entry.get("description"), entry.get("strict")
            tools.append(
                ToolDeclaration(
                    entry["name"],
                    description if isinstance(description, str) else "",
                    entry.get("input_schema"),
                    strict if isinstance(strict, bool) else None,
                )
            )
        return tools

    def _options(self, body: dict[str, Any]) -> Options:
        metadata, config, thinking = body.get("metadata"), body.get("output_config"), body.get("thinking")
        options = Options(
            max_tokens=_integer(body.get("max_tokens")),
            temperature=_number(body.get("temperature")),
            top_p=_number(body.get("top_p")),
            top_k=_integer(body.get("top_k")),
            stop=[s for s in sequence_of(body.get("stop_sequences")) if isinstance(s, str)],
        )
        if isinstance(metadata, dict) and isinstance(metadata.get("user_id"), str):
            options.user = metadata["user_id"]
        if isinstance(thinking, dict):
            options.reasoning_budget = _integer(thinking.get("budget_tokens"))
            if options.reasoning_budget is None:
                self._lose("thinking")  # disabled or adaptive: what the backend does anyway
        wanted = body.get("output_format")
        if isinstance(config, dict):
            if isinstance(config.get("effort"), str):
                options.reasoning_effort = config["effort"]
            wanted = config.get("format") or wanted
        if isinstance(wanted, dict):
            if not isinstance(wanted.get("schema"), dict):
                raise invalid("output_config.format.schema is missing", "output_config")
            options.output_schema = wanted["schema"]
        return options


# --- writing -----------------------------------------------------------------------------------------------------


def write_conversation(talk: Conversation, model: str) -> bytes:
    """The hub's form as a Messages request. Calls in it have JSON objects as arguments and ids of `ID_FORM`.

    Raises Fault (UNSUPPORTED_FIELD); names of what is harmlessly lost go to `talk.lost`.
    """
    if talk.choices > 1:
        raise _unsupported("n")
    if talk.options.output_schema == {}:
        raise _unsupported("response_format (json_object)", "response_format")
    for position, tool in enumerate(talk.tools):
        if tool.kind == "custom":
            raise _unsupported(f"tools[{position}] (custom)", f"tools[{position}]")
    body: dict[str, Any] = {"model": model, "messages": _messages(talk)}
    told = (part for turn in talk.turns if turn.role in ("system", "developer") for part in turn.parts)
    system = [block for part in told for block in _blocks(part, talk)]
    if system:
        body["system"] = system
    _write_tools(talk, body)
    _write_options(talk, body)
    if talk.stream:
        body["stream"] = True
    return dump(body)


def _messages(talk: Conversation) -> list[dict[str, Any]]:
    """User and assistant in turn; of a user's blocks the results stand first, as the API asks."""
    messages: list[dict[str, Any]] = []
    for turn in talk.turns:
        if turn.role in ("system", "developer"):
            if messages and "system" not in talk.lost:
                talk.lost.append("system")  # its place in the dialogue
            continue
        blocks = [block for part in turn.parts for block in _blocks(part, talk)]
        if not blocks:
            continue
        if messages and messages[-1]["role"] == turn.role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": turn.role, "content": blocks})
    for message in messages:
        message["content"].sort(key=lambda block: block["type"] != "tool_result")
    return messages


def _blocks(part: Part, talk: Conversation) -> list[dict[str, Any]]:
    if isinstance(part, TextPart):
        # the API refuses blocks that are empty or white space
        return [{"type": "text", "text": part.text}] if part.text.strip() else []
    if isinstance(part, ImagePart):
        return [_image(part)]
    if isinstance(part, CallPart):
        arguments = load(part.arguments.encode("utf-8", "surrogatepass"))
        return [{"type": "tool_use", "id": part.call_id, "name": part.name, "input": arguments}]
    if isinstance(part, ResultPart):
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": part.call_id}
        inner = [block for p in part.content for block in _blocks(p, talk)]
        if inner:
            result["content"] = inner[0]["text"] if len(inner) == 1 and inner[0]["type"] == "text" else inner
        if part.is_error:
            result["is_error"] = True
        return [result]
    if "thinking" not in talk.lost:
        talk.lost.append("thinking")  # the API takes none without the signature that it gave
    return []


def _image(part: ImagePart) -> dict[str, Any]:
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}


def _write_tools(talk: Conversation, body: dict[str, Any]) -> None:
    choice = talk.tool_choice
    tools = [tool for tool in talk.tools if choice.mode == "forced" or not choice.names or tool.name in choice.names]
    if not tools:
        # a history with calls asks for declared tools; that there are none now is said by the choice
        names = dict.fromkeys(p.name for turn in talk.turns for p in turn.parts if isinstance(p, CallPart))
        if names:
            body["tools"] = [_tool(ToolDeclaration(name)) for name in names]
            body["tool_choice"] = {"type": "none"}
        return
    body["tools"] = [_tool(tool) for tool in tools]
    kind = {"auto": "auto", "none": "none", "required": "any", "forced": "tool"}[choice.mode]
    written: dict[str, Any] = {"type": kind}
    if choice.mode == "forced" and choice.names:
        written["name"] = next(iter(choice.names))
    if not talk.parallel and kind != "none":
        written["disable_parallel_tool_use"] = True
    if written != {"type": "auto"}:
        body["tool_choice"] = written


def _tool(tool: ToolDeclaration) -> dict[str, Any]:
    written: dict[str, Any] = {"name": tool.name}
    if tool.description:
        written["description"] = tool.description
    written["input_schema"] = {"type": "object", **(tool.schema if tool.schema else {"properties": {}})}
    if tool.strict is not None:
        written["strict"] = tool.strict
    return written


def _write_options(talk: Conversation, body: dict[str, Any]) -> None:
    options = talk.options
    budget = _thinking_budget(talk)
    body["max_tokens"] = options.max_tokens or DEFAULT_MAX_TOKENS + (budget or 0)
    if budget:
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    elif options.reasoning_budget is not None or options.reasoning_effort not in (None, "none"):
        talk.lost.append("reasoning_effort")
    temperature, top_p, top_k = options.temperature, options.top_p, options.top_k
    if temperature is not None and temperature > 1:
        temperature = 1.0  # the API's highest; chat's range goes to 2
        talk.lost.append("temperature")
    if budget and temperature not in (None, 1):
        temperature = None  # thinking takes no other temperature than 1
        talk.lost.append("temperature")
    if top_p is not None and (temperature is not None or budget):
        top_p = None  # newer models take one of the two
        talk.lost.append("top_p")
    if top_k is not None and budget:
        top_k = None
        talk.lost.append("top_k")
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    body |= {key: value for key, value in sampling.items() if value is not None}
    stop = [text for text in options.stop if text.strip()]
    if stop:
        body["stop_sequences"] = stop
    if len(stop) < len(options.stop):
        talk.lost.append("stop")  # the API takes none of white space alone
    if options.user:
        body["metadata"] = {"user_id": options.user}
    if options.output_schema:
        body["output_config"] = {"format": {"type": "json_schema", "schema": options.output_schema}}
    talk.lost += [k for k in ("seed", "presence_penalty", "frequency_penalty") if getattr(options, k) is not None]


def _thinking_budget(talk: Conversation) -> int | None:
    """Tokens of thinking, or None where there can be none: beside a forced call, and between a call and its answer,
    where the API wants the signed thinking that led to the call, which a client of another dialect does not have."""
    options = talk.options
    budget = options.reasoning_budget or _EFFORTS.get(options.reasoning_effort or "")
    if not budget or talk.tool_choice.mode in ("required", "forced"):
        return None
    turns = [turn for turn in talk.turns if turn.role in ("user", "assistant")]
    if turns and any(isinstance(part, (ResultPart, CallPart)) for part in turns[-1].parts):
        return None
    if options.max_tokens is not None:
        budget = min(budget, options.max_tokens // 2)  # the budget is a part of max_tokens
        if budget < _LEAST_BUDGET:
            return None
    return max(budget, _LEAST_BUDGET)


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) else None


def _unsupported(what: str, param: str | None = None) -> Fault:
    return Fault(
        FaultKind.UNSUPPORTED_FIELD,
        f"{what} cannot be carried to this model's backend, which speaks another dialect",
        param=param or what,
    )
