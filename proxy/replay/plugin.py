"""A plugin of pytest, there wherever this package is installed: one fixture, and nothing where no test asks for it.

def test_my_gateway(wholecall_backend):
    model = "demo/interleaved-damaged"
    reply = through_my_gateway(wholecall_backend.url, wholecall_backend.request(model))
    assert reply.calls == [(c.name, c.arguments) for c in wholecall_backend.expected(model).calls]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from proxy.replay.backend import ReplayBackend


@pytest.fixture(scope="session")
def wholecall_backend() -> Iterator[ReplayBackend]:
    """A backend that answers with recorded, mostly damaged replies: `url`, `models`, `request(model)` to send it, and
    `expected(model)`, what a client should make of the answer. One process for the whole test run."""
    from proxy.replay.backend import running

    with running() as backend:
        yield backend
