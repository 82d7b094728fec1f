"""A piece with other text than it came with: where a call was found in it, or part of it is held for that.

What a piece carries besides its text and reasoning survives. Where `alone` is asked for, the result is a piece of its
own in the same place, with nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy.dialects.base import sequence_of
from proxy.dialects.openai_chat.decode import REASONING_FIELDS, whole_piece
from proxy.model.deltas import Piece

_THOUGHT = -1  # the number of a thinking block that no upstream sent


def with_text(dialect: str, piece: Piece, text: str, reasoning: str, *, alone: bool = False) -> Piece:
    """`piece`, which an upstream of `dialect` sent, with this text and reasoning."""
    return _BY_DIALECT.get(dialect, _plain)(piece, text, reasoning, alone)


def place(dialect: str, piece: Piece) -> object:
    """The block, item or part that a piece of text or reasoning belongs to; None where its dialect has none."""
    for key in ("content", "events") if dialect == "openai-responses" else ():
        events = sequence_of(piece.delta.get(key))
        if events:
            last = events[-1]
            return last.get("output_index"), last.get("content_index"), last.get("summary_index")
    return piece.choice_extra.get("block", piece.order)


def signs(piece: Piece) -> bool:
    """Whether a piece carries the signature of the thinking block that it belongs to (Messages)."""
    return piece.delta.get("type") == "signature_delta"


def _plain(piece: Piece, text: str, reasoning: str, alone: bool) -> Piece:
    if alone:
        return Piece(piece.choice, text, reasoning, order=piece.order if reasoning else None)
    return replace(piece, text=text, reasoning=reasoning, raw=None)


def _chat(piece: Piece, text: str, reasoning: str, alone: bool) -> Piece:
    if piece.raw is not None:
        piece = whole_piece(piece)
    fields = [name for name in REASONING_FIELDS if isinstance(piece.delta.get(name), str)] or ["reasoning_content"]
    delta: dict[str, Any] = {} if alone else dict(piece.delta)
    for name, value in (*((name, reasoning) for name in fields), ("content", text)):
        if value:
            delta[name] = value
        else:
            delta.pop(name, None)
    if alone:
        return Piece(piece.choice, text, reasoning, delta=delta)
    return replace(piece, text=text, reasoning=reasoning, delta=delta)


def _messages(piece: Piece, text: str, reasoning: str, alone: bool) -> Piece:
    new = _plain(piece, text, reasoning, alone)
    if alone and "block" in piece.choice_extra:
        new.choice_extra = {"block": piece.choice_extra["block"]}
    if alone and reasoning and not piece.reasoning:
        new.choice_extra = {"block": _THOUGHT, "start": {"type": "thinking", "thinking": "", "signature": ""}}
    return new


def _responses(piece: Piece, text: str, reasoning: str, alone: bool) -> Piece:
    """The events that carry the text say it too."""
    new = _plain(piece, text, reasoning, alone)
    new.delta = {} if alone else dict(piece.delta)
    for key, old, value in (("content", piece.text, text), ("events", piece.reasoning, reasoning)):
        events = sequence_of(piece.delta.get(key)) if old else ()
        if not events:
            continue
        last = events[-1]
        # a paragraph's break between parts is the hub's
        value = value.removeprefix(old.removesuffix(last["delta"]))
        if value:
            new.delta[key] = [*(() if alone else events[:-1]), {**last, "delta": value}]
        else:
            del new.delta[key]
    return new


def opening(dialect: str, piece: Piece) -> Sequence[dict[str, Any]]:
    """The events that announce the item of a piece of text or reasoning."""
    if dialect != "openai-responses":
        return ()
    return sequence_of(piece.delta.get("content" if piece.text else "events"))[:-1]


def opened(piece: Piece, events: Sequence[dict[str, Any]]) -> Piece:
    """`piece` with these events before its own: what announced its item came with text that was held."""
    key = "content" if piece.text else "events"
    own = sequence_of(piece.delta.get(key))
    return replace(piece, delta={**piece.delta, key: [*events, *own]}) if own else piece


_BY_DIALECT: Mapping[str, Callable[[Piece, str, str, bool], Piece]] = {
    "openai-chat": _chat,
    "anthropic-messages": _messages,
    "openai-responses": _responses,
}
