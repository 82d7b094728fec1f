"""Each fault of the table many times over: nothing grows."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from itertools import cycle

import pytest

from faults import clients, upstreams
from faults.asking import ASKERS
from faults.world import Loop, World, resident, running

ROUNDS = 4
# What an exchange leaves behind if it leaves anything is an object at least; so much may come and go by chance.
OBJECTS = 200
BYTES = 16 << 20

# Those that are over at once, and that one proxy with the usual limits can meet.
UPSTREAMS = {fault: act for fault, act in upstreams.ACTS.items() if act.backend == "usual" and act.do is not None}
CLIENTS = {
    fault: act
    for fault, act in clients.ACTS.items()
    if act.backend == "usual"
    and fault not in {*clients.SLOW, *clients.READS, *clients.SIZES, "leaves while a check runs"}
}


@pytest.fixture
def place() -> Iterator[tuple[World, Loop]]:
    scripts = {fault: act.do for fault, act in UPSTREAMS.items() if act.do is not None}
    scripts |= {fault: act.upstream for fault, act in CLIENTS.items()}
    with running(World(scripts, {"usual": {}})) as place:
        yield place


def test_each_fault_many_times_over_leaves_nothing_behind(place: tuple[World, Loop]) -> None:
    async def round_of_all() -> tuple[int, int]:
        """Every fault once; how many objects there are then, and how many bytes."""
        askers = cycle(ASKERS)
        room = asyncio.Semaphore(16)

        async def upstream(fault: str) -> None:
            async with room:
                await world.exchange(next(askers), f"usual/{fault}#")

        async def client(fault: str, act: clients.Act) -> None:
            for how in act.ways:
                async with room, world.visit(fault, act, act.askers[0], how) as visit:
                    await act.do(visit)

        await asyncio.gather(*map(upstream, UPSTREAMS), *(client(*pair) for pair in CLIENTS.items()))
        await world.alone()
        assert await world.settled(before) == []
        world.up.seen.clear()
        world.up.conversations.clear()
        gc.collect()
        return len(gc.get_objects()), resident()

    world, loop = place
    before = loop.run(world.alone())
    logging.disable()
    try:
        found = [loop.run(round_of_all()) for _ in range(ROUNDS)]
    finally:
        logging.disable(logging.NOTSET)
    objects, size = zip(*found, strict=True)
    assert objects[-1] - objects[1] < OBJECTS, objects
    assert size[-1] - size[1] < BYTES, size
