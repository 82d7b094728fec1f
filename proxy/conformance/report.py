"""The result of a probe, and its forms for machines and for text: JSON and Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from proxy import __version__
from proxy.conformance.items import Item
from proxy.conformance.runs import Run
from proxy.conformance.scores import (
    GROUP_MEANING,
    KIND_OF,
    SCORES,
    Cell,
    Finding,
    Score,
    Tally,
    Threshold,
    quantile,
    tally,
)
from proxy.conformance.targets import Target
from proxy.model.findings import QUIRKS, Quirk
from proxy.replay.explain import REPAIR_MEANING

NOTHING = "-"  # where there is nothing to count
EXAMPLES = 12  # of each target and group, in what people read

KIND_MEANING = {
    "damage": "breaks calls",
    "finish": "wrong end",
    "form": "form only",
    "model": "of the model",
    "request": "of the request",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One target and what its runs come to. `missed`: scores below a threshold."""

    label: str
    dialect: str
    base_url: str
    model: str
    tally: Tally
    asked: int
    missed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """`planned` askings, all targets together; `made_at` is UTC, ISO 8601; `source` says whose requests they were."""

    targets: tuple[Judged, ...]
    items: tuple[Item, ...]
    thresholds: tuple[Threshold, ...]
    source: str
    runs: int
    planned: int
    made_at: str
    interrupted: bool

    @property
    def done(self) -> int:
        return sum(target.tally.runs for target in self.targets)

    @property
    def passed(self) -> bool:
        return not any(target.missed for target in self.targets)

    @property
    def is_partial(self) -> bool:
        return self.done < self.planned

    def quirks(self) -> list[Quirk]:
        """Those that were seen anywhere: damage first, each kind in the order of the table."""
        order = list(KIND_MEANING)
        seen = [quirk for quirk in Quirk if any(target.tally.quirks[quirk] for target in self.targets)]
        return sorted(seen, key=lambda quirk: order.index(KIND_OF[quirk]))


def judge(
    targets: Sequence[Target],
    items: Sequence[Item],
    runs: Iterable[Run],
    thresholds: Sequence[Threshold],
    *,
    source: str,
    repeats: int,
    planned: int,
    made_at: str,
    interrupted: bool,
) -> Report:
    by_target: dict[str, list[Run]] = {target.label: [] for target in targets}
    for run in runs:
        by_target[run.target].append(run)
    judged = []
    for target in targets:
        result = tally(target.backend.dialect, items, by_target[target.label])
        missed = dict.fromkeys(name for threshold in thresholds for name in threshold.missed(result))
        backend = target.backend
        judged.append(
            Judged(
                target.label,
                backend.dialect,
                backend.base_url,
                target.model,
                result,
                len(by_target[target.label]),
                tuple(missed),
            )
        )
    return Report(tuple(judged), tuple(items), tuple(thresholds), source, repeats, planned, made_at, interrupted)


# --- words ---------------------------------------------------------------------------------------------------------


def percent(score: Score) -> str:
    """All and none are said only where it is so."""
    share = score.share
    if share is None:
        return NOTHING
    return f"{100 * share:.0f} %" if share in (0.0, 1.0) else f"{min(99.9, max(0.1, 100 * share)):.1f} %"


def counted(score: Score) -> str:
    return f"{score.good}/{score.of}" if score.of else ""


def seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{1000 * value:.3g} ms" if value < 0.9995 else f"{value:.3g} s" if value < 999.5 else f"{value:.0f} s"


def times_of(result: Tally) -> list[tuple[str, list[float]]]:
    return [
        ("to the first event, streamed", result.first_event_s),
        ("to the end, streamed", result.streamed_s),
        ("to the end, plain", result.plain_s),
    ]


def times(report: Report) -> list[tuple[str, list[list[float]]]]:
    """As `times_of`, of each target."""
    columns = [times_of(target.tally) for target in report.targets]
    return [(name, [column[position][1] for column in columns]) for position, (name, _) in enumerate(columns[0])]


def median_and_p95(every: Sequence[float]) -> str:
    return f"{seconds(quantile(every, 0.5))}, {seconds(quantile(every, 0.95))}"


def mended(report: Report) -> list[tuple[str, str, list[int], str]]:
    """Quirks, then repairs: code, kind, in how many replies of each target, meaning."""
    rows = [
        (
            quirk.value,
            KIND_MEANING[KIND_OF[quirk]],
            [target.tally.quirks[quirk] for target in report.targets],
            QUIRKS[quirk].meaning,
        )
        for quirk in report.quirks()
    ]
    for name, text in REPAIR_MEANING.items():
        counts = [target.tally.repairs[name] for target in report.targets]
        if any(counts):
            rows.append((name, "no JSON, repaired", counts, text))
    return rows


def said_by(finding: Finding) -> str:
    """What a finding is about, in a line without the backend's own words beyond names and codes."""
    form = "streamed" if finding.run.streamed else "plain"
    who = f", {finding.call.name}" if finding.call is not None and finding.call.name else ""
    return f"{finding.run.item} {form} #{finding.run.number}{who}: {', '.join(finding.codes)}"


def examples(result: Tally, group: str) -> list[Finding]:
    """The first ones, one of each kind before a second of any."""
    found = [finding for finding in result.findings if finding.group == group]
    kinds: dict[tuple[str, ...], int] = {}
    ranked = []
    for number, finding in enumerate(found):
        kind = tuple(finding.codes)
        ranked.append((kinds.get(kind, 0), number, finding))
        kinds[kind] = kinds.get(kind, 0) + 1
    ranked.sort(key=lambda entry: entry[:2])
    return [finding for _, _, finding in ranked[:EXAMPLES]]


def cell_text(cell: Cell | None) -> str:
    """An item in one form: nothing where it was not asked, "ok", or what is wrong."""
    if cell is None:
        return ""
    parts = []
    if cell.undamaged.good < cell.undamaged.of:
        parts.append(f"damaged {cell.undamaged.of - cell.undamaged.good}/{cell.undamaged.of}")
    if cell.as_asked.good < cell.as_asked.of:
        parts.append(f"not as asked {cell.as_asked.of - cell.as_asked.good}/{cell.as_asked.of}")
    if cell.refused:
        parts.append(f"refused {cell.refused}")
    return ", ".join(parts) if parts else "ok" if cell.undamaged.of else "not asked"


def headline(report: Report) -> str:
    repeats = f"{report.runs} time{'s' if report.runs > 1 else ''}"
    text = f"{len(report.items)} requests ({report.source}), each {repeats} in each form"
    if report.is_partial:
        text += f"; {report.done} of {report.planned} were carried out"
        text += ": it was interrupted" if report.interrupted else ": a backend did not let us in"
    return text


def verdict_line(report: Report) -> str:
    """Whether the thresholds hold."""
    if not report.thresholds:
        return ""
    if report.passed:
        return "Every threshold holds."
    lines = [f"{target.label}: {', '.join(target.missed)}" for target in report.targets if target.missed]
    return "Below a threshold: " + "; ".join(lines) + "."


# --- JSON ----------------------------------------------------------------------------------------------------------


def as_document(report: Report) -> dict[str, Any]:
    return {
        "wholecall": __version__,
        "made_at": report.made_at,
        "requests": report.source,
        "items": len(report.items),
        "runs": report.runs,
        "planned": report.planned,
        "done": report.done,
        "interrupted": report.interrupted,
        "thresholds": [{"score": threshold.name or "all", "least": threshold.least} for threshold in report.thresholds],
        "passed": report.passed,
        "targets": [_target(report, target) for target in report.targets],
    }


def as_json(report: Report) -> str:
    return json.dumps(as_document(report), indent=1) + "\n"  # ASCII: a terminal obeys nothing in it


def _target(report: Report, target: Judged) -> dict[str, Any]:
    result = target.tally
    return {
        "target": target.label,
        "dialect": target.dialect,
        "base_url": target.base_url,
        "model": target.model,
        "runs": result.runs,
        "missed": list(target.missed),
        "scores": {kind.name: {"group": kind.group, **_score(result.scores[kind.name])} for kind in SCORES},
        "quirks": [
            {
                "code": quirk.value,
                "kind": KIND_OF[quirk],
                "runs": result.quirks[quirk],
                "meaning": QUIRKS[quirk].meaning,
            }
            for quirk in report.quirks()
            if result.quirks[quirk]
        ],
        "repairs": dict(result.repairs),
        "verdicts": dict(result.verdicts),
        "times": {
            name.replace(",", "").replace(" ", "_"): {
                "n": len(every),
                "median_s": quantile(every, 0.5),
                "p95_s": quantile(every, 0.95),
            }
            for name, every in times_of(result)
        },
        "items": [
            {"item": item.id, "streamed": _cell(result, item, True), "plain": _cell(result, item, False)}
            for item in report.items
        ],
        "errors": [{"code": code, "message": text, "runs": n} for (code, text), n in result.errors.most_common()],
        "unasked": [{"item": item, "why": why} for item, why in result.unasked.items()],
        "findings": [_finding(finding) for finding in result.findings],
    }


def _score(score: Score) -> dict[str, Any]:
    low, high = score.interval
    share = score.share
    shares = {"share": share, "low": low, "high": high} if share is not None else {"share": None}
    return {"good": score.good, "of": score.of, **shares}


def _cell(result: Tally, item: Item, streamed: bool) -> dict[str, Any] | None:
    cell = result.cells.get((item.id, streamed))
    if cell is None:
        return None
    return {"undamaged": _pair(cell.undamaged), "as_asked": _pair(cell.as_asked), "refused": cell.refused}


def _pair(score: Score) -> list[int]:
    return [score.good, score.of]


def _finding(finding: Finding) -> dict[str, Any]:
    run = finding.run
    out: dict[str, Any] = {"group": finding.group, "item": run.item, "streamed": run.streamed, "run": run.number}
    out |= {"codes": finding.codes, "detail": finding.detail}
    if finding.call is not None:
        out |= {"tool": finding.call.name, "arguments": finding.call.arguments}
    return out


# --- Markdown ------------------------------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    labels = [md(target.label) for target in report.targets]
    out = ["# Tool calls: what came", "", f"{md(headline(report))}. {report.made_at}, wholecall {__version__}.", ""]
    if line := verdict_line(report):
        out += [f"**{md(line)}**", ""]
    for group, text in GROUP_MEANING.items():
        kinds = [kind for kind in SCORES if kind.group == group]
        out += [f"## {group.capitalize()}", "", f"{text[0].upper()}{text[1:]}.", ""]
        rows = []
        for kind in kinds:
            scores = [target.tally.scores[kind.name] for target in report.targets]
            rows.append(
                [kind.title, *(f"{percent(s)} {counted(s)}".strip() for s in scores), f"`{kind.name}`: {kind.meaning}"]
            )
        out += _md_table(["score", *labels, "of"], rows, numbers=len(labels))
    if found := mended(report):
        out += ["## Quirks and repairs", "", "In how many replies each was seen.", ""]
        lines = [[f"`{code}`", kind, *(str(n or "") for n in counts), md(text)] for code, kind, counts, text in found]
        out += _md_table(["quirk", "kind", *labels, "meaning"], lines, skip=2, numbers=len(labels))
    out += ["## Items", ""]
    rows = []
    for item in report.items:
        cells = [
            md(cell_text(target.tally.cells.get((item.id, streamed))))
            for target in report.targets
            for streamed in (True, False)
        ]
        rows.append([md(item.id), *cells])
    heads = [f"{label}, {form}" for label in labels for form in ("streamed", "plain")]
    out += _md_table(["item", *heads], rows)
    out += ["## Times", "", "Median and 95th percentile.", ""]
    out += _md_table(["", *labels], [[name, *map(median_and_p95, columns)] for name, columns in times(report)])
    for target in report.targets:
        out += _md_findings(target)
    return "\n".join(out).rstrip() + "\n"


def _md_findings(target: Judged) -> list[str]:
    out: list[str] = []
    for group in ("damage", "behaviour"):
        found = examples(target.tally, group)
        if found:
            out += [f"### {md(target.label)}: {group}", ""]
            for finding in found:
                detail = f" ({md(finding.detail)})" if finding.detail else ""
                out.append(f"- {md(said_by(finding))}{detail}")
            out.append("")
    refused = [(code, text, n) for (code, text), n in target.tally.errors.most_common(EXAMPLES)]
    if refused:
        out += [f"### {md(target.label)}: errors", ""]
        out += [f"- {n} times {md(code)}: {md(text)}" for code, text, n in refused]
        out.append("")
    if target.tally.unasked:
        out += [f"### {md(target.label)}: not asked", ""]
        out += [f"- {md(item)}: {md(why)}" for item, why in list(target.tally.unasked.items())[:EXAMPLES]]
        out.append("")
    return out


def _md_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, skip: int = 1, numbers: int = 0) -> list[str]:
    """`numbers` columns behind the first `skip` ones are set right."""
    rules = ["--:" if skip <= at < skip + numbers else "---" for at in range(len(heads))]
    lines = [heads, rules, *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def md(text: str) -> str:
    """Text of a backend or of a file as Markdown that shows it and does nothing else; one line."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return re.sub(r"([\\`*_{}\[\]<>#|!&~])", r"\\\1", plain)
