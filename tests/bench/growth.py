#!/usr/bin/env python3
"""Measures how the cost of one reply grows with its size: CPU time and peak memory, a fit, a plot.

    python tests/bench/growth.py                      about 10 minutes
    python tests/bench/growth.py --series calls,tools --scale 0.1

Each series is measured on a fresh process, with limits as high as the sizes need them. A line through all sizes
but the largest says what the largest should cost; growth is called linear if it costs no more than 1.3 times that.
Memory is the peak of the resident set less what it was before the series.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import command, plot, processes, workloads  # noqa: E402 - of the folder above, which is no package
from bench.results import number, table  # noqa: E402
from bench.rig import Rig, rig  # noqa: E402
from bench.targets import Target  # noqa: E402

LINEAR = 1.3  # the largest size's cost over the line through the others; twice as far means 2 where growth is quadratic
NOISE_MIB = 8.0  # the allocator takes and keeps memory in steps
CEILING_S = 900.0  # for one size
EVENTS_A_POINT = 60_000  # small replies are repeated until as many events of the backend have passed

LIMITS = """\
max_events = 10000000
max_reply_bytes = 4294967296
max_held_bytes = 67108864
max_arguments_bytes = 67108864
max_streams = 10000
connect_s = 60
"""


@dataclass(frozen=True, slots=True)
class Series:
    """`workload` names a workload for a size, or, with `streams`, what each of so many connections asks for."""

    title: str
    unit: str
    workload: str
    sizes: Sequence[int]
    streams: bool = False

    def scaled(self, scale: float) -> list[int]:
        return sorted({max(1, round(size * scale)) for size in self.sizes})


SERIES = {
    "events": Series("events of a reply", "events", "burst-{}", (1_000, 10_000, 100_000, 250_000, 500_000, 1_000_000)),
    "arguments": Series(
        "arguments of a call, one character an event",
        "characters",
        "args-{}",
        (1_000, 16_384, 131_072, 524_288, 1_048_576, 2_097_152, 4_194_304),
    ),
    "calls": Series("calls of a reply", "calls", "calls-{}", (1, 8, 16, 32, 64, 96, 128)),
    "tools": Series("declared tools", "tools", "schema-{}", (10, 50, 100, 200, 300, 400, 500)),
    "streams": Series("streams at once", "streams", "slow", (50, 250, 500, 1_000, 1_500, 2_000), streams=True),
}


def measured(found: Rig, target: Target, series: Series, size: int, scale: float, idle_mib: float) -> dict[str, Any]:
    """One point: CPU milliseconds for a reply, or for one on each of the streams, and the peak of memory."""
    if series.streams:
        row = found.measure(target, series.workload, size, 10.0, warm_up=0)
    else:
        workload = series.workload.format(size)
        events = workloads.named(workload).mended.events
        requests = max(1, min(500, round(EVENTS_A_POINT * min(scale, 1.0)) // events))
        row = found.measure(target, workload, 1, CEILING_S, requests, warm_up=1 if requests > 1 else 0)
    if "error" in row or row["wrong"]:
        raise SystemExit(f"{series.title}, {size}: {row.get('error') or row['wrong']}")
    cpu = row["cpu_ms_per_request"] * (size if series.streams else 1)
    point = {"size": size, "cpu_ms": cpu, "peak_mib": max(0.0, row["peak_mib"] - idle_mib), "requests": row["requests"]}
    print(f"{series.title}, {size:,}: {number(cpu)} ms, {number(point['peak_mib'])} MiB", file=sys.stderr, flush=True)
    return point


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope of the line with the least relative errors."""
    weights = [1 / max(y, 1e-9) ** 2 for _, y in points]
    total = sum(weights)
    x0 = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    y0 = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - x0) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - x0) * (y - y0) for w, (x, y) in zip(weights, points, strict=True)) / spread if spread else 0.0
    return y0 - slope * x0, slope


def judged(points: Sequence[dict[str, Any]], key: str, noise: float = 0.0) -> dict[str, Any]:
    """The line through all sizes but the largest, and what the largest costs over it, less `noise`."""
    pairs = [(float(point["size"]), float(point[key]) + noise) for point in points]
    fixed, each = line(pairs[:-1])
    size, found = pairs[-1]
    over = found / max(fixed + each * size, 1e-9)
    return {"fixed": fixed - noise, "each": each, "over_line": over, "linear": over <= LINEAR}


def markdown(found: dict[str, Any]) -> str:
    parts = []
    for series in found["series"].values():
        rows = [[f"{p['size']:,}", number(p["cpu_ms"]), number(p["peak_mib"])] for p in series["points"]]
        parts += [f"#### {series['title']}", table([series["unit"], "CPU ms", "peak MiB"], rows)]
        for key, what in (("cpu", "CPU"), ("memory", "memory")):
            fit = series[key]
            word = "linear" if fit["linear"] else "NOT LINEAR"
            parts.append(f"{what}: the largest is {fit['over_line']:.2f} times what the others predict: {word}")
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    options = command.parser(__doc__)
    options.add_argument("--series", default=",".join(SERIES), help="(default: %(default)s)")
    options.add_argument("--scale", type=float, default=1.0, help="times all sizes")
    chosen = options.parse_args(arguments)
    wholecalls = command.wholecalls_of(chosen)
    command.stop_by_signal()
    found = command.described(wholecalls, arguments) | {"series": {}}
    for name in chosen.series.split(","):
        series = SERIES[name]
        with rig(dict([*wholecalls.items()][:1]), limits=LIMITS) as there:
            target = there.targets[-1]
            there.measure(target, "text-10", 1, 5, 20, warm_up=0)
            idle = processes.memory_mib(target.pid)
            points = [measured(there, target, series, size, chosen.scale, idle) for size in series.scaled(chosen.scale)]
        found["series"][name] = {
            "title": series.title,
            "unit": series.unit,
            "points": points,
            "cpu": judged(points, "cpu_ms"),
            "memory": judged(points, "peak_mib", NOISE_MIB),
        }
    command.write(chosen.out, "growth", found, markdown(found))
    (chosen.out / "growth.svg").write_text(plot.growth(list(found["series"].values())))
    return 0 if all(s["cpu"]["linear"] and s["memory"]["linear"] for s in found["series"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
