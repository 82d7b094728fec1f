"""Gemini: responses are read as what they say, requests are written as its reference asks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.base import BadEvent
from proxy.dialects.gemini import decode, request
from proxy.dialects.gemini.arguments import ArgumentText, parse_path
from proxy.dialects.openai_chat import hub
from proxy.dialects.openai_chat import request as chat
from proxy.faults import Fault, FaultKind
from proxy.model.conversation import CallPart, Options, ResultPart
from proxy.model.deltas import CallDelta, Delta, Done, FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.wire.sse import Frame

# --- reading -----------------------------------------------------------------------------------------------------


def candidate(parts: list[Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    one: dict[str, Any] = {"index": 0}
    if parts is not None:
        one["content"] = {"role": "model", "parts": parts}
    if finish is not None:
        one["finishReason"] = finish
    return {"candidates": [one], **more}


def read(*documents: Any, choices: int = 1) -> tuple[list[Delta], list[Quirk]]:
    quirks: list[Quirk] = []
    decoder = decode.GeminiDecoder(choices, quirks.append)
    out = [d for doc in documents for d in decoder.feed(Frame(b"", json.dumps(doc).encode()))]
    return [*out, *decoder.close()], quirks


def calls(deltas: list[Delta]) -> list[CallDelta]:
    return [d for d in deltas if isinstance(d, CallDelta)]


def test_the_word_null_is_no_id() -> None:
    deltas, _ = read(candidate([{"functionCall": {"id": "null", "name": "f", "args": {}}}], "STOP"))
    assert [call.call_id for call in calls(deltas)] == [None]


def test_usage_is_told_once_with_thoughts_and_cached_tokens_in_their_place() -> None:
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 2, "thoughtsTokenCount": 9, "cachedContentTokenCount": 4}
    first = {**usage, "candidatesTokenCount": 1}
    deltas, _ = read(
        candidate([{"text": "a"}], usageMetadata=first),
        candidate([{"text": "b"}], "STOP", usageMetadata=usage),
        candidate(usageMetadata=usage),
    )
    told = [d for d in deltas if isinstance(d, UsageDelta)]
    assert told == [UsageDelta(usage, Usage(11, 11, cache_read=4, reasoning=9))]


def test_usage_of_a_cut_stream_is_told_at_its_end() -> None:
    deltas, _ = read(candidate([{"text": "a"}], usageMetadata={"promptTokenCount": 3}))
    assert deltas[-1] == UsageDelta({"promptTokenCount": 3}, Usage(3, 0))


def test_thoughts_behind_a_call_have_a_place_among_the_calls() -> None:
    deltas, _ = read(
        candidate([{"text": "one", "thought": True}, {"text": "hi"}, {"functionCall": {"name": "f"}}]),
        candidate([{"text": "two", "thought": True}, {"functionCall": {"name": "g"}}], "STOP"),
    )
    one, f, two, g = (d for d in deltas if isinstance(d, (Piece, CallDelta)))
    assert isinstance(one, Piece)
    assert isinstance(two, Piece)
    assert isinstance(f, CallDelta)
    assert isinstance(g, CallDelta)
    assert (one.reasoning, one.text, one.order) == ("one", "hi", None)
    assert (two.reasoning, two.text) == ("two", "")
    assert two.order is not None
    assert f.key is not None
    assert g.key is not None
    assert f.key < two.order < g.key


def test_stop_with_calls_is_the_dialects_own_way_and_no_quirk() -> None:
    deltas, quirks = read(candidate([{"functionCall": {"name": "f", "args": {}}}]), candidate(finish="STOP"))
    assert [d for d in deltas if isinstance(d, FinishDelta)] == [FinishDelta(0, "tool_calls", "tool_calls")]
    assert isinstance(deltas[-1], Done)
    assert quirks == []


@pytest.mark.parametrize(
    ("word", "meaning", "raw"),
    [
        ("MAX_TOKENS", "length", "length"),
        ("RECITATION", "content_filter", "content_filter"),
        ("OTHER", "stop", "OTHER"),
        ("UNEXPECTED_TOOL_CALL", "unexpected_tool_call", "unexpected_tool_call"),
    ],
)
def test_finish_words_are_translated(word: str, meaning: str, raw: str) -> None:
    assert FinishDelta(0, meaning, raw) in read(candidate([{"text": "a"}], word))[0]


@pytest.mark.parametrize("word", ["", None, "FINISH_REASON_UNSPECIFIED"])
def test_a_finish_reason_that_is_not_set_proves_nothing(word: Any) -> None:
    deltas, _ = read({"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": word}]})
    assert deltas == [Piece(0, "a")]


def test_the_end_of_one_candidate_is_not_the_end_of_the_other() -> None:
    second = {"candidates": [{"index": 1, "content": {"parts": [{"text": "b"}]}}]}
    deltas, _ = read(candidate([{"text": "a"}], "STOP"), second, choices=2)
    assert not any(isinstance(d, Done) for d in deltas)


def test_odd_events_are_counted_and_broken_ones_refused() -> None:
    decoder_quirks: list[Quirk] = []
    decoder = decode.GeminiDecoder(1, decoder_quirks.append)
    assert decoder.feed(Frame(b"", b" [DONE] ")) == [Done()]
    for data in (b"", b"null", b": ping", b'{"ping": 1}'):
        assert decoder.feed(Frame(b"", data)) == []
    assert set(decoder_quirks) == {Quirk.EMPTY_EVENT, Quirk.FOREIGN_EVENT}
    for data in (b'{"candidates": [', b"7", b'"x"'):
        with pytest.raises(BadEvent):
            decoder.feed(Frame(b"", data))


@pytest.mark.parametrize(
    "partial",
    [
        "x",
        {"jsonPath": "$.a"},
        {"jsonPath": "$.a", "structValue": {}},
        {"stringValue": "a"},
        {"jsonPath": "$", "stringValue": "a"},
        {"jsonPath": "$..a", "stringValue": "a"},
        {"jsonPath": "$.a[*]", "stringValue": "a"},
        {"jsonPath": "$" + ".a" * 65, "stringValue": "a"},
        {"jsonPath": "$." + "a" * 5000, "stringValue": "a"},
    ],
)
def test_a_partial_argument_that_cannot_be_placed_breaks_the_event(partial: Any) -> None:
    with pytest.raises(BadEvent):
        read(candidate([{"functionCall": {"name": "f", "partialArgs": [partial], "willContinue": True}}]))


def test_whole_arguments_at_the_end_of_streamed_ones_are_the_last_word() -> None:
    deltas, _ = read(
        candidate([{"functionCall": {"name": "f", "args": {}, "willContinue": True}}]),
        candidate([{"functionCall": {"partialArgs": [{"jsonPath": "$.a", "numberValue": 1}], "willContinue": True}}]),
        candidate([{"functionCall": {"name": "f", "args": {"a": 1, "b": 2}}}], "STOP"),
    )
    found = calls(deltas)
    # The same name without partialArgs is a call of its own: nothing says that it goes on.
    assert [(d.key, d.arguments, d.unfinished) for d in found] == [
        (1, None, False),
        (1, '{"a":1', False),
        (2, '{"a": 1, "b": 2}', False),
        (1, None, True),
    ]


def test_an_id_tells_that_a_part_goes_on_with_a_streamed_call() -> None:
    deltas, _ = read(
        candidate([{"functionCall": {"name": "f", "id": "x", "willContinue": True}}]),
        candidate([{"functionCall": {"name": "f", "id": "x", "args": {"a": 1}}}], "STOP"),
    )
    opened, ended = calls(deltas)
    assert opened.key == ended.key
    assert (ended.arguments, ended.final) == ('{"a": 1}', True)


def test_a_large_response_of_many_calls_is_read_in_linear_time() -> None:
    def cost(count: int) -> float:
        part = {"functionCall": {"name": "f", "args": {"text": "x" * 400}}}
        data = json.dumps(candidate([part] * count)).encode()
        before = time.process_time()
        assert len(decode.GeminiDecoder(1, lambda quirk: None).feed(Frame(b"", data))) == count
        return time.process_time() - before

    small = cost(200)
    assert cost(2000) < 10 * small * 3 + 0.2


# --- streamed arguments ------------------------------------------------------------------------------------------

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=6)
KEYS = st.text(max_size=4)
OBJECTS = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3)  # an empty one has no path
            | st.dictionaries(KEYS, inner, min_size=1, max_size=3)
        ),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)


def entries(value: Any, path: str = "$") -> list[dict[str, Any]]:
    """A value as Vertex streams it: leaves at paths, strings in two pieces."""
    if isinstance(value, dict):
        return [e for k, v in value.items() for e in entries(v, f"{path}[{json.dumps(k)}]")]
    if isinstance(value, list):
        return [e for i, v in enumerate(value) for e in entries(v, f"{path}[{i}]")]
    if isinstance(value, str):
        half = len(value) // 2
        return [
            {"jsonPath": path, "stringValue": value[:half], "willContinue": True},
            {"jsonPath": path, "stringValue": value[half:]},
        ]
    if value is None:
        return [{"jsonPath": path, "nullValue": "NULL_VALUE"}]
    return [{"jsonPath": path, ("boolValue" if isinstance(value, bool) else "numberValue"): value}]


@given(OBJECTS, st.booleans())
def test_streamed_arguments_are_the_object_that_was_streamed(value: dict[str, Any], one_by_one: bool) -> None:
    streamed = entries(value)
    events = [[e] for e in streamed] if one_by_one else [streamed]
    deltas, _ = read(
        candidate([{"functionCall": {"name": "f", "willContinue": True}}]),
        *(candidate([{"functionCall": {"partialArgs": e, "willContinue": True}}]) for e in events),
        candidate([{"functionCall": {}}], "STOP"),
    )
    found = calls(deltas)
    assert json.loads("".join(d.arguments or "" for d in found)) == value
    assert len({d.key for d in found}) == 1
    assert not found[-1].unfinished


def test_paths_have_names_quoted_names_and_indexes() -> None:
    assert parse_path("$.a.b-c[0]['d.e'][\"f]\\n\"]['it\\'s']") == ("a", "b-c", 0, "d.e", "f]\n", "it's")


@pytest.mark.parametrize(
    "paths",
    [
        ["$.a[1]"],
        ["$.a[0]", "$.a[0]"],
        ["$.a[0].x", "$.b", "$.a[1].x"],
        ["$.a.x", "$.a[0]"],
        ["$[0]"],
        ["$.a[999999999]"],
    ],
)
def test_paths_that_lead_nowhere_give_no_strict_json(paths: list[str]) -> None:
    text = ArgumentText()
    whole = "".join(text.value(parse_path(path), "1") for path in paths) + text.close()
    assert len(whole) < 100

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a doubled key")
        return dict(pairs)

    with pytest.raises(ValueError):
        json.loads(whole, object_pairs_hook=once)


# --- writing -----------------------------------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
BARE = {"type": "function", "function": {"name": "g", "strict": True}}


def written(messages: list[Any], model: str = "gemini-x", **more: Any) -> dict[str, Any]:
    talk = hub.conversation(chat.read(json.dumps({"model": "m", "messages": messages, **more}).encode()))
    body: dict[str, Any] = json.loads(request.write_conversation(talk, model))
    return body


def call(call_id: str, name: str, arguments: str = "{}", signature: str | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    if signature is not None:
        entry["extra_content"] = {"google": {"thought_signature": signature}}
    return entry


def test_a_conversation_with_tools_is_written_whole() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}}
    body = written(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look."}, picture]},
            {
                "role": "assistant",
                "content": "Two calls.",
                "tool_calls": [call("1", "f", '{"n": 12345678901234567890123}', "c2ln"), call("2", "g")],
            },
            {"role": "tool", "tool_call_id": "2", "content": "second"},
            {"role": "tool", "tool_call_id": "1", "content": "first"},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "tool_calls": [call("3", "f"), call("4", "f")]},
            {"role": "tool", "tool_call_id": "3", "content": "x"},
            {"role": "tool", "tool_call_id": "4", "content": "y"},
            {"role": "developer", "content": "Now in French."},
        ],
        tools=[TOOL, BARE],
    )
    assert body == {
        "systemInstruction": {"parts": [{"text": "Be brief."}, {"text": "Now in French."}]},
        "contents": [
            {
                "role": "user",
                "parts": [{"text": "Look."}, {"inlineData": {"mimeType": "image/jpeg", "data": "aGk="}}],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "Two calls."},
                    {
                        "functionCall": {"name": "f", "args": {"n": 12345678901234567890123}},
                        "thoughtSignature": "c2ln",
                    },
                    {"functionCall": {"name": "g", "args": {}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "f", "response": {"output": "first"}}},
                    {"functionResponse": {"name": "g", "response": {"output": "second"}}},
                ],
            },
            {"role": "user", "parts": [{"text": "And?"}]},
            {
                "role": "model",
                "parts": [
                    {
                        "functionCall": {"name": "f", "args": {}},
                        "thoughtSignature": "skip_thought_signature_validator",
                    },
                    {"functionCall": {"name": "f", "args": {}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "f", "response": {"output": "x"}}},
                    {"functionResponse": {"name": "f", "response": {"output": "y"}}},
                ],
            },
        ],
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "f", "description": "d", "parametersJsonSchema": {"type": "object"}},
                    {"name": "g"},
                ]
            }
        ],
    }


USER = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", None),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ({"type": "function", "function": {"name": "f"}}, {"mode": "ANY", "allowedFunctionNames": ["f"]}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [BARE]}},
            {"mode": "VALIDATED", "allowedFunctionNames": ["g"]},
        ),
    ],
)
def test_tool_choice_becomes_a_calling_mode(choice: Any, config: Any) -> None:
    body = written(USER, tools=[TOOL, BARE], tool_choice=choice)
    assert body.get("toolConfig") == (config and {"functionCallingConfig": config})


def test_options_have_their_own_names() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    config = written(
        USER,
        n=2,
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stop="END",
        seed=7,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    )["generationConfig"]
    assert config == {
        "candidateCount": 2,
        "maxOutputTokens": 5,
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 3,
        "stopSequences": ["END"],
        "seed": 7,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
    }


@pytest.mark.parametrize(
    ("model", "options", "config"),
    [
        ("gemini-2.5-pro", Options(), None),
        ("gemini-2.5-pro", Options(reasoning_effort="medium"), {"thinkingBudget": 8192, "includeThoughts": True}),
        ("gemini-2.5-flash", Options(reasoning_effort="none"), {"thinkingBudget": 0, "includeThoughts": False}),
        ("gemini-3-pro", Options(reasoning_effort="minimal"), {"thinkingLevel": "low", "includeThoughts": True}),
        ("gemini-3-pro", Options(reasoning_effort="xhigh"), {"thinkingLevel": "high", "includeThoughts": True}),
        ("gemini-3-pro", Options(reasoning_budget=2000), {"thinkingBudget": 2000, "includeThoughts": True}),
    ],
)
def test_reasoning_is_asked_for_in_the_models_own_way(model: str, options: Options, config: Any) -> None:
    talk = hub.conversation(chat.read(json.dumps({"model": "m", "messages": USER}).encode()))
    talk.options = options
    body = json.loads(request.write_conversation(talk, model))
    assert body.get("generationConfig", {}).get("thinkingConfig") == config


def test_what_only_the_answer_can_enforce_is_named_as_lost() -> None:
    body = {"model": "m", "messages": USER, "tools": [BARE], "parallel_tool_calls": False, "user": "u"}
    talk = hub.conversation(chat.read(json.dumps(body).encode()))
    request.write_conversation(talk, "m")
    assert talk.lost == ["parallel_tool_calls", "tools.strict", "user"]


def test_an_image_by_its_url_is_refused_and_never_fetched() -> None:
    with pytest.raises(Fault, match="image_url") as caught:
        written([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/x.png"}}]}])
    assert caught.value.kind is FaultKind.UNSUPPORTED_FIELD
    assert caught.value.param == "messages[0].content[0].image_url"


def test_instructions_alone_become_the_content_that_must_be_there() -> None:
    assert written([{"role": "system", "content": "Say hi."}]) == {
        "contents": [{"role": "user", "parts": [{"text": "Say hi."}]}]
    }


def test_a_faulty_tool_result_is_an_error_and_a_signature_of_the_hub_goes_up() -> None:
    assistant = {"role": "assistant", "tool_calls": [call("1", "f")]}
    messages = [*USER, assistant, {"role": "tool", "tool_call_id": "1", "content": "no"}]
    talk = hub.conversation(chat.read(json.dumps({"model": "m", "messages": messages}).encode()))
    for turn in talk.turns:
        for part in turn.parts:
            if isinstance(part, CallPart):
                part.signature = "c2ln"
            elif isinstance(part, ResultPart):
                part.is_error = True
    model, user = json.loads(request.write_conversation(talk, "m"))["contents"][1:]
    assert model["parts"][0]["thoughtSignature"] == "c2ln"
    assert user["parts"][0]["functionResponse"]["response"] == {"error": "no"}


@pytest.mark.parametrize(
    ("model", "stream", "path"),
    [
        ("gemini-3-pro", True, "/models/gemini-3-pro:streamGenerateContent?alt=sse"),
        ("gemini-3-pro", False, "/models/gemini-3-pro:generateContent"),
        ("../../admin?x#y", False, "/models/..%2F..%2Fadmin%3Fx%23y:generateContent"),
        ("a:b é\r\n", False, "/models/a%3Ab%20%C3%A9%0D%0A:generateContent"),
    ],
)
def test_a_models_name_stays_one_segment_of_the_path(model: str, stream: bool, path: str) -> None:
    assert request.path(model, stream) == path
