"""Formats of special tokens around names and JSON: Kimi K2, DeepSeek, Mistral, and a row each for many more."""

from __future__ import annotations

from proxy.dialects.markup.base import Body, Format, Row, Tier
from proxy.dialects.markup.bodies import harmony
from proxy.dialects.markup.bodies.braces import braces
from proxy.dialects.markup.bodies.json_calls import json_calls, whole_content
from proxy.dialects.markup.bodies.named import headless, mistral, named

# K2, K2-Thinking, K2.5 to 2.7, Kimi-Linear. The header is the call's id and has to come back in the history.
_K2_ARGUMENTS = "<|tool_call_argument_begin|>"
_K2_CLOSERS = ("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>")
KIMI_K2 = Format(
    "kimi-k2",
    "strong",
    (
        Row(
            ("<|tool_call_begin|>",),
            named(_K2_ARGUMENTS, indexed=True),
            _K2_CLOSERS,
            ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
        ),
        Row((), headless(_K2_ARGUMENTS), _K2_CLOSERS, at_start=True),
    ),
)

# V3 and R1 put the arguments in a code fence, which belongs to the call; V3.1 does not.
_DEEPSEEK_CLOSERS = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK = Format(
    "deepseek",
    "strong",
    tuple(
        Row(("<｜tool▁call▁begin｜>",), body, _DEEPSEEK_CLOSERS, ("<｜tool▁calls▁begin｜>",))
        for body in (named("<｜tool▁sep｜>", kind="function", fenced=True), named("<｜tool▁sep｜>"))
    ),
)

# Tokenizers before v11 write an array, later ones name and arguments. The id is nine letters and digits and stays.
MISTRAL = Format(
    "mistral",
    "strong",
    (Row(("[TOOL_CALLS]",), json_calls(keep_id=True)), Row(("[TOOL_CALLS]",), mistral)),
)

GEMMA = Format(
    "gemma",
    "strong",
    (
        Row(("<|tool_call>",), braces('<|"|>'), ("<tool_call|>",)),
        Row(("<start_function_call>",), braces("<escape>"), ("<end_function_call>",)),
    ),
)

HARMONY = Format(
    "harmony",
    "strong",
    (Row(("<|channel|>", "<|start|>"), harmony.messages, ("<|call|>", "<|end|>", "<|return|>")),),
)
HARMONY_STRIPPED = Format("harmony-stripped", "weak", (Row((), harmony.stripped, at_start=True),))


def _row(name: str, tier: Tier, opener: str | tuple[str, ...], body: Body, *closers: str) -> Format:
    return Format(name, tier, (Row((opener,) if isinstance(opener, str) else opener, body, closers),))


JSON_ROWS = (
    _row("granite", "strong", "<|tool_call|>", json_calls()),
    _row("granite-20b", "medium", "<function_call>", json_calls("</function_call>"), "</function_call>"),
    _row("llama", "strong", "<|python_tag|>", json_calls(several=True), "<|eom_id|>", "<|eot_id|>"),
    _row("jamba", "medium", "<tool_calls>", json_calls("</tool_calls>"), "</tool_calls>"),  # Hunyuan-A13B too
    _row("longcat", "strong", "<longcat_tool_call>", json_calls(), "</longcat_tool_call>"),
    _row("nemotron", "medium", "<TOOLCALL>", json_calls("</TOOLCALL>", several=True), "</TOOLCALL>"),
    _row("lm-studio", "medium", "[TOOL_REQUEST]", json_calls("[END_TOOL_REQUEST]"), "[END_TOOL_REQUEST]"),
    _row(
        "internlm",
        "strong",
        ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>", "<|action_start|>\n<|plugin|>"),
        json_calls(),
        "<|action_end|>",
    ),
    _row("command", "strong", "<|START_ACTION|>", json_calls(), "<|END_ACTION|>"),  # ids begin anew each turn
    _row("apertus", "strong", "<|tools_prefix|>", json_calls(name_is_key=True), "<|tools_suffix|>"),
    _row("inkling", "strong", "<|content_invoke_tool_json|>", json_calls(), "<|end_message|>"),
    _row("gigachat", "strong", "<|function_call|>", json_calls()),
    Format("functools", "weak", (Row((), whole_content(prefix="functools"), at_start=True),)),  # Phi-4-mini
)

# Llama 3.x, Qwen2.5-Coder, xLAM, {"tool_call": {...}}; also a call of another format whose opener was eaten.
BARE_JSON = Format(
    "bare-json",
    "weak",
    (Row((), whole_content("</tool_call>", "<|eom_id|>", "<|eot_id|>", "<|tool_call_end|>"), at_start=True),),
)
