"""Arguments: a call's fragments, settled, held against a schema and repaired."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import jsonschema_rs

from fuzz import mutate
from fuzz.common import head_and_body, number_of
from fuzz.inputs import is_json
from fuzz.response import strict
from proxy.checks.judge import is_cheap, judge
from proxy.model.calls import CallCheck, Verdict

_SCHEMAS: tuple[Any, ...] = (
    None,
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
    {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": ["array", "null"]}}},
    {"type": "object", "patternProperties": {"^[ab]+$": {"type": "number"}}, "minProperties": 1},
    {"anyOf": [{"type": "object"}, {"type": "string"}]},
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9_.$+-]+")
_LITERALS = {"True": "true", "False": "false", "None": "null"}


def check(data: bytes) -> None:
    """SCHEMA FLAGS\\nTEXT (fragments end in NUL): valid is valid by an independent look, and nothing is invented."""
    words, body = head_and_body(data)
    number = number_of(words, 0) % len(_SCHEMAS)
    schema = None if _SCHEMAS[number] is None else json.dumps(_SCHEMAS[number]).encode()
    texts = body.decode("utf-8", "replace").split("\x00")
    objects = tuple("objects" in words and is_json(text) for text in texts)
    call = CallCheck(0, tuple(texts), objects, schema, repair="repair" in words)
    is_cheap(call)
    found = judge(call)
    assert found.verdict in (Verdict.VALID, Verdict.INVALID_JSON, Verdict.SCHEMA_VIOLATION)
    assert (found.error is None) == (found.verdict is Verdict.VALID)
    assert found.error is None or found.error.rule != "uncheckable", "a good schema that could not be used"
    source = "".join(texts)
    if found.verdict is Verdict.INVALID_JSON:
        assert not found.repairs
        assert any(objects) or not _is_strict(source), "strict JSON that is called none"
        return
    value = strict(found.text)
    validator = jsonschema_rs.validator_for({} if schema is None else _SCHEMAS[number])
    right = validator.is_valid(value) and (schema is not None or isinstance(value, dict))
    assert right == (found.verdict is Verdict.VALID), f"{found.verdict}, the schema says {right}"
    if not any(objects):
        if _is_strict(source) and not (isinstance(value, dict) and json.loads(source) in (None, found.text)):
            assert found.text == source, "characters of strict JSON were changed"
        if found.repairs:
            _same_data(source, found.text)


def _same_data(source: str, text: str) -> None:
    """A repair changes how the text is written: every word of it stays, in its order."""
    for character, escape in (("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r"), ("\b", "\\b"), ("\f", "\\f")):
        source, text = source.replace(escape, " "), text.replace(escape, " ")
        source = source.replace(character, " ")
    ours, theirs = [[_LITERALS.get(w, w) for w in _WORD.findall(one)] for one in (source, text)]
    if re.match(r"\s*(```|json)", source, re.IGNORECASE):
        ours = ours[-len(theirs) :] if theirs else []
    control = re.compile(r"u00[01][0-9a-f]")
    tail = ours[: len(theirs)]
    if any(control.match(word) for word in theirs) or "\\" in source:
        return  # escapes that were written for raw characters
    assert tail == theirs, f"a repair changed data: {ours[:20]} {theirs[:20]}"


def _is_strict(text: str) -> bool:
    try:
        strict(text)
        text.encode()
    except (AssertionError, UnicodeEncodeError):
        return False
    # numbers that no double holds, and halves of characters, are no JSON that every parser takes
    return not re.search(r"[0-9][eE]|\\u[dD]", text)


def mutated(data: bytes, most: int, draw: Random, plain: mutate.Bytes) -> bytes:
    words, body = head_and_body(data)
    if draw.random() < 0.2:
        words = [str(draw.randrange(len(_SCHEMAS))), *(w for w in ("repair", "objects") if draw.random() < 0.5)]
    pieces = (
        b"```json\n", b"```", b"json", b"True", b"None", b"'", b'"', b",", b"}", b"{", b"]", b"[", b":", b"\x00",
        b"\n", b"{}", b"null", b"</s>", b"<|im_end|>", b"1e999", b"NaN", b"\\u0000", b"\\ud83d", b"a", b'"a":',
        b"123456789012345678901", b" " * 9, b"[" * 70, b"\xe2\x80\xa8", b"</tool_call>",
    )  # fmt: skip
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randint(0, len(body))
        match draw.randint(0, 4):
            case 0:
                body = body[:at] + draw.choice(pieces) + body[at:]
            case 1:
                body = body[:at] + body[at + draw.choice((1, 1, 3)) :]
            case 2:
                body = body[: at + draw.randint(1, 30)] + body[at:]
            case 3:
                body = body + b"\x00" + body
            case _:
                body = plain(body, most - 60)
    return (" ".join(words).encode() + b"\n" + body)[:most]


def seeds() -> list[bytes]:
    texts = [
        '{"a": 1, "b": "x"}', '{"a": 1,}', "{'a': True}", "{a: None}", '```json\n{"a": [1, 2]}\n```', 'json {"a": 1}',
        '{"a": "line\none"}', '{"a": 1}}', '{}{"a": 1}', '{"a": 1}\x00{"a": 1}', '{"a"\x00{"a": 1\x00{"a": 1}', "null",
        "", '"{\\"a\\": 1}"', '{"a": 1}</s>', '{"x": null}', '{"a": 1, "a": 2}', '{"a": 12345678901234567890123}',
    ]  # fmt: skip
    return [f"{n % len(_SCHEMAS)} repair\n{text}".encode() for n, text in enumerate(texts)]
