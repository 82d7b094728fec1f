"""The Responses dialect, as an upstream's and as a client's, through the whole core."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import casefile
import responses_client
from casefile import CUTS
from proxy.dialects.openai_chat import request as chat_request
from proxy.dialects.openai_responses import request as responses_request
from proxy.exchange import Exchange, ExchangeSettings
from proxy.faults import Fault, FaultKind
from proxy.model.calls import JudgedCall, Verdict
from proxy.model.commands import Command, Send
from proxy.model.conversation import (
    CallPart,
    Conversation,
    ImagePart,
    Options,
    ResultPart,
    TextPart,
    ThinkingPart,
    ToolDeclaration,
    Turn,
)
from proxy.model.findings import Quirk
from proxy.model.requests import ToolChoice
from proxy.replay.inprocess import run
from proxy.replay.recording import Recording
from responses_client import Answer

NAME = "openai-responses"
TOOLS = [
    {"type": "function", "name": "lookup", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
    {"type": "custom", "name": "patch"},
]


def sse(*events: dict[str, Any]) -> tuple[bytes, ...]:
    return tuple(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


def ask(
    events: Iterable[dict[str, Any]] | bytes,
    *,
    dialect: str = NAME,
    mode: str = "annotate",
    end: Any = "eof",
    **fields: Any,
) -> Answer:
    """What a strict Responses client gets of these upstream events (or of this plain body)."""
    pieces = (events,) if isinstance(events, bytes) else sse(*events)
    body = {"model": "m", "stream": True, "input": "go", "tools": TOOLS, **fields}
    kind = "application/json" if isinstance(events, bytes) else "text/event-stream"
    recording = Recording("r", "", dialect, pieces, headers={"content-type": kind}, end=end)
    answer = run(responses_request.read(json.dumps(body).encode()), recording, casefile.settings(mode))
    got = responses_client.read(answer.status, answer.headers, bytes(answer.body), stream=body["stream"])
    assert got.reply.noncanonical == []
    return got


def created(**fields: Any) -> dict[str, Any]:
    response = {"id": "resp_u", "object": "response", "created_at": 17, "model": "m-1", "status": "in_progress"}
    return {"type": "response.created", "response": {**response, "output": [], **fields}}


def ended(output: list[Any] | None = None, status: str = "completed", **fields: Any) -> dict[str, Any]:
    response = {**created()["response"], "status": status, "output": output or [], **fields}
    return {"type": f"response.{status}", "response": response}


def added(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def text(index: int, delta: str, **fields: Any) -> dict[str, Any]:
    place = {"output_index": index, "item_id": f"msg_{index}", "content_index": 0}
    return {"type": "response.output_text.delta", **place, "delta": delta, **fields}


def call(number: int, arguments: str = '{"q":"x"}', **fields: Any) -> dict[str, Any]:
    item = {"id": f"fc_{number}", "type": "function_call", "status": "completed", "call_id": f"call_{number}"}
    return {**item, "name": "lookup", "arguments": arguments, **fields}


def message(index: int, words: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": words, "annotations": []}
    item = {"id": f"msg_{index}", "type": "message", "role": "assistant", "status": "completed"}
    return {**item, "content": [part] if words else [], **fields}


# --- what survives from upstream to client of this dialect -----------------------------------------------------------


def test_phase_annotations_logprobs_and_unknown_fields_survive() -> None:
    note = {"type": "url_citation", "url": "https://x.test", "start_index": 0, "end_index": 2}
    place = {"output_index": 0, "item_id": "msg_0", "content_index": 0, "annotation_index": 0}
    final = message(0, "Hi", phase="commentary", flavour="mint")
    final["content"][0] |= {"annotations": [note], "logprobs": [{"token": "Hi", "logprob": -0.1}]}
    events = [
        created(service_tier="flex", orbit=7),
        added(0, message(0, "", phase="commentary", status="in_progress")),
        text(0, "Hi", logprobs=[{"token": "Hi", "logprob": -0.1}], obfuscation="zzz"),
        {"type": "response.output_text.annotation.added", **place, "annotation": note},
        done(0, final),
        ended([final], service_tier="flex", orbit=7, usage={"input_tokens": 1, "output_tokens": 2, "odd": 3}),
    ]
    got = ask(events)
    assert got.items == [final]
    assert got.response["service_tier"] == "flex"
    assert got.response["orbit"] == 7
    assert got.response["usage"]["odd"] == 3
    assert "response.output_text.annotation.added" in got.events
    assert b"obfuscation" not in got.reply.raw
    assert got.response["id"] == "resp_u"


def test_hosted_tools_pass_and_their_events_are_numbered_anew() -> None:
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}}
    where = {"output_index": 4, "item_id": "ws_1"}
    events = [
        created(),
        added(4, {**search, "status": "in_progress"}),
        {"type": "response.web_search_call.searching", **where},
        {"type": "response.web_search_call.completed", **where},
        done(4, search),
        added(7, message(7, "")),
        text(7, "found"),
        done(7, message(7, "found")),
        ended([search, message(7, "found")]),
    ]
    got = ask(events)
    assert [item["type"] for item in got.items] == ["web_search_call", "message"]
    assert got.items[0] == search
    assert "response.web_search_call.searching" in got.events


def test_hosted_tools_that_run_side_by_side_come_one_after_the_other_and_whole() -> None:
    items = [{"id": f"ws_{i}", "type": "web_search_call", "status": "completed", "found": i} for i in range(3)]
    begun = [added(i, {**item, "status": "in_progress", "found": None}) for i, item in enumerate(items)]
    events = [created(), *begun, done(2, items[2]), done(0, items[0]), done(1, items[1]), ended(items)]
    assert ask(events).items == items


def test_unknown_events_are_not_passed_on_and_are_reported() -> None:
    odd: list[dict[str, Any]] = [
        {"type": "keepalive"},
        {"type": "response.weather", "output_index": 0},
        {"type": "codex.limits"},
    ]
    got = ask([created(), *odd, text(0, "a"), *odd, ended([message(0, "a")])])
    assert not {"keepalive", "response.weather", "codex.limits"} & set(got.events)
    assert Quirk.FOREIGN_EVENT in got.reply.quirks


def test_a_reasoning_item_stays_before_its_call() -> None:
    sealed = [{"id": f"rs_{i}", "type": "reasoning", "summary": [], "encrypted_content": f"seal{i}"} for i in (0, 2)]
    items = [sealed[0], call(1), sealed[1], call(3)]
    events = [e for i, item in enumerate(items) for e in (added(i, item), done(i, item))]
    got = ask([created(), *events, ended(items)])
    assert [item["id"] for item in got.items] == ["rs_0", "fc_1", "rs_2", "fc_3"]
    assert [item.get("encrypted_content") for item in got.items] == ["seal0", None, "seal2", None]


def test_text_behind_a_call_goes_before_it() -> None:
    items = [call(0), message(1, "after")]
    events = [added(0, call(0, "")), done(0, call(0)), added(1, message(1, "")), text(1, "after"), done(1, items[1])]
    got = ask([created(), *events, ended(items)])
    assert [item["type"] for item in got.items] == ["message", "function_call"]


def test_white_space_before_a_call_is_dropped_with_its_item() -> None:
    items = [message(0, "\n\n"), call(1)]
    events = [added(0, message(0, "")), text(0, "\n\n"), done(0, items[0]), added(1, call(1, "")), done(1, items[1])]
    got = ask([created(), *events, ended(items)])
    assert [item["type"] for item in got.items] == ["function_call"]
    assert Quirk.BLANK_TEXT_DROPPED in got.reply.quirks


def test_white_space_before_text_stays_and_so_does_its_item() -> None:
    head = message(0, "", phase="final_answer")
    final = {**message(0, "\n\nHi"), "phase": "final_answer"}
    got = ask([created(), added(0, head), text(0, "\n\n"), text(0, "Hi"), done(0, final), ended([final])])
    assert got.items == [{**final, "content": [{**final["content"][0], "logprobs": []}]}]


def test_fields_of_a_call_item_survive() -> None:
    item = call(0, namespace="crm", caller={"type": "direct"})
    got = ask([created(), added(0, {**item, "arguments": "", "status": "in_progress"}), done(0, item), ended([item])])
    assert got.items == [item]


def test_a_custom_tool_call_is_free_text() -> None:
    item = {"id": "ctc_0", "type": "custom_tool_call", "status": "completed", "call_id": "c0", "name": "patch"}
    place = {"output_index": 0, "item_id": "ctc_0"}
    events = [
        added(0, {**item, "input": ""}),
        {"type": "response.custom_tool_call_input.delta", **place, "delta": "*** Begin"},
        {"type": "response.custom_tool_call_input.done", **place, "input": "*** Begin"},
        done(0, {**item, "input": "*** Begin"}),
    ]
    got = ask([created(), *events, ended([{**item, "input": "*** Begin"}])])
    assert got.items == [{**item, "input": "*** Begin"}]
    assert got.reply.report[0]["verdict"] == "valid"


def test_refusals_and_both_kinds_of_reasoning_survive() -> None:
    thought = {"id": "rs_0", "type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}
    thought["content"] = [{"type": "reasoning_text", "text": "long"}]
    refused = {**message(1, ""), "content": [{"type": "refusal", "refusal": "No."}]}
    events = [
        added(0, {**thought, "summary": [], "content": []}),
        {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "long"},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "short"},
        done(0, thought),
        {"type": "response.refusal.delta", "output_index": 1, "content_index": 0, "delta": "No."},
    ]
    got = ask([created(), *events, ended([thought, refused])])
    assert got.items == [thought, {**refused, "id": got.items[1]["id"]}]


def test_a_plain_document_without_a_call_goes_out_as_it_came() -> None:
    document = json.dumps({**ended([message(0, "Hi")])["response"], "usage": None, "odd": [1.50]}).encode()
    request = responses_request.read(b'{"model": "m", "input": "x"}')
    recording = Recording("r", "", NAME, (document,), headers={"content-type": "application/json"})
    settings = ExchangeSettings()
    assert bytes(run(request, recording, settings).body) == document


def test_arguments_that_are_an_object_keep_their_own_characters() -> None:
    body = json.dumps(ended([call(0)])["response"]).replace(
        '"{\\"q\\":\\"x\\"}"', '{"q":"x", "n": 12345678901234567890123}'
    )
    assert '"n": 12345' in body
    got = ask(body.encode(), stream=False)
    assert got.items[0]["arguments"] == '{"q":"x", "n": 12345678901234567890123}'


# --- what is mended --------------------------------------------------------------------------------------------------


def test_text_that_only_the_final_response_has_is_sent() -> None:
    got = ask([created(), ended([message(0, "late")])])
    assert got.reply.content == {0: "late"}
    assert Quirk.FINAL_TEXT_DIFFERS in got.reply.quirks


def test_text_is_not_repeated_where_the_final_response_groups_it_otherwise() -> None:
    got = ask([created(), text(0, "one "), text(0, "two"), ended([message(0, "one "), message(1, "two")])])
    assert got.reply.content == {0: "one two"}


def test_two_calls_on_one_output_index_are_two_calls() -> None:
    events = [e for n in (1, 2) for e in (added(0, call(n, "")), done(0, call(n)))]
    got = ask([created(), *events, ended([call(1), call(2)])])
    assert [item["call_id"] for item in got.items] == ["call_1", "call_2"]


@pytest.mark.parametrize("final", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (), (1,)])
@pytest.mark.parametrize("opened", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("ids", [True, False])
def test_calls_that_share_a_call_id_keep_their_own_arguments(
    opened: tuple[int, ...], final: tuple[int, ...], ids: bool
) -> None:
    """Some backends give all calls one call_id; the final response may have them in another order."""
    names = ("lookup", "patch_file", "lookup")
    items = [call(n, json.dumps({"q": f"{n}"}), call_id="same", name=names[n]) for n in range(3)]
    if not ids:
        for item in items:
            del item["id"]
    events = [created(), *(added(n, {**items[n], "arguments": "", "status": "in_progress"}) for n in opened)]
    for n in opened:
        place = {"output_index": n, "item_id": f"fc_{n}"} if ids else {"output_index": n}
        events.append({"type": "response.function_call_arguments.delta", **place, "delta": items[n]["arguments"]})
        events.append(done(n, items[n]))
    got = ask([*events, ended([items[n] for n in final])], mode="annotate")
    called = [(item["name"], item["arguments"]) for item in got.items]
    assert called == [(items[n]["name"], items[n]["arguments"]) for n in opened]
    assert len({item["call_id"] for item in got.items}) == 3


@pytest.mark.parametrize(
    ("call_ids", "ids", "indexes"),
    [
        (call_ids, ids, indexes)
        for call_ids in ("own", "numbers", "shared")
        for ids in ("own", "shared", "new", "none")
        for indexes in ("own", "gaps", "zero", "none")
        if call_ids != "shared" or ids == "own" or indexes in ("own", "gaps")  # else nothing tells calls apart
    ],
)
def test_calls_come_out_as_they_were_meant_however_their_events_name_them(
    call_ids: str, ids: str, indexes: str
) -> None:
    """Calls one behind the other or, where indexes tell them apart, in turns; with or without the events that say their
    arguments as a whole; with all, some or none of them in the final response, in any order."""
    draw = Random(f"{call_ids} {ids} {indexes}")
    numbers = count()
    for _ in range(120):
        names = draw.choices(("get", "look", "note"), k=draw.randint(1, 4))
        meant = [(name, json.dumps({f"k{n}": draw.choice([n, {"a": {}}, "x{y}"])})) for n, name in enumerate(names)]

        def named(n: int, key: str) -> dict[str, Any]:
            value = {"own": f"fc_{n}", "shared": "fc", "new": f"fc_{next(numbers)}", "none": ""}[ids]
            return {key: value} if value else {}

        def placed(n: int) -> dict[str, Any]:
            value = {"own": n, "gaps": 2 * n + 1, "zero": 0, "none": None}[indexes]
            return {} if value is None else {"output_index": value}

        def item(n: int, arguments: str) -> dict[str, Any]:
            call_id = {"own": f"call_{n}", "numbers": n, "shared": "call"}[call_ids]
            common = {
                "type": "function_call",
                "call_id": call_id,
                "status": "completed" if arguments else "in_progress",
            }
            return {**common, "name": meant[n][0], "arguments": arguments, **named(n, "id")}  # noqa: B023

        told, closed, again = (draw.random() < 0.5 for _ in range(3))
        announced = ids in ("shared", "none") or not closed or draw.random() < 0.7
        streams = []
        for n, (_name, text) in enumerate(meant):
            edges = sorted({0, len(text), *(draw.randrange(len(text)) for _ in range(draw.randint(0, 3)))})
            events = [{"type": "response.output_item.added", **placed(n), "item": item(n, "")}] if announced else []
            if announced and again and call_ids != "shared":
                events.append({"type": "response.output_item.added", **placed(n), "item": item(n, "")})
            stem = "response.function_call_arguments"
            for a, b in pairwise(edges):
                events.append({"type": f"{stem}.delta", **named(n, "item_id"), **placed(n), "delta": text[a:b]})
            if told:
                events.append({"type": f"{stem}.done", **named(n, "item_id"), **placed(n), "arguments": text})
            if closed:
                events.append({"type": "response.output_item.done", **placed(n), "item": item(n, text)})
            streams.append(events)
        if indexes in ("own", "gaps") and draw.random() < 0.5:
            sent = [stream.pop(0) for stream in streams]
            while left := [stream for stream in streams if stream]:
                sent.append(draw.choice(left).pop(0))
        else:
            sent = [event for stream in streams for event in stream]
        final = draw.sample(range(len(meant)), draw.choice([0, len(meant), draw.randint(0, len(meant))]))
        got = ask([created(), *sent, ended([item(n, meant[n][1]) for n in final])], mode="annotate")
        assert [(made["name"], made["arguments"]) for made in got.items] == meant, sent


def test_the_word_null_is_no_id() -> None:
    got = ask([created(), ended([call(0, "{}", call_id="null"), call(1, "{}", call_id="null")])], mode="annotate")
    assert len({item["call_id"] for item in got.items} - {"null"}) == 2


def test_a_final_item_is_not_taken_for_another_that_has_its_own_id() -> None:
    delta = {"type": "response.function_call_arguments.delta", "output_index": 1, "item_id": "fc_1", "delta": "{}"}
    got = ask(
        [created(), delta, ended([call(0, '{"q":"x"}', name="lookup"), call(1, "{}", name="look")])], mode="annotate"
    )
    assert sorted((item["name"], item["arguments"]) for item in got.items) == [("look", "{}"), ("lookup", '{"q":"x"}')]


def test_more_items_than_any_reply_has_are_refused() -> None:
    events = [{"type": "response.output_item.added", "item": message(n, "")} for n in range(1_025)]
    for some, code in ((events[:-1], None), (events, "bad_event")):
        got = ask([created(), *some, ended()])
        assert (got.reply.error or {}).get("code") == code
    got = ask([created(), ended([message(n, "x") for n in range(1_025)])])
    assert got.reply.error["code"] == "bad_event"


def test_arguments_in_the_announcement_alone_count() -> None:
    got = ask([created(), added(0, call(0)), ended()])
    assert got.items == [call(0)]


def test_an_incomplete_reply_whose_cut_item_is_marked_keeps_its_completed_call() -> None:
    items = [call(0), message(1, "cut", status="incomplete")]
    events = [added(0, call(0, "")), done(0, call(0)), text(1, "cut")]
    got = ask([created(), *events, ended(items, "incomplete", incomplete_details={"reason": "max_output_tokens"})])
    assert [entry["verdict"] for entry in got.reply.report] == ["valid"]
    assert got.reply.finish == {0: "length"}


@pytest.mark.parametrize("tail", [[], [{"type": "keepalive"}]])
def test_without_a_terminal_event_the_reply_is_cut(tail: list[dict[str, Any]]) -> None:
    got = ask([created(), text(0, "a"), added(1, call(1)), done(1, call(1)), *tail])
    assert got.reply.error["code"] == "stream_cut"
    assert [entry["verdict"] for entry in got.reply.report] == ["incomplete"]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "server_error", "message": "broke", "param": None},
        {"type": "error", "error": {"type": "server_error", "code": "server_error", "message": "broke"}},
        ended(status="failed", error={"code": "server_error", "message": "broke"}),
        {**ended(status="failed", error={"code": "server_error", "message": "broke"}), "type": "response.completed"},
    ],
)
def test_every_form_of_an_error_reaches_the_client_once(event: dict[str, Any]) -> None:
    got = ask([created(), text(0, "a"), event])
    assert got.events[-2:] == ["error", "response.failed"]
    assert (got.reply.error["code"], got.reply.error["message"]) == ("server_error", "broke")
    first = ask([created(), event])
    assert first.reply.status == 502
    assert first.reply.error["code"] == "server_error"


def test_halves_of_a_character_in_two_deltas_are_joined() -> None:
    got = ask([created(), text(0, "a\ud83d"), text(0, "\ude00"), ended([message(0, "a\U0001f600")])])
    assert got.reply.content == {0: "a\U0001f600"}


# --- another dialect's upstream --------------------------------------------------------------------------------------


def test_a_chat_reply_becomes_items_and_usage_is_told() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "Look"},
    ]
    deltas += [{"tool_calls": [{"index": 0, "id": "c", "function": {"name": "lookup", "arguments": "{}"}}]}]
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "q"}
    chunks = [{**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    details = {"prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1}}
    chunks.append({**envelope, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, **details}})
    body = b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"
    recording = Recording("r", "", "openai-chat", (body,), headers={"content-type": "text/event-stream"})
    request = responses_request.read(json.dumps({"model": "m", "stream": True, "input": "x", "tools": TOOLS}).encode())
    answer = run(request, recording, casefile.settings("block"))
    got = responses_client.read(answer.status, answer.headers, bytes(answer.body), stream=True)
    assert got.reply.noncanonical == []
    assert [item["type"] for item in got.items] == ["reasoning", "message", "function_call"]
    assert got.items[0]["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert got.response["id"].startswith("resp_")
    assert got.response["tools"] == TOOLS
    assert got.response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 7,
    }


def test_two_summary_parts_are_two_paragraphs_for_a_chat_client() -> None:
    summary = "response.reasoning_summary_text.delta"
    parts = [
        {"type": summary, "output_index": 0, "summary_index": i, "delta": t} for i, t in ((0, "a"), (0, "b"), (1, "c"))
    ]
    recording = Recording("r", "", NAME, sse(created(), *parts, ended()), headers={"content-type": "text/event-stream"})
    request = chat_request.read(b'{"model": "m", "stream": true, "messages": []}')
    body = bytes(run(request, recording, casefile.settings("block")).body)
    chunks = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    reasoning = [c["choices"][0]["delta"].get("reasoning_content", "") for c in chunks if c["choices"]]
    assert "".join(reasoning) == "ab\n\nc"


# --- requests --------------------------------------------------------------------------------------------------------


def read(**fields: Any) -> Any:
    return responses_request.read(json.dumps({"model": "m", "input": "x", **fields}).encode())


def test_the_core_is_told_of_tools_choice_and_used_ids() -> None:
    nested = {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find", "parameters": {}}]}
    loaded = {"type": "tool_search_output", "tools": [{"type": "function", "name": "late", "parameters": None}]}
    items = [call(1), {"type": "function_call_output", "call_id": "call_2", "output": "x"}, loaded]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "lookup"}]}
    request = read(tools=[*TOOLS, nested, {"type": "web_search"}], input=items, tool_choice=allowed)
    assert set(request.tools) == {"lookup", "patch", "find", "late"}
    assert request.tools["patch"].kind == "custom"
    assert request.tool_choice == ToolChoice("required", frozenset({"lookup"}))
    assert request.used_ids == {"call_1", "call_2"}
    assert read(tool_choice={"type": "function", "name": "lookup"}).tool_choice.mode == "forced"
    assert read(tool_choice={"type": "web_search"}).tool_choice == ToolChoice()
    assert read(parallel_tool_calls=False).parallel is False


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        (b"{", FaultKind.INVALID_JSON, None),
        (b"[]", FaultKind.INVALID_REQUEST, None),
        (b'{"input": "x"}', FaultKind.INVALID_REQUEST, "model"),
        (b'{"model": "m", "input": 1}', FaultKind.INVALID_REQUEST, "input"),
        (b'{"model": "m", "stream": 1}', FaultKind.INVALID_REQUEST, "stream"),
        (b'{"model": "m", "tools": [{"type": "function"}]}', FaultKind.INVALID_REQUEST, "tools[0].name"),
        (b'{"model": "m", "tools": [1]}', FaultKind.INVALID_REQUEST, "tools[0]"),
        (
            b'{"model": "m", "tools": [{"type": "function", "name": "f", "parameters": 1}]}',
            FaultKind.INVALID_TOOL_SCHEMA,
            "tools[0].parameters",
        ),
        (b'{"model": "m", "tool_choice": "some"}', FaultKind.INVALID_REQUEST, "tool_choice"),
    ],
)
def test_a_faulty_request_is_told_what_is_wrong(body: bytes, kind: FaultKind, param: str | None) -> None:
    with pytest.raises(Fault) as caught:
        responses_request.read(body)
    assert (caught.value.kind, caught.value.param) == (kind, param)


def test_what_codex_sends_crosses_into_the_hub() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "do"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "plan"}], "encrypted_content": "seal"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "on it"}]},
        {"type": "function_call", "call_id": "a", "name": "lookup", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "r"}]},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "ok"},
    ]
    request = read(
        instructions="be brief",
        input=items,
        tools=TOOLS,
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        reasoning={"effort": "high", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        max_output_tokens=9,
    )
    talk = responses_request.conversation(request)
    assert [turn.role for turn in talk.turns] == ["system", "developer", "user", "assistant", "user"]
    assert talk.turns[3].parts == [
        ThinkingPart("plan"),
        TextPart("on it"),
        CallPart("a", "lookup", "{}"),
        CallPart("b", "patch", "*** Begin", "custom"),
    ]
    assert talk.turns[4].parts == [ResultPart("a", [TextPart("r")]), ResultPart("b", [TextPart("ok")])]
    assert (talk.options.reasoning_effort, talk.options.max_tokens) == ("high", 9)
    assert (talk.options.output_schema_name, talk.options.output_schema) == ("n", {"type": "object"})
    lost = {"include", "prompt_cache_key", "input.reasoning", "reasoning.summary", "text.verbosity"}
    assert set(talk.lost) == lost


def test_images_cross_as_they_were_given() -> None:
    parts = [
        {"type": "input_image", "image_url": "data:image/gif;base64,R0k=", "detail": "low"},
        {"type": "input_image", "image_url": "https://x.test/a.png"},
    ]
    talk = responses_request.conversation(read(input=[{"role": "user", "content": parts}]))
    assert talk.turns[0].parts == [
        ImagePart(media_type="image/gif", data="R0k=", detail="low"),
        ImagePart(url="https://x.test/a.png"),
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "rs_1"}]}, "input[1]"),
        ({"input": [{"type": "web_search_call", "id": "ws"}]}, "input[0]"),
        ({"tools": [TOOLS[0], {"type": "web_search"}]}, "tools[1]"),
        ({"tools": [{"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark"}}]}, "tools[0]"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"background": True}, "background"),
    ],
)
def test_what_cannot_cross_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    request = read(**fields)  # a backend of the same dialect takes it as it is
    assert json.loads(responses_request.write(request, "up", lambda quirk: None)) == {**request.body, "model": "up"}
    with pytest.raises(Fault) as caught:
        responses_request.conversation(request)
    assert (caught.value.kind, caught.value.param) == (FaultKind.UNSUPPORTED_FIELD, param)


def test_a_missing_strict_is_true_only_where_the_schema_is_closed() -> None:
    closed = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "name": str(i), "parameters": s} for i, s in enumerate((closed, {"type": "object"}))]
    tools.append({"type": "function", "name": "off", "parameters": closed, "strict": False})
    assert [tool.strict for tool in responses_request.conversation(read(tools=tools)).tools] == [True, None, False]


def test_a_history_that_a_backend_would_refuse_is_put_right() -> None:
    quirks: list[Quirk] = []
    items = [
        {"role": "user", "content": "x"},
        call(1, '{"q": '),
        {"type": "function_call_output", "call_id": "call_1", "output": "r"},
        call(1),
        {"type": "function_call_output", "call_id": "call_1", "output": "r2"},
        {"type": "function_call_output", "call_id": "gone", "output": "old"},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** {"},
    ]
    sent = json.loads(responses_request.write(read(input=items), "m", quirks.append))["input"]
    assert json.loads(sent[1]["arguments"]) == {"_raw": '{"q": '}
    assert sent[3]["call_id"] == sent[4]["call_id"] != "call_1"
    assert sent[5]["role"] == "user"
    assert "old" in sent[5]["content"][0]["text"]
    assert sent[6] == items[6]
    assert {Quirk.HISTORY_ARGS_WRAPPED, Quirk.HISTORY_ID_DOUBLED, Quirk.HISTORY_RESULT_ORPHANED} <= set(quirks)


def test_the_model_can_be_asked_again_with_its_turn_and_the_answers() -> None:
    bad = JudgedCall(0, 0, "c1", "lookup", "function", Verdict.INVALID_JSON, "{")
    free = JudgedCall(0, 1, "c2", "patch", "custom", Verdict.VALID, "*** Begin")
    request = responses_request.follow_up(read(), "Look", [(bad, "Rejected"), (free, "Accepted")], "go on")
    assert request.body["input"] == [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "Look"},
        {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": "{"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": "Rejected"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "Accepted"},
        {"role": "user", "content": "go on"},
    ]
    assert request.used_ids == {"c1", "c2"}


def test_the_hub_refuses_what_the_responses_api_does_not_have() -> None:
    def talk(**fields: Any) -> Conversation:
        base: dict[str, Any] = {
            "tools": [],
            "tool_choice": ToolChoice(),
            "parallel": True,
            "stream": True,
            "choices": 1,
        }
        return Conversation([Turn("user", [TextPart("x")])], **{**base, "options": Options(), **fields})

    for fields, param in (({"choices": 2}, "n"), ({"options": Options(stop=["x"])}, "stop")):
        with pytest.raises(Fault) as caught:
            responses_request.write_conversation(talk(**fields), "m")
        assert caught.value.param == param
    assert json.loads(responses_request.write_conversation(talk(), "m")) == {
        "model": "m",
        "stream": True,
        "store": False,
        "input": [{"type": "message", "role": "user", "content": "x"}],
    }


# --- properties ------------------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
VISIBLE = WORDS.map(lambda words: "w" + words)
IMAGES = st.builds(
    ImagePart, media_type=st.just("image/png"), data=st.just("QQ=="), detail=st.sampled_from(["low", "auto"])
)
USERS = st.lists(VISIBLE.map(TextPart) | IMAGES, min_size=1, max_size=3).map(lambda parts: Turn("user", [*parts]))
CALLS = st.builds(CallPart, WORDS, WORDS, st.just('{"q": 1}'), st.sampled_from(["function", "custom"]))
ASSISTANTS = st.tuples(
    st.lists(VISIBLE.map(TextPart), max_size=1), st.lists(CALLS, max_size=3, unique_by=lambda c: c.call_id)
)


def _turns(drawn: list[tuple[Turn, tuple[list[TextPart], list[CallPart]]]]) -> list[Turn]:
    turns = [Turn("system", [TextPart("sys")])]
    seen = 0
    for user, (texts, calls) in drawn:
        turns.append(user)
        for one in calls:
            one.call_id = f"{one.call_id}{(seen := seen + 1)}"
        if texts or calls:
            turns.append(Turn("assistant", [*texts, *calls]))
        if calls:
            turns.append(Turn("user", [ResultPart(one.call_id, [TextPart("r")]) for one in calls]))
    return turns


TALKS = st.builds(
    Conversation,
    st.lists(st.tuples(USERS, ASSISTANTS), min_size=1, max_size=4).map(_turns),
    st.just([ToolDeclaration("lookup", "d", {"type": "object"}, False), ToolDeclaration("patch", kind="custom")]),
    st.sampled_from(
        [ToolChoice(), ToolChoice("none"), ToolChoice("required"), ToolChoice("forced", frozenset({"patch"}))]
    ),
    st.booleans(),
    st.booleans(),
    st.just(1),
    st.builds(
        Options,
        max_tokens=st.none() | st.integers(16, 99),
        temperature=st.none() | st.just(0.5),
        reasoning_effort=st.none() | st.just("low"),
        output_schema=st.none() | st.sampled_from([{}, {"type": "object"}]),
    ),
)


@given(TALKS)
def test_a_conversation_written_as_a_request_reads_back_the_same(talk: Conversation) -> None:
    body = responses_request.write_conversation(talk, "m")
    assert responses_request.conversation(responses_request.read(body)) == talk


@st.composite
def replies(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Output items as an upstream would finish them."""
    items: list[dict[str, Any]] = []
    for index in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["message", "refusal", "reasoning", "call", "hosted"]))
        words = draw(VISIBLE)
        if kind == "message":
            items.append(message(index, words))
        elif kind == "refusal":
            items.append({**message(index, ""), "content": [{"type": "refusal", "refusal": words}]})
        elif kind == "reasoning":
            item = {"id": f"rs_{index}", "type": "reasoning", "summary": [{"type": "summary_text", "text": words}]}
            items.append({**item, "encrypted_content": words} if draw(st.booleans()) else item)
        elif kind == "call":
            items.append(call(index, json.dumps({"q": words})))
        else:
            items.append({"id": f"ws_{index}", "type": "web_search_call", "status": "completed", "found": words})
    return items


def _events_of(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    if item["type"] == "web_search_call":
        return [added(index, item), done(index, item)]
    if item["type"] == "function_call":
        place = {"output_index": index, "item_id": item["id"]}
        deltas = [{"type": "response.function_call_arguments.delta", **place, "delta": c} for c in item["arguments"]]
        return [added(index, {**item, "arguments": "", "status": "in_progress"}), *deltas, done(index, item)]
    holder = "summary" if item["type"] == "reasoning" else "content"
    part = item[holder][0]
    name = {"summary_text": "reasoning_summary_text"}.get(part["type"], part["type"])
    field = "refusal" if part["type"] == "refusal" else "text"
    place = {"output_index": index, "item_id": item["id"], f"{holder}_index": 0}
    deltas = [{"type": f"response.{name}.delta", **place, "delta": c} for c in part[field]]
    return [added(index, {**item, holder: []}), *deltas, done(index, item)]


@given(replies(), st.sampled_from(CUTS))
def test_any_reply_reads_back_as_it_was_written(items: list[dict[str, Any]], cut: str) -> None:
    events = [created(), *(e for i, item in enumerate(items) for e in _events_of(i, item)), ended(items)]
    body = {"model": "m", "stream": True, "input": "go", "tools": TOOLS}
    recording = Recording("r", "", NAME, sse(*events), headers={"content-type": "text/event-stream"})
    request = responses_request.read(json.dumps(body).encode())
    answer = run(request, recording, casefile.settings("block"), casefile.cut(recording.pieces, cut))
    got = responses_client.read(answer.status, answer.headers, bytes(answer.body), stream=True)
    assert got.reply.noncanonical == []
    for item in (*got.items, *items):
        for part in item.get("content", ()):
            part.pop("logprobs", None)
    texts = [item for item in items if item["type"] == "message"]
    others = [item for item in items if item["type"] != "message"]
    assert [item for item in got.items if item["type"] == "message"] == texts  # text goes before held calls
    assert [item for item in got.items if item["type"] != "message"] == others


def test_the_nested_error_of_a_stream_has_the_four_fields_that_clients_look_for() -> None:
    asked = responses_request.read(b'{"model":"m","input":"hi","stream":true}')
    machine = Exchange(asked, ExchangeSettings(), seed="s", created=1)
    machine.opened(200, {"content-type": "text/event-stream"}, 0.0, dialect="openai-responses")
    text: dict[str, Any] = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"}
    failed: dict[str, Any] = {
        "type": "response.failed",
        "response": {"error": {"code": "server_error", "message": "boiler"}},
    }
    commands: list[Command] = []
    for event in (text, failed):
        line = b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode())
        commands += machine.receive(line, 0.1)
    out = b"".join(c.data for c in commands if isinstance(c, Send))
    told = next(json.loads(line[6:]) for line in out.splitlines() if line.startswith(b'data: {"type":"error"'))
    assert told["error"] == {"type": "upstream_error", "code": "server_error", "param": None, "message": "boiler"}
