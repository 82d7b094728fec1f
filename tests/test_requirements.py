"""The table of requirements is whole, every test that it names exists, and every break that it names can be made."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
TABLE: list[dict[str, Any]] = tomllib.loads((TESTS / "requirements.toml").read_text())["requirement"]
NUMBERS = range(1, 42)


def test_every_requirement_is_there_once_and_has_tests() -> None:
    assert [row["number"] for row in TABLE] == list(NUMBERS)
    for row in TABLE:
        assert set(row) == {"number", "says", "tests", "breaks"}
        assert row["says"].endswith(".")
        assert row["tests"]
        assert len(set(row["tests"])) == len(row["tests"])


def test_every_test_of_the_table_exists() -> None:
    ids = sorted({f"tests/{name}" for row in TABLE for name in row["tests"]})
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", *ids]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row["number"]))
def test_every_break_of_the_table_can_be_made(row: dict[str, Any]) -> None:
    for one in row["breaks"]:
        assert set(one) == {"file", "text", "becomes"}
        assert (ROOT / one["file"]).read_text().count(one["text"]) == 1, (
            f"{one['file']} has changed: name another way to break requirement {row['number']} in requirements.toml"
        )
