"""Wrong types: each field of each client dialect with each of these values, through the core and through the server."""

from __future__ import annotations

import copy
import json
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dialect_clients import CLIENTS
from faults.asking import PATHS
from faults.world import Loop, World, complaints, running
from fuzz.requests import check, rich
from support.client import Client
from support.upstream import says

ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**25, "", "x", "\ud800", "a\0b", [], [None], ["x"], [[]], {}, {"type": "x"},
    {"x": {"x": {}}},
]  # fmt: skip
MODEL = "usual/talks"
DOCUMENTS = {name: {**json.loads(rich(name).partition(b"\n")[2]), "model": MODEL} for name in CLIENTS}


def crossing(dialect: str) -> dict[str, Any]:
    """Of the document what a backend of another dialect can be asked for."""
    document = DOCUMENTS[dialect]
    if dialect != "openai-responses":
        return document
    items = [item for item in document["input"] if "custom" not in item.get("type", "")]
    return {**document, "input": items, "tools": document["tools"][:1]}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every member of a document."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*path, key)
        yield from places(member, (*path, key))


def changed(document: dict[str, Any], path: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    """The document without that member, and with each odd value in its place."""
    for odd in (..., *ODD):
        whole = copy.deepcopy(document)
        holder: Any = whole
        for step in path[:-1]:
            holder = holder[step]
        if odd is ...:
            del holder[path[-1]]
        else:
            holder[path[-1]] = odd
        yield whole


@pytest.mark.parametrize("dialect", CLIENTS)
def test_a_wrong_type_anywhere_is_refused_in_words_or_goes_up_as_good_json(dialect: str) -> None:
    document = DOCUMENTS[dialect]
    for path in places(document):
        for body in changed(document, path):
            check(dialect.encode() + b"\n" + json.dumps(body).encode())


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[World, Loop]]:
    with running(World({"talks": says("Hello")}, {"usual": {}})) as place:
        yield place


@pytest.mark.parametrize(
    ("dialect", "field"), [(dialect, field) for dialect, document in DOCUMENTS.items() for field in document]
)
def test_a_field_of_a_wrong_type_is_400_naming_it_or_goes_up(
    dialect: str, field: str, place: tuple[World, Loop], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> list[str]:
        before = await world.alone()
        counts = world.counts()
        want: Counter[str] = Counter()
        wrong: list[str] = []
        async with Client(world.proxy.port) as client:
            for body in changed(crossing(dialect), (field,)):
                asked = len(world.up.seen)
                await client.ask(body, PATHS[dialect])
                reply = await client.rest(await client.head())
                odd = body.get(field, "gone")
                want[f"requests dialect={dialect} status={reply.status}"] += 1
                if reply.status == 200:
                    wrong += [f"{odd!r}: broke off"] if reply.broken else []
                    wrong += [f"{odd!r}: asked {len(world.up.seen) - asked} times"] * (len(world.up.seen) != asked + 1)
                    continue
                error = reply.json["error"]
                allowed = (400, 404) if field == "model" else (400,)
                if reply.status not in allowed or not error["message"] or len(world.up.seen) != asked:
                    wrong.append(f"{odd!r}: status {reply.status}, {error}")
                if dialect != "anthropic-messages" and not str(error["param"]).startswith(field):
                    wrong.append(f"{odd!r}: the error names {error['param']!r}")
        found = world.counts() - counts
        wrong += [f"{key}: {found[key]} counted" for key in found if key.startswith("upstream_errors")]
        return wrong + await world.settled(before) + await world.probe()

    world, loop = place
    caplog.set_level(logging.INFO)
    wrong = loop.run(test()) + complaints(caplog.records)
    assert not wrong, "\n".join([f"{dialect}: {field}", *wrong])
