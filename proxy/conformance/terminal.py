"""The report for the terminal. Whatever a backend or a file said is shown with its control characters escaped."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.conformance.report import (
    KIND_MEANING,
    NOTHING,
    Judged,
    Report,
    cell_text,
    counted,
    examples,
    headline,
    median_and_p95,
    mended,
    percent,
    said_by,
    times,
    verdict_line,
)
from proxy.conformance.scores import GROUP_MEANING, SCORES, Score
from proxy.replay.show import escaped

MOST_ROWS = 80  # of the items

_STYLES = {KIND_MEANING["form"]: "yellow", KIND_MEANING["model"]: "magenta", KIND_MEANING["request"]: "dim"}


def print_report(console: Console, report: Report) -> None:
    console.print(Text(escaped(headline(report)), "bold"))
    console.print()
    console.print(_scores(report))
    for group, text in GROUP_MEANING.items():
        console.print(Text.assemble((f"{group}: ", "bold dim"), (text, "dim")))
    tables = [("Items that were not right", _items(report)), ("Quirks and repairs: replies with each", _quirks(report))]
    tables.append(("Times: median, 95th percentile", _times(report)))
    for title, table in tables:
        if table is not None:
            console.print()
            console.print(Text(title, "bold"))
            console.print(table)
    for target in report.targets:
        _print_findings(console, target)
    if line := verdict_line(report):
        console.print()
        console.print(Text(escaped(line), "bold green" if report.passed else "bold red"))


def _table(report: Report, *before: str, after: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in before:
        table.add_column(column, overflow="fold")
    for target in report.targets:
        table.add_column(Text(escaped(target.label)), overflow="fold")
    for column in after:
        table.add_column(column, overflow="fold")
    return table


def _scores(report: Report) -> Table:
    table = _table(report, "score", after=["name"])
    group = ""
    for kind in SCORES:
        if kind.group != group:
            table.add_row(Text(kind.group, "bold"))
            group = kind.group
        cells = [_score(target.tally.scores[kind.name], kind.name in target.missed) for target in report.targets]
        table.add_row(Text(f"  {kind.title}"), *cells, Text(kind.name, "dim"))
    return table


def _score(score: Score, missed: bool) -> Text:
    if not score.of:
        return Text(NOTHING + (" missed" if missed else ""), "dim")
    style = "green" if score.good == score.of else "red" if score.good * 2 < score.of else "yellow"
    text = Text.assemble((percent(score), style), (f" {counted(score)}", "dim"))
    return text.append(" missed", "bold red") if missed else text


def _items(report: Report) -> Table | None:
    """Only the items where anything is wrong somewhere."""
    table = _table(report, "item", "form")
    left_out = 0
    for item in report.items:
        for streamed, form in ((True, "streamed"), (False, "plain")):
            cells = [cell_text(target.tally.cells.get((item.id, streamed))) for target in report.targets]
            if all(cell in ("", "ok") for cell in cells):
                continue
            if table.row_count == MOST_ROWS:
                left_out += 1
            else:
                styled = [
                    Text(cell, "green" if cell == "ok" else "red" if "dam" in cell else "yellow") for cell in cells
                ]
                table.add_row(escaped(item.id), form, *styled)
    if left_out:
        table.add_row(Text(f"... {left_out} more, in --json", "dim"))
    return table if table.row_count else None


def _quirks(report: Report) -> Table | None:
    table = _table(report, "quirk", "kind", after=["what was mended"])
    table.columns[0].no_wrap = True  # a code that is folded cannot be looked for, nor given to `explain`
    for code, kind, counts, text in mended(report):
        table.add_row(Text(code, _STYLES.get(kind, "red")), kind, *(str(count or "") for count in counts), text)
    return table if table.row_count else None


def _times(report: Report) -> Table | None:
    table = _table(report, "time")
    for name, columns in times(report):
        if any(columns):
            table.add_row(name, *map(median_and_p95, columns))
    return table if table.row_count else None


def _print_findings(console: Console, target: Judged) -> None:
    for group in ("damage", "behaviour"):
        found = examples(target.tally, group)
        if found:
            console.print()
            console.print(Text(f"{escaped(target.label)}: {group}, for example", "bold"))
            for finding in found:
                detail = f" ({escaped(finding.detail)})" if finding.detail else ""
                console.print(Text(f"  {escaped(said_by(finding))}{detail}"))
    if target.tally.errors:
        console.print()
        console.print(Text(f"{escaped(target.label)}: errors", "bold"))
        for (code, text), count in target.tally.errors.most_common(5):
            console.print(Text(f"  {count} times {escaped(code)}: {escaped(text)}"))
    if target.tally.unasked:
        console.print()
        console.print(Text(f"{escaped(target.label)}: not asked, since the dialect has no form for it", "bold"))
        for item, why in target.tally.unasked.items():
            console.print(Text(f"  {escaped(item)}: {escaped(why)}"))
