"""Every quirk in the table is reached by a case, and what is counted is what is reported."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import casefile
from casefile import FOLDERS, Case
from proxy.dialects import upstream_request
from proxy.dialects.openai_chat import request as openai_request
from proxy.exchange import ExchangeSettings
from proxy.model.commands import Record
from proxy.model.findings import QUIRKS, Quirk
from proxy.replay.app import shipped
from proxy.replay.inprocess import Answer, run
from proxy.replay.recording import Recording
from test_exchange import call
from test_reask import BAD, END, GOOD, script

CASES = casefile.read_all(*FOLDERS)
SETTINGS = casefile.settings("annotate")


def answer_to(case: Case) -> Answer:
    return run(openai_request.read(case.body), case.recording, SETTINGS)


def test_every_quirk_has_its_row() -> None:
    assert set(QUIRKS) == set(Quirk)
    assert all(row.meaning and row.evidence for row in QUIRKS.values())


def test_every_quirk_is_reached() -> None:
    reached = {quirk for case in CASES for quirk in (answer_to(case).record or pytest.fail(case.id)).quirks}
    reached |= {*of_a_skipped_schema().quirks, *of_a_request(), *of_a_second_turn()}
    assert sorted(set(Quirk) - reached) == []


@pytest.mark.parametrize("name", ["demo/clean", "demo/text", "demo/slow"])
def test_a_clean_reply_has_no_quirk(name: str) -> None:
    recording = shipped()[name]
    body = json.dumps({"model": name, **recording.request}).encode()
    answer = run(openai_request.read(body), recording, ExchangeSettings())
    assert answer.record is not None
    assert answer.record.quirks == []
    assert b"wholecall" not in answer.body, "and no report"


def of_a_skipped_schema() -> Record:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": 7}}}
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    entry = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [entry]}, "finish_reason": "tool_calls"}]}
    stream = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
    recording = Recording("r", "", "openai-chat", (stream,), headers={"content-type": "text/event-stream"})
    settings: ExchangeSettings = dataclasses.replace(SETTINGS, skip_uncompilable=True)
    record = run(openai_request.read(json.dumps(body).encode()), recording, settings).record
    assert record is not None
    return record


def of_a_request() -> tuple[Quirk, ...]:
    """Quirks of a request that is written anew for a backend of another dialect."""
    calls = [("same", "{}"), ("same", '{"x": '), ("functions.f:0", "{}")]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    for call_id, text in calls:
        call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": text}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call_id, "content": "ok"})
    messages.append({"role": "tool", "tool_call_id": "lost", "content": "ok"})
    body = {"model": "m", "messages": messages, "prompt_cache_key": "k"}
    return upstream_request(openai_request.read(json.dumps(body).encode()), "anthropic-messages", "m").quirks


def of_a_second_turn() -> list[Quirk]:
    """Quirks of a reply whose faulty call the model was asked to correct."""
    again = call('{ "harbor": "Hull" }', call_id="g2", name="get_tide")
    fixed = call('{"harbor":"Cork"}', index=1, call_id="n", name="get_tide")
    turn = script().play(GOOD + BAD + END, again + fixed + END)
    assert turn.finish is not None
    return turn.finish.record.quirks


def test_a_schema_that_does_not_compile_is_a_quirk_where_the_configuration_skips_it() -> None:
    record = of_a_skipped_schema()
    assert Quirk.SCHEMA_UNCOMPILABLE in record.quirks
    assert record.verdicts == ["valid"]


@pytest.mark.parametrize("case", [c for c in CASES if not c.expect["error"]], ids=lambda case: case.id)
def test_the_record_names_what_the_report_names(case: Case) -> None:
    answer = answer_to(case)
    stream = bool(case.recording.request.get("stream"))
    reply = casefile.read_reply(answer.status, answer.headers, bytes(answer.body), stream=stream)
    entries: list[dict[str, Any]] = reply.report
    assert answer.record is not None
    assert set(answer.record.quirks) == {*reply.quirks, *(quirk for entry in entries for quirk in entry["quirks"])}
    assert [str(verdict) for verdict in answer.record.verdicts] == [entry["verdict"] for entry in entries]
