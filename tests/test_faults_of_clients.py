"""The fault table, hostile clients: see tests/faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from faults.clients import ACTS
from faults.table import ClientRow, client_rows
from faults.world import Loop, World, complaints, running

ROWS = client_rows()
BACKENDS: dict[str, dict[str, Any]] = {
    "usual": {},
    "live": {"policy": {"delivery": "live"}},
    "asks-again": {"policy": {"reask": 1}},
    "impatient": {"limits": {"send_s": 0.4}},
}
LIMITS = {"head_s": 1.0, "body_s": 1.0, "max_head_bytes": 16_384, "max_request_bytes": 1 << 20}


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[World, Loop]]:
    with running(World({}, BACKENDS, limits=LIMITS)) as place:
        yield place


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.family}: {row.fault}")
def test_a_fault_of_a_client_is_what_the_table_says(
    row: ClientRow, place: tuple[World, Loop], caplog: pytest.LogCaptureFixture
) -> None:
    world, loop = place
    caplog.set_level(logging.INFO)
    wrong = loop.run(world.visited(row, ACTS[row.fault])) + complaints(caplog.records)
    assert not wrong, "\n".join([row.fault, *wrong])


def test_every_fault_that_can_be_done_is_in_the_table_once() -> None:
    assert sorted(row.fault for row in ROWS) == sorted(ACTS)
