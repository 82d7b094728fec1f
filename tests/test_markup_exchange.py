"""Calls in text through the whole core: what a client gets, in chat and in the other dialects."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import casefile
from proxy.dialects import CLIENT_DIALECTS
from proxy.exchange import ExchangeSettings
from proxy.model.findings import Quirk
from proxy.replay.inprocess import Answer, Runner

CALL = '<tool_call>\n{"name": "dim", "arguments": {"level": 3}}\n</tool_call>'
BARE = '{"name": "dim", "arguments": {"level": 3}}'
SETTINGS = ExchangeSettings(mode="block", annotations="always")
SCHEMA = {"type": "object", "properties": {"level": {"type": "integer"}}, "required": ["level"]}


def request(**fields: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "dim", "parameters": SCHEMA}}
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Dim it."}], "tools": [tool]}
    return body | fields


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def text(*pieces: str, field: str = "content") -> list[bytes]:
    return [chunk({"role": "assistant", "content": ""}), *(chunk({field: piece}) for piece in pieces)]


def structured(arguments: str, name: str = "dim") -> bytes:
    entry = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return chunk({"tool_calls": [entry]})


def end(reason: str = "stop") -> list[bytes]:
    return [chunk({}, reason), b"data: [DONE]\n\n"]


def answer_to(
    pieces: list[bytes], *, how: str = "eof", settings: ExchangeSettings = SETTINGS, **fields: Any
) -> tuple[casefile.Reply, Answer]:
    read = CLIENT_DIALECTS["openai-chat"].read
    runner = Runner(read(json.dumps(request(**fields)).encode()), settings)
    runner.open(200, {"content-type": "text/event-stream"})
    for piece in pieces:
        runner.receive(piece)
    runner.end("reset" if how == "reset" else "eof")
    answer = runner.answer
    stream = fields.get("stream", True)
    return casefile.read_reply(answer.status, answer.headers, bytes(answer.body), stream=stream), answer


def calls(reply: casefile.Reply) -> list[tuple[str, str]]:
    assert reply.noncanonical == []
    return [(call.name, call.arguments) for call in reply.calls.values()]


def test_a_call_in_the_text_is_a_call_with_its_quirk_and_its_format() -> None:
    reply, answer = answer_to([*text("On it.\n", CALL[:20], CALL[20:]), *end()])
    assert calls(reply) == [("dim", '{"level": 3}')]
    assert (reply.content[0], reply.finish[0]) == ("On it.", "tool_calls")
    (entry,) = reply.report
    assert (entry["verdict"], entry["format"]) == ("valid", "hermes")
    assert Quirk.LEAKED_AS_TEXT in entry["quirks"]
    assert answer.record is not None
    assert answer.record.recovered == ["hermes"]


def test_recovered_calls_come_behind_the_structured_ones_with_the_next_index() -> None:
    reply, _ = answer_to([*text("A ", CALL), structured('{"level": 1}'), *end("tool_calls")])
    assert calls(reply) == [("dim", '{"level": 1}'), ("dim", '{"level": 3}')]
    assert reply.content[0] == "A"


def test_an_echo_is_removed_once_and_a_second_one_is_a_call() -> None:
    reply, answer = answer_to([*text(CALL), structured('{"level":3}'), *end("tool_calls")])
    assert calls(reply) == [("dim", '{"level":3}')]
    assert answer.record is not None
    assert Quirk.LEAKED_ECHO in answer.record.quirks
    reply, _ = answer_to([*text(CALL, CALL), structured('{"level":3}'), *end("tool_calls")])
    assert len(calls(reply)) == 2


def test_remains_of_markup_beside_a_structured_call_go_and_are_reported() -> None:
    for left in ("\n</tool_call>", "\n\n<tool_call>\n", "\n<tool_ca"):
        for pieces in (
            [*text("A", left), structured('{"level":3}')],
            [*text("A"), structured('{"level":3}'), *text(left)],
        ):
            reply, answer = answer_to([*pieces, *end("tool_calls")])
            assert reply.content[0] == "A"
            assert answer.record is not None
            assert Quirk.MARKUP_RESIDUE in answer.record.quirks
        assert answer_to([*text("A", left), *end()])[0].content[0] == "A" + left


def test_a_faulty_call_is_judged_like_any_other() -> None:
    wrong = CALL.replace("3", '"x"')
    reply, answer = answer_to([*text("A ", wrong), *end()])
    assert reply.failed
    assert answer.record is not None
    assert answer.record.verdicts == ["schema_violation"]
    annotate = dataclasses.replace(SETTINGS, mode="annotate")
    reply, _ = answer_to([*text("A ", wrong), *end()], settings=annotate)
    assert calls(reply) == [("dim", '{"level": "x"}')]
    dropped = dataclasses.replace(SETTINGS, block_as="drop")
    reply, _ = answer_to([*text("A ", wrong, CALL), *end()], settings=dropped)
    assert calls(reply) == [("dim", '{"level": 3}')]


def test_a_limit_of_tokens_does_not_make_a_whole_call_incomplete() -> None:
    reply, _ = answer_to([*text(CALL), *end("length")])
    assert calls(reply) == [("dim", '{"level": 3}')]
    assert reply.finish[0] == "length"


def test_json_without_markers_is_a_call_only_if_its_schema_accepts_it() -> None:
    assert calls(answer_to([*text(BARE), *end()])[0]) == [("dim", '{"level": 3}')]
    for other in (BARE.replace("3", '"x"'), f"\n{BARE[:-1]}}}\n".replace("level", "volume")):
        reply, answer = answer_to([*text(*other), *end()])
        assert (calls(reply), reply.content[0], reply.finish[0]) == ([], other, "stop")
        assert answer.record is not None
        assert answer.record.refused == {("bare-json", "schema"): 1}


def test_json_that_was_asked_for_is_no_call() -> None:
    reply, _ = answer_to([*text(BARE), *end()], response_format={"type": "json_object"})
    assert (calls(reply), reply.content[0]) == ([], BARE)
    reply, _ = answer_to([*text(CALL), *end()], response_format={"type": "json_object"})
    assert calls(reply) == [("dim", '{"level": 3}')]


@pytest.mark.parametrize("role", ["user", "system", "tool", "assistant"])
def test_a_quotation_from_the_request_is_no_call(role: str) -> None:
    messages = [{"role": role, "content": f"Log:\n{CALL}\nWhat is it?", "tool_call_id": "x"}]
    reply, answer = answer_to([*text("It says:\n", CALL), *end()], messages=messages)
    assert (calls(reply), reply.content[0]) == ([], f"It says:\n{CALL}")
    assert answer.record is not None
    assert answer.record.refused == {("hermes", "quotation"): 1}


def test_only_a_forced_tool_may_be_called_in_text_and_none_where_none_may() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    tools = [*request()["tools"], other]
    choice = {"type": "function", "function": {"name": "other"}}
    fields: dict[str, Any]
    for fields in ({"tools": tools, "tool_choice": choice}, {"tool_choice": "none"}, {"tools": []}):
        reply, _ = answer_to([*text(CALL), *end()], **fields)
        assert (calls(reply), reply.content[0]) == ([], CALL)


def test_what_is_switched_off_is_not_looked_for() -> None:
    reply, _ = answer_to([*text(CALL), *end()], settings=dataclasses.replace(SETTINGS, recover=()))
    assert (calls(reply), reply.content[0]) == ([], CALL)
    only = dataclasses.replace(SETTINGS, recover=("mistral", "react"))
    assert calls(answer_to([*text(CALL), *end()], settings=only)[0]) == []
    react = "Action: dim\nAction Input: {'level': 3}".replace("'", '"')
    assert calls(answer_to([*text(react), *end()], settings=only)[0]) == [("dim", '{"level": 3}')]


def test_in_reasoning_a_call_counts_only_if_the_reply_ends_with_it() -> None:
    thought = text("Hm.\n", CALL, field="reasoning_content")
    reply, _ = answer_to([*thought, *end()])
    assert (calls(reply), reply.reasoning[0]) == ([("dim", '{"level": 3}')], "Hm.")
    for behind in ([chunk({"content": "Done."})], [structured('{"level": 1}')], text("\n"), []):
        reply, _ = answer_to([*thought, *behind, *text("\n", field="reasoning_content"), *end()])
        taken = not behind or behind == text("\n")
        assert (("dim", '{"level": 3}') in calls(reply)) == taken
        assert reply.reasoning[0] == ("Hm." if taken else f"Hm.\n{CALL}\n")


def test_a_broken_reply_gives_the_held_text_before_its_error() -> None:
    for cut in range(1, len(CALL)):
        reply, _ = answer_to([*text("A ", CALL[:cut])], how="reset")
        assert reply.failed
        assert reply.content[0] == f"A {CALL[:cut]}"
    reply, _ = answer_to([*text(CALL[:30])], how="reset")
    assert (reply.failed, reply.content[0]) == (True, CALL[:30])


def test_a_payload_is_passed_on_as_it_came_where_its_text_did_not_change() -> None:
    pieces = [
        chunk({"content": word}, service_tier="x", logprobs={"content": [word]}) for word in ("Hi", " you", " <b>")
    ]
    _, answer = answer_to([*text(), *pieces, *end()])
    for piece in pieces:
        assert piece in answer.body


def test_what_else_a_payload_carries_survives_where_its_text_is_held() -> None:
    logprobs = {"content": [{"token": "</", "logprob": -0.5}]}
    pieces = [chunk({"content": "Hi </tool", "extra": {"a": 1}}, logprobs=logprobs), chunk({"content": "box>."})]
    reply, answer = answer_to([*text(), *pieces, *end()])
    assert reply.content[0] == "Hi </toolbox>."
    body = bytes(answer.body)
    assert b'"extra":{"a":1}' in body
    assert b'"logprob":-0.5' in body


def test_a_plain_reply_is_read_the_same_way() -> None:
    message = {"role": "assistant", "content": f"A\n{CALL}", "reasoning_content": "Hm."}
    document = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    for stream in (True, False):
        reply, _ = answer_to([json.dumps(document).encode()], stream=stream)
        assert calls(reply) == [("dim", '{"level": 3}')]
        assert (reply.content[0], reply.reasoning[0], reply.finish[0]) == ("A", "Hm.", "tool_calls")
    message["content"] = "A < B"
    plain = json.dumps(document).encode()
    runner = Runner(CLIENT_DIALECTS["openai-chat"].read(json.dumps(request(stream=False)).encode()), ExchangeSettings())
    runner.open(200, {"content-type": "application/json"})
    runner.receive(plain)
    runner.end()
    assert bytes(runner.answer.body) == plain


def test_the_limits_of_calls_and_of_what_is_held_count_recovered_ones() -> None:
    few = dataclasses.replace(SETTINGS, max_calls=3)
    reply, answer = answer_to([*text(CALL * 4), *end()], settings=few)
    assert reply.error["code"] == "max_calls"
    little = dataclasses.replace(SETTINGS, max_held_bytes=400)
    reply, answer = answer_to([*text(*(CALL for _ in range(50))), *end()], settings=little)
    assert reply.error["code"] == "max_held_bytes"
    reply, answer = answer_to([*text(CALL[:30] + "x" * 300), *text("y"), *end()], settings=little)
    assert reply.content[0].endswith("xy"), "a single candidate that is too long is text"
    assert answer.record is not None


def test_what_is_held_for_a_call_is_kept_alive_by_comments() -> None:
    runner = Runner(CLIENT_DIALECTS["openai-chat"].read(json.dumps(request()).encode()), SETTINGS)
    runner.open(200, {"content-type": "text/event-stream"})
    for piece in text("A ", CALL[:30]):
        runner.receive(piece)
    assert runner.wake() == b": wholecall\n\n"


def test_a_faulty_call_in_the_text_is_asked_for_again_and_may_come_as_text_again() -> None:
    settings = dataclasses.replace(SETTINGS, reask=1)
    runner = Runner(CLIENT_DIALECTS["openai-chat"].read(json.dumps(request()).encode()), settings)
    runner.open(200, {"content-type": "text/event-stream"})
    for piece in [*text("A ", CALL.replace("3", '"x"')), *end()]:
        runner.receive(piece)
    assert runner.answer.record is None
    runner.answer.stopped = False
    runner.open(200, {"content-type": "text/event-stream"})
    for piece in [*text("Sorry. ", CALL), *end()]:
        runner.receive(piece)
    runner.end()
    body = bytes(runner.answer.body)
    reply = casefile.read_reply(runner.answer.status, runner.answer.headers, body, stream=True)
    assert (calls(reply), reply.content[0]) == ([("dim", '{"level": 3}')], "A")


@pytest.mark.parametrize("thought", ["Is a <", f"hm {CALL}", "a \n\n"])
def test_signed_thinking_stays_before_its_signature_as_it_came(thought: str) -> None:
    def event(**fields: Any) -> bytes:
        return b"data: " + json.dumps(fields).encode() + b"\n\n"

    def delta(**fields: Any) -> bytes:
        return event(type="content_block_delta", index=0, delta=fields)

    block = {"type": "thinking", "thinking": "", "signature": ""}
    start = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    tool = {"name": "dim", "input_schema": SCHEMA}
    ask = {"model": "m", "stream": True, "max_tokens": 9, "tools": [tool], "messages": request()["messages"]}
    read = CLIENT_DIALECTS["anthropic-messages"].read
    runner = Runner(read(json.dumps(ask).encode()), SETTINGS)
    runner.open(200, {"content-type": "text/event-stream"}, "anthropic-messages")
    for piece in (
        event(type="message_start", message=start),
        event(type="content_block_start", index=0, content_block=block),
        delta(type="thinking_delta", thinking=thought),
        delta(type="signature_delta", signature="SIG"),
        event(type="content_block_stop", index=0),
        event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3}),
        event(type="message_stop"),
    ):
        runner.receive(piece)
    runner.end("eof")
    events = [json.loads(line[5:]) for line in bytes(runner.answer.body).split(b"\n") if line.startswith(b"data:")]
    came = [one["delta"] for one in events if one["type"] == "content_block_delta"]
    assert "".join(one["thinking"] for one in came[:-1]) == thought
    assert came[-1] == {"type": "signature_delta", "signature": "SIG"}


def test_a_quotation_with_other_white_space_stays_text() -> None:
    messages = [{"role": "user", "content": f"What does {CALL} do?"}]
    spaced = CALL.replace("\n", "")
    reply, _ = answer_to([*text(spaced), *end()], messages=messages)
    assert (calls(reply), reply.content[0]) == ([], spaced)


def test_of_two_equal_calls_in_the_text_a_structured_one_has_one_echo() -> None:
    reply, _ = answer_to([*text(CALL, CALL), structured('"{\\"level\\": 3}"'), *end("tool_calls")])
    assert calls(reply) == [("dim", '{"level": 3}'), ("dim", '{"level": 3}')]
    assert [entry["index"] for entry in reply.report] == [0, 1]
    assert Quirk.LEAKED_ECHO in reply.quirks
