"""What an upstream CLAIMED in one event, taken apart but not yet believed: nullable fields, no identity resolved.

A decoder turns frames into these; `assembly` and the exchange turn them into what is held true. Slotted and mutable,
not frozen: `Piece` is made once an event and a frozen dataclass costs three times as much to make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True)
class Piece:
    """One event of one choice, less its calls, finish reason and usage: what passes on at once.

    `text`, `reasoning` and `refusal` are what every client dialect can carry. The other fields serve a client of the
    upstream's own dialect: `raw` is the payload verbatim where nothing had to be taken out; else `delta`,
    `choice_extra` and `top_extra` hold the fields that are left at each level. `choice` is -1 where the event belongs
    to no choice.
    `order` is the place of a block or item other than text (thinking, reasoning, a server tool) in the numbering of
    `CallDelta.key`: behind a held call it is held with it, for clients that read blocks in order.
    """

    choice: int
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    order: int | None = None
    raw: bytes | None = None
    delta: dict[str, Any] = field(default_factory=dict)
    choice_extra: dict[str, Any] = field(default_factory=dict)
    top_extra: dict[str, Any] = field(default_factory=dict)


_NOTHING: dict[str, Any] = {}  # of a verbatim piece, whose fields nobody looks at or changes


def verbatim_piece(choice: int, text: str, payload: bytes, reasoning: str = "") -> Piece:
    """A piece that goes out as it came."""
    return Piece(choice, text, reasoning, "", None, payload, _NOTHING, _NOTHING, _NOTHING)


@dataclass(slots=True)
class CallDelta:
    """A claim about a tool call: one entry of a delta, one content block event, one part.

    `key` names the call where the format itself marks calls; None: `assembly` decides by index, id and name.
    `arguments` is a piece of text, or the source characters of a JSON value where `is_object`; `final`: it replaces
    what came before (Responses sends the whole again). `whole`: the format sends calls whole, so that a token limit
    never cuts one (Gemini, Ollama). `quiet`: told at the end about an earlier call, so that it does not make that call
    the one in progress. `unfinished`: the upstream itself marks the call as cut. `signature`: a Gemini
    thought signature, which has to come back with the call.
    """

    choice: int
    key: int | None = None
    index: int | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    is_object: bool = False
    kind: Literal["function", "custom"] = "function"
    whole: bool = False
    final: bool = False
    unfinished: bool = False
    quiet: bool = False
    signature: str | None = None
    extra: dict[str, Any] | None = None
    function_extra: dict[str, Any] | None = None


@dataclass(slots=True)
class FinishDelta:
    """A finish reason. `reason` is one of `FINISH_WORDS`' values; `raw` the upstream's own word."""

    choice: int
    reason: str
    raw: str
    choice_extra: dict[str, Any] = field(default_factory=dict)
    top_extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, in the one form that every dialect can be written from.

    `input_tokens` counts all of the prompt, with what was read from or written to a cache; `output_tokens` all that
    was generated, with reasoning. None: not told.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None

    def plus(self, other: Usage) -> Usage:
        """The sum of two turns."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            _plus(self.cache_read, other.cache_read),
            _plus(self.cache_write, other.cache_write),
            _plus(self.reasoning, other.reasoning),
        )


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None and b is None else (a or 0) + (b or 0)


@dataclass(slots=True)
class UsageDelta:
    """Usage so far: `usage` in the upstream's own form, `counts` in ours; `top_extra` are the other fields of an event
    that carried nothing else."""

    usage: dict[str, Any]
    counts: Usage = Usage()
    top_extra: dict[str, Any] = field(default_factory=dict)

    def plus(self, other: UsageDelta) -> UsageDelta:
        """The sum of two turns, in the upstream's own form too."""
        return UsageDelta(_sum(self.usage, other.usage), self.counts.plus(other.counts), self.top_extra)


def _sum(a: Any, b: Any) -> Any:
    """Numbers added member by member; of anything else the later."""
    if isinstance(a, dict) and isinstance(b, dict):
        return {key: _sum(a[key], b[key]) if key in a and key in b else a.get(key, b.get(key)) for key in {**a, **b}}
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool):
        return a + b
    return a if b is None else b


@dataclass(slots=True)
class Failed:
    """The upstream said, inside its reply, that it failed. `error` is its own error object, if it sent one."""

    message: str
    code: str | None = None
    error: dict[str, Any] | None = None


@dataclass(slots=True)
class Done:
    """The final event of the reply: nothing after it counts."""


Delta = Piece | CallDelta | FinishDelta | UsageDelta | Failed | Done

# The words that upstreams end a choice with, in lower case -> what the end means.
# `error` words end the reply in an error. Words that are not here mean `stop`.
FINISH_WORDS: dict[str, str] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
    "recitation": "content_filter",
    "error": "error",
    "abort": "error",
    "cancelled": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
    "malformed_function_call": "error",
    "too_many_tool_calls": "error",
    "missing_thought_signature": "error",
    "function_call_filter": "error",
    "unexpected_tool_call": "unexpected_tool_call",
}
