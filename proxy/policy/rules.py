"""Verdict -> deliver, withhold or fail.

| | valid | unfinished | otherwise faulty |
|---|---|---|---|
| annotate | delivered | withheld | delivered where the dialect can carry it |
| block, error | delivered if no call of the reply is faulty | withheld | the reply fails |
| block, drop | delivered | withheld | withheld; with no valid call left the reply fails |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

from proxy.faults import Fault, FaultKind
from proxy.model.calls import JudgedCall, Verdict

Mode = Literal["block", "annotate"]
BlockAs = Literal["error", "drop"]


def faulty(call: JudgedCall) -> bool:
    return call.verdict not in (Verdict.VALID, Verdict.INCOMPLETE)


def decide(
    calls: Sequence[JudgedCall],
    mode: Mode,
    block_as: BlockAs,
    can_carry: Callable[[JudgedCall], bool],
    cut_choices: Collection[int],
) -> Fault | None:
    """Number the delivered calls of a finished reply (`sent_index`, per choice), or say why the reply fails.

    An unfinished call does not count against its reply where the finish reason itself says that the choice was cut
    (`cut_choices`: length, content_filter).
    """
    bad = [c for c in calls if faulty(c) or (c.verdict is Verdict.INCOMPLETE and c.choice not in cut_choices)]
    if mode == "block" and bad:
        left = [call for call in calls if call.verdict is Verdict.VALID]
        if block_as == "error" or not left:
            return blocked(bad)
    sent: dict[int, int] = {}
    for call in calls:
        if call.verdict is Verdict.VALID or (mode == "annotate" and faulty(call) and can_carry(call)):
            call.sent_index = sent.get(call.choice, 0)
            sent[call.choice] = call.sent_index + 1
    return None


def blocked(bad: Sequence[JudgedCall]) -> Fault:
    """The error of a reply that a faulty call blocks. Its code is the first faulty verdict."""
    first = bad[0]
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    where = f" at {first.error.path}" if first.error and first.error.path else ""
    why = f": {first.error.message}{where}" if first.error else ""
    return Fault(
        FaultKind.BLOCKED,
        f"a tool call of the reply was blocked, {first.verdict.value}{why}{more}",
        code=first.verdict.value,
        headers=(("x-should-retry", "false"),),
    )
