"""Broken exchanges. A `Fault` never describes a model's mistake: odd model output is a finding (model/findings.py).

One row a kind: HTTP status towards the client (before the first byte), error type and code, whether another backend
may be tried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class _Kind:
    code: str
    status: int
    type: str
    transient: bool = False


# What our own messages quote of a request (a model, a tool, a pointer) may be shown as HTML, or to a model.
_UNSAFE = re.compile("[<>\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class FaultKind(Enum):
    """Why an exchange could not be carried out."""

    # the upstream
    STREAM_CUT = _Kind("stream_cut", 502, "upstream_error", transient=True)
    BAD_EVENT = _Kind("bad_event", 502, "upstream_error", transient=True)
    BAD_BODY = _Kind("bad_body", 502, "upstream_error", transient=True)
    EMPTY_REPLY = _Kind("empty_reply", 502, "upstream_error", transient=True)
    BAD_ENCODING = _Kind("bad_encoding", 502, "upstream_error", transient=True)
    UNREACHABLE = _Kind("unreachable", 502, "upstream_error", transient=True)
    TIMEOUT = _Kind("timeout", 504, "upstream_error", transient=True)
    UPSTREAM_ERROR = _Kind("upstream_error", 502, "upstream_error")
    # our own
    BLOCKED = _Kind("tool_call_blocked", 502, "tool_call_blocked")
    LIMIT = _Kind("limit_exceeded", 502, "limit_exceeded")
    SHUTDOWN = _Kind("proxy_shutdown", 503, "upstream_error")
    # the request
    INVALID_REQUEST = _Kind("invalid_request", 400, "invalid_request_error")
    INVALID_JSON = _Kind("invalid_json", 400, "invalid_request_error")
    INVALID_TOOL_SCHEMA = _Kind("invalid_tool_schema", 400, "invalid_request_error")
    UNSUPPORTED_FIELD = _Kind("unsupported_field", 400, "invalid_request_error")
    INVALID_API_KEY = _Kind("invalid_api_key", 401, "invalid_request_error")
    FOREIGN_PAGE = _Kind("foreign_page", 403, "invalid_request_error")
    FOREIGN_HOST = _Kind("foreign_host", 403, "invalid_request_error")
    MODEL_NOT_FOUND = _Kind("model_not_found", 404, "invalid_request_error")
    NOT_FOUND = _Kind("not_found", 404, "invalid_request_error")


@dataclass(slots=True, eq=False)
class Fault(Exception):
    """`detail` is one clear line for the client: what, where, what to do. It never holds a secret.

    `code` and `status` override the kind's own where the upstream named one. `error` is the upstream's own error
    object and `document` the body that held it, passed on as they came to a client of the same dialect; `param` the
    request field meant; `headers` go with an error status (Retry-After). A limit's `code` is the configuration key
    that sets it.
    """

    kind: FaultKind
    detail: str
    code: str | None = None
    status: int | None = None
    param: str | None = None
    error: dict[str, Any] | None = field(default=None, repr=False)  # an upstream may quote what it was sent
    document: dict[str, Any] | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=())
    transient: bool | None = None

    def __post_init__(self) -> None:
        if self.kind.value.type != "upstream_error":  # an upstream's words are made plain where they are read
            self.detail = _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", self.detail)

    def __str__(self) -> str:
        return f"{self.public_code}: {self.detail}"

    @property
    def public_code(self) -> str:
        return self.code or self.kind.value.code

    @property
    def public_status(self) -> int:
        return self.status or self.kind.value.status

    @property
    def is_transient(self) -> bool:
        return self.kind.value.transient if self.transient is None else self.transient


def limit_fault(key: str, value: int | float, what: str, status: int = 502) -> Fault:
    """A limit was reached: the message names the limit, its value and the key that sets it."""
    told = f"{value:g}" if isinstance(value, float) else str(value)
    return Fault(FaultKind.LIMIT, f"{what} exceeds the limit of {told} ({key})", code=key, status=status)
