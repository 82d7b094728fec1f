"""The scanner: what it holds, that nothing depends on the cut, what stands around a call, and what a text costs."""

from __future__ import annotations

import gc
import json
import sys
import time
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from markup_samples import SAMPLES, SCHEMAS, scan
from proxy.dialects.markup import AUTO, FORMATS, Scanner, chosen
from proxy.dialects.markup import scanner as scanner_module

CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
NAMES = tuple(one.name for one in FORMATS)
FRAGMENTS = [
    *(
        piece
        for _, sample in SAMPLES[::2]
        for piece in (sample, sample[: len(sample) // 2], sample[len(sample) // 2 :])
    ),
    *(one for f in FORMATS for row in f.rows for one in (*row.openers, *row.groups, *row.closers)),
    *("now", "get_weather", "write_file", "nothing", "functions.now:0", "city", "[now(), now()]", "now()"),
    *(
        "\n",
        " ",
        "  \n",
        " " * 300,
        "text",
        "1",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        "> ",
        '"',
        "'",
        "`",
        "“",
        "”",
        "\\",
        ";",
    ),
    *("```", "\n```\n", "~~~\n", "```json\n", "json", '{"name": "now", "arguments": {}}', '{"name": "now", "arg', "}}"),
    *("<parameter=city>", "<parameter=text>", "Oslo", "</parameter>", "<|im_end|>", "<|message|>", "analysis", "final"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


@given(
    text=TEXTS,
    cuts=st.lists(st.integers(1, 30), max_size=60),
    channel=st.sampled_from(["content", "reasoning"]),
    names=st.sampled_from([AUTO, NAMES]),
    whole=st.booleans(),
    hold_limit=st.sampled_from([1 << 20, 40]),
    most=st.sampled_from([4096, 0, 1]),
)
def test_nothing_depends_on_the_cut_and_nothing_is_lost(
    text: str, cuts: list[int], channel: str, names: tuple[str, ...], whole: bool, hold_limit: int, most: int
) -> None:
    with patch.object(scanner_module, "REFUSALS", most):
        _nothing_depends_on_the_cut(text, cuts, channel, names, whole, hold_limit)


def _nothing_depends_on_the_cut(
    text: str, cuts: list[int], channel: str, names: tuple[str, ...], whole: bool, hold_limit: int
) -> None:
    pieces, at = [], 0
    for size in cuts:
        pieces.append(text[at : at + size])
        at += size
    pieces.append(text[at:])
    told = scan([text], names=names, channel=channel, whole=whole, hold_limit=hold_limit)
    for other in (pieces, list(text)):
        again = scan(other, names=names, channel=channel, whole=whole, hold_limit=hold_limit)
        assert again.said() == told.said()
    if not told.calls:
        assert told.text + told.residue == text
    elif channel == "reasoning":
        assert told.text + told.source == text, "what the exchange does not take can still be said"
    elif all(call.weak for call in told.calls):
        assert told.source.strip() == text.strip()


@given(text=TEXTS, structured=st.booleans())
def test_a_broken_reply_gives_back_what_was_held(text: str, structured: bool) -> None:
    scanner = Scanner(tuple(SCHEMAS), SCHEMAS, chosen(AUTO), channel="content", quoted=lambda _: False, hold_limit=99)
    scanner.structured = structured
    scanned = scanner.feed(text)
    released = scanner.release()
    assert scanner.held == 0
    if not scanned.calls and not scanned.dropped:
        assert scanned.text + released == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"A\n{CALL}\nB", "A\nB"),
        (f"A\n{CALL}", "A"),
        (f"A\n\n{CALL}\n \n{CALL}\n", "A"),
        (f"A\n\n{CALL}\n \n{CALL}\nB ", "A\n\nB "),
        (f"{CALL} B", "B"),
        (f" {CALL}B", " B"),
        (f"A{CALL}B", "AB"),
        (f"A{' ' * 300}{CALL}", "A" + " " * 44),
        (f"A{' ' * 300}{CALL}B", "A" + " " * 300 + "B"),
        (f"A\n{CALL}</tool_call></function>\n<|im_end|>", "A"),
        (f"A\n{CALL}</tool_", "A"),
        (f"{CALL[:-12]}\n{CALL}", ""),
        (f"<tool_call>\n{CALL}", ""),
    ],
)
def test_white_space_before_a_call_stays_only_if_visible_text_follows(text: str, left: str) -> None:
    for pieces in ([text], list(text)):
        result = scan(pieces)
        assert result.calls
        assert result.text == left


def test_what_may_be_a_call_is_held_and_everything_else_passes_at_once() -> None:
    scanner = Scanner(tuple(SCHEMAS), SCHEMAS, chosen(AUTO), channel="content", quoted=lambda _: False, hold_limit=4096)
    told = [
        ("Let me ", "Let me"),
        ("see. <", " see."),
        ("b> is bold", " <b> is bold"),
        (".\n", "."),
        ("<tool_", ""),
        ('call>{"name": "now", "arg', ""),
        ('uments": {}}</tool_call>', ""),
        ("\nDone. <tool_call>", "\nDone."),
        (' {"name": "get_w', ""),
        ("ind", ' <tool_call> {"name":'),  # no declared name begins like that
        ('", "arguments": {}}</tool_call> and', ' "get_wind", "arguments": {}}</tool_call> and'),
    ]
    for piece, passed in told:
        assert scanner.feed(piece).text == passed
    assert scanner.held == 0


def test_a_candidate_that_is_longer_than_may_be_held_passes_and_its_inside_is_no_call() -> None:
    long = '<tool_call>{"name": "write_file", "arguments": {"text": "' + "x" * 500
    text = f"{long}\n{CALL}"
    result = scan([text], hold_limit=200)
    assert (result.calls, result.text + result.residue) == ([], text)
    assert [one.rule.value for one in result.refusals] == ["hold_limit"]
    assert result.most_held <= 201


_M3 = "]<]minimax[>["
# Markup that goes on without end: how it begins, and one more piece of it.
ENDLESS = {
    "parameters": ("<function=write_file>", "<parameter=k{n}>v</parameter>"),
    "closers in a value": ("<function=write_file><parameter=text>", "</parameter> \n"),
    "openers in a value": ("<function=write_file><parameter=text>", "<tool_call>x<parameter=k{n}>"),
    "a value": ("<function=write_file><parameter=text>", "word {n} "),
    "pairs": ("<tool_call>write_file", "<arg_key>k{n}</arg_key><arg_value>v</arg_value>"),
    "attributes": ('<invoke name="write_file">', '<parameter name="k{n}">v</parameter>'),
    "call objects": ("<tool_call>[", '{{"name": "write_file", "arguments": {{"path": "{n}"}}}},'),
    "wrapped call objects": ('<tool_call>{{"tool_calls": [', '{{"name": "write_file", "arguments": {{}}}},'),
    "a sequence of call objects": ("<|python_tag|>", '{{"name": "write_file", "arguments": {{}}}}; '),
    "named keys": ("<|tools_prefix|>[", '{{"write_file": {{"path": "{n}"}}}}, '),
    "a text in JSON": ('<tool_call>{{"name": "write_file", "arguments": {{"text": "', "word {n} "),
    "levels of JSON": ('<tool_call>{{"name": "write_file", "arguments": {{"text": ', "["),
    "white space": ("<tool_call>", "  \n"),
    "members in braces": ("<|tool_call>call:write_file{{", "k{n}:1,"),
    "texts in braces": ("<|tool_call>call:write_file{{", 'k{n}:<|"|>v<|"|>,'),
    "a list in braces": ("<|tool_call>call:write_file{{k:[", "{n},"),
    "elements": (f"{_M3}<invoke name=write_file>", f"{_M3}<k{{n}}>v{_M3}</k{{n}}>"),
    "inner elements": (f"{_M3}<invoke name=write_file>{_M3}<text>", f"{_M3}<k{{n}}>v{_M3}</k{{n}}>"),
    "items": (f"{_M3}<invoke name=write_file>{_M3}<text>", f"{_M3}<item>v{_M3}</item>"),
    "Python calls": ("<|python_start|>[", "write_file(path='{n}'), "),
    "Python arguments": ("<|python_start|>[write_file(", "k{n}=1, "),
    "levels of Python": ("<|python_start|>[write_file(text=", "["),
    "lines of Python": ("<function_calls>", "write_file(path='{n}')\n"),
    "messages": ("<|start|>assistant", "<|channel|>commentary<|message|>word {n}<|end|>"),
    "undeclared names": ("", "<function=tool{n}><parameter=path>v</parameter></function>"),
    "undeclared names in JSON": ("", '<tool_call>{{"name": "tool{n}", "arguments": {{}}}}</tool_call>\n'),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("doom", ["too long", "undeclared", "quoted"])
def test_nothing_is_kept_of_endless_markup_that_stays_text(kind: str, doom: str) -> None:
    begin, more = ("`" if doom == "quoted" else "") + ENDLESS[kind][0].format(), ENDLESS[kind][1]
    pieces = (begin, *(more.format(n=n) for n in range(2_500)))
    if doom == "undeclared":
        pieces = tuple(piece.replace("write_file", "erase_file") for piece in pieces)
    scanner = Scanner(
        tuple(SCHEMAS), SCHEMAS, chosen(AUTO), channel="content", quoted=lambda _: False, hold_limit=1_000
    )
    weights = []
    for number, piece in enumerate(pieces):
        scanner.feed(piece)
        if number in (1_000, 2_500):
            weights.append(_weight(scanner))
    assert weights[1] - weights[0] < 2_000


def _weight(scanner: Scanner) -> int:
    """Bytes of the objects that a scanner holds on to, beside the markers that all share."""
    skip = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
    seen, todo, total = {id(scanner), id(scanner._markers), id(scanner._markers.openers)}, [scanner], 0
    while todo:
        one = todo.pop()
        total += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, skip):
                seen.add(id(other))
                todo.append(other)
    return total


def test_the_value_of_an_unfinished_call_never_becomes_a_call() -> None:
    for text in (
        f"<function=write_file>\n<parameter=text>\nUse it like this:\n{CALL}\nand",
        f'<tool_call>{{"name": "write_file", "arguments": {{"text": "x\n{CALL}',
        f"<function=unknown>\n<parameter=text>\n{CALL}\n</parameter>\n</function>",
        f'He said "<function=write_file>\n<parameter=text>\n{CALL}\n</parameter>\n</function>" to me',
    ):
        result = scan([text])
        assert (result.calls, result.text) == ([], text)


def test_a_call_behind_an_undeclared_one_is_found() -> None:
    other = '<tool_call>{"name": "other", "arguments": {"x": 1}}</tool_call>'
    result = scan([f"{other}\n{CALL}"])
    assert ([call.name for call in result.calls], result.text) == (["now"], other)


def test_in_reasoning_a_call_counts_only_at_the_end() -> None:
    last = scan([f"I look.\n{CALL}\n"], channel="reasoning")
    assert (len(last.calls), last.text, last.source) == (1, "I look.", f"\n{CALL}\n")
    draft = scan([f"I look.\n{CALL}\nNo, wait."], channel="reasoning")
    assert (draft.calls, draft.text) == ([], f"I look.\n{CALL}\nNo, wait.")
    assert [one.rule.value for one in draft.refusals] == ["not_last"]
    assert scan(['{"name": "now", "arguments": {}}'], channel="reasoning").calls == []


def test_closers_beside_a_structured_call_are_residue_and_else_text() -> None:
    for text in (
        "\n</function>\n</tool_call>",
        "Hi.\n</tool_call>\n",
        "Hi\n\n<｜DSML｜function_calls",
        "Hi <tool_call>\n",
    ):
        result = scan([text])
        assert result.text + result.residue == text
        assert result.text in ("", "Hi.", "Hi")
    middle = "A\n</tool_call>\nB"
    assert scan([middle]).text == middle
    assert scan([middle], structured=True).text == middle
    assert scan(["\n</tool_call>\nB"], structured=True).text == "\nB"
    for prose in ("Close it with </function>, as usual.", "The closing tag is </function>"):
        assert scan(list(prose), structured=True).text == prose
    assert scan(["It is <to"]).text == "It is <to", "the end of a sentence"


def test_a_fence_ends_at_its_own_closing_line_only() -> None:
    assert scan([f"```\n~~~\n``\n{CALL}\n````x\n{CALL}\n```\n{CALL}"]).text.endswith("```")
    assert len(scan([f"```\n{CALL}\n```\n{CALL}"]).calls) == 1
    assert len(scan([f"````\n```\n{CALL}\n```\n````\n{CALL}"]).calls) == 1
    assert len(scan([f"``` is how a fence begins, and ends with ```\n{CALL}"]).calls) == 1
    assert scan([f"``` xml\n{CALL}"]).calls == []


def test_a_quote_counts_on_its_own_line_only() -> None:
    assert scan([f'He said "{CALL}"']).calls == []
    assert scan([f'He said "look: {CALL}"']).calls == []
    assert scan([f"Use `x {CALL}`"]).calls == []
    assert scan([f"> {CALL}"]).calls == []
    assert len(scan([f'He said "look".\n{CALL}']).calls) == 1
    assert len(scan([f'He said "look\n{CALL}']).calls) == 1
    assert len(scan([f'He said "look" {CALL}']).calls) == 1


HOSTILE = {
    "openers": "<tool_call>",
    "open calls": '<tool_call>{"name": "get_weather", "arguments": {',
    "open tags": "<function=get_weather><parameter=city>",
    "closers": "</parameter></function>",
    "groups": "<|tool_calls_section_begin|><|tool_call_begin|>",
    "headers": "<|channel|>analysis<|message|>",
    "braces": '{"arguments": {',
    "brackets": "[now(x=[[",
    "quotes": '"<invoke name="now">',
    "less": "<",
    "white space": " \n",
    "fences": "```\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("step", [3, 4096])
def test_the_cost_of_a_character_does_not_grow_with_the_text(text: str, step: int) -> None:
    def cost(size: int) -> float:
        whole = (text * (size // len(text) + 1))[:size]
        scanner = Scanner(
            tuple(SCHEMAS), SCHEMAS, chosen(AUTO), channel="content", quoted=lambda _: False, hold_limit=1 << 20
        )
        began = time.process_time()
        for at in range(0, size, step):
            scanner.feed(whole[at : at + step])
        scanner.close()
        return (time.process_time() - began) / size

    small = 4_000 if step == 3 else 20_000
    assert cost(12 * small) < 4 * cost(small) + 2e-6, "a quadratic scanner would take twelve times as long"


def test_a_million_openers_in_one_text_are_linear_too() -> None:
    began = time.process_time()
    result = scan(['<tool_call>{"name": "x' * 100_000], hold_limit=1 << 20)
    assert len(result.refusals) >= 4_000
    assert time.process_time() - began < 30


def test_arguments_of_a_megabyte_come_through_by_character_groups() -> None:
    big = json.dumps({"name": "write_file", "arguments": {"text": "x" * 900_000}})
    text = f"<tool_call>{big}</tool_call>"
    (call,) = scan([text[at : at + 7] for at in range(0, len(text), 7)]).calls
    assert len(call.arguments) > 900_000


def test_marks_in_words_and_behind_digits_open_no_quote_and_foreign_quotes_close() -> None:
    for prose in ('Set the 27" screen. ', "It`s dim. ", "Das „Licht“ ist an. ", 'The "27" is set. ', "Run `x`. "):
        assert [call.name for call in scan(list(prose + CALL)).calls] == ["now"], prose
    for prose in ('It said "x 27" or "', "So: „", "「", "The `dim", "He wrote „so: "):
        assert scan(list(prose + CALL)).calls == [], prose


def test_a_quotation_is_known_without_its_group_and_its_fence() -> None:
    page = 'page: <invoke name="now"></invoke> and {"name": "now", "arguments": {}} and <function=now></function>'
    for text in (
        '<function_calls>\n<invoke name="now"></invoke>\n</function_calls>',
        '```json\n{"name": "now", "arguments": {}}\n```',
        "<tool_call>\n<function=now></function>\n</tool_call>",
    ):
        assert scan([text], messages=(page,)).calls == []
        assert [call.name for call in scan([text]).calls] == ["now"]


def test_behind_thousands_of_openers_that_begin_no_call_all_stays_text() -> None:
    text = "<function=look>" * 4_100 + CALL
    told = scan([text])
    assert (told.text + told.residue, told.calls) == (text, [])
    assert told.refusals[-1].rule.value == "too_many"
    text = "<function=look>" * 4_000 + CALL
    assert [call.name for call in scan([text]).calls] == ["now"]
