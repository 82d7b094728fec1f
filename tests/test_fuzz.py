"""The fuzz targets hold for what they begin with, for what was kept of long runs, and for some thousand new inputs.

Long runs are by hand: see the docstring of tests/fuzz.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import corpus
from fuzz.targets import TARGETS, Target

RUN = Path(__file__).parent / "fuzz" / "run.py"
# Executions beside those of the seeds; all targets together take less than a minute of CPU time.
RUNS = 600

each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)


@each_target
def test_every_seed_and_every_kept_input_holds(target: Target) -> None:
    for data in (*target.seeds(), *corpus.load(target.name)):
        target.check(data)


@each_target
def test_inputs_that_are_some_changes_away_from_a_seed_hold(target: Target) -> None:
    """Without coverage, and so anywhere: the same inputs in every run."""
    assert target.mutator is not None
    draw, seeds = random.Random(target.name), target.seeds()
    for _ in range(150):
        data = draw.choice(seeds)
        for _ in range(draw.randint(1, 4)):
            data = target.mutator(data, 16_384, draw, lambda data, most: data[:most])
        try:
            target.check(data)
        except Exception as error:
            raise AssertionError(f"{error!r} at {data!r}") from error


@pytest.mark.slow
@each_target
def test_a_bounded_run_that_coverage_guides_finds_nothing(target: Target, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: it has wheels for CPython 3.11 to 3.14 on Linux, x86-64")
    command = [sys.executable, str(RUN), "--target", target.name, "--out", str(tmp_path), "--seed", "1"]
    count = len({*target.seeds(), *corpus.load(target.name)})
    done = subprocess.run([*command, "--runs", str(count + RUNS)], capture_output=True, text=True, check=False)
    status = json.loads((tmp_path / target.name / "status.json").read_text())
    assert status["findings"] == {}, done.stderr
    assert done.returncode == 0, done.stderr
    executed = re.search(r"stat::number_of_executed_units: (\d+)", done.stderr)
    assert executed is not None
    assert int(executed[1]) >= count + RUNS
