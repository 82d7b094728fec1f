"""What an exchange held is free when it is over. Where its parts refer to each other they wait for the collector, which
counts objects and not what they hold: a few hundred requests of a megabyte were kept that way, and what every exchange
left of itself, two dozen objects, was six megabytes until the next search through all objects."""

from __future__ import annotations

import asyncio
import gc
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from load import instance
from load.ledger import Ledger
from load.plan import ALL
from load.traffic import Traffic
from proxy.exchange import Exchange
from proxy.model.requests import Request
from proxy.policy.reply import Reply
from proxy.server.http_client import Connection
from proxy.server.limits import Ticket
from proxy.server.pump import Pump
from support.client import REQUEST, Client, request_bytes
from support.proxy import Proxy
from support.upstream import Conversation, Upstream, chunk

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
HEAD = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
HELD = (Exchange, Pump, Reply, Request)


async def whole(c: Conversation) -> None:
    await c.head()
    for delta in ({"content": "a"}, {"content": "b"}, {"tool_calls": [HEAD]}):
        await c.event(chunk(delta))
        await asyncio.sleep(0.02)
    await c.event(chunk({}, "tool_calls"))
    await c.event("[DONE]")
    await c.end()


async def cut(c: Conversation) -> None:
    await c.head()
    await c.event(chunk({"content": "a"}))
    await asyncio.sleep(0.02)
    c.reset()


async def refused(c: Conversation) -> None:
    await c.answer(503, b"{}")


async def hung_up(c: Conversation) -> None:
    c.reset()


async def endless(c: Conversation) -> None:
    await c.head()
    await c.event(chunk({"content": "Hello there."}))
    await c.until_closed()


async def hung_up_when_asked_again(c: Conversation) -> None:
    if len(c.request.json["messages"]) > 1:
        c.reset()
        return
    await c.stream(chunk({"tool_calls": [HEAD | {"function": {"name": "look", "arguments": "[]"}}]}, "tool_calls"))


@pytest.mark.parametrize("script", [whole, cut, refused, hung_up, hung_up_when_asked_again, endless])
def test_nothing_of_an_exchange_waits_for_the_collector(script: Callable[[Conversation], Awaitable[None]]) -> None:
    async def main() -> None:
        policy = {"reask": 1}
        async with Upstream(script) as up, Upstream(script) as other, Proxy(up.url, other.url, policy=policy) as proxy:
            gc.collect()
            gc.disable()
            for _ in range(3):
                async with Client(proxy.port) as client:
                    await client.ask({**REQUEST, "stream": True, "tools": [TOOL]})
                    reply = await client.head()
                    if script is endless:
                        client.leave()
                    else:
                        await client.rest(reply)
            await proxy.quiet()
            await asyncio.sleep(0.05)
            left = [type(one).__name__ for one in gc.get_objects() if isinstance(one, HELD)]
            left += [
                type(one).__name__ for one in gc.get_objects() if isinstance(one, Connection) and not one.is_usable
            ]
            assert left == []

    try:
        uvloop.run(main())
    finally:
        gc.enable()


# --- nothing of any kind of exchange, searched for as the collector does ---------------------------------------------

OURS = ("proxy", "uvicorn", "httptools", "starlette", "aiohappyeyeballs")
MANY = 10  # exchanges


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Filled at the end of the block: what only the collector could free of what was made in it, by type."""
    found = Counter[str]()
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(name for one in gc.garbage if (name := _ours(one)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _ours(one: Any) -> str:
    """What to call it; nothing where it is the test's."""
    if isinstance(one, types.FrameType):
        module, name = one.f_globals.get("__name__"), f"frame of {one.f_code.co_qualname}"
    elif isinstance(one, types.FunctionType):
        module, name = one.__module__, one.__qualname__
    elif isinstance(one, types.CoroutineType | types.AsyncGeneratorType | types.GeneratorType):
        module, name = next((own for own in OURS if f"/{own}/" in _code(one).co_filename), ""), one.__qualname__
    else:
        module, name = type(one).__module__, type(one).__qualname__
    return f"{module} {name}" if str(module).split(".")[0] in OURS else ""


def _code(one: Any) -> types.CodeType:
    code: types.CodeType = getattr(one, "cr_code", None) or getattr(one, "ag_code", None) or one.gi_code
    return code


async def settled(proxy: Proxy) -> None:
    """Wait until all of the clients' connections are closed, and those to backends that are not kept."""
    pool = proxy.service.upstream._pool
    async with asyncio.timeout(20):
        while proxy.server.server_state.connections or proxy.server.server_state.tasks:
            await asyncio.sleep(0.005)
        while not all(connection.is_usable for connection in pool.open):
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.01)  # what was put off to the loop's next round


def test_no_kind_of_exchange_leaves_anything_to_the_collector() -> None:
    """Of the load runs' kinds, each in the clients' and the backends' dialects."""

    async def main() -> None:
        left = {}
        async with instance.upstream() as up:
            for kind in ALL:
                limits = {"first_byte_s": 0.2, "idle_s": 0.2} if kind in ("stall", "never") else {}
                async with Proxy(**instance.configuration(up, limits=limits)) as proxy:
                    ledger = Ledger()
                    with garbage() as left[kind]:
                        await Traffic(ledger, up, lambda: proxy.port, users=MANY, think_s=0.0, kinds=(kind,)).run(MANY)
                        await settled(proxy)
                    assert sum(ledger.sent.values()) == MANY
        assert {kind: found for kind, found in left.items() if found} == {}

    uvloop.run(main())


async def by_another_path(client: Client) -> None:
    await client.ask({"model": "m", "input": "a"}, "/v1/embeddings")
    await client.rest(await client.head())


async def by_a_method_that_is_not_taken(client: Client) -> None:
    await client.ask(None, method="PUT")
    await client.rest(await client.head())


async def of_bad_http(client: Client) -> None:
    await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
    await client.rest(await client.head())


async def with_a_schema_that_cannot_be_used(client: Client) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "nothing"}}}
    await client.ask({**REQUEST, "tools": [tool]})
    await client.rest(await client.head())


async def with_an_upload_that_is_left(client: Client) -> None:
    await client.send(b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\nabc")
    await asyncio.sleep(0.05)
    client.leave()


async def with_an_upload_that_does_not_come(client: Client) -> None:
    await client.send(b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\nabc")
    await client.rest(await client.head())


async def behind_each_other_and_left(client: Client) -> None:
    await client.send(3 * request_bytes(REQUEST, "/v1/chat/completions"))
    await asyncio.sleep(0.05)
    client.leave()


@pytest.mark.parametrize(
    "backend",
    ["answers", "is silent", "is full", "and the next are full", "refuses", "speaks no TLS", "has no address"],
)
@pytest.mark.parametrize(
    "ask",
    [
        by_another_path,
        by_a_method_that_is_not_taken,
        of_bad_http,
        with_a_schema_that_cannot_be_used,
        with_an_upload_that_is_left,
        with_an_upload_that_does_not_come,
        behind_each_other_and_left,
    ],
)
def test_no_request_leaves_anything_to_the_collector(ask: Callable[[Client], Awaitable[None]], backend: str) -> None:
    async def script(c: Conversation) -> None:
        if backend == "is silent":
            await c.until_closed()
        else:
            await c.answer(200, b"{}")

    async def main() -> None:
        async with Upstream(script) as up:
            url = {
                "refuses": "http://127.0.0.1:1",
                "speaks no TLS": up.url.replace("http:", "https:"),
                "has no address": "http://" + "a" * 64 + ".invalid",
            }.get(backend, up.url)
            places = {"limits": {"max_streams": 1}} if "full" in backend else {}
            limits = {"first_byte_s": 0.1, "total_s": 0.1}
            async with Proxy(url, up.url, limits=limits, backend=places) as proxy:
                if "full" in backend:
                    proxy.service.admission.enter_backend(Ticket([], lambda: None), "b0", 1)
                if backend == "and the next are full":
                    proxy.service.admission.enter_backend(Ticket([], lambda: None), "b1", 1)
                with garbage() as found:
                    for _ in range(3):
                        async with Client(proxy.port) as client:
                            await ask(client)
                    await settled(proxy)
                assert found == {}

    uvloop.run(main())
