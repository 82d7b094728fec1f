"""What a client must read of a reply whose shape leaves no doubt: an independent look at the upstream's own bytes.

Only bodies of a plain shape are judged (each event one clean JSON document of the kind that a careful backend writes);
of any other the answer here is None. The rules that decide odd shapes are the product's, and tested by the cases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from casefile import Reply
from fuzz.inputs import Input, is_json, plain
from proxy.model.requests import Request

Said = tuple[str, bool]  # the text, and whether a final event or a finish reason confirmed the end
# No such word in a body: then nothing in it can have confirmed the end. Bodies with escapes or of one document apart.
PROOFS = {
    "openai-chat": (b"finish_reason", b"[DONE]"),
    "openai-responses": (b"completed", b"incomplete", b"failed", b"[DONE]"),
    "anthropic-messages": (b"stop_reason", b"message_stop", b"[DONE]"),
    "gemini": (b"finishReason", b"finish_reason", b"[DONE]"),
    "ollama-chat": (b"done", b"[DONE]"),
}


_THOUGHTS = ("reasoning_content", "reasoning")
_MESSAGE = re.compile(rb'"content"\s*:\s*(?:\[\s*)?(?:\{|"[^"])')  # a whole reply, as one event
_PROSE = re.compile(r"[\w .,!?\n\U0001f600]*")  # no markup begins in it


_DONE = object()


class _Odd(Exception):
    """A shape that is not judged here."""


def check(reply: Reply, value: Input, request: Request, dialect: str) -> None:
    if value.reask or value.repeat[1] or value.status not in (200, 201):
        return
    (body,) = plain(value)[:1]
    if value.encoding not in ("", "identity", "gzip", "deflate"):
        return
    failed = reply.error is not None or reply.status >= 400
    if request.stream and not failed and _never_proven(body, dialect):
        raise AssertionError("a reply without any proof of its end is no success")
    if value.small or value.pauses or value.interrupt:  # the reply may be over before what comes late
        return
    try:
        text, proven = _READERS[dialect](_documents(body, dialect))
    except _Odd:
        return
    if request.tools and value.recover != "off" and _PROSE.fullmatch(text) is None:
        return  # a call may be recovered of it
    got = reply.content.get(0, "")
    want = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    # what came behind a call that was begun and may not be closed
    behind = failed and value.live and value.client != "openai-chat" and request.tools
    if reply.status < 400 and not behind:
        lost = want[len(got) :]
        if failed:
            lost = lost.removesuffix("\ufffd")  # half a character, whose other half never came
        assert want.startswith(got), f"text {got[:60]!r}, want {want[:60]!r}"
        # behind a broken event nothing counts
        assert not lost.strip() or (failed and reply.error.get("code") != "stream_cut"), f"text is lost: {lost[:60]!r}"
        told = reply.calls or reply.report or value.annotations != "always"
        assert not lost or failed or told, f"white space is lost: {lost[:60]!r}"
    if not proven:
        assert failed, "success without a finish reason or a final event"


def _never_proven(body: bytes, dialect: str) -> bool:
    head = body.lstrip(b"\xef\xbb\xbf \t\r\n")
    streams = {"gemini": b"[", "ollama-chat": b"{"}
    if head[:1] in (b"{", b"[") and head[:1] != streams.get(dialect):
        return False  # one whole document proves itself
    if dialect == "ollama-chat" and head[:1] == b"{" and not is_json(head.partition(b"\n")[0]):
        return False  # one document too, over several lines
    if dialect == "anthropic-messages" and _MESSAGE.search(body) is not None:
        return False
    return b"\\u" not in body and not any(word in body for word in PROOFS[dialect])


def _documents(body: bytes, dialect: str) -> list[Any]:
    """The events' documents, up to [DONE]."""
    if b"[" * 200 in body:
        raise _Odd  # nested deeper than is taken
    try:
        text = body.decode()
        if dialect == "ollama-chat":
            return [json.loads(line) for line in text.split("\n") if line]
        if dialect == "gemini" and text.startswith("["):
            return list(json.loads(text))
        out: list[Any] = []
        *events, rest = text.replace("\r\n", "\n").split("\n\n")
        if rest or "\r" in text.replace("\r\n", ""):
            raise _Odd
        for event in events:
            lines = [line for line in event.split("\n") if line and not line.startswith(":")]
            data = [line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:")]
            if len(data) != 1 or any(not line.startswith(("data:", "event: ")) for line in lines):
                raise _Odd
            if data[0] == "[DONE]":
                out.append(_DONE)
                break
            out.append(json.loads(data[0], object_pairs_hook=_unique))
    except (ValueError, RecursionError):
        raise _Odd from None
    return out


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise _Odd
    return out


def _is(condition: bool) -> None:
    if not condition:
        raise _Odd


def _known(value: Any, *keys: str) -> dict[str, Any]:
    """An object of no other keys than these."""
    _is(isinstance(value, dict) and set(value) <= set(keys))
    return dict(value)


def _text(value: Any) -> str:
    _is(isinstance(value, str))
    return str(value)


def _chat(documents: list[Any]) -> Said:
    texts, proven = [], False
    for document in documents:
        if document is _DONE:
            proven = True
            break
        _is(isinstance(document, dict))
        chunk = {key: one for key, one in document.items() if one is not None}
        _is(chunk.keys().isdisjoint(("error", "base_resp", "detail", "message", "code", "type")))
        _is(isinstance(chunk.get("choices"), list) and len(chunk["choices"]) <= 1)
        for one in chunk["choices"]:
            choice = _known(one, "index", "delta", "finish_reason")
            _is(type(choice.get("index")) is int and choice["index"] == 0)
            delta = _known(choice.get("delta"), "role", "content", "tool_calls", *_THOUGHTS)
            _is(not (delta.get("content") and delta.get("tool_calls")))
            if delta.get("content") is not None:
                texts.append(_text(delta["content"]))
            reason = choice.get("finish_reason")
            _is(reason in (None, "stop", "length", "tool_calls"))
            proven = proven or reason is not None
    return "".join(texts), proven


_BLOCK_DELTAS = {
    "text": ("text_delta",),
    "tool_use": ("input_json_delta",),
    "thinking": ("thinking_delta", "signature_delta"),
}


def _messages(documents: list[Any]) -> Said:
    texts: list[str] = []
    kind, started, proven = "", 0, False
    for document in documents:
        _is(isinstance(document, dict))
        match document.get("type"):
            case "message_start":
                _is(document is documents[0] and isinstance(document.get("message"), dict))
                _is(not document["message"].get("content"))
            case "content_block_start":
                _is(not kind and document.get("index") == started)
                block = document.get("content_block")
                _is(isinstance(block, dict) and block.get("type") in ("text", "tool_use", "thinking"))
                _is(not block.get("text"))
                kind, started = block["type"], started + 1
            case "content_block_delta":
                _is(document.get("index") == started - 1)
                delta = document.get("delta")
                _is(isinstance(delta, dict))
                _is(delta.get("type") in _BLOCK_DELTAS.get(kind, ()))
                if kind == "text":
                    texts.append(_text(delta.get("text")))
            case "content_block_stop":
                _is(bool(kind) and document.get("index") == started - 1)
                kind = ""
            case "message_delta":
                delta = document.get("delta")
                _is(isinstance(delta, dict) and delta.get("stop_reason") in ("end_turn", "tool_use", "max_tokens"))
                proven = True
            case "message_stop":
                proven = True
                break
            case "ping":
                pass
            case _:
                raise _Odd
    return "".join(texts), proven


def _responses(documents: list[Any]) -> Said:
    texts: list[str] = []
    item: dict[str, Any] | None = None
    begun, proven = "", False
    place = None
    for document in documents:
        _is(isinstance(document, dict))
        _is(document.get("content_index", 0) == 0)
        if document.get("type") == "response.output_item.added":
            place = document.get("output_index")
        index = document.get("output_index", place)
        _is(index == place and type(index) is type(place) and isinstance(place, int | None))
        match document.get("type"):
            case "response.created" | "response.in_progress" | "response.function_call_arguments.delta":
                pass
            case "response.output_item.added":
                item, begun = document.get("item"), ""
                _is(isinstance(item, dict) and item.get("type") in ("message", "function_call"))
                _is(not (item or {}).get("content"))
            case "response.content_part.added":
                part = document.get("part")
                _is(isinstance(part, dict) and part.get("type") == "output_text" and part.get("text") == "")
                _is(item is not None and item.get("type") == "message" and not begun)
            case "response.output_text.delta":
                _is(item is not None and item.get("type") == "message")
                begun += _text(document.get("delta"))
                texts.append(_text(document.get("delta")))
            case "response.output_text.done":
                _is(document.get("text") == begun)
            case "response.content_part.done":
                part = document.get("part")
                _is(isinstance(part, dict) and part.get("text") == begun)
            case "response.function_call_arguments.done":
                pass
            case "response.output_item.done":
                done = document.get("item")
                _is(isinstance(done, dict) and item is not None and done.get("type") == item.get("type"))
                if done["type"] == "message":
                    content = done.get("content")
                    _is(isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict))
                    _is(content[0].get("type") == "output_text" and content[0].get("text") == begun)
                item = None
            case "response.completed":
                _is(_final_text(document.get("response")) == "".join(texts))  # what only it tells counts too
                proven = True
                break
            case _:
                raise _Odd
    return "".join(texts), proven


def _final_text(response: Any) -> str:
    _is(isinstance(response, dict) and isinstance(response.get("output"), list))
    texts: list[str] = []
    for item in response["output"]:
        _is(isinstance(item, dict) and item.get("type") in ("message", "function_call", "reasoning"))
        if item["type"] == "message":
            _is(isinstance(item.get("content"), list))
            for part in item["content"]:
                _is(isinstance(part, dict) and part.get("type") == "output_text")
                texts.append(_text(part.get("text")))
    return "".join(texts)


def _gemini(documents: list[Any]) -> Said:
    texts, proven = [], False
    for document in documents:
        _is(isinstance(document, dict) and "error" not in document and "promptFeedback" not in document)
        candidates = document.get("candidates")
        _is(isinstance(candidates, list) and len(candidates) <= 1)
        for one in candidates:
            candidate = _known(one, "content", "finishReason", "index", "avgLogprobs", "safetyRatings")
            _is(candidate.get("index", 0) == 0 and candidate.get("finishReason", "STOP") in ("STOP", "MAX_TOKENS"))
            proven = proven or "finishReason" in candidate
            if "content" in candidate:
                content = _known(candidate["content"], "role", "parts")
                _is(isinstance(content.get("parts"), list))
                for part in content["parts"]:
                    _is(isinstance(part, dict) and set(part) in ({"text"}, {"functionCall"}, {"text", "thought"}))
                    _is(part.get("thought", True) is True)
                    call = _known(part.get("functionCall", {}), "name", "args", "id")
                    _is(isinstance(call.get("name", ""), str) and isinstance(call.get("args", {}), dict))
                    if "text" in part and "thought" not in part:
                        texts.append(_text(part["text"]))
    return "".join(texts), proven


def _ollama(documents: list[Any]) -> Said:
    texts, proven = [], False
    for document in documents:
        _is(isinstance(document, dict) and "error" not in document)
        message = _known(document.get("message"), "role", "content", "tool_calls", "thinking")
        texts.append(_text(message.get("content")))
        _is(isinstance(document.get("done"), bool))
        proven = document["done"]
        if proven:
            break
    return "".join(texts), proven


_READERS: dict[str, Callable[[list[Any]], Said]] = {
    "openai-chat": _chat,
    "anthropic-messages": _messages,
    "openai-responses": _responses,
    "gemini": _gemini,
    "ollama-chat": _ollama,
}
