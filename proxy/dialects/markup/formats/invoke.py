"""`<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>` and its relatives."""

from __future__ import annotations

from proxy.dialects.markup.base import Format, Row
from proxy.dialects.markup.bodies import minimax3
from proxy.dialects.markup.bodies.tagged import Tags, attribute_head, attribute_tag, tagged


def _row(
    begin: str,
    close: str,
    groups: tuple[str, ...],
    closers: tuple[str, ...],
    call: str = "invoke",
    parameter: str = "parameter",
) -> Row:
    """`begin` and `close` stand before the name of each tag."""
    tags = Tags(
        attribute_head(),
        f"{begin}{parameter} name=",
        attribute_tag(),
        f"{close}{parameter}>",
        f"{close}{call}>",
        closers,
    )
    return Row((f"{begin}{call} name=",), tagged(tags), (f"{close}{call}>", f"{close}{parameter}>", *closers), groups)


_WRAPPERS = ("function_calls", "tool_calls", "minimax:tool_call", "dots_function_call", "atem:function_calls")

# MiniMax M2 through aggregators, Claude-style markup of many models, dots, MiniCPM5 (`<function name=...><param ...>`).
INVOKE = Format(
    "invoke",
    "medium",
    (
        _row("<", "</", tuple(f"<{name}>" for name in _WRAPPERS), tuple(f"</{name}>" for name in _WRAPPERS)),
        _row("<", "</", ("<tool_calls>",), ("</tool_calls>",), "function", "param"),
    ),
)

# DeepSeek V3.2 to V4.1: four kinds of bars, V4.1 with a space behind them, three wrappers or none
# (sglang#40236, GenericAgent#804, opencompany#2093).
_BARS = ("｜", "｜｜", "‖", "|", "||")
DSML = Format(
    "dsml",
    "strong",
    tuple(
        _row(
            f"<{bar}DSML{bar}{gap}",
            f"</{bar}DSML{bar}{gap}",
            tuple(f"<{bar}DSML{bar}{gap}{name}>" for name in ("function_calls", "tool_calls", "calls")),
            tuple(f"</{bar}DSML{bar}{gap}{name}>" for name in ("function_calls", "tool_calls", "calls")),
        )
        for bar in _BARS
        for gap in ("", " ")
    ),
)

# Step-3; 3.5 writes Qwen3-Coder's markup. The underscores tell its tokens from DeepSeek's.
STEP3 = Format(
    "step3",
    "strong",
    (
        _row(
            "<steptml:",
            "</steptml:",
            ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>function<｜tool_sep｜>"),
            ("<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
        ),
    ),
)

# Kimi K3: the types are given in the markup.
_K3_SECTION = ("<|close|>tools<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>")
KIMI_K3 = Format(
    "kimi-k3",
    "strong",
    (
        Row(
            ("<|open|>call tool=",),
            tagged(
                Tags(
                    attribute_head("<|sep|>"),
                    "<|open|>argument key=",
                    attribute_tag("<|sep|>"),
                    "<|close|>argument<|sep|>",
                    "<|close|>call<|sep|>",
                    _K3_SECTION,
                )
            ),
            ("<|close|>call<|sep|>", *_K3_SECTION),
            ("<|open|>tools<|sep|>",),
        ),
    ),
)

MINIMAX_M3 = Format(
    "minimax-m3",
    "strong",
    (
        Row(
            (minimax3.TOKEN + "<invoke name=",),
            minimax3.invoke,
            (minimax3.TOKEN + "</tool_call>", minimax3.TOKEN + "</invoke>"),
            (minimax3.TOKEN + "<tool_call>",),
        ),
    ),
)
