"""Keys of clients, and how many exchanges at once and a minute."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop

from proxy.faults import Fault
from proxy.server.limits import Admission, TokenBucket
from support.client import REQUEST, Client, ask, chat
from support.proxy import Proxy, configuration
from support.upstream import Conversation, Script, Upstream, chunk, says

CLIENTS = [
    {"name": "agents", "key": "sesame"},
    {"name": "hashed", "key": "sha256:" + hashlib.sha256(b"open").hexdigest()},
]


def run(script: Script, test: Callable[[Proxy, Upstream], Coroutine[Any, Any, None]], **tables: Any) -> None:
    async def main() -> None:
        async with Upstream(script) as up, Proxy(up.url, **tables) as proxy:
            await test(proxy, up)

    uvloop.run(main())


async def one_word(c: Conversation) -> None:
    await c.head()
    await c.event(chunk({"content": "one"}))
    await c.until_closed()


async def holding(stack: AsyncExitStack, port: int, headers: dict[str, str] | None = None) -> None:
    """One exchange that runs until the stack is closed."""
    client = await stack.enter_async_context(Client(port))
    await client.ask({**REQUEST, "stream": True}, headers=headers)
    assert (await client.head()).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer sesame"}, 200),
        ({"authorization": "bearer sesame"}, 200),
        ({"authorization": "Bearer open"}, 200),
        ({"x-api-key": "sesame"}, 200),
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic sesame"}, 401),
        ({"authorization": "sesame"}, 401),
        ({"x-api-key": "\u00e9"}, 401),
        ({"authorization": "Bearer " + hashlib.sha256(b"open").hexdigest()}, 401),
    ],
)
def test_a_configured_key_is_asked_for(headers: dict[str, str], status: int) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for reply in (
            await chat(proxy.port, headers=headers),
            await ask(proxy.port, None, "/v1/models", headers=headers),
            await ask(proxy.port, {"input": "x"}, "/v1/embeddings", headers=headers),
        ):
            assert reply.status == status
            if status == 401:
                assert reply.error["code"] == "invalid_api_key"
                assert "sesame" not in reply.body.decode()
        assert (await ask(proxy.port, None, "/healthz")).status == 200
        assert all("authorization" not in request.headers for request in up.seen)
        assert status == 200 or up.seen == []

    run(says("Hello"), test, clients=CLIENTS)


def test_an_unknown_client_cannot_make_the_proxy_read_its_body() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n")
            reply = await client.rest(await client.head())
            assert (reply.status, reply.headers["connection"]) == (401, "close")

    run(says("Hello"), test, clients=CLIENTS)


def test_max_streams_is_503_with_retry_after_naming_the_limit() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await holding(stack, proxy.port)
            reply = await chat(proxy.port)
            assert (reply.status, reply.error["code"]) == (503, "max_streams")
            assert reply.error["type"] == "limit_exceeded"
            assert "2 (max_streams)" in reply.error["message"]
            assert int(reply.headers["retry-after"]) >= 1
            assert (proxy.metric("wholecall_streams"), proxy.metric("wholecall_streams_limit")) == (2, 2)
            assert (await ask(proxy.port, None, "/metrics")).status == 200
        await proxy.quiet()
        up.script = says("Hello")
        assert (await chat(proxy.port)).status == 200

    run(one_word, test, limits={"max_streams": 2})


def test_the_limit_of_streams_is_shown_as_the_last_configuration_says() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        proxy.service.reload(configuration(up.url, limits={"max_streams": 7}))
        assert proxy.metric("wholecall_streams_limit") == 7

    run(one_word, test, limits={"max_streams": 2})


def test_idle_connections_take_no_place() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(20):
                await stack.enter_async_context(Client(proxy.port))
            assert (await chat(proxy.port)).status == 200

    run(says("Hello"), test, limits={"max_streams": 1})


def test_a_backend_that_is_full_is_passed_over_and_503_where_all_are() -> None:
    async def main() -> None:
        limits = {"limits": {"max_streams": 1}}
        async with (
            Upstream(one_word) as one,
            Upstream(one_word) as two,
            AsyncExitStack() as stack,
            Proxy(one.url, two.url, backend=limits) as proxy,
        ):
            await holding(stack, proxy.port)
            await holding(stack, proxy.port)
            assert (len(one.seen), len(two.seen)) == (1, 1)
            reply = await chat(proxy.port)
            assert (reply.status, reply.error["code"]) == (503, "max_streams")
            assert "b0" in reply.error["message"]
            assert "retry-after" in reply.headers
            await stack.aclose()

    uvloop.run(main())


def test_a_clients_own_limits_are_429_and_do_not_touch_others() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        agents, hashed = {"authorization": "Bearer sesame"}, {"authorization": "Bearer open"}
        async with AsyncExitStack() as stack:
            await holding(stack, proxy.port, agents)
            reply = await chat(proxy.port, headers=agents)
            assert (reply.status, reply.error["code"]) == (429, "clients.max_streams")
            assert "'agents'" in reply.error["message"]
            assert "1 (clients.max_streams)" in reply.error["message"]
            assert "retry-after" in reply.headers
            await holding(stack, proxy.port, hashed)
        await proxy.quiet()
        up.script = says("Hello")
        for status in (200, 429):  # two of three requests of this minute have been used
            reply = await chat(proxy.port, headers=agents)
            assert reply.status == status
        assert reply.error["code"] == "clients.requests_per_minute"
        assert 1 <= int(reply.headers["retry-after"]) <= 20

    clients = [{**CLIENTS[0], "max_streams": 1, "requests_per_minute": 3}, CLIENTS[1]]
    run(one_word, test, clients=clients)


def test_a_sequence_of_requests_fits_into_one_place() -> None:
    async def no_last_chunk(c: Conversation) -> None:
        await c.head()
        await c.event(chunk({"content": "one"}, "stop"))
        await c.event("[DONE]")
        await c.until_closed()

    async def test(proxy: Proxy, up: Upstream) -> None:
        for _ in range(4):
            reply = await chat(proxy.port, stream=True)
            assert reply.status == 200

    run(no_last_chunk, test, limits={"max_streams": 1})


def test_a_bucket_begins_full_and_fills_evenly() -> None:
    bucket = TokenBucket(per_minute=6, at=100.0)
    assert [bucket.take(100.0) for _ in range(6)] == [0.0] * 6
    assert bucket.take(100.0) == pytest.approx(10.0)
    assert bucket.take(105.0) == pytest.approx(5.0)
    assert bucket.take(110.0) == 0.0
    assert bucket.take(110.0) > 0
    assert [bucket.take(1000.0) for _ in range(7)].count(0.0) == 6


def test_places_come_back_once() -> None:
    left: list[None] = []
    admission = Admission()
    ticket = admission.enter(1, lambda: left.append(None))
    admission.enter_client(ticket, "a", 1)
    admission.enter_backend(ticket, "b", 1)
    with pytest.raises(Fault, match="max_streams"):
        admission.enter(1, lambda: None)
    ticket.leave_backend(2)
    admission.enter_backend(ticket, "b", 1)
    ticket.leave()
    ticket.leave()
    assert (admission.running, len(left)) == (0, 1)
    again = admission.enter(1, lambda: None)
    admission.enter_client(again, "a", 1)
    admission.enter_backend(again, "b", 1)
