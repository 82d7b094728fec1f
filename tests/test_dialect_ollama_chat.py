"""Ollama: lines are read as what they say, requests are written as its reference asks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from proxy.dialects.base import BadEvent
from proxy.dialects.ollama_chat import decode, request
from proxy.dialects.openai_chat import hub
from proxy.dialects.openai_chat import request as chat
from proxy.faults import Fault, FaultKind
from proxy.model.conversation import Options
from proxy.model.deltas import CallDelta, Delta, Done, FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.wire.sse import Frame

# --- reading -----------------------------------------------------------------------------------------------------


def line(message: Any = None, done: bool = False, **more: Any) -> dict[str, Any]:
    return {"model": "m", **({"message": message} if message is not None else {}), "done": done, **more}


def read(*documents: Any) -> tuple[list[Delta], list[Quirk]]:
    quirks: list[Quirk] = []
    decoder = decode.OllamaDecoder(quirks.append)
    out = [d for doc in documents for d in decoder.feed(Frame(b"", json.dumps(doc).encode()))]
    return [*out, *decoder.close()], quirks


def test_the_last_line_gives_calls_finish_usage_and_the_end_in_this_order() -> None:
    call = {"function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
    deltas, quirks = read(
        line({"content": "x", "tool_calls": [call]}, True, done_reason="stop", prompt_eval_count=3, eval_count=4)
    )
    usage = {"prompt_eval_count": 3, "eval_count": 4}
    assert deltas == [
        Piece(0, "x"),
        CallDelta(0, 1, name="f", arguments='{"a": 1}', whole=True),
        FinishDelta(0, "tool_calls", "tool_calls"),
        UsageDelta(usage, Usage(3, 4)),
        Done(),
    ]
    assert quirks == []


@pytest.mark.parametrize("reason", [{}, {"done_reason": ""}, {"done_reason": None}])
def test_done_is_the_end_even_without_a_reason(reason: dict[str, Any]) -> None:
    assert read(line({"content": "x"}, True, **reason))[0] == [Piece(0, "x"), Done()]


def test_thinking_behind_a_call_has_a_place_among_the_calls() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    deltas, _ = read(
        line({"content": "", "thinking": "one", "tool_calls": [call]}),
        line({"content": "hi", "thinking": "two", "tool_calls": [call]}),
    )
    places = [d.order for d in deltas if isinstance(d, Piece) and d.reasoning]
    keys = [d.key for d in deltas if isinstance(d, CallDelta)]
    assert (places, keys) == ([None, 2], [1, 3])
    assert Piece(0, "hi") in deltas


def test_the_word_null_is_no_id() -> None:
    deltas, _ = read(line({"content": "", "tool_calls": [{"id": "null", "function": {"name": "f", "arguments": {}}}]}))
    assert [d.call_id for d in deltas if isinstance(d, CallDelta)] == [None]


def test_odd_entries_are_counted() -> None:
    function = {"name": "f", "id": 7, "arguments": '{"a":1}'}
    deltas, quirks = read(
        line({"content": None, "tool_calls": [{"function": function}, {"function": {}}, None, {}]}),
        line({"tool_calls": {"function": {"name": "g", "arguments": {"b": 2}}}}),
        {"status": "ping"},
        None,
    )
    found = [(d.call_id, d.name, d.arguments) for d in deltas if isinstance(d, CallDelta)]
    assert found == [("7", "f", '{"a":1}'), (None, "g", '{"b": 2}')]
    assert set(quirks) == {
        Quirk.FIELDS_IN_FUNCTION,
        Quirk.ID_NUMBER,
        Quirk.PHANTOM_CALL,
        Quirk.TOOL_CALLS_OBJECT,
        Quirk.FOREIGN_EVENT,
        Quirk.EMPTY_EVENT,
    }


def test_broken_lines_are_refused() -> None:
    decoder = decode.OllamaDecoder(lambda quirk: None)
    for data in (b'{"message": {', b"7", b"[]"):
        with pytest.raises(BadEvent):
            decoder.feed(Frame(b"", data))
    with pytest.raises(BadEvent):
        decoder.feed_document(Frame(b"", b"{"))


@pytest.mark.parametrize(
    "calls",
    ['"call"', '["call"]', '[["call"]]', '[{"function": "f", "arguments": {}}]', '[{"function": {}, "function": {}}]'],
)
def test_calls_in_what_is_no_list_of_objects_are_refused(calls: str) -> None:
    decoder = decode.OllamaDecoder(lambda quirk: None)
    with pytest.raises(BadEvent):
        decoder.feed(Frame(b"", b'{"message": {"tool_calls": %b}}' % calls.encode()))


@pytest.mark.parametrize(
    "body", [b'{"message": {"content": "x"}, "done": false}', b'{"message": {"content": "x"}}\n{"a": 1}\n']
)
def test_lines_in_place_of_a_document_are_whole_only_if_one_says_done(body: bytes) -> None:
    decoder = decode.OllamaDecoder(lambda quirk: None)
    assert decoder.feed_document(Frame(b"", body)) == [Piece(0, "x")]
    assert not decoder.whole


def test_a_plain_reply_without_done_is_whole() -> None:
    decoder = decode.OllamaDecoder(lambda quirk: None)
    assert decoder.feed_document(Frame(b"", b'{"message": {"content": "x"}}')) == [Piece(0, "x")]


def test_a_line_of_many_calls_is_read_in_linear_time() -> None:
    def cost(count: int) -> float:
        call = {"function": {"name": "f", "arguments": {"text": "x" * 400}}}
        data = json.dumps(line({"content": "", "tool_calls": [call] * count})).encode()
        before = time.process_time()
        assert len(decode.OllamaDecoder(lambda quirk: None).feed(Frame(b"", data))) == count + 1
        return time.process_time() - before

    small = cost(200)
    assert cost(2000) < 10 * small * 3 + 0.2


# --- writing -----------------------------------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
BARE = {"type": "function", "function": {"name": "g"}}
USER = [{"role": "user", "content": "x"}]


def written(messages: list[Any], **more: Any) -> tuple[dict[str, Any], list[str]]:
    talk = hub.conversation(chat.read(json.dumps({"model": "c", "messages": messages, **more}).encode()))
    body: dict[str, Any] = json.loads(request.write_conversation(talk, "m"))
    return body, talk.lost


def test_a_conversation_with_tools_is_written_whole() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}}
    arguments = '{"n": 12345678901234567890123}'
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body, lost = written(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look."}, picture]},
            {"role": "assistant", "reasoning_content": "Hm.", "content": "One.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "r"},
            {"role": "user", "content": "And?"},
        ],
        tools=[TOOL, BARE],
        stream=True,
    )
    assert body == {
        "model": "m",
        "stream": True,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look.", "images": ["aGk="]},
            {
                "role": "assistant",
                "content": "One.",
                "thinking": "Hm.",
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"n": 12345678901234567890123}}}],
            },
            {"role": "tool", "tool_name": "f", "tool_call_id": "1", "content": "r"},
            {"role": "user", "content": "And?"},
        ],
        "tools": [
            TOOL,
            {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}},
        ],
    }
    assert lost == []


def test_a_reply_that_is_no_stream_has_to_be_asked_for() -> None:
    assert written(USER)[0] == {"model": "m", "messages": USER, "stream": False}


@pytest.mark.parametrize(
    ("choice", "names", "lost"),
    [
        ("auto", ["f", "g"], []),
        ("none", [], []),
        ("required", ["f", "g"], ["tool_choice"]),
        ({"type": "function", "function": {"name": "g"}}, ["g"], ["tool_choice"]),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}},
            ["f"],
            [],
        ),
    ],
)
def test_tools_that_may_not_be_called_are_left_out(choice: Any, names: list[str], lost: list[str]) -> None:
    body, told = written(USER, tools=[TOOL, BARE], tool_choice=choice)
    assert [tool["function"]["name"] for tool in body.get("tools", [])] == names
    assert told == lost


def test_options_have_their_own_names_and_places() -> None:
    body, lost = written(
        USER,
        max_tokens=5,
        temperature=0,
        top_p=0.9,
        top_k=3,
        stop=["END"],
        seed=7,
        user="u",
        parallel_tool_calls=False,
        response_format={"type": "json_object"},
    )
    assert body["options"] == {
        "num_predict": 5,
        "temperature": 0,
        "top_p": 0.9,
        "top_k": 3,
        "stop": ["END"],
        "seed": 7,
    }
    assert body["format"] == "json"
    assert sorted(lost) == ["parallel_tool_calls", "user"]


@pytest.mark.parametrize(
    ("options", "think"),
    [
        (Options(), None),
        (Options(reasoning_effort="none"), False),
        (Options(reasoning_effort="minimal"), "low"),
        (Options(reasoning_effort="high"), "high"),
        (Options(reasoning_effort="odd"), True),
        (Options(reasoning_budget=0), False),
        (Options(reasoning_budget=4000), True),
    ],
)
def test_reasoning_is_asked_for_by_think(options: Options, think: Any) -> None:
    talk = hub.conversation(chat.read(json.dumps({"model": "c", "messages": USER}).encode()))
    talk.options = options
    assert json.loads(request.write_conversation(talk, "m")).get("think") == think


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}
                ]
            },
            "messages[0].content[0].image_url",
        ),
    ],
)
def test_what_cannot_cross_is_refused_by_its_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(Fault) as caught:
        written(**{"messages": USER, **more})
    assert (caught.value.kind, caught.value.param) == (FaultKind.UNSUPPORTED_FIELD, param)


def test_the_path_is_the_same_for_every_model() -> None:
    assert request.path("a/b", True) == request.path("c", False) == "/api/chat"
