"""Every case through the whole core, in this process: each mode, each cut. The answer must not depend on the cut."""

from __future__ import annotations

import json

import pytest

import casefile
from casefile import CUTS, MODES, Case
from proxy.dialects.openai_chat import request as openai_request
from proxy.replay.inprocess import Runner, run

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


@pytest.mark.parametrize("cut", ["event", "byte"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", [c for c in CASES if c.expect_repaired], ids=lambda case: case.id)
def test_where_repairs_help_the_client_gets_the_repaired_call(case: Case, mode: str, cut: str) -> None:
    assert answer_faults(case, mode, cut, repair=True) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", [c for c in CASES if not c.expect_repaired], ids=lambda case: case.id)
def test_where_repairs_do_not_help_they_change_nothing(case: Case, mode: str) -> None:
    assert answer_faults(case, mode, "event", repair=True) == []


def plain_text(item: bytes) -> bytes:
    """The text of a chat event that nothing gives a reason to hold: visible, not white space at its ends."""
    try:
        delta = json.loads(item.removeprefix(b"data: "))["choices"][0]["delta"]
        text = delta["content"]
        plain = text.strip() == text and text.isprintable() and text.isascii() and "tool_calls" not in delta
        return text.encode() if plain else b""
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return b""


@pytest.mark.parametrize("case", [c for c in CASES if c.expect["content"]], ids=lambda case: case.id)
def test_text_is_sent_before_the_upstream_sends_more(case: Case) -> None:
    request = openai_request.read(case.body)
    runner = Runner(request, casefile.settings("block"))
    runner.open(case.recording.status, dict(case.recording.headers))
    for piece in case.recording.pieces:
        runner.receive(piece)
        if request.stream and "event-stream" in case.recording.headers["content-type"]:
            assert plain_text(piece) in runner.answer.body


def opened(case_id: str) -> tuple[Runner, tuple[bytes, ...]]:
    case = next(c for c in CASES if c.id == case_id)
    runner = Runner(openai_request.read(case.body), casefile.settings("block"))
    runner.open(200, {"content-type": "text/event-stream"})
    return runner, case.recording.pieces


def test_heartbeats_do_not_prolong_the_wait_after_a_finish_reason() -> None:
    runner, pieces = opened("done-missing-then-heartbeats")
    for piece in pieces:
        runner.receive(piece)
    due = runner.exchange.deadline
    assert due == pytest.approx(0.3)
    for step in range(5):
        runner.now = step * 0.05
        runner.receive(b": ping\n\n")
    assert runner.exchange.deadline == due
    assert runner.wake().endswith(b"data: [DONE]\n\n")
    assert runner.answer.stopped, "the upstream's connection is let go"


def test_a_late_fragment_prolongs_the_wait() -> None:
    runner, pieces = opened("args-after-finish")
    for step, piece in enumerate(pieces[:-1]):
        runner.now = step * 0.2
        runner.receive(piece)
    assert runner.exchange.deadline == pytest.approx(runner.now + 0.3)


def test_one_choice_that_has_ended_does_not_end_the_others() -> None:
    runner, pieces = opened("choices-two-cut-after-first-finish")
    for piece in pieces:
        runner.receive(piece)
    assert runner.exchange.deadline in (None, pytest.approx(10.0)), "only the keep-alive may be due"


def test_what_is_held_is_kept_alive_by_comments() -> None:
    runner, pieces = opened("cut-without-proof-looks-whole")
    for piece in pieces:
        runner.receive(piece)
    for _ in range(3):
        assert runner.wake() == b": wholecall\n\n"
    assert runner.now == pytest.approx(30.0)


def test_the_judge_refuses_what_the_upstream_sent_as_it_came() -> None:
    """Else the cases would prove nothing."""
    passed = []
    for case in CASES:
        recording = case.recording
        stream, body = bool(recording.request.get("stream")), b"".join(recording.pieces)
        try:
            reply = casefile.read_reply(recording.status, dict(recording.headers), body, stream=stream)
            if casefile.judge(case, "block", reply) == []:
                passed.append(case.id)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # no strict client can read it
    assert len(passed) < len(CASES) / 20, passed


def test_the_corpus_has_its_cases() -> None:
    assert len([case for case in CASES if case.expect["calls"]]) > 100
    assert any(case.expect_repaired for case in CASES)
