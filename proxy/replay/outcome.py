"""What the client gets of an answer of ours: text, calls, verdicts, the error. Reads only our own canonical forms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class CallOutcome:
    """One call of the reply's report. `arguments` are those delivered, else those reported (cut to `report_bytes`);
    `format` is the markup of a call that came as text."""

    choice: int
    index: int
    sent_index: int | None
    id: str
    name: str
    verdict: str
    quirks: list[str]
    repairs: list[str]
    errors: list[dict[str, str]]
    arguments: str
    format: str = ""


@dataclass(slots=True)
class Outcome:
    """`finish` is by choice; `error` the error object that ended the reply, None where it ended well."""

    status: int
    text: str = ""
    finish: dict[int, str] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    calls: list[CallOutcome] = field(default_factory=list)
    quirks: list[str] = field(default_factory=list)

    @property
    def faulty(self) -> bool:
        """Whether the reply failed or one of its calls is not valid."""
        return self.error is not None or any(call.verdict != "valid" for call in self.calls)


def payloads(body: bytes) -> Iterator[str]:
    """The data of each event of a canonical stream: one line each."""
    for line in body.decode("utf-8").split("\n"):
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


def read_outcome(status: int, headers: Mapping[str, str], body: bytes) -> Outcome:
    """Reads a whole answer that was made with `annotations = "always"`."""
    outcome = Outcome(status)
    delivered: dict[tuple[int, int], str] = {}
    reports: list[dict[str, Any]] = []
    if "event-stream" in headers.get("content-type", ""):
        documents = [json.loads(data) for data in payloads(body) if data != "[DONE]"]
    else:
        documents = [json.loads(body)]
    for document in documents:
        if "error" in document:
            outcome.error = document["error"]
        if "wholecall" in document:
            reports.append(document["wholecall"])
        for choice in document.get("choices", ()):
            _read_choice(choice, outcome, delivered)
    for report in reports:
        outcome.quirks += [quirk for quirk in report["quirks"] if quirk not in outcome.quirks]
        for entry in report["calls"]:
            key = (entry["choice"], entry["sent_index"])
            arguments = delivered.get(key, entry.get("arguments", ""))
            outcome.calls.append(CallOutcome(**{**entry, "arguments": arguments}))
    return outcome


def _read_choice(choice: dict[str, Any], outcome: Outcome, delivered: dict[tuple[int, int], str]) -> None:
    message = choice.get("delta") or choice.get("message") or {}
    outcome.text += message.get("content") or ""
    for position, entry in enumerate(message.get("tool_calls") or ()):
        key = (choice["index"], entry.get("index", position))
        delivered[key] = delivered.get(key, "") + entry["function"].get("arguments", "")
    if choice.get("finish_reason"):
        outcome.finish[choice["index"]] = choice["finish_reason"]
