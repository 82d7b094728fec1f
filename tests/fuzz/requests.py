"""Requests: what a client sends, as what goes up to each backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

from dialect_clients import CLIENTS
from fuzz import inputs, mutate
from fuzz.common import cases, head_and_body
from proxy.checks.schema import compiled
from proxy.dialects import CLIENT_DIALECTS, UPSTREAM_DIALECTS, error_body, upstream_request
from proxy.faults import Fault, FaultKind
from proxy.wire.jsonscan import is_deeper

REFUSALS = (
    FaultKind.INVALID_REQUEST,
    FaultKind.INVALID_JSON,
    FaultKind.INVALID_TOOL_SCHEMA,
    FaultKind.UNSUPPORTED_FIELD,
)
MOST_LEVELS = 254  # of a body that goes up: what a JSON reader without recursion tricks takes


def check(data: bytes) -> None:
    """DIALECT\\nBODY: only a fault that tells the client what is wrong, or bodies that each backend's parser takes."""
    words, body = head_and_body(data)
    dialect = words[0] if words and words[0] in CLIENT_DIALECTS else "openai-chat"
    try:
        request = CLIENT_DIALECTS[dialect].read(body)
    except Fault as fault:
        _refusal(fault, dialect)
        return
    for tool in request.tools.values():
        compiled(tool.schema, False)
    for name, upstream in UPSTREAM_DIALECTS.items():
        try:
            sent = upstream_request(request, name, "up/stream")
        except Fault as fault:
            _refusal(fault, dialect)
            continue
        text = sent.body.decode()
        document = json.loads(text, parse_constant=_no_constant)
        assert isinstance(document, dict), "what goes up is no object"
        assert not is_deeper(text, MOST_LEVELS), "what goes up is nested deeper than parsers take"
        assert sent.path.startswith("/")
        assert sent.path.isascii()
        assert "up/stream" in document.get("model", "") or "up" in sent.path, "the model is lost"
        if name != dialect:
            _ids_fit(document, upstream.ids.fits, name)


def _no_constant(word: str) -> Any:
    raise AssertionError(f"{word} goes up")


def _refusal(fault: Fault, dialect: str) -> None:
    assert fault.kind in REFUSALS, f"a request is refused as {fault.kind}"
    assert 400 <= fault.public_status < 500
    assert fault.detail
    document = json.loads(error_body(dialect, fault))
    assert document["error"]["message"]


def _ids_fit(document: dict[str, Any], fits: Callable[[str], bool], name: str) -> None:
    """Every call id has the backend's form, no two calls share one, and every result has its call."""
    seen: set[str] = set()
    for kind, call_id in _ids(document):
        assert isinstance(call_id, str), f"an id of {name} that is no text"
        assert fits(call_id), f"an id that {name} does not take"
        if kind == "call":
            assert call_id not in seen, f"two calls of one id for {name}"
            seen.add(call_id)
        else:
            assert call_id in seen, f"a result without its call for {name}"


def _ids(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for message in [*document.get("messages", ()), *document.get("input", ())]:
        if message.get("role") == "tool" and "tool_call_id" in message:
            yield "result", message["tool_call_id"]
        for call in message.get("tool_calls") or ():
            if "id" in call:
                yield "call", call["id"]
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") == "tool_use":
                yield "call", block["id"]
            elif block.get("type") == "tool_result":
                yield "result", block["tool_use_id"]
        if message.get("type") == "function_call":
            yield "call", message["call_id"]
        elif message.get("type") == "function_call_output":
            yield "result", message["call_id"]


@cache
def seeds() -> list[bytes]:
    out = []
    for case in cases():
        for client in CLIENTS.values():
            with suppress(LookupError, TypeError):
                out.append(client.name.encode() + b"\n" + client.ask(dict(case.recording.request), "m"))
    return list(dict.fromkeys(out + [rich(name) for name in CLIENTS]))


def rich(dialect: str) -> bytes:
    """A request with a history of calls, and what else a dialect has."""
    picture = "data:image/png;base64,AAAA"
    arguments = '{"city": "Oslo"}'
    documents: dict[str, dict[str, Any]] = {
        "openai-chat": {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": picture}}],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "functions.look:0",
                            "type": "function",
                            "function": {"name": "look", "arguments": arguments},
                        },
                        {"id": "functions.look:0", "type": "function", "function": {"name": "look", "arguments": "{"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "functions.look:0", "content": "snow"},
                {"role": "tool", "tool_call_id": "nobody", "content": [{"type": "text", "text": "x"}]},
            ],
            "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
            "stop": ["\n"],
            "temperature": 0.1,
            "max_completion_tokens": 10,
            "reasoning_effort": "low",
            "seed": 1,
        },
        "openai-responses": {
            "instructions": "Be brief.",
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_image", "image_url": picture}],
                },
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "zz"},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": arguments},
                {"type": "function_call_output", "call_id": "c1", "output": "snow"},
                {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "ls"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a"}]},
            ],
            "tools": [
                {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True},
                {"type": "custom", "name": "run", "format": {"type": "text"}},
            ],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
            "reasoning": {"effort": "low"},
            "max_output_tokens": 10,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        },
        "anthropic-messages": {
            "max_tokens": 100,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hi"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "zz"},
                        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"city": "Oslo"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_1",
                            "is_error": True,
                            "content": [{"type": "text", "text": "snow"}],
                        }
                    ],
                },
            ],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 50},
            "stop_sequences": ["x"],
            "metadata": {"user_id": "u"},
        },
    }
    return dialect.encode() + b"\n" + json.dumps({"model": "m", "stream": True, **documents[dialect]}).encode()


@cache
def pool() -> mutate.Pool:
    return mutate.Pool([inputs.Input(body=head_and_body(seed)[1]) for seed in seeds()], ("", "none", "auto"))


def mutated(data: bytes, most: int, draw: Random, plain: mutate.Bytes) -> bytes:
    words, body = head_and_body(data)
    name = words[0] if words and words[0] in CLIENT_DIALECTS else draw.choice(list(CLIENT_DIALECTS))
    if draw.random() < 0.05:
        name = draw.choice(list(CLIENT_DIALECTS))
    found = mutate.parse(body)
    if found is None or draw.random() < 0.1:
        return (name.encode() + b"\n" + plain(body, most - 20))[:most]
    document = found[1]
    for _ in range(draw.choice((1, 1, 2, 4))):
        document = mutate.bend(document, pool(), draw)
    return (name.encode() + b"\n" + mutate.dump(document, draw))[:most]
