"""What the HTTP protocol class refuses, and what it lets through untouched."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from support.bad_http import BODY, LENGTH, PATH, REFUSED, raw
from support.client import REQUEST, Client, ask, chat, request_bytes
from support.proxy import Proxy
from support.upstream import Conversation, Upstream, chunk, says, text_events


def run(test: Callable[[Proxy, Upstream], Coroutine[Any, Any, None]], **tables: Any) -> None:
    async def main() -> None:
        async with Upstream(says("Hello")) as up, Proxy(up.url, **tables) as proxy:
            await test(proxy, up)

    uvloop.run(main())


def test_bad_framing_is_400_with_one_log_line_and_no_upstream_request(caplog: pytest.LogCaptureFixture) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for name, request in REFUSED.items():
            caplog.clear()
            async with Client(proxy.port) as client:
                await client.send(request)
                reply = await client.rest(await client.head())
            assert reply.status == 400, name
            assert reply.error["type"] == "invalid_request_error", name
            assert reply.headers["connection"] == "close", name
            assert reply.headers["x-request-id"], name
            assert [record.name for record in caplog.records].count("wholecall.http") == 1, name
            assert len(caplog.records) <= 2, name  # where only the body is bad, there is an exchange's record too
            assert not any(record.exc_info for record in caplog.records), name
        assert up.seen == []
        assert (await chat(proxy.port)).status == 200

    caplog.set_level(logging.ERROR, "uvicorn.error")
    caplog.set_level(logging.INFO, "wholecall")
    run(test)


def test_one_more_request_behind_a_refused_one_is_not_served() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            smuggled = request_bytes(REQUEST, PATH)
            await client.send(REFUSED["length and chunked"] + smuggled)
            assert (await client.rest(await client.head())).status == 400
            assert await client.closed() == b""
        assert up.seen == []

    run(test)


def test_a_request_without_host_is_fine_in_http_1_0() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            await client.send(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert (await client.rest(await client.head())).status == 200

    run(test)


@pytest.mark.parametrize("shape", ["one header", "many headers", "long path", "endless header", "endless path"])
def test_a_head_over_its_limit_is_431_naming_the_limit(shape: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        start = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"
        piece = b"a" * 65536
        heads = {
            "one header": [start + b"X-A: " + b"a" * 5000 + b"\r\n\r\n"],
            "many headers": [start, *(b"X-%d: %s\r\n" % (i, b"a" * 100) for i in range(60)), b"\r\n"],
            "long path": [b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"],
            "endless header": [start + b"X-A: ", *[piece] * 1024],
            "endless path": [b"GET /", *[piece] * 1024],
        }
        async with Client(proxy.port) as client:
            pushed = 0
            try:
                for data in heads[shape]:
                    async with asyncio.timeout(0.3):
                        await client.send(data)
                    pushed += len(data)
            except (ConnectionError, TimeoutError):
                pass
            reply = await client.rest(await client.head())
        assert reply.status == 431
        assert reply.error["code"] == "max_head_bytes"
        assert "4096 (max_head_bytes)" in reply.error["message"]
        assert pushed < 16 << 20
        assert (await chat(proxy.port)).status == 200

    run(test, limits={"max_head_bytes": 4096})


def chunked(*pieces: bytes) -> list[bytes]:
    return [raw(b"Host: a", b"Content-Type: application/json", b"Transfer-Encoding: chunked", body=b""), *pieces]


@pytest.mark.parametrize("path", [PATH, "/v1/files"])
@pytest.mark.parametrize("shape", ["endless field", "many fields", "endless extension", "many extensions"])
def test_what_is_neither_head_nor_body_has_the_heads_limit(path: str, shape: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        piece = b"a" * 65536
        sent = {
            "endless field": chunked(b"2\r\n{}\r\n0\r\nX-A: ", *[piece] * 1024),
            "many fields": chunked(b"2\r\n{}\r\n0\r\n", *[b"X-A: %s\r\n" % (b"a" * 1000)] * 50),
            "endless extension": chunked(b"2\r\n{}\r\n2;a=", *[piece] * 1024),
            "many extensions": chunked(*[b"1;a=%s\r\n \r\n" % (b"a" * 1000)] * 50),
        }
        sent[shape][0] = sent[shape][0].replace(PATH.encode(), path.encode())
        async with Client(proxy.port) as client:
            pushed = 0
            try:
                for data in sent[shape]:
                    async with asyncio.timeout(0.3):
                        await client.send(data)
                    pushed += len(data)
                    await asyncio.sleep(0.001)
            except (ConnectionError, TimeoutError):
                pass
            reply = await client.rest(await client.head())
        assert (reply.status, reply.error["code"]) == (431, "max_head_bytes")
        assert "4096 (max_head_bytes)" in reply.error["message"]
        assert pushed < 16 << 20
        assert up.seen == []
        assert (await chat(proxy.port)).status == 200

    since = time.process_time()
    run(test, limits={"max_head_bytes": 4096})
    assert time.process_time() - since < 4.0


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_small_chunks_and_a_small_trailer_are_fine_and_the_trailer_is_dropped(size: int) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY + b" " * 1500)
        data = b"".join(chunked(chunks, b"0\r\nopenai-beta: no\r\nauthorization: Bearer no\r\n\r\n"))
        async with Client(proxy.port) as client:
            for at in range(0, len(data), size):
                await client.send(data[at : at + size])
                await asyncio.sleep(0)
            assert (await client.rest(await client.head())).status == 200
            await client.send(request_bytes(None, "/healthz", "GET"))
            assert (await client.rest(await client.head())).status == 200
        assert not {"openai-beta", "authorization"} & up.seen[0].headers.keys()

    run(test, limits={"max_head_bytes": 1024})


def test_too_many_header_fields_are_431_naming_the_limit() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        fields = {f"x-{i}": "1" for i in range(20)}
        reply = await ask(proxy.port, None, "/healthz", headers=fields)
        assert (reply.status, reply.error["code"]) == (431, "max_headers")
        assert "20 (max_headers)" in reply.error["message"]
        assert (await ask(proxy.port, None, "/healthz", headers={f"x-{i}": "1" for i in range(19)})).status == 200

    run(test, limits={"max_headers": 20})


def test_a_head_that_does_not_come_is_408_and_silence_is_closed() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as half, Client(proxy.port) as silent, Client(proxy.port) as later:
            await later.ask(None, "/healthz", "GET")
            assert (await later.rest(await later.head())).status == 200
            await later.send(b"GET /heal")
            await half.send(b"GET /healthz HTTP/1.1\r\nHo")
            assert await silent.closed() == b""
            for client in (half, later):
                reply = await client.rest(await client.head())
                assert (reply.status, reply.error["code"]) == (408, "head_s")
                assert "0.2 (head_s)" in reply.error["message"]

    run(test, limits={"head_s": 0.2})


def test_blank_lines_do_not_keep_a_connection_open() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            try:
                async with asyncio.timeout(5):
                    while not client.reader.at_eof():
                        await client.send(b"\r\n")
                        await asyncio.sleep(0.02)
            except ConnectionError:
                pass

    run(test, limits={"head_s": 0.2})


def test_a_stream_longer_than_the_head_deadline_is_left_alone() -> None:
    async def slow(c: Conversation) -> None:
        await c.head()
        for event in text_events("one", "two", "three"):
            await c.event(event)
            await asyncio.sleep(0.1)
        await c.event("[DONE]")
        await c.end()

    async def main() -> None:
        async with Upstream(slow) as up, Proxy(up.url, limits={"head_s": 0.1}) as proxy:
            reply = await chat(proxy.port, stream=True)
            assert reply.text == "onetwothree"
            assert not reply.broken

    uvloop.run(main())


def test_requests_in_a_pipeline_are_answered_in_order() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            one = request_bytes({**REQUEST, "stream": True}, PATH, headers={"x-request-id": "one"})
            two = request_bytes(None, "/healthz", "GET", headers={"x-request-id": "two"})
            await client.send(one + two)
            for name in ("one", "two"):
                reply = await client.rest(await client.head())
                assert (reply.status, reply.headers["x-request-id"]) == (200, name)

    run(test)


def test_junk_behind_a_request_does_not_get_into_its_answer() -> None:
    async def slow(c: Conversation) -> None:
        await c.head()
        await c.event(chunk({"role": "assistant", "content": "one"}))
        await asyncio.sleep(0.1)
        await c.event(chunk({"content": "two"}, "stop"))
        await c.event("[DONE]")
        await c.end()

    async def main() -> None:
        async with Upstream(slow) as up, Proxy(up.url) as proxy, Client(proxy.port) as client:
            await client.ask({**REQUEST, "stream": True})
            reply = await client.head()
            await client.until(b"one", reply)
            await client.send(b"\x00junk\r\n\r\n")
            await client.rest(reply)
            assert reply.text == "onetwo"
            assert reply.events[-1] == "[DONE]"
            assert await client.closed() == b""

    uvloop.run(main())


def test_a_late_head_behind_a_request_does_not_get_into_its_answer() -> None:
    begun = asyncio.Event()

    async def slow(c: Conversation) -> None:
        await c.head()
        await c.event(chunk({"role": "assistant", "content": "one"}))
        await begun.wait()
        await asyncio.sleep(0.5)  # the head has got its time, and more
        await c.event(chunk({"content": "two"}, "stop"))
        await c.event("[DONE]")
        await c.end()

    async def main() -> None:
        async with (
            Upstream(slow) as up,
            Proxy(up.url, limits={"head_s": 0.1}) as proxy,
            Client(proxy.port) as client,
        ):
            await client.ask({**REQUEST, "stream": True})
            reply = await client.head()
            await client.until(b"one", reply)
            await client.send(request_bytes(REQUEST, PATH)[:40])
            begun.set()
            await client.rest(reply)
            assert (reply.text, reply.events[-1], reply.broken) == ("onetwo", "[DONE]", False)
            assert await client.closed() == b""

    uvloop.run(main())


def test_a_client_that_leaves_its_pipeline_is_no_mistake_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    gone = asyncio.Event()

    async def slow(c: Conversation) -> None:
        if len(up.seen) > 1:
            await gone.wait()
        await c.answer(200, b'{"data": []}')

    up = Upstream(slow)

    async def main() -> None:
        async with up, Proxy(up.url) as proxy:
            async with Client(proxy.port) as client:
                await client.send(request_bytes(None, "/v1/models", "GET") * 3)
                assert (await client.rest(await client.head())).status == 200
                while len(up.seen) < 2:
                    await asyncio.sleep(0.005)
                client.leave()
            async with asyncio.timeout(10):
                while proxy.server.server_state.connections:
                    await asyncio.sleep(0.005)
                gone.set()
                while proxy.server.server_state.tasks:
                    await asyncio.sleep(0.005)

    uvloop.run(main())
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_body_over_its_limit_is_413_and_the_client_can_read_it() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        piece = b"10000\r\n" + b"a" * 65536 + b"\r\n"
        for head in (b"Content-Length: 1073741824", b"Transfer-Encoding: chunked"):
            async with Client(proxy.port) as client:
                # What waits in the client's own machine was not pushed; the proxy's may hold some MiB more.
                client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
                await client.send(raw(b"Host: a", head, body=b""))
                pushed = 0
                try:
                    async with asyncio.timeout(0.3):
                        while pushed < 1 << 30:
                            await client.send(piece)
                            pushed += len(piece)
                except (ConnectionError, TimeoutError):
                    pass
                reply = await client.rest(await client.head())
            assert (reply.status, reply.error["code"]) == (413, "max_request_bytes")
            assert "100000 (max_request_bytes)" in reply.error["message"].replace("1e+05", "100000")
            assert reply.headers["connection"] == "close"
            assert pushed < 10 << 20
        assert up.seen == []

    run(test, limits={"max_request_bytes": 100000})


def test_a_body_that_does_not_come_is_408_naming_the_limit() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            await client.send(raw(b"Host: a", b"Content-Length: 500", body=b'{"model'))
            reply = await client.rest(await client.head())
        assert (reply.status, reply.error["code"]) == (408, "body_s")
        assert "0.2 (body_s)" in reply.error["message"]

    run(test, limits={"body_s": 0.2})


def test_a_connection_is_kept_for_the_next_request_after_an_error() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            for body, status in ((b"{", 400), ({"messages": []}, 400), (REQUEST, 200)):
                await client.ask(body)
                assert (await client.rest(await client.head())).status == status

    run(test)


def test_an_upgrade_is_ignored() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for protocol in ("websocket", "h2c"):
            fields = {"connection": "upgrade", "upgrade": protocol, "sec-websocket-key": "eA=="}
            assert (await ask(proxy.port, None, "/healthz", headers=fields)).status == 200
            assert (await ask(proxy.port, REQUEST, headers=fields)).status == 200
            async with Client(proxy.port) as client:  # its body is not taken for a request, what follows it is
                hidden = b"GET /v1/hidden HTTP/1.1\r\nHost: a\r\n\r\n"
                head = request_bytes(hidden, PATH, headers=fields).removesuffix(hidden)
                for piece in (head, hidden[:9], hidden[9:] + request_bytes(None, "/healthz", "GET")):
                    await client.send(piece)
                    await asyncio.sleep(0.02)
                statuses = [(await client.rest(await client.head())).status for _ in range(2)]
                assert statuses == [400, 200]
        assert {request.target for request in up.seen} == {PATH}

    run(test)


def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            await client.send(raw(b"Host: a", b"Expect: 100-continue", LENGTH.strip(), body=b""))
            assert (await client.head()).status == 100
            await client.send(BODY)
            assert (await client.rest(await client.head())).status == 200

    run(test)
