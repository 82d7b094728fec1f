"""What a code means, in plain words: all that reports, metrics and error bodies name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from proxy.config import Limits
from proxy.faults import FaultKind
from proxy.model.calls import VERDICT_MEANING
from proxy.model.findings import QUIRKS

ERROR_MEANING: dict[FaultKind, str] = {
    FaultKind.STREAM_CUT: "the upstream's reply stopped before anything proved its end (no finish_reason, no [DONE]); "
    "its calls are incomplete, however whole they look",
    FaultKind.BAD_EVENT: "an event in the middle of the upstream's stream is broken; it may have held argument text, "
    "so the reply cannot be trusted",
    FaultKind.BAD_BODY: "the upstream's body is no reply: HTML, or JSON that is broken or of another kind",
    FaultKind.EMPTY_REPLY: "the upstream said 200 and sent nothing: no body, only comments, only [DONE], or no choice",
    FaultKind.BAD_ENCODING: "the upstream's body is compressed in a way that cannot be undone",
    FaultKind.UNREACHABLE: "no connection to the upstream, or it closed the connection before it answered",
    FaultKind.TIMEOUT: "the upstream took longer than the configuration allows",
    FaultKind.UPSTREAM_ERROR: "the upstream answered with an error of its own; its message, and its code where it "
    "named one, are passed on",
    FaultKind.BLOCKED: "a faulty call blocks the reply (policy.mode = block): none of its calls is delivered; the code "
    "is the verdict of the first faulty one",
    FaultKind.LIMIT: "something is larger than a limit of the configuration; the code is the limit's key",
    FaultKind.SHUTDOWN: "the proxy was stopped, and this reply did not end while it waited for running ones",
    FaultKind.INVALID_REQUEST: "the client's request has a field of the wrong form; the message names it",
    FaultKind.INVALID_JSON: "the client's request is no JSON",
    FaultKind.INVALID_TOOL_SCHEMA: "a tool's parameters in the client's request are no usable JSON Schema; the message "
    "names the tool and the place",
    FaultKind.UNSUPPORTED_FIELD: "a field of the client's request cannot be carried to this backend",
    FaultKind.INVALID_API_KEY: "the client's key is missing or not one of the configured ones",
    FaultKind.MODEL_NOT_FOUND: "no route of the configuration serves the model that the client asked for",
    FaultKind.NOT_FOUND: "the proxy has no such path",
}


KINDS = {
    "verdict": "Verdicts: one for each call",
    "quirk": "Quirks: what was mended, or is odd",
    "repair": "Repairs of arguments that are almost JSON",
    "error": "Errors",
    "limit": "Limits: the code of an error where one is reached",
}

REPAIR_MEANING: dict[str, str] = {
    "code_fence": "the Markdown code fence around the arguments was removed",
    "json_word": "the word json before the arguments was removed",
    "single_quotes": "strings in single quotes, without quotes inside, got double ones",
    "unquoted_keys": "keys without quotes got them",
    "python_literals": "True, False and None became true, false and null",
    "control_characters": "raw line feeds, tabs and the like inside strings were escaped",
    "trailing_commas": "commas before a closing bracket were removed",
    "surplus_closer": "one closing bracket too many behind the whole object was removed",
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """`kind` is verdict, quirk, repair, error or limit; `more` says where it is seen, its HTTP status, its default."""

    kind: str
    code: str
    text: str
    more: str = ""


def meanings() -> list[Meaning]:
    """Every code, in the order of the tables. A code may be a verdict and an error (invalid_json)."""
    return [
        *(Meaning("verdict", verdict.value, text) for verdict, text in VERDICT_MEANING.items()),
        *(Meaning("repair", name, text, "policy.repair = safe") for name, text in REPAIR_MEANING.items()),
        *(Meaning("quirk", quirk.value, row.meaning, f"seen: {row.evidence}") for quirk, row in QUIRKS.items()),
        *(
            Meaning("error", kind.value.code, text, f"HTTP {kind.value.status}, type {kind.value.type}")
            for kind, text in ERROR_MEANING.items()
        ),
        *(
            Meaning("limit", key, f"a limit of the configuration, set by limits.{key}", f"default {field.default}")
            for key, field in Limits.model_fields.items()
        ),
    ]


def find(code: str) -> list[Meaning]:
    """What `code` means; empty where nothing has that name. Letter case, dashes and a key's table don't matter."""
    return [meaning for meaning in meanings() if meaning.code == _plain(code)]


def near(code: str) -> list[str]:
    """Codes that `code` may have meant, the nearest first."""
    return difflib.get_close_matches(_plain(code), sorted({meaning.code for meaning in meanings()}), n=3)


def _plain(code: str) -> str:
    return code.strip().lower().replace("-", "_").removeprefix("limits.")
