"""A short piece of each of the load runs; `python -m load --help`, in tests/, has the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from load import flat, upheaval

pytestmark = pytest.mark.slow


def test_three_hundred_streams_at_once_are_all_right(tmp_path: Path) -> None:
    result = uvloop.run(flat.streams(tmp_path, 300))
    assert result["problems"] == []
    assert result["outcomes"] == {"ok": 300}


def test_mixed_traffic_with_faults_adds_up_and_leaves_nothing_open(tmp_path: Path) -> None:
    result = uvloop.run(flat.soak(tmp_path, minutes=0.1, think_s=0.1))
    assert result["problems"] == []
    assert result["sent"] > 200


def test_a_killed_worker_takes_only_its_own_exchanges_along(tmp_path: Path) -> None:
    result = uvloop.run(upheaval.workers(tmp_path, 300))
    assert result["problems"] == []


def test_a_reload_under_load_is_for_new_exchanges_only(tmp_path: Path) -> None:
    result = uvloop.run(upheaval.reload(tmp_path, 6))
    assert result["problems"] == []
    assert result["answered_by"].keys() >= {"a", "b"}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_one_instance_follows_another_and_nothing_is_lost(tmp_path: Path, workers: str) -> None:
    result = uvloop.run(upheaval.restart(tmp_path, 1, 16, 0.5, "--workers", workers))
    assert result["problems"] == []
