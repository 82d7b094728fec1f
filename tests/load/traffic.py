"""Many clients at once, and the reckoning afterwards."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from load.client import Connection, Seen, exchange
from load.instance import Instance, Upstream
from load.ledger import Ledger
from load.plan import draw

Result = dict[str, Any]


class Traffic:
    """`users` clients at once, each with a connection of its own and `think_s` between two exchanges, on average.

    `port` gives the proxy to ask now; `note` sees every exchange; `crowd` is for the kind of that name.
    """

    def __init__(
        self,
        ledger: Ledger,
        upstream: Upstream,
        port: Callable[[], int],
        *,
        users: int,
        think_s: float,
        kinds: tuple[str, ...] = (),
        note: Callable[[Seen], None] = lambda seen: None,
        crowd: int = 0,
    ) -> None:
        self._ledger, self._upstream, self._port, self._kinds, self._note = ledger, upstream, port, kinds, note
        self._users, self._think_s, self._crowd = list(map(Random, range(users))), think_s, crowd
        self._stop = asyncio.Event()
        self.numbers: Iterator[int] = itertools.count()
        self.refused = 0  # no connection was to be had, and nothing was sent

    async def run(self, exchanges: int = 1 << 62) -> None:
        """Until `stop`, or that many exchanges have begun."""
        self._left = exchanges
        await asyncio.gather(*map(self._user, self._users))

    def stop(self) -> None:
        self._stop.set()

    async def _user(self, random: Random) -> None:
        connection = Connection()
        while not self._stop.is_set() and self._left > 0:
            self._left -= 1
            job = draw(random, next(self.numbers), *self._kinds, crowd=self._crowd)
            try:
                seen = await exchange(connection, self._port(), job, random, self._upstream.has)
            except ConnectionError:
                self.refused += 1
                await asyncio.sleep(0.05)
                continue
            self._note(seen)
            self._ledger.enter(seen)
            if self._think_s:
                await asyncio.sleep(random.expovariate(1 / self._think_s))
        connection.close()


@asynccontextmanager
async def while_running(traffic: Traffic) -> AsyncIterator[None]:
    """The traffic runs while the block does."""
    task = asyncio.create_task(traffic.run())
    try:
        yield
    finally:
        traffic.stop()
        await task


async def settled(proxy: Instance) -> None:
    """Wait until the proxy has seen the last clients leave."""
    async with asyncio.timeout(60):
        while (await proxy.metrics()).total("streams"):
            await asyncio.sleep(0.1)


async def accounts(ledger: Ledger, proxy: Instance, up: Upstream) -> list[str]:
    """Everything that was wrong in an exchange, and what does not add up."""
    await settled(proxy)
    await up.quiet()
    found = ledger.compare(await proxy.metrics(), (await up.counts())["asked"], proxy.exchanges())
    return [*ledger.problems, *found, *complaints(proxy)]


def complaints(proxy: Instance) -> list[str]:
    """The proxy never complains about itself: a failed exchange is no reason for a warning, a backend that is held for
    down is one."""
    lines = [line for line in proxy.log() if line["level"] not in ("debug", "info") and line.get("event") != "backend"]
    return [f"log: {line.get('message') or line}" for line in lines]


async def stopped(proxy: Instance) -> list[str]:
    proxy.signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        status = await proxy.process.wait()
    return [] if status == 0 else [f"exit status {status}"]
