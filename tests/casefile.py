"""Case files, a strict OpenAI chat client that reads an answer, and the judge that compares the two.

A case is one upstream reply to one client request, and what must reach the client. Its keys: `request` (an OpenAI chat
request without model); `dialect`, of the reply; `upstream.body` (an object: one event; a string: these characters;
{"$hex": ...}: these bytes), `.status`, `.headers`, `.end` (eof or reset); `expect.calls` (choice, name, verdict,
`arguments` as a value or `arguments_text`, and `id` where it is fixed), `.content` and `.refusal` (texts of choice 0),
`.finish_reason` (null where the reply ends in an error), `.error` (an error in every mode), `.contains` (strings that
must survive), `.quirks` (that must be reported), `.status`, `.headers`; and `expect_repaired`: instead of `expect`
where repairs are on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.exchange import ExchangeSettings
from proxy.replay.recording import Recording, read_case

FOLDER = Path(__file__).parent / "cases"
FOLDERS = ("chat", "own", "text", "anthropic-messages", "openai-responses", "gemini", "ollama-chat")
MODES: dict[str, dict[str, Any]] = {
    "annotate": {"mode": "annotate"},
    "block": {"mode": "block", "block_as": "error"},
    "drop": {"mode": "block", "block_as": "drop"},
}
CUTS = ("event", "byte", "whole", "random")


@dataclass(frozen=True, slots=True)
class Case:
    recording: Recording
    expect: dict[str, Any]
    expect_repaired: dict[str, Any] | None

    @property
    def id(self) -> str:
        return self.recording.id

    @property
    def body(self) -> bytes:
        """The client's request as it stands on the wire."""
        return json.dumps({**self.recording.request, "model": self.id}).encode()


def read(path: Path) -> Case:
    document = json.loads(path.read_text("utf-8"))
    assert document["id"] == path.stem, f"{path}: the id is the file's name"
    return Case(read_case(document), document["expect"], document.get("expect_repaired"))


def read_all(*folders: str) -> list[Case]:
    """`folders`: by default those of chat replies."""
    return [read(path) for folder in folders or FOLDERS[:2] for path in sorted((FOLDER / folder).glob("*.json"))]


def settings(mode: str, *, repair: bool = False) -> ExchangeSettings:
    return ExchangeSettings(**MODES[mode], repair=repair, annotations="always")


def cut(pieces: Sequence[bytes], how: str, seed: int = 0) -> list[bytes]:
    """The same bytes as a network might deliver them. `byte`: one at a time (long bodies: seven)."""
    whole = b"".join(pieces)
    match how:
        case "event":
            return list(pieces)
        case "whole":
            return [whole]
        case "byte":
            step = 1 if len(whole) < 20_000 else 7
            return [whole[i : i + step] for i in range(0, len(whole), step)]
        case "random":
            draw, out, at = random.Random(seed), [], 0
            while at < len(whole):
                step = draw.choice((1, 2, 3, 5, 8, 13, 40, 200))
                out.append(whole[at : at + step])
                at += step
            return out
    raise ValueError(how)


# --- a strict client -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Call:
    choice: int
    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    """What a client understood. `noncanonical` lists, in words, what no client should have to bear."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""
    calls: dict[tuple[int, int], Call] = field(default_factory=dict)
    content: dict[int, str] = field(default_factory=dict)
    reasoning: dict[int, str] = field(default_factory=dict)
    refusal: str = ""  # of choice 0
    finish: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: Any = None
    done: int = 0
    usages: int = 0
    envelope: tuple[Any, ...] | None = None
    roles: set[int] = field(default_factory=set)
    report: list[dict[str, Any]] = field(default_factory=list)  # entries of wholecall.calls
    quirks: list[str] = field(default_factory=list)  # of the reply itself
    noncanonical: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return self.error is not None or self.status >= 400


def read_reply(status: int, headers: dict[str, str], body: bytes, *, stream: bool) -> Reply:
    """Reads an answer as a strict client would. `stream` is what the request asked for."""
    reply = Reply(status, headers, body)
    is_stream = "event-stream" in headers.get("content-type", "")
    if status >= 400:
        document = _document(body.decode("utf-8"), reply)
        reply.error = document.get("error")
        if not isinstance(reply.error, dict):
            reply.noncanonical.append("an error status without an error object")
        _read_report(document, reply)
    elif is_stream != stream:
        reply.noncanonical.append(f"asked stream={stream}, got {headers.get('content-type')}")
    elif stream:
        _read_stream(body, reply)
    else:
        _read_json(body, reply)
    return reply


def _document(text: str, reply: Reply) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    if "\\ud" in text and any("\ud800" <= c <= "\udfff" for c in json.dumps(document, ensure_ascii=False)):
        reply.noncanonical.append("half a character: strict parsers refuse the event")
    return document


def _read_report(document: dict[str, Any], reply: Reply) -> None:
    report = document.get("wholecall") or {}
    reply.report += report.get("calls", [])
    reply.quirks += report.get("quirks", [])


def _events(body: bytes, reply: Reply) -> Iterator[str]:
    """The data of each event, framed as WHATWG HTML says. An answer that is no UTF-8 raises."""
    lines: list[str] = []
    for line in body.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line == "" and lines:
            yield "\n".join(lines)
            lines = []
        elif line.startswith("data:"):
            lines.append(line.removeprefix("data:").removeprefix(" "))
        elif line and not line.startswith(":"):
            reply.noncanonical.append(f"a line that is no data: {line[:40]!r}")
    if lines:
        reply.noncanonical.append("the body ends inside an event")


def _read_stream(body: bytes, reply: Reply) -> None:
    bad = reply.noncanonical.append
    for payload in _events(body, reply):
        if reply.done:
            bad("an event after [DONE]")
        if reply.error is not None:
            bad("an event after the error")  # [DONE] too: some clients take it for success
        if payload == "[DONE]":
            reply.done += 1
            continue
        chunk = _document(payload, reply)
        _read_report(chunk, reply)
        if "error" in chunk:
            reply.error = chunk["error"]
            if not isinstance(reply.error, dict) or not reply.error.get("message"):
                bad("the error is no object with a message")
            if "choices" in chunk:
                bad("an error event with choices: some clients ignore its error")
            continue
        _read_chunk(chunk, reply)


def _read_chunk(chunk: dict[str, Any], reply: Reply) -> None:
    bad = reply.noncanonical.append
    if chunk.get("object") != "chat.completion.chunk":
        bad(f"object is {chunk.get('object')!r}")
    envelope = (chunk.get("id"), chunk.get("created"), chunk.get("model"))
    if [type(one) for one in envelope] != [str, int, str]:
        bad(f"id, created and model are {envelope}")
    if reply.envelope not in (None, envelope):
        bad("id, created or model change within the stream")
    reply.envelope = envelope
    if chunk.get("usage") is not None:
        _is(dict, chunk["usage"], "usage", reply)
        reply.usage = chunk["usage"]
        reply.usages += 1
        if chunk["choices"]:
            bad("usage on a chunk with choices")
    elif reply.usages:
        bad("a chunk after the usage chunk")
    for choice in chunk["choices"]:
        _read_choice(choice, reply)


def _read_choice(choice: dict[str, Any], reply: Reply) -> None:
    bad, c, delta = reply.noncanonical.append, choice["index"], choice["delta"]
    _is(int, c, "the index of a choice", reply)
    if delta.get("content") is not None:
        _is(str, delta["content"], "content", reply)
    if (delta.get("role") == "assistant") != (c not in reply.roles):
        bad("the role comes with the first delta of a choice, and only with it")
    reply.roles.add(c)
    if c in reply.finish and (delta.get("content") or delta.get("tool_calls")):
        bad("a delta after finish_reason")
    if isinstance(delta.get("content"), str):
        reply.content[c] = reply.content.get(c, "") + delta["content"]
    for key in ("reasoning_content", "reasoning"):
        if isinstance(delta.get(key), str):
            reply.reasoning[c] = reply.reasoning.get(c, "") + delta[key]
    if isinstance(delta.get("refusal"), str) and c == 0:
        reply.refusal += delta["refusal"]
    if "function_call" in delta:
        bad("legacy function_call")
    if "tool_calls" in delta:
        if len(delta["tool_calls"] or ()) != 1:
            bad("one tool_calls entry a chunk")
        for entry in delta["tool_calls"] or ():
            _read_call(c, entry, reply)
    if choice.get("finish_reason") is not None:
        if delta.get("content") or delta.get("tool_calls"):
            bad("the finish chunk carries a delta")
        if c in reply.finish:
            bad("finish_reason twice")
        _is(str, choice["finish_reason"], "finish_reason", reply)
        reply.finish[c] = choice["finish_reason"]


def _is(kind: type, value: object, what: str, reply: Reply) -> None:
    if type(value) is not kind:
        reply.noncanonical.append(f"{what} is {value!r}: typed clients refuse it")


def _read_call(c: int, entry: dict[str, Any], reply: Reply) -> None:
    bad, index, function = reply.noncanonical.append, entry["index"], entry.get("function") or {}
    call = reply.calls.get((c, index))
    if call is None:
        if index != sum(choice == c for choice, _ in reply.calls):
            bad(f"index {index} is not the next one")
        _is(int, index, "the index of a call", reply)
        call = reply.calls[c, index] = Call(c, index, entry.get("id") or "", function.get("name") or "")
        _is(str, call.id, "the id of a call", reply)
        _is(str, call.name, "the name of a call", reply)
        if not call.id or not call.name or entry.get("type") != "function":
            bad(f"the first delta of call {index} lacks id, type or name")
        if not isinstance(function.get("arguments"), str):
            bad(f"the first delta of call {index} has no arguments string")
    elif "id" in entry or "name" in function or "type" in entry:
        bad(f"id, type or name again in a later delta of call {index}")
    if any(choice == c and later > index for choice, later in reply.calls):
        bad(f"call {index} goes on after a later call began")
    call.arguments += function.get("arguments") or ""


def _read_json(body: bytes, reply: Reply) -> None:
    document = _document(body.decode("utf-8"), reply)
    reply.error = document.get("error")
    reply.usage = document.get("usage") or {}
    _read_report(document, reply)
    if reply.error is None:
        envelope = [document.get(key) for key in ("id", "created", "model")]
        if [type(one) for one in envelope] != [str, int, str] or document.get("object") != "chat.completion":
            reply.noncanonical.append(f"object is {document.get('object')!r}; id, created and model are {envelope}")
    for choice in document.get("choices") or ():
        c, message = choice["index"], choice["message"]
        _is(int, c, "the index of a choice", reply)
        if message.get("content") is not None:
            _is(str, message["content"], "content", reply)
        reply.content[c] = message.get("content") or ""
        reply.reasoning[c] = message.get("reasoning_content") or message.get("reasoning") or ""
        _is(str, reply.reasoning[c], "reasoning", reply)
        refusal = message.get("refusal") or ""
        _is(str, refusal, "a refusal", reply)
        if isinstance(refusal, str) and c == 0:
            reply.refusal += refusal
        reply.finish[c] = choice["finish_reason"]
        for i, entry in enumerate(message.get("tool_calls") or ()):
            function = entry["function"]
            reply.calls[c, i] = Call(c, i, entry["id"], function["name"], function["arguments"])
    reply.done = 1


# --- the judgement -------------------------------------------------------------------------------------------------


def judge(case: Case, mode: str, reply: Reply, *, repair: bool = False, client: str = "openai-chat") -> list[str]:
    """What falls short of the case's expectation, in words. `client` is the dialect that the reply was read in."""
    want = case.expect_repaired if repair and case.expect_repaired is not None else case.expect
    out = list(dict.fromkeys(reply.noncanonical))
    calls, left = want["calls"], [c for c in want["calls"] if c["verdict"] == "valid"]
    # An unfinished call whose reply says so itself is withheld and reported, and no failure.
    honest = want.get("finish_reason") in ("length", "content_filter")
    wrong = [c for c in calls if c["verdict"] != "valid" and not (c["verdict"] == "incomplete" and honest)]
    failed = want["error"] or (mode == "block" and wrong) or (mode == "drop" and wrong and not left)
    asked = bool((case.recording.request.get("stream_options") or {}).get("include_usage"))
    if reply.usages > asked:  # of chunks: the other dialects tell usage always, and in one place
        out.append(f"{reply.usages} usage chunks, asked for: {asked}")
    if failed:
        out += _judge_failure(case, want, reply)
    elif reply.failed:
        return [*out, f"unexpected error, status {reply.status}: {json.dumps(reply.error)[:200]}"]
    else:
        out += _judge_success(want, mode, reply, client)
    # Google's own chat endpoint has a place for what is Gemini's; another dialect than the upstream's has none.
    if client == case.recording.dialect or (client, case.recording.dialect) == ("openai-chat", "gemini"):
        out += [f"{text!r} did not survive" for text in want.get("contains", ()) if text.encode() not in reply.raw]
    if reply.status != want.get("status", reply.status):
        out.append(f"status {reply.status}, want {want['status']}")
    out += [
        f"header {name}: {reply.headers.get(name)!r}, want {value!r}"
        for name, value in want.get("headers", {}).items()
        if reply.headers.get(name) != value
    ]
    if reply.report or (calls and reply.status < 400):
        out += _judge_verdicts(calls, reply)
    if reply.report or reply.quirks or not reply.failed:
        reported = {*reply.quirks, *(quirk for entry in reply.report for quirk in entry["quirks"])}
        out += [f"quirk {quirk} is not reported" for quirk in want.get("quirks", ()) if quirk not in reported]
    return out


def _judge_failure(case: Case, want: dict[str, Any], reply: Reply) -> list[str]:
    out = []
    if not reply.failed:
        out.append("no clear error reached the client")
    if reply.finish and reply.status < 400:
        out.append(f"finish_reason {reply.finish} though the reply failed")
    if reply.calls:
        out.append(f"a failed reply delivered calls {[c.name for c in reply.calls.values()]}")
    if isinstance(reply.error, dict) and not (reply.error.get("code") or reply.error.get("type")):
        out.append("the error has neither code nor type")
    text, got = want.get("content") or "", reply.content.get(0, "")
    if case.recording.request.get("stream") and got != text and not (reply.status >= 400 and not text.strip()):
        out.append(f"text before the error: {got[:80]!r}, want {text[:80]!r}")
    return out


def _judge_success(want: dict[str, Any], mode: str, reply: Reply, client: str) -> list[str]:
    out, got = [], list(reply.calls.values())
    deliver = [c for c in want["calls"] if _deliverable(c, mode, client)]
    if reply.done != 1:
        out.append("the stream has no proper end")
    if [(c["choice"], c["name"]) for c in deliver] != [(c.choice, c.name) for c in got]:
        out.append(f"calls {[(c.choice, c.name) for c in got]}, want {[(c['choice'], c['name']) for c in deliver]}")
    else:
        for w, g in zip(deliver, got, strict=True):
            if not _same_arguments(g.arguments, w):
                out.append(f"arguments of {g.name}: {g.arguments[:120]!r}")
            if w.get("id") and w["id"] != g.id:
                out.append(f"id of {g.name}: {g.id!r}, want {w['id']!r}")
    content, refusal = want.get("content") or "", want.get("refusal", "")
    if client == "anthropic-messages":  # which says it in words
        content, refusal = content + refusal, ""
    if "content" in want and reply.content.get(0, "") != content:
        out.append(f"content {reply.content.get(0, '')[:120]!r}, want {content[:120]!r}")
    if reply.refusal != refusal:
        out.append(f"refusal {reply.refusal[:120]!r}, want {refusal[:120]!r}")
    for choice in {0} | {c["choice"] for c in want["calls"]}:
        finish = want.get("finish_reason")
        if finish == "tool_calls" and not any(c["choice"] == choice for c in deliver):
            finish = "stop"
        if finish is not None and reply.finish.get(choice) != finish:
            out.append(f"finish_reason of choice {choice}: {reply.finish.get(choice)!r}, want {finish!r}")
    ids = [c.id for c in got]
    if len(set(ids)) != len(ids) or "" in ids:
        out.append(f"ids not unique: {ids}")
    return out


def _deliverable(call: dict[str, Any], mode: str, client: str) -> bool:
    if call["verdict"] == "incomplete" or not call["name"]:
        return False  # some clients close the brackets of an unfinished call and run it
    if client == "anthropic-messages" and (call["verdict"] == "invalid_json" or not isinstance(_value(call), dict)):
        return False  # a block's input is an object
    return call["verdict"] == "valid" or mode == "annotate"


def _value(call: dict[str, Any]) -> Any:
    """The arguments that a case expects; None where they are no JSON."""
    if "arguments" in call:
        return call["arguments"]
    try:
        return json.loads(call["arguments_text"])
    except ValueError:
        return None


def _same_arguments(got: str, want: dict[str, Any]) -> bool:
    if "arguments_text" in want:
        return bool(got == want["arguments_text"])
    try:
        return bool(json.loads(got) == want["arguments"])
    except ValueError:
        return False


def _judge_verdicts(calls: list[dict[str, Any]], reply: Reply) -> list[str]:
    got = {(entry["choice"], entry["index"]): entry["verdict"] for entry in reply.report}
    want: dict[tuple[int, int], str] = {}
    for call in calls:
        index = sum(choice == call["choice"] for choice, _ in want)
        want[call["choice"], index] = call["verdict"]
    return [] if got == want else [f"verdicts {got}, want {want}"]


def judge_live(case: Case, reply: Reply, *, client: str = "openai-chat") -> list[str]:
    """What falls short where the first call is sent as it is written: nothing that can be run comes before an error."""
    want, out = case.expect, list(dict.fromkeys(reply.noncanonical))
    if not reply.failed:
        return judge(case, "block", reply, client=client)
    out += [f"an error, yet {c.name} can be run: {c.arguments[:80]!r}" for c in reply.calls.values() if _is_json(c)]
    faulty = want["error"] or any(call["verdict"] != "valid" for call in want["calls"])
    # A mend that would change what was sent already is not made.
    late = any(error["rule"] == "sent_before" for entry in reply.report for error in entry["errors"])
    return out if faulty or late else [*out, f"unexpected error: {json.dumps(reply.error)[:200]}"]


def _is_json(call: Call) -> bool:
    try:
        json.loads(call.arguments)
    except ValueError:
        return False
    return True
