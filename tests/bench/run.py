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
are wrong, and the column "elsewhere" says how many cores were busy with something else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import command, results, workloads  # noqa: E402 - of the folder above, which is no package
from bench.results import Row  # noqa: E402
from bench.rig import Rig, rig  # noqa: E402
from bench.targets import PEERS  # noqa: E402

CELLS = (
    "text-200:16/64,tools-2x40:16/64,long-2000:16,bigargs-1m:16,paced:64/256,nonstream:16/64,"
    "leaky-text:16,schema-100:16,reask:16"
)
# Where slow peers are measured too: elsewhere one reply may take them minutes.
SLOW_CELLS = {("text-200", 16), ("tools-2x40", 16), ("nonstream", 16), ("paced", 64)}

Cells = Sequence[tuple[str, int]]


def rounds(found: Rig, cells: Cells, count: int, seconds: float, until: float) -> list[Row]:
    """Every cell's rounds; none begins after `until` on the monotonic clock."""
    rows: list[Row] = []
    for workload, concurrency in cells:
        slow = {name for name, peer in PEERS.items() if peer.slow and (workload, concurrency) not in SLOW_CELLS}
        there = [target for target in found.targets if target.name not in slow]
        for number in range(count):
            if time.monotonic() > until:
                print(f"the time is over: no round {number + 1} of {workload} at {concurrency}", file=sys.stderr)
                break
            first = number % len(there)
            for target in there[first:] + there[:first]:
                cell = {"target": target.name, "workload": workload, "concurrency": concurrency, "round": number}
                rows.append({**cell, **found.measure(target, workload, concurrency, seconds)})
                print(_line(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _line(row: Row) -> str:
    said = f"{row['workload']} at {row['concurrency']}, round {row['round'] + 1}, {row['target']}: "
    if "error" in row:
        return said + str(row["error"])
    cpu = results.number(row.get("cpu_s_per_1000_events"))
    wrong = f", WRONG {row['wrong']}" if row["wrong"] else ""
    return f"{said}{results.number(row['requests_per_s'])} requests/s, {cpu} CPU s / 1,000 events{wrong}"


def cells_of(text: str) -> list[tuple[str, int]]:
    """`text-200:16/64,nonstream:16` as pairs. Raises KeyError or ValueError."""
    found = []
    for part in text.split(","):
        workload, _, numbers = part.partition(":")
        workloads.named(workload)
        found += [(workload, int(concurrency)) for concurrency in numbers.split("/")]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = command.parser(__doc__)
    options.add_argument("--cells", default=CELLS, help="WORKLOAD:CONNECTIONS[/CONNECTIONS],... (default: %(default)s)")
    options.add_argument("--peers", default=",".join(PEERS), help="names, or nothing (default: %(default)s)")
    options.add_argument("--environments", type=Path, default=HERE / "environments", help="what setup.sh made")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.5, help="of one measurement; paced ones take longer")
    options.add_argument("--workers", type=int, action="append", default=[], help="measure Wholecall with so many too")
    options.add_argument("--minutes", type=float, default=60, help="no further round begins after that")
    chosen = options.parse_args(arguments)
    try:
        cells = cells_of(chosen.cells)
        peers = [name for name in chosen.peers.split(",") if name]
        if unknown := set(peers) - PEERS.keys():
            raise ValueError(f"no such peer: {', '.join(unknown)}")
    except (KeyError, ValueError) as error:
        options.error(str(error))
    wholecalls = command.wholecalls_of(chosen)
    command.stop_by_signal()
    until = time.monotonic() + chosen.minutes * 60
    found = command.described(wholecalls, arguments)
    with rig(wholecalls, peers, chosen.environments, workers=chosen.workers) as there:
        rows = rounds(there, cells, chosen.rounds, chosen.seconds, until)
    found |= {
        "peers": {target.name: target.versions for target in there.targets if target.versions},
        "left_out": there.left_out,
        "goals": results.judged(rows, list(wholecalls)),
        "scaling": results.scaling(rows, [target for target in there.targets if target.workers > 1]),
        "cells": results.summary(rows),
        "rows": rows,
    }
    command.write(chosen.out, "run", found, results.markdown(found))
    return 1 if any("error" in row or row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
