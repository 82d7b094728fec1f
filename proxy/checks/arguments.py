"""The arguments of one finished call, settled once, on the whole text.

Nothing here changes a character that can matter: the plain concatenation of the fragments counts if it is strict JSON.
Only where it is not are forms tried in which the same value was serialized oddly (a `{}` in front, growing prefixes,
the value sent again, control tokens behind it), and each counts only if what remains is strict JSON. Brackets are
never counted to find "the object in the text": prose around it, or a second object, is the model's fault to report.
Every step reads the text a fixed number of times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy.checks.jsontext import NotStrict, parse_exact, parse_strict, same_value
from proxy.model.findings import Quirk
from proxy.wire.jsonscan import members, value_end

_BLANK = " \t\n\r"

# Tokens that end a turn or close a call in the chat templates of open models. Openers are left out: behind a value one
# says that a further call began.
_CONTROL = re.compile(
    r"</s>|<eos>|<pad>|<eot>|<eot_id>|<end_of_turn>|<end_of_utterance>|<endoftext>|<EOT>"
    r"|<\|[^<>|\s]{1,48}\|>|<\uff5c[^<>\uff5c\s]{1,48}\uff5c>"  # DeepSeek's bars are U+FF5C
    r"|</(?:tool_calls?|toolcall|TOOL_CALL|function_calls?|function|tool_use|invoke|arguments|parameters)>"
    r"|\[/TOOL_CALLS?\]|\[/TOOL_REQUEST\]|\[END_TOOL_REQUEST\]"
)
_CONTROL_MAX = 52
_EMPTY_OBJECTS = re.compile(r"[ \t\n\r]*+(?:\{[ \t\n\r]*+\}[ \t\n\r]*+)++(?=\{)")
_EMPTY_OBJECT = re.compile(r"\{[ \t\n\r]*+\}")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Settled:
    """`text` is what may be delivered, `value` what it says; `NotStrict` if no rule makes it strict JSON, and then
    `text` is the plain concatenation."""

    text: str
    quirks: tuple[Quirk, ...]
    value: Any


def settle(fragments: Sequence[str], objects: Sequence[bool], wants_object: bool) -> Settled:
    """Settles one call's arguments.

    `fragments` in the order they came; `objects[i]`: fragment i is the source of a JSON value that stood in place of
    a string. `wants_object`: the schema wants an object, so that a string which holds one is unwrapped.
    """
    quirks: list[Quirk] = []
    if True in objects:
        pieces = [(text, whole) for text, whole in zip(fragments, objects, strict=True) if text]
        text, value = _objects(pieces, quirks) if any(whole for _, whole in pieces) else _plain(fragments, quirks)
    else:
        text, value = _plain(fragments, quirks)
    if wants_object and isinstance(value, str):
        try:
            inner = parse_strict(value)
        except NotStrict:
            inner = None
        if isinstance(inner, dict):
            quirks.append(Quirk.ARGS_DOUBLE_ENCODED)
            text, value = value, inner
    return Settled(text, tuple(dict.fromkeys(quirks)), value)


def _plain(fragments: Sequence[str], quirks: list[Quirk]) -> tuple[str, Any]:
    parts, plain = _joined([text for text in fragments if text], quirks)
    return _text(parts, plain, quirks)


def without_control_tail(text: str) -> str:
    """`text` without the control tokens, and the white space around them, at its end."""
    end = len(text)
    while True:
        stop = end
        while stop and text[stop - 1] in _BLANK:
            stop -= 1
        start = max(stop - _CONTROL_MAX, 0)
        opener = max(text.rfind("<", start, stop), text.rfind("[", start, stop))
        if opener < 0 or _CONTROL.fullmatch(text, opener, stop) is None:
            return text[:stop] if end < len(text) else text
        end = opener


def _joined(parts: list[str], quirks: list[Quirk]) -> tuple[list[str], str]:
    """The fragments and their concatenation. Halves of one character that came in two fragments are joined."""
    plain = "".join(parts)
    if plain.isascii() or _SURROGATE.search(plain) is None:
        return parts, plain
    for index in range(len(parts) - 1):
        if "\ud800" <= parts[index][-1:] <= "\udbff" and "\udc00" <= parts[index + 1][:1] <= "\udfff":
            parts[index], parts[index + 1] = parts[index][:-1], parts[index][-1] + parts[index + 1]
    parts = [_paired(part) for part in parts if part]
    whole = "".join(parts)
    if whole != plain:
        quirks.append(Quirk.SURROGATES_SPLIT)
    return parts, whole


def _paired(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _text(parts: list[str], plain: str, quirks: list[Quirk]) -> tuple[str, Any]:
    word = plain.strip(_BLANK)
    if word in ("", "null"):
        quirks.append(Quirk.ARGS_NULL if word else Quirk.ARGS_EMPTY)
        return "{}", {}
    try:
        return plain, parse_strict(plain)
    except NotStrict as error:
        refused = error.as_value()
    found: list[Quirk] = []
    base = without_control_tail(plain)
    if len(base) < len(plain):
        found.append(Quirk.ARGS_CONTROL_TAIL)
        parts = _cut_tail(parts, len(base))
    lead = _EMPTY_OBJECTS.match(base)
    if lead is not None:
        found.append(Quirk.ARGS_LEADING_EMPTY)
        base = base[lead.end() :]
        parts = _cut_head(parts, lead.end())
    if found:
        try:
            value = parse_strict(base)
        except NotStrict:
            pass
        else:
            quirks.extend(found)
            return base, value
    for quirk, text in ((Quirk.ARGS_CUMULATIVE, _grown(parts)), (Quirk.ARGS_REPEATED, _said_once(base))):
        if text is not None:
            try:
                value = parse_strict(text)
            except NotStrict:
                continue
            quirks.extend((*found, quirk))
            return text, value
    return plain, refused


def _cut_tail(parts: list[str], size: int) -> list[str]:
    """The fragments of the first `size` characters."""
    kept = []
    for part in parts:
        if size <= 0:
            break
        kept.append(part[:size])
        size -= len(part)
    return kept


def _cut_head(parts: list[str], size: int) -> list[str]:
    """The fragments without the first `size` characters."""
    kept = []
    for part in parts:
        if size < len(part):
            kept.append(part[size:] if size > 0 else part)
        size -= len(part)
    return kept


def _grown(parts: list[str]) -> str | None:
    """The last of two or more fragments of which each begins with the one before it; blank ones are nothing."""
    last: str | None = None
    count = 0
    for part in parts:
        if not part.strip(_BLANK):
            continue
        # Half a character at the end of a snapshot is whole in the next one.
        if last is not None and not part.startswith(last[:-1] if "\ud800" <= last[-1] <= "\udbff" else last):
            return None
        last = part
        count += 1
    return last if count > 1 else None


def _said_once(text: str) -> str | None:
    """The first of two or more JSON values back to back if all are the same value.

    Only objects, lists and strings: where a number ends in `11` nobody can say.
    """
    at = len(text) - len(text.lstrip(_BLANK))
    first: str | None = None
    value: Any = None
    count = 0
    while at < len(text):
        if text[at] not in '{["':
            return None
        try:
            end = value_end(text, at)
            source = text[at:end]
            if first is None:
                first, value = source, parse_exact(source)
            elif source != first and not same_value(value, parse_exact(source)):
                return None
        except ValueError:
            return None
        count += 1
        while end < len(text) and text[end] in _BLANK:
            end += 1
        at = end
    return first if count > 1 else None


def _objects(pieces: list[tuple[str, bool]], quirks: list[Quirk]) -> tuple[str, Any]:
    """Values in place of text: one is taken with its own characters, several objects are merged.

    Text between them is one further value. A null says nothing, an object that came again once is enough.
    """
    quirks.append(Quirk.ARGS_OBJECT)
    plain = "".join(text for text, _ in pieces)
    sources: list[str] = []
    run: list[str] = []
    for text, whole in (*pieces, ("", True)):
        if not whole:
            run.append(text)
            continue
        if run:
            parts, joined = _joined(run, quirks)
            if joined.strip(_BLANK) not in ("", "null"):
                source, value = _text(parts, joined, quirks)
                if isinstance(value, NotStrict):
                    return plain, value
                sources.append(source)
            run = []
        if text.strip(_BLANK) not in ("", "null"):
            sources.append(text)
    if not sources:
        quirks.append(Quirk.ARGS_NULL)
        return "{}", {}
    unlike = list(dict.fromkeys(sources))
    if len(unlike) < len(sources):
        quirks.append(Quirk.ARGS_REPEATED)
    if len(unlike) > 1 and _EMPTY_OBJECT.fullmatch(unlike[0]):
        quirks.append(Quirk.ARGS_LEADING_EMPTY)
        del unlike[0]
    text = unlike[0]
    if len(unlike) > 1:
        try:
            text = _merged(unlike)
        except ValueError:  # one of them is no object
            return plain, NotStrict("not_json", "several values came as the arguments of one call")
        quirks.append(Quirk.ARGS_MERGED)
    try:
        return text, parse_strict(text)
    except NotStrict as error:
        return text, error.as_value()


def _merged(sources: list[str]) -> str:
    """One object of the members of several, later keys win. A key that is doubled within one object stays doubled."""
    merged: dict[str, list[str]] = {}
    for source in sources:
        own: dict[str, list[str]] = {}
        for key, value in members(source):
            own.setdefault(key, []).append(value)
        merged.update(own)
    shown = (f"{json.dumps(key, ensure_ascii=False)}:{value}" for key, values in merged.items() for value in values)
    return "{" + ",".join(shown) + "}"
