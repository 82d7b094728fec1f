"""Asking the upstream again for a faulty call: what it is told, and what becomes of both turns' calls.

The wording is fixed. Of a call's faults it names the rule and the JSON pointer, whose parts are declared property
names or `*`: nothing that a model wrote comes back to it as if it were an instruction.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.checks.jsontext import NotStrict, parse_strict, same_value
from proxy.model.calls import JudgedCall, Verdict
from proxy.model.findings import Quirk

ACCEPTED = "Accepted: this call is being carried out. Do not repeat it."
REQUIRED = "The previous answer called no tool, but a tool call is required. Answer with a call of a declared tool."

_REJECTED = {
    Verdict.INVALID_JSON: "Rejected: the arguments are not valid JSON ({rule}). Call the tool again with the arguments "
    "as one JSON object.",
    Verdict.SCHEMA_VIOLATION: "Rejected: the arguments break the tool's schema at {path} ({rule}). Call the tool again "
    "with corrected arguments.",
    Verdict.UNKNOWN_TOOL: "Rejected: there is no tool of this name. Call one of the declared tools.",
    Verdict.NOT_ALLOWED: "Rejected: this call is not allowed here. Call only the tools that are allowed, as often as "
    "is allowed.",
}


def correctable(call: JudgedCall) -> bool:
    """Whether the model can put the fault right. An unfinished call was cut by a limit: asking again meets it again."""
    return call.verdict in _REJECTED


def answer(call: JudgedCall) -> str:
    """What the model is told of one of its calls, as that call's tool result."""
    if call.verdict is Verdict.VALID:
        return ACCEPTED
    path = (call.error.path if call.error else "") or "the top level"
    rule = call.error.rule if call.error else call.verdict.value
    return _REJECTED[call.verdict].format(path=path, rule=rule)


def merge(kept: Sequence[JudgedCall], new: Sequence[JudgedCall]) -> list[JudgedCall]:
    """The calls that were judged valid before and those of the new turn, numbered anew.

    A call of the new turn with an equal name and equal arguments is dropped: it would run twice.
    """
    fresh = [call for call in new if not any(_same(call, old) for old in kept)]
    if len(fresh) < len(new) and Quirk.REASK_REPEAT not in kept[0].quirks:
        kept[0].quirks.append(Quirk.REASK_REPEAT)
    merged = [*kept, *fresh]
    for index, call in enumerate(merged):
        call.index = index
    return merged


def _same(a: JudgedCall, b: JudgedCall) -> bool:
    if a.name != b.name:
        return False
    try:
        return a.text == b.text or same_value(parse_strict(a.text), parse_strict(b.text))
    except NotStrict:
        return False
