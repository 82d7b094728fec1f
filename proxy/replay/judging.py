"""What `wholecall replay` does: captured replies through the core, and what became of them as tables or JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from proxy.checks.schema import compile_problem
from proxy.dialects.openai_chat import request as openai_request
from proxy.exchange import ExchangeSettings
from proxy.faults import Fault
from proxy.model.requests import Request
from proxy.replay import show
from proxy.replay.capture import is_stream, read_capture, read_file
from proxy.replay.inprocess import Answer, run
from proxy.replay.outcome import Outcome, read_outcome
from proxy.replay.recording import Recording

ANY_OBJECT = "no tools given: each called name counts as declared, with any object as its arguments"
EXIT_FAULTY, EXIT_UNUSABLE = 1, 2


def replay_files(files: Sequence[Path], tools: Path | None, *, as_json: bool, mode: str, repair: str) -> int:
    """Judges each file and prints what came of it; the exit status. `mode`: block, annotate, drop; `repair`: safe, off.

    A file that cannot be used gets a line on stderr, and the others are still judged.
    """
    settings = ExchangeSettings(
        mode="annotate" if mode == "annotate" else "block",
        block_as="drop" if mode == "drop" else "error",
        repair=repair == "safe",
        annotations="always",
    )
    console = show.console()
    try:
        asked = _read_tools(tools) if tools is not None else None
    except ValueError as error:
        click.echo(f"{tools}: {error}", err=True)
        return EXIT_UNUSABLE
    entries, status = [], 0
    for file in files:
        try:
            one = _replay(file, asked, settings)
        except ValueError as error:
            click.echo(f"{file}: {error}", err=True)
            status = EXIT_UNUSABLE
            continue
        if as_json:
            entries.append(one.as_json())
        else:
            _print(console, one)
        status = max(status, EXIT_FAULTY if one.outcome.faulty else 0)
    if as_json:
        click.echo(json.dumps(entries, indent=1))  # ASCII: a terminal obeys nothing in it
    return status


@dataclasses.dataclass(frozen=True, slots=True)
class _Replayed:
    file: Path
    recording: Recording
    any_object: bool
    answer: Answer
    outcome: Outcome

    def as_json(self) -> dict[str, Any]:
        record = self.answer.record
        assert record is not None
        return {
            "file": str(self.file),
            "dialect": self.recording.dialect,
            "tools": "any" if self.any_object else "declared",
            "status": self.outcome.status,
            "outcome": record.outcome,
            "finish_reason": list(self.outcome.finish.values()),
            "error": self.outcome.error,
            "text": self.outcome.text,
            "calls": [dataclasses.asdict(call) for call in self.outcome.calls],
            "quirks": self.outcome.quirks,
            "upstream_events": record.upstream_events,
            "upstream_bytes": record.upstream_bytes,
        }


def _read_tools(path: Path) -> dict[str, Any]:
    """The request that `--tools` stands for: its own body, or one that declares the listed tools."""
    document = _read_json(path)
    if isinstance(document, list):
        return {"tools": document}
    if isinstance(document, dict) and isinstance(document.get("tools"), list):
        return document
    raise ValueError("a JSON list of tools, or a request body with tools, is expected")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_bytes(path))
    except (UnicodeDecodeError, RecursionError):
        raise ValueError("no JSON: it cannot be read as text, or is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None


def _read_bytes(path: Path) -> bytes:
    if str(path) == "-":
        return sys.stdin.buffer.read()
    return read_file(path)


def _replay(file: Path, asked: Mapping[str, Any] | None, settings: ExchangeSettings) -> _Replayed:
    recording = read_capture(_read_bytes(file), file.stem)
    known = {**recording.request, **(asked or {})}
    any_object = asked is None and not recording.request
    if any_object:
        known = {"tools": _called(recording, settings)}
    request = _request(recording, known)
    answer = run(request, recording, settings)
    outcome = read_outcome(answer.status, answer.headers, bytes(answer.body))
    return _Replayed(file, recording, any_object, answer, outcome)


def _request(recording: Recording, known: Mapping[str, Any]) -> Request:
    """The request that the reply answered, as far as it is known."""
    body = {"messages": [{"role": "user", "content": "?"}], "stream": is_stream(recording), **known}
    body["model"] = str(known.get("model") or recording.id or "replay")
    try:
        request = openai_request.read(json.dumps(body).encode())
    except Fault as fault:
        raise ValueError(f"the request cannot be used: {fault.detail}") from None
    for tool in request.tools.values():
        problem = compile_problem(tool.schema) if tool.schema is not None else None
        if problem is not None:
            pointer, message = problem
            raise ValueError(f"tool {tool.name}: its parameters are no usable schema: {pointer or '/'}: {message}")
    return request


def _called(recording: Recording, settings: ExchangeSettings) -> list[dict[str, Any]]:
    """A declaration for every name that the reply calls."""
    answer = run(_request(recording, {}), recording, dataclasses.replace(settings, mode="annotate"))
    outcome = read_outcome(answer.status, answer.headers, bytes(answer.body))
    names = {call.name for call in outcome.calls if call.name and "name_missing" not in call.quirks}
    return [{"type": "function", "function": {"name": name}} for name in sorted(names)]


def _print(console: Console, one: _Replayed) -> None:
    record = one.answer.record
    assert record is not None
    form = "stream" if is_stream(one.recording) else "plain reply"
    size = f"{record.upstream_events} events, {record.upstream_bytes} bytes"
    console.print(Text.assemble((str(one.file), "bold"), f": {one.recording.dialect}, {form}, {size}"))
    if one.recording.title:
        console.print(Text(show.escaped(one.recording.title), "dim"))
    if one.any_object:
        console.print(Text(ANY_OBJECT, "dim"))
    show.print_outcome(console, one.outcome)
    console.print()
