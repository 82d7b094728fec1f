"""What is written down of an exchange: one log line, and metrics whose labels nobody outside can choose."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy.model.commands import Record
from proxy.server import logs
from proxy.server.entry import Entry
from proxy.server.metrics import Metrics, kind_label, label
from support.client import REQUEST, Client, ask, chat
from support.proxy import Proxy, metric
from support.upstream import Conversation, Script, Upstream, call_events, chunk, completion, says

ROOT = Path(__file__).parents[1]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}}}


def run(script: Script, test: Callable[[Proxy, Upstream], Coroutine[Any, Any, None]], **tables: Any) -> None:
    async def main() -> None:
        async with Upstream(script) as up, Proxy(up.url, **tables) as proxy:
            await test(proxy, up)

    uvloop.run(main())


@contextmanager
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Log as the process does, into memory; gives the lines so far, decoded."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonLines())
    logger = logging.getLogger("wholecall")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


# --- logs ---------------------------------------------------------------------------------------------------------


def test_an_exchange_is_one_line_without_a_word_of_the_conversation() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        with lines() as logged:
            headers = {"x-request-id": "r-1", "authorization": "Bearer client-secret"}
            messages = [{"role": "user", "content": "the prompt's words"}]
            reply = await chat(proxy.port, stream=True, headers=headers, tools=[TOOL], messages=messages)
            assert reply.status == 200
            (line,) = logged()
        assert line["event"] == "exchange"
        assert (line["request_id"], line["route"], line["backend"], line["model"]) == ("r-1", "*", "b0", "m")
        assert (line["status"], line["outcome"]) == (200, "blocked")
        assert line["verdicts"] == {"schema_violation": 1}
        assert line["usage"] == {"total_tokens": 5}
        assert line["upstream_events"] == 5
        assert line["seconds"] >= line["first_byte_s"] >= 0
        text = json.dumps(line)
        for secret in ("prompt", "argument-text", "client-secret", "backend-secret", "answer-text"):
            assert secret not in text

    async def script(c: Conversation) -> None:
        *events, last = call_events("f", ['{"b": "argument-text"}'])
        text = chunk({"content": "answer-text"})
        await c.stream(text, *events, {**last, "usage": {"total_tokens": 5}})

    run(script, test, backend={"api_key": "backend-secret"})


def test_a_request_that_comes_to_no_exchange_is_one_line_too() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        with lines() as logged:
            await ask(proxy.port, {"model": "no\nsuch\u2028model" + "x" * 300})
            await ask(proxy.port, b"{", headers={"x-request-id": "bad\tid"})
            await ask(proxy.port, None, "/v2/x?key=QUERY-SECRET")
            await ask(proxy.port, None, "/v1/files?key=QUERY-SECRET")
            await ask(proxy.port, None, "/healthz")
            await ask(proxy.port, None, "/metrics")
            found = logged()
        assert [line["code"] for line in found] == ["model_not_found", "invalid_json", "not_found", "not_found"]
        assert all(line["outcome"] == "error" for line in found)
        assert len(found[0]["model"]) <= 128
        assert "QUERY-SECRET" not in json.dumps(found)

    run(says("Hello"), test, routes=[{"models": ["m"], "backends": ["b0"]}])


def test_failed_attempts_are_in_the_line_of_the_exchange() -> None:
    async def main() -> None:
        async with Upstream(says("Hello")) as up, Proxy("http://127.0.0.1:1/v1", up.url) as proxy:
            with lines() as logged:
                await chat(proxy.port)
                (line,) = logged()
            assert (line["backend"], line["outcome"]) == ("b1", "ok")
            refused = "cannot be reached: the connection was refused; nothing listens at that host and port"
            assert line["failed"] == [f"b0: unreachable: {refused}"]

    uvloop.run(main())


def test_a_backend_that_is_held_for_down_and_answers_again_is_told_once() -> None:
    statuses = [500] * 8

    async def script(c: Conversation) -> None:
        if statuses:
            await c.answer(statuses.pop(), b"no")
        else:
            await says("Hello")(c)

    async def main() -> None:
        async with Upstream(script) as up, Proxy(up.url) as proxy:
            with lines() as logged:
                while statuses:
                    await chat(proxy.port)
                found = logged()
            told = [line for line in found if line["event"] == "backend"]
            assert [(line["level"], line["backend"], line["up"]) for line in told] == [("warning", "b0", False)]
            with lines() as logged:
                async with asyncio.timeout(30):
                    while not proxy.metric("wholecall_backend_up", backend="b0"):
                        assert (await chat(proxy.port)).status == 200
                        await asyncio.sleep(0.05)
                found = logged()
            told = [line for line in found if line["event"] == "backend"]
            assert [(line["level"], line["backend"], line["up"]) for line in told] == [("info", "b0", True)]

    uvloop.run(main())


def test_the_status_of_a_failed_attempt_is_told() -> None:
    async def script(c: Conversation) -> None:
        await c.answer(429, b"the backend's own words")

    async def main() -> None:
        async with Upstream(script) as busy, Upstream(says("Hello")) as up, Proxy(busy.url, up.url) as proxy:
            with lines() as logged:
                await chat(proxy.port)
                (line,) = logged()
            assert (line["backend"], line["failed"]) == ("b1", ["b0: upstream_error 429"])

    uvloop.run(main())


def test_a_mistake_of_ours_is_a_trace_in_the_log_and_a_plain_500_for_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("internal-detail")

    async def test(proxy: Proxy, up: Upstream) -> None:
        monkeypatch.setattr("proxy.server.pump.completion_headers", fails)
        with lines() as logged:
            reply = await chat(proxy.port)
            found = logged()
        assert (reply.status, reply.error["code"]) == (500, "internal")
        assert b"internal-detail" not in reply.body
        assert any("ZeroDivisionError" in line.get("trace", "") for line in found)
        monkeypatch.undo()
        assert (await chat(proxy.port)).status == 200
        assert proxy.metric("wholecall_streams") == 0

    run(says("Hello"), test)


def test_lines_survive_what_json_cannot_say() -> None:
    assert json.loads(logs.dump_line({"a": "\ud800", "b": {"c"}})) == {"a": "?", "b": "{'c'}"}
    assert json.loads(logs.dump_line({"a": [{"\ud800": 10**30}], "b": "\u2028"})) == {
        "a": [{"?": 10**30}],
        "b": "\u2028",
    }
    assert len(logs.dump_line({"a": "\ud800\u2028\n\x85"}).splitlines()) == 1


def test_a_backends_words_neither_swallow_the_line_nor_fill_it() -> None:
    usage = {"\ud800": 1, "big": 10**30, "words of an answer": 2, "x" * 50: 3, "output_tokens": 4, "cached": True}
    usage |= {f"many_{chr(97 + i // 26)}{chr(97 + i % 26)}": i for i in range(400)}

    async def script(c: Conversation) -> None:
        await c.head(x_request_id="<b>" if c.request.json["model"] == "m" else "their-id")
        await c.event(chunk({"content": "one"}, "stop"))
        await c.event({**chunk(), "choices": [], "usage": usage})
        await c.event("[DONE]")
        await c.end()

    async def test(proxy: Proxy, up: Upstream) -> None:
        with lines() as logged:
            await chat(proxy.port, stream=True)
            await chat(proxy.port, stream=True, model="n")
            odd, plain = logged()
        assert "upstream_id" not in odd
        assert plain["upstream_id"] == "their-id"
        assert odd["usage"]["output_tokens"] == 4
        assert not {"?", "big", "words of an answer", "x" * 50} & odd["usage"].keys()
        assert len(odd["usage"]) <= 24

    run(script, test)


@pytest.mark.parametrize(
    ("incoming", "kept"),
    [(b"abc-1.2:3/x", True), (b"x" * 128, True), (b"x" * 129, False), (b"", False), (b"a\nb", False), (b"a\n", False)],
)
def test_a_request_id_is_kept_only_where_it_is_harmless(incoming: bytes, kept: bool) -> None:
    assert (logs.request_id(incoming) == incoming.decode()) is kept
    assert logs.request_id(None) != logs.request_id(None)


def test_bad_chunks_are_one_line_each_and_no_trace() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        with lines() as logged:
            for _ in range(20):
                async with Client(proxy.port) as client:
                    head = b"POST /v1/files HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                    await client.send(head + b"zz\r\nQUERY-SECRET\r\n")
                    assert (await client.rest(await client.head())).status == 400
            await proxy.quiet()
            found = logged()
        assert 20 <= len(found) <= 40  # the refusal, and what became of the exchange that had begun
        assert [line for line in found if "trace" in line or line["level"] != "info"] == []
        assert "SECRET" not in json.dumps(found)

    run(says("Hello"), test)


def test_a_name_with_a_line_end_makes_no_second_line() -> None:
    record = logging.LogRecord("wholecall", logging.INFO, "", 0, "a\nb\u2028c\x85d\re", (), None)
    record.fields = {"client": "x\n{}", "model": "y\u2029z"}
    assert len(logs.JsonLines().format(record).splitlines()) == 1


LIBRARIES = ("httpx", "httpcore", "aiohttp", "aiohttp.client", "asyncio", "uvicorn", "uvicorn.error", "uvicorn.access")


@pytest.mark.parametrize("level", ["debug", "info", "error"])
def test_libraries_are_heard_from_warnings_on_whatever_our_own_level_is(level: str) -> None:
    script = (
        f"import logging, proxy.server.lifecycle; from proxy.server import logs; logs.set_up({level!r})\n"
        f"print([logging.getLogger(name).isEnabledFor(logging.INFO) for name in {LIBRARIES!r}])\n"
        "print(logging.getLogger('wholecall.x').getEffectiveLevel() == getattr(logging, "
        f"{level.upper()!r}), logging.getLogger('anything else').isEnabledFor(logging.INFO))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == [str([False] * len(LIBRARIES)), "True False"]


# --- metrics ------------------------------------------------------------------------------------------------------


def test_an_exchange_is_counted_with_its_calls_quirks_and_repairs() -> None:
    async def script(c: Conversation) -> None:
        await asyncio.sleep(0.02)
        await c.stream(*call_events("f", ['{"a": 1,}'], call_id=""))

    async def test(proxy: Proxy, up: Upstream) -> None:
        assert (await chat(proxy.port, stream=True, tools=[TOOL])).status == 200
        by = {"route": "m*", "backend": "b0"}
        assert proxy.metric("wholecall_requests_total", **by, dialect="openai-chat", status="200") == 1
        assert proxy.metric("wholecall_tool_calls_total", **by, verdict="valid") == 1
        assert proxy.metric("wholecall_quirks_total", backend="b0", quirk="id_missing") == 1
        assert proxy.metric("wholecall_repairs_total", backend="b0") == 1
        for name in ("request_seconds", "first_byte_seconds", "overhead_seconds", "hold_seconds", "held_bytes"):
            assert proxy.metric(f"wholecall_{name}_count", **by) == 1, name
        assert proxy.metric("wholecall_request_seconds_sum", **by) >= 0.02
        assert proxy.metric("wholecall_overhead_seconds_sum") < proxy.metric("wholecall_request_seconds_sum")
        assert proxy.metric("wholecall_build_info") == 1
        assert proxy.metric("wholecall_streams") == 0

    run(script, test, routes=[{"models": ["m*"], "backends": ["b0"]}])


def test_no_text_from_outside_becomes_a_label() -> None:
    async def script(c: Conversation) -> None:
        error = {"error": {"message": "x", "code": "code-from-outside", "type": "type-from-outside"}}
        if c.request.body and c.request.json["model"].endswith("7"):
            await c.answer(200, completion(), x_request_id="id-from-outside")
        else:
            await c.answer(418, json.dumps(error).encode())

    async def test(proxy: Proxy, up: Upstream) -> None:
        for number in range(30):
            await ask(
                proxy.port, {**REQUEST, "model": f"outside-{number}"}, headers={"x-request-id": f"outside-{number}"}
            )
        for model in ("\ud800", "a" * 5000, 'quote"\n'):
            await ask(proxy.port, {**REQUEST, "model": model})
        await ask(proxy.port, None, "/v1/path-from-outside")
        text = (await ask(proxy.port, None, "/metrics")).body.decode()
        assert "outside" not in text
        assert proxy.metric("wholecall_requests_total") == 34
        assert text.count("wholecall_requests_total{") < 10

    run(script, test, routes=[{"models": ["*"], "backends": ["b0"]}])


def test_100_000_names_of_models_make_no_series_and_leave_the_scrape_quick() -> None:
    metrics = Metrics()
    codes = ("code-from-outside", "\ud800", "x" * 500, "stream_cut", "max_calls")
    for number in range(100_000):
        entry = Entry("r", 0.0, "passthrough", "openai-chat", f"client-{number}", backend="b0", model=f"\ud800{number}")
        entry.opened_at, entry.ended_at, entry.upstream_id = 0.0, 1.0, f"id-{number}"
        entry.record = Record(outcome="error", status=200 + number % 2, code=codes[number % len(codes)])
        metrics.record(entry)
    since = time.process_time()
    text = metrics.render().decode()
    assert time.process_time() - since < 4 * 0.05
    samples = [line for line in text.splitlines() if line.startswith("wholecall_")]
    assert len(samples) < 100
    assert metric(text, "wholecall_requests_total") == 100_000
    assert not any(word in text for word in ("outside", "client-", "id-", "xxxx", "\ufffd", "?"))


def test_every_label_is_one_of_the_configuration_or_of_a_fixed_list() -> None:
    """What a metric can be told apart by: nothing else is known to stay bounded."""
    bounded = {
        "route",
        "backend",
        "dialect",
        "status",
        "verdict",
        "quirk",
        "repair",
        "format",
        "rule",
        "outcome",
        "kind",
    }
    metrics = Metrics()
    names = {label for one in vars(metrics).values() for label in getattr(one, "_labelnames", ())}
    assert names <= bounded
    assert {"route", "backend", "status", "verdict"} <= names


@pytest.mark.parametrize("way", ["before", "after"])
def test_a_failed_reply_is_counted_once_as_an_error_of_its_backend(way: str) -> None:
    async def script(c: Conversation) -> None:
        await c.head()
        if way == "after":
            await c.event(chunk({"content": "one"}))
        await c.end()

    async def test(proxy: Proxy, up: Upstream) -> None:
        await chat(proxy.port, stream=True)
        assert proxy.metric("wholecall_upstream_errors_total", backend="b0") == 1
        status = "200" if way == "after" else "502"
        assert proxy.metric("wholecall_requests_total", backend="b0", status=status) == 1

    run(script, test)


def test_a_client_that_left_is_counted_as_none_and_as_no_error() -> None:
    async def silent(c: Conversation) -> None:
        await c.until_closed()

    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            await client.ask(REQUEST)
            while not up.seen:
                await asyncio.sleep(0.01)
            client.leave()
        await proxy.quiet()
        assert proxy.metric("wholecall_requests_total", status="none", backend="b0") == 1
        assert proxy.metric("wholecall_upstream_errors_total") == 0

    run(silent, test)


def test_labels_are_short_and_valid() -> None:
    assert label("x" * 100) == "x" * 64
    assert label("\ud800a") == "?a"
    assert kind_label("stream_cut") == "stream_cut"
    assert kind_label("max_calls") == "limit_exceeded"
    assert kind_label("anything else") == "upstream_error"


def test_a_scrape_does_not_hold_up_the_loop() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        longest = 0.0
        done = False

        async def watch() -> None:
            nonlocal longest
            loop = asyncio.get_running_loop()
            while not done:
                before = loop.time()
                await asyncio.sleep(0)
                longest = max(longest, loop.time() - before)

        watcher = asyncio.create_task(watch())
        for _ in range(5):
            assert (await ask(proxy.port, None, "/metrics")).status == 200
        done = True
        await watcher
        assert longest < 1.0

    run(says("Hello"), test)
