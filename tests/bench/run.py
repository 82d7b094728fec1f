#!/usr/bin/env python3
"""Measures Wholecall beside its peers on the same work: prints tables, writes them and the raw figures as JSON.

    python tests/bench/run.py                                        what is installed here, about 25 minutes
    python tests/bench/run.py --rounds 1 --cells text-200:16         a first look
    python tests/bench/run.py --wholecall old=../old/.venv/bin/wholecall --wholecall new=.venv/bin/wholecall

Everything runs on 127.0.0.1, on two cores: the proxy on the first, the mock backend and the load on the second. In each
round of a cell (a workload and a number of connections) all targets are measured one after the other, in an order that
moves on; ratios are taken inside a round, and the tables have the medians over the rounds. Every loop is bounded, and
what was started is stopped. CPU is user and system time of the proxy's process tree, for each 1,000 events of the
backend. Who shares its core with others reads larger batches, which makes every event cheaper: ratios of a busy machine
are wrong, and the column "elsewhere" says how busy it was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import results, targets, workloads  # noqa: E402 - of the folder above, which is no package
from bench.goals import GOALS  # noqa: E402
from bench.processes import NotStarted, running  # noqa: E402
from bench.results import Row  # noqa: E402
from bench.targets import PEERS, Missing, Target  # noqa: E402
from running import free_port  # noqa: E402

CELLS = (
    "text-200:16/64,tools-2x40:16/64,long-2000:16,bigargs-1m:16,paced:64/256,nonstream:16/64,"
    "leaky-text:16,schema-100:16,reask:16"
)
# As long as one reply with pauses takes, and more: the first replies begin over a second.
TIMED_S = 3.0
SPREAD_MS = 1000
ONE_S = 240.0  # for one measurement, with all that can hang

Cells = Sequence[tuple[str, int]]


@dataclass(slots=True)
class Rig:
    """Running targets and where the load runs."""

    targets: list[Target] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    load_cpu: int = 0
    upstream_pid: int = 0

    def measure(self, target: Target, workload: str, concurrency: int, seconds: float, warm_up: bool = True) -> Row:
        """One measurement by load.py, whose keys it has, or "error"."""
        timed = workloads.named(workload).timed
        command = [
            *(
                sys.executable,
                "-m",
                "bench.load",
                "--url",
                target.url,
                "--workload",
                workload,
                "--expect",
                target.expect,
            ),
            *("--concurrency", str(concurrency), "--seconds", str(max(seconds, TIMED_S) if timed else seconds)),
            *("--spread-ms", str(SPREAD_MS if timed else 0), "--warm-up", str(max(3, concurrency) if warm_up else 0)),
            *("--pid", str(target.pid), "--pid", str(self.upstream_pid)),
        ]
        for header in target.headers:
            command += ["--header", header]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": str(HERE.parent)},
                capture_output=True,
                timeout=ONE_S,
                check=True,
                preexec_fn=lambda: os.sched_setaffinity(0, {self.load_cpu}),
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no end within {ONE_S:g} s"}
        except subprocess.CalledProcessError as error:
            return {"error": error.stderr.decode(errors="replace")[-400:]}
        row: Row = json.loads(done.stdout)
        return row


@contextmanager
def rig(
    wholecalls: Mapping[str, Path],
    peers: Sequence[str],
    environments: Path,
    limits: str = "",
    workers: Sequence[int] = (),
) -> Iterator[Rig]:
    """All targets running. `workers`: numbers of processes with which Wholecall is measured too, on both cores."""
    cpus = sorted(os.sched_getaffinity(0))
    proxy_cpu, load_cpu = cpus[0], cpus[min(1, len(cpus) - 1)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wholecall-bench-")))
        program = targets.upstream(free_port())
        found = Rig(load_cpu=load_cpu)
        found.upstream_pid = stack.enter_context(running("upstream", program, {load_cpu}, folder))
        found.targets.append(Target("direct", program.port, found.upstream_pid))
        upstream_port = program.port
        for name in peers:
            peer = PEERS[name]
            try:
                program = targets.program_of(name, environments, upstream_port, folder)
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
                found.targets.append(Target(called, program.port, pid, "mended"))
        yield found


def is_asked_for(peer: str, workload: str, concurrency: int) -> bool:
    """Whether a peer is measured in a cell: a slow one where a goal needs it."""
    if peer not in PEERS or not PEERS[peer].slow:
        return True
    return any((g.peer, g.workload, g.concurrency) == (peer, workload, concurrency) for g in GOALS)


def rounds(found: Rig, cells: Cells, count: int, seconds: float, until: float) -> list[Row]:
    """Every cell's rounds; none begins after `until` on the monotonic clock."""
    rows: list[Row] = []
    for workload, concurrency in cells:
        there = [target for target in found.targets if is_asked_for(target.name, workload, concurrency)]
        for number in range(count):
            if time.monotonic() > until:
                print(f"the time is over: no round {number + 1} of {workload} at {concurrency}", file=sys.stderr)
                break
            first = number % len(there)
            for target in there[first:] + there[:first]:
                row = found.measure(target, workload, concurrency, seconds)
                rows.append(
                    {"target": target.name, "workload": workload, "concurrency": concurrency, "round": number, **row}
                )
                print(_line(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _line(row: Row) -> str:
    said = f"{row['workload']} at {row['concurrency']}, round {row['round'] + 1}, {row['target']}: "
    if "error" in row:
        return said + str(row["error"])
    cpu = results.number(row.get("cpu_s_per_1000_events"))
    wrong = f", WRONG {row['wrong']}" if row["wrong"] else ""
    return f"{said}{results.number(row['requests_per_s'])} requests/s, {cpu} CPU s / 1,000 events{wrong}"


def described(wholecalls: Mapping[str, Path], command: Sequence[str]) -> dict[str, Any]:
    """What a result has to say besides figures."""
    return {
        "command": list(command),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": results.machine(),
        "wholecall": {name: targets.wholecall_versions(path) for name, path in wholecalls.items()},
    }


def cells_of(text: str) -> list[tuple[str, int]]:
    """`text-200:16/64,nonstream:16` as pairs. Raises KeyError or ValueError."""
    found = []
    for part in text.split(","):
        workload, _, numbers = part.partition(":")
        workloads.named(workload)
        found += [(workload, int(concurrency)) for concurrency in numbers.split("/")]
    return found


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all measuring commands have."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--wholecall",
        action="append",
        metavar="[NAME=]COMMAND",
        help="an installed `wholecall`; several are compared (default: the one beside this Python)",
    )
    options.add_argument("--environments", type=Path, default=HERE / "environments", help="what setup.sh made")
    options.add_argument("--out", type=Path, default=HERE / "results", help="the folder for the results")
    options.add_argument("--minutes", type=float, default=60, help="no further round begins after that")
    return options


def wholecalls_of(options: argparse.Namespace) -> dict[str, Path]:
    found = {}
    for text in options.wholecall or [str(Path(sys.executable).with_name("wholecall"))]:
        name, _, command = text.rpartition("=")
        found[name or "wholecall"] = Path(command).absolute()
    return found


def write(folder: Path, name: str, found: dict[str, Any], markdown: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown + "\n")
    print(markdown)
    print(f"\nwritten to {folder / name}.json and .md", file=sys.stderr)


def stop_by_signal() -> None:
    """SIGTERM ends the run as an exception does, so that everything is stopped."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--cells", default=CELLS, help=f"WORKLOAD:CONNECTIONS[/CONNECTIONS],... (default: {CELLS})")
    options.add_argument("--peers", default=",".join(PEERS), help="names, or nothing (default: %(default)s)")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.5, help="of one measurement; paced ones take longer")
    options.add_argument("--workers", type=int, action="append", default=[], help="measure Wholecall with so many too")
    chosen = options.parse_args(arguments)
    try:
        cells = cells_of(chosen.cells)
        peers = [name for name in chosen.peers.split(",") if name]
        if unknown := set(peers) - PEERS.keys():
            raise ValueError(f"no such peer: {', '.join(unknown)}")
    except (KeyError, ValueError) as error:
        options.error(str(error))
    wholecalls = wholecalls_of(chosen)
    stop_by_signal()
    until = time.monotonic() + chosen.minutes * 60
    found = described(wholecalls, [sys.executable, *sys.argv] if arguments is None else list(arguments))
    with rig(wholecalls, peers, chosen.environments, "", chosen.workers) as running_rig:
        rows = rounds(running_rig, cells, chosen.rounds, chosen.seconds, until)
        ours = [target.name for target in running_rig.targets if target.expect == "mended"]
        found |= {
            "peers": {target.name: target.versions for target in running_rig.targets if target.versions},
            "left_out": running_rig.left_out,
            "goals": [goal for goal in results.judged(rows, ours) if "workers" not in goal["target"]],
            "cells": results.summary(rows),
            "rows": rows,
        }
    write(chosen.out, "run", found, results.markdown(found))
    return 1 if any("error" in row or row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
