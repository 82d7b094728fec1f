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

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from weakref import ref

from proxy.assembly.slots import HeldCall
from proxy.checks.schema import UNCHECKABLE
from proxy.checks.screen import screen
from proxy.dialects import CLIENT_DIALECTS
from proxy.dialects.base import ClientDialect, Encoder, Envelope
from proxy.dialects.markup import Rule
from proxy.faults import Fault, FaultKind
from proxy.model.calls import CallCheck, CallError, CheckResult, JudgedCall, Verdict
from proxy.model.commands import Ask, Check, Command, Finish, Record, Retry, Send, Start, Stop
from proxy.model.deltas import Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.model.requests import Request
from proxy.policy.judging import identify, job
from proxy.policy.reask import answer, correctable, merge, message
from proxy.policy.recovery import without_echoes
from proxy.policy.reply import Choice, Reply
from proxy.policy.report import report
from proxy.policy.rules import blocked, decide
from proxy.policy.settings import ExchangeSettings as ExchangeSettings
from proxy.wire.jsondoc import is_strict, join_surrogates

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


_State = Literal["waiting", "reading", "refused", "checking", "over"]


class Exchange:
    """One request. `seed` is a text unique to it (made ids derive from it), `created` the unix time in seconds.
    `client`: what writes the answer, where that is not the request's own dialect.

    Every input takes `now`, the shell's clock in seconds, and gives the commands to carry out, in order.
    """

    def __init__(
        self,
        request: Request,
        settings: ExchangeSettings,
        *,
        seed: str,
        created: int,
        client: ClientDialect | None = None,
    ) -> None:
        self.started = False
        self.record = Record()
        self._request = request
        self._settings = settings
        self._seed = seed
        self._client = client or CLIENT_DIALECTS[request.dialect]
        self._created = created
        self._state: _State = "waiting"
        self._out: list[bytes] = []
        self._sent_at = self._began_at = 0.0
        self._comments_sent = 0
        self._turn = 0  # of the model: how often it was asked again
        self._asked = request  # what it was asked last
        self._first: Reply | None = None  # the reply of the first turn, once there are others
        self._kept: list[JudgedCall] = []  # calls of earlier turns that were judged valid
        self._before: list[JudgedCall] = []  # the calls as they stood before this turn
        self._judged: list[JudgedCall] = []
        self._held: list[HeldCall] = []  # the same calls as they came
        self._reply: Reply  # the one that is open, or was last: made by `opened`, or empty where none ever was
        self._has_reply = False
        self._encoder: Encoder  # made for the first reply

    @property
    def used(self) -> bool:
        """Model output was used or a byte went to the client: no other backend can take over."""
        return self.started or (self._has_reply and self._reply.used)

    @property
    def calls(self) -> Sequence[JudgedCall]:
        """The reply's calls with their verdicts, withheld ones too; complete when the exchange is over."""
        return self._judged

    @property
    def finish_reasons(self) -> list[str]:
        """Why each choice ended, as the client was told; none of a reply that failed."""
        if self._state != "over" or not self._has_reply or self.record.outcome != "ok":
            return []
        return [self._ending(index) for index in sorted(self._reply.choices)]

    @property
    def tokens(self) -> Usage | None:
        return self._reply.usage.counts if self._has_reply and self._reply.usage else None

    @property
    def envelope(self) -> Envelope | None:
        """The reply's id, creation and model, as the upstream told them."""
        return self._reply.envelope if self._has_reply else None

    def _need_reply(self) -> None:
        """An end that comes before any reply tells of an empty one."""
        if not self._has_reply:
            self._has_reply = True
            self._reply = Reply(self._request, self._settings, self._request.dialect, 0, {}, self._out, self.record)
            self._encoder = self._new_encoder(self._request.dialect)
            self._reply.open(self._encoder)

    def _new_encoder(self, dialect: str) -> Encoder:
        alive = ref(self)  # not itself: see `proxy.policy.reply._Quirks`

        def envelope() -> Envelope | None:
            exchange = alive()
            assert exchange is not None
            return exchange._reply.envelope

        return self._client.encoder(self._request, self._seed, self._created, envelope, dialect)

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
        self._has_reply = True
        self._reply = Reply(
            self._request,
            self._settings,
            dialect,
            status,
            headers,
            self._out,
            self.record,
            quirks=quirks,
            own_key=own_key,
            further=self._turn > 0,
            now=now,
        )
        self._judged, self._held = [], []
        self._comments_sent = 0
        self._sent_at = now
        if self._turn == 0:
            self._began_at = now
            if not self.started:
                self._encoder = self._new_encoder(dialect)
        self._state = "reading" if 200 <= status < 300 else "refused"
        try:
            self._reply.open(self._encoder)
        except Fault as fault:
            return self._fail(self._reply.refusal() if self._state == "refused" else fault, now)
        return []

    def receive(self, data: bytes, now: float) -> list[Command]:
        """Body bytes as they came (content-encoding is undone here, bounded)."""
        if self._state == "refused":
            return [] if self._reply.collect(data) else self._fail(self._reply.refusal(), now)
        if self._state != "reading":
            return []
        try:
            ended = self._reply.receive(data, now)
        except Fault as fault:
            return self._fail(fault, now)
        if ended:
            return [*self._conclude(now)]
        return self._flush(now)

    def flow(self, data: bytes, now: float) -> bool:
        """The short way of `receive` for a read of text that goes out at once and as it came, and changes nothing else:
        neither the `deadline` nor what was asked for before. True: send `data`. False: it is still to be received."""
        if self._state != "reading" or not self._reply.flow(data, now):
            return False
        self._sent_at = now
        return True

    def ended(self, now: float) -> list[Command]:
        """The upstream's body ended cleanly."""
        if self._state == "refused":
            return self._fail(self._reply.refusal(), now)
        if self._state != "reading":
            return []
        try:
            proven = self._reply.end(now)
        except Fault as fault:
            return self._fail(fault, now)
        if proven:
            if not self._reply.done_seen and self._reply.body.kind == "events":
                self._reply.note(Quirk.DONE_MISSING)
            return self._conclude(now)
        return self._fail(self._reply.cut(), now)

    def broken(self, fault: Fault, now: float) -> list[Command]:
        """The attempt ended without a proper end: no connection, a reset, a deadline. After proof it does no harm."""
        if self._state == "reading" and self._reply.proof and self._reply.body.streamed:
            self._reply.note(Quirk.RESET_AFTER_END)
            return self._conclude(now)
        if self._state == "refused":
            return self._fail(self._reply.refusal(), now)  # only its body did; the status says enough
        if self._state in ("waiting", "reading"):
            self._need_reply()
            return self._fail(fault, now)
        return []

    @property
    def data_at(self) -> float:
        """When the upstream last sent an event that said something; comments are none."""
        return self._reply.data_at if self._has_reply else 0.0

    @property
    def deadline(self) -> float | None:
        """When `tick` is wanted next; None: not at all."""
        if self._state == "waiting" and self._turn and self._request.stream:
            return self._sent_at + self._settings.keepalive_s
        if self._state == "reading":
            keepalive = self._sent_at + self._settings.keepalive_s if self._keeps_alive() else None
            if self._reply.settles:
                settle = self._reply.data_at + self._settings.settle_s
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
        if self._reply.settles and now >= self._reply.data_at + self._settings.settle_s:
            self._reply.note(Quirk.DONE_MISSING)
            return [Stop(), *self._conclude(now, stop=False)]
        if self._keeps_alive() and now >= self._sent_at + self._settings.keepalive_s:
            self._comments_sent = self._reply.body.comments
            self._reply.release_pending()
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
        assert self._reply.live is not None
        changed = self._reply.live.held.renamed or not call.text.startswith(self._reply.live.text)
        if call.verdict is not Verdict.INVALID_JSON and changed:
            call.verdict = Verdict.INVALID_JSON
            call.error = CallError("", "sent_before", "the arguments were sent as they came, and are no JSON as such")
            call.text = join_surrogates(self._reply.live.held.text)

    def abandon(self, fault: Fault, now: float) -> list[Command]:
        """End with this error: before the first byte as an HTTP status, after it in-band."""
        if self._state == "over":
            return []
        self._need_reply()
        if self._state == "refused":
            fault = self._reply.refusal()
        if self._turn:
            self._judged = self._before
            self.record.reask = "failed"
        elif not self._judged:
            self._judge_unfinished()
        return self._error(fault, now)

    def gone(self, now: float) -> list[Command]:
        """The client left."""
        if self._state == "over":
            return []
        self._need_reply()
        self._judged = [call for call in self._judged if call.error is not UNCHECKABLE]  # nobody knows
        self._state = "over"
        self.record.outcome = "gone"
        return self._finished(now)

    # --- the end -----------------------------------------------------------------------------------------------

    def _conclude(self, now: float, *, stop: bool = True) -> list[Command]:
        """The reply has ended, proven: judge its calls. Nothing is released before every check has come back."""
        commands: list[Command] = [Stop()] if stop else []
        if not self._reply.choices:
            return [*commands, *self._fail(self._reply.cut(), now)]
        unread = self._reply.unread()
        if unread is not None:
            return [*commands, *self._fail(unread, now)]
        try:
            self._reply.finish(now)
        except Fault as fault:
            return [*commands, *self._fail(fault, now)]
        commands += self._flush(now)
        jobs: list[CallCheck] = []
        for judged, held in identify(self._reply, self._asked, self._seed):
            reason = self._reply.reason(judged.choice)
            in_progress = held is self._reply.choices[judged.choice].slots.current and not held.whole
            unfinished = held.unfinished or (reason in ("length", "content_filter") and in_progress)
            found = screen(self._request, judged.name, len(self._kept) + judged.index, unfinished=unfinished)
            if found is not None:
                judged.verdict, judged.error = found
            elif self._request.tools[judged.name].kind == "function":
                judged.verdict, judged.error = Verdict.SCHEMA_VIOLATION, UNCHECKABLE  # until its check is back
                jobs.append(job(self._request, self._settings, len(self._judged), held, judged.name))
            self._judged.append(judged)
            self._held.append(held)
        if not self._judged and any(
            self._reply.reason(index) == "unexpected_tool_call" for index in self._reply.choices
        ):
            missing = "the upstream reports a tool call that it did not send"
            unsent = Fault(FaultKind.UPSTREAM_ERROR, missing, code="UNEXPECTED_TOOL_CALL")
            return [*commands, *self._fail(unsent, now)]
        if jobs:
            self._state = "checking"
            return [*commands, Check(tuple(jobs))]
        return [*commands, *self._release(now)]

    def _drop_echoes(self) -> None:
        """Calls that leaked as text and also came structured, as it shows once both are settled."""
        came = len(self._judged)
        self._judged, self._held = without_echoes(self._judged, self._held)
        if len(self._judged) < came:
            self._reply.note(Quirk.LEAKED_ECHO)

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
                self._reply.pass_on(choice, choice.source)
        assert self._reply.recovery is not None
        self._reply.recovery.refuse([held for call, held in pairs if held.weak and call.choice in bad], Rule.SCHEMA)
        pairs = [(call, held) for call, held in pairs if not (held.weak and call.choice in bad)]
        self._judged, self._held = [call for call, _ in pairs], [held for _, held in pairs]

    def _release(self, now: float) -> list[Command]:
        """Every verdict of this turn is in: ask again, or deliver."""
        self._drop_echoes()
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
        reasons = map(self._reply.reason, self._reply.choices)  # there may be none of index 0
        return required and not self._judged and not any(word in ("length", "content_filter") for word in reasons)

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
        self._asked = self._client.follow_up(
            self._asked, text, answers, message(answers, required=self._lacks_a_call())
        )
        self._before = self._judged
        self._kept = [call for call in self._judged if call.verdict is Verdict.VALID]
        self._keep_reply()
        self._turn += 1
        self._state = "waiting"
        self._sent_at = now
        return [*self._flush(now), Ask(self._asked)]

    def _keep_reply(self) -> None:
        """The first reply is what the client sees; of later ones usage and quirks are added to it."""
        self.record.upstream_events += self._reply.events
        self.record.upstream_bytes += self._reply.bytes
        self._reply.events = self._reply.bytes = 0
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
        # what a limit cut in a further turn is as honest: that turn's own reason said so
        cut = [
            index
            for index in self._reply.choices
            if self._turn or self._reply.reason(index) in ("length", "content_filter")
        ]
        fault = decide(self._judged, self._settings.mode, self._settings.block_as, self._encoder.can_carry, cut)
        if fault is None:
            fault = self._begun_in_vain()
        if fault is not None:
            return self._error(fault, now)
        self._note_end()
        if self._reply.document is not None and self._unchanged():
            return self._whole_document(now)
        self._reply.release_pending()
        for number, index in enumerate(sorted(self._reply.choices)):
            choice = self._reply.choices[index]
            calls = [call for call in self._judged if call.choice == index]
            if choice.blank:
                if calls:
                    self._reply.note(Quirk.BLANK_TEXT_DROPPED)
                else:
                    self._out += [self._encoder.piece(blank) for blank in choice.blank]
            delivered = [call for call in calls if call.sent_index is not None]
            self._in_order(choice, delivered)
            reason = self._ending(index)
            quirks = self._reply.quirks if number == 0 else []
            if self._reply.usage is not None and self._encoder.usage_first:
                self._out.append(self._encoder.usage(self._reply.usage))
            self._out.append(self._encoder.finish(index, reason, choice.finish, self._report(calls, quirks)))
        if self._reply.usage is not None and not self._encoder.usage_first and self._wants_usage():
            self._out.append(self._encoder.usage(self._reply.usage))
        self._out.append(self._encoder.done())
        self._state = "over"
        return [*self._flush(now), *self._finished(now)]

    def _ending(self, index: int) -> str:
        """The finish reason of a choice, as the client is told it."""
        reason = self._reply.reason(index)
        if reason in ("length", "content_filter"):
            return reason
        return "tool_calls" if any(c.choice == index and c.sent_index is not None for c in self._judged) else "stop"

    def _begun_in_vain(self) -> Fault | None:
        """A live call that is not delivered after all ends the reply in an error, also at an honest `length`."""
        lost = [call for call in self._judged if call.begun and call.sent_index is None]
        return blocked(lost) if lost else None

    def _wants_usage(self) -> bool:
        return self._request.include_usage or not self._request.stream

    def _in_order(self, choice: Choice, calls: Sequence[JudgedCall]) -> None:
        """The delivered calls, each behind the blocks that came before it."""
        late = choice.late
        for call in calls:
            while late and call.key is not None and (late[0].order or 0) < call.key:
                self._out.append(self._encoder.piece(late.pop(0)))
            if self._reply.live is not None and call.begun:
                rest = call.text[len(self._reply.live.text) :]
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
            self._reply.note(Quirk.STREAM_FOR_JSON)
        for index, choice in self._reply.choices.items():
            called = any(call.choice == index and not call.format for call in self._judged)
            if choice.finish is None:
                self._reply.note(Quirk.FINISH_MISSING)
            elif self._turn:
                continue  # its reason was about its own calls
            elif choice.finish.reason in ("stop", "tool_calls") and (choice.finish.reason == "tool_calls") != called:
                self._reply.note(Quirk.FINISH_WRONG)
        if self._request.tool_choice.mode in ("required", "forced") and not self._judged:
            self._reply.note(Quirk.REQUIRED_CALL_MISSING)
        spent = self._reply.usage.counts if self._reply.usage else Usage()
        if spent.output_tokens - (spent.reasoning or 0) > 1 and not self._reply.flowing and not self._judged:
            self._reply.note(Quirk.TOKENS_WITHOUT_OUTPUT)

    def _unchanged(self) -> bool:
        """Whether a whole document may go out as it came: same dialect, no call, nothing mended or reported."""
        if self._request.stream or not self._reply.same_dialect or self._judged or self._reply.quirks:
            return False
        if any(c.blank or c.finish is None for c in self._reply.choices.values()):
            return False
        document = self._reply.document or b""
        if any(sign in document for sign in _NOT_VERBATIM) or not is_strict(document):
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
        for call, held in identify(self._reply, self._asked, self._seed):
            call.verdict = Verdict.INCOMPLETE
            call.error = CallError("", "incomplete", "the reply ended before this call was finished")
            self._judged.append(call)
            self._held.append(held)

    def _error(self, fault: Fault, now: float) -> list[Command]:
        if not self._turn:
            self._reply.release_text()
        for call in self._judged:
            call.sent_index = None
        self.record.outcome = "blocked" if fault.kind is FaultKind.BLOCKED else "error"
        self.record.code = fault.public_code
        found = self._report(self._judged, self._reply.quirks) if self._judged or self._reply.quirks else None
        started = self.started or (self._request.stream and any(self._out))
        self._state = "over"
        if started:
            self._out.append(self._encoder.error(fault, found))
            return [*self._flush(now), *self._finished(now)]
        self.started = True
        self._out.clear()
        self.record.status = fault.public_status
        body = self._client.error_body(fault, found)
        return [Start(fault.public_status, (*_JSON_HEADERS, *fault.headers)), Send(body), *self._finished(now)]

    # --- output ------------------------------------------------------------------------------------------------

    def _keeps_alive(self) -> bool:
        """Whether silence is ours: something is held, or the upstream itself has shown life by comments."""
        if not self._request.stream:
            return False
        return self._reply.holding or self._reply.body.comments > self._comments_sent

    def _flush(self, now: float) -> list[Command]:
        """What is ready to go, as one send; the head before the first."""
        if not self._out:
            return []
        data = b"".join(self._out) if len(self._out) > 1 else self._out[0]
        self._out.clear()
        if not data:
            return []
        self._sent_at = now
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
        record.refused = dict(self._reply.recovery.refusals) if self._reply.recovery is not None else {}
        record.usage = dict(self._reply.usage.usage) if self._reply.usage else None
        record.upstream_events += self._reply.events
        record.upstream_bytes += self._reply.bytes
        if record.hold_began_at is not None and record.hold_ended_at is None:
            record.hold_ended_at = now
        return [Finish(record)]
