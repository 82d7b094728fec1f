"""The running whole: mock backend, targets, and one measurement."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import targets, workloads
from bench.processes import NotStarted, running
from bench.results import Row
from bench.targets import PEERS, Missing, Target
from running import free_port

# As long as one reply with pauses takes, and more: the first replies begin over a second.
TIMED_S = 3.0
SPREAD_MS = 1000
HANG_S = 240.0  # beyond the time of a measurement: for all that may hang
TESTS = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class Rig:
    """Running targets and where the load runs."""

    load_cpu: int
    upstream_pid: int
    targets: list[Target] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def load(self, target: Target, workload: str, concurrency: int, *more: str) -> subprocess.Popen[bytes]:
        """A load that has begun."""
        command = [
            *(sys.executable, "-m", "bench.load", "--url", target.url, "--workload", workload),
            *("--expect", target.expect, "--concurrency", str(concurrency), *more),
        ]
        for pid in dict.fromkeys((target.pid, self.upstream_pid)):
            command += ["--pid", str(pid)]
        for header in target.headers:
            command += ["--header", header]
        return subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, {self.load_cpu}),
        )

    def measure(
        self,
        target: Target,
        workload: str,
        concurrency: int,
        seconds: float,
        requests: int | None = None,
        warm_up: int | None = None,
    ) -> Row:
        """The keys that load.py prints, or "error". `requests`: no more of them; `warm_up`: before the clock starts."""
        timed = workloads.named(workload).timed
        if timed:
            seconds = max(seconds, TIMED_S)
        more = ["--seconds", str(seconds), "--spread-ms", str(SPREAD_MS if timed else 0)]
        more += ["--warm-up", str(max(3, concurrency) if warm_up is None else warm_up)]
        if requests is not None:
            more += ["--requests", str(requests)]
        process = self.load(target, workload, concurrency, *more)
        try:
            printed, errors = process.communicate(timeout=seconds + HANG_S)
        except subprocess.TimeoutExpired:
            return {"error": "the load hung"}
        finally:
            process.kill()
            process.communicate()
        if process.returncode:
            return {"error": errors.decode(errors="replace")[-400:]}
        row: Row = json.loads(printed)
        return row


@contextmanager
def rig(
    wholecalls: Mapping[str, Path],
    peers: Sequence[str] = (),
    environments: Path = Path(),
    limits: str = "",
    workers: Sequence[int] = (),
) -> Iterator[Rig]:
    """All targets running. `workers`: numbers of processes with which Wholecall is measured too, on both cores."""
    allow_many_files()
    cpus = sorted(os.sched_getaffinity(0))
    proxy_cpu, load_cpu = cpus[0], cpus[min(1, len(cpus) - 1)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wholecall-bench-")))
        program = targets.upstream(free_port())
        upstream_port = program.port
        found = Rig(load_cpu, stack.enter_context(running("upstream", program, {load_cpu}, folder)))
        found.targets.append(Target("direct", upstream_port, found.upstream_pid))
        for name in peers:
            peer = PEERS[name]
            try:
                program = peer.program(environments, upstream_port, free_port(), folder)
                pid = stack.enter_context(running(name, program, {proxy_cpu}, folder))
            except (Missing, NotStarted) as error:
                found.left_out[name] = str(error)
                print(f"left out: {name}: {error}", file=sys.stderr)
                continue
            headers = peer.headers(upstream_port)
            found.targets.append(Target(name, program.port, pid, headers=headers, versions=peer.versions(environments)))
        for name, command in wholecalls.items():
            for number in (1, *workers):
                called = name if number == 1 else f"{name}, {number} workers"
                program = targets.wholecall(command, free_port(), upstream_port, folder, limits, number)
                allowed = {proxy_cpu} if number == 1 else {proxy_cpu, load_cpu}
                pid = stack.enter_context(running(called, program, allowed, folder))
                found.targets.append(Target(called, program.port, pid, "mended", workers=number))
        yield found


def allow_many_files() -> None:
    """For this process and those that it starts: thousands of connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
