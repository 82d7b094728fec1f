"""The whole machine of one request: bytes of an upstream's reply in, commands out. Sans-I/O (floor 5).

Theory of operation. An exchange is in one of five states:

    waiting    no answer of an upstream is open (at the start, and after an attempt of which nothing was used failed)
    reading    an answer is coming in. Text and reasoning are sent at once; calls, blank text before them, finish
               reasons and usage are held. Proof of the end (a finish reason, a final event, a whole document) is
               noted; a final event concludes at once, a mere finish reason once `settle_s` brought nothing more
    refused    an error status is coming in: its body is collected (bounded)
    checking   the reply has ended and the checks of its calls are out; nothing is released before they are back
    over       `Finish` was given

A reply with faulty calls can be followed by further turns (`policy.reask`): the exchange waits again after `Ask`, and
what it opens then is a turn of which only the calls count. The client sees one reply: the first one's text and end,
the calls that were judged valid in any turn, and the sum of the usage. A turn that fails leaves the calls as they were.

Without proof of the end a reply is cut: every call is `incomplete`, however whole it looks, and the reply fails.
A failure of which nothing was used gives `Retry`; the shell then opens another attempt or abandons the exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from proxy.assembly.identity import give_id
from proxy.assembly.live import LiveCall
from proxy.assembly.names import declared_name
from proxy.assembly.slots import HeldCall, Slots
from proxy.assembly.text import TextMemory
from proxy.checks.screen import screen
from proxy.dialects import CLIENT_DIALECTS, UPSTREAM_DIALECTS
from proxy.dialects.base import BadEvent, Decoder, Encoder, Envelope, Framing
from proxy.dialects.markup import AUTO, Rule
from proxy.faults import Fault, FaultKind, limit_fault
from proxy.model.calls import CallCheck, CallError, CheckResult, JudgedCall, Verdict
from proxy.model.commands import Ask, Check, Command, Finish, Record, Retry, Send, Start, Stop
from proxy.model.deltas import FINISH_WORDS, CallDelta, Delta, Done, Failed, FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.model.requests import Request
from proxy.policy import upstream_faults
from proxy.policy.reask import REQUIRED, answer, correctable, merge
from proxy.policy.recovery import Leaks, Recovery
from proxy.policy.report import Annotations, report
from proxy.policy.rules import BlockAs, Mode, blocked, decide
from proxy.wire.body import BodyReader
from proxy.wire.encoding import Inflater, inflater
from proxy.wire.jsondoc import dump, join_surrogates
from proxy.wire.sse import Frame

_ERROR_BODY_LIMIT = 65_536  # bytes of an error status' body that are read
# A document with one of these is written anew: a report or an error that is not ours, or what another parser, with
# another view of doubled or escaped keys, could read as a call.
_NOT_VERBATIM = (b'"wholecall"', b'"error"', b"_call", b"tool_use", b"\\u00")
_KEEPALIVE = b": wholecall\n\n"
_STREAM_HEADERS = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # nginx would buffer the stream
)
_JSON_HEADERS = (("content-type", "application/json"),)


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """What configuration decides about an exchange. Bytes and seconds; `config/wholecall.toml` explains each key."""

    mode: Mode = "block"
    block_as: BlockAs = "error"
    delivery: Literal["held", "live"] = "held"
    annotations: Annotations = "problems"
    report_bytes: int = 4096
    repair: bool = True
    recover: tuple[str, ...] = AUTO
    reask: int = 0
    reask_s: float = 60.0
    reask_tokens: int = 32_768
    formats: bool = False
    skip_uncompilable: bool = False
    max_event_bytes: int = 4_194_304
    max_arguments_bytes: int = 4_194_304
    max_held_bytes: int = 8_388_608
    max_calls: int = 128
    max_events: int = 1_000_000
    max_reply_bytes: int = 134_217_728
    settle_s: float = 0.3
    keepalive_s: float = 10.0


@dataclass(slots=True)
class _Choice:
    """One choice of the reply so far."""

    slots: Slots
    blank: list[Piece] = field(default_factory=list)  # white space before any visible text
    behind: list[Piece] = field(default_factory=list)  # what followed a live call, for clients that read in order
    late: list[Piece] = field(default_factory=list)  # blocks other than text that followed a held call
    visible: bool = False
    finish: FinishDelta | None = None
    text: TextMemory = field(default_factory=TextMemory)
    leaks: Leaks | None = None
    recovered: list[HeldCall] = field(default_factory=list)
    source: Piece | None = None  # the text that weak calls were found in

    def follows_a_call(self, order: int) -> bool:
        return any(call.key is not None and call.key < order for call in self.slots.calls)


class _Reply:
    """What came of one upstream reply."""

    def __init__(self, body: BodyReader) -> None:
        self.body = body
        self.choices: dict[int, _Choice] = {}
        self.quirks: list[Quirk] = []
        self.usage: UsageDelta | None = None
        self.document: bytes | None = None  # a whole body, as it came
        self.pending: list[Piece] = []  # pieces without model output, before the first that has some
        self.said: list[str] = []  # its text, where the model may be asked again


_State = Literal["waiting", "reading", "refused", "checking", "over"]


class Exchange:
    """One request. `seed` is a text unique to it (made ids derive from it), `created` the unix time in seconds.

    Every input takes `now`, the shell's clock in seconds, and gives the commands to carry out, in order.
    """

    def __init__(self, request: Request, settings: ExchangeSettings, *, seed: str, created: int) -> None:
        self.started = False
        self.used = False
        self.record = Record()
        self._request = request
        self._settings = settings
        self._seed = seed
        self._client = CLIENT_DIALECTS[request.dialect]
        self._created = created
        self._encoder = self._new_encoder(request.dialect)
        self._state: _State = "waiting"
        self._out: list[bytes] = []
        self._sent_at = 0.0
        self._turn = 0  # of the model: how often it was asked again
        self._asked = request  # what it was asked last
        self._first: _Reply | None = None  # the reply of the first turn, once there are others
        self._kept: list[JudgedCall] = []  # calls of earlier turns that were judged valid
        self._before: list[JudgedCall] = []  # the calls as they stood before this turn
        self._began_at = 0.0
        self._reset_reply("events")

    def _new_encoder(self, dialect: str) -> Encoder:
        about = (self._request, self._seed, self._created, self._upstream_envelope, dialect)
        return self._client.encoder(*about)

    def _reset_reply(self, framing: Framing) -> None:
        limits = self._settings
        self._reply = _Reply(BodyReader(limits.max_event_bytes, limits.max_held_bytes, self._note, framing))
        self._decoder: Decoder | None = None
        self._dialect = ""
        self._own_key = True
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._inflater: Inflater | None = None
        self._done_seen = False
        self._whole_seen = False
        self._data_at = 0.0
        self._calls = 0
        self._flowing = self._turn > 0  # model output was given to the encoder
        self._holding = self._turn > 0
        self._held_bytes = 0
        self._events = 0
        self._bytes = 0
        self._error_body = bytearray()
        self._judged: list[JudgedCall] = []
        self._held: list[HeldCall] = []  # the same calls as they came
        self._comments_sent = 0
        self._live: LiveCall | None = None
        self._live_call: JudgedCall | None = None
        self._recovery: Recovery | None = None

    # --- inputs ------------------------------------------------------------------------------------------------

    def opened(
        self,
        status: int,
        headers: Mapping[str, str],
        now: float,
        *,
        dialect: str = "openai-chat",
        own_key: bool = True,
        settings: ExchangeSettings | None = None,
        quirks: Sequence[Quirk] = (),
    ) -> list[Command]:
        """An upstream answered with this head (lower-case header names).

        `own_key`: it was asked with a configured credential, so that its 401 or 403 is not the client's fault.
        `settings`: those of this backend. `quirks`: of the request as it was written for this backend.
        """
        assert self._state == "waiting"
        if settings is not None:
            self._settings = settings
        self._reset_reply(UPSTREAM_DIALECTS[dialect].framing if self._request.stream else "events")
        self._reply.quirks += quirks
        self._dialect = dialect
        self._own_key = own_key
        self._status = status
        self._headers = headers
        self._sent_at = self._data_at = now
        self._decoder = UPSTREAM_DIALECTS[dialect].decoder(self._request, self._note)
        if self._turn == 0:
            self._began_at = now
            if not self.started:
                self._encoder = self._new_encoder(dialect)
        if Recovery.wanted(self._request, self._settings.recover):
            self._recovery = Recovery(self._request, dialect, self._settings.recover, self._settings.max_held_bytes)
        self._state = "reading" if 200 <= status < 300 else "refused"
        try:
            self._inflater = inflater(headers.get("content-encoding", ""), self._settings.max_reply_bytes)
        except Fault as fault:
            return self._fail(fault, now)
        return []

    def receive(self, data: bytes, now: float) -> list[Command]:
        """Body bytes as they came (content-encoding is undone here, bounded)."""
        if self._state == "refused":
            self._collect(data)
            return []
        if self._state != "reading":
            return []
        try:
            if self._inflater is None:
                ended = self._read(data, now)
            else:
                ended = False
                for piece in self._inflater.feed(data):
                    ended = ended or self._read(piece, now)
        except Fault as fault:
            return self._fail(fault, now)
        if ended:
            return [*self._conclude(now)]
        return self._flush(now)

    def ended(self, now: float) -> list[Command]:
        """The upstream's body ended cleanly."""
        if self._state == "refused":
            return self._fail(self._refusal(), now)
        if self._state != "reading":
            return []
        try:
            if self._inflater is not None and not self._inflater.complete and not self._proof and self._bytes:
                raise Fault(FaultKind.STREAM_CUT, "the upstream's compressed body ended too early")
            ended = self._close(now)
        except Fault as fault:
            return self._fail(fault, now)
        if ended or self._proof:
            if not self._done_seen and self._reply.body.kind == "events":
                self._note(Quirk.DONE_MISSING)
            return self._conclude(now)
        return self._fail(self._cut(), now)

    def broken(self, fault: Fault, now: float) -> list[Command]:
        """The attempt ended without a proper end: no connection, a reset, a deadline. After proof it does no harm."""
        if self._state == "reading" and self._proof and self._reply.body.streamed:
            self._note(Quirk.RESET_AFTER_END)
            return self._conclude(now)
        if self._state == "refused" and fault.kind is FaultKind.STREAM_CUT:
            return self._fail(self._refusal(), now)
        if self._state in ("waiting", "reading", "refused"):
            return self._fail(fault, now)
        return []

    @property
    def data_at(self) -> float:
        """When the upstream last sent an event that said something; comments are none."""
        return self._data_at

    @property
    def deadline(self) -> float | None:
        """When `tick` is wanted next; None: not at all."""
        if self._state == "waiting" and self._turn and self._request.stream:
            return self._sent_at + self._settings.keepalive_s
        if self._state == "reading":
            keepalive = self._sent_at + self._settings.keepalive_s if self._keeps_alive() else None
            if self._settles():
                settle = self._data_at + self._settings.settle_s
                return settle if keepalive is None else min(settle, keepalive)
            return keepalive
        return None

    def tick(self, now: float) -> list[Command]:
        """Time has passed: conclude a reply that has settled, or send a comment while something is held."""
        if self._state == "waiting" and self._turn and self._request.stream:
            self._out.append(_KEEPALIVE)
            return self._flush(now)
        if self._state != "reading":
            return []
        if self._settles() and now >= self._data_at + self._settings.settle_s:
            self._note(Quirk.DONE_MISSING)
            return [Stop(), *self._conclude(now, stop=False)]
        if self._keeps_alive() and now >= self._sent_at + self._settings.keepalive_s:
            self._comments_sent = self._reply.body.comments
            self._release_pending()
            self._out.append(_KEEPALIVE)
            return self._flush(now)
        return []

    def checked(self, results: Sequence[CheckResult], now: float) -> list[Command]:
        """The answers to a `Check`, in any order."""
        assert self._state == "checking"
        for result in results:
            call = self._judged[result.key]
            call.verdict = result.verdict
            call.text = result.text
            call.quirks += [quirk for quirk in result.quirks if quirk not in call.quirks]
            call.repairs = list(result.repairs)
            call.error = result.error
            if call.begun:
                self._check_live(call)
        return self._release(now)

    def _check_live(self, call: JudgedCall) -> None:
        """A mend that would change characters which were already sent is not made."""
        assert self._live is not None
        changed = self._live.held.renamed or not call.text.startswith(self._live.text)
        if call.verdict is not Verdict.INVALID_JSON and changed:
            call.verdict = Verdict.INVALID_JSON
            call.error = CallError("", "sent_before", "the arguments were sent as they came, and are no JSON as such")
            call.text = join_surrogates(self._live.held.text)

    def abandon(self, fault: Fault, now: float) -> list[Command]:
        """End with this error: before the first byte as an HTTP status, after it in-band."""
        if self._state == "over":
            return []
        if self._turn:
            self._judged = self._before
        elif not self._judged:
            self._judge_unfinished()
        return self._error(fault, now)

    def gone(self, now: float) -> list[Command]:
        """The client left."""
        if self._state == "over":
            return []
        self._state = "over"
        self.record.outcome = "gone"
        return self._finished(now)

    # --- reading -----------------------------------------------------------------------------------------------

    def _read(self, data: bytes, now: float) -> bool:
        """Take in decoded body bytes; True where the reply ended in them. Raises Fault."""
        self._bytes += len(data)
        if self._bytes > self._settings.max_reply_bytes:
            raise limit_fault("max_reply_bytes", self._settings.max_reply_bytes, "the upstream's reply")
        return self._frames(self._reply.body.feed(data), now)

    def _frames(self, frames: list[Frame], now: float) -> bool:
        decoder = self._decoder
        assert decoder is not None
        for frame in frames:
            self._events += 1
            if self._events > self._settings.max_events:
                raise limit_fault("max_events", self._settings.max_events, "the number of events in the reply")
            try:
                deltas = decoder.feed(frame)
            except BadEvent as error:
                raise Fault(FaultKind.BAD_EVENT, f"event {self._events} of the reply is broken: {error}") from None
            if deltas:
                self._data_at = now
                if len(deltas) == 1 and self._passes(deltas[0]):
                    continue
                if self._deltas(deltas, now):
                    return True
        return False

    def _passes(self, delta: Delta) -> bool:
        """The short way of what most events are: visible text that goes out verbatim. True where it took it."""
        if type(delta) is not Piece or delta.raw is None or not delta.text or not self._flowing:
            return False
        choice = self._reply.choices.get(delta.choice)
        if choice is None or not choice.visible or self._turn or self._encoder.ordered:
            return False
        if choice.leaks is not None and not choice.leaks.passes(delta):
            return False
        if self._request.tools:
            choice.text.add(delta.text)
        if self._settings.reask:
            self._reply.said.append(delta.text)
        self._out.append(self._encoder.piece(delta))
        return True

    def _close(self, now: float) -> bool:
        """The body has ended: what was pending counts if it parses. True where the reply ended in it."""
        decoder = self._decoder
        assert decoder is not None
        frames = self._reply.body.close()
        if self._reply.body.kind == "page":
            page = frames[0].data if frames else b""
            raise upstream_faults.page(page)
        if self._reply.body.kind == "document":
            self._document_body(frames[0], now)
            return self._done_seen
        for frame in frames:
            try:
                deltas = decoder.feed(frame)
            except BadEvent:
                if self._proof:
                    return True  # cut after the end was confirmed: it does no more harm than a reset there
                raise self._leftover(frame.data) from None
            if self._reply.body.kind == "events":  # the last line needs no end
                self._note(Quirk.EVENT_UNTERMINATED)
            if self._deltas(deltas, now):
                return True
        return self._deltas(decoder.close(), now)

    def _document_body(self, frame: Frame, now: float) -> None:
        decoder = self._decoder
        assert decoder is not None
        if self._request.stream:
            self._note(Quirk.JSON_FOR_STREAM)
        try:
            deltas = decoder.feed_document(frame)
        except BadEvent as error:
            raise Fault(FaultKind.STREAM_CUT, f"the upstream's JSON document is broken or cut: {error}") from None
        if decoder.alone:
            self._reply.document = frame.data
        self._events += 1
        for delta in deltas:  # one by one: a text that stands twice in a document is no repeat
            if self._deltas([delta], now):
                break
        if self._reply.choices and decoder.whole:
            self._whole_seen = True  # a plain reply: the whole document, with at least one choice

    def _deltas(self, deltas: list[Delta], now: float) -> bool:
        """Take in the deltas of one event; True where the reply ended. Raises Fault."""
        called = {d.choice for d in deltas if isinstance(d, CallDelta) and (d.call_id or d.name or d.arguments)}
        for delta in deltas:
            if isinstance(delta, Piece):
                if delta.text and delta.choice in called:
                    self._drop_repeat(delta)
                self._piece(delta)
            elif isinstance(delta, CallDelta):
                self._call(delta, now)
            elif isinstance(delta, FinishDelta):
                self._finish(delta)
            elif isinstance(delta, UsageDelta):
                if self._reply.usage is not None:
                    self._note(Quirk.USAGE_REPEATED)
                self._reply.usage = delta
            elif isinstance(delta, Failed):
                raise upstream_faults.in_band(delta, same_dialect=self._same_dialect)
            elif isinstance(delta, Done):
                self._done_seen = True
                return True
        return False

    def _choice(self, index: int) -> _Choice:
        choice = self._reply.choices.get(index)
        if choice is None:
            choice = self._reply.choices[index] = _Choice(Slots(index, self._request.tools, self._note))
            choice.leaks = Leaks(self._recovery, index) if self._recovery is not None else None
        return choice

    def _piece(self, piece: Piece) -> None:
        if piece.choice < 0:
            if not self._turn:
                self._emit(piece, output=False)
            return
        choice = self._choice(piece.choice)
        if piece.text and self._request.tools:
            choice.text.add(piece.text)
        leaks = choice.leaks
        if leaks is None:
            self._pass(choice, piece)
            return
        before = leaks.held
        for part in leaks.take(piece):
            self._pass(choice, part)
        self._hold(leaks.held - before)
        if self._calls + leaks.calls > self._settings.max_calls:
            raise limit_fault("max_calls", self._settings.max_calls, "the number of calls in the reply")

    def _pass(self, choice: _Choice, piece: Piece) -> None:
        """Text in which no call was found, and what else a piece carries."""
        if self._turn:
            # of a further turn only the calls count; its text is told to the model if it is asked once more
            if piece.choice == 0:
                self._reply.said.append(piece.text)
            return
        if self._encoder.ordered and self._held_in_order(choice, piece):
            return
        if piece.text:
            piece = self._text(choice, piece)
        self._emit(piece, output=piece.raw is not None or _is_output(piece))

    def _held_in_order(self, choice: _Choice, piece: Piece) -> bool:
        """Whether the client, which reads block after block, gets the piece behind a call that is still held."""
        if piece.order is not None and choice.follows_a_call(piece.order):
            choice.late.append(piece)
        elif self._live is not None:
            choice.behind.append(piece)
        else:
            return False
        self._hold(len(piece.text) + len(piece.reasoning))
        return True

    def _text(self, choice: _Choice, piece: Piece) -> Piece:
        """Remember the text, and hold back white space until visible text follows it."""
        if self._settings.reask:
            self._reply.said.append(piece.text)
        if choice.visible:
            return piece
        if piece.text.isspace():
            return self._hold_blank(choice, piece)
        choice.visible = True
        for blank in choice.blank:
            self._emit(blank, output=True)
        choice.blank = []
        return piece

    def _emit(self, piece: Piece, *, output: bool) -> None:
        """To the encoder; what is no model output waits for the first that is."""
        if output and not self._flowing:
            self._flowing = self.used = True
            self._release_pending()
        if self._flowing:
            self._out.append(self._encoder.piece(piece))
        elif piece.delta or piece.choice_extra or piece.top_extra:
            self._count_held(len(dump([piece.delta, piece.choice_extra, piece.top_extra])))
            self._reply.pending.append(piece)

    def _hold_blank(self, choice: _Choice, piece: Piece) -> Piece:
        """White space goes out once visible text follows it; before a call alone it is dropped."""
        choice.blank.append(Piece(piece.choice, piece.text, delta={"content": piece.delta.get("content", piece.text)}))
        self._hold(len(piece.text))
        rest = {key: value for key, value in piece.delta.items() if key != "content"}
        return replace(piece, text="", delta=rest)

    def _drop_repeat(self, piece: Piece) -> None:
        """Content that comes again as a whole, in the chat delta that carries the call, is a repeat. (Formats that mark
        their parts say a text twice only if it is meant twice.)"""
        if self._dialect != "openai-chat":
            return
        if self._choice(piece.choice).text.is_all(piece.text):
            self._note(Quirk.CONTENT_REPEATED)
            piece.text = ""
            piece.delta.pop("content", None)

    def _call(self, delta: CallDelta, now: float) -> None:
        choice = self._choice(delta.choice)
        if self.record.hold_began_at is None:
            self.record.hold_began_at = now
        self._hold(_size(delta))
        before = len(choice.slots.calls)
        call = choice.slots.feed(delta)
        if call is None:
            return
        self.used = self._holding = True
        limits = self._settings
        if choice.leaks is not None and not choice.leaks.structured_seen:
            for part in choice.leaks.structured(flush=limits.delivery == "live"):
                self._pass(choice, part)
        if delta.arguments:
            if call.size > limits.max_arguments_bytes:
                raise limit_fault("max_arguments_bytes", limits.max_arguments_bytes, "the arguments of one call")
            if choice.finish is not None:
                self._note(Quirk.FRAGMENT_AFTER_FINISH)
        if len(choice.slots.calls) > before:
            self._calls += 1
            if self._calls > limits.max_calls:
                raise limit_fault("max_calls", limits.max_calls, "the number of calls in the reply")
        if limits.delivery == "live" and self._request.stream and call.fragments:
            self._go_live(choice, call)

    def _go_live(self, choice: _Choice, call: HeldCall) -> None:
        """Send what may be sent of the reply's first call while it is written."""
        live = self._live
        if live is None:
            if self._calls > 1 or not self._may_go_live(call):
                return
            name = declared_name(call.name, self._request.tools)[0]
            live = self._live = LiveCall(call)
            text = live.grow()
            if not text:
                self._live = None
                return
            call.begun = True
            judged = self._live_call = JudgedCall(
                call.choice, 0, call.call_id, name, "function", Verdict.VALID, "", extra=call.extra, sent_index=0
            )
            judged.function_extra = call.function_extra
            self._flowing = True
            self._release_pending()
            if choice.blank:
                self._note(Quirk.BLANK_TEXT_DROPPED)
                choice.blank = []
            self._out += [self._encoder.call_head(judged), self._encoder.call_text(judged, text)]
        elif live.held is call and self._live_call is not None:
            text = live.grow()
            if text:
                self._out.append(self._encoder.call_text(self._live_call, text))

    def _may_go_live(self, call: HeldCall) -> bool:
        """Whether nothing but its arguments can speak against a call any more."""
        if not call.call_id or call.call_id in self._request.used_ids or call.whole or any(call.objects):
            return False
        name = declared_name(call.name, self._request.tools)[0]
        if screen(self._request, name, call.ordinal, unfinished=False) is not None:
            return False
        return self._request.tools[name].kind == "function"

    def _hold(self, size: int) -> None:
        """So many characters more, or less, are held."""
        if size:
            self._holding = True
            self._count_held(size)

    def _count_held(self, size: int) -> None:
        self._held_bytes += size
        if self._held_bytes > self.record.peak_held_bytes:
            self.record.peak_held_bytes = self._held_bytes
        if self._held_bytes > self._settings.max_held_bytes:
            raise limit_fault("max_held_bytes", self._settings.max_held_bytes, "what is held of the reply")

    def _finish(self, delta: FinishDelta) -> None:
        if delta.reason == "error":
            raise upstream_faults.finish_error(delta.raw)
        choice = self._choice(delta.choice)
        if delta.raw.lower() not in FINISH_WORDS:
            self._note(Quirk.FINISH_WORD)
        if choice.finish is None:
            choice.finish = delta
            return
        self._note(Quirk.FINISH_REPEATED)
        delta.choice_extra = {**choice.finish.choice_extra, **delta.choice_extra}
        delta.top_extra = {**choice.finish.top_extra, **delta.top_extra}
        if choice.finish.reason in ("length", "content_filter"):
            delta.reason, delta.raw = choice.finish.reason, choice.finish.raw
        choice.finish = delta

    @property
    def _proof(self) -> bool:
        """Whether the end was confirmed: a final event, a whole document, or a finish reason of every choice."""
        if self._done_seen or self._whole_seen:
            return True
        return bool(self._reply.choices) and all(choice.finish is not None for choice in self._reply.choices.values())

    def _settles(self) -> bool:
        """Whether nothing more is owed: where several choices were asked for, none that never came is waited for
        less than a silent upstream is."""
        return self._proof and len(self._reply.choices) >= self._request.choices

    # --- the end -----------------------------------------------------------------------------------------------

    def _conclude(self, now: float, *, stop: bool = True) -> list[Command]:
        """The reply has ended, proven: judge its calls. Nothing is released before every check has come back."""
        commands: list[Command] = [Stop()] if stop else []
        if not self._reply.choices:
            return [*commands, *self._fail(self._cut(), now)]
        unread = self._unread()
        if unread is not None:
            return [*commands, *self._fail(unread, now)]
        assert self._decoder is not None
        self._deltas(self._decoder.close(), now)
        for choice in self._reply.choices.values():
            self._close_leaks(choice)
        commands += self._flush(now)
        jobs: list[CallCheck] = []
        for judged, held in self._identify():
            reason = self._reason(judged.choice)
            in_progress = held is self._reply.choices[judged.choice].slots.current and not held.whole
            unfinished = held.unfinished or (reason in ("length", "content_filter") and in_progress)
            fault = screen(self._request, judged.name, len(self._kept) + judged.index, unfinished=unfinished)
            if fault is not None:
                judged.verdict, judged.error = fault
            elif self._request.tools[judged.name].kind == "function":
                jobs.append(self._job(len(self._judged), held, judged.name))
            self._judged.append(judged)
            self._held.append(held)
        if not self._judged and any(self._reason(index) == "unexpected_tool_call" for index in self._reply.choices):
            missing = "the upstream reports a tool call that it did not send"
            unsent = Fault(FaultKind.UPSTREAM_ERROR, missing, code="UNEXPECTED_TOOL_CALL")
            return [*commands, *self._fail(unsent, now)]
        if jobs:
            self._state = "checking"
            return [*commands, Check(tuple(jobs))]
        return [*commands, *self._release(now)]

    def _close_leaks(self, choice: _Choice) -> None:
        """The calls in a choice's text, and the text that was held for them and is none."""
        leaks, choice.leaks = choice.leaks, None
        if leaks is None:
            return
        whole = choice.finish is None or choice.finish.reason not in ("length", "content_filter")
        found = leaks.close(choice.slots.finish(), whole=whole)
        for piece in found.pieces:
            self._pass(choice, piece)
        for quirk in found.quirks:
            self._note(quirk)
        choice.recovered, choice.source = found.calls, found.source

    def _refuse_weak(self) -> None:
        """Calls in a form without markers are none if a schema refuses one of them: their text goes out."""
        refused = (Verdict.INVALID_JSON, Verdict.SCHEMA_VIOLATION)
        pairs = list(zip(self._judged, self._held, strict=True))
        bad = {call.choice for call, held in pairs if held.weak and call.verdict in refused}
        if not bad:
            return
        for index in bad:
            choice = self._reply.choices[index]
            if choice.source is not None:
                self._pass(choice, choice.source)
        assert self._recovery is not None
        self._recovery.refuse([held for call, held in pairs if held.weak and call.choice in bad], Rule.SCHEMA)
        pairs = [(call, held) for call, held in pairs if not (held.weak and call.choice in bad)]
        self._judged, self._held = [call for call, _ in pairs], [held for _, held in pairs]

    def _identify(self) -> list[tuple[JudgedCall, HeldCall]]:
        """The reply's calls with name and id towards the client; valid until something speaks against it."""
        taken = set(self._asked.used_ids)
        begun = self._live.held if self._live is not None else None
        if begun is not None:
            taken.add(begun.call_id)
        out = []
        for index in sorted(self._reply.choices):
            choice = self._reply.choices[index]
            for held in (*choice.slots.finish(), *choice.recovered):
                name = self._name(held)
                tool = self._request.tools.get(name)
                call = JudgedCall(
                    index,
                    held.ordinal,
                    join_surrogates(held.call_id if held is begun else give_id(held, self._seed, taken)),
                    join_surrogates(name),
                    tool.kind if tool else held.kind,
                    Verdict.VALID,
                    join_surrogates(held.text),
                    held.quirks,
                    extra=held.extra,
                    function_extra=held.function_extra,
                    key=held.key,
                    format=held.format,
                    begun=held is begun,
                )
                out.append((call, held))
        return out

    def _name(self, held: HeldCall) -> str:
        name, quirks = declared_name(held.name, self._request.tools)
        choice = self._request.tool_choice
        if not name.strip():
            quirks = [Quirk.NAME_MISSING]
            forced = choice.names if choice.mode == "forced" else None
            name = next(iter(forced)) if forced else ""
        for quirk in quirks:
            held.note(quirk)
        return name

    def _job(self, key: int, held: HeldCall, name: str) -> CallCheck:
        settings = self._settings
        return CallCheck(
            key,
            tuple(held.fragments),
            tuple(held.objects),
            self._request.tools[name].schema,
            repair=settings.repair and settings.delivery == "held",
            formats=settings.formats,
            skip_uncompilable=settings.skip_uncompilable,
        )

    def _reason(self, choice: int) -> str:
        finish = self._reply.choices[choice].finish
        return finish.reason if finish else "stop"

    def _release(self, now: float) -> list[Command]:
        """Every verdict of this turn is in: ask again, or deliver."""
        self._refuse_weak()
        answered = self._judged
        if self._turn:
            self._judged = merge(self._before, answered)
        faults = any(correctable(call) for call in self._judged)
        if (faults or self._lacks_a_call()) and self._may_ask(now):
            return self._ask(answered, now)
        if self._turn:
            cut = any(call.verdict is Verdict.INCOMPLETE for call in answered)
            self.record.reask = "exhausted" if faults or cut or self._lacks_a_call() else "corrected"
        return self._deliver(now)

    def _lacks_a_call(self) -> bool:
        required = self._request.tool_choice.mode in ("required", "forced")
        return required and not self._judged and self._reason(0) not in ("length", "content_filter")

    def _may_ask(self, now: float) -> bool:
        """The budgets: turns, seconds, and tokens where usage tells of them."""
        settings = self._settings
        if self._turn >= settings.reask or settings.delivery == "live" or self._request.choices != 1:
            return False
        spent = self._usage_sum()
        tokens = spent.counts.output_tokens if spent else 0
        return now < self._began_at + settings.reask_s and tokens < settings.reask_tokens

    def _ask(self, answered: Sequence[JudgedCall], now: float) -> list[Command]:
        """The assistant's turn as it came, what each of its calls is answered, and then the model's next turn."""
        text = "".join(self._reply.said)
        answers = [(call, answer(call)) for call in answered if call.verdict is not Verdict.INCOMPLETE]
        self._asked = self._client.follow_up(self._asked, text, answers, "" if answers else REQUIRED)
        self._before = self._judged
        self._kept = [call for call in self._judged if call.verdict is Verdict.VALID]
        self._keep_reply()
        self._turn += 1
        self._state = "waiting"
        self._sent_at = now
        return [*self._flush(now), Ask(self._asked)]

    def _keep_reply(self) -> None:
        """The first reply is what the client sees; of later ones usage and quirks are added to it."""
        self.record.upstream_events += self._events
        self.record.upstream_bytes += self._bytes
        self._events = self._bytes = 0
        if self._first is None:
            self._first = self._reply
        elif self._reply is not self._first:
            self._first.usage = self._usage_sum()
            self._first.quirks += [quirk for quirk in self._reply.quirks if quirk not in self._first.quirks]

    def _usage_sum(self) -> UsageDelta | None:
        first = self._first.usage if self._first is not None and self._first is not self._reply else None
        if first is None or self._reply.usage is None:
            return self._reply.usage or first
        return first.plus(self._reply.usage)

    def _deliver(self, now: float) -> list[Command]:
        """Deliver what the policy delivers, then the finish of each choice, usage, the end."""
        if self._first is not None:
            self._keep_reply()
            self._reply = self._first
        self.record.hold_ended_at = now
        cut = [index for index in self._reply.choices if self._reason(index) in ("length", "content_filter")]
        fault = decide(self._judged, self._settings.mode, self._settings.block_as, self._encoder.can_carry, cut)
        if fault is None:
            fault = self._begun_in_vain()
        if fault is not None:
            return self._error(fault, now)
        self._note_end()
        if self._reply.document is not None and self._unchanged():
            return self._whole_document(now)
        self._release_pending()
        for number, index in enumerate(sorted(self._reply.choices)):
            choice = self._reply.choices[index]
            calls = [call for call in self._judged if call.choice == index]
            if choice.blank:
                if calls:
                    self._note(Quirk.BLANK_TEXT_DROPPED)
                else:
                    self._out += [self._encoder.piece(blank) for blank in choice.blank]
            delivered = [call for call in calls if call.sent_index is not None]
            self._in_order(choice, delivered)
            reason = self._reason(index)
            if reason not in ("length", "content_filter"):
                reason = "tool_calls" if delivered else "stop"
            quirks = self._reply.quirks if number == 0 else []
            if self._reply.usage is not None and self._encoder.usage_first:
                self._out.append(self._encoder.usage(self._reply.usage))
            self._out.append(self._encoder.finish(index, reason, choice.finish, self._report(calls, quirks)))
        if self._reply.usage is not None and not self._encoder.usage_first and self._wants_usage():
            self._out.append(self._encoder.usage(self._reply.usage))
        self._out.append(self._encoder.done())
        self._state = "over"
        return [*self._flush(now), *self._finished(now)]

    def _begun_in_vain(self) -> Fault | None:
        """A live call that is not delivered after all ends the reply in an error, also at an honest `length`."""
        lost = [call for call in self._judged if call.begun and call.sent_index is None]
        return blocked(lost) if lost else None

    def _wants_usage(self) -> bool:
        return self._request.include_usage or not self._request.stream

    def _in_order(self, choice: _Choice, calls: Sequence[JudgedCall]) -> None:
        """The delivered calls, each behind the blocks that came before it."""
        late = choice.late
        for call in calls:
            while late and call.key is not None and (late[0].order or 0) < call.key:
                self._out.append(self._encoder.piece(late.pop(0)))
            if self._live is not None and call.begun:
                rest = call.text[len(self._live.text) :]
            else:
                self._out.append(self._encoder.call_head(call))
                rest = call.text
            self._out += [self._encoder.call_text(call, rest), self._encoder.call_end(call)]
            if choice.behind:
                self._out += [self._encoder.piece(piece) for piece in choice.behind]
                choice.behind = []
        self._out += [self._encoder.piece(piece) for piece in late]

    def _note_end(self) -> None:
        """What was odd about the end as a whole."""
        if self._reply.body.kind == "events" and not self._request.stream:
            self._note(Quirk.STREAM_FOR_JSON)
        for index, choice in self._reply.choices.items():
            called = any(call.choice == index and not call.format for call in self._judged)
            if choice.finish is None:
                self._note(Quirk.FINISH_MISSING)
            elif choice.finish.reason in ("stop", "tool_calls") and (choice.finish.reason == "tool_calls") != called:
                self._note(Quirk.FINISH_WRONG)
        if self._request.tool_choice.mode in ("required", "forced") and not self._judged:
            self._note(Quirk.REQUIRED_CALL_MISSING)
        spent = self._reply.usage.counts if self._reply.usage else Usage()
        if spent.output_tokens - (spent.reasoning or 0) > 1 and not self._flowing and not self._judged:
            self._note(Quirk.TOKENS_WITHOUT_OUTPUT)

    def _unchanged(self) -> bool:
        """Whether a whole document may go out as it came: same dialect, no call, nothing mended or reported."""
        if self._request.stream or not self._same_dialect or self._judged or self._reply.quirks:
            return False
        if any(c.blank or c.finish is None for c in self._reply.choices.values()):
            return False
        document = self._reply.document or b""
        if any(sign in document for sign in _NOT_VERBATIM):
            return False
        return self._settings.annotations != "always"

    def _whole_document(self, now: float) -> list[Command]:
        assert self._reply.document is not None
        self._out.append(self._reply.document)
        self._state = "over"
        return [*self._flush(now), *self._finished(now)]

    def _report(self, calls: Sequence[JudgedCall], quirks: Sequence[Quirk]) -> dict[str, Any] | None:
        settings = self._settings
        found = report(calls, quirks, settings.annotations, settings.report_bytes, asked=self._turn)
        if found is not None and self._turn:
            found["reask"] = {"turns": self._turn, "outcome": self.record.reask or "failed"}
        return found

    # --- failure -----------------------------------------------------------------------------------------------

    def _fail(self, fault: Fault, now: float) -> list[Command]:
        """This attempt's answer is no answer."""
        self._judge_unfinished()
        if self._turn:
            self.record.reask = "failed"
            self._judged = self._before
            return self._deliver(now)
        if not self.used and not self.started:
            self._state = "waiting"
            return [Retry(fault, fault.is_transient)]
        return self._error(fault, now)

    def _judge_unfinished(self) -> None:
        """Without proof of the end every call is incomplete, however whole it looks."""
        if self._judged or not self._reply.choices or self._turn:
            return
        for call, _ in self._identify():
            call.verdict = Verdict.INCOMPLETE
            call.error = CallError("", "incomplete", "the reply ended before this call was finished")
            self._judged.append(call)

    def _error(self, fault: Fault, now: float) -> list[Command]:
        if not self._turn:
            for choice in self._reply.choices.values():
                leaks, choice.leaks = choice.leaks, None
                for piece in leaks.release() if leaks is not None else ():
                    self._pass(choice, piece)
        for call in self._judged:
            call.sent_index = None
        self.record.outcome = "blocked" if fault.kind is FaultKind.BLOCKED else "error"
        self.record.code = fault.public_code
        found = self._report(self._judged, self._reply.quirks) if self._judged or self._reply.quirks else None
        started = self.started or (self._request.stream and bool(self._out))
        self._state = "over"
        if started:
            self._out.append(self._encoder.error(fault, found))
            return [*self._flush(now), *self._finished(now)]
        self.started = True
        self._out.clear()
        self.record.status = fault.public_status
        body = self._client.error_body(fault, found)
        return [Start(fault.public_status, (*_JSON_HEADERS, *fault.headers)), Send(body), *self._finished(now)]

    def _cut(self) -> Fault:
        """The body ended without proof of the end: what was left over may say why."""
        leftover = self._reply.body.leftover.strip()
        if leftover:
            return self._leftover(leftover)
        if not self._reply.choices:
            what = (
                "events but no output" if self._events else "comments only" if self._reply.body.comments else "nothing"
            )
            return Fault(FaultKind.EMPTY_REPLY, f"the upstream answered with status {self._status} and {what}")
        return Fault(FaultKind.STREAM_CUT, "the upstream's reply ended without a finish_reason or a final event")

    def _unread(self) -> Fault | None:
        """What lines between the events that are no events come to: an error that the upstream wrote there, or an
        event whose `data:` was lost, which may have held a call. Other lines are nothing, as the standard says."""
        lines = self._reply.body.leftover.strip()
        if not lines:
            return None
        fault = self._leftover(lines)
        if fault.kind is FaultKind.UPSTREAM_ERROR:
            return fault
        if b"{" in lines:
            return Fault(FaultKind.BAD_EVENT, "a line of the upstream's stream holds JSON but is no event")
        return None

    def _leftover(self, data: bytes) -> Fault:
        return upstream_faults.leftover(data, self._failure_of, same_dialect=self._same_dialect)

    def _collect(self, data: bytes) -> None:
        if self._inflater is not None:
            try:
                data = b"".join(self._inflater.feed(data))
            except Fault:
                return  # the status alone will be told
        room = _ERROR_BODY_LIMIT - len(self._error_body)
        self._error_body += data[:room]

    def _refusal(self) -> Fault:
        return upstream_faults.refusal(
            self._status,
            self._headers,
            bytes(self._error_body),
            self._failure_of,
            own_key=self._own_key,
            same_dialect=self._same_dialect,
        )

    @property
    def _failure_of(self) -> Callable[[Any], Failed | None]:
        return UPSTREAM_DIALECTS[self._dialect].failure

    @property
    def _same_dialect(self) -> bool:
        return self._dialect == self._request.dialect

    # --- output ------------------------------------------------------------------------------------------------

    def _note(self, quirk: Quirk) -> None:
        if quirk not in self._reply.quirks:
            self._reply.quirks.append(quirk)

    def _upstream_envelope(self) -> Envelope | None:
        return self._decoder.envelope if self._decoder is not None else None

    def _keeps_alive(self) -> bool:
        """Whether silence is ours: something is held, or the upstream itself has shown life by comments."""
        if not self._request.stream:
            return False
        return self._holding or self._reply.body.comments > self._comments_sent

    def _release_pending(self) -> None:
        for piece in self._reply.pending:
            self._out.append(self._encoder.piece(piece))
        self._reply.pending.clear()

    def _flush(self, now: float) -> list[Command]:
        """What is ready to go, as one send; the head before the first."""
        if not self._out:
            return []
        data = b"".join(self._out) if len(self._out) > 1 else self._out[0]
        self._out.clear()
        if not data:
            return []
        self._sent_at = now
        self.used = True
        if self.record.first_output_at is None:
            self.record.first_output_at = now
        if self.started:
            return [Send(data)]
        self.started = True
        self.record.status = 200
        return [Start(200, _STREAM_HEADERS if self._request.stream else _JSON_HEADERS), Send(data)]

    def _finished(self, now: float) -> list[Command]:
        record = self.record
        record.verdicts = [call.verdict for call in self._judged]
        record.quirks = [*self._reply.quirks, *(quirk for call in self._judged for quirk in call.quirks)]
        record.repairs = [name for call in self._judged for name in call.repairs]
        record.recovered = [call.format for call in self._judged if call.format]
        record.refused = dict(self._recovery.refusals) if self._recovery is not None else {}
        record.usage = dict(self._reply.usage.usage) if self._reply.usage else None
        record.upstream_events += self._events
        record.upstream_bytes += self._bytes
        if record.hold_began_at is not None and record.hold_ended_at is None:
            record.hold_ended_at = now
        return [Finish(record)]


def _size(delta: CallDelta) -> int:
    """What a delta adds to what is held, in characters."""
    size = len(delta.arguments or "") + len(delta.call_id or "") + len(delta.name or "")
    for extra in (delta.extra, delta.function_extra):
        size += len(dump(extra)) if extra else 0
    return size


def _is_output(piece: Piece) -> bool:
    """Whether a piece is model output: anything in its delta but the role."""
    return bool(piece.text or piece.reasoning or piece.refusal or any(key != "role" for key in piece.delta))
