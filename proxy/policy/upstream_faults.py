"""An upstream's own error, in a status or inside its reply -> the fault that the client gets.

Of the same dialect and in JSON: as it came. Otherwise its message is kept, at most 500 characters and no markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from proxy.faults import Fault, FaultKind
from proxy.model.deltas import Failed
from proxy.wire.jsondoc import NotJson, decode, documents

_MESSAGE_LIMIT = 500  # characters of an upstream's message towards the client
_CODE_LIMIT = 80  # what is longer is no code
_WORD_AT_THE_END = re.compile(r"[!-~]+\Z")  # whatever a header may carry: credentials are sent in one

# Words of an error inside a reply that stand for a status which SDKs retry.
_STATUSES = {
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "RESOURCE_EXHAUSTED": 429,
    "overloaded_error": 529,
    "UNAVAILABLE": 503,
}

FailureOf = Callable[[Any], Failed | None]


def in_band(failed: Failed, *, same_dialect: bool) -> Fault:
    """An error inside a reply that began well. Its code is the HTTP status where it is one (OpenRouter)."""
    code = failed.code
    status = _STATUSES.get(code or "")
    if code is not None and code.isdigit() and 400 <= int(code) < 600 and code not in ("401", "403"):
        status = int(code)
    return Fault(
        FaultKind.UPSTREAM_ERROR,
        plain(failed.message) or "the upstream reported an error",
        code=code if code and len(code) <= _CODE_LIMIT else None,
        status=status,
        error=failed.error if same_dialect else None,
        transient=True,
    )


def finish_error(word: str) -> Fault:
    """A finish reason that means failure."""
    return Fault(
        FaultKind.UPSTREAM_ERROR,
        f"the upstream ended the reply with finish_reason {word[:_CODE_LIMIT]!r}",
        code=word[:_CODE_LIMIT],
        transient=True,
    )


def leftover(data: bytes, failure_of: FailureOf, *, same_dialect: bool) -> Fault:
    """Bytes at the end that are no event: one JSON error object is that error, anything else a cut."""
    try:
        found, _ = documents(data)
    except NotJson:
        found = []
    failed = failure_of(found[0]) if len(found) == 1 else None
    if failed is not None:
        return in_band(failed, same_dialect=same_dialect)
    return Fault(FaultKind.STREAM_CUT, "the upstream's reply ended inside an event")


def page(data: bytes) -> Fault:
    """An HTML page where a reply should be."""
    text = decode(data)[0].rstrip()
    if not text.endswith(">"):  # it broke off
        text = _WORD_AT_THE_END.sub("", text)
    return Fault(FaultKind.BAD_BODY, f"the upstream answered with an HTML page: {plain(text)}")


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, failure_of: FailureOf, *, own_key: bool, same_dialect: bool
) -> Fault:
    """An error status with its (bounded) body. `own_key`: the credential was the proxy's own, and its 401 or 403 is
    not the client's fault; the message, which may quote the key, is not passed on."""
    if status in (401, 403) and own_key:
        return own_key_refused(status)
    if not 400 <= status < 600:
        what = (
            f"the upstream answered with status {status}; redirects are not followed, so see to the backend's base_url"
        )
        return Fault(FaultKind.UPSTREAM_ERROR, what, code=str(status), transient=False)
    document: Any = None
    with suppress(NotJson):
        document = documents(body)[0][0]
    failed = failure_of(document)
    message = plain(failed.message if failed else decode(body)[0])
    fault = Fault(
        FaultKind.UPSTREAM_ERROR,
        message or f"the upstream answered with status {status}",
        code=failed.code if failed and failed.code and len(failed.code) <= _CODE_LIMIT else str(status),
        status=status,
        headers=_retry_after(headers),
        transient=status in (408, 429) or status >= 500,
    )
    if failed and same_dialect and isinstance(document, dict) and isinstance(document.get("error"), dict):
        fault.error, fault.document = document["error"], document
    return fault


def own_key_refused(status: int) -> Fault:
    """401 or 403 to the proxy's own credential."""
    return Fault(
        FaultKind.UPSTREAM_ERROR,
        f"the backend refused the credential that this proxy is configured with (status {status})",
        code=str(status),
        transient=False,
    )


def plain(text: str) -> str:
    """An upstream's message for a client: no markup, no control characters, one line, at most 500 characters."""
    out: list[str] = []
    inside = False
    for character in _whole_words(text, 8 * _MESSAGE_LIMIT):
        if character == "<":
            inside = True
        elif character == ">" and inside:
            inside = False
            out.append(" ")
        elif not inside:
            out.append(character if character.isprintable() else " ")
    return _whole_words(" ".join("".join(out).split()), _MESSAGE_LIMIT)


def _whole_words(text: str, limit: int) -> str:
    """At most so many characters, and no half of a word at the end: the half of a credential would pass every mask."""
    return text if len(text) <= limit else _WORD_AT_THE_END.sub("", text[:limit])


def _retry_after(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    value = headers.get("retry-after", "")
    return (("retry-after", value),) if value and len(value) <= 64 and value.isascii() and value.isprintable() else ()
