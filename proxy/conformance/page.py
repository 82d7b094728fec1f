"""The report as one HTML page: styles and plots are in it, nothing is loaded, nothing runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from proxy import __version__
from proxy.conformance.report import (
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
    seconds,
    times,
    verdict_line,
)
from proxy.conformance.scores import GROUP_MEANING, SCORES, Cell, Score, quantile

WIDTH, LEFT, RIGHT = 860, 190, 60  # of a plot, in its own units
_COLOURS = ("#3b6fd4", "#d9622b", "#2f9e63", "#a23bb8", "#b8912b", "#2b9fb0", "#c43b62", "#6b6b6b")
_MOST_DOTS = 200
_MOST_ITEMS = 400


def as_html(report: Report) -> str:
    style = resources.files("proxy.conformance").joinpath("page.css").read_text("utf-8")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Tool calls: what came</title><style>{style}</style></head><body>",
        "<h1>Tool calls: what came</h1>",
        f'<p class="dim">{_text(headline(report))}. {_text(report.made_at)}, wholecall {__version__}.</p>',
    ]
    if line := verdict_line(report):
        parts.append(f'<p><span class="verdict {"pass" if report.passed else "fail"}">{_text(line)}</span></p>')
    parts += [_legend(report), "<h2>Scores</h2>", _score_plot(report), _score_table(report)]
    if any(mended(report)):
        parts += ["<h2>Quirks and repairs</h2>", "<p class=dim>In how many replies each was seen.</p>"]
        parts += [_quirk_plot(report), _quirk_table(report)]
    parts += ["<h2>Items</h2>", _items(report), "<h2>Times</h2>", _time_plot(report), _time_table(report)]
    parts += [_findings(target) for target in report.targets]
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _text(value: object) -> str:
    """Text of a backend or of a file as it may stand in the page: no markup, no control characters."""
    return escape("".join(c if c.isprintable() else " " for c in str(value)))


def _legend(report: Report) -> str:
    entries = [
        f'<li><i style="background:{_colour(n)}"></i><b>{_text(target.label)}</b> '
        f'<span class="dim">{_text(target.dialect)}, {_text(target.base_url)}</span></li>'
        for n, target in enumerate(report.targets)
    ]
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _colour(position: int) -> str:
    return _COLOURS[position % len(_COLOURS)]


def _table(heads: Sequence[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _row(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _labels(report: Report) -> list[str]:
    return [_text(target.label) for target in report.targets]


# --- scores --------------------------------------------------------------------------------------------------------


def _score_table(report: Report) -> str:
    rows = []
    for group, text in GROUP_MEANING.items():
        width = len(report.targets) + 2
        rows.append(f'<tr><td class="group" colspan="{width}">{group} <span class="dim">{_text(text)}</span></td></tr>')
        for kind in SCORES:
            if kind.group == group:
                cells = [_score(t.tally.scores[kind.name], kind.name in t.missed) for t in report.targets]
                of = f'<code>{kind.name}</code> <span class="dim">{_text(kind.meaning)}</span>'
                rows.append(_row(kind.title, *cells, of))
    return _table(["score", *_labels(report), "of"], rows)


def _score(score: Score, missed: bool) -> str:
    text = f'{percent(score)} <span class="dim">{counted(score)}</span>'
    return f'<span class="n missed">{text} below</span>' if missed else f'<span class="n">{text}</span>'


def _score_plot(report: Report) -> str:
    """A dot for each target's share on a line from none to all, with its 95 % interval."""
    step = 9
    height_of_row = 14 + step * len(report.targets)
    marks, y = [], 14.0
    group = ""
    for kind in SCORES:
        if kind.group != group:
            group = kind.group
            y += 14
            marks.append(f'<text x="12" y="{y:g}" class="dim">{group}</text>')
            y += 8
        middle = y + height_of_row / 2
        marks.append(f'<text x="24" y="{middle + 4:g}">{_text(kind.title)}</text>')
        for n, target in enumerate(report.targets):
            score = target.tally.scores[kind.name]
            share = score.share
            if share is not None:
                at = middle + step * (n - (len(report.targets) - 1) / 2)
                marks.append(_dot(score, share, at, _colour(n), f"{target.label}: {percent(score)} {counted(score)}"))
        y += height_of_row
    axis = []
    for tenth in range(0, 101, 20):
        x = _x(tenth / 100)
        axis.append(f'<line x1="{x:g}" x2="{x:g}" y1="14" y2="{y:g}"/>')
        axis.append(f'<text x="{x:g}" y="{y + 16:g}" text-anchor="middle" class="dim">{tenth} %</text>')
    return _svg(y + 28, [*axis, *marks], "Shares of each score, by backend")


def _dot(score: Score, share: float, y: float, colour: str, title: str) -> str:
    low, high = score.interval
    return (
        f"<g><title>{_text(title)}, 95 % interval {100 * low:.0f} to {100 * high:.0f} %</title>"
        f'<line x1="{_x(low):.1f}" x2="{_x(high):.1f}" y1="{y:g}" y2="{y:g}" style="stroke:{colour};opacity:.45"/>'
        f'<circle cx="{_x(share):.1f}" cy="{y:g}" r="4" fill="{colour}"/></g>'
    )


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _svg(height: float, marks: Iterable[str], title: str) -> str:
    inner = "".join(marks)
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img"><title>{_text(title)}</title>{inner}</svg>'


# --- quirks --------------------------------------------------------------------------------------------------------


def _quirk_plot(report: Report) -> str:
    rows = mended(report)
    most = max(max(counts) for _, _, counts, _ in rows)
    thick = 8
    marks, y = [], 12.0
    for code, _, counts, _ in rows:
        height = thick * len(counts)
        marks.append(f'<text x="12" y="{y + height / 2 + 4:g}">{_text(code)}</text>')
        for n, count in enumerate(counts):
            if count:
                top, width = y + thick * n, _x(count / most) - LEFT
                marks.append(
                    f'<rect x="{LEFT}" y="{top:g}" width="{width:.1f}" height="{thick - 1}" fill="{_colour(n)}"/>'
                    f'<text x="{LEFT + width + 5:.1f}" y="{top + thick:g}" class="dim">{count}</text>'
                )
        y += height + 8
    return _svg(
        y + 6, [f'<line class="zero" x1="{LEFT}" x2="{LEFT}" y1="8" y2="{y:g}"/>', *marks], "Replies with each quirk"
    )


def _quirk_table(report: Report) -> str:
    rows = [
        _row(f"<code>{_text(code)}</code>", kind, *(str(count or "") for count in counts), _text(meaning))
        for code, kind, counts, meaning in mended(report)
    ]
    return _table(["quirk", "kind", *_labels(report), "what it is"], rows)


# --- items ---------------------------------------------------------------------------------------------------------


def _items(report: Report) -> str:
    rows = []
    for item in report.items[:_MOST_ITEMS]:
        cells = []
        for target in report.targets:
            for streamed in (True, False):
                cell = target.tally.cells.get((item.id, streamed))
                cells.append(f'<td class="cell {_look(cell)}">{_text(cell_text(cell) or NOTHING)}</td>')
        head = f'<code>{_text(item.id)}</code><br><span class="dim">{_text(item.title)}</span>'
        rows.append(f"<tr><td>{head}</td>{''.join(cells)}</tr>")
    heads = [
        f'{label}<br><span class="dim">{form}</span>' for label in _labels(report) for form in ("streamed", "plain")
    ]
    left_out = len(report.items) - _MOST_ITEMS
    note = f'<p class="dim">{left_out} more items are in the JSON report.</p>' if left_out > 0 else ""
    return _table(["item", *heads], rows) + note


def _look(cell: Cell | None) -> str:
    if cell is None or not cell.undamaged.of:
        return "none"
    damaged, odd = cell.undamaged.good < cell.undamaged.of, cell.as_asked.good < cell.as_asked.of
    return "both" if damaged and odd else "damaged" if damaged else "odd" if odd else "ok"


# --- times ---------------------------------------------------------------------------------------------------------


def _time_plot(report: Report) -> str:
    """A dot a reply on a logarithmic line, a stroke at the median, a lighter one at the 95th percentile."""
    rows = [
        (name, n, report.targets[n], column)
        for name, columns in times(report)
        for n, column in enumerate(columns)
        if column
    ]
    every = [time for *_, column in rows for time in (column[0], column[-1])]
    if not every:
        return '<p class="dim">No reply ended.</p>'
    low = math.floor(_power(min(every)))
    high = max(math.ceil(_power(max(every))), low + 1)
    marks, y, last = [], 16.0, ""
    for name, n, target, column in rows:
        if name != last:
            y += 8
            marks.append(f'<text x="12" y="{y + 12:g}">{_text(name)}</text>')
            last = name
        marks.append(_times(column, y + 8, _colour(n), target, low, high))
        y += 20
    axis = []
    for power in range(low, high + 1):
        for digit in (1, 2, 5) if power < high else (1,):
            x = _x((power + math.log10(digit) - low) / (high - low))
            axis.append(f'<line x1="{x:g}" x2="{x:g}" y1="14" y2="{y + 4:g}"/>')
            if digit == 1 or high - low <= 2:
                told = seconds(digit * 10.0**power)
                axis.append(f'<text x="{x:g}" y="{y + 20:g}" text-anchor="middle" class="dim">{told}</text>')
    return _svg(y + 32, [*axis, *marks], "Times to the first event and to the end, by backend")


def _power(time_s: float) -> float:
    return math.log10(max(time_s, 1e-6))


def _times(column: Sequence[float], y: float, colour: str, target: Judged, low: int, high: int) -> str:
    def at(time_s: float) -> float:
        return _x((_power(time_s) - low) / (high - low))

    every = max(1, len(column) // _MOST_DOTS)
    dots = [f'<circle cx="{at(t):.1f}" cy="{y:g}" r="3" fill="{colour}" opacity=".35"/>' for t in column[::every]]
    median, late = quantile(column, 0.5), quantile(column, 0.95)
    assert median is not None
    assert late is not None
    strokes = [
        f'<line x1="{at(t):.1f}" x2="{at(t):.1f}" y1="{y - 7:g}" y2="{y + 7:g}" '
        f'style="stroke:{colour};stroke-width:{width};opacity:{opacity}"/>'
        for t, width, opacity in ((median, 3, 1), (late, 2, 0.6))
    ]
    title = f"{target.label}: median {seconds(median)}, 95th percentile {seconds(late)}, {len(column)} replies"
    return f"<g><title>{_text(title)}</title>{''.join(dots)}{''.join(strokes)}</g>"


def _time_table(report: Report) -> str:
    rows = [_row(name, *map(median_and_p95, columns)) for name, columns in times(report)]
    return _table(["median, 95th percentile", *_labels(report)], rows)


# --- findings ------------------------------------------------------------------------------------------------------


def _findings(target: Judged) -> str:
    parts = []
    for group in ("damage", "behaviour"):
        entries = []
        for finding in examples(target.tally, group):
            detail = f' <span class="dim">{_text(finding.detail)}</span>' if finding.detail else ""
            call = finding.call
            shown = f"<pre>{_text(call.arguments)}</pre>" if call is not None and call.arguments else ""
            entries.append(f"<li>{_text(said_by(finding))}{detail}{shown}</li>")
        if entries:
            parts.append(f'<h3>{group.capitalize()}</h3><ul class="findings">{"".join(entries)}</ul>')
    lines = [
        f"<li>{n} times {_text(code)}: {_text(text)}</li>" for (code, text), n in target.tally.errors.most_common(12)
    ]
    if lines:
        parts.append(f'<h3>Errors</h3><ul class="findings">{"".join(lines)}</ul>')
    lines = [f"<li>{_text(item)}: {_text(why)}</li>" for item, why in list(target.tally.unasked.items())[:12]]
    if lines:
        parts.append(f'<h3>Not asked</h3><ul class="findings">{"".join(lines)}</ul>')
    return f"<h2>{_text(target.label)}: examples</h2>{''.join(parts)}" if parts else ""
