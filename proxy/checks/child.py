"""The process in which costly checks run: it can be killed, which a validation inside the proxy cannot.

`python -m proxy.checks.child` reads jobs from standard input and writes one answer each to standard output, until the
input ends. A frame is a length (4 bytes, big-endian) and JSON of that many bytes. The first frame it writes is `null`:
it is ready. For each job it has the CPU time that the job allows, kept by a kernel timer (SIGPROF ends the process), so
that it cannot run on by itself if the proxy dies, and memory in proportion to the job's size, never more than 1 GiB of
address space: a schema of 1.3 KB has taken 200 MiB of contexts of errors.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

import orjson

from proxy.checks.judge import judge
from proxy.checks.schema import compile_problem, self_probe
from proxy.model.calls import CallCheck, CallError, CheckResult, Verdict
from proxy.model.findings import Quirk

ADDRESS_SPACE = 1 << 30
ROOM = 64 << 20  # bytes of memory that any job may take ...
GROWTH = 100  # ... and that many times its own size
LENGTH = struct.Struct(">I")


def pack(value: Any) -> bytes:
    """A frame. Half surrogates in texts survive: orjson refuses them, and then `json` writes their escapes."""
    try:
        body = orjson.dumps(value)
    except TypeError:
        body = json.dumps(value).encode()
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)


def judge_job(check: CallCheck, cpu_s: float) -> dict[str, Any]:
    return {
        "cpu_s": cpu_s,
        "key": check.key,
        "fragments": check.fragments,
        # A million fragments must not take long here: the event loop waits.
        "objects": [at for at, whole in enumerate(check.objects) if whole] if True in check.objects else [],
        "schema": None if check.schema is None else check.schema.decode("latin-1"),
        "repair": check.repair,
        "formats": check.formats,
        "skip_uncompilable": check.skip_uncompilable,
    }


def compile_job(schema: bytes, max_schema_bytes: int, cpu_s: float) -> dict[str, Any]:
    return {"cpu_s": cpu_s, "compile": schema.decode("latin-1"), "max_schema_bytes": max_schema_bytes}


def read_result(answer: Any) -> CheckResult:
    """The result in the child's answer to a judge job."""
    error = answer["error"]
    return CheckResult(
        answer["key"],
        Verdict(answer["verdict"]),
        answer["text"],
        tuple(map(Quirk, answer["quirks"])),
        tuple(answer["repairs"]),
        None if error is None else CallError(*error),
    )


def answer(job: Any) -> Any:
    """Does one job of `judge_job` or `compile_job`."""
    if "compile" in job:
        return compile_problem(job["compile"].encode("latin-1"), job["max_schema_bytes"])
    whole = set(job["objects"])
    result = judge(
        CallCheck(
            job["key"],
            tuple(job["fragments"]),
            tuple(at in whole for at in range(len(job["fragments"]))),
            None if job["schema"] is None else job["schema"].encode("latin-1"),
            job["repair"],
            job["formats"],
            job["skip_uncompilable"],
        )
    )
    error = result.error
    return {
        "key": result.key,
        "verdict": result.verdict,
        "text": result.text,
        "quirks": result.quirks,
        "repairs": result.repairs,
        "error": None if error is None else (error.path, error.rule, error.message),
    }


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    answers.write(pack(None))
    answers.flush()
    idle = _mapped()
    while len(head := jobs.read(LENGTH.size)) == LENGTH.size:
        (size,) = LENGTH.unpack(head)
        _limit_memory(idle + ROOM + GROWTH * size)
        job = unpack(jobs.read(size))
        signal.setitimer(signal.ITIMER_PROF, job["cpu_s"])
        frame = pack(answer(job))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(frame)
        answers.flush()


def _mapped() -> int:
    """Bytes of address space in use; where the system does not tell, all that may be."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return ADDRESS_SPACE


def _limit_memory(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (min(size, ADDRESS_SPACE), ADDRESS_SPACE))


def main() -> None:
    self_probe()
    _limit_memory(ADDRESS_SPACE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Nothing else may write between the frames.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
