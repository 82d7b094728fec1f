"""What the core has to know of a client's request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ChoiceMode = Literal["auto", "none", "required", "forced"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared tool. `schema` is the JSON text of its parameters, None where any object is welcome.

    A `custom` tool takes free text by contract and is never judged as JSON.
    """

    name: str
    schema: bytes | None
    kind: Literal["function", "custom"] = "function"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`names` is the forced tool (mode forced, one name) or the allowed subset (any other mode); None: all."""

    mode: ChoiceMode = "auto"
    names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its client meant it. `body` is the parsed document, in the client's own dialect."""

    dialect: str
    model: str
    stream: bool
    body: dict[str, Any]
    include_usage: bool = False
    choices: int = 1
    tools: Mapping[str, Tool] = field(default_factory=dict)
    tool_choice: ToolChoice = ToolChoice()
    parallel: bool = True
    used_ids: frozenset[str] = frozenset()
