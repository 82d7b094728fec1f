"""What operators do to a proxy under load: a worker dies, the configuration changes, one instance follows another."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

from load import instance
from load.client import Seen
from load.instance import Instance, allow_many_files, configuration
from load.ledger import Ledger, compare_metrics
from load.plan import QUICK
from load.traffic import Result, Traffic, accounts, complaints, settled, stopped, while_running
from support.proxy import write_config


async def workers(folder: Path, exchanges: int, kills: int = 1, users: int = 24) -> Result:
    """Two workers; now and then one of them is killed. The other goes on, and the dead one is replaced."""
    allow_many_files()
    ledger, problems = Ledger(), list[str]()
    async with (
        instance.upstream() as up,
        instance.instance(folder, configuration(up), "--workers", "2") as proxy,
    ):
        traffic = Traffic(ledger, up, lambda: proxy.port, users=users, think_s=0.1, kinds=QUICK)
        async with while_running(traffic):
            for kill in range(kills):
                await sent(ledger, exchanges * (kill + 1) // (kills + 1))
                victim = instance.children(proxy.pid)[kill % 2]
                below = instance.children(victim)
                ledger.kills.append(time.monotonic())
                os.kill(victim, signal.SIGKILL)
                async with asyncio.timeout(20):
                    while len({*instance.children(proxy.pid)} - {victim}) < 2 or any(map(instance.lives, below)):
                        await asyncio.sleep(0.05)
            await sent(ledger, exchanges)
        last = time.monotonic()
        await settled(proxy)
        settled_s = time.monotonic() - last
        problems += await accounts(ledger, proxy, up)
        died = [line for line in problems if line.startswith("log: worker")]
        problems = [line for line in problems if line not in died]
        if len(died) != kills:
            problems.append(f"{len(died)} workers were reported dead, {kills} were killed")
        problems += await stopped(proxy)
    if traffic.refused:
        problems.append(f"{traffic.refused} connections were refused")
    return {
        "kills": kills,
        "apart": len(ledger.apart),
        "gauge_right_after_s": round(settled_s, 1),
        **ledger.summary(),
        "problems": problems,
    }


async def sent(ledger: Ledger, exchanges: int) -> None:
    """Wait until so many exchanges are over."""
    while sum(ledger.sent.values()) < exchanges:
        await asyncio.sleep(0.02)


TOLD = ("text", "calls", "tangled", "invalid", "late", "paced", "cut", "error")  # replies that tell their side


async def reload(folder: Path, reloads: int, users: int = 16, pause_s: float = 0.5) -> Result:
    """SIGHUP again and again: another upstream and another policy in turn, and a bad file each third time. Each reply
    is one configuration's, and the one that held when it began."""
    allow_many_files()
    ledger, seen = Ledger(), list[Seen]()
    async with instance.upstream() as up:
        good = {side: configuration(up, side=side, policy=policy) for side, policy in SIDES.items()}
        async with instance.instance(folder, good["a"]) as proxy:
            holds = [("a", time.monotonic(), math.inf)]  # side, from, until: both as far as it may have been so
            traffic = Traffic(ledger, up, lambda: proxy.port, users=users, think_s=0.1, kinds=TOLD, note=seen.append)
            async with while_running(traffic):
                for number in range(reloads):
                    await asyncio.sleep(pause_s)
                    side = "ab"[(number + 1) % 2]
                    if number % 3 == 2:
                        proxy.config.write_text('[listen]\nport = "x"\n')
                        side = holds[-1][0]
                    else:
                        write_config(proxy.config, good[side])
                    began = time.monotonic()
                    proxy.signal(signal.SIGHUP)
                    await proxy.logged("reload", number + 1)
                    holds[-1] = (*holds[-1][:2], time.monotonic())
                    holds.append((side, began, math.inf))
            problems = await accounts(ledger, proxy, up)
            refused = [line for line in problems if "was not reloaded" in line]
            problems = [line for line in problems if line not in refused]
            if len(refused) != reloads // 3:
                problems.append(f"{len(refused)} bad files were reported, {reloads // 3} were given")
            problems += await stopped(proxy)
    for one in seen:
        could = {side for side, start, end in holds if start <= one.head_at and one.began <= end}
        if not one.sides <= could:
            problems.append(f"{one.job.token}: answered by {one.sides}, when it could be {could}")
    sides = Counter("".join(sorted(one.sides)) for one in seen)
    return {"reloads": reloads, "answered_by": dict(sides), **ledger.summary(), "problems": problems}


SIDES: dict[str, dict[str, Any]] = {
    "a": {"annotations": "always"},
    "b": {"annotations": "always", "mode": "annotate"},
}


class Balancer:
    """Spreads requests over the instances of `pool` that were ready when last asked, 100 ms ago or less."""

    def __init__(self, random: Random) -> None:
        self.pool: list[Instance] = []
        self._ready: list[Instance] = []
        self._random = random

    def port(self) -> int:
        return self._random.choice(self._ready).port

    async def look(self) -> None:
        self._ready = [one for one in [*self.pool] if await one.is_ready()]

    async def watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(0.1)


async def restart(folder: Path, restarts: int, users: int = 16, notice_s: float = 1.0, *options: str) -> Result:
    """One instance takes over from the other behind a balancer that asks /readyz: nothing is lost, refused or done
    twice, and what runs ends well."""
    allow_many_files()
    ledger, problems, logs = Ledger(), list[str](), list[dict[str, Any]]()
    balancer = Balancer(Random(1))
    async with instance.upstream() as up, AsyncExitStack() as stack:
        document = configuration(up, listen={"notice_s": notice_s} if notice_s else {})

        async def start() -> Instance:
            started = await stack.enter_async_context(instance.instance(folder, document, *options))
            balancer.pool.append(started)
            return started

        current = await start()
        await balancer.look()
        watching = asyncio.create_task(balancer.watch())
        traffic = Traffic(ledger, up, balancer.port, users=users, think_s=0.05, kinds=QUICK)
        async with while_running(traffic):
            for _ in range(restarts):
                await asyncio.sleep(1.0)
                old, current = current, await start()
                await asyncio.sleep(0.5)
                problems += await stopped(old)
                balancer.pool.remove(old)
                logs += old.exchanges()
                problems += complaints(old)
            await asyncio.sleep(1.0)
        watching.cancel()
        await settled(current)
        await up.quiet()
        problems += compare_metrics(await current.metrics(), current.exchanges())
        logs += current.exchanges()
        problems += ledger.compare_log(logs) + ledger.compare_upstream((await up.counts())["asked"], logs)
        problems += complaints(current) + await stopped(current)
    if traffic.refused:
        problems.append(f"{traffic.refused} connections were refused")
    return {"restarts": restarts, "notice_s": notice_s, **ledger.summary(), "problems": [*ledger.problems, *problems]}
