"""Replies in a small event model, and a writer of them for each upstream dialect, streamed and plain.

The writers are careful backends: each reply is written as its dialect's reference says, and only what that leaves open
(how texts are cut into events, spaces and escapes in the JSON, which of two names a field has) is random.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from random import Random
from typing import Any, Literal

Finish = Literal["stop", "length", "content_filter"]


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class Made:
    """A call. `arguments` is the text of a JSON object; without an id where the backend gives none."""

    call_id: str | None
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """`cached` of the input and `reasoning` of the output, or None where the backend does not tell."""

    input: int
    output: int
    cached: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    parts: Sequence[Text | Thought | Made]
    finish: Finish = "stop"
    tokens: Tokens | None = None

    @property
    def calls(self) -> list[Made]:
        return [part for part in self.parts if isinstance(part, Made)]

    def joined(self, kind: type[Text] | type[Thought], by: str = "") -> str:
        return by.join(part.text for part in self.parts if isinstance(part, kind))


# --- JSON and its pieces -------------------------------------------------------------------------------------------


class Pen:
    """Writes documents with random spaces and escapes. `raw(text)` stands for JSON text that is written as it is."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self._raws: list[str] = []

    def raw(self, text: str) -> str:
        self._raws.append(text)
        return f"@raw@{len(self._raws) - 1}@"

    def dump(self, document: Any) -> bytes:
        separators = self.draw.choice(((",", ":"), (", ", ": ")))
        for ascii_only in (self.draw.choice((True, False)), True):
            text = json.dumps(document, ensure_ascii=ascii_only, separators=separators)
            for number, raw in enumerate(self._raws):
                text = text.replace(f'"@raw@{number}@"', raw)
            try:
                return text.encode()
            except UnicodeEncodeError:
                continue  # half a character has no UTF-8 form
        raise AssertionError("arguments hold half a character")

    def cut(self, text: str) -> list[str]:
        """`text` in pieces, cut between UTF-16 units: tokens of some backends are no whole characters."""
        units = text.encode("utf-16-le", "surrogatepass")
        count = self.draw.randint(0, min(4, len(units) // 2))
        edges = sorted({0, len(units), *(2 * self.draw.randrange(len(units) // 2) for _ in range(count))})
        pieces = [units[a:b] for a, b in pairwise(edges)]
        return [piece.decode("utf-16-le", "surrogatepass") for piece in pieces]

    def either(self) -> bool:
        return self.draw.random() < 0.5


def without_none(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def events(pen: Pen, documents: Iterable[dict[str, Any]], *, named: bool = False, end: str = "\n") -> list[bytes]:
    out = []
    for document in documents:
        head = f"event: {document['type']}{end}".encode() if named else b""
        out.append(head + b"data: " + pen.dump(document) + 2 * end.encode())
    return out


# --- chat completions ----------------------------------------------------------------------------------------------

_ENVELOPE = {"id": "chatcmpl-u", "created": 1790000000, "model": "up"}


def chat_usage(tokens: Tokens) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": tokens.input, "completion_tokens": tokens.output}
    usage["total_tokens"] = tokens.input + tokens.output
    if tokens.cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached}
    if tokens.reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": tokens.reasoning}
    return usage


def _chat_finish(said: Said) -> str:
    return "tool_calls" if said.finish == "stop" and said.calls else said.finish


def chat_stream(said: Said, pen: Pen) -> list[bytes]:
    thought = pen.draw.choice(("reasoning_content", "reasoning"))
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": pen.draw.choice(("", None))}]
    index = 0
    for part in said.parts:
        if isinstance(part, Made):
            text = "" if part.arguments == "{}" and pen.either() else part.arguments
            first, *rest = pen.cut(text) or [""]
            head = without_none(index=index, id=part.call_id, type="function")
            deltas.append({"tool_calls": [{**head, "function": {"name": part.name, "arguments": first}}]})
            deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in rest]
            index += 1
        else:
            key = thought if isinstance(part, Thought) else "content"
            deltas += [{key: piece} for piece in pen.cut(part.text)]
    head = {**_ENVELOPE, "object": "chat.completion.chunk"}
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _chat_finish(said)}]})
    if said.tokens is not None:
        chunks.append({**head, "choices": [], "usage": chat_usage(said.tokens)})
    return [*events(pen, chunks), b"data: [DONE]\n\n"]


def chat_plain(said: Said, pen: Pen) -> list[bytes]:
    message: dict[str, Any] = {"role": "assistant", "content": said.joined(Text) or None}
    if said.joined(Thought):
        message["reasoning_content"] = said.joined(Thought)
    if said.calls:
        message["tool_calls"] = [
            {**without_none(id=call.call_id), "type": "function", "function": _function(call)} for call in said.calls
        ]
    document = {**_ENVELOPE, "object": "chat.completion"}
    document["choices"] = [{"index": 0, "message": message, "finish_reason": _chat_finish(said)}]
    if said.tokens is not None:
        document["usage"] = chat_usage(said.tokens)
    return [pen.dump(document)]


def _function(call: Made) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


# --- responses -----------------------------------------------------------------------------------------------------


def responses_usage(tokens: Tokens) -> dict[str, Any]:
    usage: dict[str, Any] = {"input_tokens": tokens.input, "output_tokens": tokens.output}
    usage["total_tokens"] = tokens.input + tokens.output
    usage["input_tokens_details"] = without_none(cached_tokens=tokens.cached)
    usage["output_tokens_details"] = without_none(reasoning_tokens=tokens.reasoning)
    return usage


def _response(said: Said, output: list[dict[str, Any]], *, whole: bool) -> dict[str, Any]:
    status = "in_progress" if not whole else "completed" if said.finish == "stop" else "incomplete"
    response: dict[str, Any] = {"id": "resp_u", "object": "response", "created_at": 1790000000, "model": "up"}
    response |= {"status": status, "error": None, "output": output}
    if status == "incomplete":
        reason = "max_output_tokens" if said.finish == "length" else "content_filter"
        response["incomplete_details"] = {"reason": reason}
    response["usage"] = responses_usage(said.tokens) if whole and said.tokens is not None else None
    return response


def _item(part: Text | Thought | Made, index: int, summary: bool) -> dict[str, Any]:
    """The finished item of a part. Reasoning is a summary, or (open models) its text."""
    if isinstance(part, Text):
        text = {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
        item = {"id": f"msg_{index}", "type": "message", "status": "completed", "role": "assistant"}
        return {**item, "content": [text]}
    if isinstance(part, Thought):
        item = {"id": f"rs_{index}", "type": "reasoning"}
        if summary:
            return {**item, "summary": [{"type": "summary_text", "text": part.text}]}
        return {**item, "summary": [], "content": [{"type": "reasoning_text", "text": part.text}]}
    item = {"id": f"fc_{index}", "type": "function_call", "status": "completed", "call_id": str(part.call_id)}
    return {**item, **_function(part)}


def _item_events(item: dict[str, Any], index: int, pen: Pen) -> list[dict[str, Any]]:
    where = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        stem, holder, text = "response.function_call_arguments", "", item["arguments"]
    elif item["type"] == "message":
        stem, holder, text = "response.output_text", "content", item["content"][0]["text"]
    elif item["summary"]:
        stem, holder, text = "response.reasoning_summary_text", "summary", item["summary"][0]["text"]
    else:
        stem, holder, text = "response.reasoning_text", "content", item["content"][0]["text"]
    added: dict[str, Any] = {**item, "status": "in_progress"}
    added |= {key: "" if key == "arguments" else [] for key in ("arguments", "content", "summary") if key in item}
    place = {f"{holder}_index": 0} if holder else {}
    out: list[dict[str, Any]] = [
        {"type": "response.output_item.added", "output_index": index, "item": added},
        *({"type": f"{stem}.delta", **where, **place, "delta": piece} for piece in pen.cut(text)),
        {"type": f"{stem}.done", **where, **place, "text" if holder else "arguments": text},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]
    if holder:
        part_stem = "response.reasoning_summary_part" if holder == "summary" else "response.content_part"
        part = item[holder][0]
        out.insert(1, {"type": f"{part_stem}.added", **where, **place, "part": {**part, "text": ""}})
        out.insert(-1, {"type": f"{part_stem}.done", **where, **place, "part": part})
    return out


def responses_stream(said: Said, pen: Pen) -> list[bytes]:
    items = responses_items(said, pen)
    begun = _response(said, [], whole=False)
    documents: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *(event for index, item in enumerate(items) for event in _item_events(item, index, pen)),
    ]
    whole = _response(said, items, whole=True)
    documents.append({"type": f"response.{whole['status']}", "response": whole})
    return events(pen, ({**event, "sequence_number": n} for n, event in enumerate(documents)), named=True)


def responses_items(said: Said, pen: Pen) -> list[dict[str, Any]]:
    summary = pen.either()
    return [_item(part, index, summary) for index, part in enumerate(said.parts)]


def responses_plain(said: Said, pen: Pen) -> list[bytes]:
    return [pen.dump(_response(said, responses_items(said, pen), whole=True))]


# --- messages ------------------------------------------------------------------------------------------------------


def messages_usage(tokens: Tokens | None) -> dict[str, Any]:
    """What was read from the cache is counted apart."""
    tokens = tokens or Tokens(0, 0)
    counts = without_none(cache_read_input_tokens=tokens.cached)
    return {"input_tokens": tokens.input - (tokens.cached or 0), **counts, "output_tokens": tokens.output}


def _stop_reason(said: Said) -> str:
    words = {"stop": "tool_use" if said.calls else "end_turn", "length": "max_tokens", "content_filter": "refusal"}
    return words[said.finish]


def _message(said: Said) -> dict[str, Any]:
    head: dict[str, Any] = {"id": "msg_u", "type": "message", "role": "assistant", "model": "up", "content": []}
    return {**head, "stop_reason": None, "stop_sequence": None, "usage": {**messages_usage(said.tokens)}}


def messages_stream(said: Said, pen: Pen) -> list[bytes]:
    head = _message(said)
    head["usage"]["output_tokens"] = 1
    documents: list[dict[str, Any]] = [{"type": "message_start", "message": head}, {"type": "ping"}]
    for index, part in enumerate(said.parts):
        if isinstance(part, Made):
            start: dict[str, Any] = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
            text = "" if part.arguments == "{}" and pen.either() else part.arguments
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pen.cut(text))]
        elif isinstance(part, Thought):
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pen.cut(part.text)]
            deltas.append({"type": "signature_delta", "signature": f"sig{index}"})
        else:
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pen.cut(part.text)]
        documents.append({"type": "content_block_start", "index": index, "content_block": start})
        documents += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        documents.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": _stop_reason(said), "stop_sequence": None}
    documents.append({"type": "message_delta", "delta": stop, "usage": messages_usage(said.tokens)})
    return events(pen, [*documents, {"type": "message_stop"}], named=True)


def messages_plain(said: Said, pen: Pen) -> list[bytes]:
    blocks: list[dict[str, Any]] = []
    for part in said.parts:
        if isinstance(part, Made):
            block = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": pen.raw(part.arguments)}
        elif isinstance(part, Thought):
            block = {"type": "thinking", "thinking": part.text, "signature": "sig"}
        else:
            block = {"type": "text", "text": part.text}
        blocks.append(block)
    return [pen.dump({**_message(said), "content": blocks, "stop_reason": _stop_reason(said)})]


# --- Gemini --------------------------------------------------------------------------------------------------------


def gemini_usage(tokens: Tokens) -> dict[str, Any]:
    """Thoughts are counted apart from the candidates' tokens."""
    counts = without_none(cachedContentTokenCount=tokens.cached, thoughtsTokenCount=tokens.reasoning)
    said = tokens.output - (tokens.reasoning or 0)
    return {"promptTokenCount": tokens.input, "candidatesTokenCount": said, **counts}


def _gemini_part(part: Text | Thought | Made, pen: Pen) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"text": part.text}
    if isinstance(part, Thought):
        return {"text": part.text, "thought": True}
    arguments = None if part.arguments == "{}" and pen.either() else pen.raw(part.arguments)
    return {"functionCall": without_none(id=part.call_id, name=part.name, args=arguments)}


def _gemini_documents(said: Said, pen: Pen, groups: Iterable[Sequence[Text | Thought | Made]]) -> list[dict[str, Any]]:
    usage = {"usageMetadata": gemini_usage(said.tokens)} if said.tokens is not None else {}
    documents: list[dict[str, Any]] = []
    for group in groups:
        content = {"parts": [_gemini_part(part, pen) for part in group], "role": "model"}
        documents.append({"candidates": [{"content": content, "index": 0}], "modelVersion": "up", "responseId": "r"})
        documents[-1] |= usage if pen.either() else {}
    if pen.either():  # the end, with the last part or behind it
        documents.append({"candidates": [{"content": {"parts": [{"text": ""}], "role": "model"}, "index": 0}]})
    words = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
    documents[-1]["candidates"][0]["finishReason"] = words[said.finish]
    documents[-1] |= usage
    return documents


def _grouped(said: Said, pen: Pen) -> list[list[Text | Thought | Made]]:
    """The parts in chunks: texts in pieces, calls one by one or those of a run together."""
    groups: list[list[Text | Thought | Made]] = []
    for kind, run in groupby(said.parts, key=type):
        if kind is Made and pen.either():
            groups.append([*run])
        else:
            for part in run:
                pieces = [part] if isinstance(part, Made) else [replace(part, text=t) for t in pen.cut(part.text)]
                groups += [[piece] for piece in pieces]
    return groups


def gemini_stream(said: Said, pen: Pen) -> list[bytes]:
    return events(pen, _gemini_documents(said, pen, _grouped(said, pen)), end="\r\n")


def gemini_array(said: Said, pen: Pen) -> list[bytes]:
    documents = [pen.dump(document) for document in _gemini_documents(said, pen, _grouped(said, pen))]
    return [*((b",\r\n" if number else b"[") + document for number, document in enumerate(documents)), b"]\n"]


def gemini_plain(said: Said, pen: Pen) -> list[bytes]:
    document = _gemini_documents(said, pen, [said.parts])[0]
    words = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
    document["candidates"][0]["finishReason"] = words[said.finish]
    if said.tokens is not None:
        document["usageMetadata"] = gemini_usage(said.tokens)
    return [pen.dump(document)]


# --- Ollama --------------------------------------------------------------------------------------------------------


def _ollama_message(parts: Sequence[Text | Thought | Made], pen: Pen, index: int = 0) -> dict[str, Any]:
    said = Said(parts)
    message: dict[str, Any] = {"role": "assistant", "content": said.joined(Text)}
    if said.joined(Thought):
        message["thinking"] = said.joined(Thought)
    if said.calls:
        message["tool_calls"] = [
            without_none(
                id=call.call_id,
                function={"index": index + number, "name": call.name, "arguments": pen.raw(call.arguments)},
            )
            for number, call in enumerate(said.calls)
        ]
    return message


def _ollama_end(said: Said) -> dict[str, Any]:
    end: dict[str, Any] = {"done": True, "done_reason": said.finish, "total_duration": 5}
    if said.tokens is not None:
        end |= {"prompt_eval_count": said.tokens.input, "eval_count": said.tokens.output}
    return end


def ollama_stream(said: Said, pen: Pen) -> list[bytes]:
    head = {"model": "up", "created_at": "2026-01-01T00:00:00Z"}
    lines = []
    count = 0
    for group in _grouped(said, pen):
        lines.append({**head, "message": _ollama_message(group, pen, count), "done": False})
        count += len(Said(group).calls)
    lines.append({**head, "message": {"role": "assistant", "content": ""}, **_ollama_end(said)})
    return [pen.dump(line) + b"\n" for line in lines]


def ollama_plain(said: Said, pen: Pen) -> list[bytes]:
    return [pen.dump({"model": "up", "message": _ollama_message(said.parts, pen), **_ollama_end(said)})]


# --- the table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Writer:
    """`ids`: every call has one. `ordered`: the form keeps the order of thoughts and calls. `cuts`: a call may be
    half written, so that a limit leaves the last one in doubt. `counts`: what of `Tokens` it can tell."""

    dialect: str
    content_type: str
    write: Callable[[Said, Pen], list[bytes]]
    ids: bool = False
    ordered: bool = True
    cuts: bool = True
    counts: frozenset[str] = field(default_factory=lambda: frozenset({"cached", "reasoning"}))

    def fitting(self, said: Said) -> Said:
        """`said` as far as this dialect has a form for it."""
        parts = [
            replace(part, call_id=part.call_id or f"id_{number}") if self.ids and isinstance(part, Made) else part
            for number, part in enumerate(said.parts)
        ]
        finish: Finish = said.finish
        if finish == "content_filter" and self.dialect == "ollama-chat":
            finish = "stop"
        tokens = said.tokens
        if tokens is not None:
            tokens = replace(
                tokens,
                cached=tokens.cached if "cached" in self.counts else None,
                reasoning=tokens.reasoning if "reasoning" in self.counts else None,
            )
        return Said(parts, finish, tokens)


_CACHED = frozenset({"cached"})
_SSE, _JSON = "text/event-stream", "application/json"
WRITERS = {
    "chat stream": Writer("openai-chat", _SSE, chat_stream, ordered=False),
    "chat plain": Writer("openai-chat", _JSON, chat_plain, ordered=False),
    "responses stream": Writer("openai-responses", _SSE, responses_stream, ids=True),
    "responses plain": Writer("openai-responses", _JSON, responses_plain, ids=True),
    "messages stream": Writer("anthropic-messages", _SSE, messages_stream, ids=True, counts=_CACHED),
    "messages plain": Writer("anthropic-messages", _JSON, messages_plain, ids=True, counts=_CACHED),
    "gemini stream": Writer("gemini", _SSE, gemini_stream, cuts=False),
    "gemini array": Writer("gemini", _JSON, gemini_array, cuts=False),
    "gemini plain": Writer("gemini", _JSON, gemini_plain, cuts=False),
    "ollama stream": Writer("ollama-chat", "application/x-ndjson", ollama_stream, cuts=False, counts=frozenset()),
    "ollama plain": Writer("ollama-chat", _JSON, ollama_plain, ordered=False, cuts=False, counts=frozenset()),
}
