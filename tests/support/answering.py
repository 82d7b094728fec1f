"""A backend in any dialect, on a real socket, that answers the probe's battery: as the dialect's reference has it, or
with what a damage makes of that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from random import Random
from typing import Any

from proxy.conformance.battery import ANSWERS, ITEMS
from support.threaded import serving
from upstream_writers import WRITERS, Made, Pen, Said, Text, Writer

# Where a client begins: what is in front of each dialect's own path.
ROOTS = {
    "openai-chat": "/v1",
    "openai-responses": "/v1",
    "anthropic-messages": "/v1",
    "gemini": "/v1beta",
    "ollama-chat": "",
}
_WRITER = {
    ("openai-chat", True): "chat stream",
    ("openai-chat", False): "chat plain",
    ("openai-responses", True): "responses stream",
    ("openai-responses", False): "responses plain",
    ("anthropic-messages", True): "messages stream",
    ("anthropic-messages", False): "messages plain",
    ("gemini", True): "gemini stream",
    ("gemini", False): "gemini plain",
    ("ollama-chat", True): "ollama stream",
    ("ollama-chat", False): "ollama plain",
}

# Where a call without arguments, or without an id, is the dialect's own way.
NO_ARGUMENTS = ("anthropic-messages", "gemini")
NO_ID = ("gemini", "ollama-chat")

# (item, streamed, the pieces of the right answer) -> the pieces that are sent.
Damage = Callable[[str, bool, list[bytes]], Sequence[bytes]]


class Careful(Pen):
    """Cuts between characters only, and leaves nothing to chance: of two ways that a dialect has it takes `way`."""

    def __init__(self, way: bool) -> None:
        super().__init__(Random(1))
        self.way = way

    def cut(self, text: str) -> list[str]:
        return [text[at : at + 20] for at in range(0, len(text), 20)]

    def either(self) -> bool:
        return self.way


@dataclass
class Seen:
    """What the backend was asked: (path, headers with lower-case names, body)."""

    url: str
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)


def said(item: str, writer: Writer) -> Said:
    answer = ANSWERS[item]
    parts: list[Any] = [Text(answer.text)] if answer.text else []
    parts += [
        Made(None if writer.dialect in NO_ID else f"toolu{number:04}", name, json.dumps(arguments, ensure_ascii=False))
        for number, (name, arguments) in enumerate(answer.calls)
    ]
    return writer.fitting(Said(parts))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def prompt_of(request: Any) -> str:
    return next(str(message["content"]) for message in request["messages"] if message["role"] == "user")


ITEM_OF = {prompt_of(item.request): item.id for item in ITEMS}


@contextmanager
def answering(
    dialect: str, damage: Damage = lambda item, streamed, pieces: pieces, *, busy: int = 0, port: int = 0
) -> Iterator[Seen]:
    """`busy`: so many requests at the beginning are answered with 429. `port` 0: a free one."""
    pen = Careful(way=dialect in NO_ARGUMENTS)
    left = [busy]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            if left[0] > 0:
                left[0] -= 1
                self.whole(429, b'{"error": {"message": "slow down", "code": "busy"}}', retry_after="0")
                return
            streamed = ":streamGenerateContent" in self.path if dialect == "gemini" else bool(body.get("stream"))
            item = next(ITEM_OF[text] for text in strings(body) if text in ITEM_OF)
            writer = WRITERS[_WRITER[dialect, streamed]]
            pieces = damage(item, streamed, writer.write(said(item, writer), pen))
            self.send_response(200)
            self.send_header("content-type", writer.content_type)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in pieces:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

        def whole(self, status: int, data: bytes, **headers: str) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    with serving(Handler, port, quiet=True) as bound:  # a probe that was ended reads no further
        found = Seen(f"http://127.0.0.1:{bound}{ROOTS[dialect]}")
        yield found
