"""The history guard: what a backend would refuse in a request's history is put into a form that it takes.

One faulty call that an agent keeps would otherwise lock its conversation for ever. Each change is a quirk. All of it
is stateless and alike on a call and its result, so that any worker can take the next turn.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any

import orjson

from proxy.dialects.base import IdForm, Note, sequence_of
from proxy.dialects.signatures import split
from proxy.model.conversation import CallPart, Conversation, Part, ResultPart, TextPart, Turn
from proxy.model.findings import Quirk
from proxy.wire.jsondoc import MAX_LEVELS, doubled_keys, dump
from proxy.wire.jsonscan import is_deeper


def guard(talk: Conversation, form: IdForm, note: Note) -> Conversation:
    """`talk` with arguments that are JSON objects, results that have calls, and ids that are unique and fit."""
    ids = CallIds(form, note)
    turns: list[Turn] = []
    for turn in talk.turns:
        parts: list[Part] = []
        for part in turn.parts:
            if isinstance(part, CallPart):
                signature = part.signature or split(part.call_id)[1]
                arguments = object_text(part.arguments, note)  # free text of a custom tool is none, either
                part = CallPart(ids.of_call(part.call_id), part.name, arguments, signature=signature)
                ids.names[part.call_id] = part.name
            elif isinstance(part, ResultPart):
                call_id = ids.of_result(part.call_id)
                if call_id is None:
                    note(Quirk.HISTORY_RESULT_ORPHANED)
                    text = "\n".join(p.text for p in part.content if isinstance(p, TextPart))
                    parts.append(TextPart(f"Result of an earlier tool call:\n{text}"))
                    parts += [p for p in part.content if not isinstance(p, TextPart)]
                    continue
                part = ResultPart(call_id, part.content, part.is_error, ids.names.get(call_id, part.name))
            parts.append(part)
        turns.append(Turn(turn.role, parts))
    talk.turns = turns
    return talk


def guard_chat_body(body: dict[str, Any], note: Note) -> dict[str, Any]:
    """The same for a chat body that goes to a chat backend as it came: only what has to change is changed.

    Ids stay as they are (they are the backend's own) but for doubled ones; arguments that are no JSON object become
    the JSON text of `{"_raw": text}`, which vLLM's and SGLang's templates need to parse.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(
        isinstance(m, dict) and (m.get("tool_calls") or m.get("role") == "tool") for m in messages
    ):
        return body
    ids = CallIds(IdForm(1 << 20, r"\s\S"), note)  # the backend's own: they come back as they are
    out: list[Any] = []
    changed = False
    for message in messages:
        new = _guard_chat_message(message, ids, note) if isinstance(message, dict) else message
        changed = changed or new is not message
        out.append(new)
    return {**body, "messages": out} if changed else body


def _guard_chat_message(message: dict[str, Any], ids: CallIds, note: Note) -> dict[str, Any]:
    if message.get("role") == "tool":
        given = message.get("tool_call_id")
        if not isinstance(given, str):
            return message
        call_id = ids.of_result(given)
        if call_id is None:
            note(Quirk.HISTORY_RESULT_ORPHANED)
            content = message.get("content")
            text = content if isinstance(content, str) else dump(content).decode()
            return {"role": "user", "content": f"Result of an earlier tool call:\n{text}"}
        return message if call_id == given else {**message, "tool_call_id": call_id}
    calls = []
    changed = False
    for call in sequence_of(message.get("tool_calls")):
        new = _guard_chat_call(call, ids, note)
        changed = changed or new is not call
        calls.append(new)
    return {**message, "tool_calls": calls} if changed else message


def _guard_chat_call(call: Any, ids: CallIds, note: Note) -> Any:
    if not isinstance(call, dict):
        return call
    new = call
    if isinstance(call.get("id"), str):
        call_id = ids.of_call(call["id"])
        if call_id != call["id"]:
            new = {**new, "id": call_id}
    function = call.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        text = object_text(function["arguments"], note)
        if text != function["arguments"]:
            new = {**new, "function": {**function, "arguments": text}}
    return new


class CallIds:
    """Ids of the history as they go upstream: in the order of the turns, calls before their results."""

    def __init__(self, form: IdForm, note: Note) -> None:
        self._form = form
        self._note = note
        self._open: dict[str, deque[str]] = {}  # the client's id -> ids upstream that have no result yet
        self._known: dict[str, str] = {}
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}  # the next suffix of an id that is taken: a loop from 2 on would be quadratic
        self.names: dict[str, str] = {}

    def of_call(self, call_id: str) -> str:
        bare = split(call_id)[0]  # a signature belongs to one provider and is no part of the id elsewhere
        new = bare if self._form.fits(bare) else self._mapped(bare)
        if new in self._taken:
            self._note(Quirk.HISTORY_ID_DOUBLED)
            count = self._counts.get(bare, 2)
            while new in self._taken:
                suffix = f"_{count}"
                base = bare if self._form.fits(bare + suffix) else self._short(bare)
                new = base + suffix
                count += 1
            self._counts[bare] = count
        self._taken.add(new)
        self._open.setdefault(call_id, deque()).append(new)
        self._known[call_id] = new
        return new

    def of_result(self, call_id: str) -> str | None:
        """The upstream id of the call that this is the result of; None: there is no such call before it."""
        waiting = self._open.get(call_id)
        return waiting.popleft() if waiting else self._known.get(call_id)

    def _mapped(self, call_id: str) -> str:
        self._note(Quirk.HISTORY_ID_MAPPED)
        return self._short(call_id)

    def _short(self, call_id: str) -> str:
        return "call_" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def object_text(arguments: str, note: Note) -> str:
    """`arguments` if they are the text of a JSON object that `load` reads; none at all are `{}`; else the text of
    {"_raw": arguments}."""
    if not arguments.strip():
        return "{}"
    try:
        is_object = isinstance(orjson.loads(arguments), dict) and not is_deeper(arguments, MAX_LEVELS)
        if is_object and not doubled_keys(arguments.encode()):
            return arguments
    except ValueError:  # no JSON, NaN, half a character ...
        pass
    note(Quirk.HISTORY_ARGS_WRAPPED)
    return dump({"_raw": arguments}).decode()
