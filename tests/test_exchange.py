"""The machine of one exchange: what it sends when, what it holds, how it ends. The clock is a number."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.checks.judge import judge
from proxy.dialects.openai_chat.request import read
from proxy.exchange import Exchange, ExchangeSettings
from proxy.faults import Fault, FaultKind
from proxy.model.calls import Verdict
from proxy.model.commands import Check, Command, Finish, Retry, Send, Start, Stop

TOOL = {
    "type": "function",
    "function": {
        "name": "get_tide",
        "parameters": {
            "type": "object",
            "properties": {"harbor": {"type": "string"}},
            "required": ["harbor"],
            "additionalProperties": False,
        },
    },
}
SETTINGS = ExchangeSettings()
ALWAYS = ExchangeSettings(annotations="always")
HEAD = {"content-type": "text/event-stream"}


def exchange(settings: ExchangeSettings = SETTINGS, **request: Any) -> Exchange:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], **request}
    machine = Exchange(read(json.dumps(body).encode()), settings, seed="seed", created=1)
    assert machine.opened(200, HEAD, 0.0) == []
    return machine


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **top: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    document = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": [choice], **top}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def call(args: str, *, index: int = 0, call_id: str | None = None, name: str | None = None) -> bytes:
    entry: dict[str, Any] = {"index": index, "function": {"arguments": args}}
    if call_id:
        entry |= {"id": call_id, "type": "function"}
    if name:
        entry["function"]["name"] = name
    return chunk({"tool_calls": [entry]})


ROLE = chunk({"role": "assistant", "content": ""})
GOOD = call('{"harbor":"Hull"}', call_id="a", name="get_tide")
BAD = call('{"town":"Hull"}', index=1, call_id="b", name="get_tide")
DONE = b"data: [DONE]\n\n"


def sent(commands: list[Command]) -> bytes:
    return b"".join(c.data for c in commands if isinstance(c, Send))


def run(machine: Exchange, commands: list[Command], now: float = 0.0) -> list[Command]:
    """Carry out the checks among the commands; the rest is given back with what the checks released."""
    out: list[Command] = []
    for command in commands:
        if isinstance(command, Check):
            out += machine.checked([judge(job) for job in command.jobs], now)
        else:
            out.append(command)
    return out


def test_nothing_is_sent_before_the_first_output() -> None:
    machine = exchange()
    assert machine.receive(ROLE, 0.1) == []
    assert not machine.used
    start, send = machine.receive(chunk({"content": "Hi"}), 0.2)
    assert isinstance(start, Start)
    assert start.status == 200
    assert b'"role":"assistant"' in sent([send])
    assert machine.used


def test_a_text_payload_goes_out_verbatim_once_the_role_was_sent() -> None:
    machine = exchange()
    machine.receive(ROLE + chunk({"content": "Hi"}), 0.1)
    payload = chunk({"content": " there"}, x_vendor={"big": 1.50, "text": "a/b"})
    assert machine.receive(payload, 0.2) == [Send(payload)]


def test_a_payload_that_could_hide_a_call_is_written_anew() -> None:
    machine = exchange()
    machine.receive(ROLE + chunk({"content": "Hi"}), 0.1)
    doubled = chunk({"content": "x"}).replace(
        b'"choices": [', b'"choices": [{"index":0,"delta":{"\\u0074ool_calls":[{"index":0}]}}], "choices": ['
    )
    out = sent(machine.receive(doubled, 0.2))
    assert b"ool_calls" not in out
    assert b'"content":"x"' in out


def test_text_passes_while_a_call_is_held_and_the_call_comes_last() -> None:
    machine = exchange()
    assert machine.receive(ROLE + GOOD, 0.1) == []
    assert b"while" in sent(machine.receive(chunk({"content": "while"}), 0.2))
    commands = run(machine, machine.receive(chunk(finish="tool_calls") + DONE, 0.3))
    assert isinstance(commands[0], Stop)
    assert isinstance(commands[-1], Finish)
    out = sent(commands)
    assert out.index(b"get_tide") < out.index(b'"finish_reason":"tool_calls"') < out.index(b"[DONE]")


def test_after_a_mere_finish_reason_it_waits_for_settle_and_heartbeats_do_not_prolong_that() -> None:
    machine = exchange()
    machine.receive(ROLE + GOOD + chunk(finish="tool_calls"), 1.0)
    assert machine.deadline == pytest.approx(1.3)
    machine.receive(b": ping\n\n", 1.2)
    assert machine.deadline == pytest.approx(1.3)
    assert machine.tick(1.25) == []
    commands = run(machine, machine.tick(1.3))
    assert isinstance(commands[0], Stop)
    assert isinstance(commands[-1], Finish)
    assert "done_missing" in commands[-1].record.quirks


def test_keep_alive_comments_come_only_while_something_is_held() -> None:
    machine = exchange()
    assert machine.deadline is None
    machine.receive(ROLE, 1.0)
    assert machine.deadline is None
    machine.receive(GOOD, 2.0)
    assert machine.deadline == pytest.approx(10.0)
    start, send = machine.tick(10.0)
    assert isinstance(start, Start)
    assert sent([send]).endswith(b": wholecall\n\n")
    assert machine.deadline == pytest.approx(20.0)


def test_a_signs_of_life_of_the_upstream_is_passed_on_as_a_comment() -> None:
    machine = exchange()
    machine.receive(b": processing\n\n", 5.0)
    assert machine.deadline == pytest.approx(10.0)
    assert sent(machine.tick(10.0)) == b": wholecall\n\n"
    assert machine.deadline is None


def test_a_plain_reply_gets_no_keep_alive() -> None:
    machine = exchange(stream=False)
    machine.receive(ROLE + GOOD, 1.0)
    assert machine.deadline is None


def test_a_failure_before_any_output_can_be_tried_elsewhere_and_the_next_attempt_starts_clean() -> None:
    machine = exchange()
    machine.receive(ROLE, 0.1)
    (retry,) = machine.ended(0.2)
    assert isinstance(retry, Retry)
    assert retry.transient
    machine.opened(200, HEAD, 0.3)
    commands = run(machine, machine.receive(ROLE + GOOD + chunk(finish="tool_calls") + DONE, 0.4))
    assert isinstance(commands[-1], Finish)
    assert commands[-1].record.outcome == "ok"


def test_once_a_call_has_come_a_cut_is_an_error_and_no_retry() -> None:
    machine = exchange()
    machine.receive(ROLE + GOOD, 0.1)
    start, send, finish = machine.ended(0.2)
    assert isinstance(start, Start)
    assert start.status == 502
    document = json.loads(sent([send]))
    assert document["error"]["code"] == "stream_cut"
    assert [c["verdict"] for c in document["wholecall"]["calls"]] == ["incomplete"]
    assert isinstance(finish, Finish)


def test_after_text_an_error_is_an_event_without_choices_and_without_done() -> None:
    machine = exchange()
    machine.receive(ROLE + chunk({"content": "Hi"}), 0.1)
    out = sent(machine.broken(Fault(FaultKind.STREAM_CUT, "reset"), 0.2))
    assert b'"error"' in out
    assert b"choices" not in out
    assert b"[DONE]" not in out


def opened_anew(status: int, headers: dict[str, str]) -> tuple[Exchange, list[Command]]:
    machine = Exchange(read(b'{"model":"m","messages":[]}'), SETTINGS, seed="s", created=1)
    return machine, machine.opened(status, headers, 0.0)


@pytest.mark.parametrize("kind", [FaultKind.STREAM_CUT, FaultKind.BAD_ENCODING, FaultKind.TIMEOUT, FaultKind.LIMIT])
def test_an_error_status_whose_body_fails_is_told_as_far_as_it_came(kind: FaultKind) -> None:
    machine, _ = opened_anew(400, {"retry-after": "7"})
    machine.receive(b"no such thing", 0.1)
    [retry] = machine.broken(Fault(kind, "the body failed"), 0.2)
    assert isinstance(retry, Retry)
    assert (retry.fault.public_status, retry.fault.detail, retry.transient) == (400, "no such thing", False)


def test_an_error_status_is_told_where_the_time_for_the_exchange_is_over_too() -> None:
    machine, _ = opened_anew(429, {"retry-after": "7"})
    machine.receive(b"too many", 0.1)
    start, send, _ = machine.abandon(Fault(FaultKind.TIMEOUT, "the whole exchange took more than 1 s"), 1.0)
    assert isinstance(start, Start)
    assert (start.status, ("retry-after", "7") in start.headers) == (429, True)
    assert b"too many" in sent([send])


@pytest.mark.parametrize(("status", "transient"), [(400, False), (429, True)])
def test_an_error_status_in_an_unknown_coding_is_told_without_its_words(status: int, transient: bool) -> None:
    _, [retry] = opened_anew(status, {"retry-after": "7", "content-encoding": "br"})
    assert isinstance(retry, Retry)
    assert (retry.fault.public_status, retry.transient) == (status, transient)
    assert retry.fault.detail == f"the upstream answered with status {status}"
    assert retry.fault.headers == (("retry-after", "7"),)


def test_a_reset_after_the_proof_does_no_harm() -> None:
    machine = exchange()
    machine.receive(ROLE + GOOD + chunk(finish="tool_calls"), 0.1)
    commands = run(machine, machine.broken(Fault(FaultKind.STREAM_CUT, "reset"), 0.2))
    assert b'"finish_reason":"tool_calls"' in sent(commands)


@pytest.mark.parametrize(
    ("mode", "block_as", "names"),
    [("annotate", "error", 2), ("block", "drop", 1), ("block", "error", 0)],
)
def test_the_policy_decides_what_a_faulty_call_does_to_its_neighbour(mode: Any, block_as: Any, names: int) -> None:
    machine = exchange(replace(SETTINGS, mode=mode, block_as=block_as))
    commands = run(machine, machine.receive(ROLE + GOOD + BAD + chunk(finish="tool_calls") + DONE, 0.1))
    out = sent(commands)
    assert out.count(b'"name":"get_tide","arguments":""') == names
    if names == 0:
        assert isinstance(commands[1], Start)
        assert commands[1].status == 502
        assert ("x-should-retry", "false") in commands[1].headers
        document = json.loads(out)
        assert (document["error"]["type"], document["error"]["code"]) == ("tool_call_blocked", "schema_violation")
        assert [c["sent_index"] for c in document["wholecall"]["calls"]] == [None, None]


def test_the_report_never_stands_inside_a_delta_and_can_be_turned_off() -> None:
    for setting, expected in ((ALWAYS, True), (SETTINGS, False), (replace(SETTINGS, annotations="never"), False)):
        machine = exchange(setting)
        out = sent(run(machine, machine.receive(ROLE + GOOD + chunk(finish="tool_calls") + DONE, 0.1)))
        documents = [json.loads(line[6:]) for line in out.splitlines() if line.startswith(b"data: {")]
        assert any("wholecall" in document for document in documents) is expected
        assert all("wholecall" not in json.dumps(d["choices"]) for d in documents)


@pytest.mark.parametrize(
    ("limit", "value", "data"),
    [
        ("max_event_bytes", 1000, b"data: " + b"x" * 2000 + b"\n\n"),
        ("max_arguments_bytes", 100, GOOD + call("x" * 200)),
        ("max_held_bytes", 100, GOOD + call("x" * 200)),
        ("max_calls", 1, GOOD + BAD),
        ("max_events", 2, ROLE + GOOD + BAD),
        ("max_reply_bytes", 200, ROLE + GOOD + BAD),
    ],
)
def test_each_limit_ends_in_an_error_that_names_limit_value_and_key(limit: str, value: int, data: bytes) -> None:
    limits: dict[str, Any] = {limit: value}
    machine = exchange(replace(SETTINGS, **limits))
    machine.receive(b":\n\n", 0.0)  # these are events, and no document that is held whole
    commands = machine.receive(data, 0.1)
    if isinstance(commands[0], Retry):
        commands = machine.abandon(commands[0].fault, 0.2)
    error = json.loads(sent(commands))["error"]
    assert error["type"] == "limit_exceeded"
    assert error["code"] == limit
    assert str(value) in error["message"]


def test_an_error_status_of_the_same_dialect_passes_as_it_came() -> None:
    machine = Exchange(read(b'{"model":"m","messages":[]}'), SETTINGS, seed="s", created=1)
    machine.opened(429, {"retry-after": "7", "content-type": "application/json"}, 0.0)
    body = {"error": {"message": "slow down", "type": "rate", "code": "r", "extra": 1}, "request_id": "q"}
    machine.receive(json.dumps(body).encode(), 0.1)
    (retry,) = machine.ended(0.2)
    assert isinstance(retry, Retry)
    assert retry.transient
    start, send, _ = machine.abandon(retry.fault, 0.3)
    assert isinstance(start, Start)
    assert start.status == 429
    assert ("retry-after", "7") in start.headers
    assert json.loads(sent([send])) == body


@pytest.mark.parametrize(("status", "told"), [(401, 502), (403, 502), (302, 502), (404, 404), (503, 503)])
def test_an_error_status_is_told_as_it_came_unless_it_is_the_proxys_own_affair(status: int, told: int) -> None:
    machine = Exchange(read(b'{"model":"m","messages":[]}'), SETTINGS, seed="s", created=1)
    machine.opened(status, {}, 0.0)
    machine.receive(b"<html><title>key sk-secret is bad</title></html>", 0.1)
    (retry,) = machine.ended(0.2)
    assert isinstance(retry, Retry)
    start, send, _ = machine.abandon(retry.fault, 0.3)
    assert isinstance(start, Start)
    assert start.status == told
    message = json.loads(sent([send]))["error"]["message"]
    assert "<" not in message
    if status in (401, 403):
        assert "sk-secret" not in message


def test_when_the_client_is_gone_the_record_says_so_once() -> None:
    machine = exchange()
    machine.receive(ROLE + chunk({"content": "Hi"}), 0.1)
    (finish,) = machine.gone(0.2)
    assert isinstance(finish, Finish)
    assert finish.record.outcome == "gone"
    assert machine.gone(0.3) == []
    assert machine.abandon(Fault(FaultKind.SHUTDOWN, "x"), 0.4) == []


def test_a_call_whose_check_has_not_come_back_is_never_called_valid() -> None:
    for how in ("abandon", "gone"):
        machine = exchange()
        commands = machine.receive(ROLE + GOOD + chunk({}, "tool_calls") + DONE, 0.1)
        assert [type(c) for c in commands] == [Stop, Check]
        if how == "gone":
            machine.gone(0.2)
            assert machine.record.verdicts == []
            continue
        commands = machine.abandon(Fault(FaultKind.TIMEOUT, "x"), 0.2)
        report = json.loads(sent(commands))["wholecall"]["calls"][0]
        assert (report["verdict"], report["errors"][0]["rule"]) == ("schema_violation", "uncheckable")
        assert machine.record.verdicts == ["schema_violation"]


def test_a_plain_document_that_needs_nothing_goes_out_byte_for_byte() -> None:
    body = b'{ "id": "c", "object": "chat.completion", "created": 1, "model": "m", "x": 1.50, "choices": [{"index": 0,'
    body += b' "message": {"role": "assistant", "content": "hi", "refusal": null}, "finish_reason": "stop"}] }'
    machine = exchange(stream=False)
    machine.receive(body, 0.1)
    assert sent(run(machine, machine.ended(0.2))) == body


PIECES = [ROLE, chunk({"content": "Hi "}), GOOD, chunk({"content": "there"}), BAD, chunk(finish="tool_calls"), DONE]


@given(st.lists(st.integers(0, 5000), max_size=20))
def test_the_same_bytes_cut_anywhere_give_the_same_body(at: list[int]) -> None:
    whole = b"".join(PIECES)
    edges = sorted({0, len(whole), *(a % len(whole) for a in at)})
    bodies = []
    for cut in ([0, len(whole)], edges):
        machine = exchange(replace(SETTINGS, mode="annotate", annotations="always"))
        commands: list[Command] = []
        for a, b in pairwise(cut):
            commands += run(machine, machine.receive(whole[a:b], 0.1))
        bodies.append(sent(commands))
    assert bodies[0] == bodies[1]


# --- live delivery -----------------------------------------------------------------------------------------------

LIVE = replace(SETTINGS, delivery="live")


def arguments_sent(out: bytes) -> str:
    """The argument text of all deltas of call 0."""
    text = ""
    for line in out.splitlines():
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                for entry in choice["delta"].get("tool_calls", ()):
                    text += entry["function"]["arguments"] if entry["index"] == 0 else ""
    return text


def test_a_live_call_reaches_the_client_while_it_is_written_but_for_its_last_character() -> None:
    machine = exchange(LIVE)
    machine.receive(ROLE, 0.1)
    out = sent(machine.receive(call('{"harb', call_id="a", name="get_tide"), 0.2))
    assert arguments_sent(out) == '{"harb'
    out += sent(machine.receive(call('or":"Hull"}'), 0.3))
    assert arguments_sent(out) == '{"harbor":"Hull"'
    out += sent(run(machine, machine.receive(chunk(finish="tool_calls") + DONE, 0.4)))
    assert arguments_sent(out) == '{"harbor":"Hull"}'
    assert b'"finish_reason":"tool_calls"' in out


@pytest.mark.parametrize(
    "fragments",
    [
        ['{"town":"Hull"}'],  # refused by the schema
        ['{"harbor":"Hull"', ',"x":}'],  # no JSON
        ['{"harbor":', '{"harbor":"Hull"}'],  # mended only by changing what was sent
        ['{"harbor":"Hull"}', '{"harbor":"Hull","day":1}'],
    ],
)
def test_what_was_sent_of_a_faulty_live_call_never_parses(fragments: list[str]) -> None:
    machine = exchange(LIVE)
    out = sent(machine.receive(ROLE + call(fragments[0], call_id="a", name="get_tide"), 0.1))
    for fragment in fragments[1:]:
        out += sent(machine.receive(call(fragment), 0.2))
    out += sent(run(machine, machine.receive(chunk(finish="tool_calls") + DONE, 0.3)))
    text = arguments_sent(out)
    assert text.startswith("{")
    with pytest.raises(ValueError, match=r".*"):
        json.loads(text)
    assert b'"error"' in out
    assert b"[DONE]" not in out


def test_a_live_call_that_is_cut_at_length_ends_the_reply_in_an_error() -> None:
    machine = exchange(LIVE)
    out = sent(machine.receive(ROLE + call('{"harbor":"Hu', call_id="a", name="get_tide"), 0.1))
    out += sent(run(machine, machine.receive(chunk(finish="length") + DONE, 0.2)))
    assert b'"code":"incomplete"' in out
    assert b'finish_reason":"length' not in out


@pytest.mark.parametrize(
    "first",
    [
        call('{"harbor":"Hull"}', name="get_tide"),  # no id yet
        call('{"harbor":"Hull"}', call_id="a", name="other"),  # no declared tool
        call('\n{"harbor":"Hull"}', call_id="a", name="get_tide"),  # does not begin with {
        call("", call_id="a", name="get_tide"),
    ],
)
def test_a_call_that_something_could_still_speak_against_is_held(first: bytes) -> None:
    machine = exchange(LIVE)
    assert machine.receive(ROLE + first, 0.1) == []


def test_annotate_sends_the_rest_of_a_faulty_live_call_after_the_verdict() -> None:
    machine = exchange(replace(LIVE, mode="annotate"))
    out = sent(machine.receive(ROLE + call('{"town":"Hull"}', call_id="a", name="get_tide"), 0.1))
    out += sent(run(machine, machine.receive(chunk(finish="tool_calls") + DONE, 0.3)))
    assert arguments_sent(out) == '{"town":"Hull"}'
    assert b'"verdict":"schema_violation"' in out


def test_a_reply_whose_first_event_has_no_id_keeps_the_envelope_that_it_began_with() -> None:
    machine = exchange()
    nameless = chunk({"role": "assistant", "content": "Hi"}).replace(b'"id": "c1", ', b"")
    out = sent(machine.receive(nameless + chunk({"content": " a"}) + chunk({"content": " b"}, x=1), 0.1))
    out += sent(run(machine, machine.receive(chunk(finish="stop") + DONE, 0.2)))
    documents = [json.loads(line[6:]) for line in out.splitlines() if line.startswith(b"data: {")]
    assert len({document["id"] for document in documents}) == 1
    assert "".join(d["choices"][0]["delta"].get("content", "") for d in documents) == "Hi a b"
    assert documents[-2]["x"] == 1


def test_an_event_of_a_long_read_costs_no_more_than_one_of_a_short_read() -> None:
    """Also where each has to be looked at, since the limit of the arguments is near."""
    settings = ExchangeSettings(max_arguments_bytes=40_000)
    begun, rest = call('{"harbor":"', call_id="a", name="get_tide"), call("x")

    def cost(events_in_a_read: int) -> float:
        machine = exchange(settings)
        machine.receive(ROLE + begun, 0.0)
        read = rest * events_in_a_read
        since = time.process_time()
        for _ in range(20_000 // events_in_a_read):
            assert machine.receive(read, 0.0) == []
        return time.process_time() - since

    assert cost(5000) < 4 * cost(500)


def test_text_flows_from_the_second_event_of_a_form_on() -> None:
    machine = exchange(replace(SETTINGS, max_events=5))
    first = chunk({"content": "Hi"})
    assert not machine.flow(ROLE + first, 0.1)
    machine.receive(ROLE + first, 0.1)
    machine.receive(chunk({"content": " you"}), 0.2)
    assert machine.flow(chunk({"content": " there"}), 0.3)
    assert machine.data_at == 0.3
    for other in (
        b": ping\n\n",
        chunk({"content": "a"})[:-1],
        chunk({"content": ""}),
        chunk({"content": "<"}),  # a call may begin
        chunk({"content": "a "}),  # which may have to go with the call
        chunk({"content": "a"}, finish="stop"),
        chunk({"content": "a"}).replace(b'"a"', '"a\u2028b"'.encode()),
        chunk({"content": "a"}).replace(b'"a"', b'\n"a"'),
        chunk({"content": "a"}).replace(b'"a"', b'"a"\r'),  # the event's end, to a reader of server-sent events
        chunk({"content": "a" * 5000}),
        b"data: [DONE]\n\n",
    ):
        assert not machine.flow(other, 0.4), other
    assert not machine.flow(chunk({"content": "a"}) * 2, 0.4)  # max_events
    assert machine.flow(chunk({"content": "a"}), 0.4)
    assert not machine.flow(chunk({"content": "a"}), 0.5)
    assert b"max_events" in sent(machine.receive(chunk({"content": "a"}), 0.5))
    assert not machine.flow(chunk({"content": "a"}), 0.6)


def test_text_behind_a_call_that_began_in_another_form_of_event_in_the_same_read_does_not_flow() -> None:
    def other(text: str) -> bytes:
        return chunk({"content": text}).replace(b'"model": "m", ', b'"model":"m",')

    machine = exchange()
    for data in (ROLE, chunk({"content": "hello"}), other(" ld"), chunk({"content": " you"})):
        assert not machine.flow(data, 0.1)
        machine.receive(data, 0.1)
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Os'
    machine.receive(chunk({"content": " a"}) + other(f" b {call}"), 0.2)
    assert not machine.flow(chunk({"content": "lo"}), 0.3)


def test_text_does_not_flow_past_a_small_limit_of_events() -> None:
    machine = exchange(replace(SETTINGS, max_event_bytes=400))
    machine.receive(ROLE + chunk({"content": "Hi"}), 0.1)
    machine.receive(chunk({"content": " you"}), 0.2)
    assert not machine.flow(chunk({"content": "a" * 1000}), 0.3)


def test_text_that_has_gone_out_is_not_held() -> None:
    machine = exchange()
    machine.receive(ROLE, 0.0)
    tracemalloc.start()
    try:
        for _ in range(64):
            machine.receive(chunk({"content": "word " * 50_000}), 0.0)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 4_000_000  # 16 MB came


def test_a_document_that_is_made_of_events_is_held_to_the_limit_of_what_is_held() -> None:
    machine = exchange(replace(SETTINGS, max_held_bytes=10_000), stream=False)
    machine.receive(ROLE, 0.0)
    commands: list[Command] = []
    for _ in range(20):
        commands += machine.receive(chunk({"content": "word " * 200}), 0.0)
    assert b"max_held_bytes" in sent(commands)


@pytest.mark.parametrize("kind", ["content", "reasoning_content"])
def test_white_space_that_is_held_back_as_a_limit_is_reached_is_no_second_fault(kind: str) -> None:
    machine = exchange(ExchangeSettings(max_held_bytes=300))
    begun = ROLE + chunk({kind: " " if kind == "content" else "So."}) + call('{"a":"', call_id="a", name="get_tide")
    out = run(machine, machine.receive(begun, 0.1))
    for number in range(80):
        out += run(machine, machine.receive(chunk({"content": " " * 5}), 0.2 + number / 100))
    assert isinstance(out[-1], Finish)
    assert out[-1].record.code == "max_held_bytes"
    assert out[-1].record.verdicts == [Verdict.INCOMPLETE]


@pytest.mark.parametrize(
    ("dialect", "event", "what"),
    [
        ("openai-chat", b'{"choices":[{"delta":{"tool_calls":[%b]}}]}', "entries of tool_calls"),
        ("openai-chat", b'{"choices":[%b]}', "choices"),
        ("gemini", b'{"candidates":[%b]}', "candidates"),
        ("ollama-chat", b'{"message":{"tool_calls":[%b]}}', "entries of tool_calls"),
    ],
)
def test_an_event_of_more_choices_or_calls_than_any_reply_has_is_broken(dialect: str, event: bytes, what: str) -> None:
    for count, broken in ((4096, False), (4097, True)):
        machine = Exchange(read(b'{"model":"m","stream":true,"messages":[]}'), SETTINGS, seed="seed", created=1)
        machine.opened(200, HEAD, 0.0, dialect=dialect)
        told = machine.receive(b"data: " + event % b",".join([b'{"id":""}'] * count) + b"\n\n", 0.1)
        faults = [one.fault for one in told if isinstance(one, Retry)]
        assert [fault.kind for fault in faults] == [FaultKind.BAD_EVENT] * broken
        assert not broken or f"more than 4096 {what}" in str(faults[0])


@pytest.mark.parametrize("before", ["", '{"index":0,"id":"a","function":{"name":"get_tide","arguments":"{}"}},'])
@pytest.mark.parametrize("behind", ["", ',{"index":0,"function":{"arguments":" "}},{}', ',{"x":1}'])
def test_empty_entries_of_one_event_say_no_more_than_the_first(before: str, behind: str) -> None:
    def reply(empty: str) -> bytes:
        machine = exchange(ALWAYS)
        event = '{"choices":[{"index":0,"delta":{"tool_calls":[%s]}}]}' % (before + empty + behind)
        told = run(machine, machine.receive(ROLE + f"data: {event}\n\n".encode() + chunk({}, "stop") + DONE, 0.1))
        return sent(told)

    assert reply("{}") == reply(",".join(["{}"] * 50))
