"""The history guard: one bad call in a conversation does not lock it."""

from __future__ import annotations

import json
import time
from typing import Any

from proxy.dialects.base import IdForm
from proxy.dialects.history import guard, guard_chat_body
from proxy.model.conversation import CallPart, Conversation, Options, ResultPart, TextPart, Turn
from proxy.model.findings import Quirk
from proxy.model.requests import ToolChoice

SHORT = IdForm(40, "a-zA-Z0-9_-")


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str, text: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def guarded(*messages: dict[str, Any]) -> tuple[list[dict[str, Any]], list[Quirk]]:
    quirks: list[Quirk] = []
    return guard_chat_body({"messages": list(messages)}, quirks.append)["messages"], quirks


def test_a_clean_history_goes_up_as_the_same_object() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}, call("a"), result("a")]}
    assert guard_chat_body(body, lambda quirk: None) is body


def test_arguments_that_are_no_object_are_wrapped_as_text() -> None:
    messages, quirks = guarded(call("a", '{"x": '), result("a"))
    assert json.loads(messages[0]["tool_calls"][0]["function"]["arguments"]) == {"_raw": '{"x": '}
    assert quirks == [Quirk.HISTORY_ARGS_WRAPPED]


def test_arguments_that_are_an_object_keep_their_characters() -> None:
    text = '{ "id": 123456789012345678901234567890, "x": 1.0 }'
    messages, quirks = guarded(call("a", text), result("a"))
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == text
    assert quirks == []


def test_a_result_without_its_call_becomes_user_text() -> None:
    messages, quirks = guarded({"role": "user", "content": "hi"}, result("lost", "42"))
    assert messages[1]["role"] == "user"
    assert "42" in messages[1]["content"]
    assert quirks == [Quirk.HISTORY_RESULT_ORPHANED]


def test_a_doubled_id_gets_a_suffix_on_the_call_and_on_its_result() -> None:
    messages, quirks = guarded(call("s:0"), result("s:0", "1"), call("s:0"), result("s:0", "2"))
    first, second = messages[0]["tool_calls"][0]["id"], messages[2]["tool_calls"][0]["id"]
    assert (first, messages[1]["tool_call_id"]) == ("s:0", "s:0")
    assert second == messages[3]["tool_call_id"] != first
    assert quirks == [Quirk.HISTORY_ID_DOUBLED]


def test_many_calls_of_one_id_cost_no_more_than_their_number() -> None:
    def cpu_s(count: int) -> float:
        calls = [call("c") for _ in range(count)] + [result("c", "x") for _ in range(count)]
        begin = time.process_time()
        guarded(*calls)
        return time.process_time() - begin

    cpu_s(500)
    assert cpu_s(8_000) < 4 * 16 * max(cpu_s(500), 0.002)  # quadratic would be 256 times as much


def test_ids_of_a_form_that_the_backend_refuses_are_mapped_alike_on_both_sides() -> None:
    quirks: list[Quirk] = []
    long = "functions.f:0" * 20
    turns = [
        Turn("assistant", [CallPart(long, "f", "{}"), CallPart("ok-1", "g", "[1]")]),
        Turn("user", [ResultPart("ok-1", [TextPart("b")]), ResultPart(long, [TextPart("a")])]),
    ]
    talk = guard(Conversation(turns, [], ToolChoice(), True, False, 1, Options()), SHORT, quirks.append)
    calls = [p for p in talk.turns[0].parts if isinstance(p, CallPart)]
    results = [p for p in talk.turns[1].parts if isinstance(p, ResultPart)]
    assert SHORT.fits(calls[0].call_id)
    assert calls[0].call_id == results[1].call_id
    assert calls[1].call_id == results[0].call_id == "ok-1"
    assert results[1].name == "f"
    assert json.loads(calls[1].arguments) == {"_raw": "[1]"}
    assert quirks == [Quirk.HISTORY_ID_MAPPED, Quirk.HISTORY_ARGS_WRAPPED]
