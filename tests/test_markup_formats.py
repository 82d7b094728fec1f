"""Each markup is found, whatever stands around it and however it is cut; and its near misses are not."""

from __future__ import annotations

import json

import pytest

from markup_samples import ARGUMENTS, OPT_IN, SAMPLES, WHOLE, every_format, scan
from proxy.dialects.markup import AUTO, BY_NAME, FORMATS

EVERY = [*SAMPLES, *WHOLE, *OPT_IN]
IDS = [f"{name}-{number}" for number, (name, _) in enumerate(EVERY)]
NAMES = tuple(one.name for one in FORMATS)


def test_every_format_has_a_name_of_its_own_and_a_sample() -> None:
    assert len(BY_NAME) == len(FORMATS)
    assert every_format() == {name for name, _ in EVERY}
    assert set(AUTO) == every_format() - {name for name, _ in OPT_IN}


@pytest.mark.parametrize(("name", "text"), EVERY, ids=IDS)
def test_a_call_is_found_alone(name: str, text: str) -> None:
    for pieces in ([text], list(text)):
        result = scan(pieces, names=NAMES)
        (call,) = result.calls
        assert (call.name, json.loads(call.arguments), call.format) == ("get_weather", ARGUMENTS, name)
        assert (result.text, result.residue) == ("", "")


@pytest.mark.parametrize(("name", "text"), [*SAMPLES, *OPT_IN], ids=IDS[: len(SAMPLES)] + IDS[-len(OPT_IN) :])
def test_a_call_is_found_between_texts_and_behind_another(name: str, text: str) -> None:
    for pieces in ([f"Before.\n{text}\n{text}\nAfter."], list(f"Before.\n{text}\n{text}\nAfter.")):
        result = scan(pieces, names=NAMES)
        assert [(call.name, json.loads(call.arguments)) for call in result.calls] == [("get_weather", ARGUMENTS)] * 2
        assert result.text == "Before.\nAfter."


@pytest.mark.parametrize(("name", "text"), OPT_IN, ids=[name for name, _ in OPT_IN])
def test_an_ambiguous_format_is_off_unless_it_is_named(name: str, text: str) -> None:
    assert scan([text]).calls == []
    assert len(scan([text], names=(name,)).calls) == 1


@pytest.mark.parametrize(("name", "text"), EVERY, ids=IDS)
def test_an_undeclared_name_stays_text(name: str, text: str) -> None:
    for pieces in ([text], list(text)):
        result = scan(pieces, names=NAMES, declared=("now", "write_file"))
        assert (result.calls, result.text + result.residue) == ([], text)


@pytest.mark.parametrize(("name", "text"), EVERY, ids=IDS)
def test_what_stands_in_a_message_stays_text(name: str, text: str) -> None:
    for piece in ([text], list(text)):
        result = scan(piece, names=NAMES, messages=(f"Explain this: {text} please.",))
        assert (result.calls, result.text + result.residue) == ([], text)


@pytest.mark.parametrize(("name", "text"), [p for p in SAMPLES if p[0] != "harmony"], ids=str)
def test_a_call_that_is_cut_stays_text_or_is_whole(name: str, text: str) -> None:
    for end in range(1, len(text)):
        for whole in (True, False):
            result = scan([text[:end]], whole=whole)
            if result.calls:
                assert [json.loads(call.arguments) for call in result.calls] in ([ARGUMENTS], [{"city": "Oslo"}])
                # a tagged call without its days is whole only where nothing more was begun and nothing cut it
                assert whole or json.loads(result.calls[0].arguments) == ARGUMENTS
            else:
                assert result.text + result.residue == text[:end]


def arguments(text: str, **options: object) -> object:
    (call,) = scan([text]).calls
    return json.loads(call.arguments)


def test_json_arguments_are_the_characters_of_the_source() -> None:
    source = '{"city" :"Oslo",  "n": 12345678901234567890123, "x": 1.50,\n"s": "a\\u00e9"}'
    (call,) = scan([f'<tool_call>{{"name": "get_weather", "arguments": {source}}}</tool_call>']).calls
    assert call.arguments == source


def test_values_of_tags_are_typed_by_the_schema() -> None:
    call = "<function=get_weather><parameter=city>{}</parameter><parameter={}>{}</parameter></function>"
    assert arguments(call.format("7", "days", "7")) == {"city": "7", "days": 7}
    assert arguments(call.format("null", "days", "7.0")) == {"city": "null", "days": 7.0}
    assert arguments(call.format("x", "days", "many")) == {"city": "x", "days": "many"}
    assert arguments(call.format("x", "units", "null")) == {"city": "x", "units": None}
    assert arguments(call.format("x", "units", " C ")) == {"city": "x", "units": " C "}
    assert arguments(call.format("x", "other", "5")) == {"city": "x", "other": "5"}
    where = {"lat": 1.5, "tags": ["a", True, None]}
    assert arguments(call.format("x", "where", json.dumps(where))) == {"city": "x", "where": where}
    assert arguments(call.format("x", "where", str(where))) == {"city": "x", "where": where}
    assert arguments(call.format("x", "where", "__import__('os')")) == {"city": "x", "where": "__import__('os')"}


def test_one_line_break_on_each_side_of_a_value_is_markup_and_all_else_is_not() -> None:
    call = "<function=write_file><parameter=path>{}</parameter><parameter=text>{}</parameter></function>"
    assert arguments(call.format("\na\n", "\n\n  b\n\n")) == {"path": "a", "text": "\n  b\n"}
    assert arguments(call.format("\r\na\r\n", " b ")) == {"path": "a", "text": " b "}
    verbatim = '<invoke name="write_file"><parameter name="text">\n b &amp; c \n</parameter></invoke>'
    assert arguments(verbatim) == {"text": "\n b &amp; c \n"}


def test_a_closer_inside_a_value_is_text() -> None:
    inner = "a </parameter> b <parameter=x> c </function> d"
    call = f"<function=write_file>\n<parameter=text>\n{inner}\n</parameter>\n</function>\n</tool_call>"
    assert arguments(call) == {"text": inner}
    assert arguments(call.replace("\n</tool_call>", "")) == {"text": inner}


def test_a_missing_closer_of_a_value_is_mended() -> None:
    call = "<function=write_file>\n<parameter=path>\na\n<parameter=text>\nb\n</parameter>\n</function>"
    assert arguments(call) == {"path": "a", "text": "b"}
    assert arguments("<function=write_file>\n<parameter=path>\na\n</function>\n</tool_call>") == {"path": "a"}


def test_a_parameter_given_twice_with_different_values_stays_text() -> None:
    tags = "<function=write_file><parameter=path>a</parameter><parameter=path>{}</parameter></function>"
    assert arguments(tags.format("a")) == {"path": "a"}
    doubled = '<tool_call>{"name": "write_file", "arguments": {"path": "a", "path": "b"}}</tool_call>'
    for text in (tags.format("b"), doubled):
        result = scan([text])
        assert (result.calls, result.text) == ([], text)
        assert [one.rule.value for one in result.refusals] == ["parameter_twice"]


def test_arguments_may_be_wrapped_in_one_parameter() -> None:
    text = '<invoke name="get_weather"><parameter name="arguments">{"city": "Oslo"}</parameter></invoke>'
    assert arguments(text) == {"city": "Oslo"}


def test_a_key_that_lost_its_opening_tag_is_found_if_it_is_declared() -> None:
    text = "<tool_call>get_weather{}</arg_key><arg_value>Oslo</arg_value></tool_call>"
    assert arguments(text.format("city")) == {"city": "Oslo"}
    unknown = scan([text.format("town")])
    assert (unknown.calls, unknown.text + unknown.residue) == ([], text.format("town"))


def test_ids_that_a_model_needs_back_are_kept() -> None:
    ids = [
        ("<|tool_call_begin|>functions.now:3<|tool_call_argument_begin|>{}<|tool_call_end|>", "functions.now:3"),
        ("[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}", "abcdefghi"),
        ('[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "abcdefghi"}]', "abcdefghi"),
        ("now:3<|tool_call_argument_begin|>{}", ""),
        ('<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "now", "parameters": {}}]<|END_ACTION|>', ""),
    ]
    for text, call_id in ids:
        assert [call.call_id for call in scan([text]).calls] == [call_id]


def test_namespaces_go_and_nothing_else_is_guessed() -> None:
    text = '<tool_call>{{"name": "{}", "arguments": {{}}}}</tool_call>'
    for name in ("now", "functions.now", "default_api.now", "default_api:now", " now "):
        for pieces in ([text.format(name)], list(text.format(name))):
            assert [call.name for call in scan(pieces).calls] == ["now"]
    for name in ("Now", "no", "nows", "tools.now", "now()"):
        assert scan([text.format(name)]).calls == []


def test_the_messages_around_a_harmony_call_keep_their_meaning() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    )
    result = scan([text])
    assert ([call.name for call in result.calls], result.reasoning, result.text) == (["now"], "Hm.", "I look.")
    final = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello"
    assert scan([final]).text == final


def test_a_json_answer_is_no_call_without_arguments_or_with_other_keys() -> None:
    for text in (
        '{"name": "now"}',
        '{"name": "now", "arguments": {}, "x": 1}',
        '{"name": "now", "arguments": {}} is it',
        '[{"name": "now", "arguments": {}}, 3]',
        '{"name": "now", "name": "get_weather", "arguments": {}}',
        "[]",
        "{}",
    ):
        assert (scan([text]).calls, scan([text]).text) == ([], text)


def test_deep_nesting_neither_recurses_nor_costs() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    (call,) = scan([f'<tool_call>{{"name": "now", "arguments": {{"x": {deep}}}}}</tool_call>']).calls
    assert len(call.arguments) > 200_000
    for text in (
        '<tool_call>{"tool_call": ' * 5_000,
        '{"tool_calls": [' * 50_000,
        "<|python_start|>[now(x=" + "[" * 50_000 + "]" * 50_000 + ")]",
        "<|tool_call>call:now{" + "a:{" * 50_000 + "}" * 50_000 + "}",
        "]<]minimax[>[<invoke name=now>" + "]<]minimax[>[<a>" * 50_000,
        "<function=get_weather><parameter=city>x</parameter><parameter=where>"
        + "[" * 50_000
        + "</parameter></function>",
    ):
        result = scan([text])
        assert result.calls == [] or len(result.calls) == 1
