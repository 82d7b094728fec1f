"""Logs: JSON lines on standard error. One record an exchange, plus what happens to the process itself.

Never in a log: prompts, arguments, header values, query strings, credentials. Text that comes from outside stands in a
JSON string (so a newline in it makes no second line) and is cut to 200 characters.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any
from uuid import uuid4

import orjson

MAX_TEXT_CHARS = 200
# What an x-request-id may look like, a client's or a backend's, so that no log reader can be played on.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")

# Libraries tell of each connection and of whole URLs at INFO and DEBUG. uvicorn's warnings are about bad requests,
# which the guard reports itself.
_LIBRARY_LEVELS = {
    "uvicorn": logging.WARNING,
    "uvicorn.error": logging.ERROR,
    "asyncio": logging.WARNING,
    "opentelemetry": logging.CRITICAL,  # see `telemetry`
}

# Line ends to some readers, though not to JSON.
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

_MAX_FRAMES = 50
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

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

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 - the base class's name
        """Where it happened and what kind of exception it was. Its words are left out: a KeyError's is a key that
        somebody sent, and other ones quote a header or a text."""
        lines: list[str] = []
        seen: set[int] = set()
        error = ei[1]
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            kind = type(error)
            frames = traceback.format_tb(error.__traceback__, -_MAX_FRAMES)
            lines.insert(0, "".join([*frames, f"{kind.__module__}.{kind.__qualname__}\n"]))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "then\n".join(lines)


def dump_line(line: Mapping[str, object]) -> str:
    """One line of JSON text; what JSON cannot say (a lone surrogate) is replaced."""
    try:
        text = orjson.dumps(line, default=str).decode()
    except TypeError:
        text = json.dumps(line, default=str, ensure_ascii=False).encode("utf-8", "replace").decode()
    return text if text.isascii() else text.translate(_LINE_ENDS)


def set_up(level: str = "info") -> None:
    """Send every logger of this process to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    # No line tells of its caller, thread or process: finding them out costs more than all the rest of a line.
    logging._srcfile = None  # as the logging HOWTO says, "Optimization"
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.raiseExceptions = False  # a closed standard error must not fill another one with traces
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("wholecall").setLevel(level.upper())
    for name, library_level in _LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(library_level)


def warn(lines: Iterable[str]) -> None:
    """What is hardly meant in the configuration that is served from now on."""
    for line in lines:
        logging.getLogger("wholecall").warning(line, extra={"fields": {"event": "config"}})


def loop_failed(_loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """For `loop.set_exception_handler`: asyncio's own would write a task's repr, and with it its exception's words."""
    error = context.get("exception")
    logging.getLogger("asyncio").error("%s", str(context.get("message", "")).partition("\n")[0], exc_info=error)


def exchange(fields: Callable[[], Mapping[str, object]]) -> None:
    """The one record of an exchange; `fields` is only asked where it is wanted."""
    if _exchanges.isEnabledFor(logging.INFO):
        _exchanges.info("", extra={"fields": fields()})


def request_id(incoming: bytes | None) -> str:
    """The client's own id where it is 1 to 128 harmless characters, else a new one."""
    return harmless_id(incoming) or str(uuid4())  # some backends take no other form of id


def harmless_id(text: bytes | None) -> str:
    """The id where it is 1 to 128 harmless characters, else "": somebody else chose it."""
    return text.decode() if text is not None and _REQUEST_ID.fullmatch(text) else ""


def cut(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
