"""Any reply, from any upstream, is the same reply to any client: text, reasoning, calls, ids, usage, stop reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import casefile
import messages_client
import responses_client
from casefile import Call, Reply
from dialect_clients import CLIENTS, Client
from proxy.dialects import CLIENT_DIALECTS
from proxy.exchange import ExchangeSettings
from proxy.replay.inprocess import Answer, run
from proxy.replay.recording import Recording
from upstream_writers import WRITERS, Finish, Made, Pen, Said, Text, Thought, Tokens, Writer

ANY = {"type": "object", "additionalProperties": True}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": ANY}} for name in ("look", "look_up", "ping")]
REQUEST = {"messages": [{"role": "user", "content": "Please use the tools."}], "tools": TOOLS}

# --- random replies ------------------------------------------------------------------------------------------------

ODD = st.sampled_from([*'"\\ \n\t\x00\x7f\x85\u2028\ufeffé😀', "\\u0041", "data:"])
CHARACTERS = st.characters(codec="utf-8")
TEXTS = st.lists(ODD | CHARACTERS | st.sampled_from("abc "), min_size=1, max_size=12).map("".join)
NUMBERS = st.integers().map(str) | st.sampled_from(["123456789012345678901234567890", "1.0", "-0", "1E5", "0.10"])
STRINGS = st.tuples(TEXTS | st.just(""), st.booleans()).map(lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1]))


def _object(members: list[tuple[str, str]], spaced: bool) -> str:
    comma, colon = (", ", ": ") if spaced else (",", ":")
    return "{" + comma.join(key + colon + value for key, value in members) + "}"


def _objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(st.tuples(STRINGS, values), max_size=4, unique_by=lambda member: json.loads(member[0]))
    return st.builds(_object, members, st.booleans())


VALUES = st.recursive(
    NUMBERS | STRINGS | st.sampled_from(["true", "false", "null"]),
    lambda values: _objects(values) | st.lists(values, max_size=3).map(lambda found: "[" + ",".join(found) + "]"),
    max_leaves=6,
)
ARGUMENTS = st.just("{}") | _objects(VALUES)
IDS = st.from_regex(r"[!-~]{1,40}", fullmatch=True).filter(lambda text: text != "null")


@st.composite
def replies(draw: st.DrawFn) -> Said:
    taken: set[str] = set()

    def call() -> Made:
        call_id = draw(st.none() | IDS.filter(lambda text: text not in taken))
        taken.add(call_id or "")
        return Made(call_id, draw(st.sampled_from(["look", "look_up", "ping"])), draw(ARGUMENTS))

    kinds = draw(st.lists(st.sampled_from([Text, Thought, Made]), min_size=1, max_size=6))
    parts = [call() if kind is Made else kind(draw(TEXTS)) for kind in kinds]
    cached, reasoning = draw(st.none() | st.integers(0, 50)), draw(st.none() | st.integers(0, 50))
    tokens = Tokens((cached or 0) + draw(st.integers(1, 1000)), (reasoning or 0) + draw(st.integers(1, 1000)))
    tokens = replace(tokens, cached=cached, reasoning=reasoning)
    finish: Finish = draw(st.sampled_from(["stop", "stop", "length", "content_filter"]))
    return Said(parts, finish, draw(st.just(tokens) | st.none()))


# --- what a client understands -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Understood:
    """`order`: thoughts (neighbours as one) and calls, as they stood; None where the dialect has no order of them."""

    reply: Reply
    order: list[str] | None


def understood(client: Client, answer: Answer, stream: bool) -> Understood:
    about = (answer.status, answer.headers, bytes(answer.body))
    if client.name == "anthropic-messages":
        message = messages_client.read(*about, stream=stream)
        return Understood(message.reply, _order([(b["type"], b.get("thinking", "")) for b in message.blocks]))
    if client.name == "openai-responses":
        got = responses_client.read(*about, stream=stream)
        return Understood(got.reply, _order([(item["type"], _thought(item)) for item in got.items]))
    return Understood(casefile.read_reply(*about, stream=stream), None)


def _thought(item: dict[str, Any]) -> str:
    return "".join(part["text"] for name in ("summary", "content") for part in item.get(name) or () if "text" in part)


def _order(blocks: Sequence[tuple[str, str]]) -> list[str]:
    order: list[str] = []
    for kind, text in blocks:
        if kind in ("tool_use", "function_call"):
            order.append("")
        elif kind in ("thinking", "reasoning") and order and order[-1]:
            order[-1] += text
        elif kind in ("thinking", "reasoning"):
            order.append(text)
    return order


def usage_of(client: str, usage: dict[str, Any]) -> Tokens:
    """In one form; not told is 0."""
    if client == "anthropic-messages":
        cached = usage.get("cache_read_input_tokens") or 0
        return Tokens(usage["input_tokens"] + cached, usage["output_tokens"], cached, 0)
    put, out = ("prompt", "completion") if client == "openai-chat" else ("input", "output")
    inside, outside = usage.get(f"{put}_tokens_details") or {}, usage.get(f"{out}_tokens_details") or {}
    cached, reasoning = inside.get("cached_tokens") or 0, outside.get("reasoning_tokens") or 0
    return Tokens(usage.get(f"{put}_tokens", 0), usage.get(f"{out}_tokens", 0), cached, reasoning)


def as_written(text: str) -> Any:
    """A JSON text as a value whose numbers and order of keys are the characters'."""
    return json.loads(
        text, parse_int=lambda number: ("number", number), parse_float=lambda number: ("number", number),
        object_pairs_hook=tuple,
    )  # fmt: skip


# --- the property --------------------------------------------------------------------------------------------------


def answer_to(
    said: Said, writer: Writer, client: Client, draw: Random, *, stream: bool, settings: ExchangeSettings
) -> Answer:
    body = b"".join(writer.write(said, Pen(draw)))
    edges = sorted({0, len(body), *(draw.randrange(len(body)) for _ in range(draw.choice((0, 1, 5, 40))))})
    pieces = tuple(body[a:b] for a, b in pairwise(edges))
    recording = Recording("r", "", writer.dialect, pieces, headers={"content-type": writer.content_type})
    asked = {**REQUEST, "stream": stream, "stream_options": {"include_usage": True}}
    request = CLIENT_DIALECTS[client.name].read(client.ask(asked, "m"))
    return run(request, recording, settings)


def faults(said: Said, writer: Writer, client: Client, answer: Answer, stream: bool) -> list[str]:
    """Where the answer is not the reply that was written, in words."""
    got = understood(client, answer, stream)
    reply, out = got.reply, list(got.reply.noncanonical)
    if reply.failed:
        return [f"an error: {reply.error}"]
    # a limit leaves the call that was being written in doubt, where the form cannot tell that it was whole
    withheld = said.calls[-1] if writer.cuts and said.finish != "stop" and said.calls else None
    calls = [call for call in said.calls if call is not withheld]
    out += _call_faults(calls, list(reply.calls.values()), as_value=client.name == "anthropic-messages" and not stream)
    finish = "tool_calls" if said.finish == "stop" and calls else said.finish
    if reply.finish != {0: finish}:
        out.append(f"finish {reply.finish}, want {finish}")
    if not _same_text(said, client.name, reply.content.get(0, "")):
        out.append(f"text {reply.content.get(0, '')!r}, want {said.joined(Text)!r}")
    # parts of a Responses reasoning become paragraphs where they are one text
    apart = "\n\n" if writer.dialect == "openai-responses" != client.name else ""
    if reply.reasoning.get(0, "") != said.joined(Thought, apart):
        out.append(f"reasoning {reply.reasoning.get(0)!r}, want {said.joined(Thought, apart)!r}")
    if got.order is not None and writer.ordered:
        parts = [part for part in said.parts if part is not withheld]
        kinds = [(_kind(part), "" if isinstance(part, Made) else part.text) for part in parts]
        if [bool(text) for text in got.order] != [bool(text) for text in _order(kinds)]:
            out.append(f"order {got.order}, want {_order(kinds)}")
    want = said.tokens or Tokens(0, 0)
    reasoning = 0 if client.name == "anthropic-messages" else want.reasoning or 0
    if usage_of(client.name, reply.usage) != replace(want, cached=want.cached or 0, reasoning=reasoning):
        out.append(f"usage {reply.usage}, want {want}")
    return out


def _kind(part: Text | Thought | Made) -> str:
    return {Text: "text", Thought: "thinking", Made: "tool_use"}[type(part)]


def _call_faults(want: list[Made], got: list[Call], *, as_value: bool) -> list[str]:
    if [call.name for call in want] != [call.name for call in got]:
        return [f"calls {[call.name for call in got]}, want {[call.name for call in want]}"]
    out = []
    for made, call in zip(want, got, strict=True):
        if made.call_id not in (None, call.id):
            out.append(f"id {call.id!r}, want {made.call_id!r}")
        if not as_value and call.arguments != made.arguments:
            out.append(f"arguments {call.arguments!r}, want {made.arguments!r}")
        if as_written(call.arguments) != as_written(made.arguments):
            out.append(f"arguments {call.arguments!r} are another value than {made.arguments!r}")
    ids = {call.id for call in got}
    return out if len(ids) == len(got) and all(ids) else [*out, f"ids {ids}"]


def _same_text(said: Said, client: str, text: str) -> bool:
    """White space that is all of the text, or of a block or item, is dropped before a call."""
    want = said.joined(Text)
    if not said.calls:
        return text == want
    if client != "openai-chat" and any(p.text.isspace() for p in said.parts if isinstance(p, Text)):
        return "".join(text.split()) == "".join(want.split())
    return text == ("" if want.isspace() else want)


@pytest.mark.parametrize("name", WRITERS)
@given(said=replies(), draw=st.randoms(use_true_random=False))
def test_every_client_gets_the_reply_that_the_upstream_wrote(name: str, said: Said, draw: Random) -> None:
    writer = WRITERS[name]
    said = writer.fitting(said)
    for client in CLIENTS.values():
        for stream in (True, False):
            answer = answer_to(said, writer, client, draw, stream=stream, settings=ExchangeSettings())
            assert faults(said, writer, client, answer, stream) == [], (client.name, stream)


LIVE = ExchangeSettings(delivery="live")


@pytest.mark.parametrize("name", [name for name in WRITERS if name.endswith("stream")])
@given(said=replies(), draw=st.randoms(use_true_random=False))
def test_a_reply_that_is_sent_live_is_the_same_reply(name: str, said: Said, draw: Random) -> None:
    writer = WRITERS[name]
    # a live call that a limit leaves in doubt ends the reply in an error; white space before it is dropped
    said = replace(writer.fitting(said), finish="stop")
    parts = [replace(part, text=f".{part.text}") if isinstance(part, Text) else part for part in said.parts]
    said = replace(said, parts=parts)
    for client in CLIENTS.values():
        answer = answer_to(said, writer, client, draw, stream=True, settings=LIVE)
        assert faults(said, writer, client, answer, True) == [], client.name
