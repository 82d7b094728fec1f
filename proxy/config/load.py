"""From the file to a `Config`, or to all of its problems at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from proxy.config.lines import Lines
from proxy.config.problems import ConfigError, Location, Problem, described, problem_at
from proxy.config.tables import Backend, Config, Inspector
from proxy.config.values import Context, is_loopback, shown

MAX_FILE_BYTES = 1 << 20

# Reached before a backend is chosen: a backend's own value would never be asked for.
CLIENT_SIDE_LIMITS = {"max_request_bytes", "max_head_bytes", "max_headers", "max_schema_bytes", "head_s", "body_s"}

_NAMES_A_KEY = re.compile("auth|cookie|key|secret|token", re.IGNORECASE)  # of a header

Document = dict[str, Any]


def load(path: Path, env: Mapping[str, str]) -> Config:
    """The configuration in the TOML file at `path`; `env` is asked for `env:NAME`. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}; check the path and its permissions") from None
    if len(data) > MAX_FILE_BYTES:
        raise _unusable(path, f"is over {MAX_FILE_BYTES} bytes; a configuration is smaller")
    try:
        text = data.decode("utf-8-sig")
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise _unusable(path, f"is no UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _unusable(path, _syntax(str(error))) from None
    except (RecursionError, ValueError):  # a thousand brackets, an integer of thousands of digits
        raise _unusable(path, "holds a value that is nested too deeply or is too large") from None
    return from_document(document, env, text)


def from_document(document: Document, env: Mapping[str, str], text: str = "") -> Config:
    """The configuration in a parsed file; `text` is the file, for the lines of problems. Raises ConfigError."""
    found = list(_across(document))
    config = None
    try:
        config = Config.model_validate(document, context=Context(env))
    except ValidationError as error:
        found += map(described, error.errors())
    if config is None or found:
        found.sort(key=_place)
        lines = Lines(text)
        raise ConfigError([problem_at(where, message, document, lines.of(where)) for where, message in found])
    return config


def check(path: Path, env: Mapping[str, str]) -> list[str]:
    """The problems of the file, a line each; none where it is good."""
    try:
        load(path, env)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def warnings(config: Config) -> list[str]:
    """What is allowed in a good configuration and hardly meant, a line each."""
    if not config.clients:
        if not any(map(_has_a_key, config.backends)) or is_loopback(config.listen.host):
            return []
        message = (
            "whoever reaches this address uses the backends' keys: add [[clients]], listen on 127.0.0.1, or see to it "
            "that the network keeps others out"
        )
        return [str(Problem("listen.host", message, shown(config.listen.host)))]
    found = [(i, backend) for i, backend in enumerate(config.backends) if backend.api_key.mode == "forward"]
    message = (
        '"forward" sends the keys of [[clients]] to this backend: they are credentials of the proxy; '
        "give the backend an api_key of its own, or let it decide who gets in and leave [[clients]] out"
    )
    return [str(Problem(f"backends[{i}].api_key", message, shown(backend.name))) for i, backend in found]


def _has_a_key(backend: Backend) -> bool:
    return backend.api_key.mode == "own" or any(map(_NAMES_A_KEY.search, backend.headers))


def summary(config: Config) -> list[str]:
    """A good configuration in a few lines, without secrets."""
    listen, policy, inspector = config.listen, config.policy, config.inspector
    shown_as = "values masked" if inspector.redact else "values shown as they are"
    admin = f"port {listen.admin_port}" if listen.admin_port else "the same port"
    who = ", ".join(client.name for client in config.clients) or "anyone who reaches the port"
    judged = f"block, as {policy.block_as}" if policy.mode == "block" else policy.mode
    keys = {"own": "its own key", "forward": "the client's key", "none": "no key"}
    return [
        f"listen   {listen.host} port {listen.port}; metrics and health on {admin}",
        *([f"inspect  /inspect on {admin}; {shown_as}"] if inspector.enabled else []),
        f"clients  {who}",
        *(["traces   over OTLP, as the OTEL_* environment variables say"] if config.telemetry.traces else []),
        f"policy   {judged}; repair {policy.repair}; annotations {policy.annotations}",
        *(f"backend  {b.name}: {b.dialect} at {b.base_url}, {keys[b.api_key.mode]}" for b in config.backends),
        *(
            f"route    {', '.join(r.models)} -> {', '.join(r.backends)}{' (drawn by weight)' if r.weights else ''}"
            for r in config.router.routes
        ),
    ]


def _unusable(path: Path, message: str) -> ConfigError:
    return ConfigError([Problem(str(path), message)])


def _syntax(message: str) -> str:
    message = message.replace("Cannot overwrite a value", "a key stands twice")
    if at := re.fullmatch(r"(.*) \(at (line \d+, column \d+)\)", message, re.DOTALL):
        return f"{at[2]}: no valid TOML: {at[1]}"
    return f"no valid TOML: {message}"


def _place(found: tuple[Location, str]) -> tuple[int, int]:
    """Problems of one table stand together, the tables in the order of the documentation."""
    top, *rest = found[0]
    order = [*Config.model_fields]
    index = rest[0] if rest and isinstance(rest[0], int) else -1
    return (order.index(str(top)) if top in order else -1), index


# --- what is wrong between keys: read from the plain document, so that it is found beside any other mistake ---------


def _across(document: Document) -> Iterator[tuple[Location, str]]:
    yield from _ports(document)
    yield from _backends(document)
    yield from _routes(document)
    yield from _same_names("clients", document)
    yield from _live_with_drop(document)
    yield from _inspector(document)


def _ports(document: Document) -> Iterator[tuple[Location, str]]:
    listen = _table(document, "listen")
    if listen.get("admin_port") and listen["admin_port"] == listen.get("port", 8080):
        yield ("listen", "admin_port"), "is the same as port; give another one, or 0 to share the port"


def _inspector(document: Document) -> Iterator[tuple[Location, str]]:
    inspector = _table(document, "inspector")
    if inspector.get("enabled") is True and inspector.get("token", "") == "":
        yield ("inspector", "token"), "is missing; the inspector shows replies only to who has its token"
    one, all_of_them = (inspector.get(key, Inspector.model_fields[key].default) for key in ("entry_bytes", "bytes"))
    if isinstance(one, int) and isinstance(all_of_them, int) and one > all_of_them:
        yield (
            ("inspector", "entry_bytes"),
            f"{one} is more than bytes = {all_of_them}, which bounds all entries together",
        )


def _backends(document: Document) -> Iterator[tuple[Location, str]]:
    if document.get("backends", []) == []:
        yield ("backends",), "there is no backend; add a [[backends]] table with name, dialect and base_url"
    yield from _same_names("backends", document)
    for i, backend in _tables(document, "backends"):
        for key in CLIENT_SIDE_LIMITS & _table(backend, "limits").keys():
            yield ("backends", i, "limits", key), "is reached before a backend is chosen; set it in [limits]"
        headers = [name.lower() for name in _table(backend, "headers")]
        for name in sorted({name for name in headers if headers.count(name) > 1}):
            yield ("backends", i, "headers", name), "stands twice, in different letter case; keep one"
        if "authorization" in headers and backend.get("api_key", "") != "":
            yield ("backends", i, "headers", "authorization"), "is what api_key sends; keep one of the two"


def _routes(document: Document) -> Iterator[tuple[Location, str]]:
    names = [backend.get("name") for _, backend in _tables(document, "backends")]
    if len(names) > 1 and document.get("routes", []) == []:
        yield ("routes",), "there are several backends and no route; add a [[routes]] table with models and backends"
    for i, route in _tables(document, "routes"):
        backends, weights = route.get("backends"), route.get("weights")
        if isinstance(backends, list):
            for j, name in enumerate(backends):
                if isinstance(name, str) and name not in names:
                    known = ", ".join(dict.fromkeys(name for name in names if isinstance(name, str))) or "none"
                    yield ("routes", i, "backends", j), f"there is no backend {shown(name)}; there are: {known}"
            if isinstance(weights, list) and weights:
                if len(weights) != len(backends):
                    count = f"{len(weights)} for {len(backends)} backends"
                    yield ("routes", i, "weights"), f"{count}; give one for each, or none"
                elif not any(weights):
                    yield ("routes", i, "weights"), "are all 0; give at least one backend more"
        if route.get("model") and route.get("strip_prefix"):
            yield ("routes", i, "strip_prefix"), "does nothing where model is set; keep one of the two"


def _live_with_drop(document: Document) -> Iterator[tuple[Location, str]]:
    """Each combination of [policy], a route's and a backend's overrides; reported where `delivery` is set last."""
    layers: list[list[tuple[Location, Document]]] = [[(("policy",), _table(document, "policy"))]]
    for name in ("routes", "backends"):
        own = [((name, i, "policy"), _table(table, "policy")) for i, table in _tables(document, name)]
        layers.append([((), {}), *(layer for layer in own if layer[1])])
    reported = set()
    for combination in product(*layers):
        merged: Document = {}
        where: Location = ()
        for place, policy in combination:
            merged |= policy
            where = (*place, "delivery") if "delivery" in policy else where
        is_drop = merged.get("block_as") == "drop" and merged.get("mode") != "annotate"
        if merged.get("delivery") == "live" and is_drop and where not in reported:
            reported.add(where)
            yield where, 'does not go with block_as = "drop": what was sent cannot be dropped; use "held" or "error"'


def _same_names(key: str, document: Document) -> Iterator[tuple[Location, str]]:
    first: dict[object, int] = {}
    for i, table in _tables(document, key):
        name = table.get("name")
        if isinstance(name, str) and first.setdefault(name, i) != i:
            yield (key, i, "name"), f"is the name of {key}[{first[name]}] too; give each its own"


def _table(parent: Document, key: str) -> Document:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _tables(parent: Document, key: str) -> list[tuple[int, Document]]:
    value = parent.get(key)
    return [(i, table) for i, table in enumerate(value) if isinstance(table, dict)] if isinstance(value, list) else []
