"""Hypothesis profiles: `fast` (default, the same examples in every run) and `deep` (HYPOTHESIS_PROFILE=deep); and
what the garbage collector looks at."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

# No deadline: tests never fail by wall time. `fast` is derandomized: a failure then belongs to the change at hand.
settings.register_profile(
    "fast",
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep", max_examples=20_000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(scope="module", autouse=True)
def older_objects_are_not_looked_at() -> None:
    """One search for cycles through all that thousands of tests have left takes half a second of CPU. It would be
    counted as the cost of whatever is measured when it begins."""
    gc.collect()
    gc.freeze()
