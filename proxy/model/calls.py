"""Tool calls: what is asked of the checks about one, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from proxy.model.findings import Quirk


class Verdict(StrEnum):
    """The judgement on one finished call; exactly one a call."""

    VALID = "valid"
    INCOMPLETE = "incomplete"
    NOT_ALLOWED = "not_allowed"
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_JSON = "invalid_json"
    SCHEMA_VIOLATION = "schema_violation"


VERDICT_MEANING: dict[Verdict, str] = {
    Verdict.VALID: "whole, strict JSON, from a declared and allowed tool, accepted by its schema",
    Verdict.INCOMPLETE: "the end of the call was never confirmed: the stream was cut, or the token limit or a "
    "content filter stopped the reply inside the call",
    Verdict.NOT_ALLOWED: "tool_choice or parallel_tool_calls of the request excludes this call",
    Verdict.UNKNOWN_TOOL: "the name is that of no tool declared in the request",
    Verdict.INVALID_JSON: "the arguments are not strict JSON, and no lossless rule makes them so",
    Verdict.SCHEMA_VIOLATION: "the arguments are valid JSON that the declared schema refuses",
}


@dataclass(frozen=True, slots=True)
class CallError:
    """Why a call is faulty. All texts come from fixed templates: no value, no undeclared key, no upstream prose.

    `path` is a JSON pointer into the arguments ("" is the top), `rule` the JSON Schema keyword or a rule of ours
    (`duplicate_key`, `too_costly`, `not_json` ...), `message` at most 200 characters.
    """

    path: str
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class CallCheck:
    """One call whose arguments are to be settled and judged: a value that crosses a process border unchanged.

    `fragments` are the argument texts in the order they came. `objects` says for each fragment whether the upstream
    sent a JSON value there in place of a string (then the text is that value's own source characters).
    `schema` is the JSON text of the tool's parameters; None: the tool takes any object.
    """

    key: int
    fragments: tuple[str, ...]
    objects: tuple[bool, ...]
    schema: bytes | None
    repair: bool = False
    formats: bool = False
    skip_uncompilable: bool = False


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The answer to a `CallCheck`: `verdict` is VALID, INVALID_JSON or SCHEMA_VIOLATION; `text` is what may be sent
    (the characters as they came, or with the named repairs; for INVALID_JSON the plain concatenation)."""

    key: int
    verdict: Verdict
    text: str
    quirks: tuple[Quirk, ...] = ()
    repairs: tuple[str, ...] = ()
    error: CallError | None = None


@dataclass(slots=True)
class JudgedCall:
    """A call of the finished reply: who it is towards the client, its verdict, and whether it was sent.

    `index` counts the choice's calls, withheld ones too; `sent_index` is the index on the wire, None if withheld.
    `key` is its place among the reply's blocks, where the upstream's dialect numbers them; `format` the markup that it
    was found in, if it came as text; `begun`: it was sent while it was written.
    `text` is the arguments as they may be delivered; for a faulty call the characters as they came.
    """

    choice: int
    index: int
    call_id: str
    name: str
    kind: Literal["function", "custom"]
    verdict: Verdict
    text: str
    quirks: list[Quirk] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    error: CallError | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    function_extra: dict[str, Any] = field(default_factory=dict)
    sent_index: int | None = None
    key: int | None = None
    format: str = ""
    begun: bool = False
