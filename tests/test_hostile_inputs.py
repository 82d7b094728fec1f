"""What an input may cost: a hundred times what its sender spent on it, in CPU time and in memory.

Sending a byte is taken to cost 10 ns (100 MB a second of one core), so that it may cost a microsecond here; any input
may cost 50 ms, the longest stall of the event loop that is allowed, and 16 MiB. Times have a slack of four, for busy
machines: what is quadratic takes seconds on these sizes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import hostile_inputs
from hostile_inputs import STEP, cost
from proxy.checks.child import GROWTH, ROOM
from proxy.dialects import CLIENT_DIALECTS, UPSTREAM_DIALECTS, upstream_request
from proxy.faults import Fault
from proxy.model.calls import CallCheck, Verdict
from proxy.policy.settings import ExchangeSettings
from proxy.replay.inprocess import Answer, Runner
from proxy.server.checker import Checker

FACTOR = 100
SECONDS_TO_SEND_A_BYTE = 10e-9
SECONDS, BYTES = 0.05, 16 << 20  # that any input may cost
SLACK = 4

SETTINGS = ExchangeSettings()
LIVE = dataclasses.replace(SETTINGS, delivery="live")


def affordable(work: Callable[[], object], size: int) -> None:
    spent = cost(work)
    assert spent.cpu_s <= SLACK * (SECONDS + FACTOR * SECONDS_TO_SEND_A_BYTE * size)
    assert spent.peak_bytes <= BYTES + FACTOR * size


def table(source: Callable[[], Iterator[tuple[str, bytes]]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in source()])


def cut(body: bytes, step: int = STEP) -> list[bytes]:
    return [body[at : at + step] for at in range(0, len(body), step)]


# --- clients ------------------------------------------------------------------------------------------------------


def read_and_write(dialect: str, body: bytes) -> None:
    """A request for a backend of every dialect, as far as it is one."""
    try:
        request = CLIENT_DIALECTS[dialect].read(body)
    except Fault:
        return
    for upstream in UPSTREAM_DIALECTS:
        try:
            upstream_request(request, upstream, "m")
        except Fault:
            continue


@table(hostile_inputs.requests)
def test_a_chat_request(body: bytes) -> None:
    affordable(lambda: read_and_write("openai-chat", body), len(body))


@table(hostile_inputs.responses_requests)
def test_a_responses_request(body: bytes) -> None:
    affordable(lambda: read_and_write("openai-responses", body), len(body))


@table(hostile_inputs.messages_requests)
def test_a_messages_request(body: bytes) -> None:
    affordable(lambda: read_and_write("anthropic-messages", body), len(body))


# --- backends -----------------------------------------------------------------------------------------------------

FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}
ASKED: dict[str, dict[str, Any]] = {
    "openai-chat": {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    "openai-responses": {"input": "Hi", "tools": [{"type": "function", "strict": False, **FUNCTION}]},
    "anthropic-messages": {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}],
    },
}


def answered(
    pieces: Sequence[bytes],
    upstream: str = "openai-chat",
    client: str = "openai-chat",
    settings: ExchangeSettings = SETTINGS,
    **headers: str,
) -> Answer:
    request = json.dumps({"model": "m", "stream": True, **ASKED[client]}).encode()
    runner = Runner(CLIENT_DIALECTS[client].read(request), settings)
    heads = {"content-type": "text/event-stream"} | {name.replace("_", "-"): value for name, value in headers.items()}
    runner.open(200, heads, upstream)
    for piece in pieces:
        runner.receive(piece)
    runner.end()
    assert runner.answer.record is not None
    return runner.answer


@table(hostile_inputs.replies)
def test_a_chat_reply(body: bytes) -> None:
    affordable(lambda: answered(cut(body)), len(body))


@table(hostile_inputs.replies)
def test_a_chat_reply_byte_by_byte(body: bytes) -> None:
    body = body[:40_000]
    affordable(lambda: answered(cut(body, 1)), len(body))


@pytest.mark.parametrize("client", ["openai-responses", "anthropic-messages"])
@table(hostile_inputs.replies)
def test_a_chat_reply_for_clients_of_another_dialect_sent_live(body: bytes, client: str) -> None:
    affordable(lambda: answered(cut(body), client=client, settings=LIVE), len(body))


@table(hostile_inputs.messages_replies)
def test_a_messages_reply(body: bytes) -> None:
    affordable(lambda: answered(cut(body), "anthropic-messages", "anthropic-messages"), len(body))


@table(hostile_inputs.responses_replies)
def test_a_responses_reply(body: bytes) -> None:
    affordable(lambda: answered(cut(body), "openai-responses", "openai-responses"), len(body))


@table(hostile_inputs.gemini_replies)
def test_a_gemini_reply(body: bytes) -> None:
    affordable(lambda: answered(cut(body), "gemini"), len(body))


@table(hostile_inputs.gemini_arrays)
def test_a_gemini_reply_in_one_array(body: bytes) -> None:
    for step in (STEP, 1):
        some = body if step > 1 else body[:40_000]
        affordable(lambda some=some, step=step: answered(cut(some, step), "gemini"), len(some))  # type: ignore[misc]


@table(hostile_inputs.ollama_replies)
def test_an_ollama_reply(body: bytes) -> None:
    for step in (STEP, 1):
        some = body if step > 1 else body[:40_000]
        affordable(lambda some=some, step=step: answered(cut(some, step), "ollama-chat"), len(some))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("encoding", "body"), [pytest.param(coding, body, id=name) for name, coding, body in hostile_inputs.compressed()]
)
def test_a_compressed_reply(encoding: str, body: bytes) -> None:
    answers: list[Answer] = []
    affordable(lambda: answers.append(answered(cut(body), content_encoding=encoding)), len(body))
    (answer,) = answers
    assert answer.status == 502
    assert json.loads(bytes(answer.body))["error"]["code"] in ("bad_encoding", "empty_reply", "stream_cut")


# --- schemas and arguments, in the process that may be killed -----------------------------------------------------

A = {"type": "object", "properties": {"a": {}}}


def with_a(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


def doubling(word: str, levels: int, last: Any) -> dict[str, Any]:
    """A question that is asked 2 to the power of `levels` times."""
    steps = {f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {**with_a(**{"$ref": "#/$defs/d0"}), "$defs": {**steps, f"d{levels}": last}}


def many(count: int, item: str) -> str:
    return '{"a":[' + ",".join([item] * count) + "]}"


SCHEMAS: dict[str, tuple[Any, str]] = {
    "allOf twice, 30 levels": (doubling("allOf", 30, {"type": "string"}), '{"a":"x"}'),
    "anyOf twice, 18 levels": (doubling("anyOf", 18, {"type": "integer"}), '{"a":"x"}'),
    "oneOf twice, 30 levels": (doubling("oneOf", 30, {"type": "string"}), '{"a":"x"}'),
    "a list of objects to be one of": (with_a(items={"enum": [{"k": i} for i in range(2000)]}), many(5000, '{"k":-1}')),
    "contains again and again": (with_a(allOf=[{"contains": {"const": -i}} for i in range(1, 999)]), many(20_000, "1")),
    "unlike integers over 64 bits": (
        with_a(uniqueItems=True),
        '{"a":[' + ",".join(str(2**64 + n) for n in range(20_000)) + "]}",
    ),
    "look-ahead without an anchor": (with_a(pattern="(?=.*x)(?=.*y)z"), '{"a":"' + "xy" * 100_000 + '"}'),
    "back-references": (with_a(pattern=r"(a*)*\1b"), '{"a":"' + "a" * 100_000 + '"}'),
    "repetition of a repetition": (with_a(pattern="a{1000}{1000}"), '{"a":"x"}'),
    "many repetitions": (with_a(allOf=[{"pattern": f"(a{{{500 + i}}}b?){{20}}"} for i in range(300)]), '{"a":"x"}'),
    "multiples of the smallest": (with_a(items={"multipleOf": 1e-300}), many(80_000, "1e300")),
    "a loop": ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, "{}"),
    "recursion": (
        {"$ref": "#/$defs/n", "$defs": {"n": with_a(**{"$ref": "#/$defs/n"})}},
        '{"a":' * 60 + "1" + "}" * 60,
    ),
    "300 levels of arguments": (A, '{"a":' * 300 + "1" + "}" * 300),
    "half of 300 levels": ({**A, "allOf": [{}]}, '{"a":' * 300),
    "a million wrong items": (with_a(items={"type": "string", "pattern": "x"}), many(1_000_000, "1")),
}
# The smallest number divides the others: the child may say so in the time that it has, or not.
MAY_BE_VALID = ("a loop", "recursion", "multiples of the smallest")


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_and_its_arguments(name: str) -> None:
    """What the child may take: 250 ms of CPU time, more for large arguments, and memory by the size of both."""
    schema, text = SCHEMAS[name]
    source = json.dumps(schema).encode()
    size = len(source) + len(text)

    async def main() -> None:
        checker = Checker()
        await checker.start()
        child = checker._child
        assert child is not None
        status = Path(f"/proc/{child.pid}/status")
        idle = peak = _peak(status)
        try:
            asked = asyncio.ensure_future(checker.judge([CallCheck(0, (text,), (False,), source)]))
            while not asked.done():
                await asyncio.sleep(0.002)
                peak = max(peak, _peak(status))
            (result,) = asked.result()
        finally:
            await checker.close()
        assert result.verdict is not Verdict.VALID or name in MAY_BE_VALID
        assert checker.lost_children <= 1
        assert peak - idle <= 1.25 * (ROOM + GROWTH * size)  # what is mapped is bounded, and idle not all of it is used

    affordable(lambda: asyncio.run(main()), size)


def _peak(status: Path) -> int:
    try:
        lines = status.read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
