"""Chat completion events and documents -> deltas.

Theory of operation. Most events are one choice's next piece of text: they are parsed once and their payload goes on
verbatim (`Piece.raw`). Every other event is taken apart: calls, finish reason and usage leave it, padding goes, and
what is left at each level (delta, choice, top) survives in the `Piece`. A payload is passed on verbatim only where
nothing in its bytes could be read as a call by a parser that treats doubled or escaped keys in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import orjson

from proxy.dialects.base import BadEvent, Envelope, check_number, read_document, until_done, unwrapped
from proxy.dialects.keys import check_keys
from proxy.dialects.stencils import Stencils
from proxy.model.deltas import (
    FINISH_WORDS,
    CallDelta,
    Delta,
    Done,
    Failed,
    FinishDelta,
    Piece,
    Usage,
    UsageDelta,
    verbatim_piece,
)
from proxy.model.findings import Quirk
from proxy.wire.jsondoc import NotJson, checked, decode, documents, dump, exact, join_surrogates, load, one_line
from proxy.wire.jsonscan import value_span
from proxy.wire.sse import Frame

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
_OTHER_TEXTS = frozenset({*REASONING_FIELDS, "refusal"})
_ENVELOPE = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "base_resp", "wholecall"})
_CHOICE = frozenset({"index", "delta", "message", "finish_reason", "usage"})
_CALLS = frozenset({"tool_calls", "function_call", "role", "content"})
_ENTRY = frozenset({"index", "id", "type", "function", "custom"})
_FINISH_REASONS = frozenset({"stop", "tool_calls", "length", "content_filter", "function_call"})
_PADDING = frozenset({"obfuscation", "p"})
_MAX_CHOICES = 128
_OPAQUE = frozenset({"arguments", "input"})
_ARGUMENTS = ("delta", "tool_calls", 0, "function", "arguments")
_MAX_ENTRIES = 1_000_000  # of one message: keys of a plain reply's calls count in steps of this from choice to choice


class ChatDecoder:
    """`feed` one frame at a time. `choices` is the request's `n`; `verbatim`: payloads may be passed on as they came
    (a client of this dialect reads a stream). Nothing comes after a `Done`."""

    def __init__(self, choices: int, note: Callable[[Quirk], None], *, verbatim: bool) -> None:
        self._choices = choices
        self._verbatim = verbatim
        self._note = note
        self.whole = self.alone = False
        self.envelope: Envelope | None = None  # id, created, model of the first event that has them
        self.stencils = Stencils()  # of the events that `_fast` takes
        self._first_doc: dict[str, Any] = {}
        self._last_doc: dict[str, Any] = {}
        self._roles: set[int] = set()  # choices whose first event was seen
        self._visible: set[int] = set()  # choices that have had text other than white space
        self._halves: dict[tuple[int, str], str] = {}  # high surrogates that wait for their other half

    # --- frames ------------------------------------------------------------------------------------------------

    def feed(self, frame: Frame) -> list[Delta]:
        """The deltas of one server-sent event. Raises BadEvent."""
        data = frame.data
        if self.stencils.last is not None:  # events came since that were not parsed
            self._last_doc, self.stencils.last = self.stencils.last.document, None
        if data == b"[DONE]":
            return [Done()]
        if frame.event:
            return self._named(frame)
        try:
            document = checked(orjson.loads(data), data)
        except (orjson.JSONDecodeError, NotJson):
            return self._tolerant(data)
        if type(document) is dict:
            delta = self._fast(document, data)
            if delta is not None:
                return [delta]
        return self._document(document, data)

    def feed_document(self, frame: Frame) -> list[Delta]:
        """The deltas of a whole JSON body, or of JSON lines, either with events behind it."""
        found, source, frames = read_document(frame.data, self._note)
        self.alone = len(found) == 1 and not frames and _is_regular(found[0])
        return until_done(chain((self._whole(document, source) for document in found), map(self.feed, frames)))

    def _tolerant(self, data: bytes) -> list[Delta]:
        """An event that a strict parser refuses: lone halves of characters, several documents, or no JSON."""
        try:
            found, quirks = documents(data)
        except NotJson as error:
            return self._odd(data, str(error))
        if len(found) == 1 and not quirks:
            return self._document(found[0], data)
        return self._several(found, quirks)

    def _several(self, found: list[Any], quirks: list[Quirk]) -> list[Delta]:
        for quirk in quirks:
            self._note(quirk)
        out: list[Delta] = []
        for document in found:
            out += self._document(document, None)
        return out

    def _named(self, frame: Frame) -> list[Delta]:
        if frame.event != b"error":
            return self.feed(Frame(b"", frame.data))
        text, _ = decode(frame.data)
        try:
            document = documents(frame.data)[0][0]
        except NotJson:
            return [Failed(text or "the upstream sent an error event")]
        failure = _failure(document) if isinstance(document, dict) else None
        return [failure or Failed(text)]

    def _odd(self, data: bytes, reason: str) -> list[Delta]:
        """An event that is no JSON: nothing, [DONE] in another form, or broken."""
        text = data.strip()
        if not text or text.startswith(b":"):
            self._note(Quirk.EMPTY_EVENT)
            return []
        before, done, after = text.partition(b"[DONE]")
        if not done:
            raise BadEvent(reason)
        self._note(Quirk.EVENTS_GLUED if before or after else Quirk.DONE_PADDED)
        return [*(self.feed(Frame(b"", before)) if before else ()), Done()]

    # --- documents ---------------------------------------------------------------------------------------------

    def _whole(self, document: Any, data: bytes | None) -> list[Delta]:
        """A plain reply: the entries of its messages are marked calls, each one of its own."""
        if isinstance(document, list) and len(document) == 1:
            document, data = unwrapped(document, data)
        if isinstance(document, dict) and isinstance(document.get("choices"), list):
            plain = [c for c in document["choices"] if isinstance(c, dict) and isinstance(c.get("message"), dict)]
            if plain and not any(isinstance(c.get("delta"), dict) for c in plain):
                failure = _failure(document)
                if failure:
                    return [failure]
                self.whole = True
                return self._take_apart(document, data, plain=True)
        return self._document(document, data)

    def _document(self, document: Any, data: bytes | None) -> list[Delta]:
        if type(document) is not dict:
            if document is None:
                self._note(Quirk.EMPTY_EVENT)
                return []
            if isinstance(document, list) and document and isinstance(document[0], dict):
                failure = _failure(document[0])
                if failure:
                    return [failure]
            raise BadEvent("a JSON value that is no object")
        failure = _failure(document)
        if failure:
            return [failure]
        return self._take_apart(document, data, plain=False)

    def _fast(self, document: dict[str, Any], data: bytes) -> Piece | CallDelta | None:
        """What most events are: a choice's next text or reasoning, its payload verbatim, or the next fragment of a
        call. None: the event has to be taken apart."""
        try:
            (choice,) = document["choices"]
            index, delta = choice["index"], choice["delta"]
            if choice["finish_reason"] is not None or document["object"] != "chat.completion.chunk":
                return None
            created = document["created"]
            if (document["id"], created, document["model"]) != self.envelope or type(created) is not int:
                return None
        except (KeyError, TypeError, ValueError):
            return None
        if type(delta) is not dict or type(index) is not int or index not in self._roles or self._halves:
            return None
        if "error" in document or "base_resp" in document or "wholecall" in document or "message" in choice:
            return None
        if document.get("usage") is not None or "usage" in choice or "role" in delta or "function_call" in delta:
            return None
        if "tool_calls" in delta:
            return self._fast_fragment(document, choice, delta, index, data)
        return self._fast_text(document, index, delta, data) if self._verbatim else None

    def _fast_fragment(
        self, document: dict[str, Any], choice: dict[str, Any], delta: dict[str, Any], index: int, data: bytes
    ) -> CallDelta | None:
        try:
            (entry,) = delta["tool_calls"]
            function = entry["function"]
            place, arguments = entry["index"], function["arguments"]
        except (KeyError, TypeError, ValueError):
            return None
        if len(delta) != 1 or len(entry) != 2 or len(function) != 1 or type(place) is not int or place < 0:
            return None
        if data.count(b"_call") != 1 or data.count(b'"arguments"') != 1 or data.count(b"\\u00"):
            return None  # a doubled or an escaped key
        if type(arguments) is not str or not arguments or len(choice) > 3 + (choice.get("logprobs", 0) is None):
            return None
        if not document.keys() <= _ENVELOPE and not all(
            self._known(key, value) for key, value in document.items() if key not in _ENVELOPE and key not in _PADDING
        ):
            return None
        self._last_doc = document
        if all(document[key] in (None, self._first_doc.get(key)) for key in document.keys() - _ENVELOPE - _PADDING):
            self.stencils.learn(data, document, ("choices", 0, *_ARGUMENTS), index, place)  # known now and later
        return CallDelta(index, index=place, arguments=arguments)

    def _fast_text(self, document: dict[str, Any], index: int, delta: dict[str, Any], data: bytes) -> Piece | None:
        # tool_calls or function_call, as such or with escapes: read in another way, the payload could hold a call.
        # (One search for the rarest common part: searching for each costs as much as parsing.)
        # (`find`, since `in` first tries bytes as a number.)
        if data.find(b"_call") >= 0 or data.find(b"\\u00") >= 0 or data.find(b"\n") >= 0:
            return None
        text = delta.get("content") or ""
        if text:
            if type(text) is not str:
                return None
            if index not in self._visible:
                if text.isspace():
                    return None
                self._visible.add(index)
        reasoning = ""
        if len(delta) > 1 or not text:
            reasoning = next((v for f in REASONING_FIELDS if type(v := delta.get(f)) is str and v), "")
            if not text and not reasoning:
                return None
        self._last_doc = document
        if text and not reasoning and one_line(data) is data:
            self.stencils.learn(data, document, ("choices", 0, "delta", "content"), index)
        return verbatim_piece(index, text, data, reasoning)

    def _take_apart(self, document: dict[str, Any], data: bytes | None, *, plain: bool) -> list[Delta]:
        if data is not None:
            document = exact(document, data)
        out: list[Delta] = []
        usage = document.get("usage")
        choices = document.get("choices")
        if isinstance(choices, dict):
            choices = [choices]
        extra = {k: v for k, v in document.items() if k not in _ENVELOPE and k not in _PADDING}
        news = {k: v for k, v in extra.items() if not self._known(k, v)}
        if not isinstance(choices, list):
            if isinstance(usage, dict) and usage:
                out.append(UsageDelta(usage, usage_counts(usage), extra))
            else:
                self._note(Quirk.FOREIGN_EVENT)
            return out
        check_number(choices, "choices")
        self._see_envelope(document)
        if not self._first_doc:
            self._first_doc = document
        self._last_doc = document
        for position, choice in enumerate(choices):
            if isinstance(choice, dict):
                out += self._choice(choice, data, position, extra, news, plain=plain)
                news = {}
                if isinstance(choice.get("usage"), dict) and usage is None:
                    usage = choice["usage"]
                    self._note(Quirk.USAGE_MISPLACED)
        if isinstance(usage, dict) and usage:
            if not choices:
                return [*out, UsageDelta(usage, usage_counts(usage), extra)]
            if not plain and not any(isinstance(d, UsageDelta) for d in out):
                self._note(Quirk.USAGE_MISPLACED)
            out.append(UsageDelta(usage, usage_counts(usage)))
        elif not choices and news:
            out.append(Piece(-1, top_extra=news))
        return out

    def _known(self, key: str, value: Any) -> bool:
        """Whether a top-level field says nothing new."""
        return value is None or self._last_doc.get(key) == value or self._first_doc.get(key) == value

    def _see_envelope(self, document: dict[str, Any]) -> None:
        reply_id, created, model = document.get("id"), document.get("created"), document.get("model")
        if not isinstance(reply_id, str) or not reply_id or not isinstance(model, str):
            return
        if isinstance(created, float):
            created = int(created)
        if type(created) is not int:
            created = 0
        if self.envelope is None:
            self.envelope = (reply_id, created, model)
        elif self.envelope != (reply_id, created, model):
            self._note(Quirk.ENVELOPE_CHANGED)

    # --- one choice --------------------------------------------------------------------------------------------

    def _choice(
        self,
        choice: dict[str, Any],
        data: bytes | None,
        position: int,
        extra: dict[str, Any],
        news: dict[str, Any],
        *,
        plain: bool,
    ) -> list[Delta]:
        index = self._choice_index(choice.get("index"))
        delta, where = choice.get("delta"), "delta"
        message = choice.get("message")
        if isinstance(message, dict):
            if plain or not isinstance(delta, dict):
                delta, where = message, "message"
                if not plain:
                    self._note(Quirk.MESSAGE_FOR_DELTA)
            else:
                self._note(Quirk.MESSAGE_BESIDE_DELTA)
        if isinstance(delta, str):
            delta = {"content": delta}
            self._note(Quirk.CONTENT_PARTS)
        if not isinstance(delta, dict):
            delta = {}
        if delta.get("tool_calls") or delta.get("function_call"):
            check_keys(self._last_doc, data, _OPAQUE)
        choice_extra = {
            k: v for k, v in choice.items() if k not in _CHOICE and k not in _PADDING and (plain or v is not None)
        }
        reason = choice.get("finish_reason")
        ends = isinstance(reason, str) and reason != ""
        piece = self._piece(index, delta, plain=plain)
        if not ends:
            piece.choice_extra = choice_extra
            piece.top_extra = news
        elif piece.delta:
            piece.top_extra = news
        out: list[Delta] = [piece]
        out += self._calls(index, delta, data, ("choices", position, where), position if plain else None)
        if ends:
            assert isinstance(reason, str)
            if reason not in _FINISH_REASONS:
                self._note(Quirk.FINISH_WORD)
            out.append(FinishDelta(index, finish_meaning(reason), reason, choice_extra, extra))
        return out

    def _choice_index(self, index: Any) -> int:
        if self._choices == 1:
            if index not in (0, None) or isinstance(index, bool):
                self._note(Quirk.CHOICE_INDEX_IGNORED)
            return 0
        if type(index) is int and 0 <= index < min(self._choices, _MAX_CHOICES):
            return index
        self._note(Quirk.CHOICE_INDEX_IGNORED)
        return 0

    def _piece(self, index: int, delta: dict[str, Any], *, plain: bool) -> Piece:
        """What of a delta passes on: all but calls, padding and, in a stream, fields that are null or empty."""
        left: dict[str, Any] = {}
        role = delta.get("role")
        if index not in self._roles:
            self._roles.add(index)
            if not role and not plain:
                self._note(Quirk.ROLE_MISSING)
        elif role:
            self._note(Quirk.ROLE_REPEATED)
        if role:
            left["role"] = "assistant"
        content = delta.get("content")
        thinking = ""
        if content is not None and not isinstance(content, str) and content != []:
            self._note(Quirk.CONTENT_PARTS)
            content, thinking = _split_parts(content if isinstance(content, list) else [content])
        text = self._whole_characters(index, "content", content) if isinstance(content, str) and content else ""
        for key, value in delta.items():
            if key in _CALLS or key in _PADDING or (not plain and value in (None, "", [])):
                continue
            if not isinstance(value, str) and value is not None and key in _OTHER_TEXTS:
                value = self._as_text(value)
                if not value:
                    continue
            if isinstance(value, str) and value:
                value = self._whole_characters(index, key, value)
                if not value:
                    continue
            left[key] = value
        if thinking:
            left.setdefault("reasoning_content", self._whole_characters(index, "reasoning_content", thinking))
        if text:
            left["content"] = text
            if not text.isspace():
                self._visible.add(index)
        reasoning = next((left[f] for f in REASONING_FIELDS if isinstance(left.get(f), str)), "")
        refusal = left.get("refusal")
        return Piece(index, text, reasoning, refusal if isinstance(refusal, str) else "", delta=left)

    def _as_text(self, value: Any) -> str:
        """Text that came as parts or as another value, in a field of text other than `content`."""
        if value:
            self._note(Quirk.CONTENT_PARTS)
        return "".join(_split_parts(value if isinstance(value, list) else [value]))

    def _whole_characters(self, index: int, name: str, text: str) -> str:
        """`text` with halves of characters joined; a high half at its end waits for the next text of the field."""
        if text.isascii() and not self._halves:
            return text
        waiting = self._halves.pop((index, name), "")
        if waiting:
            text = waiting + text
            if "\udc00" <= text[1:2] <= "\udfff":
                self._note(Quirk.SURROGATES_SPLIT)
        if "\ud800" <= text[-1:] <= "\udbff":
            self._halves[index, name] = text[-1]
            text = text[:-1]
        self.stencils.paused = bool(self._halves)
        return join_surrogates(text)

    # --- calls -------------------------------------------------------------------------------------------------

    def _calls(
        self,
        choice: int,
        delta: dict[str, Any],
        data: bytes | None,
        path: tuple[str | int, ...],
        block: int | None,
    ) -> list[CallDelta]:
        """`block` is the place of a plain reply's choice: there each entry is a call of its own, whatever choice the
        reply then counts it to. None: deltas of a stream."""
        base = None if block is None else block * _MAX_ENTRIES
        entries = delta.get("tool_calls")
        legacy = delta.get("function_call")
        out: list[CallDelta] = []
        at: tuple[str | int, ...] = (*path, "tool_calls")
        if isinstance(entries, dict):
            self._note(Quirk.TOOL_CALLS_OBJECT)
            out.append(self._entry(choice, entries, data, at, base))
        elif isinstance(entries, list):
            check_number(entries, "entries of tool_calls")
            empty = False
            for position, entry in enumerate(entries):
                if entry == {} and base is None:
                    if empty:
                        continue  # another says no more than the first
                    empty = True
                if isinstance(entry, dict):
                    key = None if base is None else base + position
                    out.append(self._entry(choice, entry, data, (*at, position), key))
                elif entry:
                    raise BadEvent("an entry of tool_calls that is no object")
                else:
                    self._note(Quirk.PHANTOM_CALL)
        elif entries:
            raise BadEvent("tool_calls that is no list")
        if isinstance(legacy, dict) and any(legacy.get(k) for k in ("name", "arguments")):
            if any(call.call_id or call.name or call.arguments for call in out):
                self._note(Quirk.FUNCTION_CALL_ECHO)
            else:
                self._note(Quirk.LEGACY_FUNCTION_CALL)
                call = CallDelta(choice, key=base, index=0, name=_text(legacy.get("name")))
                self._arguments(call, legacy.get("arguments"), data, (*path, "function_call", "arguments"))
                out.append(call)
        return out

    def _entry(
        self,
        choice: int,
        entry: dict[str, Any],
        data: bytes | None,
        path: tuple[str | int, ...],
        key: int | None,
    ) -> CallDelta:
        plain = key is not None
        custom = entry.get("custom")
        function = entry.get("function")
        call = CallDelta(choice, key=key)
        if isinstance(custom, dict) and not isinstance(function, dict):
            body, call.kind, field = custom, "custom", "input"
        elif isinstance(function, dict):
            body, field = function, "arguments"
        else:
            body, field = {}, "arguments"
            if not plain:
                self._note(Quirk.FUNCTION_MISSING)
        if "index" in entry:
            index = entry["index"]
        else:
            index = body.get("index")
            if index is not None:
                self._note(Quirk.FIELDS_IN_FUNCTION)
        call.index = self._call_index(index)
        if call.index is None and index is None and not plain:
            self._note(Quirk.INDEX_MISSING)
        call_id = entry.get("id")
        if call_id in (None, "") and body.get("id") not in (None, ""):
            call_id = body["id"]
            self._note(Quirk.FIELDS_IN_FUNCTION)
        if isinstance(call_id, int) and not isinstance(call_id, bool):
            call_id = str(call_id)
            self._note(Quirk.ID_NUMBER)
        call.call_id = _text(call_id)
        if call.call_id == "null":  # the word: LiteLLM-like relays print the missing id
            call.call_id = None
        name = body.get("name")
        if name in (None, "") and isinstance(entry.get("name"), str):
            name = entry["name"]
        call.name = _text(name)
        arguments = body.get(field)
        # the head of a call has empty arguments in a clean stream
        empty = field in body and (arguments is None or (arguments == "" and not call.name))
        if empty or _padded(entry, ("id", "type")) or _padded(body, ("name",)) or entry.get("id") == "null":
            self._note(Quirk.NULL_PADDING)
        inner: tuple[str | int, ...] = (*path, "custom" if call.kind == "custom" else "function", field)
        if arguments is None and field == "arguments" and "arguments" in entry:
            arguments, inner = entry["arguments"], (*path, "arguments")
        self._arguments(call, arguments, data, inner)
        call.extra = _rest(entry, _ENTRY | {"name", "arguments"})
        call.function_extra = _rest(body, frozenset({"name", field, "index", "id"}))
        return call

    def _call_index(self, index: Any) -> int | None:
        if index is None or index == "" or index == []:
            return None
        if type(index) is int and index >= 0:
            return index
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 10:
            return int(index)
        self._note(Quirk.INDEX_UNUSABLE)
        return None

    def _arguments(self, call: CallDelta, value: Any, data: bytes | None, path: tuple[str | int, ...]) -> None:
        """A piece of text, or a value's own source characters: a dump would lose long integers and doubled keys."""
        if value is None or value == "" or value == []:
            return
        if isinstance(value, str):
            call.arguments = value
            return
        self._note(Quirk.ARGS_OBJECT)
        span = value_span(decode(data)[0], path) if data is not None else None
        if span is None:
            raise BadEvent("arguments that are no string in an event that is not one document")
        call.arguments, call.is_object = span, True

    def close(self) -> list[Delta]:
        """Halves of characters whose other half never came."""
        out: list[Delta] = [
            Piece(index, "\ufffd", delta={name: "\ufffd"})
            if name == "content"
            else Piece(index, reasoning="\ufffd", delta={name: "\ufffd"})
            for (index, name) in self._halves
        ]
        self._halves.clear()
        return out


def whole_piece(piece: Piece) -> Piece:
    """A verbatim piece of text or reasoning with its payload taken apart, so that its text can be changed."""
    assert piece.raw is not None
    document = load(piece.raw)
    choice = document["choices"][0]
    return replace(
        piece,
        raw=None,
        delta={k: v for k, v in choice["delta"].items() if k not in _PADDING and v not in (None, "", [])},
        choice_extra={k: v for k, v in choice.items() if k not in _CHOICE and k not in _PADDING and v is not None},
        top_extra={k: v for k, v in document.items() if k not in _ENVELOPE and k not in _PADDING and v is not None},
    )


def _is_regular(document: Any) -> bool:
    """Whether a whole reply is as typed clients read it, so that nothing in it has to be written anew."""
    if not isinstance(document, dict) or document.get("object") != "chat.completion":
        return False
    if [type(document.get(key)) for key in ("id", "created", "model")] != [str, int, str]:
        return False
    choices = document.get("choices")
    return (
        isinstance(document.get("usage"), dict | None) and isinstance(choices, list) and all(map(_is_choice, choices))
    )


def _is_choice(choice: Any) -> bool:
    if not isinstance(choice, dict) or type(choice.get("index")) is not int:
        return False
    message = choice.get("message")
    if not isinstance(message, dict) or not isinstance(choice.get("finish_reason"), str):
        return False
    return all(isinstance(message.get(key), str | None) for key in ("content", *_OTHER_TEXTS))


def finish_meaning(word: str) -> str:
    """stop, tool_calls, length, content_filter, error or unexpected_tool_call for an upstream's own word."""
    return FINISH_WORDS.get(word.strip().lower(), "stop")


def usage_counts(usage: dict[str, Any]) -> Usage:
    """Cached tokens are inside prompt_tokens, reasoning tokens inside completion_tokens."""
    inside, outside = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return Usage(
        _count(usage.get("prompt_tokens")) or 0,
        _count(usage.get("completion_tokens")) or 0,
        cache_read=_count(inside.get("cached_tokens")) if isinstance(inside, dict) else None,
        reasoning=_count(outside.get("reasoning_tokens")) if isinstance(outside, dict) else None,
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _failure(document: dict[str, Any]) -> Failed | None:
    """The error that a document is, in any of the forms that backends use; None where it is no error."""
    error = document.get("error")
    if error:
        if isinstance(error, dict):
            return Failed(_message(error) or "the upstream reported an error", _code(error), error)
        text = error if isinstance(error, str) else ""
        return Failed(text or _message(document) or "the upstream reported an error", _code(document))
    base = document.get("base_resp")  # MiniMax
    if isinstance(base, dict) and base.get("status_code") not in (None, 0, "0", "", 1000):
        return Failed(str(base.get("status_msg") or "the upstream reported an error"), str(base["status_code"]))
    choices = document.get("choices")
    if isinstance(choices, list):
        own = next((c["error"] for c in choices if isinstance(c, dict) and isinstance(c.get("error"), dict)), None)
        if own:  # OpenRouter
            return Failed(_message(own) or "the upstream reported an error", _code(own), own)
        return None
    if document.get("object") == "error" or document.get("type") == "error" or "detail" in document:
        return Failed(_message(document) or "the upstream reported an error", _code(document))
    if isinstance(document.get("message"), str) and document.get("code") not in (None, 0, "0", "", 200):
        return Failed(document["message"] or "the upstream reported an error", _code(document))
    return None


def counts(usage: dict[str, Any]) -> Usage:
    """Tokens of a chat usage object: cached ones are inside prompt_tokens, reasoning inside completion_tokens."""

    def number(holder: Any, key: str) -> int | None:
        value = holder.get(key) if isinstance(holder, dict) else None
        return value if type(value) is int else None

    return Usage(
        number(usage, "prompt_tokens") or 0,
        number(usage, "completion_tokens") or 0,
        cache_read=number(usage.get("prompt_tokens_details"), "cached_tokens"),
        reasoning=number(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def failure_of(document: Any) -> Failed | None:
    """The same for any JSON value: the body of an error status, or bytes left over behind the events."""
    if isinstance(document, list) and document:
        document = document[0]
    return _failure(document) if isinstance(document, dict) else None


def _message(document: dict[str, Any]) -> str:
    for key in ("message", "msg", "detail", "error_description"):
        value = document.get(key)
        if isinstance(value, str) and value:
            return value
    return ""


def _code(document: dict[str, Any]) -> str | None:
    for key in ("code", "status", "type"):
        value = document.get(key)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def _split_parts(parts: list[Any]) -> tuple[str, str]:
    """Content given as typed parts (Mistral): text and thinking."""
    text: list[str] = []
    thinking: list[str] = []
    for part in parts:
        if isinstance(part, (str, int, float)):
            text.append(part if isinstance(part, str) else dump(part).decode())
        elif isinstance(part, dict) and "thinking" in part:
            inner = part["thinking"]
            thinking.append(
                inner if isinstance(inner, str) else _split_parts(inner)[0] if isinstance(inner, list) else ""
            )
        elif isinstance(part, dict):
            text += [part[key] for key in ("text", "content", "refusal") if isinstance(part.get(key), str)]
    return "".join(text), "".join(thinking)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _padded(fields: dict[str, Any], names: tuple[str, ...]) -> bool:
    return any(n in fields and fields[n] in (None, "") for n in names)


def _rest(fields: dict[str, Any], known: frozenset[str]) -> dict[str, Any] | None:
    """Fields of an entry that are not ours and say something; padding goes."""
    left = {k: v for k, v in fields.items() if k not in known and k not in _PADDING and v not in (None, "", [])}
    return left or None
