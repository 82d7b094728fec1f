"""Tool calls that models write as text: their markup, and the scanner that finds it. No dialect of its own.

`FORMATS` is ordered: of several formats that begin alike, the first whose grammar fits wins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from proxy.dialects.markup.base import Format, LeakedCall, Refusal, Rule
from proxy.dialects.markup.formats import code, invoke, opt_in, tokens, tool_call
from proxy.dialects.markup.scanner import Channel, Scanned, Scanner

__all__ = (
    "AUTO",
    "BY_NAME",
    "FORMATS",
    "Channel",
    "Format",
    "LeakedCall",
    "Refusal",
    "Rule",
    "Scanned",
    "Scanner",
    "chosen",
)

FORMATS: tuple[Format, ...] = (
    tool_call.HERMES,
    tool_call.QWEN3_CODER,
    tool_call.GLM,
    invoke.DSML,
    tokens.KIMI_K2,
    invoke.KIMI_K3,
    invoke.INVOKE,
    tokens.BARE_JSON,
    tokens.MISTRAL,
    tokens.DEEPSEEK,
    tokens.GEMMA,
    tokens.HARMONY,
    tokens.HARMONY_STRIPPED,
    invoke.MINIMAX_M3,
    invoke.STEP3,
    *tokens.JSON_ROWS,
    code.LLAMA4,
    code.LFM2,
    code.OLMO3,
    code.BARE_CODE,
    opt_in.FUNCTIONARY,
    opt_in.REACT,
    opt_in.IMITATION,
)

BY_NAME: Mapping[str, Format] = {one.name: one for one in FORMATS}
AUTO: tuple[str, ...] = tuple(one.name for one in FORMATS if one.tier != "opt-in")


def chosen(names: Collection[str], *, weak: bool = True) -> tuple[Format, ...]:
    """The formats of these names, in order; without the weak ones where the content is asked to be JSON anyway."""
    return tuple(one for one in FORMATS if one.name in names and (weak or one.tier != "weak"))
