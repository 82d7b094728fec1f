"""A kept reply as the page's JSON, and as a case file. Everything here is masked where the entry says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from proxy.server.inspector.notes import Asked, Kept, SeenCall, Tape
from proxy.server.inspector.redact import Lane, Masker, span_of

PROBLEM_OUTCOMES = frozenset({"blocked", "error"})
_CONTENT_TYPES = frozenset(
    {
        "text/event-stream",
        "application/json",
        "application/x-ndjson",
        "application/stream+json",
        "text/html",
        "text/plain",
    }
)
_BLOCK = re.compile(r".+?(?:(?:\r\n|\n|\r(?!\n)){2,}|\Z)", re.DOTALL)
_LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")
_AT_CHARACTER = re.compile(r"\(at character ([0-9]+)\)")


def summary(kept: Kept) -> dict[str, Any]:
    """A row of the list."""
    masker = Masker({}, on=kept.redact)
    return {
        "number": kept.number,
        "began": kept.began,
        "request_id": kept.request_id,
        "client": kept.client,
        "route": kept.route,
        "model": kept.model,
        "backend": kept.backend,
        "client_dialect": kept.client_dialect,
        "upstream_dialect": kept.upstream_dialect,
        "stream": kept.stream,
        "status": kept.status,
        "outcome": kept.outcome,
        "code": masker.code(kept.code),
        "seconds": round(kept.seconds, 4),
        "first_byte_s": None if kept.first_byte_s is None else round(kept.first_byte_s, 4),
        "hold_s": None if kept.hold_s is None else round(kept.hold_s, 4),
        "verdicts": kept.verdicts,
        "quirks": kept.quirks,
        "repairs": kept.repairs,
        "recovered": kept.recovered,
        "reask": kept.reask,
        "attempts": len(kept.asked),
        "problem": is_problem(kept),
        "cut": kept.cut,
        "redacted": kept.redact,
    }


def is_problem(kept: Kept) -> bool:
    """Whether something went wrong that a client could see, or was mended."""
    return kept.outcome in PROBLEM_OUTCOMES or bool(kept.quirks) or any(verdict != "valid" for verdict in kept.verdicts)


def masker_for(kept: Kept) -> Masker:
    tools = {name: schema for name, _, schema in kept.asking.tools}
    return Masker(tools, (kept.model, kept.asked_model), on=kept.redact)


def detail(kept: Kept) -> dict[str, Any]:
    """One reply: each attempt's events, what was sent, and the calls between."""
    masker = masker_for(kept)
    masked = [masker.fragments(call.fragments, call.objects, call.kind) for call in kept.calls]
    found: dict[tuple[int, int], int] = {}
    attempts = []
    for turn, asked in enumerate(kept.asked):
        events = []
        for n, at_ms, told in _told(masker, asked, _lanes(masker, kept, turn, masked)):
            for place in told.fragments:
                found.setdefault(place, n)
            events.append(
                {"n": n, "at_ms": at_ms, "name": told.name, "text": _shown(told.text), "calls": told.fragments}
            )
        attempts.append(
            {
                "backend": asked.backend,
                "dialect": asked.dialect,
                "status": asked.status,
                "content_type": _content_type(kept, asked),
                "end": asked.end,
                "fault": masker.code(asked.fault),
                "bytes": len(asked.tape.data),
                "events": events,
            }
        )
    return {
        **summary(kept),
        "policy": kept.policy,
        "tools": [{"name": name, "kind": kind} for name, kind, _ in kept.asking.tools],
        "tool_choice": {"mode": kept.asking.mode, "names": kept.asking.names},
        "attempts": attempts,
        "sent": _sent(masker, kept),
        "calls": [_call(masker, number, call, masked[number], found) for number, call in enumerate(kept.calls)],
    }


def _lanes(masker: Masker, kept: Kept, turn: int, masked: Sequence[Sequence[str]]) -> list[Lane]:
    return [
        masker.lane(number, call.fragments, masked[number])
        for number, call in enumerate(kept.calls)
        if call.turn == turn and not any(call.objects)
    ]


def _sent(masker: Masker, kept: Kept) -> dict[str, Any]:
    lanes = [
        Lane(
            number,
            call.text,
            masker.arguments(call.text) if call.kind == "function" else masker.text(call.text),
            [len(call.text)],
        )
        for number, call in enumerate(kept.calls)
    ]
    body = bytes(kept.sent.data)
    events = []
    is_stream = kept.stream and not body.startswith(b"{")
    for n, at_ms, block in _blocks(body, kept.sent, "events" if is_stream else "document"):
        told = masker.block(block, lanes, own=True, events=is_stream)
        events.append({"n": n, "at_ms": at_ms, "name": told.name, "text": _shown(told.text), "calls": told.fragments})
    return {"bytes": len(body), "events": events}


def _call(
    masker: Masker, number: int, call: SeenCall, masked: Sequence[str], found: dict[tuple[int, int], int]
) -> dict[str, Any]:
    text = masker.arguments(call.text) if call.kind == "function" else masker.text(call.text)
    return {
        "turn": call.turn,
        "choice": call.choice,
        "index": call.index,
        "sent_index": call.sent_index,
        "id": masker.identifier(call.call_id),
        "name": masker.name(call.name),
        "kind": call.kind,
        "verdict": call.verdict,
        "quirks": call.quirks,
        "repairs": call.repairs,
        "format": call.format,
        "cut": call.cut,
        "error": None
        if call.error is None
        else {"path": call.error[0], "rule": call.error[1], "message": call.error[2]},
        "arguments": _marked(text, call),
        "fragments": [
            {"text": part, "event": found.get((number, n)), "object": call.objects[n]} for n, part in enumerate(masked)
        ],
    }


def _marked(text: str, call: SeenCall) -> list[dict[str, Any]]:
    """The arguments in segments; the one that the error is about has `marked`."""
    span = None
    if call.error is not None and call.verdict in ("schema_violation", "invalid_json"):
        path, _, message = call.error
        if at := _AT_CHARACTER.search(message):
            start = min(int(at[1]) - 1, max(len(text) - 1, 0))
            span = (start, start + 1)
        elif call.verdict == "invalid_json" and "ends too early" in message:
            span = (len(text), len(text))
        else:
            span = span_of(text, path)
    if span is None:
        return [{"text": text, "marked": False}]
    parts = ((text[: span[0]], False), (text[span[0] : span[1]], True), (text[span[1] :], False))
    return [{"text": part, "marked": marked} for part, marked in parts if part or marked]


# --- bodies ---------------------------------------------------------------------------------------------------------


def _told(masker: Masker, asked: Asked, lanes: Sequence[Lane]) -> Iterator[tuple[int, int, Any]]:
    body = bytes(asked.tape.data)
    form = form_of(body, asked)
    for n, at_ms, block in _blocks(body, asked.tape, form):
        yield n, at_ms, masker.block(block, lanes, events=form == "events")


def form_of(body: bytes, asked: Asked) -> str:
    """events | lines | document, told by the body's first character as the core does."""
    first = body.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if first in (b"{", b"["):
        is_lines = asked.dialect == "ollama-chat" and _is_json(body.lstrip().partition(b"\n")[0])
        return "lines" if is_lines else "document"
    return "document" if first == b"<" or asked.status >= 300 else "events"


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _content_type(kept: Kept, asked: Asked) -> str:
    """Without parameters, and only a known one, where the entry is masked."""
    kind = asked.content_type.partition(";")[0].strip().lower()
    if not kept.redact:
        return asked.content_type
    return kind if kind in _CONTENT_TYPES or not kind else "x/x"


def _blocks(body: bytes, tape: Tape, form: str) -> Iterator[tuple[int, int, str]]:
    """Its number from 1, the millisecond at which it was complete, and the characters of each event, in order;
    together they are the body. What is no UTF-8 stands as surrogates."""
    text = body.decode("utf-8", "surrogateescape")
    pattern = {"events": _BLOCK, "lines": _LINE}.get(form)
    blocks = [text] if pattern is None else pattern.findall(text)
    end = moment = 0
    for n, block in enumerate(filter(None, blocks), 1):
        end += len(block.encode("utf-8", "surrogateescape"))
        at_ms = 0
        if len(tape.ends):
            while moment < len(tape.ends) - 1 and tape.ends[moment] < end:
                moment += 1
            at_ms = tape.at_ms[moment]
        yield n, at_ms, block


def _shown(text: str) -> str:
    """As JSON may carry it: what was no UTF-8, and lone surrogates, as the replacement character."""
    return text.encode("utf-8", "replace").decode().rstrip("\r\n")


# --- a case file ----------------------------------------------------------------------------------------------------


def case(kept: Kept, turn: int) -> dict[str, Any]:
    """One attempt's reply as a case file. Raises IndexError where there is no such attempt, or nothing came in it."""
    asked = kept.asked[turn]
    if turn < 0 or not asked.dialect:
        raise IndexError(turn)
    masker = masker_for(kept)
    masked = [masker.fragments(call.fragments, call.objects, call.kind) for call in kept.calls]
    body = [_item(told.text) for _, _, told in _told(masker, asked, _lanes(masker, kept, turn, masked))]
    calls = [call for call in kept.calls if call.turn == turn]
    last = turn == len(kept.asked) - 1
    told = (
        f"{asked.backend}, {', '.join(kept.verdicts) or 'no calls'}"
        if last
        else f"{asked.backend}, not the last attempt"
    )
    notes = [
        *(
            ["masked: values stand as x and 1, so that what a pattern, a format or a bound says of them is left out"]
            if kept.redact
            else []
        ),
        *(
            ["calls that came as text are masked with it, and are not found again"]
            if kept.redact and any(c.format for c in calls)
            else []
        ),
        *(
            ["cut: the reply was larger than the inspector keeps of one, and replays as one that broke off"]
            if kept.cut
            else []
        ),
    ]
    content_type = _content_type(kept, asked)
    return {
        "id": f"inspected-{kept.number}-{turn}",
        "fault": "; ".join([told, *notes]),
        "dialect": asked.dialect,
        "request": _request(masker, kept, calls),
        "upstream": {
            "status": asked.status,
            "headers": {"content-type": content_type} if content_type else {},
            "body": body,
            "end": "eof" if asked.end in ("eof", "stopped") and not kept.cut else "reset",
        },
        "inspected": {
            "policy": kept.policy,
            "verdicts": [call.verdict for call in calls],
            "quirks": kept.quirks,
            "masked": kept.redact,
            "notes": notes,
        },
    }


def _item(text: str) -> Any:
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"$hex": text.encode("utf-8", "surrogateescape").hex()}
    return text


def _request(masker: Masker, kept: Kept, calls: Sequence[SeenCall]) -> dict[str, Any]:
    """What of the request judges its calls, as a chat request; never its messages."""
    asking = kept.asking
    broken: dict[str, set[str]] = {}
    for call in calls:
        if call.error is not None:
            broken.setdefault(call.name, set()).add(call.error[1])
    tools: list[dict[str, Any]] = []
    for name, kind, schema in asking.tools:
        tool: dict[str, Any] = {"name": name}
        if schema is not None and kind == "function":
            tool["parameters"] = masker.schema(schema, frozenset(broken.get(name, ())))
        tools.append({"type": kind, kind: tool})
    request: dict[str, Any] = {"stream": kept.stream}
    if tools:
        request |= {
            "tools": tools,
            "tool_choice": _tool_choice(asking.mode, asking.names, {n: k for n, k, _ in asking.tools}),
        }
    if not asking.parallel:
        request["parallel_tool_calls"] = False
    if asking.choices != 1:
        request["n"] = asking.choices
    return request


def _tool_choice(mode: str, names: tuple[str, ...] | None, kinds: dict[str, str]) -> Any:
    if names is None:
        return mode
    tools = [{"type": kinds.get(name, "function"), kinds.get(name, "function"): {"name": name}} for name in names]
    if mode == "forced":
        return tools[0]
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required" if mode == "required" else "auto", "tools": tools},
    }


def dumped(value: Any) -> bytes:
    """JSON for a browser and for `replay`; what JSON can't say of a text is replaced."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
