"""One recorded upstream reply: what is read from a case file, and what the embedded backend plays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

CREATED = 1_700_000_000  # unix seconds, of every reply made here: the same bytes in, the same bytes out


@dataclass(frozen=True, slots=True)
class Recording:
    """`pieces` are the body's bytes, one element per item of the file; a network may cut them anywhere.

    `request` is the OpenAI chat request that the reply answers, without its model. `headers` have lower-case names.
    `end` says how the body ends: cleanly, or by a reset after the last piece. `pace_s` is the pause before each piece.
    """

    id: str
    title: str
    dialect: str
    pieces: tuple[bytes, ...]
    request: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    end: Literal["eof", "reset"] = "eof"
    pace_s: float = 0.0


def is_case(document: object) -> bool:
    """Whether a JSON document has the form of a case file."""
    return isinstance(document, dict) and isinstance(document.get("upstream"), dict) and "dialect" in document


def read_case(document: Mapping[str, Any]) -> Recording:
    """The reply of a case file. Raises ValueError with one line that names the key at fault."""
    upstream = document.get("upstream")
    if not isinstance(upstream, dict) or not isinstance(upstream.get("body"), list):
        raise ValueError('upstream.body: a list of events, strings or {"$hex": ...} is expected')
    request, headers = document.get("request", {}), upstream.get("headers", {})
    if not isinstance(request, dict):
        raise ValueError("request: an OpenAI chat request without its model is expected")
    if not isinstance(headers, dict):
        raise ValueError("upstream.headers: an object is expected")
    status, end, pace_s = upstream.get("status", 200), upstream.get("end", "eof"), upstream.get("pace_s", 0.0)
    if not isinstance(status, int) or not 100 <= status <= 599:
        raise ValueError("upstream.status: an HTTP status is expected")
    if end not in ("eof", "reset"):
        raise ValueError('upstream.end: "eof" or "reset" is expected')
    if not isinstance(pace_s, int | float) or pace_s < 0:
        raise ValueError("upstream.pace_s: seconds from 0 are expected")
    heads = {str(name).lower(): str(value) for name, value in headers.items()}
    heads.setdefault("content-type", "text/event-stream")
    dialect = str(document.get("dialect", "openai-chat"))
    return Recording(
        id=str(document.get("id", "")),
        title=str(document.get("fault", "")),
        dialect=dialect,
        pieces=tuple(_item_bytes(n, item, dialect, heads["content-type"]) for n, item in enumerate(upstream["body"])),
        request=request,
        status=status,
        headers=heads,
        end=end,
        pace_s=float(pace_s),
    )


def _item_bytes(number: int, item: object, dialect: str, content_type: str) -> bytes:
    """An object is one event in the dialect's framing, a string its characters, {"$hex": ...} its bytes."""
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass")
    if not isinstance(item, dict):
        raise ValueError(f"upstream.body[{number}]: an object or a string is expected")
    if set(item) == {"$hex"}:
        try:
            return bytes.fromhex(item["$hex"])
        except (TypeError, ValueError):
            raise ValueError(f"upstream.body[{number}]: $hex holds no hexadecimal text") from None
    # json, not orjson: a case may hold lone surrogates, and its numbers go out as they stand.
    text = json.dumps(item, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if dialect == "ollama-chat":
        return text + b"\n"
    if "event-stream" not in content_type:
        return text
    if dialect in ("anthropic-messages", "openai-responses") and "type" in item:
        return b"event: %s\ndata: %s\n\n" % (str(item["type"]).encode(), text)
    return b"data: %s\n\n" % text
