from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.jsonscan import JsonScan, has_more_values, is_deeper, members, value_span

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


def scan(*fragments: str) -> JsonScan:
    made = JsonScan()
    for fragment in fragments:
        made.feed(fragment)
    return made


@given(VALUES, st.booleans(), st.data())
def test_a_value_is_complete_wherever_it_was_cut(value: Any, ascii_only: bool, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=data.draw(st.sampled_from([None, 1])))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    padded = [" ", *(text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)), "\n"]
    made = scan(*padded)
    assert made.complete
    assert made.prefix
    assert made.end == len(text) + 1


def parts(value: Any) -> int:
    """Opening brackets and commas in the JSON of a value."""
    if not isinstance(value, list | dict):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(len(value) - 1, 0) + sum(map(parts, inner))


@given(VALUES, st.text(alphabet='[{,"\\\na', max_size=9), st.integers(0, 5))
def test_values_are_counted_outside_strings(value: Any, text: str, most: int) -> None:
    value = [text, value, {text: text}]
    assert has_more_values(json.dumps(value).encode(), most) == (parts(value) > most)
    assert not has_more_values(json.dumps(value).encode(), parts(value))
    assert has_more_values(json.dumps(value).encode(), parts(value) - 1)


@pytest.mark.parametrize("text", ['"', '"[,{', '"a\\', '"\\"[,'])
def test_a_string_without_an_end_holds_no_values(text: str) -> None:
    assert not has_more_values(text.encode() + b",,", 0)
    assert has_more_values(b"," + text.encode(), 0)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_every_shorter_beginning_of_an_object_is_a_prefix_and_not_complete(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    made = JsonScan()
    for char in text[:-1]:
        made.feed(char)
        assert made.prefix
        assert not made.complete
        assert made.end == 0
    made.feed(text[-1])
    assert made.complete


@pytest.mark.parametrize(
    "text", ['{"a":1}{', '{"a":1}x', "{}}", "{]", "]", "[1]1", '""""', "12 3", "tru3", "nulll", "12a", "+1", ","]
)
def test_what_cannot_be_one_value_is_no_prefix(text: str) -> None:
    made = scan(*text)
    assert not made.prefix
    assert not made.complete


@pytest.mark.parametrize("text", ["", " \n", "{", '{"a', '{"a\\', "[[", '"\\"', "-", "1.", "1e", "1e+", "tr", "nul"])
def test_what_can_still_become_a_value_is_a_prefix(text: str) -> None:
    made = scan(*text)
    assert made.prefix
    assert not made.complete


@pytest.mark.parametrize("text", ["1", "-0.5e+3", "true", "null", " false ", '"x"', '"\\""', '"}"'])
def test_bare_values_are_complete(text: str) -> None:
    assert scan(*text).complete
    assert scan(text).complete


def test_a_very_long_number_is_refused_and_not_kept() -> None:
    assert not scan(*["1" * 1000] * 10).prefix


def test_a_million_brackets_are_scanned_without_recursion() -> None:
    made = scan("[" * 1_000_000, "]" * 1_000_000)
    assert made.complete
    assert is_deeper("[" * 1_000_000, 999_999)
    assert not is_deeper("[" * 1_000_000, 1_000_000)


@given(VALUES)
def test_nesting_is_the_depth_of_the_value(value: Any) -> None:
    def depth(one: Any) -> int:
        if isinstance(one, dict):
            return 1 + max(map(depth, one.values()), default=0)
        return 1 + max(map(depth, one), default=0) if isinstance(one, list) else 0

    assert not is_deeper(json.dumps(value), depth(value))
    assert depth(value) == 0 or is_deeper(json.dumps(value), depth(value) - 1)


def paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    below: list[tuple[tuple[str | int, ...], Any]] = [(path, value)]
    if isinstance(value, dict):
        for key, member in value.items():
            below += paths(member, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            below += paths(item, (*path, index))
    return below


@given(VALUES, st.booleans())
def test_the_span_of_every_value_holds_its_own_text(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1)
    for path, member in paths(value):
        span = value_span(text, path)
        assert span is not None
        assert json.loads(span) == member


def test_numbers_keep_their_characters_and_the_last_of_doubled_keys_counts() -> None:
    text = '{"a": {"id": 1}, "\\u0061" : {"id": 18446744073709551616, "x": 1.0e2} }'
    assert value_span(text, ["a"]) == '{"id": 18446744073709551616, "x": 1.0e2}'
    assert value_span(text, ["a", "x"]) == "1.0e2"
    assert members('{"a": 1, "\\u0061":[2, 3]}') == [("a", "1"), ("a", "[2, 3]")]
    assert members(" { } ") == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a":1}', ["b"]),
        ('{"a":1}', [0]),
        ("[1]", [1]),
        ("[1]", ["a"]),
        ("1", ["a"]),
        ("", []),
        ('{"a":', ["a"]),
        ("[1 2]", [1]),
        ('{"a" 1}', ["a"]),
    ],
)
def test_no_such_place_has_no_span(text: str, path: list[str | int]) -> None:
    assert value_span(text, path) is None


@pytest.mark.parametrize("text", ["", "[1]", '{"a"}', '{"a":1', '{"a":1 "b":2}', "{a:1}"])
def test_members_of_what_is_no_object_are_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        members(text)


def test_spans_in_deep_nesting_need_no_stack() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert value_span('{"x":' + deep + ',"y":1}', ["y"]) == "1"
    assert value_span('{"x":' + deep + ',"y":1}', ["x"]) == deep
