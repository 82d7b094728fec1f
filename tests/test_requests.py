"""Requests through the hub: what each client asks for, in the form of each backend; what is refused, what is lost."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialect_clients import CLIENTS
from proxy.dialects import CLIENT_DIALECTS, UPSTREAM_DIALECTS, UpstreamRequest, error_body, upstream_request
from proxy.dialects.anthropic_messages.hub import DEFAULT_MAX_TOKENS
from proxy.exchange import ExchangeSettings
from proxy.faults import Fault, FaultKind
from proxy.model.findings import Quirk
from proxy.replay.inprocess import run
from proxy.replay.recording import Recording

CHAT, RESPONSES, MESSAGES, GEMINI, OLLAMA = UPSTREAM_DIALECTS
USER = {"role": "user", "content": "Hi"}
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    RESPONSES: {"input": [USER]},
    MESSAGES: {"messages": [USER], "max_tokens": 100},
}
ABSENT = object()


def sent(client: str, upstream: str, fields: Mapping[str, Any]) -> UpstreamRequest:
    body = {"model": "m", **LEAST[client], **fields}
    return upstream_request(CLIENT_DIALECTS[client].read(json.dumps(body).encode()), upstream, "up")


@dataclass(frozen=True, slots=True)
class Feature:
    """`given`: fields of the request by client; `want`: fields of the body by backend (ABSENT: there is none);
    `lost`: backends where it is reported as not carried; `refused`: the end of the field that a 400 names."""

    name: str
    given: Mapping[str, Mapping[str, Any]]
    want: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


def by(chat: Any = None, responses: Any = None, messages: Any = None) -> dict[str, dict[str, Any]]:
    return {name: v for name, v in ((CHAT, chat), (RESPONSES, responses), (MESSAGES, messages)) if v is not None}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def flat(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **more}


def two_tools(chat: Any = None, responses: Any = None, messages: Any = None) -> dict[str, dict[str, Any]]:
    """Two declared tools, and other fields by client."""
    declared: dict[str, list[dict[str, Any]]] = {
        CHAT: [tool("look"), tool("ping")],
        RESPONSES: [flat("look"), flat("ping")],
        MESSAGES: [{"name": "look"}, {"name": "ping"}],
    }
    return {name: {"tools": declared[name], **more} for name, more in by(chat, responses, messages).items()}


def content(chat: Any = None, responses: Any = None, messages: Any = None) -> dict[str, dict[str, Any]]:
    """A user's message of one part."""
    return {
        name: {"input" if name == RESPONSES else "messages": [{"role": "user", "content": [part]}]}
        for name, part in by(chat, responses, messages).items()
    }


def calling(**fields: Any) -> dict[str, Any]:
    return {"toolConfig": {"functionCallingConfig": fields}}


def called(result: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """A call of an earlier turn and its result, by client; `result` are other fields of the latter in Messages."""
    assistant = {"role": "assistant", "content": "Well.", "tool_calls": [{"id": "c1", **tool("look", arguments=TEXT)}]}
    blocks = [{"type": "text", "text": "Well."}, {"type": "tool_use", "id": "c1", "name": "look", "input": VALUE}]
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "cold", **(result or {})}
    return by(
        {"messages": [USER, assistant, {"role": "tool", "tool_call_id": "c1", "content": "cold"}]},
        {
            "input": [
                USER,
                {"role": "assistant", "content": "Well."},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": TEXT},
                {"type": "function_call_output", "call_id": "c1", "output": "cold"},
            ]
        },
        {"messages": [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": [block]}]},
    )


VALUE = {"q": "a", "n": 123456789012345678901234567890}
TEXT = json.dumps(VALUE, separators=(",", ":"))
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
EMPTY = {"type": "object", "properties": {}}
PNG = {"type": "base64", "media_type": "image/png", "data": "aaaa"}
DATA_URL, HTTP_URL = "data:image/png;base64,aaaa", "https://example.org/x.png"
BY_URL = {"type": "image", "source": {"type": "url", "url": HTTP_URL}}
IN_CHAT, IN_RESPONSES = {"type": "message", **USER}, {"type": "message", "role": "user"}
BOTH = {MESSAGES: [{"name": name, "input_schema": EMPTY} for name in ("look", "ping")]}
BOTH[OLLAMA] = [tool(name, parameters=EMPTY) for name in ("look", "ping")]
SOME_CHAT = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("ping")]}}
SOME_RESPONSES = {"type": "allowed_tools", "mode": "auto", "tools": [flat("ping")]}
DUMMY = "skip_thought_signature_validator"
LOOKED = {"name": "look", "args": VALUE}
WITH_IMAGE = {"content": [{"type": "text", "text": "cold"}, {"type": "image", "source": PNG}]}
SHOWN = {"inlineData": {"mimeType": "image/png", "data": "aaaa"}}
NAMED = {"name": "n", "schema": SCHEMA}

# fmt: off
FEATURES = [
    Feature(
        "a tool",
        by({"tools": [tool("look", description="d", parameters=SCHEMA)]},
           {"tools": [flat("look", description="d", parameters=SCHEMA)]},
           {"tools": [{"name": "look", "description": "d", "input_schema": SCHEMA}]}),
        {CHAT: {"tools": [tool("look", description="d", parameters=SCHEMA)], "tool_choice": ABSENT},
         RESPONSES: {"tools": [flat("look", description="d", parameters=SCHEMA, strict=False)], "tool_choice": ABSENT},
         MESSAGES: {"tools": [{"name": "look", "description": "d", "input_schema": SCHEMA}], "tool_choice": ABSENT},
         GEMINI: {"tools": [{"functionDeclarations": [
             {"name": "look", "description": "d", "parametersJsonSchema": SCHEMA}]}], "toolConfig": ABSENT},
         OLLAMA: {"tools": [tool("look", description="d", parameters=SCHEMA)]}},
    ),
    Feature(
        "a strict tool",
        by({"tools": [tool("look", parameters=SCHEMA, strict=True)]},
           {"tools": [flat("look", parameters=SCHEMA, strict=True)]},
           {"tools": [{"name": "look", "input_schema": SCHEMA, "strict": True}]}),
        {CHAT: {"tools": [tool("look", parameters=SCHEMA, strict=True)]},
         RESPONSES: {"tools": [flat("look", parameters=SCHEMA, strict=True)]},
         MESSAGES: {"tools": [{"name": "look", "input_schema": SCHEMA, "strict": True}]},
         GEMINI: {"tools": [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": SCHEMA}]}]},
         OLLAMA: {"tools": [tool("look", parameters=SCHEMA)]}},
        lost=(GEMINI, OLLAMA),
    ),
    Feature(
        "tools without parameters",
        two_tools({}, {}, {}),
        {CHAT: {"tools": [tool("look"), tool("ping")]},
         RESPONSES: {"tools": [flat(name, parameters=EMPTY, strict=False) for name in ("look", "ping")]},
         MESSAGES: {"tools": BOTH[MESSAGES]},
         GEMINI: {"tools": [{"functionDeclarations": [{"name": "look"}, {"name": "ping"}]}]},
         OLLAMA: {"tools": BOTH[OLLAMA]}},
    ),
    Feature(
        "no call wanted",
        two_tools({"tool_choice": "none"}, {"tool_choice": "none"}, {"tool_choice": {"type": "none"}}),
        {CHAT: {"tool_choice": "none"}, RESPONSES: {"tool_choice": "none"}, MESSAGES: {"tool_choice": {"type": "none"}},
         GEMINI: calling(mode="NONE"), OLLAMA: {"tools": ABSENT}},
    ),
    Feature(
        "a call wanted",
        two_tools({"tool_choice": "required"}, {"tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
        {CHAT: {"tool_choice": "required"}, RESPONSES: {"tool_choice": "required"},
         MESSAGES: {"tool_choice": {"type": "any"}}, GEMINI: calling(mode="ANY"), OLLAMA: {"tools": BOTH[OLLAMA]}},
        lost=(OLLAMA,),
    ),
    Feature(
        "a certain call wanted",
        two_tools({"tool_choice": tool("ping")}, {"tool_choice": flat("ping")},
                  {"tool_choice": {"type": "tool", "name": "ping"}}),
        {CHAT: {"tool_choice": tool("ping")}, RESPONSES: {"tool_choice": flat("ping")},
         MESSAGES: {"tool_choice": {"type": "tool", "name": "ping"}, "tools": BOTH[MESSAGES]},
         GEMINI: calling(mode="ANY", allowedFunctionNames=["ping"]), OLLAMA: {"tools": BOTH[OLLAMA][1:]}},
        lost=(OLLAMA,),
    ),
    Feature(
        "some tools allowed",
        two_tools({"tool_choice": SOME_CHAT}, {"tool_choice": SOME_RESPONSES}),
        {CHAT: {"tool_choice": SOME_CHAT}, RESPONSES: {"tool_choice": SOME_RESPONSES},
         MESSAGES: {"tools": BOTH[MESSAGES][1:], "tool_choice": ABSENT},
         GEMINI: calling(mode="VALIDATED", allowedFunctionNames=["ping"]), OLLAMA: {"tools": BOTH[OLLAMA][1:]}},
    ),
    Feature(
        "one call at most",
        two_tools({"parallel_tool_calls": False}, {"parallel_tool_calls": False},
                  {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        {CHAT: {"parallel_tool_calls": False}, RESPONSES: {"parallel_tool_calls": False},
         MESSAGES: {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}},
        lost=(GEMINI, OLLAMA),
    ),
    Feature(
        "a tool of the backend's own",
        by({"tools": [{"type": "web_search"}]}, {"tools": [{"type": "web_search"}]},
           {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        refused=dict.fromkeys(UPSTREAM_DIALECTS, "tools[0]"),
    ),
    Feature(
        "a custom tool",
        by({"tools": [{"type": "custom", "custom": {"name": "patch"}}]},
           {"tools": [{"type": "custom", "name": "patch"}]}),
        refused=dict.fromkeys(UPSTREAM_DIALECTS, "tools[0]"),
    ),
    Feature(
        "a system prompt",
        by({"messages": [{"role": "system", "content": "Be."}, USER]}, {"instructions": "Be."},
           {"system": [{"type": "text", "text": "Be."}]}),
        {CHAT: {"messages": [{"role": "system", "content": "Be."}, USER]},
         RESPONSES: {"instructions": "Be.", "input": [IN_CHAT]},
         MESSAGES: {"system": [{"type": "text", "text": "Be."}]},
         GEMINI: {"systemInstruction": {"parts": [{"text": "Be."}]},
                  "contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
         OLLAMA: {"messages": [{"role": "system", "content": "Be."}, USER]}},
    ),
    Feature(
        "a developer's prompt behind the user's",
        by({"messages": [USER, {"role": "developer", "content": "Be."}]},
           {"input": [USER, {"role": "developer", "content": "Be."}]}),
        {CHAT: {"messages": [USER, {"role": "developer", "content": "Be."}]},
         RESPONSES: {"input": [IN_CHAT, {"type": "message", "role": "developer", "content": "Be."}]},
         MESSAGES: {"system": [{"type": "text", "text": "Be."}]},
         GEMINI: {"systemInstruction": {"parts": [{"text": "Be."}]}},
         OLLAMA: {"messages": [USER, {"role": "system", "content": "Be."}]}},
        lost=(MESSAGES, GEMINI),
    ),
    Feature(
        "an image itself",
        content({"type": "image_url", "image_url": {"url": DATA_URL}}, {"type": "input_image", "image_url": DATA_URL},
                {"type": "image", "source": PNG}),
        {CHAT: content({"type": "image_url", "image_url": {"url": DATA_URL}})[CHAT],
         RESPONSES: {"input": [
             {**IN_RESPONSES, "content": [{"type": "input_image", "image_url": DATA_URL, "detail": "auto"}]}]},
         MESSAGES: content(messages={"type": "image", "source": PNG})[MESSAGES],
         GEMINI: {"contents": [{"role": "user", "parts": [SHOWN]}]},
         OLLAMA: {"messages": [{"role": "user", "content": "", "images": ["aaaa"]}]}},
    ),
    Feature(
        "an image by its URL",
        content({"type": "image_url", "image_url": {"url": HTTP_URL}}, {"type": "input_image", "image_url": HTTP_URL},
                BY_URL),
        {CHAT: content({"type": "image_url", "image_url": {"url": HTTP_URL}})[CHAT],
         RESPONSES: {"input": [
             {**IN_RESPONSES, "content": [{"type": "input_image", "image_url": HTTP_URL, "detail": "auto"}]}]},
         MESSAGES: content(messages=BY_URL)[MESSAGES]},
        refused={GEMINI: "url", OLLAMA: "url"},
    ),
    Feature(
        "a part that is neither text nor image",
        content({"type": "input_audio", "input_audio": {"data": "aaaa", "format": "wav"}},
                {"type": "input_file", "file_id": "f"}, {"type": "search_result", "source": "s", "content": []}),
        refused=dict.fromkeys(UPSTREAM_DIALECTS, "[0].content[0]"),
    ),
    Feature(
        "a call and its result",
        called(),
        {CHAT: called()[CHAT],
         RESPONSES: {"input": [IN_CHAT, {"type": "message", "role": "assistant", "content": "Well."},
                               *called()[RESPONSES]["input"][2:]]},
         MESSAGES: {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                                 *called()[MESSAGES]["messages"][1:]]},
         GEMINI: {"contents": [
             {"role": "user", "parts": [{"text": "Hi"}]},
             {"role": "model", "parts": [{"text": "Well."}, {"functionCall": LOOKED, "thoughtSignature": DUMMY}]},
             {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": "cold"}}}]}]},
         OLLAMA: {"messages": [
             USER,
             {"role": "assistant", "content": "Well.",
              "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": VALUE}}]},
             {"role": "tool", "tool_name": "look", "tool_call_id": "c1", "content": "cold"}]}},
    ),
    Feature(
        "a result that is an error",
        by(messages=called({"is_error": True})[MESSAGES]),
        {CHAT: {"messages": [*called()[CHAT]["messages"][:2],
                             {"role": "tool", "tool_call_id": "c1", "content": "Error: cold"}]},
         GEMINI: {"contents.2": {"role": "user", "parts": [
             {"functionResponse": {"name": "look", "response": {"error": "cold"}}}]}},
         OLLAMA: {"messages.2": {"role": "tool", "tool_name": "look", "tool_call_id": "c1", "content": "Error: cold"}}},
        lost=(RESPONSES,),
    ),
    Feature(
        "a result with an image",
        by(None,
           {"input": [*called()[RESPONSES]["input"][:3], {"type": "function_call_output", "call_id": "c1", "output": [
               {"type": "input_text", "text": "cold"}, {"type": "input_image", "image_url": DATA_URL}]}]},
           called(WITH_IMAGE)[MESSAGES]),
        {CHAT: {"messages.2": {"role": "tool", "tool_call_id": "c1", "content": "cold"},
                "messages.3": {"role": "user", "content": [{"type": "image_url", "image_url": {"url": DATA_URL}}]}},
         RESPONSES: {"input.3": {"type": "function_call_output", "call_id": "c1", "output": [
             {"type": "input_text", "text": "cold"},
             {"type": "input_image", "image_url": DATA_URL, "detail": "auto"}]}},
         MESSAGES: {"messages.2": called(WITH_IMAGE)[MESSAGES]["messages"][2]},
         GEMINI: {"contents.2": {"role": "user", "parts": [
                      {"functionResponse": {"name": "look", "response": {"output": "cold"}}}]},
                  "contents.3": {"role": "user", "parts": [SHOWN]}},
         OLLAMA: {"messages.3": {"role": "user", "content": "", "images": ["aaaa"]}}},
    ),
    Feature(
        "limit and sampling",
        by({"max_completion_tokens": 9, "temperature": 0.5}, {"max_output_tokens": 9, "temperature": 0.5},
           {"max_tokens": 9, "temperature": 0.5}),
        {CHAT: {"max_tokens": 9, "temperature": 0.5}, RESPONSES: {"max_output_tokens": 9, "temperature": 0.5},
         MESSAGES: {"max_tokens": 9, "temperature": 0.5},
         GEMINI: {"generationConfig": {"maxOutputTokens": 9, "temperature": 0.5}},
         OLLAMA: {"options": {"num_predict": 9, "temperature": 0.5}}},
    ),
    Feature(
        "no limit",
        by({}, {}),
        {MESSAGES: {"max_tokens": DEFAULT_MAX_TOKENS}, CHAT: {"max_tokens": ABSENT},
         GEMINI: {"generationConfig": ABSENT}},
    ),
    Feature(
        "top_p alone",
        by({"top_p": 0.5}, {"top_p": 0.5}, {"top_p": 0.5, "max_tokens": 9}),
        {CHAT: {"top_p": 0.5}, RESPONSES: {"top_p": 0.5}, MESSAGES: {"top_p": 0.5}, OLLAMA: {"options.top_p": 0.5},
         GEMINI: {"generationConfig.topP": 0.5}},
    ),
    Feature(
        "top_k",
        by({"top_k": 5}, None, {"top_k": 5}),
        {CHAT: {"top_k": 5}, MESSAGES: {"top_k": 5}, GEMINI: {"generationConfig.topK": 5},
         OLLAMA: {"options.top_k": 5}},
        lost=(RESPONSES,),
    ),
    Feature(
        "stop sequences",
        by({"stop": "##"}, None, {"stop_sequences": ["##"]}),
        {CHAT: {"stop": ["##"]}, MESSAGES: {"stop_sequences": ["##"]},
         GEMINI: {"generationConfig.stopSequences": ["##"]}, OLLAMA: {"options.stop": ["##"]}},
        refused={RESPONSES: "stop"},
    ),
    Feature(
        "a seed and penalties",
        by({"seed": 3, "presence_penalty": 0.5, "frequency_penalty": -0.5}),
        {GEMINI: {"generationConfig": {"seed": 3, "presencePenalty": 0.5, "frequencyPenalty": -0.5}},
         OLLAMA: {"options": {"seed": 3, "presence_penalty": 0.5, "frequency_penalty": -0.5}}},
        lost=(RESPONSES, MESSAGES),
    ),
    Feature(
        "several choices",
        by({"n": 2}),
        {GEMINI: {"generationConfig": {"candidateCount": 2}}},
        refused={RESPONSES: "n", MESSAGES: "n", OLLAMA: "n"},
    ),
    Feature(
        "effort of reasoning",
        by({"reasoning_effort": "medium"}, {"reasoning": {"effort": "medium"}},
           {"output_config": {"effort": "medium"}, "max_tokens": 20_000}),
        {CHAT: {"reasoning_effort": "medium"}, RESPONSES: {"reasoning": {"effort": "medium"}},
         MESSAGES: {"thinking": {"type": "enabled", "budget_tokens": 8192}},
         GEMINI: {"generationConfig.thinkingConfig": {"thinkingLevel": "medium", "includeThoughts": True}},
         OLLAMA: {"think": "medium"}},
    ),
    Feature(
        "a budget of reasoning",
        by(messages={"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 9000}),
        {GEMINI: {"generationConfig.thinkingConfig": {"thinkingBudget": 2048, "includeThoughts": True}},
         OLLAMA: {"think": True}},
        lost=(CHAT, RESPONSES),
    ),
    Feature(
        "reasoning of an earlier turn",
        by({"messages": [USER, {"role": "assistant", "content": "A", "reasoning_content": "hm"}, USER]},
           {"input": [USER, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                      {"role": "assistant", "content": "A"}, USER]},
           {"messages": [USER, {"role": "assistant", "content": [
               {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "A"}]}, USER]}),
        {CHAT: {"messages": [USER, {"role": "assistant", "content": "A"}, USER]},
         RESPONSES: {"input": [IN_CHAT, {"type": "message", "role": "assistant", "content": "A"}, IN_CHAT]},
         MESSAGES: {"messages.1": {"role": "assistant", "content": [{"type": "text", "text": "A"}]}},
         GEMINI: {"contents.1": {"role": "model", "parts": [{"text": "A"}]}},
         OLLAMA: {"messages.1": {"role": "assistant", "content": "A", "thinking": "hm"}}},
        lost=(CHAT, RESPONSES, MESSAGES, GEMINI),
    ),
    Feature(
        "sealed reasoning of an earlier turn",
        by(None,
           {"input": [USER, {"type": "reasoning", "summary": [], "encrypted_content": "x"}, USER]},
           {"messages": [USER, {"role": "assistant", "content": [
               {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "A"}]}, USER]}),
        lost=tuple(UPSTREAM_DIALECTS),
    ),
    Feature(
        "an answer in JSON",
        by({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
        {CHAT: {"response_format": {"type": "json_object"}}, RESPONSES: {"text": {"format": {"type": "json_object"}}},
         GEMINI: {"generationConfig": {"responseMimeType": "application/json"}}, OLLAMA: {"format": "json"}},
        refused={MESSAGES: "response_format"},
    ),
    Feature(
        "an answer by a schema",
        by({"response_format": {"type": "json_schema", "json_schema": NAMED}},
           {"text": {"format": {"type": "json_schema", **NAMED}}},
           {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        {CHAT: {"response_format.json_schema.schema": SCHEMA}, RESPONSES: {"text.format.schema": SCHEMA},
         MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
         GEMINI: {"generationConfig.responseMimeType": "application/json",
                  "generationConfig.responseJsonSchema": SCHEMA},
         OLLAMA: {"format": SCHEMA}},
    ),
    Feature(
        "an answer by a strict schema",
        by({"response_format": {"type": "json_schema", "json_schema": {**NAMED, "strict": True}}},
           {"text": {"format": {"type": "json_schema", **NAMED, "strict": True}}}),
        {CHAT: {"response_format": {"type": "json_schema", "json_schema": {**NAMED, "strict": True}}},
         RESPONSES: {"text": {"format": {"type": "json_schema", **NAMED, "strict": True}}},
         OLLAMA: {"format": SCHEMA}},
    ),
    Feature(
        "fields that help the client's own provider only",
        by({"prompt_cache_key": "k", "metadata": {"a": "b"}}, {"include": ["reasoning.encrypted_content"]},
           {"system": [{"type": "text", "text": "Be.", "cache_control": {"type": "ephemeral"}}]}),
        lost=tuple(UPSTREAM_DIALECTS),
    ),
    Feature(
        "what changes the answer and nothing else has",
        by({"logprobs": True}, {"top_logprobs": 2}, {"container": "c"}),
        refused=dict.fromkeys(UPSTREAM_DIALECTS, ""),
    ),
    Feature(
        "a search, asked for without options",
        by({"web_search_options": {}}),
        refused=dict.fromkeys(UPSTREAM_DIALECTS, "web_search_options"),
    ),
    Feature(
        "a stored conversation",
        by(None, {"previous_response_id": "r"}),
        refused=dict.fromkeys(UPSTREAM_DIALECTS, "previous_response_id"),
    ),
    Feature(
        "a stored item",
        by(None, {"input": [{"type": "item_reference", "id": "rs_1"}]}),
        refused=dict.fromkeys(UPSTREAM_DIALECTS, "input[0]"),
    ),
    Feature(
        "the user",
        by({"user": "u"}, {"user": "u"}, {"metadata": {"user_id": "u"}}),
        {CHAT: {"user": "u"}, RESPONSES: {"user": "u"}, MESSAGES: {"metadata": {"user_id": "u"}}},
        lost=(GEMINI, OLLAMA),
    ),
]
# fmt: on
CROSSINGS = [
    pytest.param(feature, client, upstream, id=f"{feature.name}, {client} to {upstream}")
    for feature, upstream in product(FEATURES, UPSTREAM_DIALECTS)
    for client in feature.given
    if client != upstream
]


def at(document: Any, path: str) -> Any:
    """The value at a path of names and numbers with dots; ABSENT where there is none."""
    for step in path.split("."):
        if isinstance(document, list) and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            return ABSENT
    return document


@pytest.mark.parametrize(("feature", "client", "upstream"), CROSSINGS)
def test_a_request_means_the_same_to_every_backend_or_says_why_not(
    feature: Feature, client: str, upstream: str
) -> None:
    if upstream in feature.refused:
        with pytest.raises(Fault) as caught:
            sent(client, upstream, feature.given[client])
        assert caught.value.kind is FaultKind.UNSUPPORTED_FIELD
        assert caught.value.public_status == 400
        assert caught.value.param is not None
        assert caught.value.param.endswith(feature.refused[upstream])
        assert caught.value.param in caught.value.detail
        return
    written = sent(client, upstream, feature.given[client])
    body = json.loads(written.body)
    for path, want in feature.want.get(upstream, {}).items():
        assert at(body, path) == want, path
    assert (Quirk.FIELD_NOT_CARRIED in written.quirks) == (upstream in feature.lost)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("client", "upstream"), [*product(CLIENT_DIALECTS, UPSTREAM_DIALECTS)])
def test_a_stream_is_asked_for_where_the_client_wants_one(client: str, upstream: str, stream: bool) -> None:
    written = sent(client, upstream, {"stream": stream})
    if upstream == GEMINI:
        assert ("streamGenerateContent" in written.path) == stream
    else:
        assert json.loads(written.body).get("stream", False) == stream


@pytest.mark.parametrize(
    ("feature", "client"),
    [pytest.param(feature, client, id=f"{feature.name}, {client}") for feature in FEATURES for client in feature.given],
)
def test_a_backend_of_the_same_dialect_gets_the_request_as_it_came(feature: Feature, client: str) -> None:
    written = sent(client, client, feature.given[client])
    assert json.loads(written.body) == {"model": "up", **LEAST[client], **feature.given[client]}
    assert written.quirks == ()


# --- the history ---------------------------------------------------------------------------------------------------

HISTORY = [("functions.look:0", '{"q": '), ("functions.look:0", "{}"), ("x" * 70, "[1]"), ("fine", "")]


def history(client: str) -> dict[str, Any]:
    """Calls that backends refuse in a history, each with its result, and a result without a call."""
    out: list[dict[str, Any]] = [USER]
    for number, (call_id, text) in enumerate(HISTORY):
        value = f"result {number}"
        if client == CHAT:
            out.append(
                {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, **tool("look", arguments=text)}]}
            )
            out.append({"role": "tool", "tool_call_id": call_id, "content": value})
        elif client == RESPONSES:
            out.append({"type": "function_call", "call_id": call_id, "name": "look", "arguments": text})
            out.append({"type": "function_call_output", "call_id": call_id, "output": value})
        else:
            use = {"type": "tool_use", "id": call_id, "name": "look", "input": text}
            out.append({"role": "assistant", "content": [use]})
            result = {"type": "tool_result", "tool_use_id": call_id, "content": value}
            out.append({"role": "user", "content": [result]})
    lost = {
        CHAT: {"role": "tool", "tool_call_id": "lost", "content": "orphan"},
        RESPONSES: {"type": "function_call_output", "call_id": "lost", "output": "orphan"},
        MESSAGES: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "lost", "content": "orphan"}]},
    }
    return {"input" if client == RESPONSES else "messages": [*out, lost[client]]}


def calls_and_results(upstream: str, body: dict[str, Any]) -> tuple[list[tuple[str, Any]], list[tuple[str, str]]]:
    """(id, arguments as a value) of each call and (id, text) of each result, in order."""
    calls: list[tuple[str, Any]] = []
    results: list[tuple[str, str]] = []
    for entry in body.get("input") or body.get("messages") or body.get("contents") or ():
        blocks = entry.get("content") if isinstance(entry.get("content"), list) else ()
        for call in entry.get("tool_calls") or ():
            given = call["function"]["arguments"]
            calls.append((call["id"], json.loads(given) if upstream == CHAT else given))
        if entry.get("role") == "tool":
            results.append((entry["tool_call_id"], entry["content"]))
        if entry.get("type") == "function_call":
            calls.append((entry["call_id"], json.loads(entry["arguments"])))
        if entry.get("type") == "function_call_output":
            results.append((entry["call_id"], entry["output"]))
        calls += [(b["id"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        results += [(b["tool_use_id"], b["content"]) for b in blocks if b["type"] == "tool_result"]
        for part in entry.get("parts") or ():
            if "functionCall" in part:
                calls.append(("", part["functionCall"]["args"]))
            if "functionResponse" in part:
                results.append(("", part["functionResponse"]["response"]["output"]))
    return calls, results


@pytest.mark.parametrize(("client", "upstream"), [*product(CLIENT_DIALECTS, UPSTREAM_DIALECTS)])
def test_a_history_that_backends_would_refuse_is_put_right(client: str, upstream: str) -> None:
    written = sent(client, upstream, history(client))
    calls, results = calls_and_results(upstream, json.loads(written.body))
    assert [value for _, value in calls] == [{"_raw": '{"q": '}, {}, {"_raw": "[1]"}, {}]
    assert [text for _, text in results] == [f"result {number}" for number in range(4)]
    assert "orphan" in written.body.decode()
    assert {Quirk.HISTORY_ARGS_WRAPPED, Quirk.HISTORY_RESULT_ORPHANED, Quirk.HISTORY_ID_DOUBLED} <= set(written.quirks)
    form = UPSTREAM_DIALECTS[upstream].ids
    ids = [call_id for call_id, _ in calls]
    assert ids == [call_id for call_id, _ in results], "a call and its result have one id"
    if upstream != GEMINI:  # no ids go up
        assert len(set(ids)) == len(ids)
        if client != upstream:
            assert all(form.fits(call_id) for call_id in ids)
        assert ids[3] == "fine"


def test_a_custom_call_of_the_history_goes_up_as_text_where_the_tool_is_declared_no_more() -> None:
    items = [
        USER,
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    ]
    for upstream in UPSTREAM_DIALECTS:
        if upstream != RESPONSES:
            written = sent(RESPONSES, upstream, {"input": items})
            calls, results = calls_and_results(upstream, json.loads(written.body))
            assert [value for _, value in calls] == [{"_raw": "*** Begin"}]
            assert [text for _, text in results] == ["done"]


# --- signatures ----------------------------------------------------------------------------------------------------

SIGNATURES = ["R2VtIFNlYWw/+w==", None, "c2Vjb25k"]


def after_a_gemini_turn(client: str, stream: bool) -> dict[str, Any]:
    """The next request of a client that returns nothing of a call but id, name and arguments."""
    parts = []
    for number, signature in enumerate(SIGNATURES):
        part: dict[str, Any] = {"functionCall": {"name": "look", "args": {"q": str(number)}}}
        parts.append(part | ({"thoughtSignature": signature} if signature else {}))
    reply = {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}
    data = json.dumps(reply).encode()
    kind = "text/event-stream" if stream else "application/json"
    pieces = (b"data: " + data + b"\r\n\r\n",) if stream else (data,)
    asked = {"messages": [USER], "stream": stream, "tools": [tool("look")]}
    request = CLIENT_DIALECTS[client].read(CLIENTS[client].ask(asked, "m"))
    answer = run(request, Recording("r", "", GEMINI, pieces, headers={"content-type": kind}), ExchangeSettings())
    calls = CLIENTS[client].read(answer, stream).calls.values()
    turn = [{"id": call.id, **tool(call.name, arguments=call.arguments)} for call in calls]
    results = [{"role": "tool", "tool_call_id": call.id, "content": f"of {call.id}"} for call in calls]
    assistant = {"role": "assistant", "content": None, "tool_calls": turn}
    body: dict[str, Any] = json.loads(CLIENTS[client].ask({"messages": [USER, assistant, *results]}, "m"))
    return body


@pytest.mark.parametrize(("client", "stream"), [*product(CLIENT_DIALECTS, [True, False])])
def test_gemini_gets_its_signatures_back_from_clients_that_return_only_ids(client: str, stream: bool) -> None:
    body = json.loads(sent(client, GEMINI, after_a_gemini_turn(client, stream)).body)
    model = body["contents"][1]
    assert [part.get("thoughtSignature") for part in model["parts"]] == SIGNATURES
    assert [part["functionCall"]["args"] for part in model["parts"]] == [{"q": "0"}, {"q": "1"}, {"q": "2"}]
    assert len(body["contents"][2]["parts"]) == 3


@pytest.mark.parametrize(("client", "upstream"), [*product(CLIENT_DIALECTS, UPSTREAM_DIALECTS)])
def test_no_other_backend_sees_a_signature(client: str, upstream: str) -> None:
    if upstream == GEMINI:
        return
    written = sent(client, upstream, after_a_gemini_turn(client, stream=True))
    calls, results = calls_and_results(upstream, json.loads(written.body))
    assert [call_id for call_id, _ in calls] == [call_id for call_id, _ in results]
    assert all(UPSTREAM_DIALECTS[upstream].ids.fits(call_id) for call_id, _ in calls)
    for signature in filter(None, SIGNATURES):
        assert signature.rstrip("=").replace("/", "_").replace("+", "-") not in calls[0][0] + calls[2][0]


# --- odd values ----------------------------------------------------------------------------------------------------

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, -1, 1.5, 10**25, "", "x", "\ud800", [], [None], ["x"], [[]], {}, {"type": "x"}]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every member of a document."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*path, key)
        yield from places(member, (*path, key))


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A request of several features, with some of its values replaced by odd ones or gone."""
    client = draw(st.sampled_from(sorted(CLIENT_DIALECTS)))
    features = draw(st.lists(st.sampled_from([f for f in FEATURES if client in f.given]), min_size=1, max_size=3))
    body: dict[str, Any] = {"model": "m", **copy.deepcopy(LEAST[client])}
    for feature in features:
        body |= copy.deepcopy(dict(feature.given[client]))
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from([*places(body)] or [("model",)]))
        holder = body
        for step in path:
            holder = holder[step]
        if draw(st.booleans()) and len(body) > 1:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(draw(ODD))
    return client, body


@given(damaged())
def test_a_request_with_odd_values_is_written_or_refused_with_one_clear_line(drawn: tuple[str, dict[str, Any]]) -> None:
    client, body = drawn
    for upstream in UPSTREAM_DIALECTS:
        refused = refusal(client, upstream, body)
        if refused is not None:
            assert refused.public_status == 400
            assert refused.detail.isprintable()
            assert json.loads(error_body(client, refused))["error"]["message"] == refused.detail


def refusal(client: str, upstream: str, body: dict[str, Any]) -> Fault | None:
    try:
        json.loads(upstream_request(CLIENT_DIALECTS[client].read(json.dumps(body).encode()), upstream, "up").body)
    except Fault as fault:
        return fault
    return None


@pytest.mark.parametrize("odd", ["x", 5, None, [], [[]]])
def test_a_block_that_is_no_object_beside_one_that_is_put_right_is_no_mistake_of_ours(odd: Any) -> None:
    """Found by the fuzzer: an AttributeError, and with it a 500."""
    blocks = [odd, {"type": "tool_result", "tool_use_id": "nobody's", "content": "x"}]
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": blocks}]}
    for upstream in UPSTREAM_DIALECTS:
        refused = refusal("anthropic-messages", upstream, body)
        assert refused is None or refused.public_status == 400


ODD_CONTENT = ({"type": "text", "text": "Hi"}, 5, True)


@pytest.mark.parametrize(
    ("client", "message", "param"),
    [
        *((client, {"role": "user", "content": odd}, "") for client in (CHAT, MESSAGES) for odd in ODD_CONTENT),
        *((CHAT, {"role": "tool", "tool_call_id": "a", "content": odd}, "") for odd in ODD_CONTENT),
        (MESSAGES, {"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}, "[0]"),
        (MESSAGES, {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}, "[0]"),
        (
            MESSAGES,
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": {"b": 1}}]},
            "[0].content",
        ),
    ],
)
def test_what_would_be_lost_of_a_message_is_refused_by_name(client: str, message: dict[str, Any], param: str) -> None:
    for upstream in set(UPSTREAM_DIALECTS) - {client}:
        refused = refusal(client, upstream, {"model": "m", "max_tokens": 9, "messages": [message]})
        assert refused is not None
        assert (refused.kind, refused.param) == (FaultKind.INVALID_REQUEST, f"messages[0].content{param}")
