"""Good requests in each client dialect, and what a client makes of the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import casefile
from dialect_clients import CLIENTS
from faults.replies import CALLS, REQUEST, TEXT
from proxy.replay.inprocess import Answer
from support.client import Reply

PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic-messages": "/v1/messages",
}
_HEADERS = {
    "cache-control", "connection", "content-length", "content-type", "date", "openai-x", "retry-after",
    "transfer-encoding", "x-accel-buffering", "x-request-id", "x-should-retry",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asker:
    """A client of this dialect that asks for a stream, or for a plain reply."""

    dialect: str
    stream: bool

    def __str__(self) -> str:
        return f"{self.dialect}, {'streamed' if self.stream else 'plain'}"

    def request(self, model: str, **more: Any) -> bytes:
        return CLIENTS[self.dialect].ask({**REQUEST, "stream": self.stream, **more}, model)

    def read(self, reply: Reply) -> casefile.Reply:
        """As this client understands it. What the proxy refuses before it looks at the path has chat's form."""
        answer = Answer(reply.status, reply.headers, bytearray(reply.body))
        refused = reply.status >= 400 and b'"type":"error"' not in reply.body
        return CLIENTS["openai-chat" if refused else self.dialect].read(answer, self.stream)


ASKERS = tuple(Asker(dialect, stream) for dialect in CLIENTS for stream in (True, False))


STREAMED = tuple(asker for asker in ASKERS if asker.stream)


# --- what a client sees --------------------------------------------------------------------------------------------


def judge(cell: str, asker: Asker, reply: Reply, text: str | None = "".join(TEXT), *, live: bool = False) -> list[str]:
    """What falls short of the cell, in words."""
    got, wrong = understand(asker, reply, text, live=live)
    return wrong if got == cell else [f"{got!r}, want {cell!r}", *wrong]


def understand(
    asker: Asker, reply: Reply, text: str | None = "".join(TEXT), *, live: bool = False
) -> tuple[str, list[str]]:
    """The cell that an answer comes to, and what no answer may be, in words. `text`: what the upstream says.

    A reply that failed never holds a call, whole or half; of one whose calls are sent live it may hold half a call,
    which no client can take for a whole one.
    """
    if reply.broken:
        return "broken", [f"the connection broke after {reply.body[-200:]!r}"]
    try:
        read = asker.read(reply)
    except (ValueError, KeyError, TypeError) as error:
        return "unreadable", [f"status {reply.status} and what no client can read ({error!r}): {reply.body[-200:]!r}"]
    cell = _cell(read)
    out = list(dict.fromkeys(read.noncanonical))
    out += [f"header {name}: {value!r}" for name, value in reply.headers.items() if not _may_pass(name, value)]
    calls = [(call.name, call.arguments) for call in read.calls.values()]
    said = read.content.get(0, "")
    if cell == "whole":
        want = [(name, json.loads(arguments)) for name, arguments in CALLS]
        if [(name, json.loads(arguments)) for name, arguments in calls] != want:
            out.append(f"calls {calls}")
        if text is not None and said != text:
            out.append(f"text {said!r}")
    else:
        if any(_is_json(arguments) for _, arguments in calls) if live else calls:
            out.append(f"calls of a reply that failed: {calls}")
        if text is not None and not text.startswith(said):
            out.append(f"text {said!r}")
        if not (isinstance(read.error, dict) and read.error.get("message")):
            out.append(f"no error that says anything: {read.error!r}")
    return cell, out


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _may_pass(name: str, value: str) -> bool:
    """Whether a response header may come from the proxy: its own, and what it passes on from the upstream."""
    return name in _HEADERS and value.isascii() and value.isprintable()


def _cell(read: casefile.Reply) -> str:
    code = read.error.get("code") or read.error.get("type") if isinstance(read.error, dict) else "no error"
    if read.status != 200:
        return f"{read.status} {code}"
    if read.error is not None:
        return f"cut: {code}"
    return "whole" if read.done == 1 else "no end"
