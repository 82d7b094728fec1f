"""What the exchange asks of a dialect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from proxy.dialects.stencils import Stencils
from proxy.faults import Fault, FaultKind
from proxy.model.calls import JudgedCall
from proxy.model.conversation import Conversation
from proxy.model.deltas import Delta, Done, Failed, FinishDelta, Piece, UsageDelta
from proxy.model.findings import Quirk
from proxy.model.requests import Request
from proxy.wire.jsondoc import NotJson, decode, documents, dump, leading_documents, load
from proxy.wire.jsonscan import items
from proxy.wire.sse import Frame, SseDecoder


class BadEvent(Exception):
    """An event that is no JSON: it may have held argument text, so that nothing after it can be trusted."""


# Choices, or calls, of one event: each costs some microseconds, though it may say nothing.
MAX_ENTRIES = 4096


def check_number(entries: Sequence[Any], what: str) -> None:
    """Raises BadEvent for more than any reply has."""
    if len(entries) > MAX_ENTRIES:
        raise BadEvent(f"more than {MAX_ENTRIES} {what}")


Framing = Literal["events", "lines", "array"]
Note = Callable[[Quirk], None]
Envelope = tuple[str, int, str]  # the reply's id, created (unix seconds) and model


class Decoder(Protocol):
    """Frames of one upstream reply -> deltas. Both feeds raise BadEvent.

    `whole`: a plain reply was read, which proves the end by itself; JSON lines of a stream don't. `alone`: it was all
    of the body, so that it may be passed on as it came. An event that fits one of `stencils` need not be fed.
    """

    envelope: Envelope | None
    whole: bool
    alone: bool
    stencils: Stencils

    def feed(self, frame: Frame) -> list[Delta]: ...
    def feed_document(self, frame: Frame) -> list[Delta]: ...
    def close(self) -> list[Delta]: ...


class Encoder(Protocol):
    """Events of one reply -> the client's bytes. Each method gives what to send now ("" bytes: nothing yet).

    Order: pieces; then per choice its calls (head, text once or more, end) and its finish; then usage, `done`. Or
    `error`, which ends the body; a call that was begun then stays without its end.
    `payloads` are those of several pieces of text (`Piece.raw`) at once; None: they have to come as pieces.
    `usage_first`: usage comes before the finish. `ordered`: the client reads blocks in order, so that a thinking or
    other block that followed a held call is held with it.
    """

    ordered: bool
    usage_first: bool

    def piece(self, piece: Piece) -> bytes: ...
    def payloads(self, choice: int, payloads: Sequence[bytes]) -> bytes | None:
        return None

    def call_head(self, call: JudgedCall) -> bytes: ...
    def call_text(self, call: JudgedCall, text: str) -> bytes: ...
    def call_end(self, call: JudgedCall) -> bytes: ...
    def finish(self, choice: int, reason: str, delta: FinishDelta | None, report: dict[str, Any] | None) -> bytes: ...
    def usage(self, delta: UsageDelta) -> bytes: ...
    def done(self) -> bytes: ...
    def error(self, fault: Fault, report: dict[str, Any] | None) -> bytes: ...
    def can_carry(self, call: JudgedCall) -> bool: ...


class Body(NamedTuple):
    """`source`: the bytes of the one document; None where there are several."""

    documents: list[Any]
    source: bytes | None
    frames: list[Frame]


def read_document(data: bytes, note: Note) -> Body:
    """A body that begins like JSON: its documents (one, or the lines of a stream), and events that follow them
    (`data: [DONE]` behind a plain reply). Raises BadEvent for anything else behind them."""
    try:
        found, quirks = documents(data)
    except NotJson:
        quirks = []
        try:
            found, data, rest = leading_documents(data)
        except NotJson as error:
            raise BadEvent(str(error)) from None
    else:
        rest = b""
    for quirk in quirks:
        note(quirk)
    source = data if len(found) == 1 else None
    if rest.strip() == b"[DONE]":
        return Body(found, source, [Frame(b"", b"[DONE]")])
    events = SseDecoder(len(rest) + 1, note)
    frames = [*events.feed(rest), *events.close()]
    events.settle()
    if events.leftover.strip():
        raise BadEvent("what follows the JSON document is neither JSON nor an event")
    return Body(found, source, frames)


def until_done(events: Iterable[list[Delta]]) -> list[Delta]:
    """The deltas of a body's events, each read only where none before it has ended the reply."""
    out: list[Delta] = []
    for deltas in events:
        out += deltas
        if any(type(delta) is Done for delta in deltas):
            break
    return out


def unwrapped(document: list[Any], source: bytes | None) -> tuple[Any, bytes | None]:
    """The one element of a list, and its own bytes: some gateways wrap their reply, or their error, in one."""
    return document[0], None if source is None else items(decode(source)[0])[0].encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class IdForm:
    """Call ids that a backend takes back: at most `length` characters of `characters` (a regular expression class)."""

    length: int
    characters: str

    def fits(self, call_id: str) -> bool:
        return 0 < len(call_id) <= self.length and re.fullmatch(f"[{self.characters}]+", call_id) is not None


@dataclass(frozen=True, slots=True)
class UpstreamDialect:
    """`decoder(request, note)` reads one reply; `failure(document)` is the error that a JSON value is, or None.

    `path(model, stream)` follows the backend's base URL; `write` gives the body for a client of the same dialect
    (None: there is none), `write_conversation` for one of another. `ids` is the form of call ids that these backends
    take back, `headers` what they want besides, `framing` how their streams are framed.
    """

    name: str
    decoder: Callable[[Request, Note], Decoder]
    failure: Callable[[Any], Failed | None]
    path: Callable[[str, bool], str]
    write: Callable[[Request, str, Note], bytes] | None
    write_conversation: Callable[[Conversation, str], bytes]
    ids: IdForm
    headers: tuple[tuple[str, str], ...] = ()
    framing: Framing = "events"


@dataclass(frozen=True, slots=True)
class ClientDialect:
    """`follow_up(request, text, answers, message)` is the request with the assistant's turn added (its text, and its
    calls with what each is answered) and then, where `message` is not empty, a user's message.

    `encoder(request, seed, created, envelope, upstream_dialect)` writes one reply, streamed or plain as the request
    asks; only where the upstream speaks the same dialect does it use more of a piece than text and reasoning."""

    name: str
    read: Callable[[bytes], Request]
    conversation: Callable[[Request], Conversation]
    follow_up: Callable[[Request, str, Sequence[tuple[JudgedCall, str]], str], Request]
    encoder: Callable[[Request, str, int, Callable[[], Envelope | None], str], Encoder]
    error_body: Callable[[Fault, dict[str, Any] | None], bytes]


def error_object(fault: Fault) -> dict[str, Any]:
    """`{"message", "type", "param", "code"}`: the form that chat and Responses share. An upstream's own object keeps
    every field it came with; clients need a message, and a type or a code, so that what is missing is added."""
    own = fault.error
    if own is not None:
        whole = dict(own)
        if not isinstance(own.get("message"), str) or not own["message"]:
            whole["message"] = fault.detail
        if not own.get("type") and not own.get("code"):
            whole |= {"type": fault.kind.value.type, "code": fault.public_code}
        return whole
    return {
        "message": fault.detail,
        "type": fault.kind.value.type,
        "param": fault.param,
        "code": fault.public_code,
    }


def sequence_of(values: object) -> Sequence[Any]:
    """`values` if it is a list, else nothing: requests and replies put other things where lists belong."""
    return values if isinstance(values, list) else ()


def invalid(detail: str, param: str | None = None) -> Fault:
    """The client's request is wrong; `param` names the field."""
    return Fault(FaultKind.INVALID_REQUEST, detail, param=param)


def request_head(body: bytes) -> tuple[dict[str, Any], str, bool]:
    """What every dialect's request begins with: the document, its model, and whether a stream is asked for.

    Raises Fault (INVALID_JSON, INVALID_REQUEST).
    """
    try:
        document = load(body, strict=True)  # to take 1e400 for null would be another request
    except NotJson as error:
        raise Fault(FaultKind.INVALID_JSON, f"the request body is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid("the request body is no JSON object")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise invalid("model is missing: name the model as a string", "model")
    stream = document.get("stream")
    if not isinstance(stream, bool | None):
        raise invalid("stream is neither true nor false", "stream")
    return document, model, bool(stream)


def tool_schema(name: str, schema: Any, where: str) -> bytes | None:
    """The JSON text of a tool's schema; None where any object is welcome. Raises Fault (INVALID_TOOL_SCHEMA)."""
    if schema is None:
        return None
    if not isinstance(schema, dict):
        detail = f"tool {name[:80]!r}: {where.rpartition('.')[2]} is no JSON object"
        raise Fault(FaultKind.INVALID_TOOL_SCHEMA, detail, param=where)
    return dump(schema) if schema else None
