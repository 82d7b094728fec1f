from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.checks.jsontext import NotStrict, parse_exact, parse_strict, same_value

# nst/JSONTestSuite (MIT), as text: bytes that are no UTF-8 are U+FFFD. The three very large files are made below.
SUITE: dict[str, str] = json.loads((Path(__file__).parent / "data" / "json_parsing.json").read_text("utf-8"))
SUITE["n_structure_100000_opening_arrays"] = "[" * 100_000
SUITE["n_structure_open_array_object"] = '[{"":' * 50_000
# Valid by RFC 8259's grammar, but with a doubled key: refused on purpose.
DOUBLED = {"y_object_duplicated_key", "y_object_duplicated_key_and_value"}
# Left open by RFC 8259. Taken: what no reader loses. (Bytes that are no UTF-8 were replaced before a text is judged.)
OPEN_AND_TAKEN = {
    "i_number_double_huge_neg_exp",
    "i_number_real_underflow",
    "i_number_too_big_neg_int",
    "i_number_too_big_pos_int",
    "i_number_very_big_negative_int",
    "i_string_UTF-8_invalid_sequence",
    "i_string_UTF8_surrogate_U+D800",
    "i_string_invalid_utf-8",
    "i_string_iso_latin_1",
    "i_string_lone_utf8_continuation_byte",
    "i_string_not_in_unicode_range",
    "i_string_overlong_sequence_2_bytes",
    "i_string_overlong_sequence_6_bytes",
    "i_string_overlong_sequence_6_bytes_null",
    "i_string_truncated-utf-8",
}


def rule_of(text: str) -> str | None:
    try:
        parse_strict(text)
    except NotStrict as error:
        return error.rule
    return None


def test_the_suite_is_whole() -> None:
    assert {kind: sum(name.startswith(kind) for name in SUITE) for kind in "yni"} == {"y": 95, "n": 188, "i": 35}


@pytest.mark.parametrize("name", sorted(SUITE))
def test_json_test_suite(name: str) -> None:
    taken = name not in DOUBLED if name.startswith("y_") else name in OPEN_AND_TAKEN
    assert (rule_of(SUITE[name]) is None) == taken
    if name in DOUBLED:
        assert rule_of(SUITE[name]) == "duplicate_key"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[NaN]", "not_json"),
        ("-Infinity", "not_json"),
        ("1e400", "number_out_of_range"),
        ("1" * 5000, "number_out_of_range"),
        ('"\\ud800"', "lone_surrogate"),
        ('"\ud800"', "lone_surrogate"),
        ("{}{}", "not_json"),
        ("\ufeff{}", "not_json"),
        ("", "not_json"),
        ("{'a':1}", "not_json"),
        ('{"a":"\n"}', "not_json"),
        ("[" * 65 + "]" * 65, "too_deep"),
        ("[" * 1000 + "]" * 1000, "too_deep"),
        ("[" * 5000 + "]" * 5000, "too_deep"),
        ("[" * 64 + "]" * 64, None),
        ('{"a":"' + "[" * 1000 + '"}', None),
    ],
)
def test_rules(text: str, rule: str | None) -> None:
    assert rule_of(text) == rule


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a":1,"a":2}', ("a",)),
        ('{"a":1,"\\u0061":2}', ("a",)),
        ('{"x":[{},{"b":{"c":1,"d":2,"c":1}}]}', ("x", 1, "b", "c")),
        ('{"":1,"":1}', ("",)),
    ],
)
def test_a_doubled_key_is_found_at_every_level(text: str, path: tuple[str | int, ...]) -> None:
    with pytest.raises(NotStrict) as caught:
        parse_strict(text)
    assert caught.value.rule == "duplicate_key"
    assert caught.value.path == path


def test_integers_are_exact() -> None:
    assert parse_strict('{"id":18446744073709551616,"x":1.5}') == {"id": 18446744073709551616, "x": 1.5}
    assert parse_strict("-" + "9" * 301) == -int("9" * 301)


@given(st.text())
def test_any_text_is_a_value_or_not_strict(text: str) -> None:
    if rule_of(text) is None:
        assert json.loads(text) == parse_strict(text)
    else:
        with pytest.raises(NotStrict, match=r"text|number|value|object|half"):
            parse_strict(text)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1", "1.0", True),
        ("100", "1e2", True),
        ("1.0000000000000000001", "1.0", False),
        ("18446744073709551616", "18446744073709551617", False),
        ("true", "1", False),
        ("false", "0", False),
        ("null", "0", False),
        ('"1"', "1", False),
        ('"\\u00f8"', '"ø"', True),
        ('{"a":1,"b":[true]}', '{"b":[true],"a":1}', True),
        ('{"a":1}', '{"a":1,"b":1}', False),
        ("[1,2]", "[2,1]", False),
        ("[]", "{}", False),
        ('""', "[]", False),
        ("1e-9999999999999999999999", "1e-9999999999999999999999", True),
        ("1e-9999999999999999999999", "2e-9999999999999999999999", False),
    ],
)
def test_same_value(one: str, other: str, same: bool) -> None:
    a: Any = parse_exact(one)
    b: Any = parse_exact(other)
    assert same_value(a, b) is same
    assert same_value(b, a) is same
