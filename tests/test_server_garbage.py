"""What an exchange held is free when it is over. Where its parts refer to each other they wait for the collector, which
counts objects and not what they hold: a few hundred requests of a megabyte were kept that way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from proxy.exchange import Exchange
from proxy.model.requests import Request
from proxy.policy.reply import Reply
from proxy.server.http_client import Connection
from proxy.server.pump import Pump
from support.client import REQUEST, Client
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


@pytest.mark.parametrize("script", [whole, cut, refused, hung_up, endless])
def test_nothing_of_an_exchange_waits_for_the_collector(script: Callable[[Conversation], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Upstream(script) as up, Upstream(script) as other, Proxy(up.url, other.url) as proxy:
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
