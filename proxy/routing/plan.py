"""The model's name in a request decides its route; the route names the backends to try, in order."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A name beyond this is no model of anybody's and matches nothing: the time to match grows with it.
MAX_MODEL_CHARS = 1024
# What a metric label may hold at most.
MAX_LABEL_CHARS = 64


@dataclass(frozen=True, slots=True)
class Route:
    """One route as configured. `index` is its position in the file, from 0.

    `models` are case-sensitive globs (`*`, `?`, `[abc]`), `backends` the names to try. `weights` is empty or has one
    number a backend. `model`, where set, is the name that the upstream is asked for; else `strip_prefix` is taken off.
    """

    index: int
    models: tuple[str, ...]
    backends: tuple[str, ...]
    weights: tuple[float, ...] = ()
    strip_prefix: str = ""
    model: str = ""

    def upstream_model(self, model: str) -> str:
        """The name that goes upstream for the client's `model`. Never empty unless `model` is."""
        return self.model or model.removeprefix(self.strip_prefix) or model


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """The answer for one request: its route, the glob that matched and the model to ask the upstream for."""

    route: Route
    pattern: str
    model: str

    @property
    def label(self) -> str:
        """The pattern as a metric label: from the configuration only, at most 64 characters."""
        return self.pattern[:MAX_LABEL_CHARS]


class Router:
    """Finds the route of a model. The first glob that matches wins, in the order of the file."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._globs = [
            (re.compile(fnmatch.translate(pattern)), pattern, route)
            for route in self.routes
            for pattern in route.models
        ]

    def match(self, model: str) -> RoutePlan | None:
        """The plan for a request that names `model`; None: no route has it (or the name is over 1024 characters)."""
        if len(model) > MAX_MODEL_CHARS:
            return None
        for glob, pattern, route in self._globs:
            if glob.match(model):  # a translated glob ends in \Z, so this is a full match
                return RoutePlan(route, pattern, route.upstream_model(model))
        return None

    @property
    def default(self) -> RoutePlan | None:
        """The plan for a request that names no model: the last route with the glob "*"; `model` is that route's own
        or empty."""
        for route in reversed(self.routes):
            if "*" in route.models:
                return RoutePlan(route, "*", route.model)
        return None

    @property
    def plain_models(self) -> tuple[str, ...]:
        """The models that routes name in full, without a glob, in the order of the file and each once."""
        return tuple(dict.fromkeys(p for r in self.routes for p in r.models if not set(p) & set("*?[")))


def order(plan: RoutePlan, draw: float, is_up: Callable[[str], bool]) -> list[str]:
    """The backends to try for one request, best first; never empty.

    Backends that are down are left out; where all are, all are tried, since a wrong guess must not close a route. With
    weights the first one is drawn among those left (`draw`: evenly from [0, 1)), and the others follow in order. A
    backend of weight 0 is only ever a stand-in.
    """
    route = plan.route
    names = [name for name in route.backends if is_up(name)]
    if not names:
        return list(route.backends)
    if not route.weights:
        return names
    weight_of = dict(zip(route.backends, route.weights, strict=True))
    point = draw * sum(weight_of[name] for name in names)
    for name in names:
        if point < weight_of[name]:
            return [name, *(other for other in names if other != name)]
        point -= weight_of[name]
    return names  # every weight left is 0
