"""An exchange under the inspector's eyes, in this process, and its case file judged again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from proxy.config import Inspector
from proxy.dialects.openai_chat import request as openai_request
from proxy.exchange import ExchangeSettings
from proxy.model.requests import Request
from proxy.replay.inprocess import Answer, Runner, run
from proxy.replay.recording import CREATED, Recording, read_case
from proxy.server.entry import Entry
from proxy.server.inspector.notes import Kept
from proxy.server.inspector.ring import Ring

SETTINGS = ExchangeSettings(mode="annotate", repair=True, annotations="always")


def ring(**keys: Any) -> Ring:
    return Ring(Inspector(**keys))


def watch(
    into: Ring,
    request: Request,
    recording: Recording,
    pieces: Iterable[bytes] | None = None,
    settings: ExchangeSettings = SETTINGS,
    entry: Entry | None = None,
) -> tuple[Kept, Answer]:
    """What the ring keeps of this exchange, and what the client got."""
    entry = entry or Entry(
        "r-1", 0.0, dialect=request.dialect, route="*", backend="b", model=request.model, stream=request.stream
    )
    runner = Runner(request, settings)
    runner.exchange = into.watch(entry, request.model)(request, settings, seed="replay", created=CREATED)
    runner.open(recording.status, dict(recording.headers), recording.dialect)
    for piece in recording.pieces if pieces is None else pieces:
        runner.receive(piece)
    runner.end(recording.end)
    assert runner.answer.record is not None
    assert entry.notes is not None
    entry.record = runner.answer.record
    entry.notes.finish(entry)
    return into.after(0)[-1], runner.answer


def judged_again(case: Mapping[str, Any]) -> Answer:
    """As `wholecall replay` reads a case file."""
    recording = read_case(case)
    body = {"messages": [{"role": "user", "content": "?"}], "model": "m", **recording.request}
    return run(openai_request.read(json.dumps(body).encode()), recording, SETTINGS)
