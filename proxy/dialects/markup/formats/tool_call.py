"""`<tool_call>` with four bodies: JSON (Hermes, Granite 3.1), tags (Qwen3-Coder, Seed-OSS), pairs (GLM, HY-V3)."""

from __future__ import annotations

from proxy.dialects.markup.base import Format, Row
from proxy.dialects.markup.bodies.json_calls import json_calls
from proxy.dialects.markup.bodies.tagged import PAIR_TAG, Tags, bare_head, bare_tag, pairs_head, tagged

_CLOSER = "</tool_call>"

# Hermes 2 to 4, Qwen2.5, Qwen3, ERNIE 4.5; up to one of six calls has no closer (ai-sdk-tool-call-middleware#295).
HERMES = Format("hermes", "medium", (Row(("<tool_call>",), json_calls(_CLOSER), (_CLOSER,)),))

# The wrapper is dropped in about one of five calls, its closer left (ollama#17742). Exactly one line break on each side
# of a value is markup (vllm#48753). The body may be JSON (Llama 3.x).
QWEN3_CODER = Format(
    "qwen3-coder",
    "medium",
    (
        Row(
            ("<function=",),
            tagged(
                Tags(
                    bare_head,
                    "<parameter=",
                    bare_tag("[>\\n]"),
                    "</parameter>",
                    "</function>",
                    (_CLOSER, "</seed:tool_call>"),
                    newline=True,
                )
            ),
            (_CLOSER, "</function>", "</parameter>", "</seed:tool_call>"),
            ("<tool_call>", "<seed:tool_call>"),
        ),
    ),
)

# GLM-4.5 to 5, Ling 3, Spark 2.5, Laguna; HY-V3 has a separator behind the name. White space is payload (sglang#20824).
GLM = Format(
    "glm",
    "medium",
    (
        Row(
            ("<tool_call>",),
            tagged(Tags(pairs_head, "<arg_key>", PAIR_TAG, "</arg_value>", _CLOSER, ("</tool_calls>",))),
            (_CLOSER, "</tool_calls>", "</arg_value>"),
            ("<tool_calls>",),
        ),
    ),
)
