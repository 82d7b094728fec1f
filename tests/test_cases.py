"""Every case through the whole core, in this process: each mode, each cut. The answer must not depend on the cut."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections import Counter

import pytest

import casefile
from casefile import CUTS, FOLDERS, MODES, Case, Reply
from dialect_clients import CLIENTS, Client
from proxy.dialects.openai_chat import request as openai_request
from proxy.exchange import Exchange, ExchangeSettings
from proxy.policy.reply import Reply as UpstreamReply
from proxy.replay.inprocess import Answer, Runner, run

CASES = casefile.read_all()
ALL_CASES = casefile.read_all(*FOLDERS)
PAIRS = [
    pytest.param(case, client, id=f"{case.id}-{client.name}")
    for case in ALL_CASES
    for client in CLIENTS.values()
    if client.takes(case)
]


def reply_to(case: Case, client: Client, cut: str, settings: ExchangeSettings) -> Reply:
    request = client.request(case)
    pieces = casefile.cut(case.recording.pieces, cut, seed=len(case.id))
    answer = run(request, case.recording, settings, pieces)
    assert answer.record is not None, "the exchange never finished"
    return client.read(answer, request.stream)


def cuts_for(case: Case, client: Client) -> tuple[str, ...]:
    """All of them where the case is at home: its own dialect, or chat if no client speaks that."""
    own = case.recording.dialect if case.recording.dialect in CLIENTS else "openai-chat"
    return CUTS if client.name == own else ("event", "random")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("case", "client"), PAIRS)
def test_every_client_gets_what_the_case_expects_however_it_is_cut(case: Case, client: Client, mode: str) -> None:
    bodies = set()
    for cut in cuts_for(case, client):
        reply = reply_to(case, client, cut, casefile.settings(mode))
        assert casefile.judge(case, mode, reply, client=client.name) == [], cut
        bodies.add(reply.raw)
    assert len(bodies) == 1, "the answer depends on how a network cut the reply"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("case", "client"), PAIRS)
def test_repairs_give_the_repaired_call_where_they_help_and_else_change_nothing(
    case: Case, client: Client, mode: str
) -> None:
    for cut in ("event", "byte") if case.expect_repaired else ("event",):
        reply = reply_to(case, client, cut, casefile.settings(mode, repair=True))
        assert casefile.judge(case, mode, reply, repair=True, client=client.name) == [], cut


@pytest.mark.parametrize(("case", "client"), PAIRS)
def test_what_is_sent_live_of_a_faulty_call_can_never_be_run(case: Case, client: Client) -> None:
    settings = dataclasses.replace(casefile.settings("block"), delivery="live")
    for cut in ("event", "random"):
        reply = reply_to(case, client, cut, settings)
        assert casefile.judge_live(case, reply, client=client.name) == [], cut


@pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)
def test_nothing_of_an_exchange_waits_for_the_garbage_collector(client: Client) -> None:
    """A cycle of references would keep its arguments, which may be megabytes, long after its end."""
    gc.collect()
    gc.disable()
    try:
        for case in ALL_CASES:
            if client.takes(case) and not case.expect.get("error"):  # what runs it here keeps the faults
                run(client.request(case), case.recording, casefile.settings("block"), case.recording.pieces)
        kept = Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, Exchange | UpstreamReply))
    finally:
        gc.enable()
    assert not kept


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
    # JSON in place of events, or without `data:`, is read at its end
    events = "event-stream" in case.recording.headers["content-type"] and case.recording.pieces[0][:1] != b"{"
    for piece in case.recording.pieces:
        runner.receive(piece)
        if request.stream and events:
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


@pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)
def test_the_judge_refuses_what_the_upstream_sent_as_it_came(client: Client) -> None:
    """Else the cases would prove nothing."""
    cases = [case for case in ALL_CASES if case.recording.dialect == client.name]
    passed = []
    for case in cases:
        recording = case.recording
        answer = Answer(recording.status, dict(recording.headers), bytearray(b"".join(recording.pieces)))
        try:
            reply = client.read(answer, bool(recording.request.get("stream")))
            if casefile.judge(case, "block", reply, client=client.name) == []:
                passed.append(case.id)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue  # no strict client can read it
    assert len(passed) < len(cases) / 10, passed


def test_the_corpus_has_its_cases() -> None:
    assert len([case for case in CASES if case.expect["calls"]]) > 100
    assert any(case.expect_repaired for case in CASES)


def test_every_folder_of_cases_is_read() -> None:
    assert {folder.name for folder in casefile.FOLDER.iterdir()} == set(FOLDERS)
    assert len(ALL_CASES) == len(list(casefile.FOLDER.rglob("*.json")))
