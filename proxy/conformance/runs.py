"""One asking and what came of it, as the core judged it; and the file that keeps them, so that none is paid twice."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import TypeAdapter, ValidationError

from proxy.model.calls import Verdict
from proxy.model.findings import Quirk

MAX_STATE_BYTES = 1 << 30

Outcome = Literal["ended", "broken", "refused", "unasked"]


@dataclass(slots=True)
class CallSeen:
    """One call as the core reports it. `arguments` (cut) only where something is wrong with it."""

    name: str
    verdict: Verdict
    quirks: list[Quirk] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)
    arguments: str = ""


@dataclass(slots=True)
class Run:
    """One asking. `key` is the same for the same question to the same backend; `number` counts its repetitions from 1.

    `outcome`: ended (the end of the reply is confirmed), broken (a reply began, and failed), refused (an error status,
    or no connection: `status` 0), unasked (the dialect has no form for the request). `first_event_s` is the time to
    the first event that says something, `seconds` the time to the end; comments are no events.
    """

    key: str
    target: str
    item: str
    streamed: bool
    number: int
    outcome: Outcome
    status: int = 0
    code: str = ""
    message: str = ""
    finish: str = ""
    calls: list[CallSeen] = field(default_factory=list)
    quirks: list[Quirk] = field(default_factory=list)
    text_chars: int = 0
    events: int = 0
    bytes: int = 0
    first_event_s: float | None = None
    seconds: float = 0.0
    version: int = 1

    @property
    def answered(self) -> bool:
        return self.outcome in ("ended", "broken")

    @property
    def is_final(self) -> bool:
        """Whether asking again would say nothing new: not where nobody answered, or where it was too much just now."""
        return self.outcome != "refused" or (400 <= self.status < 500 and self.status not in (401, 403, 404, 408, 429))


_RUNS = TypeAdapter(Run)


class State:
    """The runs so far, a JSON object a line; every run is added as it ends. Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        """Raises ValueError with one line where the file cannot be used."""
        self.known: dict[tuple[str, int], Run] = {}
        self.trouble = ""  # why nothing is kept any more
        self._path = path
        self._file: BinaryIO | None = None
        if path is None:
            return
        if path.exists() and not path.is_file():
            raise ValueError(f"--state {path}: is no file; give another")
        try:
            file = path.open("a+b")
        except OSError as error:
            raise ValueError(f"--state {path}: cannot be written: {(error.strerror or '').lower()}") from None
        try:
            file.seek(0)
            data = file.read(MAX_STATE_BYTES + 1)
            if len(data) > MAX_STATE_BYTES:
                raise ValueError(f"--state {path}: is over {MAX_STATE_BYTES} bytes; give a new file")
            *lines, rest = data.split(b"\n")
            for number, line in enumerate(lines, 1):
                self._take(path, number, line)
            if rest:  # the line that was being written when the last probe was ended
                file.truncate(len(data) - len(rest))
            file.seek(0, os.SEEK_END)
        except BaseException:
            file.close()
            raise
        self._file = file

    def _take(self, path: Path, number: int, line: bytes) -> None:
        try:
            run = _RUNS.validate_json(line)
        except ValidationError:
            text = "is no run of a probe; give a file that a probe wrote, or a new one"
            raise ValueError(f"--state {path}, line {number}: {text}") from None
        self.known[run.key, run.number] = run

    def add(self, run: Run) -> None:
        self.known[run.key, run.number] = run
        if self._file is not None and not self.trouble:
            try:
                self._file.write(json.dumps(asdict(run)).encode() + b"\n")
                self._file.flush()
            except OSError as error:
                self.trouble = f"--state {self._path}: cannot be written any more: {(error.strerror or '').lower()}"

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what could not be written was told
                self._file.close()
