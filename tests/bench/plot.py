"""The plot of growth.py as SVG: one panel a series, on logarithmic axes, so that a line of slope 1 is linear growth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, TOP = 200, 150, 44, 26  # of a panel's frame, and the room for its labels
STEP_X, STEP_Y = WIDTH + LEFT + 16, HEIGHT + TOP + 40
FLOOR_MIB = 2.0  # less than that is noise of the allocator
ROWS = (("cpu_ms", "cpu", "CPU, ms", 0.01), ("peak_mib", "memory", "memory, MiB", FLOOR_MIB))
STYLE = (
    "text{font:10px sans-serif;fill:#333}.t{font-weight:bold}.f{fill:none;stroke:#999}.g{stroke:#e4e4e4}"
    ".l{fill:none;stroke:#c60;stroke-dasharray:4 3}.p{fill:#069}"
)


class Axis:
    """From values to places on a logarithmic axis of this length."""

    def __init__(self, values: Sequence[float], length: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(self.low + 1, math.ceil(math.log10(max(values))))
        self.length = length

    def at(self, value: float) -> float:
        place = (math.log10(max(value, 1e-12)) - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place)) * self.length

    @property
    def decades(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def growth(series: Sequence[dict[str, Any]]) -> str:
    """`series` as growth.py writes them."""
    width, height = STEP_X * len(series) + 8, STEP_Y * len(ROWS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>Cost of one reply by its size</title><style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for column, one in enumerate(series):
        for row, (key, fit, label, floor) in enumerate(ROWS):
            origin = f"translate({column * STEP_X + LEFT} {row * STEP_Y + TOP})"
            points = [(float(point["size"]), max(float(point[key]), floor)) for point in one["points"]]
            parts.append(f'<g transform="{origin}">{_panel(points, one[fit], one["title"], label)}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(points: Sequence[tuple[float, float]], fit: dict[str, float], title: str, label: str) -> str:
    x, y = Axis([size for size, _ in points], WIDTH), Axis([value for _, value in points], HEIGHT)
    parts = [f'<text class="t" y="-14">{escape(label)}</text><text y="-3">{escape(title)}</text>']
    for value in x.decades:
        at = x.at(value)
        parts.append(f'<path class="g" d="M{at:.1f} 0V{HEIGHT}"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT + 13}" text-anchor="middle">{_short(value)}</text>')
    for value in y.decades:
        at = HEIGHT - y.at(value)
        parts.append(f'<path class="g" d="M0 {at:.1f}H{WIDTH}"/>')
        parts.append(f'<text x="-4" y="{at + 3:.1f}" text-anchor="end">{_short(value)}</text>')
    parts.append(f'<rect class="f" width="{WIDTH}" height="{HEIGHT}"/>')
    low, high = points[0][0], points[-1][0]
    sizes = [low * (high / low) ** (step / 40) for step in range(41)]
    line = [(x.at(size), HEIGHT - y.at(fit["fixed"] + fit["each"] * size)) for size in sizes]
    parts.append(f'<polyline class="l" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in line)}"/>')
    parts += [f'<circle class="p" r="3" cx="{x.at(s):.1f}" cy="{HEIGHT - y.at(v):.1f}"/>' for s, v in points]
    return "".join(parts)


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
