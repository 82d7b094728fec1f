"""The battery: requests whose right answer is beyond doubt for any model that calls tools at all.

Each tries one thing that some backend is known to damage. The requests are the same in every run and name no sampling
parameter, which some models refuse. `ANSWERS` has what a good model says to each: the embedded models say it, and
tests hold that it is right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.conformance.items import Expect, Item


@dataclass(frozen=True, slots=True)
class Answer:
    """`calls` are names and arguments."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def _tool(name: str, description: str, properties: Mapping[str, Any] | None = None, *optional: str) -> dict[str, Any]:
    """A declaration; every property is required but those that are named. Without properties: no parameters."""
    function: dict[str, Any] = {"name": name, "description": description}
    if properties is not None:
        function["parameters"] = _object(properties, *optional)
    return {"type": "function", "function": function}


def _object(properties: Mapping[str, Any], *optional: str) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    return {**schema, "required": required, "additionalProperties": False}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


WEATHER = _tool(
    "get_weather",
    "The weather in one city now.",
    {"city": _text("The city's name in English"), "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "unit",
)
TIME = _tool("get_time", "The time of day in one city now.", {"city": _text("The city's name in English")})
PING = _tool("ping", "Checks whether the service is up. Takes no arguments.")
ORDER = _tool(
    "create_order",
    "Creates an order.",
    {
        "customer": _object(
            {
                "name": _text("Full name"),
                "address": _object({"street": _text("With its number"), "city": _text("City"), "zip": _text("ZIP")}),
            }
        ),
        "lines": {
            "type": "array",
            "items": _object(
                {
                    "sku": _text("Article number"),
                    "quantity": {"type": "integer"},
                    "options": {"type": "array", "items": {"type": "string"}},
                }
            ),
        },
        "gift": {"type": "boolean"},
    },
)
NOTE = _tool("save_note", "Saves a note word for word.", {"title": _text("A title"), "text": _text("The whole text")})
FILE = _tool("write_file", "Writes a file.", {"path": _text("Its path"), "content": _text("All of its content")})
MODE = _tool(
    "set_mode",
    "Sets the heating's mode.",
    {"mode": {"type": "string", "enum": ["eco", "comfort", "boost", "away"]}, "room": _text("The room")},
)
MEASURE = _tool(
    "log_measurement",
    "Stores one measurement.",
    {
        "sensor": {"type": "integer", "description": "Number of the sensor"},
        "value": {"type": "number"},
        "valid": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
)
SEARCH = _tool("search_flights", "Finds flights.", {"origin": _text("IATA code"), "destination": _text("IATA code")})
BOOK = _tool("book_flight", "Books one flight.", {"flight": _text("Number of the flight"), "seat": _text("Seat")})

_NOTE_TEXT = 'She said: "C:\\temp\\new" costs 5 €.\nSecond line:\ttab, naïve, 東京, 🙂, </tag> & {"a": [1]}'
_FILE_TEXT = "".join(f"{number:03}: the quick brown fox jumps over the lazy dog\n" for number in range(1, 61))
_SUBJECTS = (
    "invoice",
    "customer",
    "ticket",
    "shipment",
    "contract",
    "employee",
    "meeting",
    "product",
    "warehouse",
    "report",
)
_VERBS = {"create": "Creates", "delete": "Deletes", "find": "Finds", "update": "Updates"}
MANY = [
    _tool(
        f"{verb}_{subject}", f"{meaning} one {subject}.", {"id": {"type": "integer"}, "reason": _text("Why")}, "reason"
    )
    for subject in _SUBJECTS
    for verb, meaning in _VERBS.items()
]

_USE_TOOLS = "Use the tools that you are given. Call them at once, without asking back."


def _asked(prompt: str, tools: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": _USE_TOOLS}, {"role": "user", "content": prompt}]
    return {"messages": messages, "tools": list(tools), **more}


def _called(number: int, name: str, arguments: Mapping[str, Any], result: str) -> list[dict[str, Any]]:
    """An assistant's turn with one call, and its result."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call{number:05}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]


def _one(*names: str) -> Expect:
    return Expect(1, 1, frozenset(names))


_PARIS = ("get_weather", {"city": "Paris"})
_TOKYO = ("get_weather", {"city": "Tokyo"})
_FLIGHTS = '[{"flight": "LH1026", "departs": "09:10"}, {"flight": "AF1219", "departs": "11:45"}]'

_BATTERY: tuple[tuple[Item, Answer], ...] = (
    (
        Item(
            "one-call",
            "One call",
            _asked("What is the weather in Paris?", [WEATHER, TIME]),
            _one("get_weather"),
        ),
        Answer(calls=(_PARIS,)),
    ),
    (
        Item(
            "parallel-same",
            "Two parallel calls of one tool",
            _asked("Compare the weather in Paris and in Tokyo. Call the tool for both cities at once.", [WEATHER]),
            Expect(2, 2, frozenset({"get_weather"})),
        ),
        Answer(calls=(_PARIS, _TOKYO)),
    ),
    (
        Item(
            "parallel-different",
            "Two parallel calls of two tools",
            _asked(
                "I need both the weather in Paris and the time in Tokyo. Call both tools at once, in one answer.",
                [WEATHER, TIME],
            ),
            Expect(2, 2, frozenset({"get_weather", "get_time"})),
        ),
        Answer(calls=(_PARIS, ("get_time", {"city": "Tokyo"}))),
    ),
    (
        Item("no-arguments", "A tool without parameters", _asked("Is the service up?", [PING]), _one("ping")),
        Answer(calls=(("ping", {}),)),
    ),
    (
        Item(
            "nested-schema",
            "Nested objects and lists",
            _asked(
                "Order for Ada Lovelace, 12 St James Square, London, SW1Y 4JH: 3 pieces of article A-17 (options red "
                "and large) and 1 piece of article B-2 (no options). It is a gift.",
                [ORDER],
            ),
            _one("create_order"),
        ),
        Answer(
            calls=(
                (
                    "create_order",
                    {
                        "customer": {
                            "name": "Ada Lovelace",
                            "address": {"street": "12 St James Square", "city": "London", "zip": "SW1Y 4JH"},
                        },
                        "lines": [
                            {"sku": "A-17", "quantity": 3, "options": ["red", "large"]},
                            {"sku": "B-2", "quantity": 1, "options": []},
                        ],
                        "gift": True,
                    },
                ),
            )
        ),
    ),
    (
        Item(
            "unicode-escapes",
            "Quotes, backslashes, line ends, other scripts",
            _asked(f"Save this note word for word, with the title Symbols:\n\n{_NOTE_TEXT}", [NOTE]),
            _one("save_note"),
        ),
        Answer(calls=(("save_note", {"title": "Symbols", "text": _NOTE_TEXT}),)),
    ),
    (
        Item(
            "long-arguments",
            "Arguments of some thousand characters",
            _asked(
                "Write the file fox.txt. It has sixty lines. Each is its number with three digits, a colon, a blank "
                'and then "the quick brown fox jumps over the lazy dog". Write out every line, leave none out.',
                [FILE],
            ),
            _one("write_file"),
        ),
        Answer(calls=(("write_file", {"path": "fox.txt", "content": _FILE_TEXT}),)),
    ),
    (
        Item(
            "enum",
            "A value out of a list",
            _asked("Nobody is at home: the heating in the kitchen should know that we are gone.", [MODE]),
            _one("set_mode"),
        ),
        Answer(calls=(("set_mode", {"mode": "away", "room": "kitchen"}),)),
    ),
    (
        Item(
            "typed-values",
            "Integers, numbers, booleans, lists",
            _asked("Store that sensor 42 measured -17.25, which is a valid value, tagged cold and night.", [MEASURE]),
            _one("log_measurement"),
        ),
        Answer(calls=(("log_measurement", {"sensor": 42, "value": -17.25, "valid": True, "tags": ["cold", "night"]}),)),
    ),
    (
        Item(
            "choice-required",
            'tool_choice "required"',
            _asked("I am going to Paris tomorrow.", [WEATHER, TIME], tool_choice="required"),
            Expect(1, None, frozenset({"get_weather", "get_time"})),
        ),
        Answer(calls=(_PARIS,)),
    ),
    (
        Item(
            "choice-named",
            "tool_choice names a tool",
            _asked(
                "I am going to Lisbon tomorrow.",
                [WEATHER, TIME],
                tool_choice={"type": "function", "function": {"name": "get_time"}},
            ),
            Expect(1, None, frozenset({"get_time"})),
        ),
        Answer(calls=(("get_time", {"city": "Lisbon"}),)),
    ),
    (
        Item(
            "choice-none",
            'tool_choice "none"',
            _asked("What is the weather in Paris? Answer without a tool.", [WEATHER], tool_choice="none"),
            Expect(0, 0),
        ),
        Answer("I cannot look that up now."),
    ),
    (
        Item(
            "no-call-needed",
            "A question that needs no tool",
            {"messages": [{"role": "user", "content": "Say hello in one word."}], "tools": [WEATHER]},
            Expect(0, 0),
        ),
        Answer("Hello!"),
    ),
    (
        Item(
            "parallel-off",
            "parallel_tool_calls false",
            _asked("Compare the weather in Paris and in Tokyo.", [WEATHER], parallel_tool_calls=False),
            _one("get_weather"),
        ),
        Answer(calls=(_PARIS,)),
    ),
    (
        Item(
            "after-result",
            "A result comes back, an answer in words is due",
            {
                "messages": [
                    {"role": "user", "content": "What is the weather in Paris? Look it up once, then tell me."},
                    *_called(1, "get_weather", {"city": "Paris"}, '{"sky": "clear", "celsius": 21}'),
                ],
                "tools": [WEATHER],
            },
            Expect(0, 0),
        ),
        Answer("The sky over Paris is clear, at 21 °C."),
    ),
    (
        Item(
            "next-call",
            "A result comes back, another call is due",
            {
                "messages": [
                    {"role": "system", "content": _USE_TOOLS},
                    {"role": "user", "content": "Book seat 12A on the earliest flight from MUC to CDG."},
                    *_called(2, "search_flights", {"origin": "MUC", "destination": "CDG"}, _FLIGHTS),
                ],
                "tools": [SEARCH, BOOK],
            },
            _one("book_flight"),
        ),
        Answer(calls=(("book_flight", {"flight": "LH1026", "seat": "12A"}),)),
    ),
    (
        Item(
            "text-and-call",
            "Text beside a call",
            _asked(
                "First say in one sentence what you are going to do, and in the same answer call the tool for the "
                "time in Tokyo.",
                [TIME],
            ),
            _one("get_time"),
        ),
        Answer("I am going to look up the time in Tokyo.", (("get_time", {"city": "Tokyo"}),)),
    ),
    (
        Item(
            "many-tools",
            f"One of {len(MANY)} tools",
            _asked("Delete shipment 4711.", MANY),
            _one("delete_shipment"),
        ),
        Answer(calls=(("delete_shipment", {"id": 4711}),)),
    ),
)

ITEMS: tuple[Item, ...] = tuple(item for item, _ in _BATTERY)
ANSWERS: dict[str, Answer] = {item.id: answer for item, answer in _BATTERY}
