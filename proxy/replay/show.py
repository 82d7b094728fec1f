"""Tables for the terminal. Everything that came from an upstream is shown with its control characters escaped."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.model.findings import QUIRKS, Quirk
from proxy.replay.explain import Meaning
from proxy.replay.outcome import CallOutcome, Outcome

CALL_STYLES = ("cyan", "magenta", "yellow", "green")
VERDICT_STYLES = {"valid": "bold green"}


def console() -> Console:
    """Standard output; a character that its encoding does not have is shown as an escape."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console(highlight=False)


def escaped(text: str) -> str:
    """`text` with everything that is not printable, which a terminal might obey, as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _table(*columns: str, flexible: str) -> Table:
    """A table whose column `flexible` folds where the terminal is too narrow."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        if column == flexible:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, no_wrap=True)
    return table


# --- a stream, event by event --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """One thing that an event says: a call's fragment where `is_call`, else text, a role, an end."""

    text: str
    is_call: bool = False
    index: str = ""
    id: str = ""
    name: str = ""
    finish: str = ""


def stream_table(events: Iterable[str]) -> Table:
    """A chat stream: `events` are the data of its events. Rows of one call have one colour."""
    table = _table("#", "index", "id", "name", "text or arguments", "finish", flexible="text or arguments")
    styles: dict[str, str] = {}
    for number, payload in enumerate(events, 1):
        for position, row in enumerate(_rows(payload)):
            style = _style_of(row, styles) if row.is_call else ""
            cells = (row.index, row.id, row.name, row.text)
            table.add_row(
                "" if position else str(number),
                *(Text(escaped(cell), style) for cell in cells),
                Text(row.finish, "bold"),
            )
    return table


def _style_of(row: _Row, styles: dict[str, str]) -> str:
    """Fragments with the same id or index belong together; a new one gets the next colour."""
    keys = [key for key in (f"id {row.id}", f"index {row.index}") if key.split(" ")[1] not in ("", "null")]
    style = next((styles[key] for key in keys if key in styles), None)
    if style is None:
        style = CALL_STYLES[len(set(styles.values())) % len(CALL_STYLES)]
    styles.update(dict.fromkeys(keys, style))
    return style


def _rows(payload: str) -> Iterator[_Row]:
    if payload == "[DONE]":
        yield _Row("[DONE]")
        return
    chunk = json.loads(payload)
    if "error" in chunk:
        yield _Row("error: " + json.dumps(chunk["error"], ensure_ascii=False))
    for choice in chunk.get("choices", ()):
        rows = list(_delta_rows(choice.get("delta") or {}))
        finish = choice.get("finish_reason") or ""
        if finish and rows:
            rows[-1] = _Row(rows[-1].text, rows[-1].is_call, rows[-1].index, rows[-1].id, rows[-1].name, finish)
        elif finish:
            rows = [_Row("", finish=finish)]
        yield from rows
    if "wholecall" in chunk:
        yield _Row("(the report: see below)")
    if chunk.get("usage"):
        yield _Row(f"usage: {chunk['usage'].get('total_tokens')} tokens")


def _delta_rows(delta: dict[str, Any]) -> Iterator[_Row]:
    if delta.get("content"):
        yield _Row(delta["content"])
    elif delta.get("role") and not delta.get("tool_calls"):
        yield _Row(f"role: {delta['role']}")
    for entry in delta.get("tool_calls") or ():
        function = entry.get("function") or {}
        yield _Row(
            text=_cell(function, "arguments"),
            is_call=True,
            index=_cell(entry, "index"),
            id=_cell(entry, "id"),
            name=_cell(function, "name"),
        )


def _cell(fields: dict[str, Any], key: str) -> str:
    """A field as it stood: text as text, null as null, an absent one as nothing."""
    if key not in fields:
        return ""
    value = fields[key]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- what became of it ---------------------------------------------------------------------------------------------


def calls_table(calls: Iterable[CallOutcome]) -> Table:
    table = _table("call", "tool", "verdict", "sent", "arguments", flexible="arguments")
    for call in calls:
        arguments = Text(escaped(call.arguments) or "(none)")
        for error in call.errors:
            where = f" at {error['path']}" if error["path"] else ""
            arguments.append("\n" + escaped(f"{error['rule']}{where}: {error['message']}"), "red")
        if call.repairs:
            arguments.append(f"\nrepaired: {', '.join(call.repairs)}", "yellow")
        number = f"{call.choice}.{call.index}" if call.choice else str(call.index)
        sent = "withheld" if call.sent_index is None else f"as {call.sent_index}"
        verdict = Text(call.verdict, VERDICT_STYLES.get(call.verdict, "bold red"))
        table.add_row(number, Text(escaped(call.name)), verdict, sent, arguments)
    return table


def quirks_table(outcome: Outcome) -> Table | None:
    """What was mended, and where; None where nothing was."""
    places: dict[str, list[str]] = {}
    for call in outcome.calls:
        for quirk in call.quirks:
            places.setdefault(quirk, []).append(f"call {call.index}")
    for quirk in outcome.quirks:
        places.setdefault(quirk, []).append("reply")
    if not places:
        return None
    table = _table("quirk", "where", "what was mended", flexible="what was mended")
    for quirk, where in places.items():
        table.add_row(Text(quirk, "yellow"), ", ".join(dict.fromkeys(where)), QUIRKS[Quirk(quirk)].meaning)
    return table


def result_line(outcome: Outcome) -> Text:
    """How the reply ended, for the client."""
    if outcome.error is not None:
        code = outcome.error.get("code") or outcome.error.get("type") or ""
        message = escaped(str(outcome.error.get("message", "")))
        return Text(f"The client gets an error: {code}: {message}", "red")
    ends = ", ".join(dict.fromkeys(outcome.finish.values()))
    sent = sum(call.sent_index is not None for call in outcome.calls)
    return Text(f"The client gets {sent} of {len(outcome.calls)} calls; finish_reason {ends}.")


def print_outcome(console: Console, outcome: Outcome) -> None:
    if outcome.text.strip():
        console.print(Text(f"text: {escaped(outcome.text)}"))
    for table in (calls_table(outcome.calls) if outcome.calls else None, quirks_table(outcome)):
        if table is not None:
            console.print()
            console.print(table)
    console.print()
    console.print(result_line(outcome))


def meanings_table(meanings: Iterable[Meaning]) -> Table:
    table = _table("code", "meaning", flexible="meaning")
    for meaning in meanings:
        table.add_row(Text(meaning.code, "bold"), Text(meaning.text))
    return table
