"""Gemini responses, whole or in a stream -> deltas.

Theory of operation. A response holds candidates (choices) of parts. Text parts are text, or reasoning where they are
marked as `thought`; a `functionCall` part is a call of its own and whole, but for Vertex's streamed arguments: those
are opened by a part with `willContinue`, go on in parts with `partialArgs` and end with one without `willContinue`.
There is no final event: `finishReason` is the proof of the end. Usage is told in every response and cumulative, so
that only the last is given.

A thought signature goes with its call; one on a text part (an empty one, too) goes into the piece's `delta`, in the
form that Google's own chat endpoint uses: `{"extra_content": {"google": {"thought_signature": ...}}}`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.dialects.base import BadEvent, Envelope, check_number, read_document, sequence_of, until_done
from proxy.dialects.characters import Halves
from proxy.dialects.gemini.arguments import ArgumentText, parse_path
from proxy.dialects.keys import check_keys
from proxy.dialects.stencils import Stencils
from proxy.model.deltas import FINISH_WORDS, CallDelta, Delta, Done, Failed, FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.wire.jsonarray import ArrayDecoder
from proxy.wire.jsondoc import NotJson, decode, documents
from proxy.wire.jsonscan import items, value_span
from proxy.wire.sse import Frame

_MAX_CHOICES = 128
_UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"  # protobuf's zero: not set
_BESIDE = frozenset({"thought", "thoughtSignature", "partMetadata"})  # what a part has besides its content
_ARGUMENTS = frozenset({"args"})


@dataclass(slots=True)
class _Streamed:
    """A call whose arguments are under way."""

    key: int
    name: str | None
    call_id: str | None
    text: ArgumentText = field(default_factory=ArgumentText)


class _Source:
    """A document's own characters, taken apart once: a dump of arguments would lose long integers and doubled keys."""

    def __init__(self, data: bytes | None) -> None:
        self.data = data
        self._candidates: list[str] | None = None

    def parts(self, candidate: int) -> list[str]:
        """The characters of each part of a candidate."""
        if self._candidates is None:
            text = decode(self.data)[0] if self.data is not None else ""
            self._candidates = _sources(value_span(text, ("candidates",)))
        if candidate >= len(self._candidates):
            raise BadEvent("arguments in an event that is not one document")
        return _sources(value_span(self._candidates[candidate], ("content", "parts")))


class GeminiDecoder:
    """`feed` one frame at a time. `choices` is the number of candidates asked for. Nothing comes after a `Done`."""

    def __init__(self, choices: int, note: Callable[[Quirk], None]) -> None:
        self._choices = choices
        self._note = note
        self.whole = self.alone = False
        self.stencils = Stencils()
        self.envelope: Envelope | None = None  # responseId and modelVersion; this dialect has no time of creation
        self._halves: Halves[tuple[int, bool]] = Halves(note)
        self._streamed: dict[int, _Streamed] = {}  # by choice
        self._unclosed: dict[int, int] = {}  # streamed calls that were not closed: key -> choice
        self._count = 0
        self._called: set[int] = set()
        self._seen: set[int] = set()
        self._begun: set[int] = set()  # choices that have had output
        self._ended: set[int] = set()
        self._early: set[int] = set()  # choices that were said to end before they had any output
        self._usage: dict[str, Any] = {}
        self._usage_told = True

    # --- frames ------------------------------------------------------------------------------------------------

    def feed(self, frame: Frame) -> list[Delta]:
        """The deltas of one server-sent event, or of one element of an array. Raises BadEvent."""
        text = frame.data.strip()
        if text == b"[DONE]":  # not of this dialect; relays add it
            return [Done()]
        if not text or text.startswith(b":"):
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
        source = _Source(frame.data if len(found) == 1 else None)
        return [delta for document in found for delta in self._document(document, source)]

    def feed_document(self, frame: Frame) -> list[Delta]:
        """The deltas of a whole JSON body: one response, or those of a stream in an array or one a line, with or
        without events behind it. Only the one response needs no finishReason to be whole."""
        if frame.data.lstrip().startswith(b"["):
            array = ArrayDecoder(len(frame.data))
            elements = (*array.feed(frame.data), *array.close())
            return [*until_done(map(self.feed, elements)), *self.close()]
        found, data, frames = read_document(frame.data, self._note)
        source = _Source(data)
        out = [delta for document in found for delta in self._document(document, source)]
        behind = until_done(map(self.feed, frames))
        self.whole = len(found) == 1 and all(isinstance(delta, Done) for delta in behind)
        return [*out, *behind] if self.whole else [*out, *behind, *self.close()]

    def close(self) -> list[Delta]:
        """What had to wait for the end: halves of characters, calls whose arguments were not closed, an end that was
        said before any output, usage; then the end itself, where it is proven."""
        out: list[Delta] = [
            Piece(choice, reasoning="\ufffd") if thought else Piece(choice, "\ufffd")
            for choice, thought in self._halves.close()
        ]
        out += [CallDelta(choice, key, unfinished=True) for key, choice in self._unclosed.items()]
        self._unclosed.clear()
        for choice in sorted(self._early - self._ended):
            reason = "tool_calls" if choice in self._called else "stop"
            out.append(FinishDelta(choice, reason, reason))
        self._ended |= self._early
        out += self._untold_usage()
        return [*out, Done()] if self._seen and self._seen <= self._ended else out

    # --- documents ---------------------------------------------------------------------------------------------

    def _document(self, document: Any, source: _Source) -> list[Delta]:
        if document is None:
            self._note(Quirk.EMPTY_EVENT)
            return []
        failure = failure_of(document)
        if failure is not None:
            return [failure]
        if not isinstance(document, dict):
            raise BadEvent("a JSON value that is no object")
        candidates = document.get("candidates")
        candidates = [candidates] if isinstance(candidates, dict) else candidates
        if candidates and not (isinstance(candidates, list) and all(isinstance(c, dict) for c in candidates if c)):
            raise BadEvent("candidates that are no objects")
        usage = document.get("usageMetadata")
        out: list[Delta] = []
        if isinstance(candidates, list) and candidates:
            check_number(candidates, "candidates")
            self._see_envelope(document)
            if any("functionCall" in part for c in candidates if isinstance(c, dict) for part in _parts(c)):
                check_keys(document, source.data, _ARGUMENTS)
            for position, candidate in enumerate(candidates):
                if isinstance(candidate, dict):
                    out += self._candidate(candidate, position, source)
        elif (blocked := _blocked(document.get("promptFeedback"))) is not None:
            return [blocked]
        elif not isinstance(usage, dict):
            self._note(Quirk.FOREIGN_EVENT)
        if isinstance(usage, dict) and usage and usage != self._usage:
            self._usage, self._usage_told = usage, False
        if self._ended:
            out += self._untold_usage()
        return out

    def _see_envelope(self, document: dict[str, Any]) -> None:
        if self.envelope is None:
            reply_id, model = document.get("responseId"), document.get("modelVersion")
            self.envelope = (
                reply_id if isinstance(reply_id, str) else "",
                0,
                model if isinstance(model, str) else "",
            )

    def _untold_usage(self) -> list[Delta]:
        if self._usage_told:
            return []
        self._usage_told = True
        return [UsageDelta(self._usage, _counts(self._usage))]

    # --- one candidate -----------------------------------------------------------------------------------------

    def _candidate(self, candidate: dict[str, Any], position: int, source: _Source) -> list[Delta]:
        choice = self._choice(candidate.get("index"), position)
        parts = _parts(candidate)
        pieces = [Piece(choice)]
        behind: list[Delta] = []  # calls, and the thoughts between and behind them
        sources: list[str] | None = None
        for number, part in enumerate(parts):
            call = part.get("functionCall")
            if not isinstance(call, dict):
                if call:
                    raise BadEvent("a functionCall that is no object")
                self._prose(pieces, behind, part)
                continue
            if part.get("text"):
                self._prose(pieces, behind, {key: part[key] for key in ("text", "thought") if key in part})
            if sources is None and ("args" in call or "partialArgs" in call):
                sources = source.parts(position)
            behind += self._call(choice, part, call, sources[number] if sources is not None else "{}")
        said = [piece for piece in pieces if piece.text or piece.reasoning or piece.delta]
        self._seen.add(choice)
        if said or behind:
            self._begun.add(choice)
        return [*(said or ([] if behind else pieces)), *behind, *self._end(choice, candidate)]

    def _choice(self, index: Any, position: int) -> int:
        if index is None:
            index = position
        if self._choices == 1:
            if index != 0:
                self._note(Quirk.CHOICE_INDEX_IGNORED)
            return 0
        if type(index) is int and 0 <= index < min(self._choices, _MAX_CHOICES):
            return index
        self._note(Quirk.CHOICE_INDEX_IGNORED)
        return 0

    def _prose(self, pieces: list[Piece], behind: list[Delta], part: dict[str, Any]) -> None:
        """Add a part that is no call to the last of `pieces`, or a thought behind a call, with its place, to `behind`.
        What has a signature is a piece of its own."""
        piece = pieces[-1]
        text = part.get("text")
        thought = part.get("thought") is True
        if isinstance(text, str):
            text = self._halves.join((piece.choice, thought), text)
            if not thought:
                piece.text += text
            elif text and piece.choice in self._called:
                piece = Piece(piece.choice, reasoning=text, order=self._next())
                behind.append(piece)
            else:
                piece.reasoning += text
        elif any(key not in _BESIDE for key in part):
            self._note(Quirk.PART_NOT_CARRIED)
        signature = _text(part.get("thoughtSignature"))
        if signature is not None:
            piece.delta = _extra(signature)
        if piece.delta and piece.order is None:
            pieces.append(Piece(piece.choice))

    def _end(self, choice: int, candidate: dict[str, Any]) -> list[Delta]:
        word = candidate.get("finishReason")
        if not isinstance(word, str) or not word or word == _UNSPECIFIED:
            return []
        meaning = FINISH_WORDS.get(word.lower(), "stop")
        if meaning == "error":
            said = candidate.get("finishMessage")
            reason = f"the upstream ended the reply with finishReason {word[:80]}"
            return [Failed(said if isinstance(said, str) and said else reason, word)]
        raw = word if word.lower() not in FINISH_WORDS else meaning  # a word of this dialect is no quirk
        if meaning == "stop" and choice in self._called:
            meaning = raw = "tool_calls"  # this dialect ends calls with STOP
        if word.upper() == "STOP" and choice not in self._begun:
            self._early.add(choice)  # relays stamp STOP on empty chunks at the beginning: it counts at a clean end
            return []
        self._ended.add(choice)
        return [FinishDelta(choice, meaning, raw)]

    # --- calls -------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _call(self, choice: int, part: dict[str, Any], call: dict[str, Any], source: str) -> list[CallDelta]:
        """What one functionCall part says. `source` is the part's own characters."""
        name, call_id = _text(call.get("name")), call.get("id")
        if type(call_id) is int:
            call_id = str(call_id)
            self._note(Quirk.ID_NUMBER)
        partial = call.get("partialArgs")
        partial = [partial] if isinstance(partial, dict) else partial
        if partial and not isinstance(partial, list):
            raise BadEvent("partialArgs that is no list")
        more = call.get("willContinue") is True
        delta = CallDelta(choice, call_id=_text(call_id) if call_id != "null" else None, name=name)
        signature = _text(part.get("thoughtSignature"))
        if signature is not None:
            delta.signature, delta.extra = signature, _extra(signature)
        streamed = self._streamed.get(choice)
        if streamed is not None and _goes_on(streamed, delta, isinstance(partial, list)):
            delta.name = None
            delta.call_id = delta.call_id if streamed.call_id is None else None
            streamed.call_id = streamed.call_id or delta.call_id
        elif more or isinstance(partial, list):
            streamed = self._streamed[choice] = _Streamed(self._next(), name, delta.call_id)
            self._unclosed[streamed.key] = choice
        elif not call.get("name") and delta.call_id is None and not call.get("args"):
            self._note(Quirk.PHANTOM_CALL)
            return []
        else:
            self._streamed.pop(choice, None)  # one that is not closed by now never will be
            streamed = None
        self._called.add(choice)
        arguments = _arguments(call, source)
        if streamed is None:
            delta.key, delta.whole, delta.arguments = self._next(), True, arguments
            return [delta]
        delta.key = streamed.key
        delta.arguments = "".join(self._partial(streamed, sequence_of(partial), source)) or None
        if arguments not in (None, "{}"):
            delta.arguments, delta.final = arguments, True  # the whole of them, at last
        if not more:
            del self._streamed[choice], self._unclosed[streamed.key]
            if not delta.final:
                delta.arguments = ((delta.arguments or "") + streamed.text.close()) or None
        return [delta]

    def _partial(self, streamed: _Streamed, entries: Any, source: str) -> list[str]:
        """The characters that each entry of partialArgs adds to the arguments' text."""
        sources: list[str] | None = None
        out = []
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise BadEvent("an entry of partialArgs that is no object")
            try:
                path = parse_path(str(entry.get("jsonPath")))
            except ValueError as error:
                raise BadEvent(f"partialArgs: {error}") from None
            more = entry.get("willContinue") is True
            if isinstance(entry.get("stringValue"), str):
                out.append(streamed.text.string(path, entry["stringValue"], more=more))
            elif "numberValue" in entry:
                sources = sources or _sources(value_span(source, ("functionCall", "partialArgs")))
                number_text = value_span(sources[number], ("numberValue",)) or ""
                out.append(streamed.text.value(path, number_text.strip('"')))
            elif isinstance(entry.get("boolValue"), bool):
                out.append(streamed.text.value(path, "true" if entry["boolValue"] else "false"))
            elif "nullValue" in entry:
                out.append(streamed.text.value(path, "null"))
            elif streamed.text.goes_on_at(path) and not any(key.endswith("Value") for key in entry):
                # protobuf leaves an empty string out
                out.append(streamed.text.string(path, "", more=more))
            else:
                raise BadEvent("an entry of partialArgs without a value")
        return out


def _parts(candidate: dict[str, Any]) -> list[dict[str, Any]]:
    """A candidate's parts. An object in place of the list is a list of one."""
    content = candidate.get("content") or {}
    if not isinstance(content, dict):
        raise BadEvent("content that is no object")
    parts = content.get("parts") or []
    if isinstance(parts, dict):
        return [parts]
    if not isinstance(parts, list) or any(part and not isinstance(part, dict) for part in parts):
        raise BadEvent("parts that are no objects")
    return [part or {} for part in parts]


def _sources(text: str | None) -> list[str]:
    """The characters of each element of a list; an object in its place is a list of one."""
    return items(text) if text and text.startswith("[") else [text] if text else []


def _goes_on(streamed: _Streamed, delta: CallDelta, partial: bool) -> bool:
    """Whether a part belongs to the call whose arguments are under way."""
    if delta.call_id is not None and streamed.call_id is not None:
        return delta.call_id == streamed.call_id
    return delta.name is None or (delta.name == streamed.name and partial)


def _arguments(call: dict[str, Any], source: str) -> str | None:
    """The arguments' own characters; text where a relay sends them as text. None: there are none."""
    args = call.get("args")
    if args is None or isinstance(args, str) or args == []:
        return args or None
    return value_span(source, ("functionCall", "args"))


def _extra(signature: str) -> dict[str, Any]:
    return {"extra_content": {"google": {"thought_signature": signature}}}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _counts(usage: dict[str, Any]) -> Usage:
    """Thoughts stand beside the candidates' tokens, cached ones within the prompt's."""
    cached, thoughts = usage.get("cachedContentTokenCount"), usage.get("thoughtsTokenCount")
    return Usage(
        input_tokens=_count(usage.get("promptTokenCount")) + _count(usage.get("toolUsePromptTokenCount")),
        output_tokens=_count(usage.get("candidatesTokenCount")) + _count(thoughts),
        cache_read=None if cached is None else _count(cached),
        reasoning=None if thoughts is None else _count(thoughts),
    )


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _blocked(feedback: Any) -> Failed | None:
    """A prompt that was refused: no candidates came."""
    reason = feedback.get("blockReason") if isinstance(feedback, dict) else None
    if not isinstance(reason, str) or not reason:
        return None
    said = feedback.get("blockReasonMessage")
    return Failed(said if isinstance(said, str) and said else f"the upstream refused the prompt: {reason[:80]}", reason)


def failure_of(document: Any) -> Failed | None:
    """The error that a JSON value is, or a list of one; None where it is no error."""
    if isinstance(document, list) and document:
        document = document[0]
    error = document.get("error") if isinstance(document, dict) else None
    if not error:
        return None
    if not isinstance(error, dict):
        return Failed(error if isinstance(error, str) else "the upstream reported an error")
    code = next((error[k] for k in ("code", "status") if isinstance(error.get(k), (int, str)) and error[k]), None)
    message = error.get("message")
    return Failed(
        message if isinstance(message, str) and message else "the upstream reported an error",
        None if code is None else str(code),
        error,
    )
