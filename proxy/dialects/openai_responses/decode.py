"""Responses events and documents -> deltas.

Theory of operation. The format marks every item: an event belongs to the item at its `output_index` (item ids rotate
on GitHub Copilot), and every text comes three times, as deltas, in a done event and in the final response. Deltas pass
on at once; what is final is compared with what was given and stands: arguments are replaced (they are held), of a text
only what is missing is added. What the final response alone holds counts too.

Towards a client of the same dialect (`own`) a `Piece.delta` holds events in the upstream's form, less padding, with
`output_index` as the item's key: under "content" those that carry `Piece.text`, under "events" all others. An item is
announced with its first content, so that an empty message never reaches a client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeGuard

from proxy.dialects.base import BadEvent, Envelope, read_document, sequence_of, until_done
from proxy.dialects.characters import Halves
from proxy.dialects.keys import check_keys
from proxy.dialects.openai_responses.items import (
    ANNOTATION,
    CALL_BY_ITEM,
    CALL_DELTAS,
    CALL_DONES,
    FUNCTION_CALL,
    HOSTED_EVENTS,
    ITEM_ADDED,
    ITEM_DONE,
    OUTPUT_TEXT,
    PART_EVENTS,
    REFUSAL,
    TEXT_BY_TYPE,
    TEXT_DELTAS,
    TEXT_DONES,
    CallKind,
    TextKind,
)
from proxy.dialects.stencils import Stencils
from proxy.model.deltas import CallDelta, Delta, Done, Failed, FinishDelta, Piece, Usage, UsageDelta
from proxy.model.findings import Quirk
from proxy.wire.jsondoc import NotJson, decode, documents, exact, join_surrogates
from proxy.wire.jsonscan import value_span
from proxy.wire.sse import Frame

_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
_BEGINNING = frozenset({"response.created", "response.in_progress", "response.queued"})
_PADDING = frozenset({"sequence_number", "obfuscation", "wholecall"})  # a report is the proxy's own
# Fields of a response that the reply's own events say; all others are the echo of the request and extensions.
_RESPONSE = frozenset({"id", "object", "created_at", "status", "error", "model", "output", "usage", "wholecall"})
_CALL = frozenset({"type", "id", "call_id", "name", "status", "arguments", "input"})
_ARGUMENTS = frozenset({"arguments", "input", "delta"})
_TOOL_CALL = "tool_call"  # what some relays call a function_call
_INCOMPLETE = {"content_filter": "content_filter"}  # other reasons are limits: max_output_tokens, max_tokens ...

_MAX_ITEMS = 1024  # of a reply; each new one is compared with those before it

_Path = tuple[str | int, ...]


@dataclass(slots=True)
class _Item:
    """One output item. `key` numbers it for the hub; `texts` is what was given of each part, by type and index."""

    key: int
    kind: str
    id: str = ""
    head: dict[str, Any] | None = None  # as announced
    opened: bool = False  # towards a client of the same dialect
    visible: bool = False  # something other than white space was given
    closed: bool = False
    status: str = ""
    texts: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    call_id: str = ""
    name: str = ""
    fragments: list[str] = field(default_factory=list)
    first: tuple[str, bool] | None = None  # arguments in the announcement: they count if no others come
    extra: dict[str, Any] = field(default_factory=dict)  # of a call: fields that are not ours, and the item's id

    def is_entry(self, entry: dict[str, Any]) -> bool:
        """Whether `entry` is this item again: the same call_id, else the same id, or neither has one."""
        if self.contradicts(entry):
            return False
        for mine, key in ((self.call_id, "call_id"), (self.id, "id")):
            other = _id(entry.get(key))
            if mine and other:
                return mine == other
        return True

    def is_announced(self, entry: dict[str, Any]) -> bool:
        """Whether `entry`, of a call, announces this item again. Each announcement is a call of its own, but for one
        that names it the same: with both ids, or with one of them while the call goes on, or before its arguments."""
        item_id, call_id = _id(entry.get("id")), _id(entry.get("call_id"))
        if self.name != _word(entry.get("name")) or (self.call_id and call_id and self.call_id != call_id):
            return False
        same_call = call_id != "" and call_id == self.call_id
        begun = bool(self.fragments or self.first)
        if item_id and item_id == self.id:
            return same_call or not self.closed
        other_id = bool(item_id and self.id)
        if same_call:
            return not self.closed and not (begun and other_id)
        return not (self.closed or begun or other_id)

    def contradicts(self, entry: dict[str, Any]) -> bool:
        """Whether `entry` has another id and another name: some backends give all calls one call_id."""
        pairs = ((self.id, _id(entry.get("id"))), (self.name, _word(entry.get("name"))))
        return all(mine and other and mine != other for mine, other in pairs)

    def likeness(self, entry: dict[str, Any]) -> tuple[bool, ...]:
        """What `entry` has in common with this item, the surest sign first."""
        call = CALL_BY_ITEM.get(self.kind)
        same_arguments = call is not None and entry.get(call.field) == "".join(self.fragments)
        ids = [(self.call_id, _id(entry.get("call_id"))), (self.id, _id(entry.get("id")))]
        consistent = not any(mine and other and mine != other for mine, other in ids)
        equal = [mine == other for mine, other in ids]
        return consistent, *equal, self.name == _word(entry.get("name")), not self.closed, same_arguments


class ResponsesDecoder:
    """`feed` one frame at a time. `own`: the client speaks this dialect too. Nothing comes after a `Done`."""

    def __init__(self, note: Callable[[Quirk], None], *, own: bool) -> None:
        self._note = note
        self._own = own
        self.whole = self.alone = False
        self.stencils = Stencils()
        self.envelope: Envelope | None = None  # id, created_at and model of the first response object
        self._source: bytes | None = None  # the document in progress, for the characters of values in it
        self._items: list[_Item] = []
        self._by_index: dict[int, _Item] = {}
        self._began = False
        self._plain = False
        self._reasoning: tuple[int, str, int] | None = None  # the part of the last reasoning text
        self._halves: Halves[tuple[int, str, int]] = Halves(note)  # by item, type of part and index

    # --- frames ------------------------------------------------------------------------------------------------

    def feed(self, frame: Frame) -> list[Delta]:
        """The deltas of one server-sent event. Raises BadEvent."""
        try:
            found, quirks = documents(frame.data)
        except NotJson as error:
            return self._odd(frame, str(error))
        for quirk in quirks:
            self._note(quirk)
        out: list[Delta] = []
        for document in found:
            self._source = frame.data if len(found) == 1 else None
            if self._source is not None:
                document = exact(document, self._source)
            out += self._document(document, frame.event.decode("latin-1"))
        return out

    def feed_document(self, frame: Frame) -> list[Delta]:
        """The deltas of a whole JSON body, or of JSON lines, either with events behind it."""
        found, source, frames = read_document(frame.data, self._note)
        self.alone = len(found) == 1 and not frames and _is_regular(found[0])
        return until_done(chain((self._plain_document(one, source) for one in found), map(self.feed, frames)))

    def _plain_document(self, document: Any, source: bytes | None) -> list[Delta]:
        self.whole = self.whole or (isinstance(document, dict) and isinstance(document.get("output"), list))
        self._source = source
        return self._document(document if source is None else exact(document, source), "")

    def close(self) -> list[Delta]:
        """Halves of characters whose other half never came."""
        out: list[Delta] = []
        for key, kind, index in self._halves.close():
            out += self._give(self._items[key], TEXT_BY_TYPE[kind], index, "\ufffd", {})
        return out

    def _odd(self, frame: Frame, reason: str) -> list[Delta]:
        """An event that is no JSON: nothing, a chat-style [DONE], an error in prose, or broken."""
        text = frame.data.strip()
        if not text or text.startswith(b":"):
            self._note(Quirk.EMPTY_EVENT)
            return []
        before, done, _ = text.partition(b"[DONE]")
        if done:  # says nothing here: without a terminal event the reply is cut
            self._note(Quirk.EVENTS_GLUED if before else Quirk.FOREIGN_EVENT)
            return self.feed(Frame(frame.event, before)) if before else []
        if frame.event == b"error":
            return [Failed(decode(text)[0])]
        raise BadEvent(reason)

    # --- events ------------------------------------------------------------------------------------------------

    def _document(self, document: Any, event: str) -> list[Delta]:
        if document is None:
            self._note(Quirk.EMPTY_EVENT)
            return []
        if not isinstance(document, dict):
            failed = failure_of(document)
            if failed is None:
                raise BadEvent("a JSON value that is no object")
            return [failed]
        kind = document.get("type")
        if not isinstance(kind, str) or not kind:
            kind = event
        if (deltas := self._text_event(kind, document)) is not None:
            return deltas
        if kind in _TERMINAL:
            response = document.get("response")
            response = response if isinstance(response, dict) else {}
            self._check_output(document, response)
            return [*self._whole(response, kind, ("response",)), Done()]
        if not kind.startswith("response."):
            if (failed := failure_of(document)) is not None:
                return [failed]
            if kind == "error":
                return [Failed("the upstream sent an error event", error=document)]
            if isinstance(document.get("output"), list):
                self._check_output(document, document)
                return self._whole(document, "", ())
        return self._other_event(kind, document)

    def _text_event(self, kind: str, event: dict[str, Any]) -> list[Delta] | None:
        """The deltas of an event that carries text or arguments; None for another event."""
        if (text := TEXT_DELTAS.get(kind)) is not None:
            index = _index(event.get(text.index))
            rest = _less(event, {"type", "output_index", "item_id", text.index, "delta"}) if self._own else {}
            return self._give(self._find(event, text.item), text, index, event.get("delta"), rest)
        if (call := CALL_DELTAS.get(kind)) is not None:
            check_keys(event, self._source, _ARGUMENTS)
            return self._call_delta(self._find(event, call.item), call, event)
        if (text := TEXT_DONES.get(kind)) is not None:
            final = event.get(text.field)
            return self._final_text(self._find(event, text.item), text, _index(event.get(text.index)), final)
        if (call := CALL_DONES.get(kind)) is not None:
            check_keys(event, self._source, _ARGUMENTS)
            item = self._find(event, call.item)
            delta = CallDelta(0, key=item.key, kind=call.kind, quiet=bool(item.fragments))
            self._name_call(item, delta, event)
            self._final_arguments(item, delta, event.get(call.field), (call.field,))
            return _said(delta)
        return None

    def _other_event(self, kind: str, event: dict[str, Any]) -> list[Delta]:
        if kind in PART_EVENTS:
            return []
        if kind in _BEGINNING:
            return self._beginning(event.get("response"))
        entry = event.get("item")
        if kind in (ITEM_ADDED, ITEM_DONE) and entry:
            entry = self._mended(entry)
            if entry["type"] in CALL_BY_ITEM:
                check_keys(event, self._source, _ARGUMENTS)
            if kind == ITEM_ADDED:
                return self._added(self._place(event, entry, ends=False), entry)
            return self._item_done(self._place(event, entry, ends=True), entry, ("item",))
        if kind == ANNOTATION or kind in HOSTED_EVENTS:
            if not self._own:
                return []
            item = self._find(event, OUTPUT_TEXT.item if kind == ANNOTATION else "")
            if item.head is None and kind != ANNOTATION:
                return []
            events = [{**_less(event, {"item_id"}), "output_index": item.key}]
            return [Piece(0, order=None if kind == ANNOTATION else item.key, delta={"events": events})]
        self._note(Quirk.FOREIGN_EVENT)
        return []

    def _mended(self, entry: Any) -> dict[str, Any]:
        """An item in the format's own words: relays name calls and text parts as other dialects do."""
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise BadEvent("an output item that has no type")
        if entry["type"] == _TOOL_CALL and isinstance(entry.get("name"), str):
            mended = {**entry, "type": FUNCTION_CALL.item}
        elif entry["type"] == OUTPUT_TEXT.item and entry.get("content"):
            content = entry["content"]
            parts = [_text_part(part) for part in (content if isinstance(content, list) else [content])]
            if parts == content:
                return entry
            mended = {**entry, "content": parts}
        else:
            return entry
        self._note(Quirk.TYPE_MISSING)
        return mended

    def _beginning(self, response: Any) -> list[Delta]:
        if not isinstance(response, dict):
            return []
        self._see_envelope(response)
        if self._began or not self._own:
            return []
        self._began = True
        return [Piece(-1, top_extra=_echo(response))]

    def _see_envelope(self, response: dict[str, Any]) -> None:
        reply_id, created, model = response.get("id"), response.get("created_at"), response.get("model")
        if not isinstance(reply_id, str) or not reply_id:
            return
        if self.envelope is None:
            moment = int(created) if isinstance(created, int | float) else 0
            self.envelope = (reply_id, moment, model if isinstance(model, str) else "")
        elif self.envelope[0] != reply_id:
            self._note(Quirk.ENVELOPE_CHANGED)

    # --- which item --------------------------------------------------------------------------------------------

    def _new(self, index: Any, kind: str) -> _Item:
        if len(self._items) == _MAX_ITEMS:
            raise BadEvent(f"more than {_MAX_ITEMS} output items")
        item = _Item(len(self._items), kind)
        self._items.append(item)
        if _is_index(index):
            self._by_index[index] = item
        return item

    def _find(self, event: dict[str, Any], kind: str) -> _Item:
        """The item that an event of a text or a call belongs to; `kind` is the item's type ("": any)."""
        index, item_id = event.get("output_index"), _id(event.get("item_id"))
        item = self._by_index.get(index) if _is_index(index) else None
        fits = item is not None and (not kind or item.kind == kind)
        if item is None or not fits or (item_id and item.id != item_id):
            alike = [i for i in self._items if not kind or i.kind == kind]
            named = [i for i in alike if item_id and i.id == item_id]
            if item is not None and (named or not fits):
                self._note(Quirk.INDEX_REUSED)
            if named:
                item = named[-1]
            elif item is not None and fits:
                pass  # ids rotate; the index stands
            elif alike and (not _is_index(index) or (item is not None and not alike[-1].closed)):
                item = alike[-1]
            else:
                self._note(Quirk.ITEM_UNANNOUNCED)
                item = self._new(index, kind)
        if item.closed and kind in CALL_BY_ITEM and self._is_of_another(item, event):
            self._note(Quirk.ITEM_UNANNOUNCED)
            item = self._new(index, kind)
        if item_id and item.id and item.id != item_id:
            self._note(Quirk.ITEM_ID_CHANGED)
        item.id = item.id or item_id
        return item

    def _is_of_another(self, item: _Item, event: dict[str, Any]) -> bool:
        """Whether an event behind the end of a call has another item's id or index, and says another text."""
        index, item_id = event.get("output_index"), _id(event.get("item_id"))
        elsewhere = _is_index(index) and self._by_index.get(index) is not item
        if not elsewhere and not (item_id and item.id and item.id != item_id):
            return False
        return event.get(CALL_BY_ITEM[item.kind].field) != "".join(item.fragments)

    def _place(self, event: dict[str, Any], entry: dict[str, Any], *, ends: bool) -> _Item:
        """The item that an announcement, or a done event, is about; a new one where none fits."""
        index, kind = event.get("output_index"), entry["type"]
        pending = [i for i in self._items if ends and i.kind == kind and not i.closed]
        if _is_index(index):
            item = self._by_index.get(index)
            if item is None or item.kind != kind or not item.is_entry(entry):
                item = self._alike(entry, pending) or item  # two items at one index, or one at two
        else:
            item = self._alike(entry) or (pending[0] if pending else None)
        if item is not None and item.kind == kind:
            may_end = ends and not item.closed and item.name in ("", _word(entry.get("name")) or item.name)
            same = item.is_entry(entry) if ends or kind not in CALL_BY_ITEM else item.is_announced(entry)
            if item.head is None or may_end or same:
                return item
        if item is not None:
            self._note(Quirk.INDEX_REUSED)
        return self._new(index, kind)

    def _alike(self, entry: dict[str, Any], among: list[_Item] | None = None) -> _Item | None:
        """The item that has the entry's call_id, or its id; of several the one that is most alike."""
        items = self._items if among is None else among
        call_id, item_id = _id(entry.get("call_id")), _id(entry.get("id"))
        named = [i for i in items if (call_id and i.call_id == call_id) or (item_id and i.id == item_id)]
        fitting = [i for i in named if i.kind == entry["type"] and not i.contradicts(entry)]
        if len(fitting) > 1:
            return max(fitting, key=lambda item: item.likeness(entry))
        return fitting[0] if fitting else None

    # --- announced and done ------------------------------------------------------------------------------------

    def _added(self, item: _Item, entry: dict[str, Any]) -> list[Delta]:
        if item.head is not None:
            return []
        item.head = entry
        item.id = item.id or _id(entry.get("id"))
        call = CALL_BY_ITEM.get(item.kind)
        if call is not None:
            delta = CallDelta(0, key=item.key, kind=call.kind)
            self._name_call(item, delta, entry)
            if entry.get(call.field):
                item.first = self._value(entry[call.field], ("item", call.field))
            return [delta]
        if not self._own or item.kind == "message" or (item.kind == "reasoning" and not entry.get("encrypted_content")):
            return []  # with its first content
        return [Piece(0, order=item.key, delta={"events": self._opening(item)})]

    def _opening(self, item: _Item) -> list[dict[str, Any]]:
        """The event that announces an item to a client of the same dialect, if it is still to come."""
        if item.opened:
            return []
        item.opened = True
        return [{"type": ITEM_ADDED, "output_index": item.key, "item": item.head or {"type": item.kind}}]

    def _item_done(self, item: _Item, entry: dict[str, Any], path: _Path, *, again: bool = False) -> list[Delta]:
        """The whole of an item, in its done event, in the final response or in a plain reply. `again`: it was there
        before the final response told it."""
        item.head = item.head or entry
        item.id = item.id or _id(entry.get("id"))
        item.status = _word(entry.get("status"))
        call = CALL_BY_ITEM.get(item.kind)
        if call is not None:
            delta = CallDelta(0, key=item.key, kind=call.kind, unfinished=item.status == "incomplete")
            delta.quiet = again or bool(item.fragments)
            self._name_call(item, delta, entry)
            self._final_arguments(item, delta, entry.get(call.field), (*path, call.field))
            item.closed = True
            return _said(delta)
        out: list[Delta] = []
        for holder in ("summary", "content"):
            for index, part in enumerate(sequence_of(entry.get(holder))):
                kind = TEXT_BY_TYPE.get(str(part.get("type"))) if isinstance(part, dict) else None
                if kind is not None and kind.item == item.kind and kind.holder == holder:
                    out += self._final_text(item, kind, index, part.get(kind.field))
        if item.closed or not self._own:
            item.closed = True
            return out
        item.closed = True
        if item.kind != "message" or item.visible or any(_is_other_part(p) for p in sequence_of(entry.get("content"))):
            events = [*self._opening(item), {"type": ITEM_DONE, "output_index": item.key, "item": entry}]
            out.append(Piece(0, order=None if item.kind == "message" else item.key, delta={"events": events}))
        return out

    # --- text --------------------------------------------------------------------------------------------------

    def _give(self, item: _Item, kind: TextKind, index: int, text: Any, rest: dict[str, Any]) -> list[Delta]:
        if not isinstance(text, str) or not text:
            return []
        text = self._halves.join((item.key, kind.type, index), text)
        if not text:
            return []
        item.texts.setdefault((kind.type, index), []).append(text)
        item.visible = item.visible or kind is not OUTPUT_TEXT or not text.isspace()
        events: list[dict[str, Any]] = []
        if self._own:
            delta = {"type": f"{kind.stem}.delta", "output_index": item.key, kind.index: index, "delta": text, **rest}
            events = [*self._opening(item), delta]
        if kind is OUTPUT_TEXT:
            return [Piece(0, text, delta={"content": events} if events else {})]
        if kind is REFUSAL:
            return [Piece(0, refusal=text, delta={"events": events} if events else {})]
        place = (item.key, kind.type, index)
        if self._reasoning not in (None, place):
            text = "\n\n" + text  # where parts are one text, as in chat, they are paragraphs of it
        self._reasoning = place
        return [Piece(0, reasoning=text, order=item.key, delta={"events": events} if events else {})]

    def _final_text(self, item: _Item, kind: TextKind, index: int, final: Any) -> list[Delta]:
        """What is missing of a text that comes again as a whole. What was given already cannot be taken back."""
        if not isinstance(final, str) or not final:
            return []
        final = join_surrogates(final)
        given = "".join(item.texts.get((kind.type, index), ()))
        if final == given:
            return []
        self._halves.drop((item.key, kind.type, index))
        if not self._plain:
            self._note(Quirk.FINAL_TEXT_DIFFERS)
        return self._give(item, kind, index, final[len(given) :], {}) if final.startswith(given) else []

    # --- calls -------------------------------------------------------------------------------------------------

    def _name_call(self, item: _Item, delta: CallDelta, entry: dict[str, Any]) -> None:
        """Identity of a call: of each field the first that came stands."""
        call_id = entry.get("call_id")
        if type(call_id) is int:
            self._note(Quirk.ID_NUMBER)
        call_id = _id(call_id)
        if call_id and not item.call_id:
            item.call_id = delta.call_id = call_id
        elif call_id and call_id != item.call_id:
            self._note(Quirk.ID_CHANGED)
        if _word(entry.get("name")) and not item.name:
            item.name = delta.name = _word(entry["name"])
        if self._own and entry.get("type") == item.kind:
            extra = {k: v for k, v in entry.items() if k not in _CALL and v is not None}
            extra |= {"id": item.id} if item.id else {}
            delta.extra = {k: v for k, v in extra.items() if item.extra.get(k) != v}
            item.extra |= extra

    def _value(self, value: Any, path: _Path) -> tuple[str, bool]:
        """The text of arguments, and whether they were a JSON value in place of one (then its own characters)."""
        if isinstance(value, str):
            return value, False
        span = value_span(decode(self._source)[0], path) if self._source is not None else None
        if span is None:
            raise BadEvent("arguments that are no string in an event that is not one document")
        return span, True

    def _call_delta(self, item: _Item, call: CallKind, event: dict[str, Any]) -> list[Delta]:
        value = event.get("delta")
        if value is None or value == "":
            return []
        text, is_object = self._value(value, ("delta",))
        item.fragments.append(text)
        return [CallDelta(0, key=item.key, arguments=text, is_object=is_object, kind=call.kind)]

    def _final_arguments(self, item: _Item, delta: CallDelta, value: Any, path: _Path) -> None:
        """Arguments that come again as a whole replace what came before. Nothing at all says nothing."""
        if value is None or value == "":
            return
        text, is_object = self._value(value, path)
        if item.fragments and "".join(item.fragments) == text:
            return
        if not self._plain:
            self._note(Quirk.FINAL_TEXT_DIFFERS)
        item.fragments = [text]
        delta.arguments, delta.is_object, delta.final = text, is_object, True

    # --- the whole response ------------------------------------------------------------------------------------

    def _whole(self, response: dict[str, Any], event: str, path: _Path) -> list[Delta]:
        """The final response, or a plain reply: what is missing of its items, usage and how it ended."""
        self._see_envelope(response)
        self._plain = not event
        status = response.get("status")
        if event == "response.failed" or status in ("failed", "cancelled") or response.get("error"):
            return [_response_failure(response)]
        if not event and status in ("in_progress", "queued"):
            return [Failed(f"the upstream answered with a response that is still {status}", code=str(status))]
        out = self._output(sequence_of(response.get("output")), (*path, "output"))
        if not event and not self._items and status != "incomplete":
            return out  # a plain reply without any item is no reply
        out += self._unused_first()
        details = response.get("incomplete_details")
        reason = "tool_calls" if any(i.kind in CALL_BY_ITEM for i in self._items) else "stop"
        if event == "response.incomplete" or status == "incomplete":
            word = details.get("reason") if isinstance(details, dict) else None
            reason = _INCOMPLETE.get(str(word), "length")
            out += self._confirmed()
        usage = response.get("usage")
        if isinstance(usage, dict) and usage:
            out.append(UsageDelta(usage, usage_counts(usage)))
        out.append(FinishDelta(0, reason, reason, top_extra=_echo(response) if self._own else {}))
        return out

    def _check_output(self, document: dict[str, Any], response: dict[str, Any]) -> None:
        kinds = [str(entry.get("type")) for entry in sequence_of(response.get("output")) if isinstance(entry, dict)]
        if any(kind in CALL_BY_ITEM or kind == _TOOL_CALL for kind in kinds):
            check_keys(document, self._source, _ARGUMENTS)

    def _output(self, entries: Sequence[Any], path: _Path) -> list[Delta]:
        """The final items, matched with those that came in events; what did not come yet is given now."""
        out: list[Delta] = []
        if len(entries) > _MAX_ITEMS:
            raise BadEvent(f"more than {_MAX_ITEMS} output items")
        left = list(self._items)
        ids = {_id(entry.get("id")) for entry in entries if isinstance(entry, dict)}
        streamed = "".join("".join(texts) for item in left for texts in item.texts.values())
        for position, entry in enumerate(entries):
            if not entry:
                continue
            entry = self._mended(entry)
            others = ids - {_id(entry.get("id"))}
            item = self._match([i for i in left if not i.id or i.id not in others], position, entry)
            again = item is not None
            if item is not None:
                left.remove(item)
            elif streamed and _holds_only(entry, streamed):
                self._note(Quirk.FINAL_TEXT_DIFFERS)
                continue
            else:
                item = self._new(position, entry["type"])
            out += self._item_done(item, entry, (*path, position), again=again)
        return out

    def _match(self, left: list[_Item], position: int, entry: dict[str, Any]) -> _Item | None:
        """By call_id or id; else by position; else the first of the same kind (and the same name) that is left."""
        found = self._alike(entry, left)
        if found is not None:
            return found
        alike = [i for i in left if i.kind == entry["type"] and (not i.name or i.name == entry.get("name"))]
        placed = self._by_index.get(position)
        return placed if placed in alike else alike[0] if alike else None

    def _unused_first(self) -> list[Delta]:
        """Arguments that stood in the announcement alone."""
        out: list[Delta] = []
        for item in self._items:
            if item.first is not None and not item.fragments:
                text, is_object = item.first
                item.fragments = [text]
                self._note(Quirk.FINAL_TEXT_DIFFERS)
                kind = CALL_BY_ITEM[item.kind].kind
                out.append(CallDelta(0, key=item.key, arguments=text, is_object=is_object, kind=kind, quiet=True))
        return out

    def _confirmed(self) -> list[Delta]:
        """A reply that hit a limit, where the upstream says which item was cut: completed calls are whole."""
        if not any(item.status == "incomplete" for item in self._items):
            return []
        return [
            CallDelta(0, key=item.key, kind=CALL_BY_ITEM[item.kind].kind, whole=True, quiet=True)
            for item in self._items
            if item.kind in CALL_BY_ITEM and item.status == "completed"
        ]


def usage_counts(usage: dict[str, Any]) -> Usage:
    """Cached tokens are inside input_tokens, reasoning tokens inside output_tokens."""
    inside, outside = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    return Usage(
        _count(usage.get("input_tokens")) or 0,
        _count(usage.get("output_tokens")) or 0,
        cache_read=_count(inside.get("cached_tokens")) if isinstance(inside, dict) else None,
        reasoning=_count(outside.get("reasoning_tokens")) if isinstance(outside, dict) else None,
    )


def failure_of(document: Any) -> Failed | None:
    """The error that a JSON value is: the body of an error status, an error event, or bytes left over."""
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if isinstance(error, dict) and error:
        if document.get("object") == "response":
            return _response_failure(document)
        return Failed(_message(error) or "the upstream reported an error", _code(error), error)
    if isinstance(error, str) and error:
        return Failed(error, _code(document))
    if document.get("type") == "response.failed" and isinstance(document.get("response"), dict):
        return _response_failure(document["response"])
    if document.get("type") == "error":
        flat = _less(document, {"type"})
        return Failed(_message(flat) or "the upstream sent an error event", _code(flat), flat)
    if document.get("object") == "error" or ("detail" in document and "type" not in document):
        return Failed(_message(document) or "the upstream reported an error", _code(document))
    return None


def _is_regular(document: Any) -> bool:
    """Whether a whole response is as typed clients read it, so that nothing in it has to be written anew."""
    if not isinstance(document, dict) or document.get("object") != "response" or "usage" not in document:
        return False
    if not isinstance(document["usage"], dict | None) or type(document.get("created_at")) not in (int, float):
        return False
    if not all(isinstance(document.get(key), str) for key in ("id", "model")):
        return False
    output, details = document.get("output"), document.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else details
    if document.get("status") != ("completed" if reason is None else "incomplete"):
        return False
    return isinstance(reason, str | None) and reason != "" and isinstance(output, list) and all(map(_is_item, output))


_TEXT_FIELDS = {"output_text": "text", "refusal": "refusal", "summary_text": "text", "reasoning_text": "text"}


def _is_item(item: Any) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return False
    if item["type"] not in ("message", "reasoning"):
        return True
    own = "content" if item["type"] == "message" else "summary"
    parts = item.get(own)
    return isinstance(parts, list) and all(map(_is_part, [*parts, *sequence_of(item.get("content"))]))


def _is_part(part: Any) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    name = _TEXT_FIELDS.get(part["type"])
    return name is None or isinstance(part.get(name), str)


def _response_failure(response: dict[str, Any]) -> Failed:
    error = response.get("error")
    if not isinstance(error, dict):
        status = _word(response.get("status")) or "failed"
        return Failed(_word(error) or f"the upstream's response is {status}", code=status)
    return Failed(_message(error) or "the upstream's response failed", _code(error), error)


def _message(fields: dict[str, Any]) -> str:
    return next((v for k in ("message", "detail") if isinstance(v := fields.get(k), str) and v), "")


def _code(fields: dict[str, Any]) -> str | None:
    for key in ("code", "type"):
        value = fields.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def _echo(response: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in response.items() if k not in _RESPONSE}


def _said(delta: CallDelta) -> list[Delta]:
    """Nothing where a delta says nothing new: an empty one would make its call the one in progress."""
    news = delta.call_id or delta.name or delta.arguments or delta.extra or delta.unfinished
    return [delta] if news else []


def _holds_only(entry: dict[str, Any], streamed: str) -> bool:
    """Whether a message's text was streamed already, under other items than the final response has."""
    if entry["type"] != "message":
        return False
    texts = [p.get("text") for p in sequence_of(entry.get("content")) if isinstance(p, dict)]
    return all(not isinstance(text, str) or text in streamed for text in texts)


def _text_part(part: Any) -> Any:
    """A part of a message in the format's own words, if it is text."""
    if isinstance(part, str):
        return {"type": OUTPUT_TEXT.type, "text": part}
    if isinstance(part, dict) and part.get("type") in (None, "", "text") and isinstance(part.get("text"), str):
        return {**part, "type": OUTPUT_TEXT.type}
    return part


def _is_other_part(part: Any) -> bool:
    return isinstance(part, dict) and str(part.get("type")) not in TEXT_BY_TYPE


def _less(fields: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k not in names and k not in _PADDING}


def _is_index(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _index(value: Any) -> int:
    return value if _is_index(value) else 0


def _id(value: Any) -> str:
    """An id; a number is its text, and the word null is none."""
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) and value != "null" else ""


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
