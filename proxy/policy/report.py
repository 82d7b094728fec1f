"""The report that goes with a reply: the top-level key `wholecall`. Never inside a delta: keys there come back in
the next request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from proxy.model.calls import JudgedCall, Verdict
from proxy.model.findings import Quirk
from proxy.wire.jsondoc import join_surrogates

Annotations = Literal["always", "problems", "never"]
_NAME_LIMIT = 200  # characters of an upstream's own name or id in a report


def report(
    calls: Sequence[JudgedCall],
    quirks: Sequence[Quirk],
    annotations: Annotations,
    report_bytes: int,
    *,
    asked: int = 0,
) -> dict[str, Any] | None:
    """`{"calls": [...], "quirks": [...]}`, or None where `annotations` does not ask for one.

    `asked`: how often the model was asked again. `arguments` stands only with withheld calls and is cut to
    `report_bytes` (UTF-8, `policy.report_bytes`).
    """
    if annotations == "never":
        return None
    if annotations == "problems" and not quirks and not asked and not any(_problem(call) for call in calls):
        return None
    return {"calls": [_entry(call, report_bytes) for call in calls], "quirks": _ordered(quirks)}


def _problem(call: JudgedCall) -> bool:
    return call.verdict is not Verdict.VALID or bool(call.quirks) or bool(call.repairs)


def _entry(call: JudgedCall, report_bytes: int) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "choice": call.choice,
        "index": call.index,
        "sent_index": call.sent_index,
        "id": join_surrogates(call.call_id[:_NAME_LIMIT]),
        "name": join_surrogates(call.name[:_NAME_LIMIT]),
        "verdict": call.verdict.value,
        "quirks": _ordered(call.quirks),
        "repairs": call.repairs,
        "errors": [],
    }
    if call.format:
        entry["format"] = call.format
    if call.error:
        entry["errors"].append({"path": call.error.path, "rule": call.error.rule, "message": call.error.message})
    if call.sent_index is None:
        text = join_surrogates(call.text[: report_bytes + 1])
        entry["arguments"] = text.encode()[:report_bytes].decode("utf-8", "ignore")
    return entry


def _ordered(quirks: Sequence[Quirk]) -> list[str]:
    """In the order of the table: when each was noticed depends on how the bytes were cut."""
    return [quirk.value for quirk in Quirk if quirk in quirks]
