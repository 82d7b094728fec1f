"""The Messages dialect on both sides: its cases, its canonical stream, its requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import messages_client
from messages_client import Message
from proxy.dialects import CLIENT_DIALECTS, UPSTREAM_DIALECTS, error_body, upstream_request
from proxy.dialects.anthropic_messages.decode import MessagesDecoder
from proxy.dialects.anthropic_messages.encode import messages_usage
from proxy.dialects.anthropic_messages.hub import DEFAULT_MAX_TOKENS
from proxy.exchange import ExchangeSettings
from proxy.faults import Fault, FaultKind
from proxy.model.calls import JudgedCall, Verdict
from proxy.model.deltas import CallDelta, Done, FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.model.requests import Request, ToolChoice
from proxy.replay.inprocess import Answer, run
from proxy.replay.recording import Recording
from proxy.wire.sse import Frame

DIALECT = "anthropic-messages"
WEATHER = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}

# --- helpers -----------------------------------------------------------------------------------------------------


def request(dialect: str = DIALECT, *, stream: bool = True, **fields: Any) -> Request:
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
    if dialect == DIALECT:
        body["tools"] = [WEATHER]
    return CLIENT_DIALECTS[dialect].read(json.dumps({**body, **fields}).encode())


def events(items: Iterable[Any]) -> tuple[bytes, ...]:
    return tuple(
        item if isinstance(item, bytes) else f"event: {item['type']}\ndata: {json.dumps(item)}\n\n".encode()
        for item in items
    )


def answer_to(
    asked: Request, pieces: Sequence[bytes], *, dialect: str = DIALECT, status: int = 200, **policy: Any
) -> Answer:
    kind = "application/json" if pieces and pieces[0][:1] == b"{" else "text/event-stream"
    recording = Recording("m", "", dialect, tuple(pieces), status=status, headers={"content-type": kind})
    return run(asked, recording, ExchangeSettings(annotations="always", **policy))


def read_message(answer: Answer) -> Message:
    stream = "event-stream" in answer.headers["content-type"]
    message = messages_client.read(answer.status, answer.headers, bytes(answer.body), stream=stream)
    assert message.reply.noncanonical == []
    return message


def message_of(*items: Any, asked: Request | None = None, **policy: Any) -> Message:
    return read_message(answer_to(asked or request(), events(items), **policy))


def start(usage: Any = None, **fields: Any) -> dict[str, Any]:
    head: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "up", "content": []}
    head |= {"stop_reason": None, "stop_sequence": None}
    usage = {"input_tokens": 7, "output_tokens": 1} if usage is None else usage
    return {"type": "message_start", "message": {**head, "usage": usage, **fields}}


def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *texts: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": t} for t in texts))


def call(index: int, call_id: str, *fragments: str, **fields: Any) -> list[dict[str, Any]]:
    deltas = ({"type": "input_json_delta", "partial_json": f} for f in fragments)
    return block(index, {"type": "tool_use", "id": call_id, "name": "get_weather", "input": {}, **fields}, *deltas)


def end(reason: str = "end_turn", **usage: int) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9, **usage}}, {"type": "message_stop"}]


def decoded(*items: Any) -> tuple[list[Any], list[Quirk]]:
    """Deltas and quirks of events, as far as a decoder alone makes them."""
    quirks: list[Quirk] = []
    decoder = MessagesDecoder(quirks.append, verbatim=False)
    out: list[Any] = []
    for item in items:
        data = item if isinstance(item, bytes) else json.dumps(item).encode()
        out += decoder.feed(Frame(b"", data))
    return out + decoder.close(), quirks


# --- the same dialect on both sides ------------------------------------------------------------------------------


def test_text_goes_on_as_it_came_byte_for_byte() -> None:
    odd = (
        b'{"type": "content_block_delta",   "index": 0, "delta": {"type": "text_delta", "text": "\xc3\xa9", "x": 1.50}}'
    )
    pieces = events([start(), text(0)[0], b"data: " + odd + b"\n\n", text(0)[-1], *end()])
    assert b"event: content_block_delta\ndata: " + odd + b"\n\n" in answer_to(request(), pieces).body


def test_thinking_signatures_citations_and_sealed_blocks_survive_in_their_order() -> None:
    citation = {"type": "char_location", "cited_text": "a", "document_index": 0}
    message = message_of(
        start(container={"id": "c1"}),
        *block(0, {"type": "redacted_thinking", "data": "c2VhbGVk"}),
        *block(
            1,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "signature_delta", "signature": "c2ln=="},
        ),
        *block(2, {"type": "text", "text": ""}, {"type": "text_delta", "text": "A."}),
        *block(
            3,
            {"type": "text", "text": "", "citations": []},
            {"type": "text_delta", "text": "B."},
            {"type": "citations_delta", "citation": citation},
        ),
        *end(),
    )
    assert message.blocks == [
        {"type": "redacted_thinking", "data": "c2VhbGVk"},
        {"type": "thinking", "thinking": "hm", "signature": "c2ln=="},
        {"type": "text", "text": "A."},
        {"type": "text", "text": "B.", "citations": [citation]},
    ]
    assert message.head["container"] == {"id": "c1"}


WHOLE = {
    "id": "msg_9",
    "type": "message",
    "role": "assistant",
    "model": "up",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "c2Vh"},
        {"type": "text", "text": "Searched.", "citations": [{"type": "web", "cited_text": "x"}]},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tides"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"encrypted_content": "RUND"}]},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "get_weather",
            "input": {"city": "Oslo"},
            "caller": {"type": "d"},
        },
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 8, "server_tool_use": {"n": 1}},
}


@pytest.mark.parametrize("stream", [True, False])
def test_a_whole_message_keeps_every_block_whether_a_stream_was_asked_for_or_not(stream: bool) -> None:
    message = read_message(answer_to(request(stream=stream), [json.dumps(WHOLE).encode()]))
    assert message.blocks == WHOLE["content"]
    assert message.stop == {"stop_reason": "tool_use", "stop_sequence": None}
    assert message.usage == {**WHOLE["usage"], "cache_creation_input_tokens": 0}  # type: ignore[dict-item]
    assert message.head["id"] == "msg_9"


def test_a_stream_answered_to_a_plain_request_becomes_the_same_message() -> None:
    items = [
        start(),
        *block(
            0,
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"query":'},
            {"type": "input_json_delta", "partial_json": ' "tides"}'},
        ),
        *text(1, "Well", ", then."),
        *call(2, "toolu_1", '{"city"', ':"Oslo"}'),
        *end("tool_use"),
    ]
    streamed = message_of(*items)
    plain = message_of(*items, asked=request(stream=False))
    assert plain.blocks == streamed.blocks
    assert plain.blocks[0]["input"] == {"query": "tides"}
    assert (
        plain.usage
        == streamed.usage
        == {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 9,
        }
    )


@pytest.mark.parametrize("reason", ["end_turn", "pause_turn", "stop_sequence"])
def test_an_own_stop_reason_stays_with_what_belongs_to_it(reason: str) -> None:
    message_delta = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": "##", "x": 1}}
    message = message_of(start(), *text(0, "a"), {**message_delta, "y": 2}, {"type": "message_stop"})
    stop_sequence = "##" if reason == "stop_sequence" else None
    assert message.stop == {"stop_reason": reason, "stop_sequence": stop_sequence, "x": 1}


def test_a_refusal_is_one_on_both_sides() -> None:
    assert message_of(start(), *text(0, "No."), *end("refusal")).stop["stop_reason"] == "refusal"
    chat = answer_to(request("openai-chat"), events([start(), *text(0, "No."), *end("refusal")]))
    assert b'"finish_reason":"content_filter"' in chat.body


def test_events_of_an_unknown_type_are_dropped_and_reported() -> None:
    message = message_of(start(), {"type": "ping"}, {"type": "quota", "left": 3}, *text(0, "a"), *end())
    assert message.text == "a"
    assert Quirk.FOREIGN_EVENT.value in message.quirks


def test_a_thinking_block_behind_a_held_call_stays_behind_it() -> None:
    message = message_of(
        start(),
        *call(0, "toolu_1", "{}"),
        *block(
            1,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "next"},
            {"type": "signature_delta", "signature": "c2ln"},
        ),
        *call(2, "toolu_2", '{"city":"Oslo"}'),
        *end("tool_use"),
    )
    assert [b["type"] for b in message.blocks] == ["tool_use", "thinking", "tool_use"]
    assert message.blocks[1] == {"type": "thinking", "thinking": "next", "signature": "c2ln"}


def test_text_that_follows_a_call_goes_before_it_in_a_block_of_its_own() -> None:
    message = message_of(start(), *text(0, "A."), *call(1, "toolu_1", "{}"), *text(2, "B."), *end("tool_use"))
    assert [b.get("text") for b in message.blocks] == ["A.", "B.", None]


def test_white_space_alone_never_makes_a_block_before_a_call() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    message = message_of(start(), *text(0, "A."), *block(1, thought), *text(2, "\n"), *call(3, "t"), *end("tool_use"))
    assert [b["type"] for b in message.blocks] == ["text", "thinking", "tool_use"]
    assert Quirk.BLANK_TEXT_DROPPED.value in message.quirks
    message = message_of(start(), *text(0, "\n", "A."), *block(1, thought), *text(2, "\n"), *end())
    assert [b.get("text") for b in message.blocks] == ["\nA.", None, "\n"]


def test_blocks_that_are_open_together_are_sent_one_by_one() -> None:
    opening = [block(i, {"type": "text", "text": ""})[0] for i in (0, 1)]
    deltas = [text(i, t)[1] for i, t in ((0, "a"), (1, "b"), (0, "c"))]
    message = message_of(start(), *opening, *deltas, *end())
    assert message.text == "abc"


def test_an_error_without_its_event_line_ends_the_stream_in_an_error_event() -> None:
    broken = b'data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
    message = message_of(start(), *text(0, "Wri"), broken)
    assert message.error == {"type": "overloaded_error", "message": "Overloaded"}
    assert not message.ended


def test_a_blocked_call_is_an_api_error_with_its_verdict() -> None:
    message = message_of(start(), *text(0, "a"), *call(0, "t", '{"city":5}'), *end("tool_use"))
    assert message.error is not None
    assert (message.error["type"], message.error["code"]) == ("api_error", "schema_violation")
    assert not message.calls


def test_a_call_whose_input_is_no_object_cannot_be_carried() -> None:
    for source in ('{"city":', "[1]", '"x"', "5", '{"city":"a","city":"b"}'):
        message = message_of(start(), *call(0, "t", source), *end("tool_use"), mode="annotate")
        assert message.calls == []
        assert message.stop["stop_reason"] == "end_turn"
        assert message.report is not None
        assert message.report["calls"][0]["arguments"] == source
    message = message_of(start(), *call(0, "t", '{"city":5}'), *end("tool_use"), mode="annotate")
    assert message.calls == [("t", "get_weather", {"city": 5})]


def test_the_numbers_of_a_calls_input_are_never_reformatted() -> None:
    source = '{"a": 123456789012345678901234567890, "b": 1.50, "c": 1e2}'
    whole = json.dumps({**WHOLE, "content": [{"type": "tool_use", "id": "t", "name": "get_weather", "input": 0}]})
    document = whole.replace('"input": 0', f'"input": {source}').encode()
    assert source.encode() in answer_to(request(stream=False), [document]).body
    assert json.dumps(source)[1:-1].encode() in answer_to(request(), [document]).body
    assert json.dumps(source)[1:-1].encode() in answer_to(request("openai-chat", tools=chat_tools()), [document]).body


def chat_tools() -> list[dict[str, Any]]:
    schema = WEATHER["input_schema"]
    return [{"type": "function", "function": {"name": "get_weather", "description": "Of a city", "parameters": schema}}]


# --- the decoder -------------------------------------------------------------------------------------------------


def arguments(items: Sequence[Any]) -> dict[int | None, str]:
    out: dict[int | None, str] = {}
    for delta in items:
        if isinstance(delta, CallDelta):
            kept = "" if delta.final else out.get(delta.key, "")
            out[delta.key] = kept + (delta.arguments or "")
    return out


@pytest.mark.parametrize(
    ("given", "fragments", "want"),
    [
        ({}, (), "{}"),
        (None, (), "{}"),
        ("", ("",), "{}"),
        ({"city": "Oslo"}, (), '{"city": "Oslo"}'),
        ({"city": "Oslo"}, ("{", "}"), "{}"),
        ('{"city":"Oslo"}', (), '"{\\"city\\":\\"Oslo\\"}"'),
        ({}, ('{"a"', ":1}"), '{"a":1}'),
    ],
)
def test_the_input_at_the_start_counts_until_argument_text_comes(given: Any, fragments: Any, want: str) -> None:
    out, _ = decoded(start(), *call(0, "t", *fragments, input=given), *end("tool_use"))
    assert arguments(out) == {0: want}


def test_a_block_that_is_never_stopped_still_has_its_input() -> None:
    out, _ = decoded(start(), *call(0, "t", input={"city": "Oslo"})[:-1], *end("tool_use"))
    assert arguments(out) == {0: '{"city": "Oslo"}'}
    assert isinstance(out[-1], Done)


def test_argument_text_after_the_stop_replaces_the_empty_input() -> None:
    opened, delta, stop = call(0, "t", '{"a":1}')
    assert arguments(decoded(start(), opened, stop, delta, *end())[0]) == {0: '{"a":1}'}


def test_indexes_are_keys_and_every_start_is_a_block() -> None:
    out, quirks = decoded(start(), *call(0, "a", "{}"), *call(0, "b", '{"x":1}'), *call(9, "c"), *end("tool_use"))
    assert arguments(out) == {0: "{}", 1: '{"x":1}', 2: "{}"}
    assert Quirk.INDEX_REUSED in quirks


def test_a_missing_index_means_the_block_started_last() -> None:
    items = [{k: v for k, v in item.items() if k != "index"} for item in [*text(0, "a"), *call(1, "t", "{}")]]
    out, quirks = decoded(start(), *items, *end("tool_use"))
    assert arguments(out) == {1: "{}"}
    assert [d.text for d in out if isinstance(d, Piece) and d.text] == ["a"]
    assert Quirk.INDEX_MISSING in quirks


def test_a_deltas_type_and_not_its_block_says_what_it_carries() -> None:
    stray = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 5, "delta": {"type": "input_json_delta", "partial_json": '"a":1}'}},
    ]
    opened, fragment, stop = call(0, "t", "{")
    out, quirks = decoded(start(), opened, fragment, *stray, stop, *end("tool_use"))
    assert arguments(out) == {0: '{"a":1}'}
    pieces = [d for d in out if isinstance(d, Piece)]
    assert ("".join(p.text for p in pieces), "".join(p.reasoning for p in pieces)) == ("Hi", "hm")
    assert Quirk.INDEX_SHIFTED in quirks


def test_argument_text_without_any_call_is_a_call_without_a_name() -> None:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}}
    message = message_of(start(), delta, *end("tool_use"))
    assert message.error is not None
    assert message.error["code"] == "unknown_tool"


def test_text_that_stands_in_the_start_of_its_block_counts() -> None:
    assert message_of(start(), *block(0, {"type": "text", "text": "Hel"}, text(0, "lo")[1]["delta"]), *end()).text == (
        "Hello"
    )


def test_usage_is_cumulative_and_told_once() -> None:
    first = {"input_tokens": 4, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 2, "output_tokens": 1}
    out, _ = decoded(start(usage=first), *text(0, "a"), *end(input_tokens=5))
    told = [d for d in out if isinstance(d, UsageDelta)]
    assert [u.usage for u in told] == [{**first, "input_tokens": 5, "output_tokens": 9}]
    assert told[0].counts == Usage(37, 9, 30, 2)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("usage", ["x", [5], 5])
def test_usage_that_is_no_object_is_none(usage: Any, stream: bool) -> None:
    head = start(usage)
    reply = [head, *text(0, "Hi"), *end(input_tokens=7)]
    document = {**head["message"], "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}
    pieces = events(reply) if stream else (json.dumps(document).encode(),)
    message = read_message(answer_to(request(stream=stream), pieces))
    assert message.reply.content == {0: "Hi"}
    assert message.reply.error is None


def test_usage_of_a_stream_that_breaks_off_is_told_at_its_end() -> None:
    out, _ = decoded(start(), *text(0, "a"))
    assert isinstance(out[-1], UsageDelta)


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("weird", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
    ],
)
def test_stop_reasons_have_their_meaning(word: str, meaning: str) -> None:
    out, _ = decoded(start(), *end(word))
    assert [(d.reason, d.raw) for d in out if isinstance(d, FinishDelta)] == [(meaning, word)]


def test_a_done_mark_ends_a_reply_that_has_its_stop_reason_and_no_other() -> None:
    assert isinstance(decoded(start(), *end()[:1], b"[DONE]")[0][-1], Done)
    assert not any(isinstance(d, Done) for d in decoded(start(), *text(0, "a"), b"[DONE]")[0])


def test_a_stream_without_message_stop_is_whole_after_its_stop_reason() -> None:
    message = message_of(start(), *call(0, "t", '{"city":"Oslo"}'), end("tool_use")[0])
    assert message.calls == [("t", "get_weather", {"city": "Oslo"})]
    assert message.ended


def test_halves_of_a_character_are_joined_and_a_lonely_one_is_marked() -> None:
    halves = ['"\\ud83e"', '"\\ude81"', '"\\ud83e"']
    delta = '{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":{}}}}}'
    out, quirks = decoded(start(), text(0)[0], *(delta.format(h).encode() for h in halves), text(0)[-1], *end())
    assert "".join(d.text for d in out if isinstance(d, Piece)) == "\U0001fa81\ufffd"
    assert Quirk.SURROGATES_SPLIT in quirks


# --- other upstreams ---------------------------------------------------------------------------------------------


def chat_events(*deltas: dict[str, Any], finish: str = "stop", usage: dict[str, Any] | None = None) -> list[bytes]:
    def chunk(**fields: Any) -> bytes:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "up"}
        return b"data: " + json.dumps({**head, **fields}).encode() + b"\n\n"

    out = [chunk(choices=[{"index": 0, "delta": d, "finish_reason": None}]) for d in deltas]
    out.append(chunk(choices=[{"index": 0, "delta": {}, "finish_reason": finish}]))
    return [*out, *([chunk(choices=[], usage=usage)] if usage else []), b"data: [DONE]\n\n"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_chat_reply_becomes_a_canonical_message(stream: bool) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    tool_calls = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
    pieces = chat_events(
        {"role": "assistant", "reasoning_content": "hm"},
        {"content": "Let me "},
        {"content": "look.", "annotations": [1]},
        {"tool_calls": tool_calls},
        finish="tool_calls",
        usage={"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}},
    )
    message = read_message(answer_to(request(stream=stream), pieces, dialect="openai-chat"))
    assert message.blocks == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Oslo"}},
    ]
    assert message.stop == {"stop_reason": "tool_use", "stop_sequence": None}
    assert message.head["model"] == "up"


def test_usage_of_another_dialect_counts_the_cache_apart() -> None:
    want = {"input_tokens": 2, "cache_creation_input_tokens": 1, "cache_read_input_tokens": 7, "output_tokens": 4}
    assert messages_usage(Usage(10, 4, 7, 1)) == want
    assert messages_usage(Usage(10, 4)) == {"input_tokens": 10, "output_tokens": 4}


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_an_error_document_has_the_type_of_its_status(status: int, kind: str) -> None:
    fault = Fault(FaultKind.UPSTREAM_ERROR, "it broke", status=status)
    want = {"type": "error", "error": {"type": kind, "message": "it broke", "code": "upstream_error"}}
    assert json.loads(error_body(DIALECT, fault)) == want
    assert json.loads(error_body(DIALECT, fault, {"calls": []}))["wholecall"] == {"calls": []}


def test_an_upstreams_own_error_document_goes_on_as_it_came() -> None:
    document = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}, "request_id": "req_1"}
    answer = answer_to(request(), [json.dumps(document).encode()], status=429)
    assert answer.status == 429
    assert json.loads(answer.body) == document


def test_a_chat_backends_error_is_told_in_this_dialects_form() -> None:
    document = {"error": {"message": "slow down", "type": "requests", "code": "rate_limited"}}
    answer = answer_to(request(), [json.dumps(document).encode()], dialect="openai-chat", status=429)
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "slow down", "code": "rate_limited"},
    }


# --- requests ----------------------------------------------------------------------------------------------------


def test_a_request_is_read_as_its_client_meant_it() -> None:
    history = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "x"}]},
    ]
    read = request(
        messages=history,
        tools=[WEATHER, {"type": "bash_20250124", "name": "bash"}, {"type": "custom", "name": "c", "input_schema": {}}],
        tool_choice={"type": "tool", "name": "bash", "disable_parallel_tool_use": True},
    )
    assert list(read.tools) == ["get_weather", "bash", "c"]
    assert read.tools["bash"].schema is None
    assert read.tool_choice == ToolChoice("forced", frozenset({"bash"}))
    assert not read.parallel
    assert read.used_ids == {"t1", "t2"}
    assert request(tool_choice={"type": "any"}).tool_choice.mode == "required"
    assert request(tool_choice={"type": "none"}).tool_choice.mode == "none"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"messages": "Hi"}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"input_schema": {}}]}, "tools[0]"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
        ({"tool_choice": "auto"}, "tool_choice"),
    ],
)
def test_a_bad_request_is_refused_with_the_field_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Fault) as caught:
        request(**fields)
    assert caught.value.param == param
    assert param.partition("[")[0] in caught.value.detail or caught.value.kind is FaultKind.INVALID_TOOL_SCHEMA


def sent_to(dialect: str, asked: Request) -> tuple[dict[str, Any], tuple[Quirk, ...]]:
    written = upstream_request(asked, dialect, "up")
    return json.loads(written.body), written.quirks


def test_the_same_dialect_gets_the_clients_body_with_the_models_name() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    system = [{"type": "text", "text": "You.", "cache_control": {"type": "ephemeral"}}]
    asked = request(system=system, tools=[hosted], thinking={"type": "adaptive"}, anything=[1])
    body, quirks = sent_to(DIALECT, asked)
    assert body == {**asked.body, "model": "up"}
    assert not quirks
    written = upstream_request(asked, DIALECT, "up")
    assert written.path == "/messages"
    assert ("anthropic-version", "2023-06-01") in written.headers


def test_a_history_that_the_api_would_refuse_is_mended_on_its_way() -> None:
    def use(given: Any) -> dict[str, Any]:
        return {"type": "tool_use", "id": "t1", "name": "get_weather", "input": given}

    def result(call_id: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call_id, "content": "fine"}

    history = [
        {"role": "assistant", "content": [use("{oops")]},
        {"role": "user", "content": [result("t1")]},
        {"role": "assistant", "content": [use({})]},
        {"role": "user", "content": [result("gone"), result("t1")]},
    ]
    body, quirks = sent_to(DIALECT, request(messages=history))
    assert set(quirks) == {Quirk.HISTORY_ARGS_WRAPPED, Quirk.HISTORY_RESULT_ORPHANED, Quirk.HISTORY_ID_DOUBLED}
    first, answer, second, last = (m["content"] for m in body["messages"])
    assert first[0]["input"] == {"_raw": "{oops"}
    assert answer[0]["tool_use_id"] == first[0]["id"] == "t1"
    assert second[0]["id"] != "t1"
    assert last[0] == {"type": "tool_result", "tool_use_id": second[0]["id"], "content": "fine"}
    assert [b["text"] for b in last[1:]] == ["Result of an earlier tool call:", "fine"]


def test_a_follow_up_adds_the_turn_and_what_its_calls_are_answered() -> None:
    judged = [
        JudgedCall(0, i, f"t{i}", "get_weather", "function", Verdict.INVALID_JSON, t) for i, t in enumerate(("{}", "{"))
    ]
    asked = request(thinking={"type": "enabled", "budget_tokens": 50})
    again = CLIENT_DIALECTS[DIALECT].follow_up(asked, "Hm.", [(call, "no") for call in judged], "Again.")
    assert again.used_ids == {"t0", "t1"}
    body, quirks = sent_to(DIALECT, again)
    assert "thinking" not in body
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Hm."},
                {"type": "tool_use", "id": "t0", "name": "get_weather", "input": {}},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"_raw": "{"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t0", "content": "no"},
                {"type": "tool_result", "tool_use_id": "t1", "content": "no"},
                {"type": "text", "text": "Again."},
            ],
        },
    ]
    assert quirks == (Quirk.HISTORY_ARGS_WRAPPED,)
    assert len(CLIENT_DIALECTS[DIALECT].follow_up(asked, "", [], "Go.").body["messages"]) == 2


CLAUDE_CODE: dict[str, Any] = {
    "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look.", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": True,
                    "content": [
                        {"type": "text", "text": "no"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}},
                    ],
                },
                {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
                {"type": "text", "text": "Go on."},
            ],
        },
    ],
    "tools": [{**WEATHER, "description": "Of a city", "cache_control": {"type": "ephemeral"}}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "stop_sequences": ["##"],
    "context_management": {"edits": []},
}


def test_what_claude_code_sends_reaches_a_chat_backend() -> None:
    body, quirks = sent_to("openai-chat", request(**CLAUDE_CODE))
    roles = [m["role"] for m in body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert body["messages"][0]["content"] == "You are an agent."
    calls = body["messages"][2]["tool_calls"]
    assert (calls[0]["id"], json.loads(calls[0]["function"]["arguments"])) == ("toolu_1", {"city": "Oslo"})
    assert body["messages"][3]["tool_call_id"] == "toolu_1"
    assert "no" in body["messages"][3]["content"]
    assert "data:image/png;base64,aaaa" in json.dumps(body["messages"][4])
    assert '"D"' in json.dumps(body["messages"][4])
    assert body["tools"] == chat_tools()
    assert body["tool_choice"] == "required"
    assert body["parallel_tool_calls"] is False
    assert (body["max_tokens"], body["stop"], body["user"]) == (100, ["##"], "u")
    assert Quirk.FIELD_NOT_CARRIED in quirks
    lost = CLIENT_DIALECTS[DIALECT].conversation(request(**CLAUDE_CODE)).lost
    assert {"cache_control", "thinking.signature", "redacted_thinking", "context_management"} <= set(lost)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": ["custom"], "name": "f"}]}, "tools[0]"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "messages[0].content[0].source",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]},
            "messages[0].content[0].source",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "messages[0].content[0]"),
    ],
)
def test_what_cannot_cross_is_refused_with_the_field_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Fault) as caught:
        sent_to("openai-chat", request(**fields))
    assert caught.value.kind is FaultKind.UNSUPPORTED_FIELD
    assert caught.value.param == param
    assert param in caught.value.detail


def chat(**fields: Any) -> Request:
    fields.setdefault("max_tokens", None)
    return request("openai-chat", **fields)


def test_a_chat_conversation_is_written_as_the_api_wants_it() -> None:
    calls = [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}},
        {"id": "functions.f:1", "type": "function", "function": {"name": "get_weather", "arguments": ""}},
    ]
    asked = chat(
        messages=[
            {"role": "system", "content": "S"},
            {"role": "user", "content": "A"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}]},
            {"role": "assistant", "content": " ", "tool_calls": calls, "reasoning_content": "hm"},
            {"role": "user", "content": "Wait."},
            {"role": "tool", "tool_call_id": "call_1", "content": "cold"},
            {"role": "tool", "tool_call_id": "functions.f:1", "content": ""},
            {"role": "developer", "content": "D"},
        ],
        tools=[{"type": "function", "function": {"name": "get_weather"}}],
        parallel_tool_calls=False,
        temperature=1.5,
        stop=["##", "\n"],
        seed=4,
    )
    body, quirks = sent_to(DIALECT, asked)
    assert body["system"] == [{"type": "text", "text": "S"}, {"type": "text", "text": "D"}]
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
    first, calling, last = (m["content"] for m in body["messages"])
    source = {"type": "base64", "media_type": "image/png", "data": "aaaa"}
    assert first == [{"type": "text", "text": "A"}, {"type": "image", "source": source}]
    mapped = calling[1]["id"]
    assert calling == [
        {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": mapped, "name": "get_weather", "input": {}},
    ]
    assert last == [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "cold"},
        {"type": "tool_result", "tool_use_id": mapped},
        {"type": "text", "text": "Wait."},
    ]
    assert body["tools"] == [{"name": "get_weather", "input_schema": {"type": "object", "properties": {}}}]
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert (body["max_tokens"], body["temperature"], body["stop_sequences"]) == (DEFAULT_MAX_TOKENS, 1.0, ["##"])
    assert {Quirk.HISTORY_ID_MAPPED, Quirk.FIELD_NOT_CARRIED} <= set(quirks)


def test_thinking_is_asked_for_only_where_the_api_takes_it() -> None:
    budget = {"type": "enabled", "budget_tokens": 2048}
    body, _ = sent_to(DIALECT, chat(reasoning_effort="low", temperature=0.2, top_p=0.5))
    assert (body["thinking"], body["max_tokens"]) == (budget, DEFAULT_MAX_TOKENS + 2048)
    assert "temperature" not in body
    assert "top_p" not in body
    for fields in (
        {"reasoning_effort": "low", "max_tokens": 1024},
        {"reasoning_effort": "none"},
        {"reasoning_effort": "low", "tools": chat_tools(), "tool_choice": "required"},
    ):
        assert "thinking" not in sent_to(DIALECT, chat(**fields))[0]
    body, _ = sent_to(DIALECT, chat(reasoning_effort="high", max_tokens=3000))
    assert (body["thinking"]["budget_tokens"], body["max_tokens"]) == (1500, 3000)


def test_a_history_with_calls_declares_their_tools_though_none_may_be_called() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "old_tool", "arguments": "{}"}}]
    asked = chat(
        messages=[
            {"role": "user", "content": "A"},
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ]
    )
    body, _ = sent_to(DIALECT, asked)
    assert [tool["name"] for tool in body["tools"]] == ["old_tool"]
    assert body["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize(
    ("fields", "word"), [({"n": 2}, "n"), ({"response_format": {"type": "json_object"}}, "response_format")]
)
def test_what_this_dialect_cannot_carry_is_refused_by_its_chat_name(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(Fault) as caught:
        sent_to(DIALECT, chat(**fields))
    assert (caught.value.kind, caught.value.param) == (FaultKind.UNSUPPORTED_FIELD, word)


def test_an_answer_schema_and_allowed_tools_cross() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    named = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    tools = [*chat_tools(), {"type": "function", "function": {"name": "other"}}]
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "other"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    body, _ = sent_to(DIALECT, chat(response_format=named, tools=tools, tool_choice=choice))
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    assert [tool["name"] for tool in body["tools"]] == ["other"]
    assert body["tool_choice"] == {"type": "any"}


# --- round trips -------------------------------------------------------------------------------------------------

_WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda t: t.strip() != "")
_INPUTS = st.dictionaries(_WORDS, st.integers() | _WORDS | st.booleans() | st.none(), max_size=3)
_BLOCKS = st.one_of(
    _WORDS.map(lambda t: {"type": "text", "text": t}),
    st.tuples(_WORDS, _WORDS).map(lambda t: {"type": "thinking", "thinking": t[0], "signature": t[1]}),
    _WORDS.map(lambda t: {"type": "redacted_thinking", "data": t}),
    _INPUTS.map(lambda value: {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": value}),
)


@settings(max_examples=60, deadline=None)
@given(blocks=st.lists(_BLOCKS, max_size=5), inputs=st.lists(_INPUTS, max_size=3), data=st.data())
def test_any_reply_is_the_same_reply_streamed_and_plain(
    blocks: list[dict[str, Any]], inputs: list[dict[str, Any]], data: st.DataObject
) -> None:
    calls = [{"type": "tool_use", "id": f"t{i}", "name": "free", "input": v} for i, v in enumerate(inputs)]
    content = [*blocks, *calls]
    tools = [{"name": "free", "input_schema": {"type": "object"}}]
    reason = "tool_use" if calls else "end_turn"
    document = {**WHOLE, "content": content, "stop_reason": reason}
    items: list[Any] = [start()]
    for index, content_block in enumerate(content):
        items += as_events(index, content_block, data)
    pieces = events([*items, *end(reason)])
    for stream in (True, False):
        asked = request(stream=stream, tools=tools)
        assert read_message(answer_to(asked, pieces)).blocks == content
        assert read_message(answer_to(asked, [json.dumps(document).encode()])).blocks == content


def as_events(index: int, content: dict[str, Any], data: st.DataObject) -> list[dict[str, Any]]:
    """A block as the API streams it, its text cut anywhere."""

    def cut(kind: str, key: str, whole: str) -> list[dict[str, Any]]:
        at = data.draw(st.integers(0, len(whole)))
        return [{"type": kind, key: part} for part in (whole[:at], whole[at:])]

    match content["type"]:
        case "text":
            return block(index, {**content, "text": ""}, *cut("text_delta", "text", content["text"]))
        case "thinking":
            signature = {"type": "signature_delta", "signature": content["signature"]}
            deltas = cut("thinking_delta", "thinking", content["thinking"])
            return block(index, {**content, "thinking": "", "signature": ""}, *deltas, signature)
        case "tool_use" | "server_tool_use":
            deltas = cut("input_json_delta", "partial_json", json.dumps(content["input"]))
            return block(index, {**content, "input": {}}, *deltas)
        case _:
            return block(index, content)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(_WORDS, min_size=1, max_size=3), value=_INPUTS, result=_WORDS, failed=st.booleans())
def test_a_conversation_written_and_read_again_is_the_same(
    texts: list[str], value: dict[str, Any], result: str, failed: bool
) -> None:
    outcome = {"type": "tool_result", "tool_use_id": "t1", "content": result, **({"is_error": True} if failed else {})}
    asked = request(
        system=texts[0],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": t} for t in texts]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": value}]},
            {"role": "user", "content": [outcome]},
        ],
    )
    dialect = CLIENT_DIALECTS[DIALECT]
    talk = dialect.conversation(asked)
    again = dialect.read(UPSTREAM_DIALECTS[DIALECT].write_conversation(talk, "m"))
    assert dialect.conversation(again) == talk
