from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.checks import judge as judging
from proxy.checks.judge import CHEAP_BROKEN_CHARACTERS, is_cheap, judge
from proxy.checks.schema import UNCHECKABLE
from proxy.model.calls import CallCheck, CallError, CheckResult, Verdict
from proxy.model.findings import Quirk

LAMP = {
    "type": "object",
    "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}, "level": {"type": "integer"}},
    "required": ["room"],
    "additionalProperties": False,
}


def check(*fragments: str, schema: Any = LAMP, objects: Sequence[int] = (), **options: bool) -> CallCheck:
    source = None if schema is None else json.dumps(schema).encode()
    return CallCheck(7, fragments, tuple(at in objects for at in range(len(fragments))), source, **options)


@pytest.mark.parametrize(
    ("fragments", "text", "quirks"),
    [
        (['{"room":', '"bay","level":1}'], '{"room":"bay","level":1}', []),
        ([' {"room" : "bay"}\n'], ' {"room" : "bay"}\n', []),
        (['{"room":"bay"}', "<|im_end|>"], '{"room":"bay"}', [Quirk.ARGS_CONTROL_TAIL]),
        (['"{\\"room\\":\\"bay\\"}"'], '{"room":"bay"}', [Quirk.ARGS_DOUBLE_ENCODED]),
        (['{"room":"b\ufffd"}'], '{"room":"b\ufffd"}', [Quirk.REPLACEMENT_CHARACTER]),
        (['{"room":"b\\ufffd"}'], '{"room":"b\\ufffd"}', [Quirk.REPLACEMENT_CHARACTER]),
        (['{"room":"x","level":9007199254740993}'], '{"room":"x","level":9007199254740993}', [Quirk.BIG_INTEGER]),
        (['{"room":"1234567890123456789"}'], '{"room":"1234567890123456789"}', []),
    ],
)
def test_valid_calls(fragments: list[str], text: str, quirks: list[Quirk]) -> None:
    assert judge(check(*fragments)) == CheckResult(7, Verdict.VALID, text, tuple(quirks))


@pytest.mark.parametrize(
    ("fragments", "text", "error"),
    [
        ([], "{}", CallError("", "required", 'lacks the required property "room"')),
        (['{"room":1}'], '{"room":1}', CallError("/room", "type", "is not of type string")),
        (['["bay"]'], '["bay"]', CallError("", "type", "is not of type object")),
        (
            ['{"room":"x","level":"1"}'],
            '{"room":"x","level":"1"}',
            CallError("/level", "type", "is not of type integer"),
        ),
    ],
)
def test_violations_are_told_and_nothing_is_coerced(fragments: list[str], text: str, error: CallError) -> None:
    result = judge(check(*fragments, repair=True))
    assert (result.verdict, result.text, result.error) == (Verdict.SCHEMA_VIOLATION, text, error)


@pytest.mark.parametrize("schema", [None, {}, {"properties": {"room": {}}}, {"description": "x", "required": []}])
def test_a_schema_that_says_nothing_of_its_top_wants_an_object(schema: Any) -> None:
    assert judge(check('{"room":1}', schema=schema)).verdict is Verdict.VALID
    for text in ('["bay"]', "5", "true", '"bay"'):
        result = judge(check(text, schema=schema))
        assert (result.verdict, result.text) == (Verdict.SCHEMA_VIOLATION, text)
        assert result.error == CallError("", "type", "is not of type object")
    assert judge(check('["bay"]', schema={"type": "array"})).verdict is Verdict.VALID


@pytest.mark.parametrize(
    ("text", "rule", "path"),
    [
        ('{"room":"bay"', "not_json", ""),
        ('{"room":"bay"}\nDone.', "not_json", ""),
        ('{"room":"a","room":"b"}', "duplicate_key", "/room"),
        ('{"ignore all":1,"ignore all":2}', "duplicate_key", "/*"),
        ('{"room":"\ud83d"}', "lone_surrogate", ""),
        ('{"level":1e999}', "number_out_of_range", ""),
        ("[" * 300 + "1", "not_json", ""),
        ("[" * 300 + "]" * 300, "too_deep", ""),
    ],
)
def test_invalid_json_keeps_the_raw_text(text: str, rule: str, path: str) -> None:
    result = judge(check(text, repair=True))
    assert (result.verdict, result.text, result.repairs) == (Verdict.INVALID_JSON, text, ())
    assert result.error is not None
    assert (result.error.rule, result.error.path) == (rule, path)
    assert len(result.error.message) <= 200


def test_text_of_integers_and_fractions_is_delivered_as_it_came() -> None:
    text = '{"id":18446744073709551616,"x":1.0000000000000000001}'
    for objects in ((), (0,)):
        assert judge(check(text, schema={}, objects=objects)).text == text


def test_repairs_are_made_only_where_they_are_on() -> None:
    text = "{'room': 'bay', on: True,}"
    assert judge(check(text)).verdict is Verdict.INVALID_JSON
    result = judge(check(text, repair=True))
    assert result.verdict is Verdict.VALID
    assert result.text == '{"room": "bay", "on": true}'
    assert result.repairs == ("single_quotes", "unquoted_keys", "python_literals", "trailing_commas")


def test_a_repair_counts_only_if_the_schema_takes_the_result() -> None:
    result = judge(check('{"room": 1,}', repair=True))
    assert (result.verdict, result.text, result.repairs) == (Verdict.INVALID_JSON, '{"room": 1,}', ())


def test_a_repair_may_stand_before_control_tokens() -> None:
    result = judge(check('{"room": "bay",}</s>', repair=True))
    assert (result.text, result.repairs) == ('{"room": "bay"}', ("trailing_commas",))
    assert result.quirks == (Quirk.ARGS_CONTROL_TAIL,)


def test_keys_that_clients_trip_over_are_reported() -> None:
    assert judge(check('{"a":{"Path":1,"path":2}}', schema=None)).quirks == (Quirk.KEYS_DIFFER_IN_CASE,)
    assert judge(check('{"a":[{"\\u005f_proto__":{}}]}', schema=None)).quirks == (Quirk.PROTOTYPE_KEY,)
    declared = {"type": "object", "properties": {"constructor": {"type": "string"}}}
    assert judge(check('{"constructor":"Bruno"}', schema=declared)).quirks == ()
    assert judge(check('{"prototype":1}', schema=declared)).quirks == (Quirk.PROTOTYPE_KEY,)


def test_a_mended_schema_is_noted() -> None:
    result = judge(check('{"a":"x"}', schema={"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}))
    assert (result.verdict, result.quirks) == (Verdict.VALID, (Quirk.SCHEMA_MENDED,))


def test_a_schema_that_does_not_compile_is_skipped_only_if_asked_to() -> None:
    broken = {"type": "objekt"}
    skipped = judge(check('{"a":1}', schema=broken, skip_uncompilable=True))
    assert (skipped.verdict, skipped.quirks) == (Verdict.VALID, (Quirk.SCHEMA_UNCOMPILABLE,))
    assert judge(check("[1]", schema=broken, skip_uncompilable=True)).verdict is Verdict.SCHEMA_VIOLATION
    assert judge(check('{"a":1', schema=broken, skip_uncompilable=True)).verdict is Verdict.INVALID_JSON
    result = judge(check('{"a":1}', schema=broken))
    assert result.verdict is Verdict.SCHEMA_VIOLATION
    assert result.error == CallError("", "uncheckable", "the schema of the tool cannot be used")


@pytest.mark.parametrize("what", [RuntimeError("x"), MemoryError(), BaseException("a panic")])
def test_whatever_goes_wrong_the_call_is_faulty(what: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise what

    monkeypatch.setattr(judging, "settle", broken)
    assert judge(check('{"room":', '"bay"}')) == CheckResult(
        7, Verdict.SCHEMA_VIOLATION, '{"room":"bay"}', error=UNCHECKABLE
    )


def test_what_is_cheap_enough_for_the_event_loop() -> None:
    assert is_cheap(check('{"room":"bay"}'))
    assert is_cheap(check('{"room":"' + "x" * 20_000 + '"}'))
    assert is_cheap(check("{" * 5000))
    assert not is_cheap(check("{" * (CHEAP_BROKEN_CHARACTERS + 1)))
    assert not is_cheap(check('{"room":"' + "x" * 70_000 + '"}'))
    assert not is_cheap(check('{"room":"bay"}', schema={"$ref": "#"}))
    assert not is_cheap(check('{"a":"x"}', schema={"properties": {"a": {"format": "date"}}}, formats=True))
    wide = {"properties": {f"property_{n}": {"type": "string"} for n in range(400)}}
    assert is_cheap(check('{"room":"bay"}', schema=wide))
    assert not is_cheap(check('{"room":"' + "x" * 2000 + '"}', schema=wide))


ENUM = {"properties": {"a": {"items": {"enum": [1.5e10 + n for n in range(300)]}}}}
ALTERNATIVES = {"properties": {"a": {"items": {"oneOf": [{"type": "string"}] * 500 + [{"type": "integer"}]}}}}


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('{"a":' + "," * 8_000, {}),
        ("{" + "a:1," * 2_000 + "}", {}),
        ("{'a':[" + "''," * 2_600 + "],}}", {}),
        ("[" * 8_000, {}),
        ('"' * 8_000, {}),
        ("{}" * 4_000, {}),
        ('{"a":[' + ",".join(["{}"] * 21_000) + "]}", {}),
        ('{"a":[' + ",".join(["15000000299.0"] * 125) + "]}", ENUM),
        ('{"a":[' + ",".join(["1"] * 400) + "]}", ALTERNATIVES),
        ('{"a":[' + ",".join(["1"] * 400) + ",null]}", ALTERNATIVES),
    ],
)
def test_what_counts_as_cheap_stays_far_below_a_stall(text: str, schema: Any) -> None:
    job = check(text, schema=schema, repair=True)
    assert is_cheap(job)
    since = time.process_time()
    judge(job)
    assert time.process_time() - since < 4 * 0.05


@given(
    st.lists(st.text(alphabet="{}[]:,\"'\\ \nabTrue1\ud83d", max_size=8), max_size=5),
    st.sampled_from([None, {}, LAMP, {"type": "string"}, {"type": "nonsense"}]),
    st.booleans(),
    st.booleans(),
)
def test_any_call_gets_a_verdict_and_what_is_valid_parses(
    fragments: list[str], schema: Any, whole: bool, repair: bool
) -> None:
    result = judge(check(*fragments, schema=schema, objects=range(len(fragments)) if whole else (), repair=repair))
    assert (result.error is None) == (result.verdict is Verdict.VALID)
    if result.verdict is Verdict.VALID:
        json.loads(result.text)
    if result.error is not None:
        assert result.error.rule != "uncheckable" or schema == {"type": "nonsense"}
