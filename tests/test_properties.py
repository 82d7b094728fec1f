"""Whatever bytes come, cut however: the same answer for the same bytes, a canonical one, and no exception.

The examples are the same in every run; `WHOLECALL_EXAMPLES=5000` draws that many new ones.
"""

from __future__ import annotations

import json
import os
from itertools import pairwise
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

import casefile
from casefile import MODES, Case, Reply
from proxy.dialects.openai_chat import request as openai_request
from proxy.faults import FaultKind
from proxy.model.calls import Verdict
from proxy.replay.inprocess import Answer, run
from proxy.replay.recording import Recording

CASES = casefile.read_all()
WANTED = int(os.environ.get("WHOLECALL_EXAMPLES", "0"))
CODES = {kind.value.code for kind in FaultKind} | set(Verdict)


def examples(count: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=WANTED or count,
        derandomize=not WANTED,
        database=None,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    )


def answer_to(case: Case, mode: str, pieces: list[bytes], *, repair: bool = True, end: Any = None) -> Answer:
    recording = Recording(
        case.id, "", "openai-chat", tuple(pieces), case.recording.request, case.recording.status,
        case.recording.headers, end or case.recording.end,
    )  # fmt: skip
    return run(openai_request.read(case.body), recording, casefile.settings(mode, repair=repair))


def understood(case: Case, mode: str, answer: Answer) -> Reply:
    """The answer as a strict client reads it, with everything asserted that holds for every answer."""
    stream = bool(case.recording.request.get("stream"))
    assert answer.record is not None
    reply = casefile.read_reply(answer.status, answer.headers, bytes(answer.body), stream=stream)
    assert reply.noncanonical == []
    assert (reply.error is None) == (reply.status < 400 and reply.done == 1)
    if reply.error is not None:
        assert reply.error["message"]
        assert reply.calls == {}
        assert answer.record.outcome in ("error", "blocked")
        assert answer.record.code
    else:
        assert answer.record.outcome in ("ok", "blocked")
    verdicts = {(entry["choice"], entry["sent_index"]): entry["verdict"] for entry in reply.report}
    for key, call in reply.calls.items():
        assert verdicts[key] != "incomplete"
        if mode != "annotate":
            assert verdicts[key] == "valid"
            assert isinstance(json.loads(call.arguments), dict)
    return reply


# --- cuts ----------------------------------------------------------------------------------------------------------


def split(data: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(point % (len(data) + 1) for point in points), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@examples(300)
@given(case=st.sampled_from(CASES), mode=st.sampled_from(sorted(MODES)), points=st.lists(st.integers(0, 1 << 20)))
def test_the_same_bytes_cut_anywhere_give_the_same_answer(case: Case, mode: str, points: list[int]) -> None:
    whole = b"".join(case.recording.pieces)
    once, cut = answer_to(case, mode, [whole]), answer_to(case, mode, split(whole, points))
    assert (cut.status, cut.headers, bytes(cut.body)) == (once.status, once.headers, bytes(once.body))


# --- junk ----------------------------------------------------------------------------------------------------------

TOKENS = [
    b"\n\n", b"\r", b"\n", b"data: ", b"data: [DONE]\n\n", b"event: error\n", b": x\n", b"null", b"{", b"}", b"[", b"]",
    b'"', b"\\", b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\\ud83d", b"\\udc00", b'"id":""', b'"index":-1,',
    b'"error":{"message":"x"},', b'"choices":[],', b'"tool_calls":{},', b'"finish_reason":"stop",', b"1e999",
    b"123456789012345678901234567890", b"\x00",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Case, bytes]:
    """A case, and its bytes after some deletions, repetitions and insertions."""
    case = draw(st.sampled_from(CASES))
    data = b"".join(case.recording.pieces)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        span = draw(st.integers(0, 60))
        match draw(st.sampled_from(["delete", "repeat", "insert", "cut"])):
            case "delete":
                data = data[:at] + data[at + span :]
            case "repeat":
                data = data[: at + span] + data[at:]
            case "insert":
                data = data[:at] + draw(st.sampled_from(TOKENS)) + data[at:]
            case "cut":
                data = data[: max(at, 1)]
    return case, data


@examples(400)
@given(damage=damaged(), mode=st.sampled_from(sorted(MODES)), end=st.sampled_from(["eof", "reset"]))
def test_damaged_bytes_give_a_canonical_answer_or_a_declared_error(
    damage: tuple[Case, bytes], mode: str, end: str
) -> None:
    case, data = damage
    understood(case, mode, answer_to(case, mode, [data], end=end))


@examples(200)
@given(case=st.sampled_from(CASES), data=st.binary(max_size=400), mode=st.sampled_from(sorted(MODES)))
def test_random_bytes_give_a_declared_error(case: Case, data: bytes, mode: str) -> None:
    reply = understood(case, mode, answer_to(case, mode, [data]))
    assert reply.error is not None
    assert case.recording.status != 200 or reply.error["code"] in CODES


# --- odd deltas ----------------------------------------------------------------------------------------------------

ARGUMENTS = ['{"title":', '"a"}', '{"title":"a"}', "{}", "", "null", '"', "</s>", "\ud83d", "\ude00", "NaN"]
ODD: Any = st.sampled_from([None, "", [], {}, 0, -1, True, 1.5, "0", "x", 10**25, ["y"], {"z": 1}])


def fields(**known: Any) -> Any:
    """An object with some of the known fields; one in four holds an odd value, and any may be absent."""
    return st.fixed_dictionaries(
        {}, optional={key: st.one_of(value, value, value, ODD) for key, value in known.items()}
    )


FUNCTION = fields(
    name=st.sampled_from(["save_note", "ping", "save_", "note", "nope"]), arguments=st.sampled_from(ARGUMENTS)
)
ENTRY = fields(
    index=st.integers(0, 2), id=st.sampled_from(["c1", "c2", "null"]), type=st.just("function"), function=FUNCTION
)
TEXT = st.sampled_from(["Hi ", "\n", "there", "\u2028", "\ud83d", "\ude00"])
DELTA = fields(
    role=st.just("assistant"), content=TEXT, reasoning_content=TEXT, reasoning=TEXT,
    tool_calls=st.lists(ENTRY, max_size=2), function_call=FUNCTION,
)  # fmt: skip
FINISH = st.sampled_from(["stop", "length", "tool_calls"])
CHOICE = fields(index=st.integers(0, 1), delta=DELTA, message=DELTA, finish_reason=FINISH)
USAGE = st.just({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3})
CHUNK = fields(
    id=st.sampled_from(["cc-1", "cc-2"]), object=st.just("chat.completion.chunk"), created=st.just(1790000000),
    model=st.just("m"), choices=st.lists(CHOICE, max_size=2), usage=USAGE,
)  # fmt: skip
BY_ID = {case.id: case for case in CASES}
ASKED = [BY_ID[name] for name in ("after-done", "stream-for-json", "usage-on-finish-chunk", "choices-two-with-calls")]


@examples(600)
@given(
    case=st.sampled_from(ASKED),
    chunks=st.lists(CHUNK, max_size=8),
    done=st.booleans(),
    mode=st.sampled_from(sorted(MODES)),
)
def test_odd_deltas_give_a_canonical_answer_however_they_are_cut(
    case: Case, chunks: list[Any], done: bool, mode: str
) -> None:
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    events += [b"data: [DONE]\n\n"] * done
    answer = answer_to(case, mode, events)
    understood(case, mode, answer)
    assert bytes(answer_to(case, mode, [b"".join(events)]).body) == bytes(answer.body)


# --- text ----------------------------------------------------------------------------------------------------------

ENVELOPE = {"id": "cc-1", "object": "chat.completion.chunk", "created": 1790000000, "model": "test-model"}
LETTERS = st.text(
    st.sampled_from(["a", " ", "\n", "é", "😀", "\ud83d", "\ude00", "\u2028", "\x00", '"', "<"]), min_size=1
)


@examples(400)
@given(
    texts=st.lists(LETTERS, max_size=6),
    name=st.sampled_from(["content", "reasoning_content"]),
    ascii_only=st.booleans(),
)
def test_no_character_of_a_text_is_lost_or_added(texts: list[str], name: str, ascii_only: bool) -> None:
    deltas: list[Any] = [{"role": "assistant", "content": ""}, *({name: text} for text in texts)]
    events = [{**ENVELOPE, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({**ENVELOPE, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    pieces = [b"data: " + _dumped(event, ascii_only) + b"\n\n" for event in events]
    answer = answer_to(BY_ID["after-done"], "block", [*pieces, b"data: [DONE]\n\n"])
    understood(BY_ID["after-done"], "block", answer)
    chunks = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
    got = "".join(choice["delta"].get(name) or "" for chunk in chunks for choice in chunk["choices"])
    # What is no pair of halves in the whole text was lost before it came here.
    assert got == "".join(texts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _dumped(event: Any, ascii_only: bool) -> bytes:
    text = json.dumps(event, ensure_ascii=ascii_only)
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a character has no UTF-8 form
        return json.dumps(event).encode()


@pytest.mark.parametrize("mode", MODES)
def test_an_endless_chain_of_odd_ends_still_finishes(mode: str) -> None:
    case = BY_ID["after-done"]
    events = [b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', b": ping\n\n"] * 500
    assert understood(case, mode, answer_to(case, mode, events, end="reset")).finish == {0: "stop"}
