"""Which call a delta belongs to: each row of the table in assembly/slots.py, and the states that lead there."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from random import Random

import pytest

from proxy.assembly.identity import give_id, made_id
from proxy.assembly.names import declared_name
from proxy.assembly.slots import HeldCall, Slots
from proxy.model.deltas import CallDelta
from proxy.model.findings import Quirk

DECLARED = ("get_tide", "set_lamp", "get", "get_time")


def d(
    index: int | None = None, call_id: str | None = None, name: str | None = None, args: str | None = None
) -> CallDelta:
    return CallDelta(0, index=index, call_id=call_id, name=name, arguments=args)


def calls(*deltas: CallDelta) -> list[tuple[str, str, str]]:
    slots = Slots(0, DECLARED, lambda quirk: None)
    for delta in deltas:
        slots.feed(delta)
    return [(call.call_id, call.name, call.text) for call in slots.finish()]


A = '{"a":1}'
B = '{"b":2}'

ROWS = {
    "an entry without id, name and arguments opens nothing": ([d(0)], []),
    "a known id, another index, complete, the same arguments: a repeat": (
        [d(0, "x", "get_tide", A), d(1, "x", "get_tide", A)],
        [("x", "get_tide", A)],
    ),
    "a known id, another index, complete, a name: a new call": (
        [d(0, "x", "get_tide", A), d(1, "x", "get_tide", B)],
        [("x", "get_tide", A), ("x", "get_tide", B)],
    ),
    "a known id, another index, not complete, the same name: that call": (
        [d(0, "x", "get_tide"), d(1, "x", "get_tide"), d(1, "x", None, A)],
        [("x", "get_tide", A)],
    ),
    "a known id, another index, another declared tool: a new call": (
        [d(0, "x", "get_tide", "{"), d(1, "x", "set_lamp", B)],
        [("x", "get_tide", "{"), ("x", "set_lamp", B)],
    ),
    "an id that two calls share, and an index: the call of that index": (
        [d(0, "x", "get_tide", A), d(1, "x", "set_lamp", ""), d(1, "x", "set_lamp", "{"), d(1, "x", None, "}")],
        [("x", "get_tide", A), ("x", "set_lamp", "{}")],
    ),
    "an id that two calls share, in turn": (
        [d(0, "x", "get_tide", '{"a"'), d(1, "x", "set_lamp", '{"b"'), d(0, "x", None, ":1}"), d(1, "x", None, ":2}")],
        [("x", "get_tide", A), ("x", "set_lamp", B)],
    ),
    "an id that two calls share, no index: the call in progress": (
        [d(None, "x", "get_tide", A), d(None, "x", "set_lamp", ""), d(None, "x", "set_lamp", B)],
        [("x", "get_tide", A), ("x", "set_lamp", B)],
    ),
    "an id that two calls share, the whole call again and again: a repeat": (
        [d(5, "x", "get_tide", A), d(0, "x", "get_tide", A), d(0, "x", "get_tide", A), d(0, "x", "get_tide", A)],
        [("x", "get_tide", A)],
    ),
    "an id that two calls share, the other tool's call again: a repeat": (
        [d(0, "x", "get_tide", '{"a"'), d(1, "x", "set_lamp", B), d(1, "x", "set_lamp", B), d(0, "x", None, ":1}")],
        [("x", "get_tide", A), ("x", "set_lamp", B)],
    ),
    "an id that two calls share, the name on an empty last fragment: the call of that index": (
        [d(0, "x", "get_tide", A), d(1, "x", "set_lamp", B), d(1, "x", "set_lamp", ""), d(0, "x", "get_tide", "")],
        [("x", "get_tide", A), ("x", "set_lamp", B)],
    ),
    "no index, the name again with the first arguments: the call in progress": (
        [d(None, None, "get_tide"), d(None, None, "get_tide", '{"a"'), d(None, None, "get_tide", ":1}")],
        [("", "get_tide", A)],
    ),
    "no index, the name again with the first arguments and a late id: the call in progress": (
        [d(None, None, "get_tide", ""), d(None, "x", "get_tide", A)],
        [("x", "get_tide", A)],
    ),
    "no index, the name again behind the arguments: nothing": (
        [d(None, "x", "get_tide", A), d(None, None, "get_tide", "")],
        [("x", "get_tide", A)],
    ),
    "no index, the name again behind the arguments, then others: a new call": (
        [d(None, "x", "get_tide", A), d(None, None, "get_tide", ""), d(None, None, None, B)],
        [("x", "get_tide", A), ("", "get_tide", B)],
    ),
    "no index, calls without arguments: each a call": (
        [d(None, None, "get_tide", ""), d(None, None, "get_tide", "")],
        [("", "get_tide", ""), ("", "get_tide", "")],
    ),
    "a known id, another index, an undeclared name: a new call": (
        [d(0, "x", "get_tide", ""), d(1, "x", "bogus", A)],
        [("x", "get_tide", ""), ("x", "bogus", A)],
    ),
    "a known id, another index, a longer declared name: a new call": (
        [d(0, "x", "get", ""), d(1, "x", "get_tide", A)],
        [("x", "get", ""), ("x", "get_tide", A)],
    ),
    "a known id, another index, names in pieces": (
        [d(0, "x", "get_"), d(0, "x", "tide"), d(1, "x", "set_", B), d(1, "x", "lamp")],
        [("x", "get_tide", ""), ("x", "set_lamp", B)],
    ),
    "no index, the same call twice, its name on a delta of its own": (
        [d(None, None, "get_tide", ""), d(None, None, None, A)] * 2,
        [("", "get_tide", A), ("", "get_tide", A)],
    ),
    "a known id without an index: that call": (
        [d(0, "x", "get_tide"), d(1, "y", "set_lamp"), d(None, "x", None, A), d(None, "y", None, B)],
        [("x", "get_tide", A), ("y", "set_lamp", B)],
    ),
    "a known index, another id and a name: a new call": (
        [d(0, "x", "get_tide", '{"a"'), d(0, "y", "get_tide", B)],
        [("x", "get_tide", '{"a"'), ("y", "get_tide", B)],
    ),
    "a known index, another id, no name: the same call, the first id stands": (
        [d(0, "x", "get_tide", '{"a"'), d(0, "y", None, ":1}")],
        [("x", "get_tide", A)],
    ),
    "a known index, complete, another name: a new call": (
        [d(0, None, "get_tide", A), d(0, None, "set_lamp", B)],
        [("", "get_tide", A), ("", "set_lamp", B)],
    ),
    "a known index, complete, the name with the same object: a repeat": (
        [d(0, None, "get_tide", A), d(0, None, "get_tide", A)],
        [("", "get_tide", A)],
    ),
    "a known index, complete, the name with another object: a new call": (
        [d(0, None, "get_tide", A), d(0, None, "get_tide", B)],
        [("", "get_tide", A), ("", "get_tide", B)],
    ),
    "a known index, complete, the bare name: nothing yet": (
        [d(0, None, "get_tide", A), d(0, None, "get_tide")],
        [("", "get_tide", A)],
    ),
    "a known index, complete, the bare name, then a fragment: a new call": (
        [d(0, None, "get_tide", A), d(0, None, "get_tide"), d(0, None, None, B)],
        [("", "get_tide", A), ("", "get_tide", B)],
    ),
    "a known index, not complete, another declared tool: a new call": (
        [d(0, None, "get_tide"), d(0, None, "set_lamp", B)],
        [("", "get_tide", ""), ("", "set_lamp", B)],
    ),
    "a fragment for a complete owner while the call opened last is empty is the latter's": (
        [d(0, "x", "get_tide", A), d(1, "y", "set_lamp"), d(0, None, None, B)],
        [("x", "get_tide", A), ("y", "set_lamp", B)],
    ),
    "an unopened index without id and name: the call in progress": (
        [d(0, "x", "get_tide", '{"a"'), d(1, None, None, ":1}")],
        [("x", "get_tide", A)],
    ),
    "an unopened index with an id opens a call": (
        [d(0, "x", None), d(0, None, "get_tide"), d(0, None, None, A)],
        [("x", "get_tide", A)],
    ),
    "no index, a name: a new call": (
        [d(None, None, "get_tide", A), d(None, None, "set_lamp", B)],
        [("", "get_tide", A), ("", "set_lamp", B)],
    ),
    "no index, no id, no name: the call in progress": (
        [d(None, None, "get_tide"), d(None, None, None, '{"a"'), d(None, None, None, ":1}")],
        [("", "get_tide", A)],
    ),
    "no index, the name repeated inside the arguments: the call in progress": (
        [d(None, None, "get_tide", '{"a"'), d(None, None, "get_tide", ":1}")],
        [("", "get_tide", A)],
    ),
    "no index, an unknown id behind a complete call: a new call": (
        [d(None, "x", "get_tide", A), d(None, "y"), d(None, None, "set_lamp")],
        [("x", "get_tide", A), ("y", "", ""), ("", "set_lamp", "")],
    ),
    "a call is not closed because another one started": (
        [d(0, "x", "get_tide", '{"a"'), d(1, "y", "set_lamp", B), d(0, None, None, ":1}")],
        [("x", "get_tide", A), ("y", "set_lamp", B)],
    ),
    "a call is not closed because its text parses": (
        [d(0, "x", "get_tide", "1"), d(0, None, None, "2")],
        [("x", "get_tide", "12")],
    ),
    "pieces of a name are joined while they begin a declared name": (
        [d(0, "x", "get"), d(0, None, "_tide"), d(0, None, None, A)],
        [("x", "get_tide", A)],
    ),
    "arguments may come before the name": (
        [d(0, "x", None, '{"a"'), d(0, None, "get_tide", ":1}")],
        [("x", "get_tide", A)],
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_table_of_slots(row: str) -> None:
    deltas, expected = ROWS[row]
    assert calls(*deltas) == expected


def test_marked_calls_are_each_their_own_but_for_the_same_one_again() -> None:
    def marked(key: int, call_id: str | None, args: str) -> CallDelta:
        return CallDelta(0, key=key, call_id=call_id, name="get", arguments=args)

    assert len(calls(marked(0, "x", A), marked(1, "x", A))) == 1
    assert len(calls(marked(0, "x", A), marked(1, "x", B))) == 2
    assert len(calls(marked(0, None, A), marked(1, None, A))) == 2


@pytest.mark.parametrize("ids", ["own", "shared", "none"])
@pytest.mark.parametrize("indexes", ["own", "gaps", "zero", "none"])
def test_calls_come_out_as_they_were_meant_however_their_deltas_name_them(ids: str, indexes: str) -> None:
    """Calls in fragments, with id and name on the first delta alone or on all, with or without empty first and last
    ones, one behind the other or, where indexes tell them apart, in turns."""
    draw = Random(f"{ids} {indexes}")
    for _ in range(1_500):
        names = draw.sample(("get_tide", "set_lamp", "get_time"), draw.randint(1, 3))
        if ids != "shared":  # two calls of one tool and one id are one call that comes again
            names += draw.choices(names, k=draw.randint(0, 2))
        meant = [(name, json.dumps({f"k{n}": draw.choice([n, {"a": {}}, "x{y}"])})) for n, name in enumerate(names)]
        id_always, name_always, head, tail = (draw.random() < 0.5 for _ in range(4))
        streams = []
        for n, (name, text) in enumerate(meant):
            index = {"own": n, "gaps": 2 * n + 1, "zero": 0, "none": None}[indexes]
            call_id = {"own": f"c{n}", "shared": "s", "none": None}[ids]
            edges = sorted({0, len(text), *(draw.randrange(len(text)) for _ in range(draw.randint(0, 3)))})
            parts: list[str | None] = [text[a:b] for a, b in pairwise(edges)]
            parts = [*([draw.choice(["", None])] if head else []), *parts, *([draw.choice(["", None])] if tail else [])]
            rest = [d(index, call_id if id_always else None, name if name_always else None, part) for part in parts[1:]]
            streams.append([d(index, call_id, name, parts[0]), *rest])
        if indexes in ("own", "gaps") and draw.random() < 0.5:
            deltas = [stream.pop(0) for stream in streams]
            while left := [stream for stream in streams if stream]:
                deltas.append(draw.choice(left).pop(0))
        else:
            deltas = [delta for stream in streams for delta in stream]
        assert [(name, text) for _, name, text in calls(*deltas)] == meant, deltas


def test_a_name_on_every_delta_stays_linear() -> None:
    slots = Slots(0, DECLARED, lambda quirk: None)
    slots.feed(d(0, "x", "get_tide", '{"a":"'))
    for _ in range(100_000):
        slots.feed(d(0, None, "get_tide", "}"))  # each asks whether the call is complete
    assert slots.calls[0].size == 100_006


def test_400_000_fragments_of_one_character_are_put_together_in_linear_time() -> None:
    slots = Slots(0, DECLARED, lambda quirk: None)
    slots.feed(d(0, "x", "get_tide", '{"a":"'))
    since = time.process_time()
    for _ in range(400_000):
        slots.feed(d(0, None, None, "x"))
    slots.feed(d(0, None, None, '"}'))
    (call,) = slots.finish()
    assert len(call.text) == 400_008
    assert time.process_time() - since < 4 * 1.0


@pytest.mark.parametrize(
    ("given", "name", "quirks"),
    [
        ("get_tide", "get_tide", []),
        ("get_tide\n", "get_tide", [Quirk.NAME_TRIMMED]),
        ("get_tide<|channel|>commentary", "get_tide", [Quirk.NAME_TRIMMED]),
        ("functions.get_tide", "get_tide", [Quirk.NAME_PREFIXED]),
        ("default_api:get_tide", "get_tide", [Quirk.NAME_PREFIXED]),
        ("functions.rm", "functions.rm", []),
        ("Get_Tide", "Get_Tide", []),
        ("__proto__", "__proto__", []),
        ("constructor", "constructor", []),
        ("prototype", "prototype", []),
        ("rm\n", "rm\n", []),
        ("get_tide\nrm", "get_tide\nrm", []),
        ("get_tide\x00", "get_tide\x00", []),
    ],
)
def test_names_match_exactly_or_not_at_all(given: str, name: str, quirks: list[Quirk]) -> None:
    assert declared_name(given, DECLARED) == (name, quirks)


def test_ids_are_kept_byte_for_byte_and_replaced_only_when_missing_or_taken() -> None:
    taken = {"old"}
    kept = HeldCall(0, 0, call_id="functions.get_tide:0")
    assert give_id(kept, "seed", taken) == "functions.get_tide:0"
    again = HeldCall(0, 1, call_id="functions.get_tide:0")
    assert give_id(again, "seed", taken) == made_id("seed", 0, 1, ())
    assert again.quirks == [Quirk.ID_DUPLICATE]
    from_history = HeldCall(0, 2, call_id="old")
    assert give_id(from_history, "seed", taken) not in ("old", "")
    missing = HeldCall(0, 3)
    made = give_id(missing, "seed", taken)
    assert len(made) == 9
    assert made.isalnum()
    assert missing.quirks == [Quirk.ID_MISSING]
