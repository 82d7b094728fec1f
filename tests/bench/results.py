"""What a run found: medians over rounds, ratios taken inside a round, tables."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.goals import GOALS, Goal
from bench.targets import Target

Row = dict[str, Any]  # what load.py printed, with the keys target, workload, concurrency and round


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len([line for line in info if line.startswith("processor")]),
        "memory_gib": round(memory, 1),
        "kernel": platform.release(),
    }


def median(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def _by_round(rows: Sequence[Row], target: str, metric: str) -> dict[int, float]:
    return {row["round"]: row[metric] for row in rows if row["target"] == target and row.get(metric) is not None}


def compared(rows: Sequence[Row], target: str, peer: str, metric: str, how: str) -> float | None:
    """The median over the rounds of `metric` over the peer's ("ratio"), less it ("difference") or alone ("value")."""
    own = _by_round(rows, target, metric)
    if how == "value":
        return median(own.values())
    others = _by_round(rows, peer, metric)
    both = own.keys() & others.keys()
    if how == "ratio":
        return median(own[number] / others[number] for number in both if others[number])
    return median(own[number] - others[number] for number in both)


def cells(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["workload"], row["concurrency"]), []).append(row)
    return found


_METRICS = (
    ("requests_per_s", "requests/s"),
    ("events_per_s", "events/s"),
    ("cpu_s_per_1000_events", "CPU s / 1,000 events"),
    ("cpu_ms_per_request", "CPU ms / request"),
    ("first_byte_p50_ms", "first byte ms"),
    ("reply_p50_ms", "reply ms"),
    ("reply_p99_ms", "reply p99 ms"),
    ("event_p50_ms", "event ms"),
    ("event_p99_ms", "event p99 ms"),
    ("peak_mib", "peak MiB"),
    ("elsewhere", "elsewhere"),
)


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry a cell: the medians of each target, and the ratios to nginx."""
    found = []
    for (workload, concurrency), cell in cells(rows).items():
        targets = {}
        for target in dict.fromkeys(row["target"] for row in cell):
            ours = [row for row in cell if row["target"] == target]
            figures: dict[str, Any] = {
                metric: median(row.get(metric) for row in ours)
                for metric, _ in _METRICS
                if any(row.get(metric) is not None for row in ours)
            }
            figures["cpu_to_nginx"] = compared(cell, target, "nginx", "cpu_s_per_1000_events", "ratio")
            if "event_p50_ms" in figures:
                for metric in ("event_p50_ms", "event_p99_ms"):
                    figures[f"{metric}_above_nginx"] = compared(cell, target, "nginx", metric, "difference")
            figures["rounds"] = len(ours)
            figures["wrong"] = _wrong(ours)
            targets[target] = figures
        found.append({"workload": workload, "concurrency": concurrency, "targets": targets})
    return found


def scaling(rows: Sequence[Row], targets: Sequence[Target]) -> list[dict[str, Any]]:
    """Wholecall with several workers against one. The load and the mock backend share their cores, so there is a
    ceiling: all cores busy with what a request costs everywhere."""
    found = []
    for (workload, concurrency), cell in cells(rows).items():
        for target in targets:
            alone = target.name.partition(",")[0]
            spent = median(_cpu_everywhere(row) for row in cell if row["target"] == alone)
            speed = median(row.get("requests_per_s") for row in cell if row["target"] == alone)
            found.append(
                {
                    "workload": workload,
                    "concurrency": concurrency,
                    "target": target.name,
                    "requests_per_s": median(r.get("requests_per_s") for r in cell if r["target"] == target.name),
                    "speed": compared(cell, target.name, alone, "requests_per_s", "ratio"),
                    "ceiling": min(target.workers, machine()["cores"]) / spent / speed if spent and speed else None,
                    "cpu": compared(cell, target.name, alone, "cpu_s_per_1000_events", "ratio"),
                }
            )
    return found


def _cpu_everywhere(row: Row) -> float | None:
    """Seconds of all processes for one request."""
    if not row.get("requests") or "cpu_s" not in row:
        return None
    total: float = (row["cpu_s"] + row["load_cpu_s"] + sum(row["others_cpu_s"])) / row["requests"]
    return total


def _wrong(rows: Sequence[Row]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        for what, count in (row.get("wrong") or {}).items():
            found[what] = found.get(what, 0) + count
        if "error" in row:
            found[row["error"]] = found.get(row["error"], 0) + 1
    return found


def judged(rows: Sequence[Row], targets: Sequence[str]) -> list[dict[str, Any]]:
    """Each goal for each of Wholecall's targets."""
    by_cell = cells(rows)
    found = []
    for goal in GOALS:
        cell = by_cell.get((goal.workload, goal.concurrency), [])
        for target in targets:
            value = compared(cell, target, goal.peer, goal.metric, goal.how)
            met = None if value is None else goal.is_met(value)
            found.append({**_described(goal), "target": target, "value": value, "met": met})
    return found


def _described(goal: Goal) -> dict[str, Any]:
    return {"workload": goal.workload, "concurrency": goal.concurrency, "what": goal.said, "goal": goal.bound}


# --- Markdown ----------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0") if "e" in text else text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; the first column is text, the others are numbers."""
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def markdown(found: dict[str, Any]) -> str:
    parts = []
    for cell in found["cells"]:
        targets: dict[str, dict[str, Any]] = cell["targets"]
        metrics = [(key, said) for key, said in _METRICS if any(figures.get(key) for figures in targets.values())]
        head = ["", *[said for _, said in metrics], "CPU / nginx", "wrong"]
        lines = [
            [
                name,
                *[number(figures.get(key)) for key, _ in metrics],
                number(figures["cpu_to_nginx"]),
                str(sum(figures["wrong"].values())),
            ]
            for name, figures in targets.items()
        ]
        parts += [f"#### {cell['workload']}, {cell['concurrency']} at once", table(head, lines)]
        parts += [f"{name}: {what}" for name, figures in targets.items() for what in figures["wrong"]]
    if found["goals"]:
        words = {True: "met", False: "MISSED", None: "not measured"}
        lines = [
            [
                f"{g['workload']} at {g['concurrency']}: {g['what']}",
                g["target"],
                g["goal"],
                number(g["value"]),
                words[g["met"]],
            ]
            for g in found["goals"]
        ]
        parts += ["#### Goals", table(["goal", "target", "bound", "found", ""], lines)]
    if found["scaling"]:
        head = ["several workers", "requests/s", "times one worker's", "with all cores busy", "CPU / event, times"]
        lines = [
            [f"{s['workload']} at {s['concurrency']}, {s['target']}"]
            + [number(s[key]) for key in ("requests_per_s", "speed", "ceiling", "cpu")]
            for s in found["scaling"]
        ]
        parts += ["#### Scaling", table(head, lines)]
    parts += [f"Left out: {name}: {why}" for name, why in found["left_out"].items()]
    return "\n\n".join(parts)
