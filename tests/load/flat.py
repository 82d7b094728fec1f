"""What a process takes: a thousand streams at once, and half an hour of everything."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import asdict
from pathlib import Path
from statistics import linear_regression, mean

from load import instance
from load.instance import Instance, Use, allow_many_files, configuration
from load.ledger import Ledger
from load.traffic import Result, Traffic, accounts, stopped, while_running

FLAT = ("rss_kib", "files", "threads", "processes")
GROWTH_KIB = 2048  # of memory in a whole run; a fit that is sure of more is a leak
BLOCKS, STUDENT_95 = 10, 2.306  # the quantile at eight degrees of freedom


async def streams(folder: Path, count: int) -> Result:
    """`count` streams with calls, all open at the same time (the upstream waits for that), on one process with default
    limits, but for `max_streams` where the default of 1000 is too low."""
    allow_many_files()
    ledger, samples = Ledger(), list[Use]()
    limits = {"max_streams": max(1000, count), "first_byte_s": 300.0, "idle_s": 120.0}
    async with (
        instance.upstream() as up,
        instance.instance(folder, configuration(up, limits=limits)) as proxy,
    ):
        before = instance.use(proxy.tree())
        traffic = Traffic(ledger, up, lambda: proxy.port, users=count, think_s=0.0, kinds=("crowd",), crowd=count)
        task = asyncio.create_task(traffic.run(count))
        while not task.done():
            await asyncio.wait((task,), timeout=0.25)
            samples.append(instance.use(proxy.tree()))
        await task
        problems = await accounts(ledger, proxy, up)
        most = (await up.counts())["most"]
        problems += await stopped(proxy)
    if most != count:
        problems.append(f"{most} streams were open at once")
    peak = max(one.rss_kib for one in samples)
    return {
        "streams": count,
        "open_at_once": most,
        "rss_mib_before": before.rss_kib >> 10,
        "rss_mib_peak": peak >> 10,
        "kib_per_stream": round((peak - before.rss_kib) / count, 1),
        "cpu_ms_per_stream": round(1000 * (samples[-1].cpu_s - before.cpu_s) / count, 2),
        "files_peak": max(one.files for one in samples),
        **ledger.summary(),
        "problems": problems,
    }


async def soak(folder: Path, minutes: float, users: int = 24, think_s: float = 0.4, sample_s: float = 2.0) -> Result:
    """Mixed traffic with faults, while the use of the proxy's process tree is sampled. It must be flat after a warm-up
    of a fifth, and at rest no more descriptors may be open than before."""
    allow_many_files()
    ledger, samples = Ledger(), list[Use]()
    async with instance.upstream() as up, instance.instance(folder, configuration(up)) as proxy:
        traffic = Traffic(ledger, up, lambda: proxy.port, users=users, think_s=think_s)
        before = instance.use(proxy.tree())
        end = before.at + 60 * minutes
        async with while_running(traffic):
            while time.monotonic() < end:
                await asyncio.sleep(sample_s)
                samples.append(instance.use(proxy.tree()))
        problems = await accounts(ledger, proxy, up)
        after = await at_rest(proxy, before.files)
        problems += await stopped(proxy)
    steady = samples[len(samples) // 5 :]
    slopes = {name: slope([one.at / 60 for one in steady], [getattr(one, name) for one in steady]) for name in FLAT}
    growth, unsure = slopes["rss_kib"]
    if (growth - unsure) * minutes * 0.8 > GROWTH_KIB:
        problems.append(f"memory grows by {growth:.0f} KiB a minute")
    problems += [
        f"{name} at rest: {getattr(after, name)}, before {getattr(before, name)}"
        for name in ("files", "processes")
        if getattr(after, name) > getattr(before, name)
    ]
    return {
        "minutes": minutes,
        "exchanges_per_s": round(sum(ledger.sent.values()) / (after.at - before.at), 1),
        "cpu_ms_per_exchange": round(1000 * (after.cpu_s - before.cpu_s) / sum(ledger.sent.values()), 2),
        "before": asdict(before),
        "after": asdict(after),
        "slope_per_minute": {
            name: {"slope": round(one, 2), "bound_95": round(two, 2)} for name, (one, two) in slopes.items()
        },
        **ledger.summary(),
        "problems": problems,
        "samples": [asdict(one) for one in samples],
    }


async def at_rest(proxy: Instance, files: int) -> Use:
    """When no more descriptors than that are open, or after half a minute: kept connections are closed within 8 s."""
    end = time.monotonic() + 30
    while (now := instance.use(proxy.tree())).files > files and now.at < end:
        await asyncio.sleep(0.5)
    return now


def slope(times: list[float], values: list[float]) -> tuple[float, float]:
    """Least squares through the means of ten blocks (single samples are too much alike), and the slope's 95 % bound."""
    size = len(times) // BLOCKS
    if not size:
        return math.nan, math.nan
    x = [mean(times[n * size : (n + 1) * size]) for n in range(BLOCKS)]
    y = [mean(values[n * size : (n + 1) * size]) for n in range(BLOCKS)]
    fit = linear_regression(x, y)
    spread = sum((one - mean(x)) ** 2 for one in x)
    rest = sum((two - fit.intercept - fit.slope * one) ** 2 for one, two in zip(x, y, strict=True))
    return fit.slope, STUDENT_95 * math.sqrt(rest / (BLOCKS - 2) / spread)
