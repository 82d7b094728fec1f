"""What a backend is asked: one chat request an item, and what a good answer looks like."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.dialects.openai_chat import request as openai_request
from proxy.faults import Fault
from proxy.model.requests import Request, ToolChoice

MAX_FILE_BYTES = 256 << 20
MAX_ITEMS = 10_000
# These belong to each asking, not to the item: whom it is put to, and in which form.
_OF_THE_ASKING = ("model", "stream", "stream_options")

FORMS = ("streamed", "plain")


@dataclass(frozen=True, slots=True)
class Expect:
    """How many calls are right (`most` None: any number from `least`) and of which tools (`names` None: any declared
    one). What is asked for, not what a backend can be blamed for: see `scores`."""

    least: int = 0
    most: int | None = None
    names: frozenset[str] | None = None

    def takes(self, count: int) -> bool:
        return count >= self.least and (self.most is None or count <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"at least {self.least}"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Item:
    """`request` is an OpenAI chat request without model and stream. `expect` None: any number of calls is right."""

    id: str
    title: str
    request: Mapping[str, Any]
    expect: Expect | None = None

    @property
    def digest(self) -> str:
        """The same for the same request, whatever the item is called."""
        text = json.dumps(self.request, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def asked(self, model: str, *, streamed: bool) -> Request:
        """The request that is put to `model`. Raises Fault."""
        body = {**self.request, "model": model, "stream": streamed}
        return openai_request.read(json.dumps(body).encode())


def read_items(path: Path) -> list[Item]:
    """The requests of a JSON Lines file. Raises ValueError with one line: what is wrong in which line.

    A line is a chat request, or `{"id", "title", "request", "expect": {"calls": 2 or [1, 3], "names": [...]}}` with
    everything but `request` left out where it is not known. Its model and stream do not count.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {(error.strerror or '').lower()}; check the path") from None
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{path}: is over {MAX_FILE_BYTES} bytes; split it")
    items: list[Item] = []
    seen: set[str] = set()
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            item = _item(line, number)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        if item.id in seen:
            raise ValueError(f"{path}, line {number}: a second item is called {item.id!r}; give each its own id")
        seen.add(item.id)
        items.append(item)
    if not items:
        raise ValueError(f"{path}: is empty; one chat request a line is expected")
    if len(items) > MAX_ITEMS:
        raise ValueError(f"{path}: has {len(items)} requests; split it, {MAX_ITEMS} are the most")
    return items


def _item(line: bytes, number: int) -> Item:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON; one chat request a line is expected") from None
    if not isinstance(document, dict):
        raise ValueError("is no JSON object; a chat request is expected")
    wrapped = "messages" not in document
    body = document.get("request") if wrapped else document
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise ValueError('has no "messages", nor a "request" that has some; a chat request is expected')
    kept = {key: value for key, value in body.items() if key not in _OF_THE_ASKING}
    kept["messages"] = [_message(message) for message in kept["messages"]]
    name = document.get("id") if wrapped else None
    item_id = str(name) if isinstance(name, str | int) and name != "" else f"line-{number}"
    title = document.get("title") if wrapped else None
    item = Item(item_id[:200], title[:200] if isinstance(title, str) else "", kept)
    try:
        request = item.asked("m", streamed=False)
    except Fault as fault:
        raise ValueError(f"cannot be asked: {fault.detail}") from None
    expect = _expect(document["expect"]) if wrapped and "expect" in document else implied(request.tool_choice)
    return Item(item.id, item.title, item.request, expect)


def _message(message: Any) -> Any:
    """Moonshot's sets for verifying vendors have system messages of the role `_input`."""
    is_input = isinstance(message, dict) and message.get("role") == "_input"
    return {**message, "role": "system"} if is_input else message


def implied(choice: ToolChoice) -> Expect | None:
    """What `tool_choice` alone says about the number of calls and their names."""
    if choice.mode == "none":
        return Expect(0, 0)
    if choice.mode in ("required", "forced"):
        return Expect(1, None, choice.names)
    return Expect(0, None, choice.names) if choice.names is not None else None


def _expect(value: Any) -> Expect:
    """Raises ValueError."""
    wrong = 'expect: {"calls": 2 or [1, 3], "names": ["tool"]} is expected'
    if not isinstance(value, dict) or not value.keys() <= {"calls", "names"}:
        raise ValueError(wrong)
    calls, names = value.get("calls", [0, None]), value.get("names")
    least, most = (calls, calls) if type(calls) is int else _pair(calls, wrong)
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(wrong)
    return Expect(least, most, None if names is None else frozenset(names))


def _pair(value: Any, wrong: str) -> tuple[int, int | None]:
    if isinstance(value, list) and len(value) == 2:
        least, most = value
        if type(least) is int and least >= 0 and (most is None or (type(most) is int and most >= least)):
            return least, most
    raise ValueError(wrong)


def chosen(items: Sequence[Item], only: Sequence[str]) -> list[Item]:
    """Those of the items that are named; all where none is. Raises ValueError for a name that there is not."""
    known = {item.id: item for item in items}
    for name in only:
        if name not in known:
            raise ValueError(f"--item: there is no item {name!r}; there are {', '.join(list(known)[:40])}")
    return [item for item in items if not only or item.id in only]
