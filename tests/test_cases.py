"""Every case through the whole core, in this process: each mode, each cut. The answer must not depend on the cut."""

from __future__ import annotations

import pytest

import casefile
from casefile import CUTS, MODES, Case
from proxy.dialects.openai_chat import request as openai_request
from proxy.replay.inprocess import run

CASES = casefile.read_all()


def answer_faults(case: Case, mode: str, cut: str, *, repair: bool = False) -> list[str]:
    request = openai_request.read(case.body)
    pieces = casefile.cut(case.recording.pieces, cut, seed=len(case.id))
    answer = run(request, case.recording, casefile.settings(mode, repair=repair), pieces)
    assert answer.record is not None, "the exchange never finished"
    reply = casefile.read_reply(answer.status, answer.headers, bytes(answer.body), stream=request.stream)
    return casefile.judge(case, mode, reply, repair=repair)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_client_gets_what_the_case_expects(case: Case, mode: str, cut: str) -> None:
    assert answer_faults(case, mode, cut) == []


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_with_repairs_on_the_client_gets_what_the_case_expects(case: Case, mode: str, cut: str) -> None:
    assert answer_faults(case, mode, cut, repair=True) == []


def test_the_corpus_has_its_cases() -> None:
    assert len([case for case in CASES if case.expect["calls"]]) > 100
    assert any(case.expect_repaired for case in CASES)
