"""`wholecall probe`: who is asked what, the asking with its progress bar, the report, the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from proxy.conformance.asking import Job, ask_all, plan
from proxy.conformance.battery import ITEMS
from proxy.conformance.items import Item, chosen, read_items
from proxy.conformance.models import probe_models
from proxy.conformance.page import as_html
from proxy.conformance.report import Report, as_json, as_markdown, judge
from proxy.conformance.runs import Run, State
from proxy.conformance.scores import Threshold
from proxy.conformance.targets import Target, find_targets
from proxy.conformance.terminal import print_report
from proxy.replay import show
from proxy.replay.app import build
from proxy.replay.embedded import Embedded, accepting, listening_on

EXIT_BELOW, EXIT_UNUSABLE, EXIT_INTERRUPTED = 1, 2, 130
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line. `outputs`: json, markdown and html -> the file to write, "-" for standard output."""

    targets: tuple[str, ...]
    config: Path
    demo: bool
    models: tuple[str, ...]
    dialect: str
    key_variable: str
    runs: int
    concurrency: int
    timeout_s: float
    form: str
    requests: Path | None
    only: tuple[str, ...]
    state: Path | None
    outputs: Mapping[str, Path | None]
    thresholds: tuple[str, ...]


def run(asked: Asked) -> int:
    """Probes and reports; the exit status."""
    try:
        thresholds = [_threshold(text) for text in asked.thresholds]
        items = chosen(ITEMS if asked.requests is None else read_items(asked.requests), asked.only)
        if not asked.targets and not asked.demo:
            raise ValueError("who is to be probed? Give a URL, --backend NAME of the configuration file, or --demo")
        listening = listening_on(HOST) if asked.demo else None
        with contextlib.ExitStack() as stack:
            if listening is not None:
                stack.callback(listening.close)
            targets = _targets(asked, listening)
            state = State(asked.state)
            stack.callback(state.close)
            for path in filter(None, asked.outputs.values()):
                _check_writable(path)
            return _probe(asked, targets, items, thresholds, state, listening)
    except ValueError as error:
        click.echo(str(error), err=True)
        return EXIT_UNUSABLE


def _threshold(text: str) -> Threshold:
    try:
        return Threshold.read(text)
    except ValueError as error:
        raise ValueError(f"--fail-under: {error}") from None


def _targets(asked: Asked, listening: socket.socket | None) -> list[Target]:
    found = find_targets(asked.targets, asked.config, asked.models, asked.dialect, asked.key_variable)
    if listening is not None:
        url = f"http://{HOST}:{listening.getsockname()[1]}/v1"
        models = list(probe_models())
        embedded = find_targets([url], asked.config, models, "openai-chat", "")
        found += [Target(t.model, t.backend, t.config, t.model, t.key, t.mask) for t in embedded]
    return found


def _check_writable(path: Path) -> None:
    """Before the backend is paid: a folder that is not there is told now. Raises ValueError."""
    if str(path) != "-" and not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.absolute().parent}; create it, or write elsewhere")


def _probe(
    asked: Asked,
    targets: Sequence[Target],
    items: Sequence[Item],
    thresholds: Sequence[Threshold],
    state: State,
    listening: socket.socket | None,
) -> int:
    forms = {"both": (True, False), "streamed": (True,), "plain": (False,)}[asked.form]
    jobs = plan(targets, items, forms, asked.runs)
    left = [job for job in jobs if not _is_known(job, state)]
    interrupted = False
    try:
        asyncio.run(_carry_out(asked, jobs, left, state, listening))
    except KeyboardInterrupt:
        interrupted = True
    found = [_of_now(job, state) for job in jobs if (job.key, job.number) in state.known]
    report = judge(
        targets,
        items,
        found,
        thresholds,
        source="the battery" if asked.requests is None else str(asked.requests),
        repeats=asked.runs,
        planned=len(jobs),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        interrupted=interrupted,
    )
    troubles = [*_write(asked, report), *([state.trouble] if state.trouble else [])]
    for trouble in troubles:
        click.echo(trouble, err=True)
    if interrupted or troubles:
        return EXIT_INTERRUPTED if interrupted else EXIT_UNUSABLE
    silent = [target.label for target in report.targets if not target.tally.scores["answered"].good]
    return EXIT_BELOW if silent or not report.passed else 0


def _is_known(job: Job, state: State) -> bool:
    run = state.known.get((job.key, job.number))
    return run is not None and run.is_final


def _of_now(job: Job, state: State) -> Run:
    """The kept run under the names that backend and item have now."""
    run = state.known[job.key, job.number]
    run.target, run.item = job.target.label, job.item.id
    return run


async def _carry_out(
    asked: Asked, jobs: Sequence[Job], left: Sequence[Job], state: State, listening: socket.socket | None
) -> None:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with contextlib.AsyncExitStack() as stack:
        if listening is not None:
            await stack.enter_async_context(_embedded(listening))
        progress = stack.enter_context(Progress(*columns, console=console, disable=not console.is_terminal))
        bars: dict[str, TaskID] = {}
        for label in dict.fromkeys(job.target.label for job in jobs):
            total = sum(job.target.label == label for job in jobs)
            known = total - sum(job.target.label == label for job in left)
            bars[label] = progress.add_task(show.escaped(label), total=total, completed=known)
        await ask_all(
            left,
            state,
            concurrency=asked.concurrency,
            timeout_s=asked.timeout_s,
            ended=lambda run: progress.advance(bars[run.target]),
        )


@contextlib.asynccontextmanager
async def _embedded(listening: socket.socket) -> AsyncIterator[None]:
    """The embedded backend, while it is asked."""
    server = Embedded(build(answering=probe_models()))
    serving = asyncio.create_task(server.serve([listening]))
    try:
        await accepting(server, serving)
        yield
    finally:
        server.should_exit = True
        await serving


def _write(asked: Asked, report: Report) -> list[str]:
    """Writes every form of the report; a line for each that could not be written."""
    forms = {"json": as_json, "markdown": as_markdown, "html": as_html}
    printed = False
    troubles = []
    for name, path in asked.outputs.items():
        if path is None:
            continue
        text = forms[name](report)
        if str(path) == "-":
            printed = True
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
            continue
        try:
            path.write_text(text, "utf-8")
        except OSError as error:
            troubles.append(f"{path}: cannot be written: {(error.strerror or '').lower()}")
    if not printed:
        print_report(show.console(), report)
    return troubles
