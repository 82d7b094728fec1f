"""Chat completions towards the client: the canonical stream, or one document.

The stream that all of 22 client set-ups read: one role chunk; reasoning and content deltas; each call strictly after
the one before it, head and arguments in chunks of their own; the finish chunk alone with `delta: {}`; the usage chunk
only if asked for; `[DONE]`. The same id, created and model in every chunk; no `error` key in a good one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from proxy.dialects.base import Encoder, Envelope, error_object
from proxy.dialects.openai_chat.decode import whole_piece
from proxy.faults import Fault
from proxy.model.calls import JudgedCall
from proxy.model.deltas import FinishDelta, Piece, Usage, UsageDelta
from proxy.model.requests import Request
from proxy.wire.jsondoc import dump, join_surrogates, one_line

NAME = "openai-chat"


def encoder(
    request: Request,
    seed: str,
    created: int,
    envelope: Callable[[], Envelope | None],
    upstream_dialect: str = NAME,
) -> ChatStreamEncoder | ChatDocumentEncoder:
    kind = ChatStreamEncoder if request.stream else ChatDocumentEncoder
    return kind(request, seed, created, envelope, upstream_dialect)


class _Base(Encoder):
    ordered = False
    usage_first = False

    def __init__(
        self,
        request: Request,
        seed: str,
        created: int,
        envelope: Callable[[], Envelope | None],
        upstream_dialect: str,
    ) -> None:
        self._request = request
        self._same = upstream_dialect == NAME
        self._seed = seed
        self._created = created
        self._upstream_envelope = envelope
        self._envelope: Envelope | None = None
        self._verbatim = False  # it is the upstream's own: payloads may pass as they came

    def envelope(self) -> Envelope:
        """The upstream's own at the first output, else a made one; it stays for the whole reply."""
        if self._envelope is None:
            upstream = self._upstream_envelope()
            reply_id, created, model = upstream or ("", 0, "")
            self._envelope = (
                reply_id or "chatcmpl-" + hashlib.sha256(self._seed.encode()).hexdigest()[:24],
                created or self._created,
                model or self._request.model,
            )
            self._verbatim = self._envelope == upstream
        return self._envelope

    def can_carry(self, call: JudgedCall) -> bool:
        return bool(call.name)

    def _own(self, piece: Piece) -> Piece:
        """`piece` with nothing in it but what this dialect has a field for, whatever the upstream spoke."""
        if self._same:
            return piece
        delta = {k: v for k, v in (("reasoning_content", piece.reasoning), ("content", piece.text)) if v}
        if piece.refusal:
            delta["refusal"] = piece.refusal
        if "extra_content" in piece.delta:
            delta["extra_content"] = piece.delta["extra_content"]
        return Piece(piece.choice, piece.text, piece.reasoning, piece.refusal, delta=delta)

    def _extra_of(self, call: JudgedCall, entry: dict[str, Any]) -> dict[str, Any]:
        """Fields of the upstream's entry that are not ours; of another dialect only what chat has a name for."""
        return {k: v for k, v in call.extra.items() if k not in entry and (self._same or k == "extra_content")}

    def _usage(self, delta: UsageDelta) -> dict[str, Any]:
        return delta.usage if self._same else chat_usage(delta.counts)

    def error(self, fault: Fault, report: dict[str, Any] | None) -> bytes:
        raise NotImplementedError


class ChatStreamEncoder(_Base):
    """Server-sent events."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._roles: set[int] = set()
        self._told: tuple[dict[str, Any], dict[str, Any]] = ({}, {})  # other fields of the last call's head

    def piece(self, piece: Piece) -> bytes:
        if piece.raw is not None:
            if self._verbatim:
                return self._role(piece.choice) + b"data: " + one_line(piece.raw) + b"\n\n"
            piece = whole_piece(piece)  # the reply began with another envelope
        piece = self._own(piece)
        if piece.choice < 0:
            return self._event({**piece.top_extra, "choices": []}) if piece.top_extra else b""
        delta = {key: value for key, value in piece.delta.items() if value is not None}
        role = delta.pop("role", None)
        out = b""
        if piece.choice not in self._roles:
            self._roles.add(piece.choice)
            if role and isinstance(delta.get("content", ""), str):
                delta = {"role": "assistant", "content": "", **delta}
            else:
                out = self._chunk(piece.choice, {"role": "assistant", "content": ""})
        if not delta and not piece.choice_extra and not piece.top_extra:
            return out
        return out + self._chunk(piece.choice, delta, piece.choice_extra, piece.top_extra)

    def payloads(self, choice: int, payloads: Sequence[bytes]) -> bytes | None:
        if not self._verbatim or choice not in self._roles:
            return None
        return one_line(b"data: %b\n\n" % b"\n\ndata: ".join(payloads))

    def call_head(self, call: JudgedCall) -> bytes:
        entry: dict[str, Any] = {"index": call.sent_index, "id": call.call_id, "type": call.kind}
        field = "input" if call.kind == "custom" else "arguments"
        extra = self._extra_of(call, entry)
        self._told = (extra, dict(call.function_extra))
        entry[call.kind] = {"name": call.name, field: "", **call.function_extra}
        entry.update(extra)
        return self._role(call.choice) + self._chunk(call.choice, {"tool_calls": [entry]})

    def call_text(self, call: JudgedCall, text: str) -> bytes:
        field = "input" if call.kind == "custom" else "arguments"
        entry = {"index": call.sent_index, call.kind: {field: join_surrogates(text)}}
        return self._chunk(call.choice, {"tool_calls": [entry]})

    def call_end(self, call: JudgedCall) -> bytes:
        """Fields that came when the head of a live call was sent already go with an empty fragment."""
        told, function_told = self._told
        late = self._extra_of(call, told)
        function_late = {k: v for k, v in call.function_extra.items() if k not in function_told}
        if not late and not function_late:
            return b""
        field = "input" if call.kind == "custom" else "arguments"
        entry = {"index": call.sent_index, call.kind: {field: "", **function_late}, **late}
        return self._chunk(call.choice, {"tool_calls": [entry]})

    def finish(self, choice: int, reason: str, delta: FinishDelta | None, report: dict[str, Any] | None) -> bytes:
        delta = delta if self._same else None
        choice_extra = delta.choice_extra if delta else {}
        top = {**(delta.top_extra if delta else {}), **({"wholecall": report} if report is not None else {})}
        return self._role(choice) + self._chunk(choice, {}, choice_extra, top, reason)

    def usage(self, delta: UsageDelta) -> bytes:
        extra = delta.top_extra if self._same else {}
        return self._event({**extra, "choices": [], "usage": self._usage(delta)})

    def done(self) -> bytes:
        return b"data: [DONE]\n\n"

    def error(self, fault: Fault, report: dict[str, Any] | None) -> bytes:
        return b"data: " + one_line(error_body(fault, report)) + b"\n\n"

    def _role(self, choice: int) -> bytes:
        if choice in self._roles:
            return b""
        self._roles.add(choice)
        return self._chunk(choice, {"role": "assistant", "content": ""})

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        choice_extra: dict[str, Any] | None = None,
        top_extra: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> bytes:
        entry = {"index": choice, "delta": delta, **(choice_extra or {}), "finish_reason": reason}
        return self._event({"choices": [entry], **(top_extra or {})})

    def _event(self, fields: dict[str, Any]) -> bytes:
        reply_id, created, model = self.envelope()
        document = {"id": reply_id, "object": "chat.completion.chunk", "created": created, "model": model, **fields}
        return b"data: " + one_line(dump(document)) + b"\n\n"


class ChatDocumentEncoder(_Base):
    """One `chat.completion` document, given by `done`."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._messages: dict[int, dict[str, Any]] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._top: dict[str, Any] = {}
        self._counts: dict[str, Any] | None = None
        self._reports: list[dict[str, Any]] = []

    def piece(self, piece: Piece) -> bytes:
        piece = self._own(piece)
        self._top.update(piece.top_extra)
        if piece.choice < 0:
            return b""
        message = self._messages.setdefault(piece.choice, {})
        delta = piece.delta
        if piece.raw is not None:
            raise AssertionError("a verbatim piece for a document")
        for key, value in delta.items():
            if key == "role":
                continue
            if isinstance(value, str):
                # lists and one join: a string that grows by every delta is quadratic
                self._texts.setdefault((piece.choice, key), []).append(value)
                message.setdefault(key, "")
            elif isinstance(value, list) and isinstance(message.get(key), list):
                message[key] = [*message[key], *value]
            else:
                message[key] = value
        _merge(self._choices.setdefault(piece.choice, {}), piece.choice_extra)
        return b""

    def call_head(self, call: JudgedCall) -> bytes:
        field = "input" if call.kind == "custom" else "arguments"
        entry: dict[str, Any] = {"id": call.call_id, "type": call.kind}
        entry[call.kind] = {"name": call.name, field: join_surrogates(call.text), **call.function_extra}
        entry.update(self._extra_of(call, entry))
        self._messages.setdefault(call.choice, {}).setdefault("tool_calls", []).append(entry)
        return b""

    def call_text(self, call: JudgedCall, text: str) -> bytes:
        return b""  # a document has it from the head

    def call_end(self, call: JudgedCall) -> bytes:
        return b""

    def finish(self, choice: int, reason: str, delta: FinishDelta | None, report: dict[str, Any] | None) -> bytes:
        self._messages.setdefault(choice, {})
        extra = self._choices.setdefault(choice, {})
        if delta and self._same:
            _merge(extra, delta.choice_extra)
            self._top.update(delta.top_extra)
        extra["finish_reason"] = reason
        if report is not None:
            self._reports.append(report)
        return b""

    def usage(self, delta: UsageDelta) -> bytes:
        self._counts = self._usage(delta)
        if self._same:
            self._top.update(delta.top_extra)
        return b""

    def done(self) -> bytes:
        reply_id, created, model = self.envelope()
        for (choice, key), pieces in self._texts.items():
            self._messages[choice][key] = "".join(pieces)
        choices = []
        for index in sorted(self._messages):
            message = self._messages[index]
            extra = self._choices.get(index, {})
            whole = {"role": "assistant", "content": message.pop("content", None), **message}
            choices.append({"index": index, "message": whole, **extra})
        document = {"id": reply_id, "object": "chat.completion", "created": created, "model": model, **self._top}
        document["choices"] = choices
        if self._counts is not None:
            document["usage"] = self._counts
        if self._reports:
            document["wholecall"] = {
                **self._reports[0],
                "calls": [call for report in self._reports for call in report["calls"]],
                "quirks": [quirk for report in self._reports for quirk in report["quirks"]],
            }
        return dump(document)

    def error(self, fault: Fault, report: dict[str, Any] | None) -> bytes:
        return error_body(fault, report)


def error_body(fault: Fault, report: dict[str, Any] | None = None) -> bytes:
    """`{"error": {...}, "wholecall"?: {...}}`; an upstream's own error document of this dialect as it came."""
    fields = dict(fault.document) if fault.document and fault.error is fault.document.get("error") else {}
    fields.pop("choices", None)  # an error event with choices is ignored by some clients
    fields.pop("wholecall", None)  # an upstream's is no report of ours
    fields["error"] = error_object(fault)
    if report is not None:
        fields["wholecall"] = report
    return dump(fields)


def chat_usage(counts: Usage) -> dict[str, Any]:
    """Cached tokens are inside prompt_tokens, reasoning tokens inside completion_tokens."""
    usage: dict[str, Any] = {
        "prompt_tokens": counts.input_tokens,
        "completion_tokens": counts.output_tokens,
        "total_tokens": counts.input_tokens + counts.output_tokens,
    }
    if counts.cache_read is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": counts.cache_read}
    if counts.reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning}
    return usage


def _merge(target: dict[str, Any], extra: dict[str, Any]) -> None:
    """Choice fields over events: token lists (logprobs) go on, other fields are replaced by the later one."""
    for key, value in extra.items():
        old = target.get(key)
        if key == "logprobs" and isinstance(old, dict) and isinstance(value, dict):
            for name, tokens in value.items():
                if isinstance(old.get(name), list) and isinstance(tokens, list):
                    old[name] = [*old[name], *tokens]
                else:
                    old[name] = tokens
        else:
            target[key] = value
