"""Values masked, shape kept: JSON stays JSON, keys and lengths stay, what is broken stays broken.

    keys                    stay, as long as the text is JSON so far; behind a break only those that a tool declares
    strings in arguments    every visible character becomes an x; the second distinct value of a length ends in 1, the
                            third in 2 ...: equal ones stay equal (an enum's word too, which is masked alike in the
                            schema), different ones stay different
    numbers in arguments    every digit but a leading 0 becomes a 1, likewise told apart; those of an enum stay
    ids                     likewise; names of declared tools, and pieces of them, stay
    the protocol's words    stay where the protocol has them (type, role, finish_reason ...)
    any other string        every visible character becomes an x
    any other number        stays: indexes, counts, times

A mask has as many characters as what it stands for, so that fragments, and the places of errors, keep their offsets.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from proxy.assembly.names import declared_name
from proxy.checks.arguments import without_control_tail
from proxy.config import Limits
from proxy.faults import FaultKind
from proxy.model.calls import Verdict
from proxy.model.deltas import FINISH_WORDS

# --- JSON text, also where it is none -------------------------------------------------------------------------------

_TOKEN = re.compile(
    r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}\[\]:,]|[ \t\r\n]++|[^"{}\[\]:, \t\r\n]++',
    re.DOTALL,
)
_COLON = re.compile(r"[ \t\r\n]*+:")
_CLOSER = {"{": "}", "[": "]"}
_MAX_DEPTH = 256

Kind = Literal["key", "string", "bare", "open", "close", "other"]


@dataclass(slots=True)
class Level:
    """An object or list that is open, and where in it the reading is. A list's `key` is that of the object around it;
    `arguments`: it is, or is inside, an object of arguments."""

    opener: str
    want: str  # key | colon | value | comma
    key: str = ""
    index: int = 0
    arguments: bool = False

    @property
    def step(self) -> str | int:
        return self.key if self.opener == "{" else self.index


@dataclass(slots=True)
class Token:
    """`stack` are the containers around it, outermost first, and changes as the reading goes on. `sane`: the text has
    been JSON so far."""

    kind: Kind
    start: int
    end: int
    stack: list[Level]
    sane: bool


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a JSON text, or of one that is broken or cut; every character belongs to one of them. Several
    values in a row are sane."""
    stack: list[Level] = []
    sane = True
    for found in _TOKEN.finditer(text):
        start, end = found.span()
        first = text[start]
        level = stack[-1] if stack else None
        want = level.want if level else "value"
        kind: Kind = "other"
        if first in " \t\r\n":
            pass
        elif first == '"':
            kind = "string"
            whole = _is_whole(text, start, end)
            if want == "key" and level is not None and whole and _COLON.match(text, end):
                kind, level.want, level.key = "key", "colon", decoded(text[start + 1 : end - 1])
            else:
                sane = sane and want == "value" and whole
                _value_came(level)
        elif first in "{[":
            sane = sane and want == "value" and len(stack) < _MAX_DEPTH
            kind = "open"
            yield Token(kind, start, end, stack, sane)
            if len(stack) < _MAX_DEPTH:
                stack.append(_opened(first, level))
            continue
        elif first in "}]":
            sane = sane and level is not None and _CLOSER[level.opener] == first and want in ("comma", "key", "value")
            kind = "close"
            if stack:
                stack.pop()
            _value_came(stack[-1] if stack else None)
        elif first == ":":
            sane = sane and want == "colon"
            if level is not None and level.opener == "{":
                level.want = "value"
        elif first == ",":
            sane = sane and want == "comma"
            if level is not None:
                level.index += 1
                level.want = "key" if level.opener == "{" else "value"
        else:
            kind = "bare"
            sane = sane and want == "value"
            _value_came(level)
        yield Token(kind, start, end, stack, sane)


def _opened(opener: str, around: Level | None) -> Level:
    level = Level(opener, "key" if opener == "{" else "value")
    if around is not None:
        level.arguments = around.arguments or around.key in _ARGUMENT_KEYS
        level.key = around.key if opener == "[" else ""
    return level


def _value_came(level: Level | None) -> None:
    if level is not None:
        level.want = "comma"


def _is_whole(text: str, start: int, end: int) -> bool:
    """Whether a string has its closing quote."""
    if end - start < 2 or text[end - 1] != '"':
        return False
    slashes = len(text[start + 1 : end - 1]) - len(text[start + 1 : end - 1].rstrip("\\"))
    return slashes % 2 == 0


def decoded(source: str) -> str:
    """What a string's source between the quotes says; the source itself where it is no JSON."""
    if "\\" not in source:
        return source
    try:
        value = json.loads(f'"{source}"', strict=False)
    except ValueError:
        return source
    return value if isinstance(value, str) else source


def span_of(text: str, pointer: str) -> tuple[int, int] | None:
    """Where the value at a JSON pointer stands in `text`; None where it is not there."""
    path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    found = None  # where it begins, if it is an object or a list
    for token in tokens(text):
        if token.kind not in ("string", "bare", "open", "close") or len(token.stack) != len(path):
            continue
        if [str(level.step) for level in token.stack] == path:
            if token.kind != "open":
                return found if found is not None else token.start, token.end
            found = token.start
    return None if found is None else (found, len(text))


# --- masks ----------------------------------------------------------------------------------------------------------

# Characters that a mask stands for: not white space, controls, or halves of a character.
_VISIBLE = re.compile(r"[^\s\x00-\x1f\ud800-\udfff]")
# Of what is neither a string nor a number: all but digits and ASCII punctuation (and the bar of DeepSeek's tokens).
_RUBBISH = re.compile(r"[^\x00-/0-9:-@\[-`{-\x7f\uff5c\ud800-\udfff]")
_NOT_ZERO = re.compile("[1-9]")
_UNIT = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL)
_JSON_PATH = re.compile(r"\$(?:\.[A-Za-z_][A-Za-z0-9_-]*|\[[0-9]+\]|\['[^'\"\\]{1,64}'\])*")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# What may stand without quotes, in JSON or where it is broken; `data: [DONE]` may follow a document.
_WORDS = frozenset("true false null True False None NaN Infinity -Infinity undefined data DONE".split())  # noqa: SIM905
_LETTERS = "123456789abcdefghijklmnopqrstuvwyz"  # no x, so that a number never looks like what it stands behind
_DIGITS = "23456789"

_ARGUMENT_KEYS = frozenset({"arguments", "args", "input", "partial_json", "parameters", "partialArgs"})
_ID_KEYS = frozenset(
    {"id", "call_id", "item_id", "tool_call_id", "tool_use_id", "response_id", "responseId", "previous_response_id"}
)
_MODEL_KEYS = frozenset({"model", "modelVersion"})
_WORD_KEYS = frozenset(
    {
        "type",
        "object",
        "role",
        "status",
        "code",
        "finish_reason",
        "finishReason",
        "stop_reason",
        "done_reason",
        "reason",
    }
)
_PROTOCOL = frozenset(
    """
    assistant user system tool developer model function custom function_call custom_tool_call tool_use tool_call
    chat.completion chat.completion.chunk response message text output_text reasoning reasoning_text summary_text
    thinking redacted_thinking refusal error ping list event
    message_start message_delta message_stop content_block_start content_block_delta content_block_stop
    text_delta input_json_delta thinking_delta signature_delta citations_delta
    response.created response.queued response.in_progress response.completed response.failed response.incomplete
    response.output_item.added response.output_item.done response.content_part.added response.content_part.done
    response.output_text.delta response.output_text.done response.refusal.delta response.refusal.done
    response.function_call_arguments.delta response.function_call_arguments.done
    response.custom_tool_call_input.delta response.custom_tool_call_input.done
    response.reasoning_text.delta response.reasoning_text.done response.reasoning_summary_text.delta
    response.reasoning_summary_text.done response.reasoning_summary_part.added response.reasoning_summary_part.done
    queued in_progress completed incomplete failed max_output_tokens
    api_error authentication_error permission_error not_found_error rate_limit_error overloaded_error
    request_too_large billing_error timeout_error invalid_request_error upstream_error tool_call_blocked limit_exceeded
    abort cancelled network_error insufficient_system_resource function_call_filter unload load
    MALFORMED_FUNCTION_CALL TOO_MANY_TOOL_CALLS MISSING_THOUGHT_SIGNATURE UNEXPECTED_TOOL_CALL
    """.split()  # noqa: SIM905 - a table of words
)
# What our own error codes and finish reasons are made of.
OWN_CODES = frozenset(
    {
        *(kind.value.code for kind in FaultKind),
        *Verdict,
        *Limits.model_fields,
        "max_tools",
        "max_request_values",
        "max_schemas_bytes",
        "internal",
    }
)
_KEPT_WORDS = _PROTOCOL | OWN_CODES | FINISH_WORDS.keys() | {word.upper() for word in FINISH_WORDS}
_REPORT_WORDS = frozenset({"verdict", "quirks", "repairs", "path", "rule", "message", "format", "outcome"})

# Of a schema: words for people, and what looks at the characters of a value.
_ANNOTATIONS = frozenset({"description", "title", "$comment", "example", "examples", "default"})
VALUE_RULES = frozenset(
    {"pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"contentEncoding", "contentMediaType"}
)
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
_KEPT_VALUES = frozenset(
    {
        "type",
        "required",
        "$ref",
        "$id",
        "id",
        "$schema",
        "$anchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "dependentRequired",
    }
)


@dataclass(slots=True)
class Lane:
    """One call's text, its mask, and how far events have told of it. `ends`: where its fragments end."""

    call: int
    text: str
    masked: str
    ends: Sequence[int] = ()
    at: int = 0


@dataclass(slots=True)
class Told:
    """An event, masked: its text, its name, and which fragments stand in it, as (call, fragment)."""

    text: str
    name: str = ""
    fragments: list[tuple[int, int]] = field(default_factory=list)


class Masker:
    """Masks what belongs to one exchange; `on` false: finds fragments, and leaves all as it is.

    `tools` are the declared names with their schemas, `models` the names that a model may go by.
    """

    def __init__(self, tools: Mapping[str, bytes | None], models: Iterable[str] = (), *, on: bool = True) -> None:
        self._on = on
        self._tools = tools
        self._models = {model for model in models if model}
        self._names: set[str] = set()  # of properties
        self._numbers: set[str] = set()
        self._told: dict[str, str] = {}  # fragments, and what they were masked as
        self._seen: dict[tuple[str, int], dict[str, int]] = {}
        for schema in tools.values():
            if schema is not None:
                self._learn(json.loads(schema))

    def _learn(self, node: Any) -> None:
        """The names of properties, and the numbers of enums."""
        if isinstance(node, list):
            for one in node:
                self._learn(one)
        elif isinstance(node, dict):
            for key, value in node.items():
                if key in ("enum", "const"):
                    self._numbers |= set(re.findall(_NUMBER, json.dumps(_without_strings(value))))
                elif key in ("properties", "patternProperties") and isinstance(value, dict):
                    self._names |= value.keys()
                self._learn(value)

    def _number(self, kind: str, value: str, alphabet: str) -> str:
        """What tells `value` from the others of its kind and length: "" for the first."""
        seen = self._seen.setdefault((kind, len(value)), {})
        n = seen.setdefault(value, len(seen))
        out = ""
        while n:
            n, digit = divmod(n - 1, len(alphabet))
            out = alphabet[digit] + out
        return out

    # --- strings and numbers

    def text(self, text: str) -> str:
        """Prose: every visible character an x."""
        return _VISIBLE.sub("x", text) if self._on else text

    def _string(self, source: str, *, told_apart: bool) -> str:
        """A string's source between its quotes."""
        units = _UNIT.findall(source)
        slots = []
        for at, unit in enumerate(units):
            if len(unit) == 6:
                code = int(unit[2:], 16)
                if not 0xD800 <= code < 0xE000 and not chr(code).isspace():
                    units[at] = "\\u0078"
                    slots.append(at)
            elif _VISIBLE.fullmatch(unit):
                units[at] = "x"
                slots.append(at)
        if told_apart:
            for at, digit in _at_the_end(slots, self._number("string", decoded(source), _LETTERS)):
                units[at] = digit if len(units[at]) == 1 else f"\\u{ord(digit):04x}"
        return "".join(units)

    def _bare(self, word: str) -> str:
        """A number, true, a word without quotes, rubbish."""
        if word in _WORDS or word in self._numbers or word.strip("'") in self._names:
            return word
        if not word.startswith("<|") and not without_control_tail(word):
            return word  # a control token; those in bars are some also when they are masked
        if _NUMBER.fullmatch(word):
            mantissa, e, exponent = re.split(r"([eE])", word) if re.search("[eE]", word) else (word, "", "")
            whole, point, fraction = mantissa.partition(".")
            if not fraction.strip("0"):
                mantissa, e = whole, point + fraction + e  # 1.0 is an integer
            slots = [at for at, c in enumerate(mantissa) if c.isdigit()]
            if mantissa.lstrip("-")[0] == "0":
                slots = slots[1:]
            out = list(mantissa)
            for at in slots:
                out[at] = "1"
            for at, digit in _at_the_end(slots, self._number("number", mantissa, _DIGITS)):
                out[at] = digit
            return "".join(out) + e + exponent
        return _NOT_ZERO.sub("1", _RUBBISH.sub("x", word))

    def identifier(self, text: str) -> str:
        if not self._on or text in ("", "null"):
            return text
        seen = self._seen.setdefault(("id", 0), {})
        number = str(seen.setdefault(text, len(seen) + 1))
        return "x" * (len(text) - len(number)) + number

    def name(self, text: str) -> str:
        """A tool's name. What a model calls without its being declared is its own text."""
        if not self._on or text in self._tools:
            return text
        if declared_name(text, self._tools)[0] in self._tools:
            head, token, tail = text.partition("<|")  # a leaked channel token, and what stands behind it
            return head + token + self._bare(tail)
        if any(text in name for name in self._tools):
            return text
        return decoded(self._string(text.replace("\\", "x").replace('"', "x"), told_apart=True))

    def code(self, text: str) -> str:
        return text if not self._on or text in _KEPT_WORDS else self.text(text)

    # --- arguments

    def arguments(self, text: str) -> str:
        """The JSON text of a call's arguments, or what came in its place."""
        return self._json(text, self._argument) if self._on else text

    def _json(self, text: str, mask: Any) -> str:
        return "".join(mask(text[token.start : token.end], token) for token in tokens(text))

    def _argument(self, source: str, token: Token) -> str:
        match token.kind:
            case "key":
                name = decoded(source[1:-1])
                return (
                    source if token.sane or name in self._names else f'"{self._string(source[1:-1], told_apart=False)}"'
                )
            case "string":
                return self._argument_string(source, token)
            case "bare":
                return self._bare(source)
        return source

    def _argument_string(self, source: str, token: Token) -> str:
        if not _is_whole(source, 0, len(source)):
            return '"' + self._string(source[1:], told_apart=False)
        inner = source[1:-1]
        if token.stack and token.stack[-1].key == "jsonPath" and _JSON_PATH.fullmatch(inner):
            return source  # Gemini's arguments in pieces: a path is made of keys
        if not token.stack:  # arguments that were encoded twice
            value = decoded(inner)
            if value.lstrip()[:1] == "{":
                for ascii_only in (True, False):
                    if json.dumps(value, ensure_ascii=ascii_only) == source:
                        again = json.dumps(self.arguments(value), ensure_ascii=ascii_only)
                        return again if len(again) == len(source) else f'"{self._string(inner, told_apart=True)}"'
        return f'"{self._string(inner, told_apart=True)}"'

    def fragments(self, fragments: Sequence[str], objects: Sequence[bool], kind: str) -> list[str]:
        """The fragments of one call, masked as the text that they are together."""
        if not self._on:
            return list(fragments)
        whole = "".join(fragments)
        if kind == "custom":
            return cut_like(self.text(whole), fragments)
        if any(objects):
            return [self.arguments(fragment) for fragment in fragments]
        told = [fragment for fragment in fragments if fragment]
        if len(told) > 1 and all(after.startswith(before) for before, after in pairwise(told)):
            last = self.arguments(told[-1])  # each has all of the one before it
            return [last[: len(fragment)] for fragment in fragments]
        return cut_like(self.arguments(whole), fragments)

    def lane(self, call: int, fragments: Sequence[str], masked: Sequence[str]) -> Lane:
        ends, at = [], 0
        for fragment in fragments:
            at += len(fragment)
            ends.append(at)
        return Lane(call, "".join(fragments), "".join(masked), ends)

    # --- schemas

    def schema(self, source: bytes, broken: frozenset[str] = frozenset()) -> Any:
        """A tool's schema for masked arguments: without words for people, with masked enums, and without the rules that
        a masked value can't keep, but for those that were `broken`."""
        document = json.loads(source)
        return self._schema(document, broken) if self._on else document

    def _schema(self, node: Any, broken: frozenset[str]) -> Any:
        if isinstance(node, list):
            return [self._schema(one, broken) for one in node]
        if not isinstance(node, dict):
            return node
        out: dict[str, Any] = {}
        for key, value in node.items():
            if key in _ANNOTATIONS or (key in VALUE_RULES and key not in broken):
                continue
            if key in ("enum", "const"):
                out[key] = json.loads(self.arguments(json.dumps(value)))
            elif key in _NAMED and isinstance(value, dict):
                out[key] = {name: self._schema(one, broken) for name, one in value.items()}
            elif key in _KEPT_VALUES or not isinstance(value, str):
                out[key] = value if key in _KEPT_VALUES else self._schema(value, broken)
            else:
                out[key] = value if key in VALUE_RULES else self.text(value)
        return out

    # --- events

    def block(self, source: str, lanes: Sequence[Lane], *, own: bool = False, events: bool = True) -> Told:
        """One event as it stood in the stream, its line ends included, or a whole document. `own`: our report in it is
        ours."""
        told = Told("")
        if not events:
            told.text = self._payload(source, lanes, told, own=own)
            return told
        mark = "\ufeff" if source.startswith("\ufeff") else ""
        source = source.removeprefix(mark)
        lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n|\Z)", source)
        data = [line for line in lines if line.startswith("data:")]
        payload = "\n".join(re.sub(r"\A ", "", line[5:].rstrip("\r\n")) for line in data)
        masked = iter(self._payload(payload, lanes, told, own=own).split("\n"))
        out = []
        for line in lines:
            name, colon, value = line.rstrip("\r\n").partition(":")
            ending = line[len(name) + len(colon) + len(value) :]
            blank, value = (" ", value[1:]) if value.startswith(" ") else ("", value)
            if name == "data" and colon:
                value = next(masked, "")
            elif name == "event":
                told.name = value = self.code(value)
            elif name == "error" or not colon:
                value = self._payload(value, lanes, told, own=own)
                name = name if colon or name == "data" else self._rubbish(name)
            elif name in ("", "id", "retry"):
                value = value if (own and value == "wholecall") or value.isdigit() else self.text(value)
            else:
                name, value = self._rubbish(name), self._rubbish(value)
            out.append(name + colon + blank + value + ending)
        told.text = mark + "".join(out)
        return told

    def _rubbish(self, text: str) -> str:
        return self._payload(text, (), Told(""), own=False)

    def _payload(self, payload: str, lanes: Sequence[Lane], told: Told, *, own: bool) -> str:
        if payload.strip() in ("", "[DONE]"):
            return payload
        kind = _type_of(payload)
        fragments_in_delta = kind.endswith(("arguments.delta", "call_input.delta"))

        def mask(source: str, token: Token) -> str:
            stack = token.stack
            key = stack[-1].key if stack else ""
            if stack and stack[-1].arguments and token.kind in ("string", "bare", "key"):
                return self._argument(source, token) if self._on else source
            if token.kind == "string" and _is_whole(source, 0, len(source)):
                value = decoded(source[1:-1])
                if key in _ARGUMENT_KEYS or (key == "delta" and fragments_in_delta):
                    return self._fragment(source, value, lanes, told)
                return source if not self._on else self._member(source, key, value, own and _in_report(stack))
            if not self._on:
                return source
            if token.kind == "string":
                return '"' + self._string(source[1:], told_apart=False)
            if token.kind == "key":
                return source if token.sane else self._argument(source, token)
            if token.kind == "bare" and not (token.sane and (_NUMBER.fullmatch(source) or source in _WORDS)):
                return self._bare(source)
            return source

        return self._json(payload, mask)

    def _member(self, source: str, key: str, value: str, report: bool) -> str:
        """A string of an event that is no part of arguments."""
        if key in _WORD_KEYS and value in _KEPT_WORDS:
            return source
        if key == "index" and re.fullmatch("[0-9]{1,4}", value):
            return source
        if key in _MODEL_KEYS and value in self._models:
            return source
        if report and key in _REPORT_WORDS:
            return source
        if key in _ID_KEYS:
            return _quoted(self.identifier(value), source) if value not in ("", "null") else source
        if key == "name":
            kept = self.name(value)
            return source if kept == value else _quoted(kept, source)
        return f'"{self._string(source[1:-1], told_apart=False)}"'

    def _fragment(self, source: str, value: str, lanes: Sequence[Lane], told: Told) -> str:
        """A string of arguments: the next fragment of a call, or, where it is none, a text by itself."""
        for lane in lanes:
            if value and lane.text.startswith(value, lane.at):
                start, lane.at = lane.at, lane.at + len(value)
                first, last = bisect_right(lane.ends, start), bisect_right(lane.ends, lane.at)
                told.fragments += [(lane.call, n) for n in range(first, last)]
                self._told[value] = lane.masked[start : lane.at]
                return _quoted(self._told[value], source) if self._on else source
        if not self._on:
            return source
        return _quoted(self._told[value] if value in self._told else self.arguments(value), source)


def _at_the_end(slots: Sequence[int], number: str) -> Iterator[tuple[int, str]]:
    """The last slots, each with its character of `number`; of a number that is too long its end."""
    count = min(len(slots), len(number))
    return zip(slots[len(slots) - count :], number[len(number) - count :], strict=True)


def _quoted(text: str, source: str) -> str:
    """`text` as a JSON string; with escapes where `source` has nothing else, or where UTF-8 cannot carry it."""
    dumped = json.dumps(text, ensure_ascii=source.isascii())
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", dumped)


def _in_report(stack: Sequence[Level]) -> bool:
    return bool(stack) and stack[0].key == "wholecall"


def _type_of(payload: str) -> str:
    """The event's own `type`, which may stand behind what it tells how to read."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return ""
    return str(document.get("type", "")) if isinstance(document, dict) else ""


def _without_strings(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_strings(one) for one in value]
    if isinstance(value, dict):
        return [_without_strings(one) for one in value.values()]
    return None if isinstance(value, str) else value


def cut_like(text: str, parts: Sequence[str]) -> list[str]:
    """`text`, which is as long as all `parts` together, cut where they are."""
    out, at = [], 0
    for part in parts:
        out.append(text[at : at + len(part)])
        at += len(part)
    return out
