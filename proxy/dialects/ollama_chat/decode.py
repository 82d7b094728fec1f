"""Ollama chat lines, or one document, -> deltas.

Each line is a message's next piece; calls come whole, several in a line, also on the last one, which says `done`.
Ollama shows a call that the token limit cut as plain content.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxy.dialects.base import BadEvent, Envelope, check_number, read_document, until_done
from proxy.dialects.characters import Halves
from proxy.dialects.keys import check_keys
from proxy.dialects.stencils import Stencils
from proxy.model.deltas import FINISH_WORDS, CallDelta, Delta, Done, Failed, FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.wire.jsondoc import NotJson, decode, documents
from proxy.wire.jsonscan import items, value_span
from proxy.wire.ndjson import NdjsonDecoder
from proxy.wire.sse import Frame

_ARGUMENTS = frozenset({"arguments"})
_USAGE = (
    "prompt_eval_count",
    "eval_count",
    "total_duration",
    "load_duration",
    "prompt_eval_duration",
    "eval_duration",
)


class OllamaDecoder:
    """`feed` one line at a time. Nothing comes after a `Done`."""

    def __init__(self, note: Callable[[Quirk], None]) -> None:
        self._note = note
        self.whole = self.alone = False
        self.stencils = Stencils()
        self.envelope: Envelope | None = None  # the model; this dialect's replies have no id
        self._halves: Halves[bool] = Halves(note)
        self._count = 0

    def feed(self, frame: Frame) -> list[Delta]:
        """The deltas of one line. Raises BadEvent."""
        text = frame.data.strip()
        if text == b"[DONE]":  # not of this dialect; relays that send events add it
            return [Done()]
        if not text:
            self._note(Quirk.EMPTY_EVENT)
            return []
        try:
            found, quirks = documents(frame.data)
        except NotJson as error:
            if frame.event == b"error":
                return [Failed(decode(text)[0])]
            raise BadEvent(str(error)) from None
        for quirk in quirks:
            self._note(quirk)
        data = frame.data if len(found) == 1 else None
        return [delta for document in found for delta in self._document(document, data)]

    def feed_document(self, frame: Frame) -> list[Delta]:
        """The deltas of a whole JSON body, or of the lines that came in its place; either with events behind it."""
        found, source, frames = read_document(frame.data, self._note)
        if len(found) == 1:
            self.whole = not (isinstance(found[0], dict) and found[0].get("done") is False)
            out = self._document(found[0], source)
        else:
            self._note(Quirk.STREAM_FOR_JSON)
            lines = NdjsonDecoder(len(frame.data))
            frames = [*lines.feed(frame.data), *lines.close()]
            out = []
        return out + until_done(map(self.feed, frames))

    def close(self) -> list[Delta]:
        """Halves of characters whose other half never came."""
        return [Piece(0, reasoning="\ufffd") if thinking else Piece(0, "\ufffd") for thinking in self._halves.close()]

    def _document(self, document: Any, data: bytes | None) -> list[Delta]:
        if document is None:
            self._note(Quirk.EMPTY_EVENT)
            return []
        failure = failure_of(document)
        if failure is not None:
            return [failure]
        if not isinstance(document, dict):
            raise BadEvent("a JSON value that is no object")
        message, done = document.get("message"), document.get("done") is True
        if message is None and (document.get("response") or document.get("thinking")):
            self._note(Quirk.TYPE_MISSING)  # a line of the generate API
            message = {"content": document.get("response"), "thinking": document.get("thinking")}
        if message and not isinstance(message, dict):
            raise BadEvent("a message that is no object")
        out: list[Delta] = []
        if isinstance(message, dict):
            if self.envelope is None:
                model = document.get("model")
                self.envelope = ("", 0, model if isinstance(model, str) else "")
            out += self._message(message, document, data)
        elif not done:
            self._note(Quirk.FOREIGN_EVENT)
        if done:
            out += self._end(document)
        return out

    def _message(self, message: dict[str, Any], document: dict[str, Any], data: bytes | None) -> list[Delta]:
        text, thinking = message.get("content"), message.get("thinking")
        if text and not isinstance(text, str):
            self._note(Quirk.CONTENT_PARTS)
            text = "".join(map(_part_text, text if isinstance(text, list) else [text]))
        piece = Piece(0, self._halves.join(False, text) if isinstance(text, str) else "")
        piece.reasoning = self._halves.join(True, thinking) if isinstance(thinking, str) else ""
        out: list[Delta] = [piece]
        if piece.reasoning and self._count:  # a piece of its own, with a place behind those calls
            out.insert(0, Piece(0, reasoning=piece.reasoning, order=self._next()))
            piece.reasoning = ""
        calls = message.get("tool_calls")
        if calls:
            check_keys(document, data, _ARGUMENTS)
        return [*out, *self._calls(calls, data)]

    def _end(self, document: dict[str, Any]) -> list[Delta]:
        """`done` is the end, whatever its reason; older servers give none."""
        out: list[Delta] = []
        word = document.get("done_reason")
        if isinstance(word, str) and word:
            meaning = FINISH_WORDS.get(word.lower(), "stop")
            if meaning == "error":
                return [Failed(f"the upstream ended the reply with done_reason {word[:80]}", word)]
            raw = meaning if word.lower() in FINISH_WORDS else word  # a word of this dialect is no quirk
            if meaning == "stop" and self._count:
                meaning = raw = "tool_calls"  # this dialect ends calls with stop
            out.append(FinishDelta(0, meaning, raw))
        usage = {key: document[key] for key in _USAGE if type(document.get(key)) is int}
        if "eval_count" in usage or "prompt_eval_count" in usage:
            counts = Usage(input_tokens=usage.get("prompt_eval_count", 0), output_tokens=usage.get("eval_count", 0))
            out.append(UsageDelta(usage, counts))
        return [*out, Done()]

    # --- calls -------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _calls(self, entries: Any, data: bytes | None) -> list[Delta]:
        if not entries:
            return []
        single = isinstance(entries, dict)
        if single:
            self._note(Quirk.TOOL_CALLS_OBJECT)
            entries = [entries]
        if not isinstance(entries, list):
            raise BadEvent("tool_calls that is no list")
        check_number(entries, "entries of tool_calls")
        sources: list[str] | None = None
        out: list[Delta] = []
        for number, entry in enumerate(entries):
            if entry and not isinstance(entry, dict):
                raise BadEvent("an entry of tool_calls that is no object")
            entry = entry or {}
            function, path = entry.get("function"), ["function", "arguments"]
            if not function and any(key in entry for key in ("name", "arguments")):
                self._note(Quirk.FUNCTION_MISSING)
                function, path = entry, ["arguments"]
            if function and not isinstance(function, dict):
                raise BadEvent("a function of tool_calls that is no object")
            function = function or {}
            call = CallDelta(0, call_id=self._id(entry, function), name=_text(function.get("name")), whole=True)
            arguments = function.get("arguments")
            if not function.get("name") and call.call_id is None and not arguments:
                self._note(Quirk.PHANTOM_CALL)
                continue
            call.key = self._next()
            if isinstance(arguments, str):
                call.arguments = arguments or None
            elif arguments is not None and arguments != []:
                sources = sources or _sources(data, single=single)
                call.arguments = value_span(sources[number], path)
            out.append(call)
        return out

    def _id(self, entry: dict[str, Any], function: dict[str, Any]) -> str | None:
        call_id = entry.get("id")
        if call_id in (None, "") and function.get("id") not in (None, ""):
            call_id = function["id"]
            self._note(Quirk.FIELDS_IN_FUNCTION)
        if type(call_id) is int:
            call_id = str(call_id)
            self._note(Quirk.ID_NUMBER)
        return _text(call_id) if call_id != "null" else None


def _sources(data: bytes | None, *, single: bool) -> list[str]:
    """The characters of each entry of tool_calls: a dump of arguments would lose long integers and doubled keys."""
    if data is None:
        raise BadEvent("arguments in a line that is not one document")
    text = value_span(decode(data)[0], ("message", "tool_calls")) or "[]"
    return [text] if single else items(text)


def _part_text(part: Any) -> str:
    """The text of one of several parts of a message, as other dialects have them."""
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def failure_of(document: Any) -> Failed | None:
    """The error that a JSON value is: `{"error": "..."}`, or an object in its place; None where it is no error."""
    error = document.get("error") if isinstance(document, dict) else None
    if not error:
        return None
    if isinstance(error, dict):
        message = error.get("message")
        code = error.get("code")
        return Failed(
            message if isinstance(message, str) and message else "the upstream reported an error",
            str(code) if isinstance(code, (int, str)) and code else None,
            error,
        )
    return Failed(error if isinstance(error, str) else "the upstream reported an error")
