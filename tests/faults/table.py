"""Reads the fault table (table.md), which explains its own cells. A row is what the tests make true."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("table.md")
NOTHING = "nothing"
_METRICS = re.compile(
    r"(?P<kind>no error|\w+)"
    r"(, (?P<incomplete>\d+) incomplete(?P<incomplete_streamed> when streamed)?)?"
    r"(, (?P<valid>\d+) valid(?P<valid_streamed> when streamed)?)?"
)
_COUNTED = re.compile(r"(?P<status>not counted|none|\d+)(?P<twice> twice)?(, \d+ \w+)*")


@dataclass(frozen=True, slots=True)
class Metrics:
    """`kind`: under which a failed reply is counted in wholecall_upstream_errors_total, "" for none. The verdicts that
    wholecall_tool_calls_total counts of a streamed and of a plain reply."""

    kind: str
    streamed: dict[str, int]
    plain: dict[str, int]

    @classmethod
    def read(cls, cell: str) -> Metrics:
        found = _METRICS.fullmatch(cell)
        assert found is not None, f"no cell about metrics: {cell!r}"
        streamed = {name: int(found[name]) for name in ("incomplete", "valid") if found[name]}
        plain = {name: count for name, count in streamed.items() if not found[f"{name}_streamed"]}
        return cls("" if found["kind"] == "no error" else found["kind"], streamed, plain)


@dataclass(frozen=True, slots=True)
class Row:
    """`elsewhere`: what a client of another path sees; None where it does not ask."""

    family: str
    fault: str
    streamed: str
    plain: str
    elsewhere: str | None
    upstream: str
    metrics: Metrics

    def sees(self, stream: bool) -> str:
        return self.streamed if stream else self.plain


@dataclass(frozen=True, slots=True)
class Counted:
    """How a visit is counted in wholecall_requests_total (`status` None: not at all), and the verdicts of its calls."""

    status: str | None
    times: int
    verdicts: dict[str, int]

    @classmethod
    def read(cls, cell: str) -> Counted:
        found = _COUNTED.fullmatch(cell)
        assert found is not None, f"no cell about metrics: {cell!r}"
        status = None if found["status"] == "not counted" else found["status"]
        verdicts = {word: int(count) for count, word in re.findall(r", (\d+) (\w+)", cell)}
        return cls(status, 2 if found["twice"] else 1, verdicts)


@dataclass(frozen=True, slots=True)
class ClientRow:
    """`client`: what it sees itself."""

    family: str
    fault: str
    client: str
    upstream: str
    metrics: Counted


@dataclass(frozen=True, slots=True)
class CutRow:
    """`begun`: whether the calls that had begun are incomplete."""

    part: str
    held: str
    live: str
    metrics: Metrics
    begun: bool


def upstream_rows() -> list[Row]:
    rows = []
    for family, cells in _rows("Hostile upstreams"):
        fault, streamed, plain, elsewhere, upstream, metrics, left = cells
        assert left == NOTHING
        other = None if elsewhere == "-" else elsewhere
        rows.append(Row(family, fault, streamed, plain, other, upstream, Metrics.read(metrics)))
    return rows


def client_rows() -> list[ClientRow]:
    rows = []
    for family, cells in _rows("Hostile clients"):
        fault, client, upstream, metrics, left = cells
        assert left == NOTHING
        rows.append(ClientRow(family, fault, client, upstream, Counted.read(metrics)))
    return rows


def cut_rows() -> list[CutRow]:
    rows = []
    for _, cells in _rows("Replies that break off"):
        part, held, live, upstream, metrics, left = cells
        assert (left, upstream) == (NOTHING, "closed")
        begun = metrics.endswith(", each call begun incomplete")
        found = Metrics.read(metrics.removesuffix(", each call begun incomplete"))
        rows.append(CutRow(part, held, live, found, begun))
    return rows


def _rows(section: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Each row of a section with the name of its family."""
    text = FILE.read_text("utf-8")
    text = text[text.index(f"\n## {section}\n") + 4 :].split("\n## ")[0]
    family = ""
    for line in text.splitlines():
        if line.startswith("### "):
            family = line.removeprefix("### ")
        elif line.startswith("| ") and not line.startswith(("| fault ", "| breaks off ", "|--")):
            yield family, [cell.strip() for cell in line.strip("|").split("|")]
