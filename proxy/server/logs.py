"""Logs: JSON lines on standard error. One record an exchange, plus what happens to the process itself.

Never in a log: prompts, arguments, header values, query strings, credentials. Text that comes from outside stands in a
JSON string (so a newline in it makes no second line) and is cut to 200 characters.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from uuid import uuid4

import orjson

MAX_TEXT_CHARS = 200
# What an incoming x-request-id may look like; anything else is replaced, so that no log reader can be played on.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")

# Libraries tell of each connection and of whole URLs at INFO and DEBUG. uvicorn's warnings are about bad requests,
# which the guard reports itself.
_LIBRARY_LEVELS = {
    "uvicorn": logging.WARNING,
    "uvicorn.error": logging.ERROR,
    "asyncio": logging.WARNING,
    "aiohttp": logging.WARNING,
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
}

# Line ends to some readers, though not to JSON.
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

_exchanges = logging.getLogger("wholecall.exchange")


class JsonLines(logging.Formatter):
    """`fields` of the record (given by `extra`) are members of the line's object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        message = record.getMessage()
        if message:
            line["message"] = cut(message, 1000)
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            line.update(fields)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return dump_line(line)


def dump_line(line: Mapping[str, object]) -> str:
    """One line of JSON text; what JSON cannot say (a lone surrogate) is replaced."""
    try:
        text = orjson.dumps(line, default=str).decode()
    except TypeError:
        text = orjson.dumps({key: _printable(value) for key, value in line.items()}, default=str).decode()
    return text if text.isascii() else text.translate(_LINE_ENDS)


def set_up(level: str = "info") -> None:
    """Send every logger of this process to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.raiseExceptions = False  # a closed standard error must not fill another one with traces
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("wholecall").setLevel(level.upper())
    for name, library_level in _LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(library_level)


def exchange(fields: Callable[[], Mapping[str, object]]) -> None:
    """The one record of an exchange; `fields` is only asked where it is wanted."""
    if _exchanges.isEnabledFor(logging.INFO):
        _exchanges.info("", extra={"fields": fields()})


def request_id(incoming: bytes | None) -> str:
    """The client's own id where it is 1 to 128 harmless characters, else a new one."""
    if incoming is not None and _REQUEST_ID.fullmatch(incoming):
        return incoming.decode()
    return str(uuid4())  # some backends take no other form of id


def cut(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _printable(value: object) -> object:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
