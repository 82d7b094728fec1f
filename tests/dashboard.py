"""Reads the Grafana dashboard: its queries, with the variables filled in as Grafana does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "config/grafana/dashboards/wholecall.json").read_text()
)
VARIABLES = {"$__rate_interval": "1m", "$__range": "1h", "$route": ".*", "$backend": ".*"}


def queries() -> list[tuple[str, set[str]]]:
    """Each panel's PromQL and the labels that its legend needs."""
    found = []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            assert "$" not in query, f"a variable that the dashboard does not define: {query}"
            found.append((query, set(re.findall(r"{{(\w+)}}", target["legendFormat"]))))
    return found


def metrics() -> set[str]:
    """The names of all metrics that a panel shows; a histogram's without the ending of its buckets."""
    return {
        name.removesuffix("_bucket") for query, _ in queries() for name in re.findall(r"\bwholecall_[a-z_]+", query)
    }


def label_values() -> list[tuple[str, str]]:
    """(metric, label) of each variable that lists a label's values."""
    definitions = [variable.get("definition", "") for variable in DASHBOARD["templating"]["list"]]
    return [
        (found[1], found[2]) for text in definitions if (found := re.fullmatch(r"label_values\((\w+), (\w+)\)", text))
    ]
