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

STANDING = "A call that was rejected before has not been corrected. Call that tool again with corrected arguments."

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
    """Whether the model can put the fault right. An unfinished call was cut by a limit, which asking again would meet
    again; a further call where one is allowed stays one too many."""
    one_too_many = call.error is not None and call.error.rule == "parallel_tool_calls"
    return call.verdict in _REJECTED and not one_too_many


def message(answers: Sequence[tuple[JudgedCall, str]], *, required: bool) -> str:
    """What the model is told besides the answers to its calls; "" where those say it all. `required`: no call has come
    yet, and one has to."""
    if required:
        return REQUIRED
    return "" if any(call.verdict in _REJECTED for call, _ in answers) else STANDING


def answer(call: JudgedCall) -> str:
    """What the model is told of one of its calls, as that call's tool result."""
    if call.verdict is Verdict.VALID:
        return ACCEPTED
    path = (call.error.path if call.error else "") or "the top level"
    rule = call.error.rule if call.error else call.verdict.value
    return _REJECTED[call.verdict].format(path=path, rule=rule)


def merge(before: Sequence[JudgedCall], new: Sequence[JudgedCall]) -> list[JudgedCall]:
    """The calls as they stand after a further turn, numbered anew.

    What was judged valid stays, and so does what a limit had cut. A call of the new turn takes the place of a faulty
    one, of the same name if there is one; a faulty one that none came for stands. A call with an equal name and equal
    arguments as a valid one is dropped: it would run twice.
    """
    kept = [call for call in before if not correctable(call)]
    faulty = [call for call in before if correctable(call)]
    valid = [call for call in kept if call.verdict is Verdict.VALID]
    for call in new:
        first = next((old for old in valid if _same(call, old)), None)
        if first is not None:
            if Quirk.REASK_REPEAT not in first.quirks:
                first.quirks.append(Quirk.REASK_REPEAT)
            continue
        if faulty and call.verdict is not Verdict.INCOMPLETE:
            faulty.remove(next((old for old in faulty if old.name == call.name), faulty[0]))
        kept.append(call)
    merged = [*kept, *faulty]
    for index, call in enumerate(merged):
        call.index = index
    return merged


def _same(a: JudgedCall, b: JudgedCall) -> bool:
    if a.name != b.name:
        return False
    if "custom" in (a.kind, b.kind):
        return a.text == b.text  # free text: no JSON, even where it looks so
    try:
        return a.text == b.text or same_value(parse_strict(a.text), parse_strict(b.text))
    except NotStrict:
        return False
