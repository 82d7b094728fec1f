"""What the inspector keeps, how it masks, and the case files that it gives."""

from __future__ import annotations

import gzip
import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import casefile
from casefile import Case
from dialect_clients import CLIENTS
from proxy.cli import main as wholecall
from proxy.config import Inspector
from proxy.config.mask import Mask
from proxy.dialects import CLIENT_DIALECTS
from proxy.faults import Fault, FaultKind
from proxy.model.calls import Verdict
from proxy.model.requests import Request
from proxy.replay.recording import Recording
from proxy.server.entry import Entry
from proxy.server.inspector import view
from proxy.server.inspector.notes import Asking, Kept, Notes, Tape
from proxy.server.inspector.redact import Masker, span_of, tokens
from upstream_writers import WRITERS, Made, Pen, Said, Text, Thought, Writer
from watched import SETTINGS, judged_again, ring, watch

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "unit": {"enum": ["celsius", "kelvins"]},
        "days": {"type": "integer", "minimum": 1},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]


def request(stream: bool = True, **more: Any) -> Request:
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "PROMPTED"}], "tools": TOOLS}
    return CLIENT_DIALECTS["openai-chat"].read(json.dumps({**body, **more}).encode())


def chat(*fragments: str, name: str = "get_weather", finish: str = "tool_calls") -> Recording:
    def event(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        document = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
        return f"data: {json.dumps(document)}\n\n".encode()

    head = {"index": 0, "id": "call_9", "type": "function", "function": {"name": name, "arguments": ""}}
    pieces = [event({"tool_calls": [head]})]
    pieces += [event({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}) for text in fragments]
    pieces += [event({}, finish), b"data: [DONE]\n\n"] if finish else []
    return Recording("a", "", "openai-chat", tuple(pieces), headers={"content-type": "text/event-stream"})


def seen(*fragments: str, redact: bool = False, **more: Any) -> dict[str, Any]:
    """A reply with one call, as the page gets it."""
    kept, _ = watch(ring(redact=redact), request(), chat(*fragments, **more))
    shown: dict[str, Any] = read(view.detail(kept))
    return shown


def read(value: Any) -> Any:
    return json.loads(view.dumped(value))


# --- what is kept --------------------------------------------------------------------------------------------------


def test_a_reply_is_kept_with_what_came_what_was_sent_and_its_call() -> None:
    kept, answer = watch(ring(redact=False), request(), chat('{"city": ', '"Oslo"}'))
    assert bytes(kept.sent.data) == answer.body
    shown = read(view.detail(kept))
    assert [event["n"] for event in shown["attempts"][0]["events"]] == [1, 2, 3, 4, 5]
    assert shown["attempts"][0]["events"][1]["text"].startswith("data: {")
    call = shown["calls"][0]
    assert (call["name"], call["verdict"], call["sent_index"]) == ("get_weather", "valid", 0)
    assert [(part["text"], part["event"]) for part in call["fragments"]] == [('{"city": ', 2), ('"Oslo"}', 3)]
    assert [event["calls"] for event in shown["sent"]["events"] if event["calls"]] == [[[0, 0]]]


def test_where_the_bytes_were_cut_changes_only_the_times() -> None:
    recording = chat('{"city": ', '"Oslo"}')
    whole = b"".join(recording.pieces)
    views = []
    for pieces in (recording.pieces, [whole], [whole[at : at + 3] for at in range(0, len(whole), 3)]):
        kept, _ = watch(ring(), request(), recording, pieces)
        views.append(read(view.detail(kept))["attempts"][0]["events"])
    assert views[0] == views[1] == views[2]


def test_an_error_is_marked_at_its_place_in_the_arguments() -> None:
    marked = {
        '{"city": "Oslo", "days": 0}': "0",
        '{"city": "Oslo", "days": "two"}': '"two"',
        '{"days": 2}': '{"days": 2}',
        '{"city": ["a", {"b": 1}]}': '["a", {"b": 1}]',
        '{"city": "Oslo" "days": 2}': '"',
        '{"city": "Oslo", "days"': "",
    }
    for arguments, place in marked.items():
        call = seen(arguments)["calls"][0]
        assert call["verdict"] in ("schema_violation", "invalid_json"), arguments
        parts = call["arguments"]
        assert "".join(part["text"] for part in parts) == arguments
        assert [part["text"] for part in parts if part["marked"]] == [place]


def test_text_that_takes_the_short_way_is_kept_on_both_sides() -> None:
    def said(text: str) -> bytes:
        choices = [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
        document = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
        return f"data: {json.dumps(document, separators=(',', ':'))}\n\n".encode()

    entry = Entry("r", 0.0, dialect="openai-chat")
    exchange = ring().watch(entry, "m")(request(), SETTINGS, seed="s", created=1)
    exchange.opened(200, {"content-type": "text/event-stream"}, 0.0)
    exchange.receive(said("") + said("One"), 0.1)
    exchange.receive(said(" two"), 0.2)
    assert exchange.flow(said(" three"), 0.3)
    assert not exchange.flow(b": four\n\n", 0.4)
    assert entry.notes is not None
    assert entry.notes.asked[0].tape.data.endswith(said(" two") + said(" three"))
    assert entry.notes.sent.data.endswith(said(" three"))
    assert entry.notes.sent.data.count(b" three") == 1


def test_a_reply_that_broke_off_shows_its_unfinished_call() -> None:
    shown = seen('{"city": "Os', finish="")
    assert [call["verdict"] for call in shown["calls"]] == ["incomplete"]
    assert shown["attempts"][0]["end"] == "eof"
    assert shown["problem"]


def test_a_backend_that_cannot_be_reached_is_an_attempt_without_a_reply() -> None:
    into = ring()
    entry = Entry("r", 0.0, dialect="openai-chat", backend="down")
    exchange = into.watch(entry, "m")(request(), SETTINGS, seed="s", created=1)
    exchange.broken(Fault(FaultKind.UNREACHABLE, "nobody there"), 0.1)
    exchange.abandon(Fault(FaultKind.UNREACHABLE, "nobody there"), 0.2)
    assert entry.notes is not None
    entry.record = exchange.record
    entry.notes.finish(entry)
    shown = read(view.detail(into.after(0)[0]))
    assert [(a["backend"], a["fault"], a["events"]) for a in shown["attempts"]] == [("down", "unreachable", [])]
    assert (shown["outcome"], shown["code"]) == ("error", "unreachable")


def test_credentials_that_a_backend_quotes_are_not_kept_even_without_redaction() -> None:
    entry = Entry(
        "r", 0.0, dialect="openai-chat", backend="b", model="m", key="client-key-1", mask=Mask(["backend-key-2"])
    )
    recording = chat('{"city": "client-', 'key-1 backend-key-2"}')
    quoting = (recording.pieces[0], b": client-key-1 backend-key-2\n\n", *recording.pieces[1:])
    kept, _ = watch(ring(redact=False), request(), recording, quoting, entry=entry)
    for text in (repr(kept), view.dumped(view.detail(kept)).decode(), view.dumped(view.case(kept, 0)).decode()):
        assert "backend-key" not in text
        assert "client-key-1 backend" not in text
    assert kept.calls[0].text == '{"city": "************ *************"}'
    assert bytes(kept.asked[0].tape.data).count(b"client-key-1") == 0


def packed(recording: Recording, damage: bytes = b"") -> Recording:
    """The same reply in gzip, with its last bytes replaced by these."""
    body = gzip.compress(b"".join(recording.pieces), mtime=0)
    body = body[: len(body) - len(damage)] + damage
    headers = {**recording.headers, "content-encoding": "gzip"}
    return replace(recording, pieces=tuple(body[at : at + 50] for at in range(0, len(body), 50)), headers=headers)


def test_a_compressed_reply_is_kept_as_what_it_says_without_the_credentials() -> None:
    entry = Entry("r", 0.0, dialect="openai-chat", backend="b", model="m", mask=Mask(["backend-key-2"]))
    recording = chat('{"city": "Bern"}')
    quoting = replace(recording, pieces=(b": the backend-key-2 is bad\n\n", *recording.pieces))
    kept, _ = watch(ring(redact=False), request(), packed(quoting), entry=entry)
    said = b"".join(quoting.pieces).replace(b"backend-key-2", b"*" * 13)
    assert bytes(kept.asked[0].tape.data) == said
    assert kept.asked[0].tape.ends[-1] == len(said)
    assert "backend-key" not in view.dumped([view.detail(kept), view.case(kept, 0)]).decode()


@pytest.mark.parametrize("redact", [True, False])
@pytest.mark.parametrize(("broken", "verdicts"), [(b"checksum", [Verdict.VALID]), (b"\7" * 60, [])])
def test_a_compressed_reply_that_breaks_is_kept_up_to_there(
    broken: bytes, verdicts: list[Verdict], redact: bool
) -> None:
    kept, answer = watch(ring(redact=redact), request(), packed(chat('{"city": "Bern"}'), broken))
    assert len(kept.asked[0].tape.data) > 100
    again = judged_again(read(view.case(kept, 0)))
    assert answer.record is not None
    assert again.record is not None
    assert again.record.verdicts == answer.record.verdicts == verdicts


# --- bounds --------------------------------------------------------------------------------------------------------


def kept(size: int) -> Kept:
    asking = Asking((), "auto", None, True, 1)
    fields: dict[str, Any] = dict.fromkeys(Kept.__dataclass_fields__)
    return Kept(**{**fields, "size": size, "asking": asking, "sent": Tape()})


def test_the_oldest_goes_first_when_there_are_too_many() -> None:
    into = ring(entries=3)
    for _ in range(5):
        assert into.reserve(100)
        into.keep(kept(100))
    assert [one.number for one in into.after(0)] == [3, 4, 5]
    assert (into.bytes, into.oldest, into.newest) == (300, 3, 5)
    assert into.get(2) is None


def test_the_oldest_goes_first_when_they_are_too_large_and_running_ones_count() -> None:
    into = ring(bytes=4096, entry_bytes=4096)
    for _ in range(4):
        assert into.reserve(1000)
        into.keep(kept(1000))
    assert into.reserve(2000)  # of one that runs
    assert [one.number for one in into.after(0)] == [3, 4]
    assert into.reserve(2000)
    assert into.after(0) == []
    assert not into.reserve(1000)
    assert into.bytes == 4000


def test_a_smaller_bound_holds_at_once_and_what_was_masked_stays_so() -> None:
    into = ring(entries=3, redact=True)
    watch(into, request(), chat('{"city": "Oslo"}'))
    into.configure(Inspector(entries=1, redact=False))
    watch(into, request(), chat('{"city": "Rome"}'))
    watch(into, request(), chat('{"city": "Bern"}'))
    assert [one.number for one in into.after(0)] == [3]
    into.configure(Inspector(entries=1, redact=True))
    assert "Bern" in view.dumped(view.detail(into.after(0)[0])).decode()


@given(sizes=st.lists(st.integers(0, 9000), max_size=40), bound=st.integers(4096, 20_000))
def test_the_bound_in_bytes_holds_whatever_comes(sizes: list[int], bound: int) -> None:
    into = ring(bytes=bound, entry_bytes=4096, entries=5)
    for size in sizes:
        if into.reserve(size):
            into.keep(kept(size))
        assert into.bytes <= bound
        assert into.bytes == sum(one.size for one in into.after(0))
        assert len(into.after(0)) <= 5


def test_what_is_too_large_is_kept_cut_and_says_so() -> None:
    into = ring(entry_bytes=8192, redact=False)
    recording = chat('{"city": "', *["Oslo" * 100] * 40, '"}')
    one, answer = watch(into, request(), recording)
    assert one.cut
    assert one.size <= 8192
    body = bytes(one.asked[0].tape.data)
    assert b"".join(recording.pieces).startswith(body)
    assert len(answer.body) > 16_000  # the client's answer is whole
    assert read(view.summary(one))["cut"]
    case = read(view.case(one, 0))
    assert "cut" in case["fault"]
    assert case["upstream"]["end"] == "reset"


def test_an_exchange_that_holds_much_gives_it_back_when_it_is_over() -> None:
    into = ring(bytes=10_000, entry_bytes=10_000)
    for _ in range(30):
        watch(into, request(), chat('{"city": "' + "a" * 300 + '"}'))
    assert into.bytes == sum(one.size for one in into.after(0)) <= 10_000
    assert into.newest == 30


# --- masks ---------------------------------------------------------------------------------------------------------


def masked(text: str, schema: Any = SCHEMA) -> str:
    return Masker({"get_weather": json.dumps(schema).encode()}).arguments(text)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ('{"city": "New York", "days": 12}', '{"city": "xxx xxxx", "days": 11}'),
        ('{"a": ["Oslo", "Rome", "Oslo"]}', '{"a": ["xxxx", "xxx1", "xxxx"]}'),
        ('{"a": 1.50, "b": -3e5, "c": 0, "d": 7.0, "e": true}', '{"a": 1.11, "b": -1e5, "c": 0, "d": 2.0, "e": true}'),
        (r'{"a": "x\n\"\u00e9\ud83d\ude00é"}', r'{"a": "x\n\"\u0078\ud83d\ude00x"}'),
        ('{"city": "Os', '{"city": "xx'),
        ('{"a" "secret": "secret"', '{"x" "xxxxxx": "xxxxxx"'),
        ("{'city': 'Oslo'}", "{'city': 'xxxx'}"),
        ("{city: Oslo}", "{city: xxxx}"),
        ('{"city": "Oslo"}</s>', '{"city": "xxxx"}</s>'),
        ("007 is secret", "011 xx xxxxxx"),
        (r'"{\"city\": \"Oslo\"}"', r'"{\"city\": \"xxxx\"}"'),
        ("", ""),
    ],
)
def test_values_are_masked_and_the_shape_stays(text: str, mask: str) -> None:
    assert masked(text) == mask


def test_the_words_of_an_enum_are_masked_alike_in_the_schema_and_the_arguments() -> None:
    masker = Masker({"get_weather": json.dumps(SCHEMA).encode()})
    schema = masker.schema(json.dumps(SCHEMA).encode())
    assert schema["properties"]["unit"] == {"enum": ["xxxxxxx", "xxxxxx1"]}
    assert masker.arguments('{"unit": "kelvins"}') == '{"unit": "xxxxxx1"}'
    assert masker.arguments('{"unit": "degrees"}') == '{"unit": "xxxxxx2"}'
    assert schema["properties"]["city"] == {"type": "string"}
    assert "minimum" not in schema["properties"]["days"]
    kept_rule = masker.schema(json.dumps(SCHEMA).encode(), frozenset({"minimum"}))
    assert kept_rule["properties"]["days"]["minimum"] == 1


@given(st.text(st.sampled_from('ab"\\{}[]:, \n01.-eé\U0001f600\ud800'), max_size=40))
def test_a_mask_is_as_long_as_what_it_stands_for_and_masks_to_itself(text: str) -> None:
    assert "".join(text[token.start : token.end] for token in tokens(text)) == text
    assert len(masked(text)) == len(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=6),
        lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3),
    ),
    st.booleans(),
)
def test_masked_json_is_json_of_the_same_shape(value: Any, ascii_only: bool) -> None:
    def shape(one: Any) -> Any:
        match one:
            case dict():
                return {key: shape(inner) for key, inner in one.items()}
            case list():
                return [shape(inner) for inner in one]
            case str():
                return len(one)
        return type(one)

    text = json.dumps(value, ensure_ascii=ascii_only)
    if isinstance(value, str):
        text = f"[{text}]"
    again = json.loads(masked(text, {}))
    assert shape(again[0] if isinstance(value, str) else again) == shape(value)


@given(st.lists(st.text(st.sampled_from("ABCDEFGHIJ"), min_size=4, max_size=9), unique=True, max_size=60))
def test_different_values_stay_different_and_equal_ones_equal(values: list[str]) -> None:
    again = json.loads(masked(json.dumps(values + values)))
    assert again[: len(values)] == again[len(values) :]
    assert len(set(again)) == len(values)


def test_a_place_is_found_by_its_pointer() -> None:
    text = '{"a": [1, {"b/c": "x"}], "d": {"e": 2}, "f": [3'
    places = {"/a": '[1, {"b/c": "x"}]', "/a/1/b~1c": '"x"', "/d/e": "2", "/f/0": "3", "/f": "[3", "": text}
    for pointer, place in places.items():
        span = span_of(text, pointer)
        assert span is not None
        assert text[span[0] : span[1]] == place
    assert span_of(text, "/nothing") is None


# Words of at least four letters that only a value can have brought: there is no X among them, and no digit.
WORDS = st.text(st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWYZ"), min_size=4, max_size=12)
PROSE = st.lists(WORDS, min_size=1, max_size=3).map(" ".join)
VALUES = st.recursive(
    PROSE | st.integers(-99, 99) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcde"), inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["city", "unit", "days", "more"]), VALUES, max_size=4)
DAMAGE = st.sampled_from(["none", "none", "cut", "comma", "quote", "fields", "tail"])


@st.composite
def replies(draw: st.DrawFn) -> Said:
    def made(number: int) -> Made:
        text = json.dumps(draw(ARGUMENTS))
        name = draw(st.just("get_weather") | WORDS | WORDS.map("get_weather<|{}".format))
        return Made(f"{draw(WORDS)}_{number}", name, text)

    kinds = draw(st.lists(st.sampled_from([Text, Thought, Made, Made]), min_size=1, max_size=5))
    return Said([made(n) if kind is Made else kind(draw(PROSE)) for n, kind in enumerate(kinds)])


FIELDS = b"id: IDENTIFIER\nretry: AGAINST\n: COMMENTED\nUNKNOWN: FIELD\nevent: HAPPENING\nJUNKLINE\n"


def damaged(body: bytes, how: str, draw: random.Random) -> bytes:
    """As a bad network or backend leaves it; keys are lower case and values upper case all the same."""
    at = draw.randrange(len(body) + 1)
    match how:
        case "cut":
            return body[:at]
        case "comma":
            return body[:at].replace(b",", b"", 1) + body[at:]
        case "quote":
            return body[:at] + b'"' + body[at:]
        case "fields":
            return FIELDS + body
        case "tail":
            return body + b'\n{"over": "LEFTOVER"}\nLEFTOVER'
    return body


@settings(max_examples=20)
@given(said=replies(), seed=st.integers(0, 1 << 16), damage=DAMAGE, client=st.sampled_from(sorted(CLIENT_DIALECTS)))
@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_no_value_comes_out_where_values_are_masked(
    writer: Writer, said: Said, seed: int, damage: str, client: str
) -> None:
    draw = random.Random(seed)
    body = damaged(b"".join(writer.write(writer.fitting(said), Pen(draw))), damage, draw)
    recording = Recording(
        "a", "", writer.dialect, (body,), headers={"content-type": f"{writer.content_type}; a=PARAMETER"}
    )
    bodies: dict[str, dict[str, Any]] = {
        "openai-chat": {"messages": [{"role": "user", "content": "QUESTION"}], "tools": TOOLS},
        "openai-responses": {
            "input": "QUESTION",
            "tools": [{"type": "function", "name": "get_weather", "parameters": SCHEMA}],
        },
        "anthropic-messages": {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "QUESTION"}],
            "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
        },
    }
    asked = {"model": "m", "stream": writer.content_type != "application/json", **bodies[client]}
    kept, _ = watch(ring(), CLIENT_DIALECTS[client].read(json.dumps(asked).encode()), recording)
    shown = view.dumped([view.summary(kept), view.detail(kept), view.case(kept, 0)]).decode()
    words = set(re.findall("[A-WYZ]{4,}", re.sub(r"\\+u[0-9a-f]{4}", " ", shown)))
    assert words <= {"DONE"} | set(re.findall("[A-Z]{4,}", "STOP MAX_TOKENS SAFETY MALFORMED_FUNCTION_CALL"))


# --- case files ----------------------------------------------------------------------------------------------------

CASES = casefile.read_all(*casefile.FOLDERS)
# What is quoted in the question is no leak, and the question is not kept.
NEEDS_THE_QUESTION = {"quotation-in-a-fence-runs", "quotation-in-a-group-runs"}


@pytest.mark.parametrize("redact", [True, False], ids=["masked", "as it was"])
def test_a_case_file_is_judged_as_the_reply_was(redact: bool) -> None:
    client = CLIENTS["openai-chat"]
    differ = []
    for case in filter(client.takes, CASES):
        kept, answer = watch(
            ring(redact=redact, entry_bytes=1 << 27, bytes=1 << 28), client.request(case), case.recording
        )
        again = judged_again(read(view.case(kept, 0)))
        assert answer.record is not None
        assert again.record is not None
        same = (again.record.verdicts, again.record.outcome) == (answer.record.verdicts, answer.record.outcome)
        excused = kept.recovered if redact else case.id in NEEDS_THE_QUESTION
        if not same and not excused:
            differ.append((case.id, answer.record.verdicts, again.record.verdicts))
    assert differ == []


def test_a_masked_case_says_so_and_holds_neither_question_nor_values() -> None:
    kept, _ = watch(ring(), request(), chat('{"city": "Oslo", "days": 0}'))
    case = read(view.case(kept, 0))
    text = json.dumps(case)
    assert "PROMPTED" not in text
    assert "Oslo" not in text
    assert "masked" in case["fault"]
    assert case["inspected"]["verdicts"] == ["schema_violation"]
    assert case["request"]["tools"][0]["function"]["parameters"]["properties"]["days"] == {
        "type": "integer",
        "minimum": 1,
    }


@pytest.mark.parametrize("dialect", ["openai-chat", "openai-responses", "anthropic-messages", "gemini", "ollama-chat"])
def test_the_replay_command_reads_a_case_file_of_any_dialect(dialect: str, tmp_path: Any) -> None:
    writer = next(writer for writer in WRITERS.values() if writer.dialect == dialect)
    said = writer.fitting(Said([Made("id_1", "get_weather", '{"city": "Oslo"}'), Made("id_2", "gone", "{}")]))
    body = tuple(writer.write(said, Pen(random.Random(1))))
    recording = Recording("a", "", dialect, body, headers={"content-type": writer.content_type})
    kept, _ = watch(ring(), request(), recording)
    file = tmp_path / "case.json"
    file.write_bytes(view.dumped(view.case(kept, 0)))
    done = CliRunner().invoke(wholecall, ["replay", "--json", str(file)])
    assert done.exit_code == 1, done.output
    assert [call["verdict"] for call in json.loads(done.output)[0]["calls"]] == ["valid", "unknown_tool"]


def test_a_choice_of_tools_goes_into_the_case_file() -> None:
    forced = {"type": "function", "function": {"name": "get_weather"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [forced]}}
    for choice in ("none", "required", forced, allowed):
        asked = request(tool_choice=choice, parallel_tool_calls=False)
        kept, answer = watch(ring(), asked, chat('{"city": "Oslo"}'))
        case = read(view.case(kept, 0))
        assert case["request"]["tool_choice"] == choice
        assert case["request"]["parallel_tool_calls"] is False
        again = judged_again(case)
        assert answer.record is not None
        assert again.record is not None
        assert again.record.verdicts == answer.record.verdicts


def test_bytes_that_are_no_utf8_are_kept_as_they_are() -> None:
    recording = chat('{"city": "Oslo"}')
    broken = (recording.pieces[0], b"data: \xff\xfe\n\n", *recording.pieces[1:])
    kept, answer = watch(ring(), request(), recording, broken)
    case = read(view.case(kept, 0))
    assert any(isinstance(item, dict) and "fffe" in item["$hex"] for item in case["upstream"]["body"])
    again = judged_again(case)
    assert again.record is not None
    assert answer.record is not None
    assert (again.record.verdicts, again.record.code) == (answer.record.verdicts, answer.record.code)


def test_notes_are_all_that_a_watched_exchange_adds() -> None:
    """The client's bytes are those of an exchange that nobody watches."""
    for case in casefile.read_all("own", "gemini"):
        client = CLIENTS["openai-chat"]
        if client.takes(case):
            assert_unchanged(case)


def assert_unchanged(case: Case) -> None:
    from proxy.replay.inprocess import run

    asked = CLIENTS["openai-chat"].request(case)
    _, watched = watch(ring(), asked, case.recording)
    assert watched.body == run(asked, case.recording, SETTINGS).body


def test_notes_show_nothing_of_its_own_accord() -> None:
    entry = Entry("r", 0.0, key="client-key-1")
    entry.notes = Notes(ring(), "m", 0.0)
    assert "Notes" not in repr(entry)
