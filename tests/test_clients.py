"""The official Python and Node clients on a running proxy: what an application sees of damaged or cut replies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionToolUnionParam

import running
from running import Script

pytestmark = pytest.mark.slow

CLIENTS = Path(__file__).parent / "clients"
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "get_time": {
        "type": "object",
        "properties": {"tz": {"type": "string"}, "at": {"type": "integer"}},
        "required": ["tz"],
        "additionalProperties": False,
    },
}
TOOLS: list[ChatCompletionToolUnionParam] = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()
]


def envelope(kind: str, choice: dict[str, Any]) -> str:
    return json.dumps({"id": "chatcmpl-1", "object": kind, "created": 1, "model": "m", "choices": [choice]})


def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return envelope("chat.completion.chunk", choice)


def part(index: int | None, call_id: str | None, name: str | None, arguments: str | None) -> str:
    """One fragment of a call with every field present, as engines that pad with null send it."""
    function = {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})


def document(calls: list[tuple[str, str, str]], finish: str = "tool_calls") -> str:
    message = {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls],
    }
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return envelope("chat.completion", choice)


TEXT = chunk({"role": "assistant", "content": "Let me look."})
END = (chunk({}, "tool_calls"), "[DONE]")
# Two calls that take turns; the id and the name come with every fragment, an empty or null field pads the others,
# and the second call's arguments have a trailing comma.
INTERLEAVED = (
    part(0, "call_a", "get_weather", ""),
    part(1, "call_b", "get_time", None),
    part(0, "call_a", "get_weather", '{"city": '),
    part(1, "call_b", "get_time", '{"tz": "Asia/'),
    part(0, "call_a", "get_weather", '"Paris"}'),
    part(1, "call_b", "get_time", 'Tokyo", "at": 12345678901234567,}'),
)
# One good call, and one whose city is a number.
FAULTY = (part(0, "call_a", "get_weather", '{"city": 5}'), part(1, "call_b", "get_time", '{"tz": "Asia/Tokyo"}'))
# The first call looks whole, the second is not; nothing says that the reply is over.
CUT = (part(0, "call_a", "get_weather", '{"city": "Paris"}'), part(1, "call_b", "get_time", '{"tz": "Asi'))

STREAMS = {
    "interleaved": Script((TEXT, *INTERLEAVED, *END)),
    "blocked": Script((TEXT, *FAULTY, *END)),
    "blocked-early": Script((*FAULTY, *END)),
    "cut": Script((TEXT, *CUT)),
    "reset": Script((TEXT, *CUT), clean=False),
}
DOCUMENTS = {
    "interleaved": Script(
        document=document(
            [
                ("call_a", "get_weather", '{"city": "Paris"}'),
                ("call_b", "get_time", '{"tz": "Asia/Tokyo", "at": 12345678901234567,}'),
            ]
        )
    ),
    "blocked": Script(
        document=document([("call_a", "get_weather", '{"city": 5}'), ("call_b", "get_time", '{"tz": "Asia/Tokyo"}')])
    ),
}
GOOD_CALLS = [
    ["call_a", "get_weather", '{"city": "Paris"}'],
    ["call_b", "get_time", '{"tz": "Asia/Tokyo", "at": 12345678901234567}'],
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running.upstream(STREAMS, DOCUMENTS) as up, running.proxy(tmp_path_factory.mktemp("proxy"), up.url) as proxy:
        yield f"{proxy}/v1"


@dataclass
class Seen:
    """What an application sees of one reply."""

    content: str = ""
    finish: str | None = None
    calls: list[list[str]] = field(default_factory=list)
    done: list[list[Any]] = field(default_factory=list)
    ran: list[list[Any]] = field(default_factory=list)
    report: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


def error_of(error: openai.APIError) -> dict[str, Any]:
    return {"status": getattr(error, "status_code", None), "code": error.code, "type": error.type}


def python_raw(url: str, model: str) -> Seen:
    """`create(stream=True)`, put together by index as the client's guide shows."""
    seen = Seen()
    parts: dict[int, list[str]] = {}
    with openai.OpenAI(base_url=url, api_key="sk-test", max_retries=0) as client:
        try:
            stream = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "?"}], tools=TOOLS, stream=True
            )
            for event in stream:
                seen.report = seen.report or (event.model_extra or {}).get("wholecall")
                for choice in event.choices:
                    seen.content += choice.delta.content or ""
                    seen.finish = choice.finish_reason or seen.finish
                    for call in choice.delta.tool_calls or ():
                        got = parts.setdefault(call.index, ["", "", ""])
                        got[0] += call.id or ""
                        if call.function:
                            got[1] += call.function.name or ""
                            got[2] += call.function.arguments or ""
        except openai.APIError as error:
            seen.error = error_of(error)
    seen.calls = [parts[index] for index in sorted(parts)]
    return seen


def python_stream(url: str, model: str) -> Seen:
    """The `.stream()` helper."""
    seen = Seen()
    with openai.OpenAI(base_url=url, api_key="sk-test", max_retries=0) as client:
        try:
            with client.chat.completions.stream(
                model=model, messages=[{"role": "user", "content": "?"}], tools=TOOLS
            ) as stream:
                for event in stream:
                    if event.type == "content.delta":
                        seen.content += event.delta
                    elif event.type == "tool_calls.function.arguments.done":
                        seen.done.append([event.index, event.name, event.arguments])
                reply = stream.get_final_completion()
        except openai.APIError as error:
            seen.error = error_of(error)
            return seen
    seen.finish = reply.choices[0].finish_reason
    seen.calls = [
        [call.id, call.function.name, call.function.arguments] for call in reply.choices[0].message.tool_calls or ()
    ]
    seen.report = (reply.model_extra or {}).get("wholecall")
    return seen


def python_plain(url: str, model: str) -> Seen:
    with openai.OpenAI(base_url=url, api_key="sk-test", max_retries=0) as client:
        try:
            reply = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "?"}], tools=TOOLS
            )
        except openai.APIError as error:
            return Seen(error=error_of(error))
    calls = [
        [call.id, call.function.name, call.function.arguments]
        for call in reply.choices[0].message.tool_calls or ()
        if call.type == "function"
    ]
    choice = reply.choices[0]
    report = (reply.model_extra or {}).get("wholecall")
    return Seen(choice.message.content or "", choice.finish_reason, calls, report=report)


def node(url: str, mode: str, model: str) -> Seen:
    if shutil.which("node") is None or not (CLIENTS / "node_modules" / "openai").is_dir():
        if os.environ.get("CI"):
            pytest.fail("CI must have node and tests/clients/node_modules (tests/check.sh installs them)")
        pytest.skip("needs node, and `npm ci` in tests/clients")
    done = subprocess.run(
        ["node", "chat.mjs", url, mode, model], cwd=CLIENTS, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    del found["model"]
    return Seen(**found)


READERS = ["python raw", "python stream", "node raw", "node stream", "node tools"]


def read(reader: str, url: str, model: str) -> Seen:
    language, mode = reader.split()
    if language == "node":
        return node(url, mode, model)
    return {"raw": python_raw, "stream": python_stream, "plain": python_plain}[mode](url, model)


@pytest.mark.parametrize("reader", READERS)
def test_two_interleaved_damaged_calls_arrive_whole(url: str, reader: str) -> None:
    seen = read(reader, url, "interleaved")
    assert seen.error is None
    assert seen.content == "Let me look."
    assert seen.finish == "tool_calls"
    assert seen.calls == GOOD_CALLS
    if reader.endswith("stream"):  # the helper's own event, once a call
        assert seen.done == [[index, name, arguments] for index, (_, name, arguments) in enumerate(GOOD_CALLS)]
    if reader == "node tools":
        assert [name for name, _ in seen.ran] == ["get_weather", "get_time"]
        assert seen.ran[0][1] == {"city": "Paris"}
    if reader.endswith("raw"):
        assert seen.report is not None
        assert [call["verdict"] for call in seen.report["calls"]] == ["valid", "valid"]
        assert seen.report["calls"][1]["repairs"], "the trailing comma's removal is reported"


@pytest.mark.parametrize("reader", READERS)
def test_a_faulty_call_ends_a_begun_reply_in_an_error_and_no_call_is_seen(url: str, reader: str) -> None:
    seen = read(reader, url, "blocked")
    assert seen.content == "Let me look.", "text passes while calls are held"
    assert seen.calls == seen.done == seen.ran == []
    assert seen.finish is None
    assert seen.error is not None
    assert (seen.error["type"], seen.error["code"]) == ("tool_call_blocked", "schema_violation")


@pytest.mark.parametrize("reader", READERS)
def test_a_faulty_call_before_any_text_is_an_http_error(url: str, reader: str) -> None:
    seen = read(reader, url, "blocked-early")
    assert seen.calls == seen.done == seen.ran == []
    assert seen.error == {"status": 502, "type": "tool_call_blocked", "code": "schema_violation"}


@pytest.mark.parametrize("model", ["cut", "reset"])
@pytest.mark.parametrize("reader", READERS)
def test_a_cut_stream_is_an_error_and_its_whole_looking_call_is_withheld(url: str, reader: str, model: str) -> None:
    seen = read(reader, url, model)
    assert seen.content == "Let me look."
    assert seen.calls == seen.done == seen.ran == []
    assert seen.finish is None
    assert seen.error is not None
    assert (seen.error["type"], seen.error["code"]) == ("upstream_error", "stream_cut")


@pytest.mark.parametrize("reader", ["python plain", "node plain"])
def test_plain_replies_are_mended_and_blocked_alike(url: str, reader: str) -> None:
    seen = read(reader, url, "interleaved")
    assert (seen.error, seen.finish, seen.calls) == (None, "tool_calls", GOOD_CALLS)
    seen = read(reader, url, "blocked")
    assert seen.calls == []
    assert seen.error == {"status": 502, "type": "tool_call_blocked", "code": "schema_violation"}


def test_a_blocked_reply_tells_clients_not_to_retry(url: str) -> None:
    with (
        openai.OpenAI(base_url=url, api_key="sk-test", max_retries=0) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(model="blocked", messages=[{"role": "user", "content": "?"}], tools=TOOLS)
    assert caught.value.response.headers["x-should-retry"] == "false"
