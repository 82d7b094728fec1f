#!/usr/bin/env python3
"""Puts measured figures into the repository: tests/bench/published/ and the README's block about costs.

python tests/bench/run.py --workers 2 && python tests/bench/growth.py && python tests/bench/footprint.py
python tests/bench/publish.py                     takes what these three have written
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import workloads  # noqa: E402 - of the folder above, which is no package
from bench.results import number, table  # noqa: E402

README = HERE.parent.parent / "README.md"
PUBLISHED = HERE / "published"
BEGIN, END = "<!-- written by tests/bench/publish.py -->\n", "<!-- until here -->\n"
STREAMS = (50, 200, 1_000)
RATES = (10, 30, 100)
BUSY = 0.7  # of a core: beyond that waiting grows faster than load
SAID = {
    "nginx": "nginx, bytes passed",
    "naive-aiohttp": "Starlette + httpx on aiohttp, bytes passed",
    "naive": "Starlette + httpx, bytes passed",
    "portkey": "Portkey",
    "litellm": "LiteLLM",
    "wholecall": "**Wholecall**, all judged",
}


def block(run: dict[str, Any], growth: dict[str, Any], footprint: dict[str, Any]) -> str:
    """The README's text between the markers."""
    cells = {(cell["workload"], cell["concurrency"]): cell["targets"] for cell in run["cells"]}

    def figure(workload: str, concurrency: int, target: str, metric: str, times: float = 1.0) -> str:
        value = cells[workload, concurrency].get(target, {}).get(metric)
        return number(value if value is None else value * times)

    def cpu_us(workload: str, concurrency: int, target: str) -> str:
        return figure(workload, concurrency, target, "cpu_s_per_1000_events", 1e3)

    head = ["", "text: µs", "replies/s", "tool calls: µs", "replies/s", "paced: µs", "added ms", "plain replies/s"]
    rows = [
        [
            said,
            cpu_us("text-200", 16, name),
            figure("text-200", 16, name, "requests_per_s"),
            cpu_us("tools-2x40", 16, name),
            figure("tools-2x40", 16, name, "requests_per_s"),
            cpu_us("paced", 64, name),
            figure("paced", 64, name, "event_p50_ms_above_nginx"),
            figure("nonstream", 16, name, "requests_per_s"),
        ]
        for name, said in SAID.items()
        if name in cells["text-200", 16]
    ]
    start, streams = footprint["start"], footprint["streams_kib"]
    rounds = max(figures["rounds"] for cell in run["cells"] for figures in cell["targets"].values())
    series = growth["series"].values()
    straight = all(one["cpu"]["linear"] and one["memory"]["linear"] for one in series)
    grows = ", ".join(f"{one['points'][-1]['size']:,} {one['unit']}" for one in series)
    how = paragraph(
        f"One worker on one core of {run['machine']['cpu']}, load and mock backend on another; medians of {rounds}",
        "rounds in which all take turns. CPU is in microseconds for each event of the backend. Text (200 deltas), tool",
        "calls (two, in 80 fragments) and plain replies are asked for 16 at once, without a pause; paced are 64",
        "streams with an event every 20 ms, and what the median event takes longer than through nginx.",
    )
    growing = paragraph(
        f"CPU and memory {'grow' if straight else 'do not all grow'} in a straight line with the size of a reply,",
        f"measured up to {grows}:",
    )
    fixed = paragraph(
        f"A start takes {number(start['cpu_s'])} s of CPU and {number(start['memory_mib'])} MiB,",
        *[f"{what} {kib:.0f} KiB," for what, kib in streams.items()],
        f"the image about {footprint['image']['sum_mb']:.0f} MB.",
        *_workers(run["scaling"]),
        "All figures, with versions and the commit, are in [tests/bench/published](tests/bench/published).",
        "`python tests/bench/run.py` measures anew, in some 25 minutes;",
        "with `--rounds 1 --cells text-200:16 --peers ''` it takes a first look.",
        "`sh tests/bench/setup.sh DIR` installs the others, for `--environments DIR`.",
    )
    plot = "![CPU and memory by size](tests/bench/published/growth.svg)"
    return "\n\n".join([how, table(head, rows), growing, plot, fixed, *_sizing(run, footprint)]) + "\n"


def _sizing(run: dict[str, Any], footprint: dict[str, Any]) -> list[str]:
    """What so many streams need, from what paced ones cost: an event for each read, the dearest way to send them."""
    # The fewer streams there are, the dearer an event is: those of the smallest number.
    paced, *_ = [cell["targets"]["wholecall"] for cell in run["cells"] if cell["workload"] == "paced"]
    event_s = paced["cpu_s_per_1000_events"] / 1000
    stream_kib = max(footprint["streams_kib"].values())
    head = ["streams at once", "memory, MiB", *(f"cores at {rate} events/s" for rate in RATES)]
    rows = [
        [
            f"{streams:,}",
            number(footprint["start"]["memory_mib"] + streams * stream_kib / 1024),
            *(number(streams * rate * event_s) for rate in RATES),
        ]
        for streams in STREAMS
    ]
    told = paragraph(
        "**Sizing**, computed from the paced figure and the memory of a stream; the events a second, mostly tokens,",
        f"are those of each stream. A worker has one core at most: take so many that none needs more than {BUSY:g} of",
        "it, by `--workers` or by replicas. It errs on the safe side: the fuller a read is, the less an event costs.",
    )
    return [told, table(head, rows)]


def _workers(scaling: Sequence[dict[str, Any]]) -> list[str]:
    """What several workers carry, if that was measured."""
    found = [(one["speed"], one["ceiling"]) for one in scaling if not workloads.named(one["workload"]).timed]
    if not found:
        return []
    (low, high), (floor, ceiling) = ((min(values), max(values)) for values in zip(*found, strict=True))
    return [
        f"Two workers on the two cores, which they share with the load, carry {low:.1f} to {high:.1f} times as much as",
        f"one; the cores have room for {floor:.1f} to {ceiling:.1f} times as much.",
    ]


def paragraph(*parts: str) -> str:
    return textwrap.fill(" ".join(parts), 120, break_long_words=False, break_on_hyphens=False)


def published() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    run, growth, footprint = (
        json.loads((PUBLISHED / f"{name}.json").read_text()) for name in ("run", "growth", "footprint")
    )
    return run, growth, footprint


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, nargs="?", default=HERE / "results", help="(default: %(default)s)")
    folder = options.parse_args(arguments).folder
    PUBLISHED.mkdir(exist_ok=True)
    for name in ("run", "growth", "footprint"):
        found = json.loads((folder / f"{name}.json").read_text())
        found.pop("rows", None)  # of every round: too much to keep
        found["command"] = [Path(word).name if word.startswith("/") else word for word in found["command"]]
        (PUBLISHED / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    shutil.copy(folder / "growth.svg", PUBLISHED)
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(before + BEGIN + block(*published()) + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
