"""The judgement on one call's arguments: settle, read, hold against the schema, repair. The text judged is the text
delivered. Whatever goes wrong in here makes the call faulty, never valid."""

from __future__ import annotations

import re
from typing import Any

import orjson

from proxy.checks.arguments import Settled, settle, without_control_tail
from proxy.checks.jsontext import NotStrict, parse_strict
from proxy.checks.repair import repair
from proxy.checks.schema import (
    UNCHECKABLE,
    Compiled,
    Problem,
    compiled,
    schema_is_cheap,
    shown_path,
    validate,
)
from proxy.model.calls import CallCheck, CallError, CheckResult, Verdict
from proxy.model.findings import Quirk

# Within these a check stays well below the 50 ms that the event loop may stall; measured with the worst texts found,
# 64 KiB of strict JSON took 25 ms and 8 KiB of anything else, with all repairs tried, 15 ms.
CHEAP_CHARACTERS = 65_536
CHEAP_BROKEN_CHARACTERS = 8_192
CHEAP_PRODUCT = 1 << 23  # schema bytes times argument characters

_EXACT_IN_JAVASCRIPT = 2**53
_PROTOTYPE_KEYS = frozenset({"__proto__", "constructor", "prototype"})
_LONG_NUMBER = re.compile(r"[0-9]{16}")


def judge(check: CallCheck) -> CheckResult:
    """The verdict on a finished call. May be costly: see `is_cheap`. Never raises."""
    try:
        return _judge(check)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001  # out of memory, a panic of a library: the call counts as faulty
        return CheckResult(check.key, Verdict.SCHEMA_VIOLATION, "".join(check.fragments), error=UNCHECKABLE)


def is_cheap(check: CallCheck) -> bool:
    """Whether the check surely takes so little time that it may run inside the event loop."""
    if len(check.fragments) > CHEAP_CHARACTERS:
        return False
    size = sum(map(len, check.fragments))
    return (
        size <= CHEAP_CHARACTERS
        and size * len(check.schema or b"") <= CHEAP_PRODUCT
        and schema_is_cheap(check.schema, check.formats)
        and (size <= CHEAP_BROKEN_CHARACTERS or _is_json("".join(check.fragments)))
    )


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _judge(check: CallCheck) -> CheckResult:
    schema = compiled(check.schema, check.formats)
    quirks: list[Quirk] = []
    error: CallError | None = None
    if isinstance(schema, Problem):
        if check.skip_uncompilable:
            quirks.append(Quirk.SCHEMA_UNCOMPILABLE)
        else:
            error = CallError("", "uncheckable", "the schema of the tool cannot be used")
    elif schema.mended:
        quirks.append(Quirk.SCHEMA_MENDED)
    settled = settle(check.fragments, check.objects, isinstance(schema, Problem) or schema.wants_object)
    repairs: tuple[str, ...] = ()
    if isinstance(settled.value, NotStrict):
        mended = _repaired(settled.text, schema) if check.repair else None
        if mended is None:
            refused = settled.value
            names = frozenset[str]() if isinstance(schema, Problem) else schema.names
            why = CallError(shown_path(refused.path, names), refused.rule, refused.message)
            found = (*settled.quirks, *quirks, *_text_quirks(settled.text))
            return CheckResult(check.key, Verdict.INVALID_JSON, settled.text, found, error=why)
        settled, repairs = mended
    elif error is None:
        error = _refused(schema, settled.value)
    names = frozenset() if isinstance(schema, Problem) else schema.names
    found = (*settled.quirks, *quirks, *_text_quirks(settled.text), *_value_quirks(settled.text, settled.value, names))
    verdict = Verdict.VALID if error is None else Verdict.SCHEMA_VIOLATION
    return CheckResult(check.key, verdict, settled.text, found, repairs, error)


def _refused(schema: Compiled | Problem, value: Any) -> CallError | None:
    """What is wrong with the value; where there is no schema to ask, only an object will do."""
    if not isinstance(schema, Problem):
        return validate(schema, value)
    return None if isinstance(value, dict) else CallError("", "type", "is not of type object")


def _repaired(text: str, schema: Compiled | Problem) -> tuple[Settled, tuple[str, ...]] | None:
    """A repair that the schema accepts, of the text or of what stands before control tokens at its end."""
    value: Any = None

    def accept(candidate: str) -> bool:
        nonlocal value
        try:
            value = parse_strict(candidate)
        except NotStrict:
            return False
        return _refused(schema, value) is None

    for base in dict.fromkeys((text, without_control_tail(text))):
        mended = repair(base, accept)
        if mended is not None:
            quirks = () if base == text else (Quirk.ARGS_CONTROL_TAIL,)
            return Settled(mended[0], quirks, value), mended[1]
    return None


def _text_quirks(text: str) -> tuple[Quirk, ...]:
    lost = "\ufffd" in text or "\\ufffd" in text or "\\uFFFD" in text
    return (Quirk.REPLACEMENT_CHARACTER,) if lost else ()


def _value_quirks(text: str, value: Any, names: frozenset[str]) -> list[Quirk]:
    """What a client's own JSON reader or merge may trip over, though the text is strict JSON."""
    found: set[Quirk] = set()
    numbers = _LONG_NUMBER.search(text) is not None
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            if len(one) > 1 and len(set(map(str.casefold, one))) < len(one):
                found.add(Quirk.KEYS_DIFFER_IN_CASE)
            if not _PROTOTYPE_KEYS.isdisjoint(one.keys() - names):
                found.add(Quirk.PROTOTYPE_KEY)
            todo.extend(one.values())
        elif isinstance(one, list):
            todo.extend(one)
        elif numbers and isinstance(one, int) and abs(one) > _EXACT_IN_JAVASCRIPT:
            found.add(Quirk.BIG_INTEGER)
    return sorted(found)
