"""Requests to Gemini's `generateContent`, written from the hub.

Contents alternate between `user` and `model`. The results of a turn's calls stand in one content of their own, in the
order of the calls: Gemini 3 refuses other parts beside them, and pairs by order where calls have no id (ids stay away,
since Vertex refuses them). The first call of a `model` content needs a thought signature; the documented dummy stands
in where the client's history has none (Gemini API, "Thought signatures", FAQ).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from proxy.dialects.base import IdForm
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
from proxy.model.requests import ToolChoice
from proxy.wire.jsondoc import dump, load

IDS = IdForm(1 << 20, r"\s\S")  # none go up

_DUMMY_SIGNATURE = "skip_thought_signature_validator"
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# Google's own chat endpoint translates reasoning_effort so (Gemini API, "OpenAI compatibility").
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192}
_HIGHEST_BUDGET = 24_576
_LEVELS = {"none": "low", "minimal": "low", "low": "low", "medium": "medium"}  # Gemini 3 always thinks


def path(model: str, stream: bool) -> str:
    """The path behind the base URL. Whatever a client names as model stays one segment of it."""
    name = "".join(chr(b) if b in _SAFE else f"%{b:02X}" for b in model.encode("utf-8", "surrogatepass"))
    return f"/models/{name}:streamGenerateContent?alt=sse" if stream else f"/models/{name}:generateContent"


def write_conversation(talk: Conversation, model: str) -> bytes:
    """The body. Raises Fault (UNSUPPORTED_FIELD) for image URLs and custom tools."""
    system = [{"text": p.text} for t in talk.turns if _is_system(t) for p in t.parts if isinstance(p, TextPart)]
    places = [_is_system(turn) for turn in talk.turns]
    if places != sorted(places, reverse=True):
        talk.lost.append("system")  # its place in the dialogue
    if any(isinstance(part, ThinkingPart) for turn in talk.turns for part in turn.parts):
        talk.lost.append("thinking")  # what counts of it is the signature
    contents = _contents([turn for turn in talk.turns if not _is_system(turn)])
    body: dict[str, Any] = {"contents": contents}
    if system and contents:
        body["systemInstruction"] = {"parts": system}
    elif system:
        body["contents"] = [{"role": "user", "parts": system}]  # contents must not be empty
    if talk.tools:
        declared = [_tool(tool, f"tools[{position}]") for position, tool in enumerate(talk.tools)]
        body["tools"] = [{"functionDeclarations": declared}]
        calling = _calling(talk.tool_choice)
        if calling:
            body["toolConfig"] = {"functionCallingConfig": calling}
    config = _generation(talk.options, model)
    if talk.choices > 1:
        config["candidateCount"] = talk.choices
    if config:
        body["generationConfig"] = config
    if talk.tools and not talk.parallel:
        talk.lost.append("parallel_tool_calls")
    if any(tool.strict for tool in talk.tools):
        talk.lost.append("tools.strict")
    if talk.options.user is not None:
        talk.lost.append("user")
    return dump(body)


def _is_system(turn: Turn) -> bool:
    return turn.role in ("system", "developer")


# --- contents ----------------------------------------------------------------------------------------------------


def _contents(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # of every call so far, by id
    calls: list[CallPart] = []  # of the model content before
    for role, group in groupby(turns, key=lambda turn: turn.role):
        parts: list[Part] = [part for turn in group for part in turn.parts]
        if role == "assistant":
            calls = [p for p in parts if isinstance(p, CallPart)]
            names.update((call.call_id, call.name) for call in calls)
            _add(contents, "model", _model_parts(parts))
            continue
        place = {call.call_id: number for number, call in enumerate(calls)}
        results = [p for p in parts if isinstance(p, ResultPart)]
        results.sort(key=lambda result: place.get(result.call_id, len(place)))
        _add(contents, "user", [_result(result, names) for result in results])
        rest = [p for p in parts if isinstance(p, (TextPart, ImagePart))]
        pictures = [p for r in results for p in r.content if isinstance(p, ImagePart)]
        _add(contents, "user", [_shown(p) for p in (*pictures, *rest)])
    return contents


def _add(contents: list[dict[str, Any]], role: str, parts: list[dict[str, Any]]) -> None:
    """Contents without parts are refused."""
    if parts:
        contents.append({"role": role, "parts": parts})


def _model_parts(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Text and calls; thoughts are not sent back."""
    out: list[dict[str, Any]] = []
    signature: str | None = _DUMMY_SIGNATURE
    for part in parts:
        if isinstance(part, TextPart) and part.text:
            out.append({"text": part.text})
        elif isinstance(part, CallPart):
            arguments = load(part.arguments.encode("utf-8", "surrogatepass"))
            call: dict[str, Any] = {"functionCall": {"name": part.name, "args": arguments}}
            if part.signature or signature:
                call["thoughtSignature"] = part.signature or signature
            signature = None
            out.append(call)
    return out


def _result(result: ResultPart, names: dict[str, str]) -> dict[str, Any]:
    text = "\n".join(p.text for p in result.content if isinstance(p, TextPart))
    name = result.name or names.get(result.call_id, "")
    return {"functionResponse": {"name": name, "response": {"error" if result.is_error else "output": text}}}


def _shown(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"text": part.text}
    if part.url:
        raise _unsupported(part.where, "an image by its URL: send the image itself, in base64")
    return {"inlineData": {"mimeType": part.media_type, "data": part.data}}


# --- tools and options -------------------------------------------------------------------------------------------


def _tool(tool: ToolDeclaration, where: str) -> dict[str, Any]:
    if tool.kind == "custom":
        raise _unsupported(where, f"the custom tool {tool.name[:80]!r}")
    declaration: dict[str, Any] = {"name": tool.name}
    if tool.description:
        declaration["description"] = tool.description
    if tool.schema:
        declaration["parametersJsonSchema"] = tool.schema
    return declaration


def _calling(choice: ToolChoice) -> dict[str, Any]:
    if choice.mode == "none":
        return {"mode": "NONE"}
    if choice.names is not None:  # AUTO takes no names; VALIDATED leaves it to the model whether to call
        mode = "VALIDATED" if choice.mode == "auto" else "ANY"
        return {"mode": mode, "allowedFunctionNames": sorted(choice.names)}
    return {"mode": "ANY"} if choice.mode == "required" else {}


def _generation(options: Options, model: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "maxOutputTokens": options.max_tokens,
        "temperature": options.temperature,
        "topP": options.top_p,
        "topK": options.top_k,
        "stopSequences": options.stop or None,
        "seed": options.seed,
        "presencePenalty": options.presence_penalty,
        "frequencyPenalty": options.frequency_penalty,
        "thinkingConfig": _thinking(options, model),
    }
    if options.output_schema is not None:
        values["responseMimeType"] = "application/json"
        values["responseJsonSchema"] = options.output_schema or None
    return {key: value for key, value in values.items() if value is not None}


def _thinking(options: Options, model: str) -> dict[str, Any] | None:
    """Gemini 2.5 takes a budget in tokens, later models a level; a client's own budget goes up as it is."""
    effort, budget = options.reasoning_effort, options.reasoning_budget
    if budget is None and effort is None:
        return None
    if budget is None and effort is not None and "gemini-2" in model:
        budget = _BUDGETS.get(effort, _HIGHEST_BUDGET)
    shown = effort != "none" and budget != 0
    if budget is not None:
        return {"thinkingBudget": budget, "includeThoughts": shown}
    return {"thinkingLevel": _LEVELS.get(effort or "", "high"), "includeThoughts": shown}


def _unsupported(param: str, what: str) -> Fault:
    return Fault(FaultKind.UNSUPPORTED_FIELD, f"{param}: a Gemini backend cannot be given {what}", param=param)
