"""Asking: one item to one target over a real connection, judged by the core as a client would get it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.conformance.items import Item
from proxy.conformance.runs import CallSeen, Run, State
from proxy.conformance.targets import Target
from proxy.dialects import UpstreamRequest, upstream_request
from proxy.exchange import ExchangeSettings
from proxy.faults import Fault, FaultKind
from proxy.model.calls import Verdict
from proxy.model.findings import Quirk
from proxy.model.requests import Request
from proxy.replay.inprocess import Runner
from proxy.replay.outcome import read_outcome
from proxy.server.upstream import Reply, Upstream, completion_headers, retry_after_s

# Everything is delivered and reported; nothing is asked again. A schema of own requests that does not compile is told
# as a quirk of the request.
SETTINGS = ExchangeSettings(mode="annotate", annotations="always", skip_uncompilable=True)
MAX_MESSAGE = 300  # characters of a backend's own error
MAX_EXCERPT = 500  # characters of a faulty call's arguments
# A backend that is busy (429, 503) is asked again, after what it says itself or after these seconds.
BUSY = (429, 503)
PAUSES_S = (1.0, 2.0, 4.0)
MAX_PAUSE_S = 60.0
# So many askings in a row that nobody answers, at the beginning, are enough: it is not there, or does not let us in.
SHUT = (0, 401, 403, 404)
GIVE_UP_AFTER = 5


@dataclass(frozen=True, slots=True)
class Job:
    target: Target
    item: Item
    streamed: bool
    number: int

    @property
    def key(self) -> str:
        backend = self.target.backend
        question = (backend.base_url, backend.dialect, self.target.model, self.item.digest, str(self.streamed))
        return hashlib.sha256("\n".join(question).encode("utf-8", "replace")).hexdigest()[:24]

    def blank(self) -> Run:
        return Run(self.key, self.target.label, self.item.id, self.streamed, self.number, "refused")


def plan(targets: Sequence[Target], items: Sequence[Item], forms: Sequence[bool], runs: int) -> list[Job]:
    """Every asking, a whole round of all items before the next."""
    return [
        Job(target, item, streamed, number)
        for number in range(1, runs + 1)
        for item in items
        for streamed in forms
        for target in targets
    ]


async def ask_all(
    jobs: Sequence[Job], state: State, *, concurrency: int, timeout_s: float, ended: Callable[[Run], None]
) -> None:
    """Carries out the jobs, `concurrency` at once for each target. `ended` is told of each as it ends."""
    upstream = Upstream()
    waiting: dict[str, deque[Job]] = {}
    for job in jobs:
        waiting.setdefault(job.target.label, deque()).append(job)

    async def work(queue: deque[Job], shut: Shut) -> None:
        while queue and not shut.given_up:
            job = queue.popleft()
            run = await ask(job, upstream, timeout_s)
            shut.note(run)
            state.add(run)
            ended(run)

    try:
        async with asyncio.TaskGroup() as group:
            for queue in waiting.values():
                shut = Shut()
                for _ in range(concurrency):
                    group.create_task(work(queue, shut))
    finally:
        await upstream.aclose()


@dataclass(slots=True)
class Shut:
    """Whether a target has been shut from the start."""

    in_row: int = 0
    opened: bool = False

    def note(self, run: Run) -> None:
        self.opened = self.opened or run.status not in SHUT
        self.in_row += 1

    @property
    def given_up(self) -> bool:
        return not self.opened and self.in_row >= GIVE_UP_AFTER


async def ask(job: Job, upstream: Upstream, timeout_s: float) -> Run:
    """One asking, and again where the backend is busy."""
    for pause_s in (*PAUSES_S, None):
        run, wait_s = await _once(job, upstream, timeout_s)
        if pause_s is None or run.status not in BUSY:
            break
        await asyncio.sleep(min(MAX_PAUSE_S, pause_s if wait_s is None else wait_s))
    return run


async def _once(job: Job, upstream: Upstream, timeout_s: float) -> tuple[Run, float | None]:
    """What came of it, and how long a busy backend asks to wait."""
    run = job.blank()
    target = job.target
    try:
        request = job.item.asked(target.model, streamed=job.streamed)
        asked = upstream_request(request, target.backend.dialect, target.model)
    except Fault as fault:
        run.outcome, run.code, run.message = "unasked", fault.public_code, fault.detail[:MAX_MESSAGE]
        return run, None
    runner = Runner(request, SETTINGS)
    began = runner.now = _now()
    wait_s: float | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reply = await _open(target, upstream, request, asked)
            try:
                run.status = reply.status
                wait_s = retry_after_s(reply)
                runner.open(reply.status, reply.headers, target.backend.dialect, own_key=False)
                await _read(reply, runner)
                await reply.drain()
            finally:
                await reply.aclose()
    except TimeoutError:
        runner.break_off(Fault(FaultKind.TIMEOUT, f"the reply did not end within {timeout_s:g} s (--timeout)"))
    except Fault as fault:
        runner.break_off(fault)
    run.seconds = _now() - began
    if runner.first_event_at is not None:
        run.first_event_s = runner.first_event_at - began
    _take_down(run, runner, target)
    return run, wait_s


async def _open(target: Target, upstream: Upstream, request: Request, asked: UpstreamRequest) -> Reply:
    backend = target.backend
    headers = completion_headers(backend, [], target.key.reveal(), "", asked, stream=request.stream)
    url = backend.base_url + asked.path
    return await upstream.open(target.config, backend, url, headers.items(), asked.body, decodes=True)


async def _read(reply: Reply, runner: Runner) -> None:
    """Read until the core wants no more."""
    while not runner.over:
        try:
            async with asyncio.timeout_at(runner.exchange.deadline):
                data = await reply.read()
        except TimeoutError:
            runner.now = _now()
            runner.wake()
            continue
        runner.now = _now()
        if data:
            runner.receive(data)
        else:
            runner.end()


def _take_down(run: Run, runner: Runner, target: Target) -> None:
    """What the core says about the reply."""
    answer = runner.answer
    record = answer.record
    assert record is not None
    outcome = read_outcome(answer.status, answer.headers, bytes(answer.body))
    run.events, run.bytes = record.upstream_events, record.upstream_bytes
    shown = target.mask.over_text
    if outcome.error is not None:
        run.outcome = "broken" if 200 <= run.status < 300 else "refused"
        run.code = shown(record.code)[:MAX_MESSAGE]
        run.message = shown(str(outcome.error.get("message", "")))[:MAX_MESSAGE]
    else:
        run.outcome = "ended"
    run.finish = next(iter(outcome.finish.values()), "")
    run.quirks = [Quirk(quirk) for quirk in outcome.quirks]
    run.text_chars = len(outcome.text)
    for call in outcome.calls:
        quirks = [Quirk(quirk) for quirk in call.quirks]
        seen = CallSeen(shown(call.name), Verdict(call.verdict), quirks, call.repairs, call.errors)
        if seen.verdict is not Verdict.VALID or call.repairs:
            seen.arguments = shown(call.arguments)[:MAX_EXCERPT]
        run.calls.append(seen)


def _now() -> float:
    return asyncio.get_running_loop().time()
