"""The fault table, hostile upstreams: see tests/faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from faults.listeners import LISTENERS
from faults.table import Row, upstream_rows
from faults.upstreams import ACTS
from faults.world import Loop, World, complaints, running
from support.tls import Authority

ROWS = upstream_rows()
BACKENDS: dict[str, dict[str, Any]] = {
    "usual": {},
    "hasty": {"limits": {"first_byte_s": 0.5, "idle_s": 0.5}},
    "brief": {"limits": {"total_s": 0.5}},
    "small": {
        "limits": {
            "max_event_bytes": 1 << 17,
            "max_held_bytes": 3 << 18,
            "max_arguments_bytes": 1 << 17,
            "max_reply_bytes": 1 << 20,
            "max_events": 3000,
            "max_calls": 16,
        }
    },
    "full": {"limits": {"connect_s": 0.4}},
    "stalls-tls": {"limits": {"connect_s": 0.4}},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Loop]]:
    authority = Authority(tmp_path_factory.mktemp("trusted"))
    secure = {
        "tls": authority.server(),
        "self-signed": Authority(tmp_path_factory.mktemp("stranger")).server(),
        "other-host": authority.server("elsewhere.example"),
        "expired": authority.server(expired=True),
    }
    scripts = {fault: act.do for fault, act in ACTS.items() if act.do is not None}
    with pytest.MonkeyPatch.context() as patch, running(World(scripts, BACKENDS, secure, LISTENERS)) as place:
        patch.setenv("SSL_CERT_FILE", str(authority.file))
        yield place


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.family}: {row.fault}")
def test_a_fault_of_an_upstream_is_what_the_table_says(
    row: Row, place: tuple[World, Loop], caplog: pytest.LogCaptureFixture
) -> None:
    world, loop = place
    caplog.set_level(logging.INFO)
    wrong = loop.run(world.row(row, ACTS[row.fault])) + complaints(caplog.records)
    assert not wrong, "\n".join([row.fault, *wrong])


def test_every_fault_that_can_be_done_is_in_the_table_once() -> None:
    assert sorted(row.fault for row in ROWS) == sorted(ACTS)
