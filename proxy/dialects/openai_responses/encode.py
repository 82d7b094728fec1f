"""Responses towards the client: the canonical stream, or one document.

The stream that all of 12 client set-ups read: response.created and response.in_progress; per item its announcement,
deltas, done events, strictly one item after the other; output_index and sequence_number without gaps, one id an item;
the terminal event with the full output and usage. No event type that openai-node does not know: it throws.

Theory of operation. All input becomes events of this dialect with `output_index` as a key: those of an upstream of the
same dialect as they came, those of another made here. One item is open at a time. An event of another item closes it,
unless its own done event has something to add that is not known yet (a sealed reasoning, what a hosted tool found):
then the other item's events wait for that. A document is the stream's output without its events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.dialects.base import Encoder, Envelope, error_object, sequence_of
from proxy.dialects.openai_responses.items import (
    ANNOTATION,
    CUSTOM_CALL,
    FUNCTION_CALL,
    ITEM_ADDED,
    ITEM_DONE,
    NAME,
    OUTPUT_TEXT,
    REFUSAL,
    SUMMARY_TEXT,
    TEXT_BY_TYPE,
    TEXT_DELTAS,
    CallKind,
    TextKind,
)
from proxy.faults import Fault
from proxy.model.calls import JudgedCall
from proxy.model.deltas import FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.model.requests import Request
from proxy.wire.jsondoc import dump, join_surrogates, one_line

_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_DEFAULT_HEADS: dict[str, dict[str, Any]] = {
    "message": {"role": "assistant", "content": []},
    "reasoning": {"summary": []},
}
_HOLDERS = {"message": ("content",), "reasoning": ("summary",)}  # lists that every such item has
# What typed clients require of a response besides its output. Where the request said nothing: the API's own defaults.
_ECHO: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}


def encoder(
    request: Request,
    seed: str,
    created: int,
    envelope: Callable[[], Envelope | None],
    upstream_dialect: str = NAME,
) -> ResponsesEncoder:
    return ResponsesEncoder(request, seed, created, envelope, upstream_dialect)


@dataclass(slots=True)
class _Part:
    """The text part in progress. `index` is the upstream's, `place` ours."""

    kind: TextKind
    index: int
    place: int
    texts: list[str] = field(default_factory=list)
    annotations: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Item:
    """The output item in progress. `parts` are its finished text parts by list (content, summary)."""

    key: int
    id: str
    head: dict[str, Any]
    part: _Part | None = None
    parts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.head["type"])

    @property
    def waits(self) -> bool:
        """Whether its done event may tell more than its announcement and deltas did."""
        return self.kind != "message" and (self.kind != "reasoning" or bool(self.head.get("encrypted_content")))


class ResponsesEncoder(Encoder):
    """Server-sent events, or (for a plain request) one document, given by `done`."""

    ordered = True
    usage_first = True

    def __init__(
        self,
        request: Request,
        seed: str,
        created: int,
        envelope: Callable[[], Envelope | None],
        upstream_dialect: str,
    ) -> None:
        self._request = request
        self._stream = request.stream
        self._same = upstream_dialect == NAME
        self._seed = seed
        self._created = created
        self._upstream_envelope = envelope
        self._envelope: Envelope | None = None
        self._echo = {name: default if (v := request.body.get(name)) is None else v for name, default in _ECHO.items()}
        self._echo["store"] = self._same and request.body.get("store") is not False
        self._sequence = 0
        self._out: list[bytes] = []
        self._ids: set[str] = set()
        self._output: list[dict[str, Any]] = []
        self._item: _Item | None = None
        self._call_id = ""  # the item id of the call in progress
        self._call_texts: list[str] = []
        self._closed: set[int] = set()
        self._waiting: dict[int, list[dict[str, Any]]] = {}
        self._blank: list[dict[str, Any]] = []  # white space that a message item would begin with
        self._blank_dropped = False
        self._called = False
        self._own_key = -1  # below those of an upstream
        self._usage: dict[str, Any] | None = None
        self._incomplete: dict[str, Any] | None = None
        self._report: dict[str, Any] | None = None

    # --- what the exchange gives -------------------------------------------------------------------------------

    def piece(self, piece: Piece) -> bytes:
        if self._same:
            self._echo |= piece.top_extra
        if piece.choice >= 0:
            for event in self._events(piece):
                self._take(event)
        return self._given()

    def call_head(self, call: JudgedCall) -> bytes:
        self._called = True
        self._close_all()
        self._drop_blank()
        kind = CUSTOM_CALL if call.kind == "custom" else FUNCTION_CALL
        extra = call.extra if self._same else {}
        self._call_id = self._item_id(kind.item, extra.get("id"))
        self._call_texts.clear()
        self._emit(ITEM_ADDED, output_index=len(self._output), item=self._call_item(call, kind, "in_progress", ""))
        return self._given()

    def call_text(self, call: JudgedCall, text: str) -> bytes:
        kind = CUSTOM_CALL if call.kind == "custom" else FUNCTION_CALL
        if text:
            self._call_texts.append(join_surrogates(text))
            self._emit(f"{kind.stem}.delta", **self._where(self._call_id), delta=self._call_texts[-1])
        return self._given()

    def call_end(self, call: JudgedCall) -> bytes:
        kind = CUSTOM_CALL if call.kind == "custom" else FUNCTION_CALL
        text = "".join(self._call_texts)
        whole = self._call_item(call, kind, "completed", text)
        self._emit(f"{kind.stem}.done", **self._where(self._call_id), name=call.name, **{kind.field: text})
        self._emit(ITEM_DONE, output_index=len(self._output), item=whole)
        self._output.append(whole)
        return self._given()

    def _call_item(self, call: JudgedCall, kind: CallKind, status: str, text: str) -> dict[str, Any]:
        own = {"id": self._call_id, "type": kind.item, "status": status, "call_id": call.call_id, "name": call.name}
        return {**(call.extra if self._same else {}), **own, kind.field: text}

    def usage(self, delta: UsageDelta) -> bytes:
        self._usage = delta.usage if self._same else responses_usage(delta.counts)
        return b""

    def finish(self, choice: int, reason: str, delta: FinishDelta | None, report: dict[str, Any] | None) -> bytes:
        extra = dict(delta.top_extra) if delta is not None and self._same else {}
        details = extra.pop("incomplete_details", None)
        self._echo |= extra
        if reason in ("length", "content_filter"):
            word = "max_output_tokens" if reason == "length" else reason
            own = isinstance(details, dict) and isinstance(details.get("reason"), str) and details["reason"]
            self._incomplete = details if own else {"reason": word}
        if self._called:
            self._drop_blank()
        if report is not None and self._blank_dropped and Quirk.BLANK_TEXT_DROPPED.value not in report["quirks"]:
            report = {**report, "quirks": [*report["quirks"], Quirk.BLANK_TEXT_DROPPED.value]}
        self._report = report
        self._enter_blank()
        self._close_all("incomplete" if self._incomplete else "completed")
        return self._given()

    def done(self) -> bytes:
        status = "incomplete" if self._incomplete else "completed"
        response = self._response(status, output=self._output, incomplete_details=self._incomplete, usage=self._usage)
        report = {} if self._report is None else {"wholecall": self._report}
        if not self._stream:
            return dump({**response, **report})
        self._emit(f"response.{status}", response=response, **report)
        return self._given()

    def error(self, fault: Fault, report: dict[str, Any] | None) -> bytes:
        """One `error` event, its fields flat and nested (each form alone is silent in some client), and the end."""
        if not self._stream:
            return error_body(fault, report)
        error = error_object(fault)
        code, message = str(error.get("code") or fault.public_code), error["message"]
        # AI SDK 6.0.0 sees the nested form only if all four are there, type and code as text
        needed = {"type": str(error.get("type") or fault.kind.value.type), "code": code, "param": None}
        nested = {**needed, **{key: value for key, value in error.items() if value is not None}, "code": code}
        flat = {"code": code, "message": message, "param": error.get("param"), "error": nested}
        self._emit("error", **flat, **({} if report is None else {"wholecall": report}))
        failed = self._response("failed", output=self._output, usage=self._usage)
        self._emit("response.failed", response={**failed, "error": {"code": code, "message": message}})
        return self._given()

    def can_carry(self, call: JudgedCall) -> bool:
        return bool(call.name)

    # --- events of this dialect --------------------------------------------------------------------------------

    def _events(self, piece: Piece) -> list[dict[str, Any]]:
        """What a piece says, as events whose output_index is a key: a change of kind begins a new item."""
        if self._same:
            events = [*sequence_of(piece.delta.get("content")), *sequence_of(piece.delta.get("events"))]
            if events or not piece.text:
                return events
        last = self._item.kind if self._item is not None else "message" if self._blank else ""
        events = []
        for kind, text in ((SUMMARY_TEXT, piece.reasoning), (OUTPUT_TEXT, piece.text), (REFUSAL, piece.refusal)):
            if text:
                self._own_key -= kind.item != last
                last = kind.item
                events.append(
                    {"type": f"{kind.stem}.delta", "output_index": self._own_key, kind.index: 0, "delta": text}
                )
        return events

    def _take(self, event: dict[str, Any]) -> None:
        key, name = event["output_index"], event["type"]
        kind = TEXT_DELTAS.get(name)
        if key in self._closed and kind is None:
            return
        if self._item is not None and self._item.key != key:
            self._waiting.setdefault(key, []).append(event)
            if not self._item.waits:
                self._close({}, "completed")
                self._replay()
            return
        if name == ITEM_ADDED:
            if self._item is None:
                self._open(key, event["item"])
        elif name == ITEM_DONE:
            self._done_event(key, event["item"])
        elif kind is not None:
            self._delta(key, kind, event)
        elif self._item is not None:
            self._other(self._item, event)

    def _done_event(self, key: int, entry: dict[str, Any]) -> None:
        if self._item is None and entry["type"] == "message":
            return  # of its text nothing was sent: white space before a call
        if self._item is None:
            self._open(key, entry)
        self._close(entry, "completed")
        self._replay()

    def _replay(self) -> None:
        """Take the events that waited, in the order of their items, until an item stays open."""
        while self._waiting and self._item is None:
            for event in self._waiting.pop(min(self._waiting)):
                self._take(event)

    def _is_blank(self, key: int, event: dict[str, Any]) -> bool:
        """Hold back the white space that a message begins with: it may be all of it, before a call. What was held of
        this item goes out with the first visible text."""
        if event["delta"].isspace() and all(blank["output_index"] == key for blank in self._blank):
            self._blank.append(event)
            return True
        self._enter_blank(key)
        return False

    def _drop_blank(self) -> None:
        self._blank_dropped = self._blank_dropped or bool(self._blank)
        self._blank = []

    def _enter_blank(self, key: int | None = None) -> None:
        """White space beside no call is the upstream's own text after all; the item stays open if it is `key`."""
        blank, self._blank = self._blank, []
        for event in blank:
            if self._item is None:
                self._open(event["output_index"], {"type": OUTPUT_TEXT.item})
            self._delta(event["output_index"], OUTPUT_TEXT, event)
        if blank and blank[0]["output_index"] != key:
            self._close({}, "completed")

    def _open(self, key: int, head: dict[str, Any]) -> _Item:
        if self._blank and head["type"] != OUTPUT_TEXT.item:
            self._enter_blank()
        kind = head["type"]
        item_id = self._item_id(kind, head.get("id"))
        head = {**_DEFAULT_HEADS.get(kind, {}), **head, "id": item_id}
        if kind == "message":
            head |= {"status": "in_progress", "content": []}
        elif kind == "reasoning":
            head |= {"summary": []} | ({"content": []} if "content" in head else {})
        self._item = _Item(key, item_id, head)
        self._emit(ITEM_ADDED, output_index=len(self._output), item=head)
        return self._item

    def _delta(self, key: int, kind: TextKind, event: dict[str, Any]) -> None:
        if self._item is None and kind is OUTPUT_TEXT and self._is_blank(key, event):
            return
        item = self._item or self._open(key, {"type": kind.item})
        index = event[kind.index]
        if item.part is None or (item.part.kind, item.part.index) != (kind, index):
            self._close_part(item)
            item.part = _Part(kind, index, len(item.parts.get(kind.holder, ())))
            self._emit(
                f"{kind.part_stem}.added",
                **self._where(item.id),
                **{kind.index: item.part.place},
                part=_part(kind, "", []),
            )
        item.part.texts.append(event["delta"])
        more: dict[str, Any] = {"logprobs": []} if kind is OUTPUT_TEXT else {}
        rest = {k: v for k, v in event.items() if k not in ("type", "output_index", "item_id", kind.index, "delta")}
        place = {kind.index: item.part.place}
        self._emit(f"{kind.stem}.delta", **self._where(item.id), **place, delta=event["delta"], **(more | rest))

    def _other(self, item: _Item, event: dict[str, Any]) -> None:
        """An event of a hosted tool's item, or an annotation of the text in progress."""
        fields = {k: v for k, v in event.items() if k not in ("type", "output_index", "item_id")}
        if event["type"] == ANNOTATION:
            if item.part is None or item.part.kind is not OUTPUT_TEXT:
                return  # it comes with the finished item
            fields |= {"content_index": item.part.place, "annotation_index": len(item.part.annotations)}
            item.part.annotations.append(event.get("annotation"))
        self._emit(event["type"], **self._where(item.id), **fields)

    def _close_part(self, item: _Item, final: dict[str, Any] | None = None) -> None:
        part = item.part
        if part is None:
            return
        item.part = None
        kind, text = part.kind, "".join(part.texts)
        whole = {**_part(kind, text, part.annotations), **_extras(final, kind, part.place), kind.field: text}
        where = {**self._where(item.id), kind.index: part.place}
        more = {"logprobs": whole.get("logprobs", [])} if kind is OUTPUT_TEXT else {}
        self._emit(f"{kind.stem}.done", **where, **{kind.field: text}, **more)
        self._emit(f"{kind.part_stem}.done", **where, part=whole)
        item.parts.setdefault(kind.holder, []).append(whole)

    def _close(self, final: dict[str, Any], status: str) -> None:
        """End the item in progress. `final` is the upstream's whole item; of its texts only what was sent counts."""
        item = self._item
        if item is None:
            return
        self._close_part(item, final)
        whole = {**item.head, **final, "id": item.id}
        for holder in _HOLDERS.get(item.kind, ()):
            if not isinstance(whole.get(holder), list):
                whole[holder] = []
        if item.kind == "reasoning" and not isinstance(whole.get("content", []), list):
            del whole["content"]
        for holder in ("summary", "content"):
            ours = item.parts.get(holder, [])
            if ours or (item.kind in ("message", "reasoning") and holder in whole):
                merged = [{**part, **_extras(final, TEXT_BY_TYPE[part["type"]], i)} for i, part in enumerate(ours)]
                others = [p for p in sequence_of(whole.get(holder)) if isinstance(p, dict)]
                # typed clients ask every part for its type
                named = [p for p in others if isinstance(p.get("type"), str) and p["type"] not in ("", *TEXT_BY_TYPE)]
                whole[holder] = merged + named
        ended = final.get("status") in ("completed", "incomplete")
        if whole.get("status") == "in_progress" or (item.kind == "message" and not ended):
            whole["status"] = status
        self._emit(ITEM_DONE, output_index=len(self._output), item=whole)
        self._output.append(whole)
        self._closed.add(item.key)
        self._item = None

    def _close_all(self, status: str = "completed") -> None:
        """End the item in progress, and those that wait for it."""
        self._close({}, status)
        while self._waiting:
            self._replay()
            self._close({}, status)

    # --- the wire ----------------------------------------------------------------------------------------------

    def _where(self, item_id: str) -> dict[str, Any]:
        return {"item_id": item_id, "output_index": len(self._output)}

    def _item_id(self, kind: str, given: Any) -> str:
        """The upstream's, unless it is missing or taken."""
        if isinstance(given, str) and given and given not in self._ids:
            self._ids.add(given)
            return given
        mark = hashlib.sha256(f"{self._seed}|{len(self._output)}".encode()).hexdigest()[:32]
        made = f"{_PREFIX.get(kind, 'item')}_{mark}"
        self._ids.add(made)
        return made

    def envelope(self) -> Envelope:
        """The upstream's own at the first output (its id only from this dialect); it stays for the whole reply."""
        if self._envelope is None:
            reply_id, created, model = self._upstream_envelope() or ("", 0, "")
            made = "resp_" + hashlib.sha256(self._seed.encode()).hexdigest()[:32]
            self._envelope = (
                (self._same and reply_id) or made,
                created or self._created,
                model or self._request.model,
            )
        return self._envelope

    def _response(
        self,
        status: str,
        *,
        output: list[dict[str, Any]],
        incomplete_details: dict[str, Any] | None = None,
        usage: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        reply_id, created, model = self.envelope()
        return {
            **self._echo,
            "id": reply_id,
            "object": "response",
            "created_at": created,
            "status": status,
            "error": None,
            "incomplete_details": incomplete_details,
            "model": model,
            "output": output,
            "usage": usage,
        }

    def _emit(self, event: str, /, **fields: Any) -> None:
        if not self._stream:
            return
        if self._sequence == 0:
            self._sequence = 1
            begun = self._response("in_progress", output=[])
            self._out.append(_wire("response.created", 0, {"response": begun}))
            self._emit("response.in_progress", response=begun)
        self._out.append(_wire(event, self._sequence, fields))
        self._sequence += 1

    def _given(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data


def error_body(fault: Fault, report: dict[str, Any] | None = None) -> bytes:
    """`{"error": {...}, "wholecall"?: {...}}`; an upstream's own error document of this dialect as it came."""
    fields = dict(fault.document) if fault.document and fault.error is fault.document.get("error") else {}
    fields["error"] = error_object(fault)
    fields.pop("wholecall", None)  # an upstream's is no report of ours
    if report is not None:
        fields["wholecall"] = report
    return dump(fields)


def responses_usage(counts: Usage) -> dict[str, Any]:
    """Both details are there, as typed clients require: not told is 0."""
    return {
        "input_tokens": counts.input_tokens,
        "input_tokens_details": {"cached_tokens": counts.cache_read or 0},
        "output_tokens": counts.output_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning or 0},
        "total_tokens": counts.input_tokens + counts.output_tokens,
    }


def _wire(event: str, number: int, fields: dict[str, Any]) -> bytes:
    document = {"type": event, "sequence_number": number, **fields}
    return b"event: " + event.encode() + b"\ndata: " + one_line(dump(document)) + b"\n\n"


def _part(kind: TextKind, text: str, annotations: list[Any]) -> dict[str, Any]:
    part: dict[str, Any] = {"type": kind.type, kind.field: text}
    if kind is OUTPUT_TEXT:
        part |= {"annotations": annotations, "logprobs": []}
    return part


def _extras(final: dict[str, Any] | None, kind: TextKind, place: int) -> dict[str, Any]:
    """What the upstream's finished item says of a part besides its text: annotations, logprobs, unknown fields."""
    parts = sequence_of((final or {}).get(kind.holder))
    if place >= len(parts) or not isinstance(parts[place], dict) or parts[place].get("type") != kind.type:
        return {}
    return {k: v for k, v in parts[place].items() if k != kind.field and v is not None}
