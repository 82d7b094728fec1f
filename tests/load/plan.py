"""The kinds of exchange: what the scripted upstream does, and what must come of it. Both sides read this one table.

Every request has a token of its own. The upstream puts it into each word of its text and into each call's id and
arguments, so a lost, doubled, mixed or foreign piece shows in the reply that holds it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any

BACKENDS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini", "ollama-chat")
CLIENTS = BACKENDS[:3]
TOKEN = re.compile(r"T[0-9a-f]{8}Z")
WORDS = 12
LONG_WORDS = 64
LONG_WORD_CHARS = 6000
VALID = ("valid", "valid")


@dataclass(frozen=True, slots=True)
class Kind:
    """`share`: how often it is drawn. `verdicts` of the reply's calls in order; `code` of the error that the reply ends
    in, `statuses` then: of a stream (any of these) and of a plain reply. `counted`: the label `kind` that
    `upstream_errors_total` has for it. `plain`: it is asked for without a stream, too."""

    share: int
    verdicts: tuple[str, ...] = ()
    code: str = ""
    statuses: tuple[int, ...] = (200,)
    plain_status: int = 200
    counted: str = ""
    plain: bool = True
    text: bool = True  # the upstream says some


KINDS = {
    "text": Kind(14),
    "calls": Kind(14, VALID),
    "tangled": Kind(12, VALID, plain=False),  # the calls' fragments come mixed, their identity damaged
    "invalid": Kind(8, ("valid", "schema_violation"), "schema_violation", plain_status=502),
    "cut": Kind(6, ("incomplete", "incomplete"), "stream_cut", plain=False, counted="stream_cut"),
    "reset": Kind(5, (), "stream_cut", (200, 502), 502, "stream_cut"),
    "stall": Kind(2, (), "timeout", plain=False, counted="timeout"),
    "never": Kind(1, (), "timeout", (504,), 504, "timeout", text=False),
    "late": Kind(6, VALID),
    "limited": Kind(3, (), "boom", (429,), 429, "upstream_error", text=False),
    "failing": Kind(3, (), "boom", (500,), 500, "upstream_error", text=False),
    "error": Kind(4, (), "boom", plain=False, counted="upstream_error"),
    "refused": Kind(3, (), "unreachable", (502,), 502, "unreachable", text=False),  # nothing listens there
    "failover": Kind(5, VALID),  # the first backend fails
    "paced": Kind(8, plain=False),
    "crowd": Kind(1, VALID, plain=False),  # half of it, and the rest when `Job.crowd` answers are under way
    "long": Kind(2, plain=False),  # the client reads slowly
    "endless": Kind(4, plain=False),  # the client leaves inside the reply
    "silent": Kind(3, text=False),  # the client leaves before it
    "unknown": Kind(1, (), "model_not_found", (404,), 404, text=False),
    "unreadable": Kind(1, (), "invalid_json", (400,), 400, text=False),
}
LEAVES = ("endless", "silent")
ASKS_NOBODY = ("refused", "unknown", "unreadable")
ROUTELESS = ("unknown", "unreadable")
DEAD = "dead"  # the backend of `refused`
# Failures in a row open a backend's circuit breaker, and then `failover` has nowhere to go: these have backends apart.
BAD = ("stall", "never", "limited", "failing")
ALL = tuple(name for name in KINDS if name != "crowd")
QUICK = tuple(name for name in ALL if name not in ("stall", "never"))  # those wait for the proxy's limits
LIMPING = "limping"  # the backend that fails where `failover` begins


@dataclass(frozen=True, slots=True)
class Job:
    """One exchange: `client` asks in its dialect, `backend` is the one that decides the outcome."""

    kind: str
    client: str
    backend: str
    stream: bool
    token: str
    crowd: int = 0

    @property
    def rule(self) -> Kind:
        return KINDS[self.kind]

    @property
    def model(self) -> str:
        return f"{self.kind}{self.crowd or ''}.{self.backend}"

    @property
    def label(self) -> str:
        """The backend's name in metrics."""
        if self.kind in ROUTELESS:
            return "none"
        if self.kind == "refused":
            return DEAD
        return f"{self.backend}-bad" if self.kind in BAD else self.backend

    @property
    def request(self) -> dict[str, Any]:
        """As a chat request without its model."""
        tools = [_tool("look", {"type": "string"}), _tool("note", {"const": self.token})]
        said = {"role": "user", "content": f"Do it for {self.token}."}
        return {"messages": [said], "tools": tools, "stream": self.stream}


def _tool(name: str, token: dict[str, Any]) -> dict[str, Any]:
    properties = {"token": token, "number": {"type": "integer"}, "text": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def draw(random: Random, number: int, *kinds: str, crowd: int = 0) -> Job:
    """The `number`th job: of these kinds, by default of all, by their share."""
    kinds = kinds or ALL
    kind = random.choices(kinds, [KINDS[kind].share for kind in kinds])[0]
    backend = random.choice(BACKENDS)
    stream = not KINDS[kind].plain or random.random() < 0.75
    return Job(kind, random.choice(CLIENTS), backend, stream, f"T{number:08x}Z", crowd)


# --- what the upstream says ---------------------------------------------------------------------------------------


def text_of(kind: str, token: str, side: str) -> str:
    """`side` tells several upstreams apart: one letter, or nothing."""
    if kind == "long":
        return " ".join(f"{token}{side}{n}{'x' * LONG_WORD_CHARS}" for n in range(LONG_WORDS))
    return " ".join(f"{token}{side}{n}" for n in range(WORDS))


def call_of(kind: str, token: str, number: int) -> tuple[str, str, str]:
    """Id, name and arguments of a call."""
    arguments = {"token": token, "number": number, "text": f'{token} said "é\n" \\ \U0001f600'}
    if kind == "invalid" and number == 1:
        del arguments["number"]
    return f"call_{token}_{number}", ("look", "note")[number], json.dumps(arguments)
