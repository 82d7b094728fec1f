"""Models for the embedded backend that answer the battery: each knows the right answers (`battery.ANSWERS`).

probe/clean      says them as the dialect's reference has it
probe/damaged    says the same, and its server damages them on the way, each item in another way
probe/unwilling  a clean server; the model calls when it should not, does not when it should, and makes up values
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.conformance.battery import ANSWERS, ITEMS, Answer
from proxy.replay.recording import CREATED, Recording

CLEAN, DAMAGED, UNWILLING = "probe/clean", "probe/damaged", "probe/unwilling"

Chunk = dict[str, Any]
_LOST = Answer("I only know the answers to the requests of wholecall probe.")
_PIECE = 24  # characters of arguments in one event


def probe_models() -> dict[str, Callable[[Mapping[str, Any]], Recording]]:
    """Each model's answer to a chat request's body."""
    return {CLEAN: _clean, DAMAGED: _damaged, UNWILLING: _unwilling}


def _item_of(body: Mapping[str, Any]) -> str:
    """The battery's item that a request is; "" for any other."""
    for item in ITEMS:
        if all(body.get(key) == value for key, value in item.request.items()):
            return item.id
    return ""


def _clean(body: Mapping[str, Any]) -> Recording:
    return _recording(body, ANSWERS.get(_item_of(body), _LOST))


def _unwilling(body: Mapping[str, Any]) -> Recording:
    item = _item_of(body)
    answer = ANSWERS.get(item, _LOST)
    if item in ("one-call", "choice-required", "next-call", "text-and-call"):
        answer = Answer("I would rather talk about it first.")
    elif item in ("enum", "typed-values", "nested-schema"):
        answer = Answer(calls=tuple((name, {**arguments, "made_up": "value"}) for name, arguments in answer.calls))
    elif item == "many-tools":
        answer = Answer(calls=(("drop_shipment", {"id": 4711}),))
    elif item in ("choice-none", "no-call-needed"):
        answer = Answer(calls=(("get_weather", {"city": "Paris"}),))
    elif item == "parallel-same":
        answer = Answer(calls=answer.calls[:1])
    return _recording(body, answer)


# --- writing -------------------------------------------------------------------------------------------------------


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": f"callx{number:04}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for number, (name, arguments) in enumerate(answer.calls)
    ]


def _deltas(answer: Answer) -> list[Chunk]:
    """The deltas of a stream, without the end."""
    deltas: list[Chunk] = [{"role": "assistant", "content": answer.text}]
    for index, call in enumerate(_calls(answer)):
        name, text = call["function"]["name"], call["function"]["arguments"]
        deltas.append({"tool_calls": [{**call, "index": index, "function": {"name": name, "arguments": ""}}]})
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces]
    return deltas


def _message(answer: Answer) -> Chunk:
    message: Chunk = {"role": "assistant", "content": answer.text or None}
    return {**message, "tool_calls": _calls(answer)} if answer.calls else message


def _recording(body: Mapping[str, Any], answer: Answer) -> Recording:
    finish = "tool_calls" if answer.calls else "stop"
    if body.get("stream"):
        return _stream(_deltas(answer), finish)
    return _document(_message(answer), finish)


def _stream(deltas: Sequence[Chunk], finish: str, *, cut: bool = False) -> Recording:
    choices: list[Chunk] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    if not cut:
        choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    head: Chunk = {"id": "chatcmpl-probe", "object": "chat.completion.chunk", "created": CREATED, "model": "probe"}
    pieces = [b"data: %s\n\n" % json.dumps({**head, "choices": [choice]}).encode() for choice in choices]
    end = [] if cut else [b"data: [DONE]\n\n"]
    return Recording("probe", "", "openai-chat", (*pieces, *end), headers={"content-type": "text/event-stream"})


def _document(message: Chunk, finish: str) -> Recording:
    head = {"id": "chatcmpl-probe", "object": "chat.completion", "created": CREATED, "model": "probe"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    data = json.dumps({**head, "choices": [choice], "usage": usage}).encode()
    return Recording("probe", "", "openai-chat", (data,), headers={"content-type": "application/json"})


# --- damage --------------------------------------------------------------------------------------------------------


def _damaged(body: Mapping[str, Any]) -> Recording:
    item = _item_of(body)
    answer = ANSWERS.get(item, _LOST)
    finish = "tool_calls" if answer.calls else "stop"
    damage = _ARGUMENTS.get(item)
    if body.get("stream"):
        deltas = _deltas(answer)
        if damage is not None:
            deltas = _with_arguments(deltas, damage)
        deltas = _STREAMS.get(item, _as_it_is)(deltas)
        return _stream(deltas, _FINISH.get(item, finish), cut=item in _CUT)
    message = _message(answer)
    for call in message.get("tool_calls", ()) if damage is not None else ():
        assert damage is not None
        call["function"]["arguments"] = damage(call["function"]["arguments"])
    if item in _LEAKED:
        message = {"role": "assistant", "content": _leak(answer)}
        finish = "stop"
    return _document(message, _FINISH.get(item, finish))


def _as_it_is(deltas: list[Chunk]) -> list[Chunk]:
    return deltas


def _entries(deltas: Sequence[Chunk]) -> list[Chunk]:
    return [entry for delta in deltas for entry in delta.get("tool_calls", ())]


def _with_arguments(deltas: list[Chunk], damage: Callable[[str], str]) -> list[Chunk]:
    """The text of the one call, damaged, in its second event."""
    head, first, *rest = deltas[1:]
    text = "".join(entry["function"]["arguments"] for entry in _entries([first, *rest]))
    _entries([first])[0]["function"]["arguments"] = damage(text)
    return [deltas[0], head, first]


def _without_index(deltas: list[Chunk]) -> list[Chunk]:
    for entry in _entries(deltas):
        del entry["index"]
    return deltas


def _one_index(deltas: list[Chunk]) -> list[Chunk]:
    """All calls on index 0."""
    for entry in _entries(deltas):
        entry["index"] = 0
    return deltas


def _first_call_only(deltas: list[Chunk]) -> list[Chunk]:
    return [delta for delta in deltas if all(entry["index"] == 0 for entry in _entries([delta]))]


def _repeated_heads(deltas: list[Chunk]) -> list[Chunk]:
    """Id and name on every fragment."""
    head = _entries(deltas)[0]
    for entry in _entries(deltas)[1:]:
        entry["id"] = head["id"]
        entry["function"]["name"] = head["function"]["name"]
    return deltas


def _cumulative(deltas: list[Chunk]) -> list[Chunk]:
    text = ""
    for entry in _entries(deltas):
        text += entry["function"]["arguments"]
        entry["function"]["arguments"] = text
    return deltas


def _leak(answer: Answer) -> str:
    calls = [{"name": name, "arguments": arguments} for name, arguments in answer.calls]
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


_STREAMS: dict[str, Callable[[list[Chunk]], list[Chunk]]] = {
    "one-call": _repeated_heads,
    "parallel-same": _one_index,
    "parallel-different": _first_call_only,
    "nested-schema": _cumulative,
    "choice-required": _without_index,
    "many-tools": lambda deltas: [{"role": "assistant", "content": _leak(ANSWERS["many-tools"])}],
}
_ARGUMENTS: dict[str, Callable[[str], str]] = {
    "unicode-escapes": lambda text: text.replace(".\\n", ".\n"),  # a line end as it is: no JSON, and can be mended
    "enum": json.dumps,  # a string that holds the object
    "typed-values": lambda text: text[:-1] + ", }",
    "next-call": lambda text: text[:-1],
    "no-arguments": lambda text: "",
}
_LEAKED = frozenset({"many-tools"})
_CUT = frozenset({"long-arguments"})
_FINISH = {"choice-named": "stop", "parallel-off": "stop", "many-tools": "stop", "after-result": "tool_calls"}
