"""A request's content in the one form that every dialect can be read into and written from: the hub of requests.

Used only where client and upstream speak different dialects; the same dialect on both sides passes the body as it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from proxy.model.requests import ToolChoice

Role = Literal["system", "developer", "user", "assistant"]


@dataclass(slots=True)
class TextPart:
    text: str


@dataclass(slots=True)
class ImagePart:
    """Either `url` (http, https: never fetched by the proxy) or `data` (base64) with its `media_type`. `where` names
    the client's own field, for errors."""

    url: str = ""
    media_type: str = ""
    data: str = ""
    detail: str | None = None
    where: str = field(default="", compare=False)


@dataclass(slots=True)
class ThinkingPart:
    """Reasoning of an earlier assistant turn. Signatures and sealed forms belong to one provider and never cross."""

    text: str


@dataclass(slots=True)
class CallPart:
    """A call of an earlier assistant turn. `arguments` is text as the client sent it, perhaps no JSON object."""

    call_id: str
    name: str
    arguments: str
    kind: Literal["function", "custom"] = "function"
    signature: str | None = None


@dataclass(slots=True)
class ResultPart:
    """The result of a call of an earlier turn; stands in a user turn. `name` is looked up from the call by its id."""

    call_id: str
    content: list[TextPart | ImagePart]
    is_error: bool = False
    name: str = ""


Part = TextPart | ImagePart | ThinkingPart | CallPart | ResultPart


@dataclass(slots=True)
class Turn:
    """Parts in order. System and developer turns hold text only; calls and thinking stand in assistant turns,
    results in user turns (a chat `tool` message is a user turn of one result)."""

    role: Role
    parts: list[Part]


@dataclass(slots=True)
class ToolDeclaration:
    """`schema` is the client's own parameters object, or None. `strict` None: not said."""

    name: str
    description: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    kind: Literal["function", "custom"] = "function"


@dataclass(slots=True)
class Options:
    """Sampling and limits; None: not said. `reasoning_effort` is none, minimal, low, medium, high ...;
    `reasoning_budget` tokens. `output_schema` is a JSON Schema for the answer, {} for any JSON object; `output_strict`
    says whether the model is to be held to it, where a dialect leaves that open."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: list[str] = field(default_factory=list)
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    output_schema: dict[str, Any] | None = None
    output_schema_name: str = "answer"
    output_strict: bool | None = None
    user: str | None = None


@dataclass(slots=True)
class Conversation:
    """`lost` names request fields that the hub does not carry and whose loss is harmless: reported as a quirk.
    A field whose loss is not harmless is refused by the reader or the writer (Fault UNSUPPORTED_FIELD)."""

    turns: list[Turn]
    tools: list[ToolDeclaration]
    tool_choice: ToolChoice
    parallel: bool
    stream: bool
    choices: int
    options: Options
    lost: list[str] = field(default_factory=list)
