"""The look-up of known vulnerabilities tells a clean result from one that never took place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from audit import main, verdict

CLEAN = {"name": "a", "version": "1", "vulns": []}
HOLED = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}, {"id": "GHSA-2"}]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (3)"}


@pytest.mark.parametrize(
    ("packages", "status", "says"),
    [
        ([CLEAN, CLEAN], 0, "2 of 2 locked packages looked up, no known vulnerability"),
        ([CLEAN, SKIPPED], 0, "1 of 2 locked packages looked up"),
        ([SKIPPED, SKIPPED], 0, "SKIPPED, the service answers for none of the 2 packages"),
        ([CLEAN, HOLED, SKIPPED], 1, "b 2: PYSEC-1\nb 2: GHSA-2"),
    ],
)
def test_what_was_looked_up_decides(packages: list[dict[str, Any]], status: int, says: str) -> None:
    got = verdict(
        int(bool(status)), json.dumps({"dependencies": packages, "fixes": []}), "No known vulnerabilities found"
    )
    assert got[0] == status
    assert says in got[1]


def test_a_service_that_cannot_be_reached_is_said_and_is_no_failure() -> None:
    trace = "Traceback (most recent call last):\nrequests.exceptions.ConnectionError: HTTPSConnectionPool(host='x')"
    assert verdict(1, "", trace) == (
        0,
        "audit: SKIPPED, the list of vulnerabilities cannot be reached; nothing was looked up",
    )


@pytest.mark.parametrize("out", ["", "no JSON", "[]", '{"a":1}'])
def test_any_other_failure_is_one(out: str) -> None:
    status, said = verdict(2, out, "ERROR: Cannot find file requirements.lock")
    assert status == 1
    assert "Cannot find file" in said


def test_without_the_program_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert main() == 0
    assert "SKIPPED, pip-audit is not installed" in capsys.readouterr().out
