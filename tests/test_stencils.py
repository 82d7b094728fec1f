"""Events read by their stencil say what they say when they are parsed; what is no such event fits none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import casefile
from casefile import MODES, Case
from proxy.dialects.openai_chat import request as openai_request
from proxy.dialects.stencils import Stencil, Stencils, _texts
from proxy.replay.inprocess import run
from proxy.replay.recording import Recording
from test_properties import CASES, examples

TEXT = ("choices", 0, "delta", "content")
ARGUMENTS = ("choices", 0, "delta", "tool_calls", 0, "function", "arguments")


def event(text: str = "one", **top: Any) -> bytes:
    return json.dumps(
        {"id": "c", **top, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    ).encode()


def learnt(data: bytes, path: tuple[str | int, ...] = TEXT) -> Stencils:
    stencils = Stencils()
    stencils.learn(data, json.loads(data), path, 0)
    return stencils


@pytest.mark.parametrize("text", ["two", " ", "\n", '"', "\\", 'a "b" \\ c', "é\u2028😀", "\x00", "}]}", '","x":"'])
def test_another_string_in_the_same_place_is_read_from_it(text: str) -> None:
    for ascii_only in (True, False):
        data = json.dumps(json.loads(event(text)), ensure_ascii=ascii_only).encode()
        stencils = learnt(event())
        assert stencils.fit(data) is not None
        assert stencils.text == text


@pytest.mark.parametrize(
    "data",
    [
        event(""),  # nothing was said: the decoder knows whether that means something
        event("two", x=1),
        event("two").replace(b'"id": "c"', b'"id": "d"'),
        event("two").replace(b'"two"', b'"two", "x": "y"'),  # two strings
        event("two").replace(b'"two"', b'"two"}, "delta": {"content": "three"'),
        event("two").replace(b'"two"', b'"tw"o"'),
        event("two").replace(b'"two"', b'"two'),
        event("two").replace(b'"two"', b'"'),
        event("two").replace(b'"two"', b'"two\n"'),  # a raw control character
        event("two").replace(b'"two"', b'"\\ud83d"'),  # half a character: the other half may follow
        event("two").replace(b'"two"', b'"\xff"'),
        event("two").replace(b'"two"', b"null"),
        event("two").replace(b'"two"', b'["two"]'),
        event("two") + b" ",
        event("two")[:-1],
        b"",
    ],
)
def test_anything_else_fits_nothing(data: bytes) -> None:
    assert learnt(event()).fit(data) is None


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (event(content="x"), TEXT),  # the key stands twice in the event: which one it is would be a guess
        (event().replace(b'"content"', b'"c\\u006fntent"'), TEXT),
        (event().replace(b'{"content": "one"}', b'{"content": "x", "c\\u006fntent": "one"}'), TEXT),
        (event().replace(b'{"content": "one"}', b'{"c\\u006fntent": "x", "content": 1}'), TEXT),
        (event().replace(b'"choices"', b'"choices": 1, "choices"'), ("choices", 0, "delta", "refusal")),
    ],
)
def test_a_place_that_is_not_proven_is_not_learnt(data: bytes, path: tuple[str | int, ...]) -> None:
    assert learnt(data, path).fit(data) is None


def test_events_that_all_differ_are_soon_not_learnt_any_more() -> None:
    stencils = Stencils()
    for number in range(100):
        data = event(f"t{number}", padding="x" * number)
        assert stencils.fit(data) is None
        stencils.learn(data, json.loads(data), TEXT, 0)
    assert len(stencils._known) == 4


def test_a_string_that_is_none_has_few_others_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(strings: list[bytes]) -> list[str] | None:
        read.append(len(strings))
        return _texts(strings)

    monkeypatch.setattr("proxy.dialects.stencils._texts", counted)
    for odd in (b'""', b"null"):
        payloads = [event().replace(b'"one"', b'"two"' if at % 60 else odd) for at in range(6_000)]
        stencils = learnt(event())
        at = 0
        while at < len(payloads):
            stencil = stencils.fit(payloads[at])
            at += 1
            if stencil is not None:
                stencil.texts = stencil.texts or []
                at += stencils.collect(payloads, at)
        assert sum(read) < 8 * len(payloads)
        read.clear()


# --- with and without ----------------------------------------------------------------------------------------------

PARTS = ["a", " ", "\n", '"', "\\", "é", "\u2028", "\ud83d", "\ude00", "<", "_call", "<tool_call>"]
SAID = st.lists(st.sampled_from(PARTS), max_size=4).map("".join)
ENVELOPE = {"id": "cc-1", "object": "chat.completion.chunk", "created": 1790000000, "model": "test-model"}


def choice(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {**ENVELOPE, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def called(index: int, arguments: str, **head: str) -> dict[str, Any]:
    name = {"name": head.pop("name")} if "name" in head else {}
    return {"tool_calls": [{"index": index, **head, "function": {**name, "arguments": arguments}}]}


def chunk(delta: dict[str, Any], finish: str | None = None, **top: Any) -> dict[str, Any]:
    return {**ENVELOPE, **top, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def fragment(index: int, arguments: str, **head: Any) -> dict[str, Any]:
    name = {"name": head.pop("name")} if "name" in head else {}
    return chunk({"tool_calls": [{"index": index, **head, "function": {**name, "arguments": arguments}}]})


EVENT = st.one_of(
    st.builds(lambda text: chunk({"content": text}), SAID),
    st.builds(lambda text: chunk({"content": text}), st.sampled_from(["a", "b\ud83d"])),
    st.builds(lambda x: chunk({"content": "b"}, x=x), st.integers(0, 2)),
    st.builds(lambda text: chunk({"reasoning_content": text}), SAID),
    st.builds(fragment, st.integers(0, 2), SAID),
    st.builds(fragment, st.integers(0, 2), st.sampled_from(['{"c', 'ity":', '"Oslo"}', "{}", " "])),
    st.builds(lambda i, n: fragment(i, "", id=f"c{i}", type="function", name=n), st.integers(0, 2), st.just("get_x")),
    st.builds(lambda i, x: fragment(i, "1") | {"x": x}, st.integers(0, 2), st.integers(0, 2)),
    st.builds(lambda usage: chunk({}, usage=usage), st.just({"prompt_tokens": 1, "completion_tokens": 2})),
)
# What makes stencils known, so that the events behind it fit some.
BEGINNING = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "a"}),
    fragment(0, "", id="c0", type="function", name="get_x"),
    fragment(0, "{") | {"x": 1},
    fragment(0, " ") | {"x": 1},
    fragment(0, " "),
    chunk({"content": "a"}),
    chunk({"content": "b"}, x=1),
]
# And then text flows, in reads of one event.
FLOWING = [chunk({"content": "b"}), chunk({"content": "c"})]


class Nothing(Stencils):
    def fit(self, data: bytes) -> Stencil | None:
        return None


def said(case: Case, mode: str, events: list[bytes], live: bool) -> Any:
    """What a strict client makes of the answer, and what is recorded of it."""
    recording = Recording(case.id, "", "openai-chat", tuple(events), case.recording.request, 200, {}, "eof")
    settings = casefile.settings(mode)
    if live:
        settings = settings.__class__(mode=settings.mode, block_as=settings.block_as, delivery="live", repair=False)
    answer = run(openai_request.read(case.body), recording, settings)
    assert answer.record is not None
    reply = casefile.read_reply(answer.status, answer.headers, bytes(answer.body), stream=True)
    assert reply.noncanonical == []
    documents = [json.loads(line[6:]) for line in reply.raw.splitlines() if line.startswith(b"data: {")]
    extra = [one["x"] for one in documents if "x" in one and not one["choices"][0]["delta"].get("content")]
    reply.raw = b""  # a text may be written in another way
    record = answer.record
    return reply, extra, (record.outcome, record.code, record.verdicts, record.quirks, record.upstream_events)


@examples(400)
@given(
    chunks=st.lists(EVENT, min_size=1, max_size=8),
    finish=st.sampled_from(["stop", "tool_calls", "length", None]),
    last=st.integers(0, 2),
    mode=st.sampled_from(sorted(MODES)),
    live=st.booleans(),
    ascii_only=st.booleans(),
    compact=st.integers(0, 2**17 - 1),
    per_read=st.sampled_from([1, 2, 3, 99]),
    flowing=st.booleans(),
)
def test_an_answer_is_the_same_without_stencils(
    chunks: list[Any],
    finish: str | None,
    last: int,
    mode: str,
    live: bool,
    ascii_only: bool,
    compact: int,
    per_read: int,
    flowing: bool,
) -> None:
    """`compact`: bit n is set where event n has no blanks between its members. `per_read`: so many
    events come in one read."""
    case = next(case for case in CASES if case.id == "after-done")
    events = []
    for number, one in enumerate([*BEGINNING, *FLOWING[: 2 * flowing], *chunks, chunk({}, finish, x=last)]):
        separators = (",", ":") if compact >> number & 1 else (", ", ": ")
        try:
            text = json.dumps(one, ensure_ascii=ascii_only, separators=separators).encode()
        except UnicodeEncodeError:
            text = json.dumps(one, separators=separators).encode()
        events.append(b"data: " + text + b"\n\n")
    events = [b"".join(events[at : at + per_read]) for at in range(0, len(events), per_read)]
    found = said(case, mode, events, live)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("proxy.dialects.openai_chat.decode.Stencils", Nothing)
        assert said(case, mode, events, live) == found


LEAKED = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
FLOWS = [
    "a",
    " b",
    "c ",
    "\n",
    "é",
    "\u2028",
    "`",
    "```",
    '"',
    "<",
    LEAKED,
    LEAKED[:20],
    LEAKED[20:],
    "\ud83d",
    "\ude00",
]


@examples(400)
@given(
    texts=st.lists(st.sampled_from([*FLOWS[:5] * 3, *FLOWS]), min_size=4, max_size=12),
    finish=st.sampled_from(["stop", "length", None]),
    per_read=st.sampled_from([1, 2, 3]),
    quoted=st.booleans(),
    forms=st.lists(st.integers(0, 3), min_size=16, max_size=16),
)
def test_text_that_flows_is_answered_as_text_that_is_looked_at(
    texts: list[str], finish: str | None, per_read: int, quoted: bool, forms: list[int]
) -> None:
    """`forms`: how the first events are written. Both forms of text are known from the beginning on."""
    case = next(case for case in CASES if case.id == "after-done")
    chunks = [BEGINNING[0], *(chunk({"content": text}) for text in ["a", "a", *texts])]
    if quoted:  # a call beside which all of the text stands once more
        text = "".join(["aa", *texts])
        chunks.append(chunk({"content": text, **fragment(0, "{}", id="c0", name="get_x")["choices"][0]["delta"]}))
    chunks.append(chunk({}, finish))
    written = [0, 0, 1, *forms]
    events = []
    for number, one in enumerate(chunks):
        form = written[number] if number < len(written) else 0
        text = json.dumps(one, separators=(",", ":") if form == 1 else None)
        end = "\r" if form == 3 else ""  # white space in JSON, a line's end in an event
        events.append(f"data: {text}\n\n".replace('"}, "finish', f'"{end}}}, "finish').encode())
    events = [b"".join(events[at : at + per_read]) for at in range(0, len(events), per_read)]
    found = said(case, "annotate", events, live=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("proxy.exchange.Exchange.flow", lambda *_: False)
        assert said(case, "annotate", events, live=False) == found


def test_fragments_of_a_call_in_two_spellings_keep_their_order_when_they_come_together() -> None:
    case = next(case for case in CASES if case.id == "after-done")
    text = json.dumps({"city": "one two three four five six seven eight nine ten eleven twelve"})
    head = fragment(0, "", id="c0", type="function", name="get_x")
    chunks = [head, *(fragment(0, text[at : at + 4]) for at in range(0, len(text), 4)), chunk({}, "tool_calls")]
    spelt = [json.dumps(one, separators=((",", ":"), (", ", ": "))[n // 2 % 2]) for n, one in enumerate(chunks)]
    reply, *_ = said(case, "annotate", ["".join(f"data: {one}\n\n" for one in spelt).encode()], live=False)
    assert [call.arguments for call in reply.calls.values()] == [text]


def test_each_choice_has_its_own_call_in_progress_when_fragments_come_together() -> None:
    tools = [{"type": "function", "function": {"name": "get_x"}}]
    asked = {"model": "m", "messages": [], "stream": True, "n": 2, "tools": tools}
    fragments = [(1, 0, "{"), (0, 0, "{"), (1, 1, "{"), *[(1, 0, " "), (1, 1, " "), (0, 0, " ")] * 3]
    fragments += [(1, 1, "}"), (1, 0, "}"), (0, 0, "}")]  # of choice 1 the first call got the last one
    chunks = [
        *(choice(place, {"role": "assistant"}) for place in (0, 1)),
        *(
            choice(place, called(call, "", id=f"c{place}{call}", name="get_x"))
            for place, call in ((1, 0), (0, 0), (1, 1))
        ),
        *(choice(place, called(call, text)) for place, call, text in fragments),
        *(choice(place, {}, "length") for place in (0, 1)),
    ]
    events = [f"data: {json.dumps(one)}\n\n".encode() for one in chunks] + [b"data: [DONE]\n\n"]
    for pieces in (events, [b"".join(events)], [b"".join(events[:14]), b"".join(events[14:])]):
        recording = Recording("x", "", "openai-chat", tuple(pieces), asked, 200, {}, "eof")
        answer = run(openai_request.read(json.dumps(asked).encode()), recording, casefile.settings("annotate"))
        reply = casefile.read_reply(answer.status, answer.headers, bytes(answer.body), stream=True)
        told = {entry["id"]: entry["verdict"] for entry in reply.report}
        assert told == {"c00": "incomplete", "c10": "incomplete", "c11": "valid"}


PIECES = [
    b'"a"',
    b'"b\\"c"',
    b'"d"',
    b'","',
    b'"',
    b'""',
    b"1",
    b'"a","b"',
    b'"x\\"',
    b'["y"',
    b'"z"]',
    b"null",
    b"",
    b'"\xff"',
]


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(PIECES)), max_size=64))
def test_strings_that_are_read_together_are_those_that_are_read_one_by_one(pieces: list[tuple[int, bytes]]) -> None:
    def call(index: int, piece: bytes) -> bytes:
        return b'{"choices": [{"delta": {"tool_calls": [{"index": %d, "function": {"arguments": %b}}]}}]}' % (
            index,
            piece,
        )

    def taught() -> tuple[Stencils, list[Stencil]]:
        stencils, known = Stencils(), []
        for index in (0, 1):
            data = call(index, b'"{"')
            stencils.learn(data, json.loads(data), ARGUMENTS, 0, index)
            stencil = stencils.fit(data)
            assert stencil is not None
            stencil.texts = []
            known.append(stencil)
        return stencils, known

    payloads = [call(index, piece) for index, piece in pieces]
    one_by_one: list[list[str]] = [[], []]
    reader, _ = taught()
    for data in payloads:
        stencil = reader.fit(data)
        if stencil is None:
            break
        assert stencil.index is not None
        one_by_one[stencil.index].append(reader.text)

    stencils, known = taught()
    count = stencils.collect(payloads, 0)
    assert [stencil.texts for stencil in known] == one_by_one or count == 0
    assert count in (0, sum(map(len, one_by_one)))
    if all(piece in (b'"a"', b'"b\\"c"', b'"d"', b'","') for _, piece in pieces):
        assert count == len(pieces)
        assert stencils.collect(payloads * 65, 0) == 64 * bool(payloads)
