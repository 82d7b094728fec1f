"""What the events and items of this dialect are called: one row a kind, for decoder and encoder alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NAME = "openai-responses"

ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
ANNOTATION = "response.output_text.annotation.added"


@dataclass(frozen=True, slots=True)
class TextKind:
    """A kind of text part. `type` is the part's type, `item` that of the item it stands in, `holder` the item's list
    of such parts, `index` the events' field with the place in that list, `field` the part's field with the text;
    `stem` + .delta / .done are the events of the text, `part_stem` + .added / .done those of the part."""

    type: str
    item: str
    holder: str
    index: str
    field: str
    stem: str
    part_stem: str


OUTPUT_TEXT = TextKind(
    "output_text", "message", "content", "content_index", "text", "response.output_text", "response.content_part"
)
REFUSAL = TextKind(
    "refusal", "message", "content", "content_index", "refusal", "response.refusal", "response.content_part"
)
REASONING_TEXT = TextKind(
    "reasoning_text",
    "reasoning",
    "content",
    "content_index",
    "text",
    "response.reasoning_text",
    "response.content_part",
)
SUMMARY_TEXT = TextKind(
    "summary_text",
    "reasoning",
    "summary",
    "summary_index",
    "text",
    "response.reasoning_summary_text",
    "response.reasoning_summary_part",
)
TEXT_KINDS = (OUTPUT_TEXT, REFUSAL, REASONING_TEXT, SUMMARY_TEXT)
TEXT_DELTAS = {f"{kind.stem}.delta": kind for kind in TEXT_KINDS}
TEXT_DONES = {f"{kind.stem}.done": kind for kind in TEXT_KINDS}
TEXT_BY_TYPE = {kind.type: kind for kind in TEXT_KINDS}


@dataclass(frozen=True, slots=True)
class CallKind:
    """A kind of call that the client runs and this proxy judges. `field` holds its text; `stem` as for texts."""

    item: str
    kind: Literal["function", "custom"]
    field: str
    stem: str


FUNCTION_CALL = CallKind("function_call", "function", "arguments", "response.function_call_arguments")
CUSTOM_CALL = CallKind("custom_tool_call", "custom", "input", "response.custom_tool_call_input")
CALL_KINDS = (FUNCTION_CALL, CUSTOM_CALL)
CALL_DELTAS = {f"{kind.stem}.delta": kind for kind in CALL_KINDS}
CALL_DONES = {f"{kind.stem}.done": kind for kind in CALL_KINDS}
CALL_BY_ITEM = {kind.item: kind for kind in CALL_KINDS}

# Events of parts: what they hold comes again in the item's own events, and the encoder writes them anew.
PART_EVENTS = frozenset(f"{kind.part_stem}.{what}" for kind in TEXT_KINDS for what in ("added", "done"))

# Events of items that the backend runs itself. openai-node 6 throws on an event type that is not among its own, so
# that others are not passed on; what they led to comes with the item's done event.
HOSTED_EVENTS = frozenset(
    f"response.{name}"
    for name in (
        "code_interpreter_call.completed",
        "code_interpreter_call.in_progress",
        "code_interpreter_call.interpreting",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "file_search_call.completed",
        "file_search_call.in_progress",
        "file_search_call.searching",
        "image_generation_call.completed",
        "image_generation_call.generating",
        "image_generation_call.in_progress",
        "image_generation_call.partial_image",
        "mcp_call.completed",
        "mcp_call.failed",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_list_tools.completed",
        "mcp_list_tools.failed",
        "mcp_list_tools.in_progress",
        "web_search_call.completed",
        "web_search_call.in_progress",
        "web_search_call.searching",
    )
)
