"""One input of the response fuzzer: a line of JSON that says who asks and how the reply is delivered, then the body.

    {"client": "openai-chat", "mode": "block", ..., "request": {...}}\n<the upstream's body, as it came>

Readable, so that a finding is reproduced and turned into a case by looking at it. Whatever the line says, it is read
as something: an unknown or odd value is the first of its choices.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from typing import Any

from casefile import Case
from dialect_clients import CLIENTS
from proxy.dialects.markup import AUTO, FORMATS
from proxy.exchange import ExchangeSettings
from proxy.faults import Fault
from proxy.model.requests import Request
from upstream_writers import Finish, Made, Pen, Said, Text, Thought, Tokens, Writer

CHOICES: dict[str, tuple[Any, ...]] = {
    "client": ("openai-chat", "openai-responses", "anthropic-messages"),
    "stream": (True, False),
    "mode": ("block", "annotate", "drop"),
    "delivery": ("held", "live"),
    "repair": (True, False),
    "recover": ("auto", "off", "all"),
    "reask": (0, 1, 2),
    "annotations": ("always", "problems", "never"),
    "small": (False, True),
    "status": (200, 201, 302, 400, 401, 404, 429, 500, 503, 529),
    "type": ("text/event-stream", "application/json", "application/x-ndjson", "text/html", ""),
    "encoding": ("", "identity", "gzip", "deflate", "gzip, as said", "br", "zstd"),
    "end": ("eof", "reset"),
    "cut": ("random", "whole", "byte"),
    "pauses": (False, True),
    "interrupt": ("", "gone", "abandon", "timeout"),
}
_EVENT = re.compile(rb".+?(?:(?:\n\n|\r\n\r\n|\r\r)[\r\n]*|\Z)", re.DOTALL)
TURN = b"\n\x00turn\x00\n"  # between the bodies of the turns in which the model is asked again
SMALL: dict[str, Any] = {
    "max_event_bytes": 2_048,
    "max_arguments_bytes": 1_024,
    "max_held_bytes": 4_096,
    "max_calls": 4,
    "max_events": 3_000,
    "max_reply_bytes": 300_000,
    "report_bytes": 256,
}


@dataclass(slots=True)
class Input:
    """`small`: limits that a small body reaches. `encoding`: `gzip, as said` is a header with a body that is none.

    `cut` names the second way the bytes are cut (the first is event by event), `seed` decides a random one. `pauses`:
    the clock runs on between the pieces, to whenever the machine asked to be woken. `interrupt`: what happens behind
    the piece that `seed` names: the client leaves, the shell gives up, or no byte comes in time. `repeat` (k, n): the
    body's piece k comes n times more, so that a small input is a big body.
    """

    client: str = "openai-chat"
    stream: bool = True
    mode: str = "block"
    delivery: str = "held"
    repair: bool = True
    recover: str = "auto"
    reask: int = 0
    annotations: str = "always"
    small: bool = False
    status: int = 200
    type: str = "text/event-stream"
    encoding: str = ""
    end: str = "eof"
    cut: str = "random"
    pauses: bool = False
    interrupt: str = ""
    seed: int = 0
    repeat: tuple[int, int] = (0, 0)
    request: Any = None
    body: bytes = b""

    def settings(self) -> ExchangeSettings:
        drop = self.mode == "drop"
        return ExchangeSettings(
            mode="annotate" if self.mode == "annotate" else "block",
            block_as="drop" if drop else "error",
            # the configuration refuses to drop calls that were begun
            delivery="live" if self.delivery == "live" and not drop else "held",
            annotations=self.annotations,  # type: ignore[arg-type]
            repair=self.repair,
            recover={"auto": AUTO, "off": (), "all": tuple(one.name for one in FORMATS)}[self.recover],
            reask=self.reask,
            **(SMALL if self.small else {}),
        )

    @property
    def live(self) -> bool:
        return self.delivery == "live" and self.mode != "drop" and self.stream

    def headers(self) -> dict[str, str]:
        headers = {"content-type": self.type} if self.type else {}
        if self.encoding:
            headers["content-encoding"] = self.encoding.partition(",")[0]
        return headers

    def bodies(self) -> list[list[bytes]]:
        """The body of each turn, in pieces of one event (compressed: of some bytes)."""
        return [self._pieces(body) for body in self.body.split(TURN)]

    def _pieces(self, body: bytes) -> list[bytes]:
        pieces = split_events(body)
        number, count = self.repeat
        if count and pieces:
            number %= len(pieces)
            pieces[number + 1 : number + 1] = [pieces[number]] * count
        if self.encoding in ("gzip", "deflate"):
            whole = b"".join(pieces)
            packed = gzip.compress(whole, mtime=0) if self.encoding == "gzip" else zlib.compress(whole)
            return [packed[i : i + 37] for i in range(0, len(packed), 37)]
        return pieces

    def other_cut(self, pieces: list[bytes]) -> list[bytes]:
        whole = b"".join(pieces)
        match self.cut:
            case "whole":
                return [whole]
            case "byte":
                step = 1 if len(whole) < 1_500 else 7 if len(whole) < 10_000 else len(whole) // 1_500
                return [whole[i : i + step] for i in range(0, len(whole), step)]
        draw = random.Random(self.seed)
        edges = sorted({0, len(whole), *(draw.randint(0, len(whole)) for _ in range(draw.randint(1, 12)))})
        return [whole[a:b] for a, b in pairwise(edges)]


def is_json(text: str | bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def split_events(body: bytes) -> list[bytes]:
    """The body in pieces that a backend would write at once: events, or lines. Joined they are the body again."""
    if b"data:" not in body[:4_096] and b"\n\n" not in body:
        return [piece for piece in body.splitlines(keepends=True) if piece]
    return _EVENT.findall(body)


def read(data: bytes) -> Input | None:
    """The input in these bytes; None where the line is no JSON object."""
    line, _, body = data.partition(b"\n")
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(head, dict):
        return None
    out = Input(body=body)
    for name, choices in CHOICES.items():
        value = head.get(name, choices[0])
        known = [choice for choice in choices if choice == value and type(choice) is type(value)]
        setattr(out, name, known[0] if known else choices[0])
    out.seed = head["seed"] if type(head.get("seed")) is int else 0
    match head.get("repeat"):
        case [int(number), int(count)]:
            out.repeat = (max(number, 0), min(max(count, 0), 2_000))
    out.request = head.get("request")
    return out


def write(value: Input) -> bytes:
    """Only what differs from the defaults, so that a finding shows what matters."""
    head = {
        one.name: getattr(value, one.name)
        for one in fields(Input)
        if one.name != "body" and getattr(value, one.name) != one.default
    }
    return json.dumps(head).encode() + b"\n" + value.body


def of_case(case: Case) -> Input:
    """A case as an input, asked for by a client of its own dialect where there is one."""
    recording = case.recording
    request = dict(recording.request)
    request.pop("messages", None)
    if case.recording.request.get("messages") != MESSAGES:
        request["messages"] = case.recording.request["messages"]
    encoding = recording.headers.get("content-encoding", "")
    out = Input(
        client=recording.dialect if recording.dialect in CLIENTS else "openai-chat",
        stream=bool(request.pop("stream", False)),
        status=recording.status,
        type=recording.headers.get("content-type", "").partition(";")[0],
        encoding=f"{encoding}, as said" if encoding else "",
        end=recording.end,
        request=request,
        body=b"".join(recording.pieces),
    )
    draw = random.Random(case.id)
    for name in ("mode", "cut", "repair", "annotations"):
        setattr(out, name, draw.choice(CHOICES[name]))
    out.delivery = draw.choice(("held", "held", "live"))
    return out


def of_sample(writer: Writer, text: str, schemas: Mapping[str, bytes | None], draw: random.Random) -> Input:
    """A reply whose text holds a call in some markup."""
    functions = [{"name": name, "parameters": json.loads(schema or b"{}")} for name, schema in schemas.items()]
    said = Said([Text(draw.choice(("", "Let me look.\n")) + text)])
    return Input(
        client=draw.choice(CHOICES["client"]),
        stream=draw.random() < 0.8,
        recover=draw.choice(("auto", "all")),
        type=writer.content_type,
        request={"tools": [{"type": "function", "function": function} for function in functions]},
        body=b"".join(writer.write(said, Pen(draw))),
    )


def of_writer(writer: Writer, draw: random.Random) -> Input:
    """A reply that a careful backend writes: its shape leaves no doubt about what a client must read."""
    words = ("Hi ", "there", ".\n", "\n\n", " ", "é", "😀", "\u2028", "12", "Oslo", "?")

    def said() -> str:
        return "".join(draw.choice(words) for _ in range(draw.randint(1, 9)))

    parts: list[Text | Thought | Made] = [Text(said())]
    for number in range(draw.randint(0, 3)):
        arguments = draw.choice(("{}", '{"city": "Oslo"}', '{"n": 1.0, "list": [1, null, "é"]}'))
        made = Made(f"call_{number}", draw.choice(("look", "ping")), arguments)
        parts.append(draw.choice((Text(said()), Thought(said()), made)))
    tokens = Tokens(draw.randint(1, 99), draw.randint(1, 99)) if draw.random() < 0.5 else None
    finish: Finish = "length" if draw.random() < 0.2 else "stop"
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "ping")]
    return Input(
        client=draw.choice(CHOICES["client"]),
        stream=draw.random() < 0.8,
        mode=draw.choice(CHOICES["mode"]),
        recover=draw.choice(("auto", "off")),
        type=writer.content_type,
        request={"tools": tools},
        body=b"".join(writer.write(Said(parts, finish, tokens), Pen(draw))),
    )


MESSAGES = [{"role": "user", "content": "Please use the tools."}]


def request_of(value: Input) -> Request | None:
    """The client's request; None where the line describes none that this client can make."""
    if not isinstance(value.request, dict | None):
        return None
    return _request(value.client, value.stream, json.dumps(value.request or {}))


@lru_cache(maxsize=512)
def _request(client: str, stream: bool, request: str) -> Request | None:
    chat = {"messages": MESSAGES, **json.loads(request), "stream": stream}
    if client != "openai-chat":
        chat.pop("n", None)
    try:
        body = CLIENTS[client].ask(chat, "m")
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    try:
        from proxy.dialects import CLIENT_DIALECTS

        return CLIENT_DIALECTS[client].read(body)
    except Fault:
        return None


def plain(value: Input) -> list[bytes]:
    """All bytes of the bodies, decoded where they say truly how."""
    bodies = []
    for body in value.body.split(TURN):
        pieces = split_events(body)
        number, count = value.repeat
        bodies.append(body + (pieces[number % len(pieces)] * count if pieces else b""))
    return bodies
