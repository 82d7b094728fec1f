"""Runs checks without ever stalling the event loop: inline what is provably cheap, the rest in a child process.

Validation holds the GIL, so no timeout inside this process could end one. The child (one a worker) is killed when a job
takes too long, and started anew for the next one. Whatever goes wrong, the call counts as faulty; a schema that ran
out of time is remembered for a while and not run again, so that the same one costs one kill, not one a request.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

from proxy.checks.child import LENGTH, compile_job, judge_job, pack, read_result, unpack
from proxy.checks.judge import is_cheap, judge
from proxy.checks.schema import MAX_SCHEMA_BYTES, BoundedCache, compile_problem, schema_is_cheap, self_probe
from proxy.model.calls import CallCheck, CallError, CheckResult, Verdict

Problem = tuple[str, str]

_SLACK = 4
"""Wall time a job may take, as a multiple of its CPU time: the machine may be busy with something else."""
_SIZE_FOR_AS_MUCH_AGAIN = 262_144
"""Argument bytes that give a job as much CPU time again: reading 1 MiB of small tokens takes up to 0.8 s."""
_START_S = 20.0
_MAX_FRAME = 1 << 28
_INLINE_S = 0.005
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class _Lost(Enum):
    """Why a job has no answer."""

    TOO_COSTLY = CallError("", "too_costly", "the check took too long and was ended")
    UNAVAILABLE = CallError("", "uncheckable", "the check could not be carried out now")
    BUSY = CallError("", "uncheckable", "too many checks are waiting")


class Checker:
    """Judges calls and compiles schemas. Use it from one event loop; `close` ends the child.

    `deadline_s`: CPU time of one job. `max_waiting`: jobs that may wait for the child, further ones fail.
    `remember_s`: how long a schema that ran out of time is not run again. `clock`: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        deadline_s: float = 0.25,
        max_waiting: int = 256,
        remember_s: float = 600.0,
        max_schema_bytes: int = MAX_SCHEMA_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lost_children = 0
        """How many children were killed or died during a job."""
        self._deadline_s = deadline_s
        self._remember_s = remember_s
        self._max_schema_bytes = max_schema_bytes
        self._clock = clock
        self._child: Process | None = None
        self._queue: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[Any]]] = asyncio.Queue(max_waiting)
        self._worker: asyncio.Task[None] | None = None
        self._condemned: BoundedCache[float] = BoundedCache(max_entries=1024, max_size=1024)
        self._compiled: BoundedCache[tuple[Problem | None]] = BoundedCache(max_entries=4096, max_size=4096)

    async def start(self) -> None:
        """Starts the child ahead of the first job. Raises RuntimeError if schemas could read files, OSError or
        TimeoutError if no child can be started."""
        self_probe()
        await self._ready_child()

    async def close(self) -> None:
        """Ends the child; jobs still waiting fail."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        while not self._queue.empty():
            _answer(self._queue.get_nowait()[1], _Lost.UNAVAILABLE)
        await self._end_child()

    async def judge(self, jobs: Sequence[CallCheck]) -> list[CheckResult]:
        """One result a job, in their order."""
        asked: list[CheckResult | asyncio.Future[Any]] = []
        pause = _Pause()
        for job in jobs:
            if is_cheap(job):
                asked.append(judge(job))
            elif job.schema is not None and self._is_condemned(job.schema):
                asked.append(_failed(job, _Lost.TOO_COSTLY))
            else:
                size = sum(map(len, job.fragments))
                asked.append(self._ask(judge_job(job, self._deadline_s * (1 + size / _SIZE_FOR_AS_MUCH_AGAIN))))
            await pause.perhaps()
        return [one if isinstance(one, CheckResult) else self._result(job, await one) for job, one in zip(jobs, asked)]

    async def compile_problems(self, schemas: Sequence[bytes]) -> list[Problem | None]:
        """For each schema the pointer and message of what makes it unusable, or None."""
        problems = []
        pause = _Pause()
        for schema in schemas:
            if len(schema) > self._max_schema_bytes or schema_is_cheap(schema):
                problems.append(compile_problem(schema, self._max_schema_bytes))
            else:
                problems.append(await self._compile_problem(schema))
            await pause.perhaps()
        return problems

    async def _compile_problem(self, schema: bytes) -> Problem | None:
        digest = sha256(schema).digest()
        known = self._compiled.get(digest)
        if known is not None:
            return known[0]
        if self._is_condemned(schema):
            return "", _Lost.TOO_COSTLY.value.message
        answer = await self._ask(compile_job(schema, self._max_schema_bytes, self._deadline_s))
        if isinstance(answer, _Lost):
            if answer is _Lost.TOO_COSTLY:
                self._condemn(schema)
            return "", answer.value.message
        problem = None if answer is None else (str(answer[0]), str(answer[1]))
        self._compiled.put(digest, (problem,), 1)
        return problem

    def _result(self, job: CallCheck, answer: Any) -> CheckResult:
        if not isinstance(answer, _Lost):
            return read_result(answer)
        # A cheap schema is not to blame: the arguments were large.
        if answer is _Lost.TOO_COSTLY and job.schema is not None and not schema_is_cheap(job.schema, job.formats):
            self._condemn(job.schema)
        return _failed(job, answer)

    def _condemn(self, schema: bytes) -> None:
        self._condemned.put(sha256(schema).digest(), self._clock() + self._remember_s, 1)

    def _is_condemned(self, schema: bytes) -> bool:
        until = self._condemned.get(sha256(schema).digest())
        return until is not None and self._clock() < until

    # --- the child

    def _ask(self, job: dict[str, Any]) -> asyncio.Future[Any]:
        """The answer of the child, or a `_Lost`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        try:
            self._queue.put_nowait((job, future))
        except asyncio.QueueFull:
            future.set_result(_Lost.BUSY)
        return future

    async def _work(self) -> None:
        while True:
            job, future = await self._queue.get()
            if future.cancelled():
                continue
            try:
                _answer(future, await self._exchange(job))
            except BaseException:
                _answer(future, _Lost.UNAVAILABLE)
                raise

    async def _exchange(self, job: dict[str, Any]) -> Any:
        try:
            child = await self._ready_child()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            await self._end_child()
            return _Lost.UNAVAILABLE
        assert child.stdin is not None
        try:
            async with asyncio.timeout(job["cpu_s"] * _SLACK):
                child.stdin.write(pack(job))
                await child.stdin.drain()
                return await _frame(child)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            self.lost_children += 1
            await self._end_child()
            return _Lost.TOO_COSTLY

    async def _ready_child(self) -> Process:
        if self._child is not None:
            # A child that died while idle shows the end of its output once the loop has looked.
            await asyncio.sleep(0)
            assert self._child.stdout is not None
            if self._child.returncode is None and not self._child.stdout.at_eof():
                return self._child
            await self._end_child()
        package = Path(__file__).resolve().parents[2]
        variables = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        child = self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the current folder is no place to import from
            "-m",
            "proxy.checks.child",
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            cwd="/",
            env={**variables, "PYTHONPATH": str(package)},
            start_new_session=True,  # an interrupt from the terminal is for the proxy, which may still need its child
            limit=1 << 20,
        )
        async with asyncio.timeout(_START_S):
            await _frame(child)
        return child

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            child.kill()
        await child.wait()
        assert child.stdin is not None
        child.stdin.close()


class _Pause:
    """Lets the event loop turn when work inside it has taken a few milliseconds."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def perhaps(self) -> None:
        if time.monotonic() - self._since > _INLINE_S:
            await asyncio.sleep(0)
            self._since = time.monotonic()


async def _frame(child: Process) -> Any:
    assert child.stdout is not None
    length = LENGTH.unpack(await child.stdout.readexactly(LENGTH.size))[0]
    if length > _MAX_FRAME:
        raise ValueError("an answer of the child is too large")
    return unpack(await child.stdout.readexactly(length))


def _answer(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _failed(job: CallCheck, lost: _Lost) -> CheckResult:
    return CheckResult(job.key, Verdict.SCHEMA_VIOLATION, "".join(job.fragments), error=lost.value)
