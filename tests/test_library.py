"""The core as an import: every case through it, and the README's example as it stands there."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import casefile
from casefile import CUTS, FOLDERS, Case
from proxy.faults import Fault, FaultKind
from proxy.library import Assembler, Call, Event, Settings, Text
from proxy.model.calls import Verdict
from proxy.replay.app import shipped
from proxy.replay.backend import ReplayBackend

ROOT = Path(__file__).resolve().parent.parent
CASES = casefile.read_all(*FOLDERS)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]


def assembled(case: Case, cut: str, settings: Settings) -> tuple[Assembler, list[Event]]:
    recording = case.recording
    assembler = Assembler(
        {"stream": False, **recording.request},
        dialect=recording.dialect,
        request_dialect="openai-chat",
        status=recording.status,
        headers=recording.headers,
        settings=settings,
    )
    events = [e for piece in casefile.cut(recording.pieces, cut, seed=1) for e in assembler.feed(piece)]
    return assembler, events + assembler.close(broken=recording.end == "reset")


def differences(want: Mapping[str, Any], found: Assembler, events: list[Event]) -> list[str]:
    out = []
    calls = want["calls"]
    if found.fault is None or calls:
        expected = [(call["choice"], call["name"], call["verdict"]) for call in calls]
        if found.fault is not None:
            expected = [(choice, name, "incomplete") for choice, name, _ in expected]
        got = [(call.choice, call.name, call.verdict.value) for call in found.calls]
        out += [f"calls {got}, want {expected}"] if got != expected else []
        for call, expect in zip(found.calls, calls, strict=False):
            if call.verdict is Verdict.VALID:
                out += [] if casefile._same_arguments(call.arguments, expect) else [f"arguments {call.arguments}"]
                out += [f"id {call.id}"] if expect.get("id", call.id) != call.id else []
    if bool(want["error"]) != (found.fault is not None):
        out.append(f"fault {found.fault}, want an error: {want['error']}")
    if found.fault is None and found.text != (want.get("content") or ""):
        out.append(f"text {found.text!r}, want {want.get('content')!r}")
    if found.fault is None and found.text_of(0, "refusal") != want.get("refusal", ""):
        out.append("the refusal differs")
    assert found.text == "".join(e.text for e in events if isinstance(e, Text) and (e.choice, e.kind) == (0, "text"))
    assert found.calls == tuple(e for e in events if isinstance(e, Call))
    assert all(isinstance(e, Call) for e in events[len(events) - len(found.calls) :]), "calls come last"
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_what_is_assembled_is_what_every_case_expects_however_it_is_cut(case: Case) -> None:
    results = set()
    for cut in CUTS:
        found, events = assembled(case, cut, Settings(repair=False))
        assert differences(case.expect, found, events) == [], cut
        assert found.over
        results.add((found.text, found.calls, found.quirks, str(found.fault), found.finish_reason, found.usage))
    assert len(results) == 1, "the result depends on how a network cut the reply"
    if case.expect_repaired is not None:
        found, events = assembled(case, "event", Settings())
        assert differences(case.expect_repaired, found, events) == []


def test_text_is_given_as_it_comes_and_calls_with_the_end() -> None:
    recording = shipped()["demo/interleaved-damaged"]
    assembler = Assembler(recording.request, headers=recording.headers)
    given = [assembler.feed(piece) for piece in recording.pieces]
    texts = [n for n, events in enumerate(given) if any(isinstance(event, Text) for event in events)]
    calls = [n for n, events in enumerate(given) if any(isinstance(event, Call) for event in events)]
    assert texts[0] < calls[0]
    assert len(calls) == 1, "all of them together"
    assert assembler.close() == []
    assert assembler.feed(b"data: {}\n\n") == []
    assert (assembler.finish_reason, assembler.fault) == ("tool_calls", None)
    assert [call.verdict for call in assembler.calls] == ["valid", "valid"]
    assert "args_cumulative" in assembler.calls[0].quirks
    assert "finish_wrong" in assembler.quirks
    assert "args_cumulative" not in assembler.quirks
    assert assembler.usage is not None
    assert assembler.usage.output_tokens == 41
    assert json.loads(json.dumps(assembler.calls[1].as_json()))["name"] == "add_reminder"


def reply(arguments: str, finish: str = '"tool_calls"') -> bytes:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    message = json.dumps({"role": "assistant", "content": None, "tool_calls": [call]})
    return f'{{"id":"r","choices":[{{"index":0,"message":{message},"finish_reason":{finish}}}]}}'.encode()


@pytest.mark.parametrize(
    ("arguments", "verdict", "repairs"),
    [
        ('{"city": "Lyon"}', Verdict.VALID, ()),
        ('{"city": "Lyon",}', Verdict.VALID, ("trailing_commas",)),
        ('{"city": 3}', Verdict.SCHEMA_VIOLATION, ()),
        ("{city", Verdict.INVALID_JSON, ()),
    ],
)
def test_the_tools_are_enough_and_nothing_is_withheld(
    arguments: str, verdict: Verdict, repairs: tuple[str, ...]
) -> None:
    assembler = Assembler({"tools": TOOLS}, headers={"Content-Type": "application/json"})
    assembler.feed(reply(arguments))
    assembler.close()
    (call,) = assembler.calls
    assert (call.verdict, call.repairs) == (verdict, repairs)
    assert (call.error is None) == (verdict is Verdict.VALID)
    if not repairs:
        assert call.arguments == arguments


@pytest.mark.parametrize("broken", [False, True])
def test_a_lost_connection_makes_every_call_incomplete_unless_the_end_was_proven(broken: bool) -> None:
    recording = shipped()["demo/clean"]
    for proven, pieces in ((True, recording.pieces[:-1]), (False, recording.pieces[:-3])):
        assembler = Assembler(recording.request, headers=recording.headers)
        for piece in pieces:
            assembler.feed(piece)
        assert not assembler.over
        assembler.close(broken=broken)
        verdict = Verdict.VALID if proven else Verdict.INCOMPLETE
        assert {call.verdict for call in assembler.calls} == {verdict}
        assert (assembler.fault is None) is proven
        assert assembler.over


@pytest.mark.parametrize(
    ("request_dialect", "request_body"),
    [
        ("openai-responses", {"tools": [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]}),
        ("anthropic-messages", {"tools": [{"name": "get_weather", "input_schema": SCHEMA}]}),
        ("openai-chat", {"tools": TOOLS}),
    ],
)
def test_the_request_may_be_in_any_clients_dialect(request_dialect: str, request_body: dict[str, Any]) -> None:
    for body in (request_body, json.dumps(request_body).encode()):
        assembler = Assembler(body, request_dialect=request_dialect, headers={"content-type": "application/json"})
        assembler.feed(reply('{"city": "Lyon"}'))
        assembler.close()
        assert [(call.name, call.verdict) for call in assembler.calls] == [("get_weather", "valid")]


def test_an_unusable_request_is_refused_with_what_is_wrong() -> None:
    schema = {"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}
    for request, kind, words in (
        (b"{", FaultKind.INVALID_JSON, "no JSON"),
        (b"[]", FaultKind.INVALID_REQUEST, "no JSON object"),
        ({"tools": 3}, FaultKind.INVALID_REQUEST, "tools is no list"),
        ({"tools": [schema]}, FaultKind.INVALID_TOOL_SCHEMA, "tool 'f'"),
    ):
        with pytest.raises(Fault, match=words) as caught:
            Assembler(request)
        assert caught.value.kind is kind
    with pytest.raises(Fault, match="there are openai-chat"):
        Assembler({}, dialect="chat")
    with pytest.raises(Fault, match="there are openai-chat"):
        Assembler({}, request_dialect="gemini")


def test_nothing_of_an_assembler_waits_for_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        recording = shipped()["demo/clean"]
        assembler = Assembler(recording.request, headers=recording.headers)
        for piece in recording.pieces:
            assembler.feed(piece)
        kept = weakref.ref(assembler)
        exchange = weakref.ref(assembler._exchange)
        del assembler
        assert kept() is None
        assert exchange() is None
    finally:
        gc.enable()


def test_it_imports_nothing_of_the_server() -> None:
    code = "import sys, proxy.library; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    shell = {"asyncio", "httptools", "pydantic", "prometheus_client", "starlette", "uvicorn", "click", "rich"}
    assert not shell & set(done.stdout.split())


def readme_example() -> str:
    blocks = re.findall(r"^```python\n(.*?)\n```", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    (code,) = [block for block in blocks if "proxy.library" in block]
    return str(code)


def test_the_readmes_example_assembles_what_a_damaged_backend_sends(
    wholecall_backend: ReplayBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "demo/interleaved-damaged"
    code = readme_example()
    assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10
    exec(code, {"base_url": wholecall_backend.url, "request": wholecall_backend.request(model)})  # noqa: S102
    said, *calls = capsys.readouterr().out.splitlines()
    assert said.startswith("Let me check the weather.get_weather valid {")
    assert [said.partition(".")[2], *calls] == [
        f"{call.name} valid {call.arguments}" for call in wholecall_backend.expected(model).calls
    ]
    assert len(calls) == 1
