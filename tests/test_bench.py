"""The measuring rig in its smallest form: that it runs, that every reply is right, and what it writes. No times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import load, results, workloads

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


def test_a_ratio_is_taken_inside_a_round_before_the_median() -> None:
    def row(target: str, number: int, cpu: float) -> results.Row:
        return {"target": target, "round": number, "cpu_s": cpu}

    rows = [row("a", 0, 2), row("b", 0, 1), row("a", 1, 30), row("b", 1, 10), row("a", 2, 400), row("b", 2, 100)]
    assert results.compared(rows, "a", "b", "cpu_s", "ratio") == 3
    assert results.compared(rows, "a", "b", "cpu_s", "difference") == 20
    assert results.compared(rows, "a", "", "cpu_s", "value") == 30
    assert results.compared(rows, "a", "c", "cpu_s", "ratio") is None


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
