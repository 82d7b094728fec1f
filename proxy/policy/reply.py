"""One upstream reply: its bytes in; text and what else passes at once out to the client's encoder; calls held.

Floor 4, below the exchange, which judges the calls and decides what the client gets at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.assembly.live import LiveCall
from proxy.assembly.names import declared_name
from proxy.assembly.slots import HeldCall, Slots
from proxy.assembly.text import TextMemory
from proxy.checks.screen import screen
from proxy.dialects import UPSTREAM_DIALECTS
from proxy.dialects.base import BadEvent, Encoder, Envelope
from proxy.dialects.stencils import Stencil
from proxy.faults import Fault, FaultKind, limit_fault
from proxy.model.calls import JudgedCall, Verdict
from proxy.model.commands import Record
from proxy.model.deltas import (
    FINISH_WORDS,
    CallDelta,
    Delta,
    Done,
    Failed,
    FinishDelta,
    Piece,
    UsageDelta,
    verbatim_piece,
)
from proxy.model.findings import Quirk
from proxy.model.requests import Request
from proxy.policy import upstream_faults
from proxy.policy.recovery import Leaks, Recovery
from proxy.policy.settings import ExchangeSettings
from proxy.wire.body import BodyReader
from proxy.wire.encoding import Inflater, inflater
from proxy.wire.jsondoc import dump, one_line
from proxy.wire.sse import Frame, Overfull

_ERROR_BODY_LIMIT = 65_536  # bytes of an error status' body that are read
# Of a flow (`Reply.flow`): the bytes of a read, and how many of its texts wait to be taken note of.
_FLOW_BYTES = 4096
_FLOW_TEXTS = 64


@dataclass(slots=True)
class Choice:
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


class _Quirks(list[Quirk]):
    """What was odd about a reply, each once. Parts of it are given `note`, and so refer to this alone: in a cycle of
    references a reply would be kept, megabytes of arguments with it, until the garbage collector looks."""

    def note(self, quirk: Quirk) -> None:
        if quirk not in self:
            self.append(quirk)


class Reply:
    """What comes of one upstream reply with this head. `out` takes the client's bytes, `record` what is counted.

    `further`: the reply of a turn in which the model was asked again. Of it only the calls count.
    """

    def __init__(
        self,
        request: Request,
        settings: ExchangeSettings,
        dialect: str,
        status: int,
        headers: Mapping[str, str],
        out: list[bytes],
        record: Record,
        *,
        quirks: Sequence[Quirk] = (),
        own_key: bool = True,
        further: bool = False,
        now: float = 0.0,
    ) -> None:
        upstream = UPSTREAM_DIALECTS[dialect]
        framing = upstream.framing if request.stream else "events"
        self._request = request
        self._settings = settings
        self._dialect = dialect
        self._status = status
        self._headers = headers
        self._own_key = own_key
        self._further = further
        self._out = out
        self._record = record
        self.quirks = _Quirks(quirks)
        self.note = self.quirks.note
        self.body = BodyReader(settings.max_event_bytes, settings.max_held_bytes, self.note, framing)
        self._decoder = upstream.decoder(request, self.note)
        self._inflater: Inflater | None = None
        self._error_body = bytearray()
        self.choices: dict[int, Choice] = {}
        self.usage: UsageDelta | None = None
        self.document: bytes | None = None  # a whole body, as it came
        self.pending: list[Piece] = []  # pieces without model output, before the first that has some
        self.said: list[str] = []  # its text, where the model may be asked again
        self.data_at = now  # when an event last said something; comments say nothing
        self.events = 0
        self.bytes = 0
        self.done_seen = False
        self._whole_seen = False
        self.used = False  # model output was used: no other backend can take over
        self.flowing = further  # model output was given to the encoder
        self.holding = further
        self._held_bytes = 0
        self._over = False  # nothing more comes: what is passed on now is not held for long
        self._calls = 0
        self._run: Stencil | None = None  # what the last events fit, whose text came verbatim, until the read's end
        self._texts: list[str] = []  # of those events
        self._verbatim: list[bytes] = []  # their payloads
        self._growing: list[tuple[Stencil, Slots, HeldCall]] = []  # calls whose arguments are collected until then
        self._newest: dict[int, Stencil | None] = {}  # of the last of them, by choice
        self._flow: Stencil | None = None  # what the next read may fit as a whole, see `flow`
        self._flowed: list[str] = []  # the texts of reads that did
        self._flow_last = b""  # the last of those
        self.live: LiveCall | None = None
        self.live_call: JudgedCall | None = None
        self._not_live: HeldCall | None = None
        self.recovery: Recovery | None = None
        if Recovery.wanted(request, settings.recover):
            self.recovery = Recovery(request, dialect, settings.recover, settings.max_held_bytes)

    def open(self, encoder: Encoder) -> None:
        """Before the first byte. Raises Fault for a content-encoding that cannot be undone."""
        self._encoder = encoder
        self._inflater = inflater(self._headers.get("content-encoding", ""), self._settings.max_reply_bytes)

    @property
    def envelope(self) -> Envelope | None:
        return self._decoder.envelope

    # --- bytes -------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> bool:
        """Take in body bytes as they came; True where the reply ended in them. Raises Fault."""
        if self._inflater is None:
            return self._read(data, now)
        return any(self._read(piece, now) for piece in self._inflater.feed(data))

    def flow(self, data: bytes, now: float) -> bool:
        """The shortest way, of most reads where tokens come one by one: True where `data` is events like the last ones,
        of text that goes out now and as it came. Else it is still to be received."""
        stencil = self._flow
        if stencil is None or len(data) > _FLOW_BYTES:
            return False
        texts = stencil.texts_of(data)
        if texts is None or not (data.isascii() or one_line(data) is data):
            return False
        text = texts[0] if len(texts) == 1 else "".join(texts)
        leaks = self.choices[stencil.choice].leaks
        if leaks is not None and not leaks.is_ordinary(text):
            return False
        size, events = self.bytes + len(data), self.events + len(texts)
        if size > self._settings.max_reply_bytes or events > self._settings.max_events:
            return False
        self.bytes, self.events = size, events
        self.data_at = now
        self._flowed.append(text)
        self._flow_last = data
        if len(self._flowed) == _FLOW_TEXTS:
            self._note_flow(stencil)
        return True

    def _note_flow(self, stencil: Stencil) -> None:
        """Take note of the texts that went out in a flow."""
        texts = self._flowed
        if not texts:
            return
        payload = self._flow_last[:-2].rpartition(b"\n\n")[2][6:]
        last = verbatim_piece(stencil.choice, texts[-1], payload)
        passed = self._goes_on(self.choices[stencil.choice], last, "".join(texts))
        assert passed, "ordinary pieces make an ordinary text"
        texts.clear()

    def _end_flow(self) -> None:
        stencil, self._flow = self._flow, None
        if stencil is not None:
            self._note_flow(stencil)

    def end(self, now: float) -> bool:
        """The body ended cleanly; True where the end of the reply is confirmed. Raises Fault."""
        self._end_flow()
        if self._inflater is not None and not self._inflater.complete and not self.proof and self.bytes:
            raise Fault(FaultKind.STREAM_CUT, "the upstream's compressed body ended too early")
        return self._close(now) or self.proof

    def finish(self, now: float) -> None:
        """Nothing more comes: what was pending in the decoder and in the text."""
        self._end_flow()
        self._deltas(self._decoder.close(), now)
        for choice in self.choices.values():
            self._close_leaks(choice)
        self._over = True

    def release_text(self) -> None:
        """The reply has failed: text that was held for calls stays text."""
        self._end_flow()
        self._over = True
        for choice in self.choices.values():
            leaks, choice.leaks = choice.leaks, None
            for piece in leaks.release() if leaks is not None else ():
                self.pass_on(choice, piece)

    def _read(self, data: bytes, now: float) -> bool:
        """Take in decoded body bytes; True where the reply ended in them. Raises Fault."""
        self._end_flow()
        self.bytes += len(data)
        over = self.bytes - self._settings.max_reply_bytes
        if over > 0:
            data = data[:-over]
        payloads = self.body.payloads(data)
        if payloads is not None:
            ended = self._events(payloads, now)
        else:
            ended = self._odder(data, now)
        if over > 0 and not ended:
            raise limit_fault("max_reply_bytes", self._settings.max_reply_bytes, "the upstream's reply")
        return ended

    def _odder(self, data: bytes, now: float) -> bool:
        """Body bytes that are more than events of one line."""
        try:
            frames = self.body.feed(data)
        except Overfull as reached:
            if self._in_order(reached.frames, now):
                return True
            raise
        return self._in_order(frames, now) if self.body.odd else self._frames(frames, now)

    def _frames(self, frames: list[Frame], now: float) -> bool:
        at = 0
        while at < len(frames):
            name, end = frames[at].event, at + 1
            while not name and end < len(frames) and not frames[end].event:
                end += 1
            if self._events([frame.data for frame in frames[at:end]], now, name):
                return True
            at = end
        return False

    def _in_order(self, frames: list[Frame], now: float) -> bool:
        """Take in frames and what was odd between them, up to the one that ends the reply."""
        odd, done = self.body.odd, 0
        while odd:
            at = odd[0][0]
            if self._frames(frames[done:at], now):
                return True
            self.body.settle(at)
            done = at
        return self._frames(frames[done:], now)

    def _events(self, payloads: list[bytes], now: float, name: bytes = b"") -> bool:
        """Events in, True where the reply ended in them. The path of every upstream event: keep it short."""
        seen, limit = self.events, self._settings.max_events
        if seen + len(payloads) > limit:
            if len(payloads) > 1:
                return any(self._events([data], now, name) for data in payloads)
            raise limit_fault("max_events", limit, "the number of events in the reply")
        decoder = self._decoder
        stencils = decoder.stencils
        texts, verbatim = self._texts, self._verbatim
        size = at = 0
        while at < len(payloads):
            data = payloads[at]
            at += 1
            stencil = None if name else stencils.fit(data)
            if stencil is not None:
                text = stencils.text
                if stencil.index is not None:
                    arguments = stencil.texts
                    if arguments is None:
                        size = size or sum(map(len, payloads))
                        arguments = self._begin_growing(stencil, size)
                    if arguments is not None:
                        arguments.append(text)
                        at += stencils.collect(payloads, at)
                        self._newest[stencil.choice] = stencils.last
                        continue
                elif (stencil is self._run and not text[-1].isspace()) or self._begin_run(stencil, text):
                    texts.append(text)
                    verbatim.append(data)
                    continue
            if self._run is not None or self._growing:
                self._end_runs()
            self.events = seen + at
            self._flow = None
            if stencil is not None and stencil.index is None:  # as in a run or a flow, it goes out as it came
                deltas: list[Delta] = [verbatim_piece(stencil.choice, stencils.text, data)]
            else:
                deltas = self._parsed(Frame(name, data))
            if deltas:
                self.data_at = now
                if len(deltas) == 1 and self._passes(deltas[0]):
                    continue
                if self._deltas(deltas, now):
                    return True
        self.events = seen + len(payloads)
        if self._run is not None or self._growing:
            self.data_at = now
            self._end_runs()
        return False

    def _parsed(self, frame: Frame) -> list[Delta]:
        try:
            return self._decoder.feed(frame)
        except BadEvent as error:
            raise Fault(FaultKind.BAD_EVENT, f"event {self.events} of the reply is broken: {error}") from None

    def _begin_growing(self, stencil: Stencil, size: int) -> list[str] | None:
        """Where to collect the arguments of a held call that come in one read, of `size` bytes, in events that say
        nothing else; None where each has to be looked at: it may reach a limit, or belong to another call."""
        choice, limits = self.choices.get(stencil.choice), self._settings
        if choice is None or choice.finish is not None or limits.delivery == "live":
            return None
        most = self._held_bytes + size
        if most > limits.max_held_bytes or most > limits.max_arguments_bytes:
            return None
        assert stencil.index is not None
        call = choice.slots.find(stencil.index)
        if call is None:
            return None
        # Events of another form for the same call share its list: the order in which they came is the text's.
        stencil.texts = next((other.texts for other, _, grown in self._growing if grown is call), [])
        self._growing.append((stencil, choice.slots, call))
        return stencil.texts

    def _end_growing(self) -> None:
        size = 0
        for stencil, slots, call in self._growing:
            texts, stencil.texts = stencil.texts, None
            assert texts is not None
            before = call.size
            slots.grow(call, texts)
            texts.clear()  # of another stencil too, perhaps
            size += call.size - before
            if stencil is self._newest.get(stencil.choice):
                slots.make_current(call)
        self._growing.clear()
        self._newest.clear()
        self._count_held(size)

    def _end_runs(self) -> None:
        if self._growing:
            self._end_growing()
        if self._run is not None:
            self._end_run()

    def _begin_run(self, stencil: Stencil, text: str) -> bool:
        """Whether verbatim text can begin a run: what of one choice came in one read, and goes out as one."""
        choice = self.choices.get(stencil.choice)
        if choice is None or not choice.visible or not self.flowing or self._further or self._encoder.ordered:
            return False
        if text[-1].isspace():
            return False  # it may be held back
        if self._run is not None:
            self._end_run()
        self._run = stencil
        return True

    def _end_run(self) -> None:
        """Send a run on as one, if no call can begin in it, else piece by piece."""
        stencil, self._run, self._flow = self._run, None, None
        assert stencil is not None
        texts, payloads = self._texts.copy(), self._verbatim.copy()
        self._texts.clear()
        self._verbatim.clear()
        place = stencil.choice
        choice = self.choices[place]
        text = texts[0] if len(texts) == 1 else "".join(texts)
        out = self._encoder.payloads(place, payloads)
        last = verbatim_piece(place, texts[-1], payloads[-1])
        if out is None or not self._goes_on(choice, last, text):
            for text, data in zip(texts, payloads, strict=True):
                self._piece(verbatim_piece(place, text, data))
            return
        self._out.append(out)
        settings = self._settings
        if settings.reask or settings.max_event_bytes < _FLOW_BYTES or self._inflater is not None:
            return
        if stencil.one_line and self.body.between_events:
            self._flow = stencil

    def _passes(self, delta: Delta) -> bool:
        """The short way of what most events are: visible text that goes out verbatim. True where it took it."""
        if type(delta) is not Piece or delta.raw is None or not delta.text or not self.flowing:
            return False
        choice = self.choices.get(delta.choice)
        if choice is None or not choice.visible or self._further or self._encoder.ordered:
            return False
        if not self._goes_on(choice, delta, delta.text):
            return False
        self._out.append(self._encoder.piece(delta))
        return True

    def _goes_on(self, choice: Choice, piece: Piece, text: str) -> bool:
        """Whether visible text goes on as it is; then it is taken note of. `piece`: it, or the last of its pieces."""
        if choice.leaks is not None and not choice.leaks.passes(piece, text):
            return False
        if self._request.tools:
            choice.text.add(text)
        if self._settings.reask:
            self.said.append(text)
        return True

    def _close(self, now: float) -> bool:
        """The body has ended: what was pending counts if it parses. True where the reply ended in it."""
        decoder = self._decoder
        frames = self.body.close()
        self.body.settle()
        if self.body.kind == "page":
            page = frames[0].data if frames else b""
            raise upstream_faults.page(page)
        if self.body.kind == "document":
            self._document_body(frames[0], now)
            return self.done_seen
        for frame in frames:
            try:
                deltas = decoder.feed(frame)
            except BadEvent:
                if self.proof:
                    return True  # cut after the end was confirmed: it does no more harm than a reset there
                raise self._leftover(frame.data) from None
            if self.body.kind == "events":  # the last line needs no end
                self.note(Quirk.EVENT_UNTERMINATED)
            if self._deltas(deltas, now):
                return True
        return self._deltas(decoder.close(), now)

    def _document_body(self, frame: Frame, now: float) -> None:
        decoder = self._decoder
        if self._request.stream:
            self.note(Quirk.JSON_FOR_STREAM)
        try:
            deltas = decoder.feed_document(frame)
        except BadEvent as error:
            raise Fault(FaultKind.STREAM_CUT, f"the upstream's JSON document is broken or cut: {error}") from None
        if decoder.alone and decoder.whole:
            self.document = frame.data
        self.events += 1
        for delta in deltas:  # one by one: a text that stands twice in a document is no repeat
            if self._deltas([delta], now):
                break
        if self.choices and decoder.whole:
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
                if self.usage is not None:
                    self.note(Quirk.USAGE_REPEATED)
                self.usage = delta
            elif isinstance(delta, Failed):
                raise upstream_faults.in_band(delta, same_dialect=self.same_dialect)
            elif isinstance(delta, Done):
                self.done_seen = True
                return True
        return False

    def _choice(self, index: int) -> Choice:
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = Choice(Slots(index, self._request.tools, self.note))
            choice.leaks = Leaks(self.recovery, index) if self.recovery is not None else None
        return choice

    def _piece(self, piece: Piece) -> None:
        if not self._request.stream and self.body.streamed:
            self._count_held(_weight(piece))  # the client's one document is held until its end
        if piece.choice < 0:
            if not self._further:
                self._emit(piece, output=False)
            return
        choice = self._choice(piece.choice)
        if piece.text and self._request.tools:
            choice.text.add(piece.text)
        leaks = choice.leaks
        if leaks is None:
            self.pass_on(choice, piece)
            return
        before = leaks.held
        for part in leaks.take(piece):
            self.pass_on(choice, part)
        self._hold(leaks.held - before)
        if self._calls + leaks.calls > self._settings.max_calls:
            raise limit_fault("max_calls", self._settings.max_calls, "the number of calls in the reply")

    def pass_on(self, choice: Choice, piece: Piece) -> None:
        """Text in which no call was found, and what else a piece carries."""
        if self._further:
            # of a further turn only the calls count; its text is told to the model if it is asked once more
            if piece.choice == 0:
                self.said.append(piece.text)
            return
        if self._encoder.ordered and self._held_in_order(choice, piece):
            return
        if piece.text:
            piece = self._text(choice, piece)
        self._emit(piece, output=piece.raw is not None or _is_output(piece))

    def _held_in_order(self, choice: Choice, piece: Piece) -> bool:
        """Whether the client, which reads block after block, gets the piece behind a call that is still held."""
        if piece.order is not None and choice.follows_a_call(piece.order):
            choice.late.append(piece)
        elif self.live is not None:
            choice.behind.append(piece)
        else:
            return False
        self._hold(len(piece.text) + len(piece.reasoning))
        return True

    def _text(self, choice: Choice, piece: Piece) -> Piece:
        """Remember the text, and hold back white space until visible text follows it."""
        if self._settings.reask:
            self.said.append(piece.text)
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
        if output and not self.flowing:
            self.flowing = self.used = True
            self.release_pending()
        if self.flowing:
            self._out.append(self._encoder.piece(piece))
        elif piece.delta or piece.choice_extra or piece.top_extra:
            self._count_held(len(dump([piece.delta, piece.choice_extra, piece.top_extra])))
            self.pending.append(piece)

    def _hold_blank(self, choice: Choice, piece: Piece) -> Piece:
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
            self.note(Quirk.CONTENT_REPEATED)
            piece.text = ""
            piece.delta.pop("content", None)

    def _call(self, delta: CallDelta, now: float) -> None:
        choice = self._choice(delta.choice)
        if self._record.hold_began_at is None:
            self._record.hold_began_at = now
        self._hold(_size(delta))
        before = len(choice.slots.calls)
        call = choice.slots.feed(delta)
        if call is None:
            return
        self.used = self.holding = True
        limits = self._settings
        if choice.leaks is not None and not choice.leaks.structured_seen:
            for part in choice.leaks.structured(flush=limits.delivery == "live"):
                self.pass_on(choice, part)
        if delta.arguments:
            if call.size > limits.max_arguments_bytes:
                raise self._too_long()
            if choice.finish is not None:
                self.note(Quirk.FRAGMENT_AFTER_FINISH)
        if len(choice.slots.calls) > before:
            self._calls += 1
            if self._calls > limits.max_calls:
                raise limit_fault("max_calls", limits.max_calls, "the number of calls in the reply")
        if limits.delivery == "live" and self._request.stream and call.fragments:
            self._go_live(choice, call)

    def _too_long(self) -> Fault:
        return limit_fault("max_arguments_bytes", self._settings.max_arguments_bytes, "the arguments of one call")

    def _go_live(self, choice: Choice, call: HeldCall) -> None:
        """Send what may be sent of the reply's first call while it is written."""
        live = self.live
        if live is None:
            if self._calls > 1 or call is self._not_live or not self._may_go_live(call):
                return
            name = declared_name(call.name, self._request.tools)[0]
            live = self.live = LiveCall(call)
            text = live.grow()
            if not text:
                self.live = None
                self._not_live = call if live.over else None  # else each fragment would have all of it read again
                return
            call.begun = True
            judged = self.live_call = JudgedCall(
                call.choice, 0, call.call_id, name, "function", Verdict.VALID, "", extra=call.extra, sent_index=0
            )
            judged.function_extra = call.function_extra
            self.flowing = True
            self.release_pending()
            if choice.blank:
                self.note(Quirk.BLANK_TEXT_DROPPED)
                choice.blank = []
            self._out += [self._encoder.call_head(judged), self._encoder.call_text(judged, text)]
        elif live.held is call and self.live_call is not None:
            text = live.grow()
            if text:
                self._out.append(self._encoder.call_text(self.live_call, text))

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
            self.holding = True
            self._count_held(size)

    def _count_held(self, size: int) -> None:
        self._held_bytes += size
        if self._held_bytes > self._record.peak_held_bytes:
            self._record.peak_held_bytes = self._held_bytes
        if self._held_bytes > self._settings.max_held_bytes and not self._over:
            raise limit_fault("max_held_bytes", self._settings.max_held_bytes, "what is held of the reply")

    def _finish(self, delta: FinishDelta) -> None:
        if delta.reason == "error":
            raise upstream_faults.finish_error(delta.raw)
        choice = self._choice(delta.choice)
        if delta.raw.lower() not in FINISH_WORDS:
            self.note(Quirk.FINISH_WORD)
        if choice.finish is None:
            choice.finish = delta
            return
        self.note(Quirk.FINISH_REPEATED)
        delta.choice_extra = {**choice.finish.choice_extra, **delta.choice_extra}
        delta.top_extra = {**choice.finish.top_extra, **delta.top_extra}
        if choice.finish.reason in ("length", "content_filter"):
            delta.reason, delta.raw = choice.finish.reason, choice.finish.raw
        choice.finish = delta

    @property
    def proof(self) -> bool:
        """Whether the end was confirmed: a final event, a whole document, or a finish reason of every choice."""
        if self.done_seen or self._whole_seen:
            return True
        return bool(self.choices) and all(choice.finish is not None for choice in self.choices.values())

    @property
    def settles(self) -> bool:
        """Whether nothing more is owed: where several choices were asked for, none that never came is waited for
        less than a silent upstream is."""
        return self.proof and len(self.choices) >= self._request.choices

    def _close_leaks(self, choice: Choice) -> None:
        """The calls in a choice's text, and the text that was held for them and is none."""
        leaks, choice.leaks = choice.leaks, None
        if leaks is None:
            return
        whole = choice.finish is None or choice.finish.reason not in ("length", "content_filter")
        found = leaks.close(choice.slots.finish(), whole=whole)
        for piece in found.pieces:
            self.pass_on(choice, piece)
        for quirk in found.quirks:
            self.note(quirk)
        choice.recovered, choice.source = found.calls, found.source

    def reason(self, choice: int) -> str:
        finish = self.choices[choice].finish
        return finish.reason if finish else "stop"

    def cut(self) -> Fault:
        """The body ended without proof of the end: what was left over may say why."""
        leftover = self._unread_bytes()
        if leftover:
            return self._leftover(leftover)
        if not self.choices:
            what = "events but no output" if self.events else "comments only" if self.body.comments else "nothing"
            return Fault(FaultKind.EMPTY_REPLY, f"the upstream answered with status {self._status} and {what}")
        return Fault(FaultKind.STREAM_CUT, "the upstream's reply ended without a finish_reason or a final event")

    def unread(self) -> Fault | None:
        """What lines between the events that are no events come to: an error that the upstream wrote there, or an
        event whose `data:` was lost, which may have held a call. Other lines are nothing, as the standard says."""
        lines = self._unread_bytes()
        if not lines:
            return None
        fault = self._leftover(lines)
        if fault.kind is FaultKind.UPSTREAM_ERROR:
            return fault
        if b"{" in lines:
            return Fault(FaultKind.BAD_EVENT, "a line of the upstream's stream holds JSON but is no event")
        return None

    def _unread_bytes(self) -> bytes:
        if self.body.kind == "array" and self.done_seen:
            return b""  # [DONE] stood in the array: what is behind it has been received or not, as the body is cut
        return self.body.leftover.strip()

    def _leftover(self, data: bytes) -> Fault:
        return upstream_faults.leftover(data, self._failure_of, same_dialect=self.same_dialect)

    def collect(self, data: bytes) -> bool:
        """Take in the body of an error status; False where no more of it is wanted, or can be read."""
        pieces = (data,) if self._inflater is None else self._inflater.feed(data)
        try:
            for piece in pieces:
                self._error_body += piece[: _ERROR_BODY_LIMIT - len(self._error_body)]
        except Fault:
            return False
        return len(self._error_body) < _ERROR_BODY_LIMIT

    def refusal(self) -> Fault:
        return upstream_faults.refusal(
            self._status,
            self._headers,
            bytes(self._error_body),
            self._failure_of,
            own_key=self._own_key,
            same_dialect=self.same_dialect,
        )

    @property
    def _failure_of(self) -> Callable[[Any], Failed | None]:
        return UPSTREAM_DIALECTS[self._dialect].failure

    @property
    def same_dialect(self) -> bool:
        return self._dialect == self._request.dialect

    def release_pending(self) -> None:
        for piece in self.pending:
            self._out.append(self._encoder.piece(piece))
        self.pending.clear()


def _size(delta: CallDelta) -> int:
    """What a delta adds to what is held, in characters."""
    size = len(delta.arguments or "") + len(delta.call_id or "") + len(delta.name or "")
    for extra in (delta.extra, delta.function_extra):
        size += len(dump(extra)) if extra else 0
    return size


def _weight(piece: Piece) -> int:
    """What a piece adds to a document, in characters."""
    size = len(piece.text) + len(piece.reasoning) + len(piece.refusal)
    fields = {key: value for key, value in piece.delta.items() if not isinstance(value, str)}
    return size + sum(len(dump(extra)) for extra in (fields, piece.choice_extra, piece.top_extra) if extra)


def _is_output(piece: Piece) -> bool:
    """Whether a piece is model output: anything in its delta but the role."""
    return bool(piece.text or piece.reasoning or piece.refusal or any(key != "role" for key in piece.delta))
