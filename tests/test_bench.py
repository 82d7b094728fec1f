"""The measuring rig in its smallest form: that it runs, that every reply is right, and what it writes. No times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import footprint, growth, load, publish, results, workloads

BENCH = Path(__file__).resolve().parent / "bench"
WORKLOADS = ("text-200", "tools-2x40", "leaky-text", "schema-100", "reask", "nonstream")

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the rig reads /proc")


def processes_of(folder: Path) -> list[str]:
    """Command lines that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_one_short_round_finds_right_replies_and_leaves_nothing_running(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    cells = ",".join(f"{name}:2" for name in WORKLOADS)
    command = [
        sys.executable,
        str(BENCH / "run.py"),
        "--peers",
        "",
        "--rounds",
        "1",
        "--seconds",
        "0.05",
        "--cells",
        cells,
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "run.json").read_text())
    assert [(cell["workload"], list(cell["targets"])) for cell in found["cells"]] == [
        (name, ["direct", "wholecall"]) for name in WORKLOADS
    ]
    for row in found["rows"]:
        assert row["wrong"] == {}
        assert row["requests"] >= 2
        assert row["cpu_s_per_1000_events"] > 0
    assert all(goal["met"] is None for goal in found["goals"])  # without nginx there is nothing to compare with
    assert found["machine"]["cores"] >= 1
    assert found["wholecall"]["wholecall"]["python"]
    assert "#### schema-100, 2 at once" in (tmp_path / "run.md").read_text()
    assert not processes_of(scratch)
    assert not list(scratch.iterdir())


def test_growth_is_measured_and_drawn(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "growth.py"), "--series", "calls,tools", "--scale", "0.02"]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr[-4000:]  # 1: not linear; at these sizes that says nothing
    found = json.loads((tmp_path / "growth.json").read_text())
    assert [point["size"] for point in found["series"]["tools"]["points"]] == [1, 2, 4, 6, 8, 10]
    assert all(point["cpu_ms"] > 0 for series in found["series"].values() for point in series["points"])
    assert (tmp_path / "growth.svg").read_text().count("<circle") == 2 * (3 + 6)


def test_a_start_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "STARTS", 1)
    found = footprint.start(Path(sys.executable).with_name("wholecall"))
    assert all(value > 0 for value in found.values())


@pytest.mark.parametrize(
    ("cost", "linear"),
    [
        (lambda size: 3 + 0.5 * size, True),
        (lambda size: 3.0, True),
        (lambda size: 3 + 0.5 * size + 0.001 * size**2, False),
    ],
)
def test_growth_is_linear_where_the_largest_costs_what_the_others_predict(
    cost: Callable[[int], float], linear: bool
) -> None:
    points = [{"size": size, "cpu_ms": cost(size)} for size in (1, 10, 100, 1000, 2000)]
    assert growth.judged(points, "cpu_ms")["linear"] is linear


def test_a_ratio_is_taken_inside_a_round_before_the_median() -> None:
    def row(target: str, number: int, cpu: float) -> results.Row:
        return {"target": target, "round": number, "cpu_s": cpu}

    rows = [row("a", 0, 2), row("b", 0, 1), row("a", 1, 30), row("b", 1, 10), row("a", 2, 400), row("b", 2, 100)]
    assert results.compared(rows, "a", "b", "cpu_s", "ratio") == 3
    assert results.compared(rows, "a", "b", "cpu_s", "difference") == 20
    assert results.compared(rows, "a", "", "cpu_s", "value") == 30
    assert results.compared(rows, "a", "c", "cpu_s", "ratio") is None


def test_the_readmes_figures_are_the_published_ones() -> None:
    written = publish.README.read_text().partition(publish.BEGIN)[2].partition(publish.END)[0]
    assert written == publish.block(*publish.published())
    assert (publish.PUBLISHED / "growth.svg").exists()


def test_a_wrong_reply_is_seen() -> None:
    workload = workloads.named("tools-2x40")
    body = b"".join(workload.turns[0].events)
    load.check_reply(200, body, True, workload.passed)
    damaged = [
        body.replace(b"data: [DONE]\n\n", b""),
        body.replace(b"call_bench", b"", 1).replace(b"0" * 20, b"", 1),
        body.replace(b"path", b"pat", 1),
        body.replace(b'"finish_reason":"tool_calls"', b'"finish_reason":"stop"'),
    ]
    for wrong in damaged:
        with pytest.raises(load.BadReply):
            load.check_reply(200, wrong, True, workload.passed)
    with pytest.raises(load.BadReply):
        load.check_reply(502, body, True, workload.passed)
