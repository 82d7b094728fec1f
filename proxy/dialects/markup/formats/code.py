"""Calls written as Python."""

from __future__ import annotations

from proxy.dialects.markup.base import Format, Row
from proxy.dialects.markup.bodies.code import call_lines, call_list, tool_code
from proxy.dialects.markup.bodies.json_calls import json_calls

_LLAMA = ("<|python_end|>",)
_LFM = ("<|tool_call_end|>",)

LLAMA4 = Format(
    "llama4",
    "strong",
    (Row(("<|python_start|>",), call_list(), _LLAMA), Row(("<|python_start|>",), json_calls(several=True), _LLAMA)),
)
LFM2 = Format(
    "lfm2",
    "strong",
    (Row(("<|tool_call_start|>",), call_list(), _LFM), Row(("<|tool_call_start|>",), json_calls(), _LFM)),
)
OLMO3 = Format(
    "olmo3", "medium", (Row(("<function_calls>",), call_lines("</function_calls>"), ("</function_calls>",)),)
)
BARE_CODE = Format(
    "bare-code",
    "weak",
    (Row((), call_list(weak=True, closers=(*_LLAMA, *_LFM)), at_start=True), Row((), tool_code, at_start=True)),
)
