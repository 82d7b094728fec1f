"""Messages events and documents -> deltas.

Theory of operation. The format marks its parts: a block starts, gets deltas, stops. Every start makes a block with a
running number of its own (the wire's index is a key to the block that was started last under it, never a position).
The type of a delta, not the block it names, says what it carries: text on a tool block is text, in a block of its own.
Where a type is missing, the fields that came say what it is.
A tool block's `input` at the start counts until argument text comes. A document is read as the events it stands for.

For a client of this dialect a piece says which block it belongs to (`choice_extra["block"]`), how that block started
(`["start"]`, with the block's first piece) and that it stopped (`["stop"]`); `delta` is the wire's delta less the text
that `text` or `reasoning` hold; `top_extra["message"]` is the head of the message, `["event"]` an event's other fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from proxy.dialects.base import BadEvent, Envelope, read_document, sequence_of, until_done, unwrapped
from proxy.dialects.keys import check_keys
from proxy.dialects.stencils import Stencils
from proxy.model.deltas import FINISH_WORDS, CallDelta, Delta, Done, Failed, FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.wire.jsondoc import NotJson, decode, documents, is_utf8, join_surrogates
from proxy.wire.jsonscan import value_span
from proxy.wire.sse import Frame

_Kind = Literal["text", "thinking", "call", "other"]
_KINDS: dict[str, _Kind] = {"text": "text", "thinking": "thinking", "tool_use": "call"}
_PROSE = {"text_delta": "text", "thinking_delta": "thinking"}  # type of a delta -> its field, which is also its block
_CALL = frozenset({"type", "id", "name", "input"})
_DELTAS = {  # field of a delta -> its type
    "partial_json": "input_json_delta",
    "text": "text_delta",
    "thinking": "thinking_delta",
    "signature": "signature_delta",
    "citation": "citations_delta",
}
_ARGUMENTS = frozenset({"input", "partial_json"})
_PADDING = frozenset({"p", "obfuscation", "wholecall"})  # a report is the proxy's own
_HEAD = frozenset({"content", "stop_reason", "stop_sequence", "wholecall"})
_DONE = b"[DONE]"


@dataclass(slots=True)
class _Block:
    """`start` is the block as it started, less its text, until a piece has told it."""

    number: int
    kind: _Kind
    start: dict[str, Any] | None = None
    identity: tuple[str | None, str | None] = (None, None)  # of a call: its id and name
    input: str = "{}"  # of a call: what its start gave
    told: bool = False  # the input was told, since no argument text had come when the block stopped
    begun: bool = False  # argument text came
    stopped: bool = False


class MessagesDecoder:
    """`feed` one frame at a time. `verbatim`: payloads may be passed on as they came (a client of this dialect reads a
    stream). Nothing comes after a `Done`."""

    def __init__(self, note: Callable[[Quirk], None], *, verbatim: bool) -> None:
        self._note = note
        self._verbatim = verbatim
        self.whole = self.alone = False
        self.stencils = Stencils()
        self.envelope: Envelope | None = None  # of message_start; this dialect has no time of creation
        self._blocks: dict[int, _Block] = {}  # by the wire's index
        self._strays: dict[tuple[int, str], _Block] = {}  # for deltas that their block cannot hold
        self._count = 0
        self._last: int | None = None  # index of the block that was started last
        self._calls: list[_Block] = []
        self._visible = False  # text other than white space was seen
        self._halves: dict[int, tuple[_Block, str]] = {}  # by block: high surrogate that waits
        self._usage: dict[str, Any] = {}
        self._usage_told = True
        self._finished = False

    # --- frames ------------------------------------------------------------------------------------------------

    def feed(self, frame: Frame) -> list[Delta]:
        """The deltas of one server-sent event. Raises BadEvent."""
        data = frame.data
        try:
            found, quirks = documents(data)
        except NotJson as error:
            return self._odd(frame, str(error))
        for quirk in quirks:
            self._note(quirk)
        if len(found) == 1:
            return self._event(found[0], frame.event, data)
        out: list[Delta] = []
        for document in found:
            out += self._event(document, b"", None)
        return out

    def feed_document(self, frame: Frame) -> list[Delta]:
        """The deltas of a whole JSON body, or of JSON lines, either with events behind it."""
        found, source, frames = read_document(frame.data, self._note)
        self.alone = len(found) == 1 and not frames and _is_regular(found[0])
        return until_done(chain((self._whole(document, source) for document in found), map(self.feed, frames)))

    def _whole(self, document: Any, source: bytes | None) -> list[Delta]:
        if isinstance(document, list) and len(document) == 1:
            document, source = unwrapped(document, source)
        self.whole = self.whole or _is_reply(document)
        return self._event(document, b"", source)

    def close(self) -> list[Delta]:
        """What was still pending: halves of characters whose other half never came, inputs, usage."""
        out: list[Delta] = []
        for here, _ in self._halves.values():
            out.append(self._lone_half(here))
        self._halves.clear()
        return [*out, *self._untold()]

    def _odd(self, frame: Frame, reason: str) -> list[Delta]:
        """An event that is no JSON: nothing, an error in words, the end mark of another dialect, or broken."""
        text = frame.data.strip()
        if frame.event == b"error":
            return [Failed(decode(text)[0] or "the upstream sent an error event")]
        if not text or text.startswith(b":") or frame.event == b"ping":
            self._note(Quirk.EMPTY_EVENT)
            return []
        if text == _DONE:
            self._note(Quirk.FOREIGN_EVENT)
            return [*self._untold(), Done()] if self._finished else []
        raise BadEvent(reason)

    # --- events ------------------------------------------------------------------------------------------------

    def _event(self, document: Any, event: bytes, data: bytes | None) -> list[Delta]:
        if type(document) is not dict:
            if document is None:
                self._note(Quirk.EMPTY_EVENT)
                return []
            failure = failure_of(document)
            if failure is None:
                raise BadEvent("a JSON value that is no object")
            return [failure]
        kind = document.get("type")
        if not isinstance(kind, str) or not kind:
            kind = event.decode("latin-1") or self._untyped(document)
        match kind:
            case "content_block_delta":
                return self._delta(document, data)
            case "content_block_start":
                return self._start(document, data)
            case "content_block_stop":
                return self._stop(self._known(document.get("index")))
            case "message_start":
                return self._message_start(document)
            case "message_delta":
                return self._message_delta(document)
            case "message_stop":
                return [*self._untold(), Done()]
            case "ping":
                return []
            case "message":
                return self._message(document, data)
        failure = _failure(document)
        if failure is None and kind == "error":
            failure = Failed(_message_of(document) or "the upstream sent an error event")
        if failure is not None:
            return [failure]
        self._note(Quirk.FOREIGN_EVENT)  # clients take an unknown event for an error
        return []

    def _untyped(self, document: dict[str, Any]) -> str:
        """What an event without a type is, by its fields."""
        delta = document.get("delta")
        if isinstance(document.get("content"), list):
            return "message"
        if document.get("content_block"):
            kind = "content_block_start"
        elif delta:
            kind = "message_delta" if isinstance(delta, dict) and "stop_reason" in delta else "content_block_delta"
        else:
            return ""
        self._note(Quirk.TYPE_MISSING)
        return kind

    def _message_start(self, document: dict[str, Any]) -> list[Delta]:
        message = document.get("message")
        if not isinstance(message, dict):
            return []
        reply_id, model = message.get("id"), message.get("model")
        if isinstance(reply_id, str) and isinstance(model, str):
            if self.envelope is not None and self.envelope != (reply_id, 0, model):
                self._note(Quirk.ENVELOPE_CHANGED)
                return []
            self.envelope = (reply_id, 0, model)
        self._add_usage(message.get("usage"))
        head = _without(message, _HEAD if isinstance(message.get("usage"), dict) else _HEAD | {"usage"})
        return [Piece(-1, top_extra={"message": head, **_event_fields(document, "message")})]

    def _message_delta(self, document: dict[str, Any]) -> list[Delta]:
        self._add_usage(document.get("usage"))
        delta = document.get("delta")
        reason = delta.get("stop_reason") if isinstance(delta, dict) else None
        out = self._untold()
        if isinstance(reason, str) and reason:
            assert isinstance(delta, dict)
            out.append(self._finish(reason, _without(delta, frozenset({"stop_reason"})), document))
        return out

    def _finish(self, reason: str, extra: dict[str, Any], document: dict[str, Any]) -> FinishDelta:
        self._finished = True
        meaning = FINISH_WORDS.get(reason.lower(), "stop")
        return FinishDelta(0, meaning, reason, extra, _event_fields(document, "delta", "usage").get("event", {}))

    def _message(self, document: dict[str, Any], data: bytes | None) -> list[Delta]:
        """A whole message, read as the events that it stands for."""
        head = {**_without(document, _HEAD), "type": "message"}
        out = self._message_start({"message": head})
        content = document.get("content")
        single = bool(content) and not isinstance(content, list)
        blocks = [self._own_block(block) for block in ([content] if single else content or ())]
        if any(block.get("type") == "tool_use" for block in blocks):
            check_keys(document, data, _ARGUMENTS)
        for position, block in enumerate(blocks):
            out += self._whole_block(block, data, ("content",) if single else ("content", position))
        out += self._untold()
        reason = document.get("stop_reason")
        if isinstance(reason, str) and reason:
            out.append(self._finish(reason, {"stop_sequence": document.get("stop_sequence")}, {}))
        # without either it is no reply, and proves nothing
        return [*out, Done()] if blocks or reason else out

    def _own_block(self, block: Any) -> dict[str, Any]:
        """A block in the format's own words: text alone is one, and fields tell the type where it is missing."""
        if isinstance(block, str):
            self._note(Quirk.TYPE_MISSING)
            block = {"type": "text", "text": block}
        block = self._typed(block, _type_of_block)
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise BadEvent("a content block that has no type")
        return block

    def _whole_block(self, block: dict[str, Any], data: bytes | None, path: tuple[str | int, ...]) -> list[Delta]:
        deltas: list[dict[str, Any]] = []
        if block.get("type") == "text":
            citations = sequence_of(block.get("citations"))
            deltas = [{"type": "citations_delta", "citation": citation} for citation in citations]
            if citations:
                block = {**block, "citations": []}
        elif block.get("type") == "thinking" and block.get("signature"):
            deltas = [{"type": "signature_delta", "signature": block["signature"]}]
            block = {**block, "signature": ""}
        index = self._count
        out = self._open(index, block, data, path)
        here = self._blocks[index]
        for delta in deltas:
            out += self._of_block(here, delta, {}, None)
        return out + self._stop(here)

    # --- blocks ------------------------------------------------------------------------------------------------

    def _start(self, document: dict[str, Any], data: bytes | None) -> list[Delta]:
        block = document.get("content_block")
        if not block:
            self._note(Quirk.FOREIGN_EVENT)
            return []
        if not isinstance(block, dict):
            raise BadEvent("a content block that is no object")
        block = self._own_block(block)
        if block["type"] == "tool_use":
            check_keys(document, data, _ARGUMENTS)
        index = self._index(document.get("index"))
        if index is None:
            self._note(Quirk.INDEX_MISSING)
            index = max(self._blocks, default=-1) + 1
        elif index in self._blocks:
            again = self._again(self._blocks[index], block, data)
            if again is not None:
                return again
            self._note(Quirk.INDEX_REUSED)
        return self._open(index, block, data, ("content_block",))

    def _again(self, here: _Block, block: dict[str, Any], data: bytes | None) -> list[Delta] | None:
        """The deltas of a start that comes again for the same open call; None: it starts another block."""
        if here.kind != "call" or here.stopped or block.get("type") != "tool_use" or not here.identity[0]:
            return None
        if self._identity(block) != here.identity:
            return None
        self._note(Quirk.CALL_REPEATED)
        if here.input == "{}":
            self._take_input(here, block, data, ("content_block",))
        return []

    def _typed(self, fields: Any, type_of: Callable[[dict[str, Any]], str | None]) -> Any:
        """A block or delta with the type that its fields tell, where it came without one."""
        if not isinstance(fields, dict) or (isinstance(fields.get("type"), str) and fields["type"]):
            return fields
        kind = type_of(fields)
        if kind is None:
            return fields
        self._note(Quirk.TYPE_MISSING)
        return {**fields, "type": kind}

    def _open(self, index: int, block: dict[str, Any], data: bytes | None, path: tuple[str | int, ...]) -> list[Delta]:
        kind = _KINDS.get(str(block.get("type")), "other")
        here = self._new_block(kind)
        self._blocks[index] = here
        self._last = index
        if kind == "call":
            self._calls.append(here)
            return [self._call(here, block, data, path)]
        if kind == "other":
            here.start = block
            return [self._piece(here)]
        text = block.get(kind)
        here.start = {**block, kind: ""}
        if isinstance(text, str) and text:
            return self._of_block(here, {"type": f"{kind}_delta", kind: text}, {}, None)
        return [self._piece(here)] if kind == "thinking" else []

    def _new_block(self, kind: _Kind) -> _Block:
        block = _Block(self._count, kind)
        self._count += 1
        return block

    def _call(self, here: _Block, block: dict[str, Any], data: bytes | None, path: tuple[str | int, ...]) -> CallDelta:
        here.identity = self._identity(block)
        self._take_input(here, block, data, path)
        call_id, name = here.identity
        return CallDelta(0, key=here.number, call_id=call_id, name=name, extra=_without(block, _CALL) or None)

    def _identity(self, block: dict[str, Any]) -> tuple[str | None, str | None]:
        """Id and name of a call."""
        call_id, name = block.get("id"), block.get("name")
        if type(call_id) is int:
            call_id = str(call_id)
            self._note(Quirk.ID_NUMBER)
        return (
            call_id if isinstance(call_id, str) and call_id not in ("", "null") else None,
            name if isinstance(name, str) and name else None,
        )

    def _take_input(self, here: _Block, block: dict[str, Any], data: bytes | None, path: tuple[str | int, ...]) -> None:
        if block.get("input") not in (None, "", {}, []):
            here.input = _source(data, (*path, "input"))

    def _stop(self, here: _Block | None) -> list[Delta]:
        if here is None:
            return []
        here.stopped = True
        if here.kind == "call":
            return self._input(here)
        out: list[Delta] = []
        if self._halves.pop(here.number, None) is not None:
            out.append(self._lone_half(here))
        piece = self._piece(here)
        piece.choice_extra["stop"] = True
        return [*out, piece]

    def _index(self, value: Any) -> int | None:
        if type(value) is int and value >= 0:
            return value
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
        return None

    def _known(self, value: Any) -> _Block | None:
        """The block that an event means: by its index, or the block started last where it has none."""
        index = self._index(value)
        if index is None:
            self._note(Quirk.INDEX_MISSING)
            index = self._last
        return self._blocks.get(index) if index is not None else None

    # --- deltas ------------------------------------------------------------------------------------------------

    def _delta(self, document: dict[str, Any], data: bytes | None) -> list[Delta]:
        delta = document.get("delta")
        if type(delta) is not dict:
            if delta:
                raise BadEvent("a delta that is no object")
            self._note(Quirk.FOREIGN_EVENT)
            return []
        came = delta
        delta = self._typed(delta, _type_of_delta)
        kind = delta.get("type")
        if not isinstance(kind, str) or not kind:
            self._note(Quirk.FOREIGN_EVENT)
            return []
        here = self._known(document.get("index"))
        if kind == "input_json_delta" and (here is None or here.kind != "other"):
            check_keys(document, data, _ARGUMENTS)
            return self._argument(here, delta.get("partial_json"), data)
        wanted = self._wanted(kind)
        if here is None or (here.kind != wanted and wanted is not None) or (here.kind == "call"):
            if wanted is None:
                self._note(Quirk.FOREIGN_EVENT)
                return []
            here = self._stray(here, wanted)
        index = document.get("index")
        clean = type(index) is int and index == here.number and document.get("type") == "content_block_delta"
        raw = data if clean and delta is came else None
        if kind == "input_json_delta" and not isinstance(delta.get("partial_json"), str):
            delta = {**delta, "partial_json": self._own_input(delta.get("partial_json"), data)}
        return self._of_block(here, delta, _event_fields(document, "index", "delta"), raw)

    def _own_input(self, value: Any, data: bytes | None) -> str:
        """Input of a tool that the backend runs itself, given as a value in place of its text."""
        return "" if value is None or value == [] else _source(data, ("delta", "partial_json"))

    def _wanted(self, kind: Any) -> _Kind | None:
        """The kind of block that a delta belongs in; None: in any but a call."""
        if kind in ("text_delta", "citations_delta"):
            return "text"
        return "thinking" if kind in ("thinking_delta", "signature_delta") else None

    def _stray(self, here: _Block | None, kind: _Kind) -> _Block:
        """A block of its own for deltas that name a block of another kind, or none that was started."""
        self._note(Quirk.INDEX_SHIFTED)
        key = (here.number if here is not None else -1, kind)
        block = self._strays.get(key)
        if block is None:
            block = self._strays[key] = self._new_block(kind)
            block.start = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
        return block

    def _argument(self, here: _Block | None, value: Any, data: bytes | None) -> list[Delta]:
        """Argument text: of the named call, else of the one started last."""
        if value is None or value == "" or value == []:
            return []
        is_object = not isinstance(value, str)
        text = _source(data, ("delta", "partial_json")) if is_object else value
        if here is None or here.kind != "call":
            self._note(Quirk.INDEX_SHIFTED)
            if not self._calls:
                self._calls.append(self._new_block("call"))
            here = self._calls[-1]
        first = not here.begun
        here.begun = True
        if first and here.input != "{}":
            self._note(Quirk.ARGS_REPEATED)
        return [CallDelta(0, key=here.number, arguments=text, is_object=is_object, final=first and here.told)]

    def _input(self, here: _Block) -> list[Delta]:
        """The input that a call's start gave, where no argument text came."""
        if here.begun or here.told:
            return []
        here.told = True
        return [CallDelta(0, key=here.number, arguments=here.input, quiet=True)]

    def _of_block(self, here: _Block, delta: dict[str, Any], event: dict[str, Any], raw: bytes | None) -> list[Delta]:
        """A piece of this block; `raw` is the payload if it may go on as it came."""
        field = _PROSE.get(str(delta.get("type")))
        if field is None:
            if not _has_its_field(delta):
                self._note(Quirk.FOREIGN_EVENT)
                return []
            piece = self._piece(here)
            piece.delta = delta
            piece.top_extra = event
            return [piece]
        text = delta.get(field)
        if not isinstance(text, str) or not text:
            if text:
                self._note(Quirk.FOREIGN_EVENT)
            return []
        came = text
        if self._halves or not text.isascii():
            text = self._whole_characters(here, text)
            if not text:
                return []
        piece = self._piece(here)
        if field == "text":
            piece.text = text
            self._visible = self._visible or not text.isspace()
        else:
            piece.reasoning = text
        if len(delta) > 2:
            piece.delta = {k: v for k, v in delta.items() if k not in ("type", field) and k not in _PADDING}
        piece.top_extra = event
        if self._verbatim and raw is not None and not event and text == came and (self._visible or field != "text"):
            piece.raw = raw if _is_plain(raw) else None
        return [piece]

    def _piece(self, here: _Block) -> Piece:
        piece = Piece(0, choice_extra={"block": here.number})
        if here.kind != "text":
            piece.order = here.number
        if here.start is not None:
            piece.choice_extra["start"] = here.start
            here.start = None
        return piece

    def _lone_half(self, here: _Block) -> Piece:
        piece = self._piece(here)
        if here.kind == "text":
            piece.text = "\ufffd"
        else:
            piece.reasoning = "\ufffd"
        return piece

    def _whole_characters(self, here: _Block, text: str) -> str:
        """`text` with halves of characters joined; a high half at its end waits for the block's next text."""
        _, waiting = self._halves.pop(here.number, (here, ""))
        if waiting:
            text = waiting + text
            if "\udc00" <= text[1:2] <= "\udfff":
                self._note(Quirk.SURROGATES_SPLIT)
        if "\ud800" <= text[-1:] <= "\udbff":
            self._halves[here.number] = (here, text[-1])
            text = text[:-1]
        return join_surrogates(text)

    # --- usage and the end -------------------------------------------------------------------------------------

    def _add_usage(self, usage: Any) -> None:
        """Counts are cumulative: what comes later stands for what came before."""
        if isinstance(usage, dict):
            self._usage |= {k: v for k, v in usage.items() if v is not None or k not in self._usage}
            self._usage_told = not self._usage

    def _untold(self) -> list[Delta]:
        """Calls without argument text whose block was never stopped, and the usage so far."""
        out = [delta for call in self._calls for delta in self._input(call)]
        if not self._usage_told:
            self._usage_told = True
            out.append(UsageDelta(dict(self._usage), counts_of(self._usage)))
        return out


def counts_of(usage: dict[str, Any]) -> Usage:
    """This dialect counts what was read from or written to a cache apart from `input_tokens`."""
    read, written = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    return Usage(
        (_count(usage.get("input_tokens")) or 0) + (read or 0) + (written or 0),
        _count(usage.get("output_tokens")) or 0,
        read,
        written,
    )


def failure_of(document: Any) -> Failed | None:
    """The error that a JSON value is (the body of an error status, or bytes left over behind the events), or None."""
    if isinstance(document, list) and document:
        document = document[0]
    return _failure(document) if isinstance(document, dict) else None


def _failure(document: dict[str, Any]) -> Failed | None:
    error = document.get("error")
    if isinstance(error, dict) and error:
        code = error.get("code") or error.get("type")
        return Failed(_message_of(error) or "the upstream reported an error", str(code) if code else None, error)
    if isinstance(error, str) and error:
        return Failed(error)
    if document.get("type") == "error" or "detail" in document:
        return Failed(_message_of(document) or "the upstream reported an error")
    return None


def _message_of(document: dict[str, Any]) -> str:
    return next((v for k in ("message", "detail") if isinstance(v := document.get(k), str) and v), "")


def _is_plain(payload: bytes) -> bool:
    """Whether no parser can read anything else in `payload`: escapes and doubled keys could hide a call from ours, and
    a report that is not ours goes."""
    marked = any(mark in payload for mark in (b"\\u", b"partial_json", b"\n", b'"wholecall"'))
    return not marked and is_utf8(payload)


def _source(data: bytes | None, path: tuple[str | int, ...]) -> str:
    """A value's own characters: a dump would lose long integers and doubled keys."""
    span = value_span(decode(data)[0], path) if data is not None else None
    if span is None:
        raise BadEvent("arguments that are no text, in an event that is not one document")
    return span


def _type_of_delta(delta: dict[str, Any]) -> str | None:
    return next((kind for field, kind in _DELTAS.items() if delta.get(field) is not None), None)


def _is_reply(document: Any) -> bool:
    is_message = isinstance(document, dict) and document.get("type") == "message"
    return is_message and bool(document.get("content") or document.get("stop_reason"))


def _is_regular(document: Any) -> bool:
    """Whether a whole message is as typed clients read it, so that nothing in it has to be written anew."""
    if not isinstance(document, dict) or [document.get(key) for key in ("type", "role")] != ["message", "assistant"]:
        return False
    if not all(isinstance(document.get(key), str) for key in ("id", "model", "stop_reason")):
        return False
    usage, content = document.get("usage"), document.get("content")
    if not isinstance(usage, dict) or None in (_count(usage.get("input_tokens")), _count(usage.get("output_tokens"))):
        return False
    return "stop_sequence" in document and isinstance(content, list) and all(map(_is_block, content))


def _is_block(block: Any) -> bool:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return False
    kind = block["type"]
    if kind == "text":
        return isinstance(block.get(kind), str) and bool(block[kind] or block.get("citations"))
    return kind != "thinking" or isinstance(block.get(kind), str)


def _has_its_field(delta: dict[str, Any]) -> bool:
    """Whether a delta has what clients read of its type; of a type that is not known, whatever it has."""
    match delta.get("type"):
        case "signature_delta":
            return isinstance(delta.get("signature"), str)
        case "citations_delta":
            return isinstance(delta.get("citation"), dict)
    return True


def _type_of_block(block: dict[str, Any]) -> str | None:
    if isinstance(block.get("name"), str) and block["name"] and ("input" in block or "id" in block):
        return "tool_use"
    return next((field for field in ("text", "thinking") if isinstance(block.get(field), str)), None)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _without(fields: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in names}


def _event_fields(document: dict[str, Any], *known: str) -> dict[str, Any]:
    """`{"event": ...}` with an event's fields that are none of the format's own; nothing where there are none."""
    if len(document) <= len(known) + 1:
        return {}
    left = {k: v for k, v in document.items() if k != "type" and k not in known and k not in _PADDING}
    return {"event": left} if left else {}
