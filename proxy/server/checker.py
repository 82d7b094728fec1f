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
from collections import OrderedDict, deque
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
_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[2])
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class _Lost(Enum):
    """Why a job has no answer."""

    TOO_COSTLY = CallError("", "too_costly", "the check took too long and was ended")
    UNAVAILABLE = CallError("", "uncheckable", "the check could not be carried out now")
    BUSY = CallError("", "uncheckable", "too many checks are waiting")


_TOO_COSTLY: Problem = ("", _Lost.TOO_COSTLY.value.message)

_Job = tuple[dict[str, Any], bytes | None, asyncio.Future[Any]]
"""What the child is asked, the digest of the schema to blame if it takes too long, and who waits."""


class Checker:
    """Judges calls and compiles schemas. Use it from one event loop; `close` ends the child.

    `deadline_s`: CPU time of one job. `max_waiting`: jobs of one client that may wait for the child, further ones fail;
    clients take turns, so that one's costly jobs hold up its own.
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
        self._max_waiting = max_waiting
        self._lines: OrderedDict[str, deque[_Job]] = OrderedDict()  # what waits, by client; the next one's turn first
        self._filled = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._condemned: BoundedCache[float] = BoundedCache(max_entries=1024, max_size=1024)
        self._compiled: BoundedCache[tuple[Problem | None]] = BoundedCache(max_entries=4096, max_size=4096)
        self._usable: BoundedCache[bool] = BoundedCache(max_entries=512, max_size=8 << 20)  # whole sets of tools

    async def start(self) -> None:
        """Starts the child ahead of the first job. Raises RuntimeError if schemas could read files or if no child comes
        up, OSError if there is no program to start."""
        self_probe()
        try:
            await self._ready_child()
        except (TimeoutError, ValueError, asyncio.IncompleteReadError):
            await self._end_child()
            raise RuntimeError("the process for costly checks does not come up") from None

    async def close(self) -> None:
        """Ends the child; jobs still waiting fail."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        self._fail_waiting()
        await self._end_child()

    async def judge(self, jobs: Sequence[CallCheck], client: str = "") -> list[CheckResult]:
        """One result a job, in their order. `client`: whose reply it is."""
        asked: list[CheckResult | asyncio.Future[Any]] = []
        pause = _Pause()
        for job in jobs:
            if is_cheap(job):
                asked.append(judge(job))
            else:
                # A cheap schema is not to blame for the time that large arguments take.
                blamed = None if schema_is_cheap(job.schema, job.formats) else job.schema
                size = len("".join(job.fragments))
                cpu_s = self._deadline_s * (1 + size / _SIZE_FOR_AS_MUCH_AGAIN)
                asked.append(self._ask(judge_job(job, cpu_s), blamed, client))
            await pause.perhaps()
        results = []
        for job, one in zip(jobs, asked, strict=True):
            if isinstance(one, CheckResult):
                results.append(one)
                continue
            answer = await one
            results.append(_failed(job, answer) if isinstance(answer, _Lost) else read_result(answer))
        return results

    async def compile_problems(self, schemas: Sequence[bytes], client: str = "") -> list[Problem | None]:
        """For each schema the pointer and message of what makes it unusable, or None.

        None too where that cannot be found out now, which is not the schema's fault: its calls will be judged, or be
        faulty where they cannot be; and behind one that takes too long, since the request is refused for that one.
        """
        tool_set = tuple(schemas)
        if self._usable.get(tool_set):
            return [None] * len(tool_set)
        problems: list[Problem | None] = []
        pause = _Pause()
        lasting = True  # what is found out now holds for ever
        for schema in schemas:
            if _TOO_COSTLY in problems:
                problems.append(None)
                continue
            if len(schema) > self._max_schema_bytes or schema_is_cheap(schema):
                problems.append(compile_problem(schema, self._max_schema_bytes))
            else:
                lasting = False
                problems.append(await self._compile_problem(schema, client))
            await pause.perhaps()
        if lasting and not any(problems):
            self._usable.put(tool_set, True, sum(map(len, tool_set)) + 64 * len(tool_set))
        return problems

    async def _compile_problem(self, schema: bytes, client: str) -> Problem | None:
        digest = sha256(schema).digest()
        known = self._compiled.get(digest)
        if known is not None:
            return known[0]
        answer = await self._ask(compile_job(schema, self._max_schema_bytes, self._deadline_s), schema, client)
        if isinstance(answer, _Lost):
            return _TOO_COSTLY if answer is _Lost.TOO_COSTLY else None
        problem = None if answer is None else (str(answer[0]), str(answer[1]))
        self._compiled.put(digest, (problem,), 1)
        return problem

    # --- the child

    def _ask(self, job: dict[str, Any], blamed: bytes | None, client: str) -> asyncio.Future[Any]:
        """The answer of the child, or a `_Lost`. `blamed`: the schema that is not run again if this takes too long."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        line = self._lines.setdefault(client, deque())
        if len(line) >= self._max_waiting:
            future.set_result(_Lost.BUSY)
        else:
            line.append((job, None if blamed is None else sha256(blamed).digest(), future))
            self._filled.set()
        return future

    async def _next(self) -> _Job:
        while not self._lines:
            self._filled.clear()
            await self._filled.wait()
        client, line = next(iter(self._lines.items()))
        job = line.popleft()
        if line:
            self._lines.move_to_end(client)
        else:
            del self._lines[client]
        return job

    async def _work(self) -> None:
        while True:
            job, blamed, future = await self._next()
            if future.cancelled():
                continue
            if blamed is not None and self._clock() < (self._condemned.get(blamed) or 0.0):
                _answer(future, _Lost.TOO_COSTLY)
                continue
            try:
                answer = await self._exchange(job)
            except BaseException:
                # Nobody may wait for ever, neither at `close` nor after a mistake of ours; the next job starts anew.
                _answer(future, _Lost.UNAVAILABLE)
                self._fail_waiting()
                self._worker = None
                raise
            if answer is _Lost.TOO_COSTLY and blamed is not None:
                self._condemned.put(blamed, self._clock() + self._remember_s, 1)
            _answer(future, answer)

    def _fail_waiting(self) -> None:
        for line in self._lines.values():
            for _, _, future in line:
                _answer(future, _Lost.UNAVAILABLE)
        self._lines.clear()

    async def _exchange(self, job: dict[str, Any]) -> Any:
        try:
            child = await self._ready_child()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
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
            env={**variables, "PYTHONPATH": _PACKAGE_FOLDER},
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
