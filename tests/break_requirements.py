"""Breaks the product at each place that tests/requirements.toml names, and sees whether the requirement's tests fail.

    python tests/break_requirements.py [NUMBER ...]

It works in a copy of the project and takes some seconds a break. The exit status is 1 where a break went unnoticed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "node_modules", "*.egg-info")


def main(numbers: set[int]) -> int:
    table = tomllib.loads((ROOT / "tests/requirements.toml").read_text())["requirement"]
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="wholecall-break-") as folder:
        copy = Path(folder) / "wholecall"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
        for row in table:
            if numbers and row["number"] not in numbers:
                continue
            for one in row["breaks"]:
                failed = broken(copy, one, row["tests"])
                unnoticed += failed is None
                what = "NOT NOTICED" if failed is None else f"noticed by {failed}"
                print(
                    f"{row['number']:2}  {one['file']}: {one['becomes'].strip()[:60] or '(removed)'}: {what}",
                    flush=True,
                )
    print(f"{unnoticed} breaks went unnoticed")
    return 1 if unnoticed else 0


def broken(copy: Path, one: dict[str, Any], tests: list[str]) -> str | None:
    """The first test that fails with the break made; None: all pass."""
    file = copy / one["file"]
    whole = file.read_text()
    assert whole.count(one["text"]) == 1, f"{one['file']} has changed"
    file.write_text(whole.replace(one["text"], one["becomes"]))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "--tb=no"]
    try:
        done = subprocess.run(
            [*command, *(f"tests/{name}" for name in tests)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "a test that does not end"
    finally:
        file.write_text(whole)
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0].partition(" ")[2] if lines else f"exit status {done.returncode}"


if __name__ == "__main__":
    sys.exit(main({int(number) for number in sys.argv[1:]}))
