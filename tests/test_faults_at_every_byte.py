"""The fault table, replies that break off: see tests/faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from faults.cuts import WAYS, Breaking
from faults.replies import STREAMS
from faults.table import cut_rows
from faults.world import Loop, World, complaints, running

ROWS = {row.part: row for row in cut_rows()}


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[World, Loop]]:
    backends: dict[str, dict[str, Any]] = {"usual": {}, **{name: {"dialect": name} for name in STREAMS}}
    backends |= {f"live-{name}": {"dialect": name, "policy": {"delivery": "live"}} for name in STREAMS}
    with running(World({way.name: way for way in WAYS}, backends)) as place:
        yield place


@pytest.mark.parametrize(
    ("way", "live"),
    [
        *(pytest.param(way, False, id=f"{way.name}, held") for way in WAYS),
        *(pytest.param(way, True, id=f"{way.name}, live") for way in WAYS if way.stream and way.how == "reset"),
    ],
)
def test_a_reply_that_breaks_off_is_what_the_table_says(
    way: Breaking, live: bool, place: tuple[World, Loop], caplog: pytest.LogCaptureFixture
) -> None:
    world, loop = place
    caplog.set_level(logging.INFO)
    wrong = loop.run(world.cuts(way, ROWS, live=live)) + complaints(caplog.records)
    assert not wrong, "\n".join([f"{len(wrong)} cells", *wrong[:20]])


def test_a_reply_breaks_off_in_every_part_of_it() -> None:
    assert {cut.part for way in WAYS for _, cut in way.cuts()} == ROWS.keys()
