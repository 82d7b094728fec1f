"""Shows one input: who asked, what the upstream sent, what the client got, and what is wrong with that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzz import inputs, mutate, response
from fuzz.findings import signature, trace
from fuzz.targets import TARGETS
from proxy.dialects import UPSTREAM_DIALECTS


def finding(check: Callable[[bytes], None], data: bytes) -> str | None:
    try:
        check(data)
    except Exception as error:  # noqa: BLE001  # whatever comes out is the finding
        return signature(error)
    return None


def made_smaller(data: bytes, check: Callable[[bytes], None]) -> bytes:
    """An input with the same finding from which nothing more can be taken."""
    wanted = finding(check, data)
    again = True
    while again:
        again = False
        for candidate in _candidates(data):
            if len(candidate) < len(data) and finding(check, candidate) == wanted:
                data, again = candidate, True
                break
    return data


def _candidates(data: bytes) -> Iterator[bytes]:
    value = inputs.read(data)
    if value is None:
        yield from _shorter(data)
        return
    head, body = data[: len(data) - len(value.body)], value.body
    line = json.loads(head)
    for key in line:
        yield json.dumps({name: one for name, one in line.items() if name != key}).encode() + b"\n" + body
    if isinstance(line.get("request"), dict):
        for key in line["request"]:
            kept = {name: one for name, one in line["request"].items() if name != key}
            yield json.dumps({**line, "request": kept}).encode() + b"\n" + body
    events = inputs.split_events(body)
    for number in range(len(events)):
        yield head + b"".join(events[:number] + events[number + 1 :])
    for number, event in enumerate(events):
        found = mutate.parse(event)
        if found is not None:
            for simpler in _simpler(found[1]):
                text = json.dumps(simpler, ensure_ascii=False).encode("utf-8", "surrogatepass")
                yield head + b"".join([*events[:number], found[0] + text + found[2], *events[number + 1 :]])
    for shorter in _shorter(body):
        yield head + shorter


def _simpler(document: object) -> Iterator[object]:
    source = json.dumps(document)
    for number in range(len(mutate.places(document))):
        copy = json.loads(source)
        holder, key = mutate.places(copy)[number]
        old = holder.pop(key)
        yield copy
        if isinstance(old, str) and len(old) > 1 and isinstance(holder, dict):
            for part in (old[: len(old) // 2], old[len(old) // 2 :]):
                yield {**copy, key: part} if holder is copy else _put(source, number, part)


def _put(source: str, number: int, value: object) -> object:
    copy = json.loads(source)
    holder, key = mutate.places(copy)[number]
    holder[key] = value
    return copy


def _shorter(data: bytes) -> Iterator[bytes]:
    size = len(data) // 2
    while size:
        for at in range(0, len(data), size):
            yield data[:at] + data[at + size :]
        size //= 2


def show(target: str, file: Path, *, smaller: bool) -> int:
    """Prints all about the input in `file`; made smaller, it is also written beside it. 1: something is wrong."""
    data, check = file.read_bytes(), TARGETS[target].check
    if smaller:
        data = made_smaller(data, check)
        file.with_suffix(".small").write_bytes(data)
    if inputs.read(data) is not None and target in UPSTREAM_DIALECTS:
        _show(data, target)
    else:
        print(data)
    try:
        check(data)
    except Exception as error:  # noqa: BLE001  # whatever comes out is shown
        print(trace(error))
        return 1
    print("nothing is wrong with it")
    return 0


def _show(data: bytes, dialect: str) -> None:
    value = inputs.read(data)
    assert value is not None
    print(data[: len(data) - len(value.body)].decode())
    request = inputs.request_of(value)
    turns = value.bodies()
    for piece in (piece for turn in turns for piece in turn):
        print("  ", piece[:600])
    if request is None:
        return
    for name, pieces in (("event by event", turns), (value.cut, [value.other_cut(turn) for turn in turns])):
        try:
            played = response.Shell(request, value, dialect).play(pieces)
        except Exception as error:  # noqa: BLE001  # whatever comes out is shown
            print(f"--- {name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        print(f"--- {name}: status {played.answer.status}, {played.answer.record}")
        print(bytes(played.answer.body[:3_000]).decode("utf-8", "replace"))
