"""Changes to inputs that get past the JSON: events and their values are moved, dropped, spliced and bent.

Everything is decided by one `Random`, so that a change is told by its seed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fuzz import inputs
from fuzz.inputs import CHOICES, TURN, Input, split_events

Bytes = Callable[[bytes, int], bytes]  # plain byte mutation: data, most bytes -> data

TOKENS = (
    b"\n\n", b"\r", b"\r\n", b"\n", b" ", b"data: ", b"data:", b"data: [DONE]\n\n", b"[DONE]", b"event: error\n",
    b"event: ", b": x\n", b": x\n\n", b"id: 1\n", b"retry: 1\n", b"error: {}\n\n", b"null", b"{", b"}", b"[", b"]",
    b",", b'"', b"\\", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xed\xa0\xbd", b"\\ud83d", b"\\udc00",
    b"\\u0000", b"\x00", b"<html>", b'{"error":{"message":"x"}}', b"data: null\n\n", b"data: {}\n\n", b"NaN",
    b"1e999", b"-0", b"123456789012345678901234567890",
)  # fmt: skip
DEEP = "deep\x00{}"  # stands for that many lists in lists
DOUBLED = "\x00twice"  # ends a key that is the one before it again
ODD: tuple[Any, ...] = (
    None, "", [], {}, 0, 1, 2, -1, True, False, 1.5, "0", "1", "x", "null", 10**25, 2**63, -(2**63), ["y"], [None],
    {"z": 1}, [{}], [[]], "\ud83d", "\ude00", "\u2028", "\x00", "\n", "  ", "{}", "[]", '{"a":1}', "{", "NaN", "</s>",
    "<|im_end|>", "<tool_call>", "</tool_call>", "```", '"', "\\", "[DONE]", "\ufffd", float("nan"), float("inf"), -0.0,
    1e308, *(DEEP.format(levels) for levels in (20, 70, 200, 300, 1_000, 3_000)), "a" * 300,
)  # fmt: skip


class Pool:
    """What mutations draw from: seeds of the dialect, and what stands in them under which key."""

    def __init__(self, seeds: Sequence[Input], strings: Sequence[str] = ()) -> None:
        self.seeds = list(seeds)
        self.requests = [seed.request for seed in seeds]
        self.events = [event for seed in seeds for event in split_events(seed.body)]
        self.values: dict[str, list[Any]] = {}
        seen: set[str] = set()
        for event in self.events:
            document = parse(event)
            if document is not None:
                self._collect(document[1], seen)
        self.keys = sorted(self.values)
        self.strings = [*strings, *(one for values in self.values.values() for one in values if isinstance(one, str))]

    def _collect(self, value: Any, seen: set[str]) -> None:
        todo = [value]
        while todo:
            one = todo.pop()
            if isinstance(one, list):
                todo += one
            elif isinstance(one, dict):
                for key, inner in one.items():
                    mark = f"{key}={json.dumps(inner)}"
                    if mark not in seen and len(mark) < 2_000:
                        seen.add(mark)
                        self.values.setdefault(key, []).append(inner)
                    todo.append(inner)


def parse(event: bytes) -> tuple[bytes, Any, bytes] | None:
    """What stands before the JSON document of an event, the document, and what follows it."""
    begin = min((at for at in (event.find(b"{"), event.find(b"[")) if at >= 0), default=-1)
    if begin < 0:
        return None
    try:
        text = event[begin:].decode("utf-8", "surrogatepass")
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return event[:begin], value, text[end:].encode("utf-8", "surrogatepass")


_DEEP_TEXT = re.compile(r'"deep\\u0000(\d+)"')


def dump(value: Any, draw: Random) -> bytes:
    separators = draw.choice(((", ", ": "), (",", ":")))
    try:
        text = json.dumps(value, ensure_ascii=draw.random() < 0.3, separators=separators)
        text = _DEEP_TEXT.sub(lambda mark: "[" * int(mark[1]) + "]" * int(mark[1]), text)
        return text.replace("\\u0000twice", "").encode("utf-8", "surrogatepass")
    except RecursionError:
        return b"null"


def mutate(data: bytes, pool: Pool, draw: Random, plain: Bytes, max_size: int) -> bytes:
    """Another input, a few changes away."""
    value = inputs.read(data)
    if value is None or not data:
        value = inputs.read(inputs.write(draw.choice(pool.seeds)))
        assert value is not None
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5))):
        draw.choices(_CHANGES, _WEIGHTS)[0](value, pool, draw, plain)
    out = inputs.write(value)
    if len(out) > max_size:
        value.body = value.body[: max(0, max_size - (len(out) - len(value.body)))]
        out = inputs.write(value)
    return out if len(out) <= max_size else data[:max_size]


def cross(one: bytes, other: bytes, draw: Random) -> bytes:
    """The first events of one input, then the last of another."""
    a, b = inputs.read(one), inputs.read(other)
    if a is None or b is None:
        return one
    first, last = split_events(a.body), split_events(b.body)
    a.body = b"".join(first[: draw.randint(0, len(first))] + last[draw.randint(0, len(last)) :])
    return inputs.write(a)


# --- changes -------------------------------------------------------------------------------------------------------


def _head(value: Input, pool: Pool, draw: Random, plain: Bytes) -> None:
    name = draw.choice(("client", "stream", "mode", "delivery", "recover", "reask", "annotations", "small", *CHOICES))
    choices = CHOICES[name]
    # the first choice is the common one, and keeps the rest of the input worth something
    setattr(value, name, choices[0] if draw.random() < 0.3 else draw.choice(choices))
    value.seed = draw.randint(0, 999)


def _repeat(value: Input, pool: Pool, draw: Random, plain: Bytes) -> None:
    value.small = True
    value.repeat = (draw.randint(0, 20), draw.choice((0, 1, 3, 20, 100, 300)))


def _request(value: Input, pool: Pool, draw: Random, plain: Bytes) -> None:
    request = dict(value.request or {})
    match draw.randint(0, 6):
        case 0 | 1:
            request = draw.choice(pool.requests)
        case 2:
            names = [tool["function"]["name"] for tool in request.get("tools", ()) if "function" in tool]
            forced = {"type": "function", "function": {"name": draw.choice(names)}} if names else "auto"
            request["tool_choice"] = draw.choice(("auto", "none", "required", forced))
        case 3:
            request["n"] = draw.choice((1, 2, 3))
        case 4:
            request["parallel_tool_calls"] = draw.choice((True, False))
        case 5:
            request["stream_options"] = {"include_usage": draw.choice((True, False))}
        case 6:
            request.pop(draw.choice(sorted(request) or ["tools"]), None)
    value.request = request


def _events(value: Input, pool: Pool, draw: Random, plain: Bytes) -> None:
    """Whole events: dropped, doubled, moved, brought in from another reply."""
    events = split_events(value.body)
    at = draw.randint(0, len(events))
    match draw.randint(0, 8):
        case 0:
            del events[at : at + 1]
        case 1:
            events[at:at] = events[at : at + draw.choice((1, 1, 2))]
        case 2 if events:
            events.insert(at, events.pop(draw.randrange(len(events))))
        case 3:
            events.insert(at, draw.choice(pool.events))
        case 4:
            other = split_events(draw.choice(pool.seeds).body)
            begin = draw.randint(0, len(other))
            events[at:at] = other[begin : begin + draw.randint(1, 4)]
        case 5:
            events = events[: max(at, 1)]
        case 6:
            other = split_events(draw.choice(pool.seeds).body)
            events = events[:at] + other[draw.randint(0, len(other)) :]
        case 7:
            events.insert(at, draw.choice(TOKENS))
        case 8:
            events[at:at] = [TURN, *split_events(draw.choice(pool.seeds).body)]
            value.reask = draw.choice((1, 2))
    value.body = b"".join(events)


def _json(value: Input, pool: Pool, draw: Random, plain: Bytes) -> None:
    """One value or key in the document of one event."""
    events = split_events(value.body)
    found = [(number, document) for number, event in enumerate(events) if (document := parse(event)) is not None]
    if not found:
        _bytes(value, pool, draw, plain)
        return
    number, (before, document, after) = draw.choice(found)
    changed = [bend(document, pool, draw)]
    if draw.random() < 0.15:
        parts = _halves(changed[0], draw)
        changed = parts if parts is not None else changed
    events[number : number + 1] = [before + dump(one, draw) + after for one in changed]
    value.body = b"".join(events)


def _bytes(value: Input, pool: Pool, draw: Random, plain: Bytes) -> None:
    """Bytes without regard to what they mean."""
    body = value.body
    at = draw.randint(0, len(body))
    match draw.randint(0, 6):
        case 0:
            body = body[:at] + draw.choice(TOKENS) + body[at:]
        case 1:
            body = body[:at] + body[at + draw.choice((1, 1, 2, 8, 40)) :]
        case 2:
            body = body[:at]
        case 3:
            body = body[: at + draw.randint(1, 60)] + body[at:]
        case 4 if at < len(body):
            body = body[:at] + bytes([body[at] ^ (1 << draw.randint(0, 7))]) + body[at + 1 :]
        case 5:
            events = split_events(body)
            if events:
                number = draw.randrange(len(events))
                events[number] = plain(events[number], len(events[number]) + 64)
                body = b"".join(events)
        case _:
            body = plain(body, len(body) + 64)
    value.body = body


def _framing(value: Input, pool: Pool, draw: Random, plain: Bytes) -> None:
    """The same documents in another framing, or with the line ends and labels of another backend."""
    events = split_events(value.body)
    documents = [found[1] for event in events if (found := parse(event)) is not None]
    match draw.randint(0, 7):
        case 0:
            value.body = value.body.replace(b"\n", draw.choice((b"\r", b"\r\n")))
        case 1:
            value.body = value.body.replace(b"data: ", b"data:")
        case 2:
            value.body = b"".join(dump(one, draw) + b"\n" for one in documents)
            value.type = "application/x-ndjson"
        case 3:
            value.body = b"".join(b"data: " + dump(one, draw) + b"\n\n" for one in documents)
            value.type = "text/event-stream"
        case 4:
            value.body = b"[" + b",\n".join(dump(one, draw) for one in documents) + b"]"
            value.type = "application/json"
        case 5 if documents:
            value.body = dump(documents[0] if len(documents) == 1 else draw.choice(documents), draw)
            value.type = "application/json"
        case 6:
            value.body = b"".join(event + draw.choice((b"", b"", b": x\n\n")) for event in events)
        case _:
            value.body = b"\xef\xbb\xbf" + value.body if draw.random() < 0.5 else value.body + b"data: [DONE]\n\n"


_CHANGES = (_head, _repeat, _request, _events, _json, _bytes, _framing)
_WEIGHTS = (12, 2, 6, 22, 40, 14, 4)


# --- documents -----------------------------------------------------------------------------------------------------


def places(document: Any) -> list[tuple[Any, Any]]:
    """(holder, key or index) of every value inside a document."""
    out: list[tuple[Any, Any]] = []
    todo = [document]
    while todo:
        one = todo.pop()
        inner = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, value in inner:
            out.append((one, key))
            if isinstance(value, dict | list):
                todo.append(value)
    return out


def bend(document: Any, pool: Pool, draw: Random) -> Any:
    """The document with one thing changed (in place)."""
    where = places(document)
    if not where:
        return draw.choice((*ODD, document))
    holder, key = draw.choice(where)
    # deep places are many: half of the time a shallow one is meant
    if draw.random() < 0.3:
        holder, key = draw.choice(where[: max(6, len(where) // 3)])
    old = holder[key]
    known = pool.values.get(key, ()) if isinstance(key, str) else ()
    match draw.randint(0, 13):
        case 0 | 1:
            holder[key] = draw.choice(ODD)
        case 2 | 3 | 4 if known:
            holder[key] = _copy(draw.choice(known))
        case 5 if isinstance(holder, dict):
            del holder[key]
        case 5 if isinstance(holder, list):
            holder.pop(key)
        case 6 if isinstance(holder, dict) and pool.keys:
            new = draw.choice(pool.keys)
            holder[new] = _copy(draw.choice(pool.values[new]))
        case 7 if isinstance(holder, dict) and pool.keys:
            holder[draw.choice(pool.keys)] = holder.pop(key)
        case 8 if isinstance(holder, dict):
            holder[f"{key}{DOUBLED}"] = _copy(draw.choice((old, *(known or (None,)), *ODD[:6])))
        case 9:
            holder[key] = draw.choice(([old], {"x": old}, [old, _copy(old)], json.dumps(old)))
        case 10:
            other, place = draw.choice(where)
            holder[key], other[place] = _copy(other[place]), _copy(old)
        case 11 if isinstance(holder, list):
            holder.insert(draw.randint(0, len(holder)), _copy(old))
        case 12 if pool.strings:
            holder[key] = draw.choice(pool.strings)
        case _:
            holder[key] = _string(old, pool, draw) if isinstance(old, str) else draw.choice(ODD)
    return document


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value)) if isinstance(value, dict | list) else value


def _string(text: str, pool: Pool, draw: Random) -> str:
    at = draw.randint(0, len(text))
    piece = str(
        draw.choice([one for one in ODD if isinstance(one, str)] if draw.random() < 0.5 else pool.strings or [""])
    )
    match draw.randint(0, 5):
        case 0:
            return text[:at]
        case 1:
            return text[at:]
        case 2:
            return text[:at] + text[at + 1 :]
        case 3:
            return text + text
        case 4 if len(text) > 1:
            other = draw.randint(0, len(text))
            return text[:at] + piece[:other] + text[at:]
        case _:
            return text[:at] + piece + text[at:]


def _halves(document: Any, draw: Random) -> list[Any] | None:
    """Two documents, of which each has one half of a string: what a backend does with tokens."""
    strings = [
        (number, holder[key]) for number, (holder, key) in enumerate(places(document)) if isinstance(holder[key], str)
    ]
    if not strings:
        return None
    number, text = draw.choice(strings)
    at = draw.randint(0, len(text))
    out = []
    for part in (text[:at], text[at:]):
        copy = _copy(document)
        holder, key = places(copy)[number]
        holder[key] = part
        out.append(copy)
    return out
