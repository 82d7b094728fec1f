"""One exchange: the upstream's bytes into the core, the core's commands out to the client.

Theory of operation. One task per exchange reads, hands on and sends; while it sends it does not read, so that a client
that is slow slows the backend. Two things happen beside it: the client's connection tells when the client leaves, and
one timer is armed for the earliest deadline. Neither touches the exchange. They leave a `_Wake` and, where the pump's
task waits for something that may be broken off, cancel that wait; the task then asks the core what follows. Nothing is
created per event: no task, no timer, no future besides the one that a read waits on. And most reads don't wake the
task: while it waits for body bytes, `_take` hands them to the core where they come in, and what the core sends in turn
to the client's socket, as long as the client takes it; whatever else the core wants ends the wait.

    stage      waits for             broken off by
    OPENING    the response's head   client gone, first_byte_s, total_s, shutdown
    READING    body bytes            client gone, first_byte_s, idle_s, total_s, shutdown, the core's own deadline
    CHECKING   the checks            client gone, total_s, shutdown
    SENDING    the client to read    client gone, send_s; anything else is dealt with after it
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from os import urandom
from typing import Any, TypeVar

from starlette.types import Send

from proxy.config import Config, Limits
from proxy.dialects import upstream_request
from proxy.exchange import Exchange
from proxy.faults import Fault, FaultKind
from proxy.model import commands
from proxy.model.commands import Command, Finish, Retry, Start
from proxy.model.requests import Request
from proxy.routing.plan import RoutePlan
from proxy.server.attempt import Attempt
from proxy.server.entry import Entry
from proxy.server.guard import Downstream
from proxy.server.limits import Ticket
from proxy.server.respond import header_block
from proxy.server.state import Service, clock
from proxy.server.upstream import Headers, Reply, completion_headers, response_headers

# A send that took longer than this was held up by the client: the time is not the backend's.
STALLED_S = 0.1
# The timer's grain: what is due while the task is between two waits is looked at again after this long.
TICK_S = 0.01

T = TypeVar("T")


class _Stage(Enum):
    BETWEEN = "between"
    OPENING = "opening"
    READING = "reading"
    CHECKING = "checking"
    SENDING = "sending"


class _Why(Enum):
    GONE = "the client left"
    LATE = "the client does not read"
    TICK = "the core asked to be woken"
    BROKEN = "this attempt is over"
    OVER = "the exchange is over"


@dataclass(frozen=True, slots=True)
class _Wake:
    why: _Why
    fault: Fault | None = None


class _Woken(Exception):
    """A wait was broken off; `Pump._wake` says why."""


class _Taken(Exception):
    """Bytes were taken in the socket's callback; `Pump._kept` says what follows."""


class Pump:
    """Carries out one exchange."""

    def __init__(
        self,
        service: Service,
        config: Config,
        entry: Entry,
        ticket: Ticket,
        request: Request,
        plan: RoutePlan,
        client_headers: Headers,
        client_key: str | None,
        downstream: Downstream,
        send: Send,
    ) -> None:
        self._service = service
        self._config = config
        self._entry = entry
        self._ticket = ticket
        self._request = request
        self._plan = plan
        self._client_headers = client_headers
        self._client_key = client_key
        self._downstream = downstream
        self._asgi_send = send
        first = config.backend(plan.route.backends[0])
        make = Exchange if service.inspector is None else service.inspector.watch(entry, plan.model)
        self._exchange = make(
            request,
            config.settings_for(plan.route, first),
            seed=f"{entry.request_id} {urandom(8).hex()}",  # a client may send one request id twice
            created=int(time.time()),
        )
        if service.tracing is not None:
            entry.span = service.tracing.begin(entry, request, first, client_headers, self._exchange)
        self._limits: Limits = config.limits_for(first)
        self._total_at = entry.started + self._limits.total_s
        self._asked_at = self._head_at = self._resumed_at = clock()
        self._awaits_first = True  # no event of this attempt has come
        self._stage = _Stage.BETWEEN
        self._stalled_since = 0.0  # when the send that is under way began
        self._wake: _Wake | None = None
        self._breakable = False  # the task waits for something that a wake may break off now
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._head: Start | None = None  # to be sent with the first body bytes
        self._extra_headers: Headers = ()
        self._busy_since = clock()
        self._finished = False
        self._stopped = False  # the core has all it wants of the reply that is open
        self._again: Request | None = None  # what to ask the same backend next
        self._kept: list[Command] = []  # what the core made of bytes that were taken in the socket's callback

    # --- the exchange ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns when the answer has been sent, or the client has left."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = task.get_loop()
        self._service.pumps.add(self)
        if not self._downstream.watch(self._leaves):
            self._leaves()
        self._arm()
        try:
            await self._failover()
        finally:
            self._finished = True
            self._downstream.watch(None)
            if self._timer is not None:
                self._timer.cancel()
            self._service.pumps.discard(self)

    def shut_down(self) -> None:
        """The process ends: end the answer with an error, now."""
        self._signal(_Wake(_Why.OVER, Fault(FaultKind.SHUTDOWN, "the proxy is shutting down; ask again")))

    async def _failover(self) -> None:
        """Ask the backends in order until one's answer was used; at the end of the list give the last fault."""
        fault: Fault | None = None
        for name in self._service.order(self._plan):
            backend = self._config.backend(name)
            self._limits = self._config.limits_for(backend)
            places = len(self._ticket.slots)
            try:
                self._service.admission.enter_backend(self._ticket, name, self._limits.max_streams)
            except Fault as busy:
                fault = fault or busy.with_traceback(None)  # whose frames hold this exchange
                continue
            try:
                retry = await self._try(Attempt(self._service, backend))
            finally:
                self._ticket.leave_backend(places)
            if retry is None:
                return
            fault = retry.fault
            self._entry.attempts.append((name, fault.with_traceback(None)))
            if not retry.transient:
                break
        assert fault is not None
        self._entry.decided = False
        await self._carry_out(self._exchange.abandon(fault, clock()))

    async def _try(self, attempt: Attempt) -> Retry | None:
        """One attempt; None where the exchange is over."""
        self._entry.backend = attempt.backend.name
        try:
            steps = await self._open(attempt, self._request)
            while True:
                retry = await self._carry_out(steps)
                if self._finished:
                    attempt.succeeded()
                    return None
                if retry is not None:
                    attempt.succeeded()
                    return retry
                if self._again is not None:
                    attempt.succeeded()
                    request, self._again = self._again, None
                    await self._close(attempt)
                    steps = await self._open(attempt, request)
                else:
                    steps = await self._next(attempt)
        finally:
            attempt.came_to_nothing()
            await self._close(attempt)

    async def _close(self, attempt: Attempt) -> None:
        """Give the upstream's connection back, or close it where its reply was not over."""
        reply, attempt.reply = attempt.reply, None
        if reply is not None:
            if self._stopped:
                await reply.drain()
            await reply.aclose()

    async def _open(self, attempt: Attempt, request: Request) -> list[Command]:
        backend, entry = attempt.backend, self._entry
        self._stopped = False
        try:
            asked = upstream_request(request, backend.dialect, self._plan.model)
        except Fault as fault:
            return self._exchange.broken(fault, clock())
        headers = completion_headers(
            backend, self._client_headers, self._client_key, entry.request_id, asked, stream=request.stream
        )
        if entry.span is not None:
            entry.span.pass_on(headers, backend)
        self._asked_at = self._head_at = entry.opened_at = clock()
        self._awaits_first = True
        entry.overhead_s += self._asked_at - self._busy_since
        self._arm()
        try:
            reply = await self._head_of(
                self._service.upstream.open(
                    self._config, backend, backend.base_url + asked.path, headers.items(), asked.body, decodes=True
                )
            )
        except _Woken:
            return [] if self._finished else self._woken(attempt)
        except Fault as fault:
            attempt.failed()
            return self._exchange.broken(fault, clock())
        finally:
            self._head_at = self._busy_since = clock()
        attempt.answered(reply)
        self._extra_headers = response_headers(reply, self._config.mask)
        entry.upstream_id = reply.headers.get("x-request-id", "")
        steps = self._exchange.opened(
            reply.status,
            reply.headers,
            self._head_at,
            dialect=backend.dialect,
            own_key=backend.api_key.mode != "forward",
            settings=self._config.settings_for(self._plan.route, backend),
            quirks=asked.quirks,
        )
        if reply.status >= 300:  # no event is to come: it is only waited for the rest of the body
            self._awaits_first = False
            self._arm()
        return steps

    async def _head_of(self, opening: Coroutine[Any, Any, Reply]) -> Reply:
        """The reply that is being opened. Raises Fault, and _Woken where the wait was broken off.

        Where the model is asked again the client may be due a comment meanwhile: that breaks off the wait, but not the
        request.
        """
        if self._exchange.deadline is None:
            return await self._unless_woken(opening, _Stage.OPENING)
        task = self._loop.create_task(opening)
        try:
            while not task.done():
                wake = self._wake
                if wake is None:
                    with suppress(_Woken):
                        await self._unless_woken(asyncio.wait((task,)), _Stage.OPENING)
                elif wake.why is _Why.TICK:
                    self._wake = None
                    self._busy_since = now = clock()
                    await self._carry_out(self._exchange.tick(now))
                    self._arm()
                else:
                    raise _Woken
                if self._finished:
                    raise _Woken
            return task.result()
        except BaseException:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None:
                await task.result().aclose()
            raise
        finally:
            del task  # it keeps its error, whose traceback holds this frame

    async def _next(self, attempt: Attempt) -> list[Command]:
        """Read until the core wants something done. The path of every upstream byte: keep it short."""
        exchange = self._exchange
        reply = attempt.reply
        assert reply is not None
        while True:
            wake = self._wake
            if wake is not None:
                return self._woken(attempt)
            self._stage, self._breakable = _Stage.READING, True
            try:
                data = await reply.read(self._take)
            except _Taken:
                return self._kept_steps()
            except asyncio.CancelledError:
                if self._wake is None:
                    raise
                self._task.uncancel()
                if self._kept:  # a wake that came before the task went on took the place of _Taken; its turn is next
                    return self._kept_steps()
                return self._woken(attempt)
            except Fault as fault:
                return exchange.broken(fault, clock())
            finally:
                self._stage, self._breakable = _Stage.BETWEEN, False
            steps = self._received(data)
            if steps:
                return steps
            if not data:
                raise RuntimeError("the core wants nothing more, and has not said how the exchange ended")

    def _kept_steps(self) -> list[Command]:
        steps, self._kept = self._kept, []
        return steps

    def _take(self, data: bytes) -> bool:
        """Most reads of a stream: in the callback of the upstream's socket, without waking the task, into the core and
        out to the client. Raises _Taken where the core wants what only the task can do, which is in `_kept`; False: it
        has to read them itself."""
        if self._wake is not None:
            return False
        if self._exchange.flow(data, began := clock()):
            if self._downstream.push(data):
                self._entry.overhead_s += clock() - began
                return True
            self._busy_since = began
            self._kept = [commands.Send(data)]
            raise _Taken
        steps = self._received(data)
        if not steps:
            return True
        if len(steps) == 1 and self._head is None and isinstance(step := steps[0], commands.Send):
            began = clock()
            if self._downstream.push(step.data):
                self._entry.overhead_s += began - self._busy_since
                return True
        self._kept = steps
        raise _Taken

    def _received(self, data: bytes) -> list[Command]:
        """What the core makes of the body's next bytes; b"": its end."""
        exchange = self._exchange
        self._busy_since = now = clock()
        steps = exchange.receive(data, now) if data else exchange.ended(now)
        deadline = exchange.deadline
        if (deadline is not None and deadline < self._armed_for) or (self._awaits_first and self._has_first()):
            self._arm()
        if not steps:
            self._entry.overhead_s += clock() - now
        return steps

    def _woken(self, attempt: Attempt) -> list[Command]:
        """What the core makes of the wake."""
        wake, self._wake = self._wake, None
        assert wake is not None
        now = self._busy_since = clock()
        match wake.why:
            case _Why.GONE | _Why.LATE:
                attempt.came_to_nothing()
                steps = self._gone(wake)
            case _Why.TICK:
                steps = self._exchange.tick(now)
            case _Why.BROKEN:
                assert wake.fault is not None
                attempt.failed()
                steps = self._exchange.broken(wake.fault, now)
            case _Why.OVER:
                assert wake.fault is not None
                attempt.came_to_nothing()
                steps = self._exchange.abandon(wake.fault, now)
        self._arm()
        return steps

    def _gone(self, wake: _Wake) -> list[Command]:
        if wake.why is _Why.LATE:
            self._exchange.record.code = "send_s"
        self._downstream.abort()
        return self._exchange.gone(clock())

    # --- commands ----------------------------------------------------------------------------------------------

    async def _carry_out(self, steps: list[Command]) -> Retry | None:
        """Carry out the core's commands: one send for all bytes up to the next wait. Gives back a Retry.

        `_finished` is set where the exchange is over.
        """
        retry = None
        parts: list[bytes] = []
        for step in steps:  # grows by the answers to checks
            match step:
                case commands.Send(data):
                    parts.append(data)
                case commands.Start():
                    self._head = step
                case commands.Check(jobs):
                    if parts and await self._lost(b"".join(parts)):
                        return None
                    parts = []
                    try:
                        results = await self._unless_woken(
                            self._service.checker.judge(jobs, self._entry.client), _Stage.CHECKING
                        )
                    except _Woken:
                        wake, self._wake = self._wake, None
                        assert wake is not None
                        if wake.fault is None:
                            steps += self._gone(wake)
                        else:
                            steps += self._exchange.abandon(wake.fault, clock())
                        continue
                    steps += self._exchange.checked(results, clock())
                case commands.Ask(request):
                    self._again = request
                case commands.Retry():
                    retry = step
                case commands.Stop():
                    self._stopped = True
                case commands.Finish():
                    await self._finish(step, b"".join(parts))
                    return None
        if parts:
            await self._lost(parts[0] if len(parts) == 1 else b"".join(parts))
        return retry

    async def _finish(self, finish: Finish, rest: bytes) -> None:
        self._finished = True
        record = self._entry.record = finish.record
        if record.outcome == "error":  # in words of the backend's, perhaps
            mask = self._config.mask
            rest, record.code = mask.over(rest), mask.over(record.code.encode("utf-8", "replace")).decode()
        if record.outcome != "gone" and not await self._send(rest, last=True):
            record.outcome = "gone"
            if self._wake is not None and self._wake.why is _Why.LATE:
                record.code = "send_s"
            self._downstream.abort()
        self._leave()

    def _leave(self) -> None:
        """The client has its answer: what may still be done with the upstream's connection takes no place of its."""
        self._ticket.leave()
        self._service.write_down(self._entry)

    async def _lost(self, data: bytes) -> bool:
        """Send; True where the client was lost on it, which ends the exchange."""
        if await self._send(data, last=False):
            return False
        assert self._wake is not None
        for step in self._gone(self._wake):
            if isinstance(step, Finish):
                self._finished = True
                self._entry.record = step.record
        self._leave()
        return True

    async def _send(self, data: bytes, last: bool) -> bool:
        """Whether the client took it. The head goes out before the first byte."""
        entry = self._entry
        self._stalled_since = began = clock()
        entry.overhead_s += began - self._busy_since
        self._stage, self._breakable = _Stage.SENDING, True
        try:
            if self._head is not None:
                head, self._head = self._head, None
                entry.head_sent = True
                entry.first_byte_at = began
                length = len(data) if last else None
                block = header_block(head.headers, entry.request_id, self._extra_headers, length)
                await self._asgi_send({"type": "http.response.start", "status": head.status, "headers": block})
            await self._asgi_send({"type": "http.response.body", "body": data, "more_body": not last})
        except asyncio.CancelledError:
            if self._wake is None:
                raise
            self._task.uncancel()
            return False
        finally:
            self._stage, self._breakable = _Stage.BETWEEN, False
            self._busy_since = clock()
        if self._busy_since - began > STALLED_S and not last:
            self._resumed_at = self._busy_since
            self._arm()
        return True

    # --- being woken -------------------------------------------------------------------------------------------

    async def _unless_woken(self, work: Coroutine[Any, Any, T], stage: _Stage) -> T:
        """Wait for `work`. Raises _Woken where the wait was broken off."""
        if self._wake is not None and self._wake.why is not _Why.TICK:
            work.close()
            raise _Woken
        self._stage, self._breakable = stage, True
        try:
            return await work
        except asyncio.CancelledError:
            if self._wake is None:
                raise
            self._task.uncancel()
            raise _Woken from None
        finally:
            self._stage, self._breakable = _Stage.BETWEEN, False

    def _leaves(self) -> None:
        self._signal(_Wake(_Why.GONE))

    def _signal(self, wake: _Wake) -> None:
        """Leave a wake for the pump's task; the client's leaving outranks the others, a tick none."""
        if self._finished and wake.why is not _Why.LATE and wake.why is not _Why.GONE:
            return
        if self._wake is None or self._wake.why is _Why.TICK or wake.why in (_Why.GONE, _Why.LATE):
            self._wake = wake
        if not self._breakable:
            return
        if self._stage is _Stage.SENDING and wake.why not in (_Why.GONE, _Why.LATE):
            return
        if self._stage is _Stage.CHECKING and wake.why is _Why.TICK:
            return
        self._breakable = False
        self._task.cancel()

    def _arm(self) -> None:
        """See to it that the timer fires no later than something may be due. One that fires too early sets itself anew:
        that is cheaper than to move it with every event."""
        now = clock()
        # A send may begin at any moment: armed for no later than its end, the timer is never too late for it.
        send_from = self._stalled_since if self._stage is _Stage.SENDING else now
        when = min(self._total_at, send_from + self._limits.send_s)
        if self._stage not in (_Stage.SENDING, _Stage.CHECKING):
            when = min(when, self._patience()[0])
        deadline = self._exchange.deadline
        if deadline is not None and self._wake is None:
            when = min(when, deadline)
        if self._timer is not None:
            if when >= self._armed_for:
                return
            self._timer.cancel()
        self._armed_for = when
        self._timer = self._loop.call_later(max(TICK_S, when - now), self._on_timer)

    def _patience(self) -> tuple[float, str]:
        """Until when the backend may be silent, and the key of that limit. Only events count, not comments."""
        if self._awaits_first:
            return self._asked_at + self._limits.first_byte_s, "first_byte_s"
        return max(self._exchange.data_at, self._resumed_at) + self._limits.idle_s, "idle_s"

    def _has_first(self) -> bool:
        self._awaits_first = self._exchange.data_at <= self._head_at
        return not self._awaits_first

    def _on_timer(self) -> None:
        self._timer = None
        self._armed_for = math.inf
        if self._finished and self._stage is not _Stage.SENDING:
            return
        now = clock()
        until, key = self._patience()
        waits_for_backend = self._stage in (_Stage.OPENING, _Stage.READING)
        deadline = self._exchange.deadline
        if self._stage is _Stage.SENDING and now >= self._stalled_since + self._limits.send_s:
            self._signal(_Wake(_Why.LATE))
            return
        if now >= self._total_at:
            self._total_at = math.inf
            self._signal(_Wake(_Why.OVER, self._timeout("total_s", self._limits.total_s, "the whole exchange")))
        elif waits_for_backend and now >= until:
            what = "a first event" if key == "first_byte_s" else "the next event"
            self._signal(_Wake(_Why.BROKEN, self._timeout(key, getattr(self._limits, key), what)))
        elif deadline is not None and now >= deadline:
            self._signal(_Wake(_Why.TICK))
        if self._wake is None or self._breakable or self._stage in (_Stage.SENDING, _Stage.CHECKING):
            self._arm()

    def _timeout(self, key: str, seconds: float, what: str) -> Fault:
        backend = self._entry.backend
        return Fault(FaultKind.TIMEOUT, f"{what} from backend {backend!r} took more than {seconds:g} s ({key})")
