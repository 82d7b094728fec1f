"""The fuzz targets hold for what they begin with. Long runs are by hand: see the docstring of tests/fuzz."""

from __future__ import annotations

import pytest

from fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_every_seed_holds(target: Target) -> None:
    for data in target.seeds():
        target.check(data)
