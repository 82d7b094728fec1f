"""A file that holds a captured reply, told by its look: raw SSE, NDJSON, one JSON document, or a case file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from proxy.dialects import UPSTREAM_DIALECTS
from proxy.replay.recording import Recording, is_case, read_case

DIALECT = "openai-chat"  # the only dialect that is read from a bare capture; a case file names its own
FORMS = "a captured reply (raw SSE, NDJSON or JSON) or a case file is expected"


def read_file(path: Path) -> bytes:
    """Raises ValueError with one line, without the file's name."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {(error.strerror or type(error).__name__).lower()}") from None


def read_capture(data: bytes, name: str) -> Recording:
    """The reply in `data`. Raises ValueError with one line that says what the file is instead."""
    if data.startswith(b"\x1f\x8b"):
        raise ValueError(f"compressed with gzip; unpack it first: {FORMS}")
    text = data.decode("utf-8-sig", "replace")
    if not text.strip():
        raise ValueError(f"empty: {FORMS}")
    lines = text.splitlines()
    document = _parse(text)
    if is_case(document):
        recording = read_case(document)
        if recording.dialect not in UPSTREAM_DIALECTS:
            raise ValueError(f"a reply in no known dialect; there are {', '.join(UPSTREAM_DIALECTS)}")
        return recording
    if any(line.startswith(("data:", "event:", ":", "error:")) for line in lines):
        payloads = (line.removeprefix("data:") for line in lines if line.startswith("data:"))
        _must_be_chat(_dialect_of(next(filter(None, map(_parse, payloads)), None)))
        return _recording(name, "text/event-stream", data)
    if isinstance(document, dict):
        _must_be_chat(_dialect_of(document))
        if not {"choices", "error"} & document.keys():
            raise ValueError(f"JSON with neither choices nor an error: {FORMS}")
        return _recording(name, "application/json", data)
    first = next(line for line in lines if line.strip())
    if isinstance(_parse(first), dict):
        _must_be_chat(_dialect_of(_parse(first)))
        return _recording(name, "text/event-stream", _as_events(data))
    if first.lstrip().startswith("{") and '"choices"' in text:
        return _recording(name, "application/json", data)  # a plain reply that was cut: the core says so
    raise ValueError(f"neither SSE nor NDJSON nor a JSON object: {FORMS}")


def is_stream(recording: Recording) -> bool:
    return "event-stream" in recording.headers["content-type"]


def _recording(name: str, content_type: str, data: bytes) -> Recording:
    return Recording(name, "", DIALECT, (data,), headers={"content-type": content_type})


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _as_events(lines: bytes) -> bytes:
    """Each line of an NDJSON capture as one event; a last line without its end stays without."""
    events = [b"data: " + line for line in lines.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
    return b"\n\n".join(events) + (b"\n\n" if lines.endswith(b"\n") else b"")


def _dialect_of(document: object) -> str:
    """The dialect that a reply's first document belongs to, by the keys that only it has."""
    if not isinstance(document, dict) or "choices" in document:
        return DIALECT
    kind = str(document.get("type", ""))
    if kind.startswith("response.") or document.get("object") == "response":
        return "openai-responses"
    if kind in ("message_start", "message", "ping", "content_block_start"):
        return "anthropic-messages"
    if "candidates" in document:
        return "gemini"
    if "done" in document and "message" in document:
        return "ollama-chat"
    return DIALECT


def _must_be_chat(dialect: str) -> None:
    if dialect != DIALECT:
        raise ValueError(f"a reply in the {dialect} dialect; of captures only {DIALECT} is read: give a case file")
