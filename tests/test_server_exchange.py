"""One exchange through real sockets: who leaves when, who is slow, which backend is asked next."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import uvloop

from proxy.config import Config
from proxy.exchange import Exchange
from proxy.faults import Fault
from proxy.model.calls import CallCheck, CheckResult
from proxy.server.upstream import Upstream as HttpUpstream
from support.client import REQUEST, Client, Reply, ask, chat
from support.proxy import Proxy, configuration
from support.tls import Authority
from support.upstream import (
    Conversation,
    Script,
    Upstream,
    call_events,
    chunk,
    completion,
    says,
    text_events,
)

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STREAM = {**REQUEST, "stream": True}


def run(script: Script, test: Callable[[Proxy, Upstream], Coroutine[Any, Any, None]], **tables: Any) -> None:
    async def main() -> None:
        async with Upstream(script) as up, Proxy(up.url, **tables) as proxy:
            await test(proxy, up)

    uvloop.run(main())


async def silent(c: Conversation) -> None:
    await c.until_closed()


async def head_only(c: Conversation) -> None:
    await c.head()
    await c.until_closed()


async def half_a_text(c: Conversation) -> None:
    await c.head()
    for event in text_events("one", "two")[:2]:
        await c.event(event)
    await c.until_closed()


async def half_a_call(c: Conversation) -> None:
    await c.head()
    for event in call_events("f", ['{"a":', "1}"])[:2]:
        await c.event(event)
    await c.until_closed()


async def half_a_body(c: Conversation) -> None:
    await c.head(content_type="application/json")
    await c.chunk(completion()[:20])
    await c.until_closed()


async def an_error_without_end(c: Conversation) -> None:
    await c.head(500, content_type="application/json")
    await c.chunk(b'{"error":')
    await c.until_closed()


# --- a reply that is over -----------------------------------------------------------------------------------------


def test_nothing_of_an_exchange_waits_for_the_garbage_collector() -> None:
    """Else megabytes of arguments would be kept until it looks."""

    async def test(proxy: Proxy, up: Upstream) -> None:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                reply = await chat(proxy.port, stream=True, tools=[TOOL])
                assert b"tool_calls" in reply.body
            await proxy.quiet()
            await asyncio.sleep(0.05)
            assert not [one for one in gc.get_objects() if isinstance(one, Exchange)]
        finally:
            gc.enable()

    async def script(c: Conversation) -> None:
        await c.stream(*call_events("f", ['{"a":', "1}"]))

    run(script, test)


# --- a client that leaves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "without the end"])
def test_a_client_may_leave_just_as_the_reply_ends(whole: bool, caplog: pytest.LogCaptureFixture) -> None:
    """In one turn of the loop: what the core then wants must be carried out, or the exchange never ends."""
    told: list[Conversation] = []
    data = b"".join(b"data: %b\n\n" % one for one in (json.dumps(chunk(finish="stop")).encode(), b"[DONE]"))
    ending = b"%x\r\n%b\r\n" % (len(data), data) + (b"0\r\n\r\n" if whole else b"")

    async def script(c: Conversation) -> None:
        await c.head()
        await c.event(chunk({"role": "assistant", "content": "Hello"}))
        told.append(c)
        if whole:
            while told:  # then the connection may carry the next request
                await asyncio.sleep(0.001)
        else:
            await c.until_closed()

    async def test(proxy: Proxy, up: Upstream) -> None:
        for _ in range(20):
            async with Client(proxy.port) as client:
                await client.ask({**REQUEST, "stream": True})
                await client.until(b"Hello", await client.head())
                with socket.socket(fileno=os.dup(client.writer.get_extra_info("socket").fileno())) as same:
                    same.shutdown(socket.SHUT_WR)  # at once; uvloop's own would wait for the turn's end
                told[0].writer.write(ending)
                told.clear()
                await proxy.quiet()
        assert (await ask(proxy.port, None, "/healthz")).status == 200

    run(script, test)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("script", "stream"),
    [
        (silent, True),
        (silent, False),
        (head_only, True),
        (half_a_text, True),
        (half_a_call, True),
        (half_a_body, False),
        (an_error_without_end, False),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
@pytest.mark.parametrize("how", ["reset", "close", "half-close"])
def test_the_upstream_is_closed_when_the_client_leaves(script: Script, stream: bool, how: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            await client.ask({**REQUEST, "stream": stream, "tools": [TOOL]})
            while not up.conversations:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.02)
            if how == "reset":
                client.leave()
            elif how == "close":
                client.writer.close()
            else:
                client.writer.write_eof()
            async with asyncio.timeout(1):
                await up.conversations[0].closed.wait()
        await proxy.quiet()
        assert proxy.service.pumps == set()
        assert proxy.metric("wholecall_streams") == 0
        assert proxy.metric("wholecall_upstream_errors_total") == 0

    run(script, test)


def test_a_client_that_leaves_while_it_sends_its_request_is_no_error() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
            await asyncio.sleep(0.05)
            client.leave()
        await proxy.quiet()
        assert up.seen == []
        assert proxy.metric("wholecall_requests_total", status="none") == 1

    run(silent, test)


def test_impatient_clients_do_not_use_up_anything() -> None:
    async def slow(c: Conversation) -> None:
        await asyncio.sleep(0.02)
        await says("Hello")(c)

    async def test(proxy: Proxy, up: Upstream) -> None:
        async def impatient(number: int) -> None:
            async with Client(proxy.port) as client:
                await client.ask(STREAM)
                await asyncio.sleep(number % 20 / 500)
                client.leave()

        for _ in range(5):
            await asyncio.gather(*(impatient(number) for number in range(40)))
        await proxy.quiet()
        replies = await asyncio.gather(*(chat(proxy.port) for _ in range(20)))
        assert [reply.status for reply in replies] == [200] * 20

    run(slow, test, limits={"max_streams": 60})


# --- a client that does not read ----------------------------------------------------------------------------------


async def flood(c: Conversation) -> None:
    """256 MiB of text, as fast as it is taken."""
    await c.head()
    data = f"data: {json.dumps(chunk({'content': 'x' * 65536}))}\n\n".encode()
    for _ in range(4096):
        await c.chunk(data)
    await c.end()


def test_a_slow_client_slows_the_upstream_down_and_memory_stays_flat() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        before = _resident()
        async with Client(proxy.port, receive_buffer=65536) as client:
            await client.ask(STREAM)
            reply = await client.head()
            await client.piece()
            await asyncio.sleep(0.5)
            sent = up.conversations[0].sent
            assert sent < 32 << 20
            await asyncio.sleep(0.3)
            assert up.conversations[0].sent == sent
            assert reply.status == 200
        await proxy.quiet()
        assert _resident() - before < 64 << 20

    run(flood, test)


def test_a_client_that_does_not_read_is_dropped_after_send_s(caplog: pytest.LogCaptureFixture) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port, receive_buffer=65536) as client:
            await client.ask(STREAM)
            await client.head()
            await proxy.quiet()
            body = await client.closed()
            assert not body.endswith(b"0\r\n\r\n")
        fields = [record.fields for record in caplog.records if record.name == "wholecall.exchange"]  # type: ignore[attr-defined]
        assert (fields[0]["outcome"], fields[0]["code"]) == ("gone", "send_s")
        loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert [record.message for record in loud if record.name == "uvicorn.error"] == []
        await up.none_open()

    caplog.set_level("INFO", "wholecall")
    run(flood, test, limits={"send_s": 0.3})


def test_a_client_that_reads_slowly_is_not_dropped() -> None:
    async def some(c: Conversation) -> None:
        await c.head()
        for _ in range(64):
            await c.event(chunk({"content": "x" * 65536}))
        await c.event(chunk({}, "stop"))
        await c.event("[DONE]")
        await c.end()

    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port, receive_buffer=65536) as client:
            await client.ask(STREAM)
            reply = await client.head()
            size = 0
            while data := await client.piece():
                size += len(data)
                await asyncio.sleep(0.01)
            assert size > 64 * 65536
            assert reply.status == 200

    run(some, test, limits={"send_s": 0.5, "idle_s": 0.5})


# --- deadlines ----------------------------------------------------------------------------------------------------


async def comments_only(c: Conversation) -> None:
    await c.head()
    while True:
        await c.chunk(b": still here\n\n")
        await asyncio.sleep(0.02)


async def comments_after_text(c: Conversation) -> None:
    await c.head()
    for event in text_events("one")[:2]:
        await c.event(event)
    while True:
        await c.chunk(b": still here\n\n")
        await asyncio.sleep(0.02)


async def a_drip(c: Conversation) -> None:
    await c.head()
    while True:
        await c.event(chunk({"content": "x"}))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "key", "status"),
    [
        (silent, "first_byte_s", 504),
        (head_only, "first_byte_s", 504),
        (comments_only, "first_byte_s", 504),
        (half_a_text, "idle_s", 200),
        (comments_after_text, "idle_s", 200),
        (a_drip, "total_s", 200),
        (silent, "total_s", 504),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_each_deadline_ends_in_an_error_that_names_it(script: Script, key: str, status: int) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port, stream=True)
        assert reply.status == status
        assert not reply.broken
        assert reply.error["code"] == "timeout"
        assert reply.error["type"] == "upstream_error"
        assert f"0.3 s ({key})" in reply.error["message"]
        assert b"[DONE]" not in reply.body
        assert proxy.metric("wholecall_upstream_errors_total", kind="timeout", backend="b0") == 1
        await proxy.quiet()
        await up.none_open()

    run(script, test, limits={key: 0.3})


def test_a_backend_that_takes_no_connection_is_a_timeout_naming_connect_s() -> None:
    async def main() -> None:
        with socket.socket() as full, socket.socket() as one, socket.socket() as two:
            full.bind(("127.0.0.1", 0))
            full.listen(0)  # the kernel takes a connection or two, and then no more
            for sock in (one, two):
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            async with Proxy(f"http://127.0.0.1:{full.getsockname()[1]}/v1", limits={"connect_s": 0.3}) as proxy:
                reply = await chat(proxy.port)
                assert (reply.status, reply.error["code"]) == (504, "timeout")
                assert "connect_s" in reply.error["message"]

    uvloop.run(main())


def test_the_client_hears_a_comment_while_a_call_is_held() -> None:
    async def slow_call(c: Conversation) -> None:
        await c.head()
        first, *rest = call_events("f", ["{}"])
        await c.event(first)
        await asyncio.sleep(0.5)
        for event in [*rest, "[DONE]"]:
            await c.event(event)
        await c.end()

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port, stream=True, tools=[TOOL])
        assert 2 <= reply.body.count(b": wholecall\n\n") <= 5
        assert reply.events[-1] == "[DONE]"

    run(slow_call, test, limits={"keepalive_s": 0.1})


def test_a_reply_whose_done_never_comes_ends_after_settle_ms() -> None:
    async def no_done(c: Conversation) -> None:
        await c.head()
        for event in text_events("one"):
            await c.event(event)
        await c.until_closed()

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port, stream=True)
        assert reply.text == "one"
        assert reply.events[-1] == "[DONE]"
        assert proxy.metric("wholecall_quirks_total", quirk="done_missing") == 1
        await up.conversations[0].closed.wait()

    run(no_done, test, limits={"settle_ms": 100})


# --- backends that fail -------------------------------------------------------------------------------------------


def failing(status: int, body: bytes = b'{"error":{"message":"busy","type":"t","code":"c"}}', **headers: str) -> Script:
    async def script(c: Conversation) -> None:
        await c.answer(status, body, **headers)

    return script


async def html(c: Conversation) -> None:
    await c.answer(200, b"<html><body>Welcome</body></html>", "text/html")


async def empty(c: Conversation) -> None:
    await c.answer(200, b"", "text/event-stream")


async def error_in_200(c: Conversation) -> None:
    await c.answer(200, b'{"error":{"message":"overloaded","code":"x"}}')


async def gone_at_once(c: Conversation) -> None:
    c.reset()


async def closed_at_once(c: Conversation) -> None:
    c.writer.close()
    raise ConnectionResetError


async def status_999(c: Conversation) -> None:
    await c.raw(b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n")


async def no_http(c: Conversation) -> None:
    await c.raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    await c.until_closed()


async def head_too_large(c: Conversation) -> None:
    await c.raw(b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 100_000 + b"\r\ncontent-length: 0\r\n\r\n")


async def bad_chunk(c: Conversation) -> None:
    await c.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\nzz\r\n")
    await c.until_closed()


TRANSIENT = [failing(429), failing(500), failing(503), failing(529), html, empty, error_in_200]
TRANSIENT += [gone_at_once, closed_at_once, status_999, no_http, head_too_large, bad_chunk]


@pytest.mark.parametrize("stream", [True, False])
def test_the_next_backend_answers_where_the_first_could_not(stream: bool) -> None:
    async def main() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # bound, never listening: connections are refused
            refused = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
            async with Upstream(TRANSIENT[0]) as bad, Upstream(says("Hello")) as good:
                for script in (None, *TRANSIENT):
                    bad.script = script or bad.script
                    async with Proxy(refused if script is None else bad.url, good.url) as proxy:
                        reply = await chat(proxy.port, stream=stream)
                        assert reply.status == 200, script
                        assert (reply.text if stream else reply.json["choices"][0]["message"]["content"]) == "Hello"
                        assert proxy.metric("wholecall_upstream_errors_total", backend="b0") == 1
                        assert proxy.metric("wholecall_requests_total", backend="b1", status="200") == 1
                bad.errors.clear()

    uvloop.run(main())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_an_error_that_is_the_requests_own_goes_back_at_once(status: int) -> None:
    async def main() -> None:
        async with (
            Upstream(failing(status)) as bad,
            Upstream(says("Hello")) as good,
            Proxy(bad.url, good.url, backend={"api_key": "forward"}) as proxy,
        ):
            reply = await chat(proxy.port)
            assert (reply.status, reply.error["message"]) == (status, "busy")
            assert good.seen == []

    uvloop.run(main())


async def an_error_that_stalls(c: Conversation) -> None:
    await c.head(400, content_type="text/plain", retry_after="7")
    await c.chunk(b"no such thing")
    await c.until_closed()


async def an_error_in_brotli(c: Conversation) -> None:
    await c.answer(400, b"no such thing", content_encoding="br", retry_after="7")


@pytest.mark.parametrize(
    ("script", "message"),
    [(an_error_that_stalls, "no such thing"), (an_error_in_brotli, "the upstream answered with status 400")],
)
def test_an_error_status_stays_that_error_though_its_body_cannot_be_read(script: Script, message: str) -> None:
    async def main() -> None:
        async with (
            Upstream(script) as bad,
            Upstream(says("Hello")) as good,
            Proxy(bad.url, good.url, limits={"idle_s": 0.3}) as proxy,
        ):
            reply = await chat(proxy.port)
            assert (reply.status, reply.headers["retry-after"]) == (400, "7")
            assert (reply.error["code"], reply.error["message"]) == ("400", message)
            assert good.seen == []
            passed = await ask(proxy.port, {"model": "m", "input": "x"}, "/v1/embeddings")
            assert (passed.status, passed.headers["retry-after"]) == (400, "7")
            assert "content-encoding" not in passed.headers
            assert (passed.body, passed.broken) == (
                (b"no such thing", True) if script is an_error_that_stalls else (b"", False)
            )
            await proxy.quiet()

    uvloop.run(main())


def test_the_last_fault_is_the_answer_where_every_backend_fails() -> None:
    async def main() -> None:
        async with (
            Upstream(failing(500)) as one,
            Upstream(failing(429, retry_after="7")) as two,
            Proxy(one.url, two.url) as proxy,
        ):
            reply = await chat(proxy.port)
            assert (reply.status, reply.headers["retry-after"]) == (429, "7")
            assert len(one.seen) == len(two.seen) == 1
            assert proxy.metric("wholecall_upstream_errors_total") == 2

    uvloop.run(main())


@pytest.mark.parametrize("how", ["reset", "end", "error"])
def test_nothing_is_tried_again_once_a_part_of_the_answer_was_used(how: str) -> None:
    async def breaks(c: Conversation) -> None:
        await c.head()
        for event in text_events("one", "two")[:2]:
            await c.event(event)
        await asyncio.sleep(0.05)
        if how == "reset":
            c.reset()
        elif how == "end":
            await c.end()
        else:
            await c.event({"error": {"message": "overloaded", "code": 529}})

    async def main() -> None:
        async with Upstream(breaks) as bad, Upstream(says("Hello")) as good, Proxy(bad.url, good.url) as proxy:
            reply = await chat(proxy.port, stream=True)
            assert reply.status == 200
            assert reply.error["message"]
            assert b"[DONE]" not in reply.body
            assert not reply.broken
            assert good.seen == []

    uvloop.run(main())


def test_a_kept_connection_that_died_is_replaced_once_and_a_new_one_is_not() -> None:
    up = Upstream(silent)

    async def dies_when_used_again(c: Conversation) -> None:
        if up.seen.count(c.request) and len(up.seen) in (2, 5):
            c.writer.close()
            raise ConnectionResetError
        await says("Hello")(c)

    async def test(proxy: Proxy, upstream: Upstream) -> None:
        nonlocal up
        up = upstream
        assert [(await chat(proxy.port)).status for _ in range(2)] == [200, 200]
        assert (len(up.seen), up.connections) == (3, 2)
        assert (await chat(proxy.port)).status == 200
        assert (len(up.seen), up.connections) == (4, 2)
        for conversation in up.conversations:
            conversation.writer.close()
        await asyncio.sleep(0.05)
        assert (await chat(proxy.port)).status == 502
        assert len(up.seen) == 5
        up.errors.clear()

    run(dies_when_used_again, test)


def test_the_breaker_opens_after_failures_and_closes_after_a_success() -> None:
    async def main() -> None:
        async with (
            Upstream(failing(503)) as bad,
            Upstream(says("Hello")) as good,
            Proxy(bad.url, good.url) as proxy,
        ):
            assert proxy.metric("wholecall_backend_up", backend="b0") == 1
            for _ in range(8):
                assert (await chat(proxy.port)).status == 200
            assert len(bad.seen) == 5
            assert proxy.metric("wholecall_backend_up", backend="b0") == 0
            assert proxy.metric("wholecall_backend_up", backend="b1") == 1
            bad.script = says("I am back")
            async with asyncio.timeout(5):
                while len(bad.seen) == 5:
                    await chat(proxy.port)
                    await asyncio.sleep(0.1)
            assert proxy.metric("wholecall_backend_up", backend="b0") == 1

    uvloop.run(main())


def test_faulty_calls_and_errors_in_a_200_leave_the_breaker_closed() -> None:
    async def bad_calls(c: Conversation) -> None:
        if len(c.request.json["messages"][0]["content"]) == 1:
            await error_in_200(c)
        else:
            await c.stream(*call_events("g", ["{"]))

    async def test(proxy: Proxy, up: Upstream) -> None:
        for content in ["x", "yy"] * 4:
            messages = [{"role": "user", "content": content}]
            await chat(proxy.port, stream=True, tools=[TOOL], messages=messages)
        assert proxy.metric("wholecall_backend_up", backend="b0") == 1
        assert len(up.seen) == 8

    run(bad_calls, test)


def test_the_only_backend_is_tried_even_while_it_is_held_for_down() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for _ in range(7):
            assert (await chat(proxy.port)).status == 503
        assert len(up.seen) == 7
        assert (await ask(proxy.port, None, "/readyz")).status == 503
        up.script = says("Hello")
        assert (await chat(proxy.port)).status == 200
        assert (await ask(proxy.port, None, "/readyz")).status == 200

    run(failing(503), test)


# --- headers ------------------------------------------------------------------------------------------------------

OWN_ID = "0b0e8a6e-5a3f-4b6e-9d0b-1f2f3a4b5c6d"
CLIENT_HEADERS = {
    "authorization": "Bearer client-key",
    "x-api-key": "client-key-2",
    "cookie": "session=1",
    "x-forwarded-for": "1.2.3.4",
    "x-mine": "kept",
    "openai-organization": "org",
    "traceparent": "00-1-2-03",
    "user-agent": "curl",
    "accept-encoding": "gzip, br",
    "proxy-authorization": "Basic eA==",
    "te": "trailers",
    "connection": "keep-alive, x-mine-too",
    "x-mine-too": "hop",
}


def test_only_allowed_headers_and_the_configured_credential_go_upstream() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        await chat(proxy.port, headers=CLIENT_HEADERS)
        sent = up.seen[0].headers
        assert sent["authorization"] == "Bearer own-key"
        assert sent["x-static"] == "s"
        assert sent["x-mine"] == "kept"
        assert sent["openai-organization"] == "org"
        assert sent["traceparent"] == "00-1-2-03"
        assert sent["accept-encoding"] == "identity"
        assert sent["host"] == f"127.0.0.1:{up.port}"
        assert not {"x-api-key", "cookie", "x-forwarded-for", "proxy-authorization", "te", "x-mine-too"} & sent.keys()
        assert b"client-key" not in up.seen[0].head
        assert "curl" not in sent["user-agent"]

    backend = {"api_key": "own-key", "headers": {"x-static": "s"}, "forward_headers": ["x-mine"]}
    run(says("Hello"), test, backend=backend)


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ({"authorization": "Bearer client-key"}, "Bearer client-key"),
        ({"x-api-key": "client-key"}, "Bearer client-key"),
        ({"authorization": "Basic eA=="}, None),
        ({}, None),
    ],
)
def test_the_clients_own_key_goes_upstream_only_where_it_is_configured(
    headers: dict[str, str], sent: str | None
) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        await chat(proxy.port, headers=headers)
        assert up.seen[0].headers.get("authorization") == sent

    run(says("Hello"), test, backend={"api_key": "forward"})


def test_response_headers_pass_by_allow_list() -> None:
    async def script(c: Conversation) -> None:
        await c.raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nset-cookie: a=b\r\nserver: vllm\r\n"
            b"x-ratelimit-remaining-requests: 5\r\nopenai-processing-ms: 12\r\nx-request-id: upstream-id\r\n"
            b"x-ratelimit-odd: \x01\r\nkeep-alive: timeout=5\r\ncontent-length: %d\r\n\r\n" % len(completion())
        )
        await c.raw(completion())

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port, headers={"x-request-id": OWN_ID})
        assert reply.status == 200
        assert reply.headers["x-request-id"] == OWN_ID
        assert reply.headers["x-ratelimit-remaining-requests"] == "5"
        assert reply.headers["openai-processing-ms"] == "12"
        assert not {"set-cookie", "server", "keep-alive", "x-ratelimit-odd"} & reply.headers.keys()
        assert up.seen[0].headers["x-request-id"] == OWN_ID

    run(script, test)


@pytest.mark.parametrize("stream", [True, False])
def test_trailers_and_cookies_of_a_reply_stay_behind(stream: bool) -> None:
    async def script(c: Conversation) -> None:
        await c.head(200, "text/event-stream" if stream else "application/json", trailer="x-late, set-cookie")
        if stream:
            for event in (*text_events("Hello"), "[DONE]"):
                await c.event(event)
        else:
            await c.chunk(completion())
        await c.raw(b"0\r\nx-late: secret-of-the-backend\r\nset-cookie: a=b\r\nx-ratelimit-remaining: 1\r\n\r\n")

    async def test(proxy: Proxy, up: Upstream) -> None:
        for _ in range(2):
            async with Client(proxy.port) as client:
                await client.ask({**REQUEST, "stream": stream})
                reply = await client.rest(await client.head())
                assert (reply.status, reply.broken) == (200, False)
                await client.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                rest = reply.head + reply.body + await client.closed()
            assert b"x-late" not in rest.lower()
            assert b"secret-of-the-backend" not in rest
            assert b"set-cookie" not in rest.lower()
        assert "cookie" not in up.seen[1].headers

    run(script, test)


@pytest.mark.parametrize(
    "model", ["../../admin", "..", "a/../../b", "a?key=1", "a#b", "a%2f..%2fb", "a\\..\\b", "http://h/x", "@h"]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_model_stays_one_segment_of_the_path_where_it_stands_in_it(model: str, path: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        await ask(proxy.port, {"model": model, "messages": REQUEST["messages"], "max_tokens": 9, "input": "Hi"}, path)
        (request,) = up.seen
        target, _, query = request.target.partition("?")
        assert (query, target.count("/"), target.startswith("/v1/models/")) == ("", 3, True)
        assert target.endswith(":generateContent")
        assert unquote(target.removeprefix("/v1/models/").removesuffix(":generateContent")) == model
        assert request.headers["host"] == f"127.0.0.1:{up.port}"

    run(failing(400), test, backend={"dialect": "gemini"})


@pytest.mark.parametrize("sent", ["a b", "x" * 129, "a\u00e9", '{"a":1}', ""])
def test_an_odd_request_id_is_replaced(sent: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port, headers={"x-request-id": sent})
        assert len(reply.headers["x-request-id"]) == 36
        assert up.seen[0].headers["x-request-id"] == reply.headers["x-request-id"]

    run(says("Hello"), test)


def test_a_request_id_that_is_no_uuid_comes_back_but_does_not_go_upstream() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port, headers={"x-request-id": "my-id.1"})
        assert reply.headers["x-request-id"] == "my-id.1"
        assert "x-request-id" not in up.seen[0].headers  # some servers refuse any other form

    run(says("Hello"), test)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        monkeypatch.setenv("HTTP_PROXY", up.url)
        monkeypatch.setenv("http_proxy", up.url)
        monkeypatch.setenv("ALL_PROXY", up.url)
        assert (await chat(proxy.port)).status == 200
        assert up.seen[0].target == "/v1/chat/completions"

    run(says("Hello"), test)


def test_a_certificate_is_checked_against_the_configured_authorities(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        async with Upstream(says("Hello"), authority.server()) as up:
            async with Proxy(up.url) as proxy:
                reply = await chat(proxy.port)
                assert (reply.status, reply.error["code"]) == (502, "unreachable")
                assert "certificate" in reply.error["message"]
            monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
            async with Proxy(up.url) as proxy:
                assert [(await chat(proxy.port, stream=stream)).status for stream in (True, False)] == [200, 200]
            assert len(up.seen) == 2

    uvloop.run(main())


def test_redirects_are_not_followed() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port)
        assert reply.status == 502
        assert "location" not in reply.headers
        assert len(up.seen) == 1

    run(failing(307, b"", location="/v1/elsewhere"), test)


def test_a_connection_is_used_again_after_a_stream_and_after_a_plain_reply() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for stream in (True, False, True, False):
            assert (await chat(proxy.port, stream=stream)).status == 200
        assert up.connections == 1

    run(says("Hello"), test)


def test_text_reaches_the_client_while_the_upstream_still_speaks() -> None:
    async def lockstep(c: Conversation) -> None:
        await c.head()
        for word in ("one", "two", "three"):
            await c.event(chunk({"content": word}))
            async with asyncio.timeout(5):
                await heard.get()
        for value in (chunk({}, "stop"), "[DONE]"):
            await c.event(value)
        await c.end()

    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            await client.ask(STREAM)
            reply = await client.head()
            for word in (b"one", b"two", b"three"):
                await client.until(word, reply)
                heard.put_nowait(word)
            assert (await client.rest(reply)).text == "onetwothree"

    heard: asyncio.Queue[bytes] = asyncio.Queue()
    run(lockstep, test)


# --- the request --------------------------------------------------------------------------------------------------


def tool(parameters: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([tool({"type": "objekt"}, "weather")], ["weather", "/type"]),
        ([tool({"$ref": "http://127.0.0.1:1/x"}, "weather")], ["weather"]),
        ([tool({"$ref": "file:///etc/passwd"}, "weather")], ["weather"]),
        ([tool(deep(100), "weather")], ["weather", "64 levels"]),
        ([tool("{}", "weather")], ["parameters"]),
    ],
)
def test_a_tool_whose_schema_cannot_be_used_is_400_naming_tool_and_place(tools: Any, words: list[str]) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port, tools=tools)
        assert (reply.status, reply.error["code"]) == (400, "invalid_tool_schema")
        for word in words:
            assert word in reply.error["message"]
        assert up.seen == []

    run(says("Hello"), test)


@pytest.mark.parametrize(
    ("tools", "code", "words"),
    [
        ([tool({"description": "x" * 5000}, "weather")], "max_schema_bytes", ["weather", "5018", "4096"]),
        ([tool({"description": "x" * 4000}, f"t{i}") for i in range(300)], "max_schemas_bytes", ["1048576"]),
        ([tool({}, f"t{i}") for i in range(513)], "max_tools", ["513", "512"]),
    ],
)
def test_tools_over_a_limit_are_413_naming_the_limit(tools: Any, code: str, words: list[str]) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port, tools=tools)
        assert (reply.status, reply.error["type"], reply.error["code"]) == (413, "limit_exceeded", code)
        for word in (*words, f"({code})"):
            assert word in reply.error["message"]
        assert up.seen == []

    run(says("Hello"), test, limits={"max_schema_bytes": 4096})


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"])
@pytest.mark.parametrize("many", [b"[],", b'{"a":1},', b'"a",', b"1,"])
def test_a_request_of_too_many_values_is_413_and_not_parsed(path: str, many: bytes) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        body = b'{"model":"m","input":[%b0]}' % (many * 1_000_000)
        for kind in ("application/json", "text/plain"):
            reply = await ask(proxy.port, body, path, headers={"content-type": kind})
            assert (reply.status, reply.error["code"]) == (413, "max_request_values")
            assert "1000000 (max_request_values)" in reply.error["message"]
        assert up.seen == []

    run(says("Hello"), test)


def test_commas_in_a_text_are_no_values() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        assert (await chat(proxy.port, messages=[{"role": "user", "content": '[{", ' * 400_000}])).status == 200

    run(says("Hello"), test)


def test_a_schema_that_does_not_compile_is_let_through_where_that_is_configured() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        assert (await chat(proxy.port, tools=[tool({"type": "objekt"})])).status == 200

    run(says("Hello"), test, policy={"uncompilable_schema": "skip"})


BAD_REQUESTS: list[tuple[Any, str]] = [
    (b"{", "invalid_json"),
    (b"", "invalid_json"),
    (b"[]", "invalid_request"),
    (b'{"messages":[]}', "invalid_request"),
    (b'{"model":5}', "invalid_request"),
    (b"\xff\xfe", "invalid_json"),
    (b"[" * 100_000, "invalid_json"),
    ({"model": "nope"}, "model_not_found"),
    ({"model": "\ud800"}, "model_not_found"),
]


@pytest.mark.parametrize(("body", "code"), BAD_REQUESTS)
def test_a_bad_request_is_one_clear_error_and_the_proxy_lives_on(body: Any, code: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, body)
        assert reply.error["code"] == code
        assert ("nested too deeply" in reply.error["message"]) == (body == b"[" * 100_000)
        assert reply.status == (404 if code == "model_not_found" else 400)
        assert up.seen == []
        assert (await ask(proxy.port, {**REQUEST, "model": "known"})).status == 200
        assert (await ask(proxy.port, None, "/metrics")).status == 200

    run(says("Hello"), test, routes=[{"models": ["known"], "backends": ["b0"]}])


def test_a_compressed_request_is_415() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, b"\x1f\x8b", headers={"content-encoding": "gzip"})
        assert reply.status == 415

    run(says("Hello"), test)


def test_the_model_is_rewritten_as_the_route_says() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        assert (await ask(proxy.port, {**REQUEST, "model": "vendor/qwen"})).status == 200
        assert (await ask(proxy.port, {**REQUEST, "model": "fixed"})).status == 200
        assert [request.json["model"] for request in up.seen] == ["qwen", "real"]

    routes = [
        {"models": ["vendor/*"], "backends": ["b0"], "strip_prefix": "vendor/"},
        {"models": ["fixed"], "backends": ["b0"], "model": "real"},
    ]
    run(says("Hello"), test, routes=routes)


def test_both_spellings_of_the_path_work() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for path in ("/v1/chat/completions", "/chat/completions"):
            assert (await ask(proxy.port, REQUEST, path)).status == 200

    run(says("Hello"), test)


def test_bad_upstreams_end_in_a_clear_error(caplog: pytest.LogCaptureFixture) -> None:
    async def endless_line(c: Conversation) -> None:
        await c.head()
        await c.chunk(b"data: ")
        for _ in range(64):
            await c.chunk(b"x" * 65536)

    async def large_arguments(c: Conversation) -> None:
        await c.head()
        for event in call_events("f", ["x" * 65536] * 160):
            await c.event(event)

    async def many_calls(c: Conversation) -> None:
        await c.head()
        for index in range(100_000):
            function = {"name": "f", "arguments": "{}"}
            entry = {"index": index, "id": f"c{index}", "type": "function", "function": function}
            await c.event(chunk({"tool_calls": [entry]}))

    async def main() -> None:
        scripts = {
            "max_event_bytes": endless_line,
            "max_arguments_bytes": large_arguments,
            "max_calls": many_calls,
        }
        async with Upstream(silent) as up, Proxy(up.url, limits={"max_event_bytes": 1 << 20}) as proxy:
            for code, script in scripts.items():
                up.script = script
                reply = await chat(proxy.port, stream=True, tools=[TOOL])
                assert reply.error["code"] == code
                assert code in reply.error["message"]
            up.script = says("Hello")
            assert (await chat(proxy.port)).status == 200

    uvloop.run(main())
    assert not any(record.exc_info for record in caplog.records)


def _resident() -> int:
    """This process's memory in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_reply_is_whole_and_says_how_long_it_is() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply: Reply = await chat(proxy.port)
        assert int(reply.headers["content-length"]) == len(reply.body)
        assert (await chat(proxy.port, stream=True)).headers["content-type"] == "text/event-stream"

    run(says("Hello"), test)


def test_the_model_is_asked_again_at_the_same_backend_and_the_client_gets_one_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(c: Conversation) -> None:
        turns.append(c.request.json["messages"])
        await c.stream(*call_events("f", ['{"b": 1}' if len(turns) == 1 else '{"a": 1}']))

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port, stream=True, tools=[tool({"type": "object", "required": ["a"]})])
        assert reply.events[-1] == "[DONE]"
        assert b'{\\"a\\": 1}' in reply.body
        assert b'{\\"b\\": 1}' not in reply.body
        assert len(turns[1]) > len(turns[0])
        assert (len(up.seen), up.connections) == (2, 1)
        assert proxy.metric("wholecall_reasks_total", backend="b0", outcome="corrected") == 1
        assert proxy.metric("wholecall_requests_total") == 1

    turns: list[Any] = []
    settings_for = Config.settings_for
    monkeypatch.setattr(Config, "settings_for", lambda *which: replace(settings_for(*which), reask=1))
    run(script, test)


# --- what other HTTP clients lose --------------------------------------------------------------------------------


def test_broken_framing_in_the_middle_of_a_body_is_a_cut_and_no_endless_wait() -> None:
    async def bad(c: Conversation) -> None:
        await c.head()
        for event in text_events("one", "two")[:2]:
            await c.event(event)
        await asyncio.sleep(0.05)  # the proxy waits for more
        await c.raw(b"zz\r\nno chunk\r\n")
        await c.closed.wait()

    async def test(proxy: Proxy, up: Upstream) -> None:
        async with asyncio.timeout(20):
            reply = await chat(proxy.port, stream=True)
        assert reply.error["code"] == "stream_cut"
        assert b"one" in reply.body

    run(bad, test)


def test_what_arrived_before_the_backend_closed_too_early_is_read_all_the_same() -> None:
    async def sloppy(c: Conversation) -> None:
        await c.head()
        await c.chunk(b"data: [DONE]\n\n")
        c.writer.close()  # without the last chunk

    async def main() -> None:
        backends = HttpUpstream()
        async with Upstream(sloppy) as up:
            config = configuration(up.url)
            backend = config.backends[0]
            reply = await backends.open(config, backend, up.url + "/chat/completions", [], b"{}")
            await asyncio.sleep(0.2)  # the proxy is busy with the client meanwhile
            assert await reply.read() == b"data: [DONE]\n\n"
            with pytest.raises(Fault, match="in the middle"):
                await reply.read()
            await reply.aclose()
        await backends.aclose()

    uvloop.run(main())


# --- live delivery -----------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**STREAM, "tools": [tool(SCHEMA)]}),
    "responses": (
        "/v1/responses",
        {
            "model": "m",
            "input": "Hi",
            "stream": True,
            "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}],
        },
    ),
    "messages": (
        "/v1/messages",
        {**STREAM, "max_tokens": 100, "tools": [{"name": "f", "input_schema": SCHEMA}]},
    ),
}


def arguments_in(body: bytes) -> str:
    """The argument text in a stream so far, of whichever dialect; what comes whole at the end is left out."""
    text = ""
    for line in body.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        for choice in event.get("choices", ()):
            text += "".join(call["function"].get("arguments", "") for call in choice["delta"].get("tool_calls", ()))
        if event.get("type") == "response.function_call_arguments.delta":
            text += event["delta"]
        elif event.get("type") == "content_block_delta":
            text += event["delta"].get("partial_json", "")
    return text


async def until_arguments(client: Client, reply: Reply, text: str) -> None:
    """Read on until this much of the arguments is here, and no more."""
    while arguments_in(reply.body) != text:
        assert text.startswith(arguments_in(reply.body)), reply.body
        data = await client.piece()
        assert data, f"the body ended without {text!r}: {reply.body!r}"
        reply.body += data


@pytest.mark.parametrize("dialect", LIVE)
def test_live_arguments_reach_the_client_before_the_upstream_has_sent_the_next(dialect: str) -> None:
    head, *rest = call_events("f", ['{"ci', 'ty": "C', 'ork"}'])
    sent = ['{"ci', '{"city": "C', '{"city": "Cork"']  # the last character waits

    async def lockstep(c: Conversation) -> None:
        await c.head()
        await c.event(head)
        for event in rest[:3]:
            await c.event(event)
            async with asyncio.timeout(5):
                await heard.get()
        await c.event(rest[3])
        await c.event("[DONE]")
        await c.end()

    async def test(proxy: Proxy, up: Upstream) -> None:
        path, body = LIVE[dialect]
        async with Client(proxy.port) as client:
            await client.ask(body, path)
            reply = await client.head()
            for text in sent:
                await until_arguments(client, reply, text)
                heard.put_nowait(text)
            await client.rest(reply)
        assert arguments_in(reply.body) == '{"city": "Cork"}'
        assert proxy.metric("wholecall_tool_calls_total", verdict="valid") == 1

    heard: asyncio.Queue[str] = asyncio.Queue()
    run(lockstep, test, policy={"delivery": "live"})


@pytest.mark.parametrize("dialect", LIVE)
def test_the_last_character_of_a_live_call_waits_for_the_verdict(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(c: Conversation) -> None:
        await c.stream(*call_events("f", ['{"city": "Cork"}']))

    async def test(proxy: Proxy, up: Upstream) -> None:
        judge = proxy.service.checker.judge

        async def slow(jobs: Sequence[CallCheck], client: str = "") -> list[CheckResult]:
            judging.set()
            await may_judge.wait()
            return await judge(jobs, client)

        monkeypatch.setattr(proxy.service.checker, "judge", slow)
        path, body = LIVE[dialect]
        async with Client(proxy.port) as client:
            await client.ask(body, path)
            reply = await client.head()
            async with asyncio.timeout(5):
                await judging.wait()  # the upstream's reply is over, and everything that may go out before is out
            await until_arguments(client, reply, '{"city": "Cork"')
            with pytest.raises(TimeoutError):
                await client.piece(0.05)
            may_judge.set()
            await client.rest(reply)
        assert arguments_in(reply.body) == '{"city": "Cork"}'

    judging, may_judge = asyncio.Event(), asyncio.Event()
    run(script, test, policy={"delivery": "live"})


@pytest.mark.parametrize("dialect", LIVE)
def test_a_faulty_live_call_never_gets_its_last_character_and_ends_in_an_error(dialect: str) -> None:
    async def script(c: Conversation) -> None:
        await c.stream(*call_events("f", ['{"ci', 'ty": 5', "}"]))

    async def test(proxy: Proxy, up: Upstream) -> None:
        path, body = LIVE[dialect]
        reply = await ask(proxy.port, body, path)
        assert arguments_in(reply.body) == '{"city": 5'
        assert b"schema_violation" in reply.body
        assert b"[DONE]" not in reply.body
        for end in (b"message_stop", b"content_block_stop", b"arguments.done", b"response.completed"):
            assert end not in reply.body

    run(script, test, policy={"delivery": "live"})
