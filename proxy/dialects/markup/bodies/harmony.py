"""Harmony (gpt-oss): messages that say in their header who they are for. A call is a message to `functions.NAME`.

Messages before the call in the same run of markup are its companions: `analysis` is reasoning, `commentary` without a
recipient is text. A `final` message ends the attempt: there is no call, and all stays as it came.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.dialects.markup.base import Cursor, Mismatch, Parsed, Rule, Steps, Stops, Unfinished
from proxy.dialects.markup.bodies.json_calls import call_of

_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_STOPS = Stops("<|start|>", "<|channel|>", *_ENDS)
_PIECES = ("<|message|>", "<|channel|>", "<|constrain|>", "analysis", "commentary", "final", "assistant", "to=", "json")


def messages(cursor: Cursor) -> Steps[Parsed]:
    """Behind `<|channel|>` or `<|start|>`."""
    parsed = Parsed()
    while True:
        channel, recipient = yield from _header(cursor)
        if recipient:
            yield from cursor.space()
            if (yield from cursor.char()) != "{":
                raise Mismatch(Rule.ARGUMENTS)
            parsed.calls.append(call_of(cursor, recipient, (yield from cursor.json())))
            return parsed
        if channel not in ("analysis", "commentary"):
            raise Mismatch
        text, stop = yield from cursor.until(_STOPS)
        if channel == "analysis":
            parsed.reasoning += text
        else:
            parsed.text += text
        while stop in _ENDS:
            yield from cursor.space()
            stop = yield from cursor.take(*_STOPS.literals)
        if not stop:
            raise Unfinished if cursor.ended else Mismatch


def _header(cursor: Cursor) -> Steps[tuple[str, str]]:
    """Channel and recipient, up to the message."""
    channel = recipient = ""
    while True:
        yield from cursor.space()
        piece = yield from cursor.expect(*_PIECES)
        if piece == "<|message|>":
            return channel, recipient
        if piece == "to=":
            recipient = (yield from cursor.word(cursor.watch)) or recipient
            cursor.name(recipient)
        elif piece in ("analysis", "commentary", "final"):
            channel = piece


def stripped(cursor: Cursor) -> Steps[Parsed]:
    """The same without its tokens, as the whole content: `commentary to=functions.NAME json{...}`."""
    yield from cursor.take("assistant")
    yield from cursor.expect("commentary", "analysis")
    yield from cursor.space()
    yield from cursor.expect("to=")
    name = yield from cursor.word(cursor.watch)
    cursor.name(name)
    yield from cursor.space()
    yield from cursor.take("json")
    yield from cursor.space()
    if (yield from cursor.char()) != "{":
        raise Mismatch
    call = call_of(cursor, name, (yield from cursor.json()))
    yield from cursor.space()
    if not (yield from cursor.at_end()):
        raise Mismatch(Rule.NOT_WHOLE)
    return Parsed([replace(call, weak=True)])
