from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.checks.arguments import Settled, settle, without_control_tail
from proxy.checks.jsontext import NotStrict
from proxy.model.findings import Quirk

OBJECTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


def settled(*fragments: str, objects: Sequence[int] = (), wants_object: bool = True) -> Settled:
    return settle(fragments, [at in objects for at in range(len(fragments))], wants_object)


def cut(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


TEXTS: list[tuple[list[str], str, list[Quirk]]] = [
    (['{"a":', "1}"], '{"a":1}', []),
    ([' {"a" : 1.0e2}', "\n"], ' {"a" : 1.0e2}\n', []),
    (["[1]"], "[1]", []),
    ([], "{}", [Quirk.ARGS_EMPTY]),
    (["", " \n"], "{}", [Quirk.ARGS_EMPTY]),
    (["nu", "ll"], "{}", [Quirk.ARGS_NULL]),
    (["{}", '{"a":', "1}"], '{"a":1}', [Quirk.ARGS_LEADING_EMPTY]),
    (["{ }\n", '{"a":1}'], '{"a":1}', [Quirk.ARGS_LEADING_EMPTY]),
    (['{"a"', '{"a":1', '{"a":1}'], '{"a":1}', [Quirk.ARGS_CUMULATIVE]),
    (["", '{"a"', "", " ", '{"a":1}', '{"a":1}', "\n"], '{"a":1}', [Quirk.ARGS_CUMULATIVE]),
    (["{", '{"a":1}'], '{"a":1}', [Quirk.ARGS_CUMULATIVE]),
    (['{"a":"\ud83d', '{"a":"\U0001f680', '{"a":"\U0001f680"}'], '{"a":"\U0001f680"}', [Quirk.ARGS_CUMULATIVE]),
    (['{"a":', "1}", '{"a":1}'], '{"a":1}', [Quirk.ARGS_REPEATED]),
    (['{"a":"K\\u00f8"}', '{"a": "Kø"}\n', '{"a":"Kø"}'], '{"a":"K\\u00f8"}', [Quirk.ARGS_REPEATED]),
    (['{"a":1}', "<|im_end|>"], '{"a":1}', [Quirk.ARGS_CONTROL_TAIL]),
    (['{"a":1} </tool_call>\n<|im_', "end|></s> \n"], '{"a":1}', [Quirk.ARGS_CONTROL_TAIL]),
    (['{"a":1}<\uff5ctool▁call▁end\uff5c>'], '{"a":1}', [Quirk.ARGS_CONTROL_TAIL]),
    (['{"a"', '{"a":1}', "<end_of_turn>"], '{"a":1}', [Quirk.ARGS_CONTROL_TAIL, Quirk.ARGS_CUMULATIVE]),
    (
        ["{}", '{"a":1}{"a":1}', "<eos>"],
        '{"a":1}',
        [Quirk.ARGS_CONTROL_TAIL, Quirk.ARGS_LEADING_EMPTY, Quirk.ARGS_REPEATED],
    ),
    (['"{\\"a\\": 1}"'], '{"a": 1}', [Quirk.ARGS_DOUBLE_ENCODED]),
    (['"{\\"a\\": 1}"</s>'], '{"a": 1}', [Quirk.ARGS_CONTROL_TAIL, Quirk.ARGS_DOUBLE_ENCODED]),
    (['"[1]"'], '"[1]"', []),
    (['"{\\"a\\": 1,}"'], '"{\\"a\\": 1,}"', []),
    (['"\\"{}\\""'], '"\\"{}\\""', []),
    (['{"a":"\ud83d', '\ude80"}'], '{"a":"\U0001f680"}', [Quirk.SURROGATES_SPLIT]),
    (['{"a":"\\ud83d', '\\ude80"}'], '{"a":"\\ud83d\\ude80"}', []),
]


@pytest.mark.parametrize(("fragments", "text", "quirks"), TEXTS)
def test_text_that_nothing_is_lost_of(fragments: list[str], text: str, quirks: list[Quirk]) -> None:
    made = settled(*fragments)
    assert made.text == text
    assert list(made.quirks) == quirks
    assert made.value == json.loads(text)


@pytest.mark.parametrize(
    ("fragments", "rule"),
    [
        (['{"a":1', "}}"], "not_json"),
        (['{"a":1}', '{"a":2}'], "not_json"),
        (['{"a":1}', '{"a":1.0000000000000000001}'], "not_json"),
        (['{"a":1}', '{"a":true}'], "not_json"),
        (['{"a":1}', '{"a":1'], "not_json"),
        (['{"a":1}\n\nNow I look.'], "not_json"),
        (['Sure: {"a":1}'], "not_json"),
        (['{"a":"x</s>'], "not_json"),
        (['{"a":1}</s>.'], "not_json"),
        (['{"a":1}<tool_call>'], "not_json"),
        (["</s>"], "not_json"),
        (['{"a"', '{"a":1', '{"b":1}'], "not_json"),
        (['{"a"', '{"a":1'], "not_json"),
        (["{}[1]"], "not_json"),
        (['null{"a":1}'], "not_json"),
        (["[1,]"], "not_json"),
        (['{"a":1,"a":1}'], "duplicate_key"),
        (["{", '{"a":1,"a":1}'], "not_json"),
        (['{"a":"\ud83d"}'], "lone_surrogate"),
        (['{"a":"\ude80', '\ud83d"}'], "lone_surrogate"),
        (['{"a":"\\ud83d"}'], "lone_surrogate"),
        (["[" * 65 + "]" * 65], "too_deep"),
    ],
)
def test_text_that_no_rule_covers_stays_as_it_came(fragments: list[str], rule: str) -> None:
    made = settled(*fragments)
    assert made.text == "".join(fragments)
    assert made.quirks == ()
    assert isinstance(made.value, NotStrict)
    assert made.value.rule == rule


def test_a_string_stays_one_where_the_schema_wants_no_object() -> None:
    assert settled('"{\\"a\\":1}"', wants_object=False) == Settled('"{\\"a\\":1}"', (), '{"a":1}')


@pytest.mark.parametrize(
    ("fragments", "objects", "text", "quirks"),
    [
        (['{"id": 18446744073709551616, "x":1.0e2}'], [0], '{"id": 18446744073709551616, "x":1.0e2}', []),
        (['{"a":1}', '{"a": 2.50, "b":"\\u00e9"}'], [0, 1], '{"a":2.50,"b":"\\u00e9"}', [Quirk.ARGS_MERGED]),
        (['{"a":[1]}', '{"b":2}', '{"c":{}}'], [0, 1, 2], '{"a":[1],"b":2,"c":{}}', [Quirk.ARGS_MERGED]),
        (['{"a":1}', '{"a":1}'], [0, 1], '{"a":1}', [Quirk.ARGS_REPEATED]),
        (["{}", '{"a":', "1}"], [0], '{"a":1}', [Quirk.ARGS_LEADING_EMPTY]),
        (['{"a":1}', "", "null"], [0, 2], '{"a":1}', []),
        (["null"], [0], "{}", [Quirk.ARGS_NULL]),
        (["[1]"], [0], "[1]", []),
        (['{"a":1}', '{"a":1,', '"b":2}'], [0], '{"a":1,"b":2}', [Quirk.ARGS_MERGED]),
        (['{"\\"q\\n":1}', '{"b":2}'], [0, 1], '{"\\"q\\n":1,"b":2}', [Quirk.ARGS_MERGED]),
    ],
)
def test_values_in_place_of_text(fragments: list[str], objects: list[int], text: str, quirks: list[Quirk]) -> None:
    made = settled(*fragments, objects=objects)
    assert made.text == text
    assert list(made.quirks) == [Quirk.ARGS_OBJECT, *quirks]
    assert made.value == json.loads(text)


@pytest.mark.parametrize(
    ("fragments", "rule"),
    [
        (['{"a":1,"a":2}', '{"b":1}'], "duplicate_key"),
        (["[1]", '{"b":1}'], "not_json"),
        (['{"a":1}', '{"a":'], "not_json"),
    ],
)
def test_values_that_cannot_be_merged(fragments: list[str], rule: str) -> None:
    made = settled(*fragments, objects=[0, 1] if rule == "duplicate_key" or fragments[0] == "[1]" else [0])
    assert isinstance(made.value, NotStrict)
    assert made.value.rule == rule


@given(OBJECTS, st.booleans(), st.data())
def test_strict_text_is_taken_as_sent_however_it_was_cut(
    value: dict[str, Any], ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert settled(*cut(text, data)) == Settled(text, (), value)


@given(
    OBJECTS,
    st.sampled_from(["{}", ""]),
    st.integers(1, 3),
    st.sampled_from(["", "<|im_end|>", "\n</tool_call>"]),
    st.data(),
)
def test_lossless_forms_of_the_whole_text_do_not_depend_on_the_cuts(
    value: dict[str, Any], lead: str, times: int, tail: str, data: st.DataObject
) -> None:
    assume(value)
    text = json.dumps(value)
    made = settled(*cut(lead + text * times + tail, data))
    assert made.text == text
    assert made.value == value


@given(OBJECTS, st.data())
def test_growing_prefixes_end_in_the_last_one(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False)
    sizes = sorted(data.draw(st.lists(st.integers(1, len(text)), max_size=6)))
    assert settled(*(text[:size] for size in sizes), text).value == value


@given(OBJECTS, st.data())
def test_a_cut_text_never_becomes_a_value(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    cut_text = text[: data.draw(st.integers(1, len(text) - 1))]
    assert isinstance(settled(*cut(cut_text, data)).value, NotStrict)


@given(st.lists(st.text(alphabet='{}[]":,\\ au1\ud83d\ude80', max_size=6), max_size=6), st.booleans())
def test_any_text_settles(fragments: list[str], whole: bool) -> None:
    made = settle(fragments, [whole] * len(fragments), True)
    assert isinstance(made.value, NotStrict) or json.loads(made.text) == made.value


def test_the_tail_of_control_tokens() -> None:
    assert without_control_tail("x</s> <|end|>\n") == "x"
    assert without_control_tail("x ") == "x "
    assert without_control_tail("x<|a b|>") == "x<|a b|>"
    assert without_control_tail("<|" + "a" * 49 + "|>") == "<|" + "a" * 49 + "|>"
    assert without_control_tail("</s>") == ""


@pytest.mark.parametrize(
    "fragments",
    [
        ['{"a":1}'] * 30_000,
        ["{}"] * 100_000,
        [" "] * 200_000 + ["x"],
        ['{"a":"'] + ["x"] * 200_000,
        ['{"a":1}'] + ["</s> "] * 40_000,
        ['{"a":1}'] + [" "] * 200_000 + ["<"],
        ["["] * 200_000,
        ['"'] * 200_000,
        ["{}"] * 100_000 + ["{"],
        ['{"a":"' + "\ud83d", "\ude80"] * 20_000,
    ],
)
def test_cost_is_linear(fragments: list[str]) -> None:
    since = time.process_time()
    settle(fragments, [False] * len(fragments), True)
    # 200 KB take about 0.2 s; what is quadratic takes minutes.
    assert time.process_time() - since < 2.0


def test_many_objects_are_merged_in_linear_time() -> None:
    since = time.process_time()
    made = settle([f'{{"k{n}":1}}' for n in range(20_000)], [True] * 20_000, True)
    assert len(made.value) == 20_000
    assert time.process_time() - since < 2.0
