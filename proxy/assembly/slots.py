"""Which call a delta belongs to, in dialects that do not mark it (chat deltas), and what that call has so far.

Theory of operation. A chat delta names its call by index, id and name, and backends leave out, repeat, change or
share each of them. The table, first match wins; "complete" means that the call's text so far is one whole JSON object
(found by an incremental scan: asking often stays linear):

| the delta has | and | then it belongs to |
|---|---|---|
| no id, name, arguments | | nothing; other fields of it go to the call in progress |
| a known id | the name is that of another declared tool | a new call (its id is replaced) |
| a known id | an unopened index, the call's name is declared, another name | a new call (its id is replaced) |
| a known id | that call is complete, the index differs, a name comes | a new call (its id is replaced), or a repeat |
| a known id | | that call |
| a known index | another id and a name | a new call |
| a known index | the owner is complete, another declared name | a new call |
| a known index | the owner is complete, the name again, with an object | a new call, or a repeat |
| a known index | the owner is complete, the name again, no arguments | nothing yet: the next fragment opens one |
| a known index | the owner is not complete, the name of another declared tool | a new call |
| a known index | no id or name; the owner is complete, the call opened last still empty | the call opened last |
| a known index | | that call; its first id stands |
| an unopened index | an id or a name | a new call |
| an unopened index | | the call in progress |
| no index | a name that continues the one in progress, or repeats it with or in its arguments | the call in progress |
| no index | the name again behind a complete call, no arguments | nothing yet: the next fragment opens one |
| no index | a name, or an unknown id behind a complete call | a new call |
| no index | | the call in progress |

A known id that several calls share (their backend gives all the same) is that of the call with the delta's index, or
without an index that of the call in progress; else of the first one. Of any but the first a whole object with the name,
behind a complete one, is a new call, or a repeat.
A new call that may be a repeat is one if, at the end, its arguments are those of the call that it follows.
A call is never closed because another one started or because its text happens to parse.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from proxy.assembly.names import begins_declared, declared_name
from proxy.model.deltas import CallDelta
from proxy.model.findings import Quirk
from proxy.wire.jsonscan import JsonScan


@dataclass(slots=True)
class HeldCall:
    """A call of the reply as far as it has come. `ordinal` counts the choice's calls in the order of opening."""

    choice: int
    ordinal: int
    key: int | None = None
    kind: Literal["function", "custom"] = "function"
    index: int | None = None
    call_id: str = ""
    name: str = ""
    fragments: list[str] = field(default_factory=list)
    objects: list[bool] = field(default_factory=list)
    size: int = 0  # characters of the fragments
    whole: bool = False
    unfinished: bool = False
    signature: str | None = None
    again: HeldCall | None = None  # the whole call that this one would repeat, if its arguments turn out the same
    renamed: bool = False  # its name went on after it was sent
    begun: bool = False  # its head was sent: id and name stand
    format: str = ""  # of the markup that it was found in; "": it came as a call
    weak: bool = False  # found in a form without markers: it counts only if its schema accepts it
    extra: dict[str, Any] = field(default_factory=dict)
    function_extra: dict[str, Any] = field(default_factory=dict)
    quirks: list[Quirk] = field(default_factory=list)
    _scan: JsonScan = field(default_factory=JsonScan)
    _scanned: int = 0

    @property
    def complete(self) -> bool:
        """Whether the text so far is one whole JSON value that ends in a bracket."""
        if self.kind == "custom" or not self.fragments or self.fragments[-1].rstrip()[-1:] not in ("}", ""):
            return False  # brackets say nothing in free text
        for fragment in self.fragments[self._scanned :]:
            self._scan.feed(fragment)
        self._scanned = len(self.fragments)
        return self._scan.complete

    @property
    def text(self) -> str:
        return "".join(self.fragments)

    def note(self, quirk: Quirk) -> None:
        if quirk not in self.quirks:
            self.quirks.append(quirk)


class Slots:
    """The calls of one choice. `feed` gives the call that a delta was added to, or None where it opened nothing."""

    def __init__(self, choice: int, declared: Collection[str], note: Callable[[Quirk], None]) -> None:
        self._choice = choice
        self._declared = declared
        self._note = note
        self.calls: list[HeldCall] = []
        self._by_index: dict[int, HeldCall] = {}
        self._by_id: dict[str, HeldCall] = {}
        self._by_key: dict[int, HeldCall] = {}
        # Names that came again behind a complete call, without arguments, by index.
        self._heads: dict[int | None, CallDelta] = {}
        self._current: HeldCall | None = None
        self._orphan_extra: dict[str, Any] = {}

    def finish(self) -> list[HeldCall]:
        """The calls in the order of opening, less those that turned out to be an earlier one again."""
        seen: dict[tuple[str, str, str], HeldCall] = {}
        marked = {id(call) for call in self._by_key.values()}
        kept: list[HeldCall] = []
        for call in self.calls:
            first = call.again
            if id(call) in marked and call.call_id:
                first = seen.setdefault((call.call_id, call.name, call.text), call)
            if first is not None and first is not call and _same_call(first, call):
                first.note(Quirk.CALL_REPEATED)
                if self._current is call:
                    self._current = first
                continue
            call.ordinal = len(kept)
            kept.append(call)
        return kept

    @property
    def current(self) -> HeldCall | None:
        """The call in progress: the one that got the last fragment."""
        return self._current

    def feed(self, delta: CallDelta) -> HeldCall | None:
        if not delta.call_id and not delta.name and not delta.arguments and delta.key is None:
            self._phantom(delta)
            return None
        call = self._find(delta) if delta.key is None else self._marked(delta)
        if call is None:
            return None
        if not delta.quiet or self._current is None:
            self._current = call
        self._add(call, delta)
        return call

    def find(self, index: int) -> HeldCall | None:
        """The call that a delta with an index and text alone belongs to; None where only `feed` can tell."""
        call = self._by_index.get(index)
        if call is None or self._heads:
            return None
        last = self.calls[-1]
        return call if last is call or last.fragments else None

    def grow(self, call: HeldCall, texts: list[str]) -> None:
        """`feed` for several deltas of a call that was found, each with text alone."""
        call.fragments += texts
        call.objects += [False] * len(texts)
        call.size += sum(map(len, texts))

    def make_current(self, call: HeldCall) -> None:
        """The last of the deltas was this call's."""
        self._current = call

    # --- which call --------------------------------------------------------------------------------------------

    def _phantom(self, delta: CallDelta) -> None:
        owner = self._by_index.get(delta.index) if delta.index is not None else None
        owner = owner or self._current
        if delta.extra or delta.function_extra:
            if owner is None:
                self._orphan_extra.update(delta.extra or {})
            else:
                _merge_extra(owner, delta)
        elif owner is None or (delta.index is not None and delta.index not in self._by_index):
            self._note(Quirk.PHANTOM_CALL)

    def _marked(self, delta: CallDelta) -> HeldCall:
        assert delta.key is not None
        call = self._by_key.get(delta.key)
        if call is None:
            call = self._by_key[delta.key] = self._open(delta)
        return call

    def _find(self, delta: CallDelta) -> HeldCall | None:
        if delta.call_id and delta.call_id in self._by_id:
            return self._known_id(delta, self._with_id(delta))
        if delta.index is not None:
            owner = self._by_index.get(delta.index)
            if owner is not None:
                return self._known_index(delta, owner)
            if delta.call_id or delta.name or self._current is None:
                return self._open(delta)
            self._current.note(Quirk.INDEX_SHIFTED)
            return self._current
        return self._no_index(delta)

    def _with_id(self, delta: CallDelta) -> HeldCall:
        """The call of the delta's id: where several share it, the one that has its index too, or is in progress."""
        assert delta.call_id
        near = self._current if delta.index is None else self._by_index.get(delta.index)
        return near if near is not None and near.call_id == delta.call_id else self._by_id[delta.call_id]

    def _known_id(self, delta: CallDelta, call: HeldCall) -> HeldCall | None:
        if delta.name and self._another_tool(call, delta.name):
            return self._open(delta)
        if delta.name and delta.index is not None and call.index is not None and delta.index != call.index:
            if self._by_index.get(delta.index) is not call and self._is_foreign(call, delta.name):
                return self._open(delta)
            if call.complete:
                if self._by_index.get(delta.index) is call and _is_bare(delta):
                    return call
                return self._open(delta, again=call)
            self._by_index[delta.index] = call
        elif delta.name and delta.call_id and call is not self._by_id[delta.call_id] and call.complete:
            arguments = (delta.arguments or "").strip()
            grows = delta.is_object and call.objects[-1] and arguments != call.fragments[-1].strip()
            if arguments.startswith("{") and not grows:
                return self._open(delta, again=call)
        return call

    def _known_index(self, delta: CallDelta, owner: HeldCall) -> HeldCall | None:
        assert delta.index is not None
        if delta.call_id and owner.call_id:  # another id: a known one was found before
            if delta.name:
                return self._open(delta, Quirk.INDEX_REUSED)
        elif delta.name and owner.complete:
            if not self._same_name(owner, delta.name):
                return self._open(delta, Quirk.INDEX_REUSED)
            if not delta.arguments:
                self._heads[delta.index] = delta
                owner.note(Quirk.NAME_REPEATED)
                return None
            if delta.is_object and owner.objects[-1]:
                return owner  # snapshots of one object: they are merged
            if not delta.arguments.lstrip().startswith("{"):
                return owner  # white space or a control token behind the object, the name on every fragment
            return self._open(delta, Quirk.INDEX_REUSED, again=owner)
        elif delta.name and self._another_tool(owner, delta.name):
            return self._open(delta, Quirk.INDEX_REUSED)
        if not delta.call_id and not delta.name:
            head = self._heads.pop(delta.index, None)
            if head is not None and owner.complete and not _is_bare(delta):
                call = self._open(head, Quirk.INDEX_REUSED, again=owner)
                self._add(call, head)
                return call
            last = self.calls[-1]
            if last is not owner and not last.fragments and owner.complete:
                last.note(Quirk.INDEX_SHIFTED)
                return last
        return owner

    def _no_index(self, delta: CallDelta) -> HeldCall | None:
        current = self._current
        if current is None:
            return self._open(delta)
        if delta.name:
            same = self._same_name(current, delta.name)
            if delta.call_id and (current.call_id or current.fragments or not same or _is_bare(delta)):
                return self._open(delta)
            if same and current.complete and _is_bare(delta):
                self._heads[None] = delta
                current.note(Quirk.NAME_REPEATED)
                return None
            if current.fragments:
                goes_on = same and not current.complete
            else:
                goes_on = self._is_piece(current, delta.name) or (same and not _is_bare(delta))
            return current if goes_on else self._open(delta)
        head = self._heads.pop(None, None)
        if head is not None and current.complete and not _is_bare(delta):
            call = self._open(head)
            self._add(call, head)
            return call
        if delta.call_id and current.call_id and current.complete:
            return self._open(delta)
        return current

    def _another_tool(self, call: HeldCall, name: str) -> bool:
        """Whether `name` is a declared tool other than the call's own, and no piece of its name. Behind a complete
        object nothing is a piece any more; before any argument a longer name may be the name so far, again."""
        if not call.name or self._same_name(call, name):
            return False
        if not call.complete and self._is_piece(call, name):
            return False
        if not call.fragments and name.startswith(call.name):
            return False
        return (
            declared_name(name, self._declared)[0] in self._declared
            and declared_name(call.name, self._declared)[0] in self._declared
        )

    def _is_foreign(self, call: HeldCall, name: str) -> bool:
        """Whether the call has a declared name, and `name` is neither that nor a piece of one that it begins."""
        return self._declared_already(call) and not self._same_name(call, name) and not self._is_piece(call, name)

    def _same_name(self, call: HeldCall, name: str) -> bool:
        return call.name.strip() == name.strip()

    def _is_piece(self, call: HeldCall, name: str) -> bool:
        return bool(call.name) and begins_declared(call.name + name, self._declared)

    def _open(self, delta: CallDelta, *quirks: Quirk, again: HeldCall | None = None) -> HeldCall:
        call = HeldCall(self._choice, len(self.calls), delta.key, delta.kind, delta.index)
        call.quirks += quirks
        call.again = again
        if delta.index is not None:
            if not quirks and delta.index != call.ordinal:
                call.note(Quirk.INDEX_GAP)
            self._by_index[delta.index] = call
            self._heads.pop(delta.index, None)
        if self._orphan_extra:
            call.extra.update(self._orphan_extra)
            self._orphan_extra = {}
        self.calls.append(call)
        return call

    # --- what it adds ------------------------------------------------------------------------------------------

    def _add(self, call: HeldCall, delta: CallDelta) -> None:
        if delta.call_id:
            self._add_id(call, delta.call_id)
        if delta.name:
            self._add_name(call, delta.name)
        call.whole = call.whole or delta.whole
        call.unfinished = call.unfinished or delta.unfinished
        call.signature = call.signature or delta.signature
        if delta.final and delta.arguments is not None:
            call.fragments.clear()
            call.objects.clear()
            call.size = call._scanned = 0
            call._scan = JsonScan()
        if delta.arguments:
            call.fragments.append(delta.arguments)
            call.objects.append(delta.is_object)
            call.size += len(delta.arguments)
            if delta.is_object:
                call.note(Quirk.ARGS_OBJECT)
        _merge_extra(call, delta)

    def _add_id(self, call: HeldCall, call_id: str) -> None:
        if not call.call_id:
            if call.fragments or call.name:
                call.note(Quirk.ID_LATE)
            call.call_id = call_id
            self._by_id.setdefault(call_id, call)
        elif call.call_id == call_id:
            call.note(Quirk.ID_REPEATED)
        else:
            call.note(Quirk.ID_CHANGED)

    def _add_name(self, call: HeldCall, name: str) -> None:
        if not call.name:
            if call.fragments:
                call.note(Quirk.NAME_LATE)
            call.name = name
        elif self._same_name(call, name):
            call.note(Quirk.NAME_REPEATED)
        elif call.begun:
            call.note(Quirk.NAME_SPLIT)
            call.renamed = True  # too late: the name was sent
        elif name.startswith(call.name) and begins_declared(name, self._declared):
            call.note(Quirk.NAME_SPLIT)  # all of the name so far, again
            call.name = name
        elif self._is_piece(call, name) or not self._declared_already(call):
            call.note(Quirk.NAME_SPLIT)
            call.name += name
        else:
            call.note(Quirk.NAME_REPEATED)  # a declared name stands; what came after it is no name

    def _declared_already(self, call: HeldCall) -> bool:
        return declared_name(call.name, self._declared)[0] in self._declared


def _merge_extra(call: HeldCall, delta: CallDelta) -> None:
    if delta.extra:
        call.extra.update(delta.extra)
    if delta.function_extra:
        call.function_extra.update(delta.function_extra)


def _is_bare(delta: CallDelta) -> bool:
    """Whether it brings no argument text but white space."""
    return not (delta.arguments or "").strip()


def _same_call(a: HeldCall, b: HeldCall) -> bool:
    return a.name.strip() == b.name.strip() and a.text.strip() == b.text.strip()
