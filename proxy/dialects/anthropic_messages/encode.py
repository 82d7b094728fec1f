"""Messages towards the client: the canonical stream, or one message.

The stream that every one of eight client set-ups reads: message_start with usage; blocks 0, 1, 2 ... one open at a
time; each call a block whose arguments come as one input_json_delta; message_delta with stop_reason and usage;
message_stop. Every event has its `event:` line. No event and no block of a type that the client may not know is made
up here; blocks of the upstream's own pass to a client of this dialect only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import orjson

from proxy.dialects.base import Encoder, Envelope
from proxy.faults import Fault
from proxy.model.calls import JudgedCall, Verdict
from proxy.model.deltas import FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.model.requests import Request
from proxy.wire.jsondoc import dump, join_surrogates, one_line

NAME = "anthropic-messages"

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_OWN_ENDS = frozenset({"end_turn", "stop_sequence", "pause_turn"})  # what `stop` may have been in this dialect
_NO_USAGE = {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_TEXT, _THINKING = -1, -2  # blocks of an upstream that speaks another dialect
_End = tuple[dict[str, Any], dict[str, Any]]  # of a message: its stop_reason and the like, and other fields


def encoder(
    request: Request,
    seed: str,
    created: int,
    envelope: Callable[[], Envelope | None],
    upstream_dialect: str = NAME,
) -> MessagesStreamEncoder | MessagesDocumentEncoder:
    kind = MessagesStreamEncoder if request.stream else MessagesDocumentEncoder
    return kind(request, seed, envelope, upstream_dialect)


class _Base(Encoder):
    """Which block a piece goes to. How blocks are written is the subclasses' part: `_start`, `_add`, `_stop`."""

    ordered = True
    usage_first = True

    def __init__(
        self, request: Request, seed: str, envelope: Callable[[], Envelope | None], upstream_dialect: str
    ) -> None:
        self._request = request
        self._seed = seed
        self._upstream_envelope = envelope
        self._same = upstream_dialect == NAME
        self._envelope: tuple[str, str] | None = None
        self._message: dict[str, Any] = {}  # the upstream's own head of the message
        self._counts: dict[str, Any] | None = None
        self._open: int | None = None
        self._starts: dict[int, dict[str, Any]] = {}
        self._at_text = _TEXT  # the block that text without a block of its own goes to
        self._blank: tuple[int, str] | None = None  # white space that a block would begin with
        self._called = False
        self._blank_dropped = False

    def envelope(self) -> tuple[str, str]:
        """Id and model: the upstream's own at the first output, else made ones; they stay for the whole reply."""
        if self._envelope is None:
            reply_id, _, model = self._upstream_envelope() or ("", 0, "")
            made = "msg_" + hashlib.sha256(self._seed.encode()).hexdigest()[:24]
            self._envelope = (reply_id or made, model or self._request.model)
        return self._envelope

    def can_carry(self, call: JudgedCall) -> bool:
        """A block has a name, and its input is a JSON object."""
        return bool(call.name) and call.verdict is not Verdict.INVALID_JSON and _is_object(_input(call.text))

    def piece(self, piece: Piece) -> bytes:
        if self._same:
            return self._own(piece)
        out = b""
        if piece.reasoning:
            thinking = {"type": "thinking", "thinking": "", "signature": ""}
            out = self._enter(_THINKING, thinking) + self._add({"type": "thinking_delta", "thinking": piece.reasoning})
        return out + self._text(_TEXT, piece.text + piece.refusal, {}, {})

    def _own(self, piece: Piece) -> bytes:
        """A piece of an upstream that speaks this dialect: as decode.py describes it."""
        if piece.choice < 0:
            return self._head(piece.top_extra)
        extra = piece.choice_extra
        block: int = extra.get("block", self._at_text)
        start = extra.get("start")
        if start is not None:
            self._starts[block] = start
        own = self._starts.get(block, {"type": "text", "text": ""})
        event = piece.top_extra.get("event", {})
        if own.get("type") == "text":
            self._at_text = block
        if piece.text:
            return self._text(block, piece.text, piece.delta if "block" in extra else {}, event, piece.raw)
        if piece.reasoning:
            delta = {"type": "thinking_delta", "thinking": piece.reasoning, **piece.delta}
            return self._enter(block, own) + self._add(delta, event, piece.raw)
        if "type" in piece.delta:  # else they are fields beside white space, which waits
            return self._enter(block, own) + self._add(piece.delta, event)
        if extra.get("stop"):
            return self._leave() if self._open == block else b""
        if own.get("type") != "text":
            return self._enter(block, own)
        return b""

    def _text(
        self, block: int, text: str, fields: dict[str, Any], event: dict[str, Any], raw: bytes | None = None
    ) -> bytes:
        if not text:
            return b""
        if self._open != block:
            if self._blank is not None and self._blank[0] == block:
                text, raw = self._blank[1] + text, None
                self._blank = None
            if text.isspace():  # the API takes no block of white space back
                out = self._enter_blank()
                self._blank = (block, text)
                return out
        start = self._starts.get(block, {"type": "text", "text": ""})
        return self._enter(block, start) + self._add({"type": "text_delta", "text": text, **fields}, event, raw)

    def _enter(self, block: int, start: dict[str, Any]) -> bytes:
        """Open this block, if it is not the one that is open."""
        if self._open == block:
            return b""
        out = self._enter_blank() + self._leave()
        self._open = block
        return out + self._start(start)

    def _before_call(self) -> bytes:
        self._called = True
        self._drop_blank()
        return self._leave()

    def _before_end(self) -> bytes:
        if self._called:
            self._drop_blank()
        return self._enter_blank() + self._leave()

    def _drop_blank(self) -> None:
        self._blank_dropped = self._blank_dropped or self._blank is not None
        self._blank = None

    def _enter_blank(self) -> bytes:
        """White space beside no call is the upstream's own text after all."""
        if self._blank is None:
            return b""
        block, text = self._blank
        self._blank = None
        start = self._starts.get(block, {"type": "text", "text": ""})
        return self._enter(block, start) + self._add({"type": "text_delta", "text": text})

    def _leave(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return self._stop()

    def _call_fields(self, call: JudgedCall) -> dict[str, Any]:
        extra = call.extra if self._same else {}
        return {"type": "tool_use", "id": join_surrogates(call.call_id), "name": join_surrogates(call.name), **extra}

    def usage(self, delta: UsageDelta) -> bytes:
        self._counts = delta.usage if self._same else messages_usage(delta.counts)
        return b""

    def _end(self, reason: str, delta: FinishDelta | None, report: dict[str, Any] | None) -> _End:
        own = delta if self._same else None
        fields = dict(own.choice_extra) if own else {}
        word = _STOP_REASONS[reason]
        if own and word == "end_turn" and own.raw in _OWN_ENDS:
            word = own.raw
        if word != "stop_sequence":
            fields["stop_sequence"] = None
        event = dict(own.top_extra) if own else {}
        if report is not None:
            if self._blank_dropped and Quirk.BLANK_TEXT_DROPPED.value not in report["quirks"]:
                report = {**report, "quirks": [*report["quirks"], Quirk.BLANK_TEXT_DROPPED.value]}
            event["wholecall"] = report
        return {"stop_reason": word, **fields}, event

    def _head(self, fields: dict[str, Any]) -> bytes:
        raise NotImplementedError

    def _start(self, start: dict[str, Any]) -> bytes:
        raise NotImplementedError

    def _add(self, delta: dict[str, Any], event: dict[str, Any] | None = None, raw: bytes | None = None) -> bytes:
        raise NotImplementedError

    def _stop(self) -> bytes:
        raise NotImplementedError


class MessagesStreamEncoder(_Base):
    """Server-sent events."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._index = -1  # of the block that was started last
        self._begun = False

    def call_head(self, call: JudgedCall) -> bytes:
        return self._before_call() + self._start({**self._call_fields(call), "input": {}})

    def call_text(self, call: JudgedCall, text: str) -> bytes:
        if text == call.text:
            text = _input(text)
        if not text:
            return b""
        return self._add({"type": "input_json_delta", "partial_json": join_surrogates(text)})

    def call_end(self, call: JudgedCall) -> bytes:
        return self._stop()

    def finish(self, choice: int, reason: str, delta: FinishDelta | None, report: dict[str, Any] | None) -> bytes:
        out = self._before_end() + self._begin({})
        fields, event = self._end(reason, delta, report)
        usage = {"output_tokens": 0} if self._counts is None else {"output_tokens": 0, **self._counts}
        return out + _event("message_delta", {"delta": fields, "usage": usage, **event})

    def done(self) -> bytes:
        return _event("message_stop", {})

    def error(self, fault: Fault, report: dict[str, Any] | None) -> bytes:
        return b"event: error\ndata: " + one_line(error_body(fault, report)) + b"\n\n"

    def _head(self, fields: dict[str, Any]) -> bytes:
        self._message = fields.get("message", {})
        return self._begin(fields.get("event", {}))

    def _begin(self, event: dict[str, Any]) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        reply_id, model = self.envelope()
        message = {
            **self._message,
            "id": reply_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        message["usage"] = _NO_USAGE | (self._message.get("usage") or {})
        return _event("message_start", {"message": message, **event})

    def _start(self, start: dict[str, Any]) -> bytes:
        self._index += 1
        return self._begin({}) + _event("content_block_start", {"index": self._index, "content_block": start})

    def _add(self, delta: dict[str, Any], event: dict[str, Any] | None = None, raw: bytes | None = None) -> bytes:
        """`raw` is the upstream's own payload, which fits where its block has the same number here as there."""
        if raw is not None and self._open == self._index:
            return b"event: content_block_delta\ndata: " + one_line(raw) + b"\n\n"
        return _event("content_block_delta", {"index": self._index, "delta": delta, **(event or {})})

    def _stop(self) -> bytes:
        return _event("content_block_stop", {"index": self._index})


class MessagesDocumentEncoder(_Base):
    """One message, given by `done`."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._blocks: list[bytes] = []
        self._block: dict[str, Any] = {}
        self._parts: dict[str, list[str]] = {}  # lists and one join: a string that grows by every delta is quadratic
        self._ended: _End = ({}, {})

    def call_head(self, call: JudgedCall) -> bytes:
        self._before_call()
        self._blocks.append(_with_input(self._call_fields(call), _input(call.text)))
        return b""

    def call_text(self, call: JudgedCall, text: str) -> bytes:
        return b""  # a document has it from the head

    def call_end(self, call: JudgedCall) -> bytes:
        return b""

    def finish(self, choice: int, reason: str, delta: FinishDelta | None, report: dict[str, Any] | None) -> bytes:
        self._before_end()
        self._ended = self._end(reason, delta, report)
        return b""

    def done(self) -> bytes:
        reply_id, model = self.envelope()
        own = {"id": reply_id, "type": "message", "role": "assistant", "model": model}
        fields, event = self._ended
        head = {**self._message, **own, **fields, **event, **own}  # first, and not what a final delta calls so
        head.pop("content", None)
        head["usage"] = _NO_USAGE | (self._counts or self._message.get("usage") or {})
        return dump(head)[:-1] + b',"content":[' + b",".join(self._blocks) + b"]}"

    def error(self, fault: Fault, report: dict[str, Any] | None) -> bytes:
        return error_body(fault, report)

    def _head(self, fields: dict[str, Any]) -> bytes:
        self._message = fields.get("message", {})
        return b""

    def _start(self, start: dict[str, Any]) -> bytes:
        self._block = dict(start)
        return b""

    def _add(self, delta: dict[str, Any], event: dict[str, Any] | None = None, raw: bytes | None = None) -> bytes:
        match delta.get("type"):
            case "citations_delta":
                self._block["citations"] = [*(self._block.get("citations") or ()), delta.get("citation")]
            case "signature_delta":
                self._block["signature"] = delta.get("signature")
            case _:
                for key, value in delta.items():
                    if isinstance(value, str) and key != "type":
                        self._parts.setdefault(key, []).append(value)
                    elif key != "type" and not isinstance(self._block.get(key), str):  # text stays text
                        self._block[key] = value
        return b""

    def _stop(self) -> bytes:
        source = "".join(self._parts.pop("partial_json", ()))  # of a tool that the backend ran itself
        for key, pieces in self._parts.items():
            before = self._block.get(key)
            self._block[key] = (before if isinstance(before, str) else "") + "".join(pieces)
        self._parts = {}
        if self._block.get("type") == "text" and not any(v for k, v in self._block.items() if k != "type"):
            return b""  # the API takes no empty block back
        if source and _is_object(source):
            self._block.pop("input", None)
            self._blocks.append(_with_input(self._block, source))
        else:
            self._blocks.append(dump(self._block))
        return b""


def error_body(fault: Fault, report: dict[str, Any] | None = None) -> bytes:
    """`{"type": "error", "error": {"type", "message", "code"}, "wholecall"?}`; an upstream's own error document of this
    dialect as it came, its `request_id` too."""
    own = fault.error
    fields: dict[str, Any] = {"type": "error", "error": own}
    if own is None:
        kind = _ERROR_TYPES.get(fault.public_status, "api_error")
        fields["error"] = {"type": kind, "message": fault.detail, "code": fault.public_code}
    else:
        if fault.document is not None and fault.document.get("error") is own:
            fields = {**fault.document, "type": "error"}
        needed = {"type": _ERROR_TYPES.get(fault.public_status, "api_error"), "message": fault.detail}
        fields["error"] = {**own, **{k: v for k, v in needed.items() if not isinstance(own.get(k), str) or not own[k]}}
    fields.pop("wholecall", None)  # an upstream's is no report of ours
    if report is not None:
        fields["wholecall"] = report
    return dump(fields)


def messages_usage(counts: Usage) -> dict[str, Any]:
    """This dialect counts what was read from or written to a cache apart from `input_tokens`."""
    read, written = counts.cache_read or 0, counts.cache_write or 0
    usage = {"input_tokens": max(0, counts.input_tokens - read - written)}
    if counts.cache_write is not None:
        usage["cache_creation_input_tokens"] = written
    if counts.cache_read is not None:
        usage["cache_read_input_tokens"] = read
    return {**usage, "output_tokens": counts.output_tokens}


def _input(text: str) -> str:
    return "{}" if text.strip() in ("", "null") else text


def _with_input(block: dict[str, Any], source: str) -> bytes:
    """A block's JSON with its input in the characters as they came: a dump loses long integers."""
    return dump(block)[:-1] + b',"input":' + join_surrogates(source).encode() + b"}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(join_surrogates(text)), dict)
    except orjson.JSONDecodeError:
        return False


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + one_line(dump({"type": kind, **fields})) + b"\n\n"
