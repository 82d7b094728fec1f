"""What a code means, in plain words: all that reports, metrics and error bodies name."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from proxy.config import Client, Limits
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
    FaultKind.LIMIT: "something is larger, or took longer, than a limit allows; the code is the limit's key",
    FaultKind.SHUTDOWN: "the proxy was stopped, and this reply did not end while it waited for running ones",
    FaultKind.INVALID_REQUEST: "the client's request has a field of the wrong form; the message names it",
    FaultKind.INVALID_JSON: "the client's request is no JSON",
    FaultKind.INVALID_TOOL_SCHEMA: "a tool's parameters in the client's request are no usable JSON Schema; the message "
    "names the tool and the place",
    FaultKind.UNSUPPORTED_FIELD: "a field of the client's request cannot be carried to this backend",
    FaultKind.INVALID_API_KEY: "the client's key is missing or not one of the configured ones",
    FaultKind.FOREIGN_PAGE: "a browser sent the request for a page of another site: the inspector takes no such "
    "request, and the API none where there are no [[clients]]",
    FaultKind.FOREIGN_HOST: "listen.host is an address of this machine alone, and the request's Host is a public name, "
    "as where a page reaches for it (DNS rebinding): ask for localhost or the address, or add the name to listen.hosts",
    FaultKind.MODEL_NOT_FOUND: "no route of the configuration serves the model that the client asked for",
    FaultKind.NOT_FOUND: "the proxy has no such path",
}

# Where an error may have another status than its kind's own.
OTHER_STATUSES: dict[FaultKind, str] = {
    FaultKind.UPSTREAM_ERROR: "HTTP 502 or the status of the upstream's own error",
    FaultKind.LIMIT: "HTTP 502 (a reply), 413, 431 or 408 (a request), 429 or 503 (too many of them)",
    FaultKind.INVALID_REQUEST: "HTTP 400, 405 (wrong method) or 415 (compressed)",
}

# Codes that are no kind's and no limit's: meaning, and where it is seen.
OTHER_ERRORS: dict[str, tuple[str, str]] = {
    "internal": ("the proxy failed by a mistake of its own; its log has the trace", "HTTP 500, type upstream_error"),
    "unexpected_tool_call": (
        "the upstream says that the model called a tool, and the call is not in its reply",
        f"HTTP 502, type {FaultKind.UPSTREAM_ERROR.value.type}",
    ),
}

_TIMEOUT = "HTTP 504, code timeout; the message has the key"

# What each limit bounds, and what follows where it is reached.
LIMIT_MEANING: dict[str, tuple[str, str]] = {
    "max_request_bytes": ("the body of a client's request", "HTTP 413"),
    "max_request_values": (
        "the JSON values of a client's request: commas and opening brackets outside strings",
        "HTTP 413",
    ),
    "max_head_bytes": ("a client's request line and header fields, and likewise what follows its body", "HTTP 431"),
    "max_headers": ("the number of header fields of a client's request", "HTTP 431"),
    "max_schema_bytes": ("the JSON Schema of one tool that a client's request declares", "HTTP 413"),
    "max_schemas_bytes": ("the JSON Schemas of all tools of a client's request together", "HTTP 413"),
    "max_tools": ("the number of tools that a client's request declares", "HTTP 413"),
    "max_event_bytes": ("one event, or line, of the backend's stream", "HTTP 502"),
    "max_arguments_bytes": ("the arguments of one call", "HTTP 502"),
    "max_held_bytes": (
        "what is held of one reply until its end: its calls, or a reply that is one document",
        "HTTP 502",
    ),
    "max_calls": ("the number of calls in one reply", "HTTP 502"),
    "max_events": ("the number of events in one reply", "HTTP 502"),
    "max_reply_bytes": ("the backend's whole reply, decompressed", "HTTP 502"),
    "max_streams": ("how many exchanges run at once: all, or those with one backend (backends.limits)", "HTTP 503"),
    "clients.max_streams": ("how many exchanges of one client run at once", "HTTP 429"),
    "clients.requests_per_minute": ("how many requests one client sends in a minute", "HTTP 429"),
    "head_s": ("how long a client may take to send its request's head", "HTTP 408"),
    "body_s": ("how long a client may take to send its request's body", "HTTP 408"),
    "connect_s": ("how long it may take to connect to a backend", _TIMEOUT),
    "first_byte_s": ("how long a backend may take until its first event", _TIMEOUT),
    "idle_s": ("how long a backend may be silent between two events; comments do not count", _TIMEOUT),
    "total_s": ("how long a whole exchange may take", _TIMEOUT),
    "send_s": ("how long a client may take to read what was sent", "the connection is dropped; a code of the log only"),
}

# Limits that no key of the configuration sets.
FIXED_LIMITS = {"max_request_values": 1_000_000, "max_schemas_bytes": 1_048_576, "max_tools": 512}


KINDS = {
    "verdict": "Verdicts: one for each call",
    "quirk": "Quirks: what was mended, or is odd",
    "repair": "Repairs of arguments that are almost JSON",
    "error": "Errors",
    "limit": "Limits: the code of an error where one is reached, or for times the key in its message",
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
            Meaning(
                "error",
                kind.value.code,
                text,
                f"{OTHER_STATUSES.get(kind, f'HTTP {kind.value.status}')}, type {kind.value.type}",
            )
            for kind, text in ERROR_MEANING.items()
        ),
        *(Meaning("error", code, text, more) for code, (text, more) in OTHER_ERRORS.items()),
        *(Meaning("limit", key, text, f"{more}; {_set_by(key)}") for key, (text, more) in LIMIT_MEANING.items()),
    ]


def _set_by(key: str) -> str:
    if key in FIXED_LIMITS:
        return f"fixed: {FIXED_LIMITS[key]}"
    table, _, name = key.rpartition(".")
    field = (Client if table else Limits).model_fields[name]
    return f"set by {table or 'limits'}.{name}, default {field.default}"


def markdown() -> str:
    """All codes as a page: config/codes.md is this."""
    lines = [
        "# Codes of reports, metrics and errors",
        "",
        "`wholecall explain CODE` says the same of one. Made by `wholecall explain --markdown > config/codes.md`.",
    ]
    for kind, title in KINDS.items():
        lines += ["", f"## {title}", "", "| code | meaning | |", "|---|---|---|"]
        lines += [
            f"| `{meaning.code}` | {_escaped(meaning.text)} | {_escaped(meaning.more)} |"
            for meaning in meanings()
            if meaning.kind == kind
        ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<|])", r"\\\1", text)


def find(code: str) -> list[Meaning]:
    """What `code` means; empty where nothing has that name. Letter case, dashes and a key's table don't matter."""
    plain = _plain(code)
    if plain.isascii() and plain.isdigit() and 400 <= int(plain) <= 599:
        return [_status(plain)]
    return [meaning for meaning in meanings() if plain in (meaning.code, meaning.code.rpartition(".")[2])]


def _status(code: str) -> Meaning:
    if code in ("401", "403"):
        text = "the upstream refused a credential: the proxy's own (HTTP 502), or the client's where it is forwarded"
    else:
        text = "the upstream answered with this status, and its error named no code"
    return Meaning("error", code, text, f"type {FaultKind.UPSTREAM_ERROR.value.type}")


def near(code: str) -> list[str]:
    """Codes that `code` may have meant, the nearest first."""
    return difflib.get_close_matches(_plain(code), sorted({meaning.code for meaning in meanings()}), n=3)


def _plain(code: str) -> str:
    return code.strip().lower().replace("-", "_").removeprefix("limits.")
