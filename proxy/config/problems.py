"""What is wrong with a file, in words: one line a mistake, with its key path and what to do."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import ErrorDetails

from proxy.config.tables import Config, Table
from proxy.config.values import shown

# Where a value sits in the file: ("backends", 0, "dialect").
Location = tuple[str | int, ...]

_TYPES = {
    "string_type": 'text in quotes, like "text"',
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false, without quotes",
    "dict_type": 'a table, like { name = "value" }',
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake.

    `key_path` is like `backends[1].dialect`, counted from 0; the file's own path where it is about the whole file.
    `table` is the name that the table around it goes by in the file, `message` says what is wrong and what to do.
    `line` is counted from 1; 0 where it is not known.
    """

    key_path: str
    message: str
    table: str = ""
    line: int = 0

    def __str__(self) -> str:
        table, line = f" ({self.table})" if self.table else "", f", line {self.line}" if self.line else ""
        return f"{self.key_path}{table}{line}: {self.message}"


class ConfigError(Exception):
    """The file cannot be used. Its text is one line a problem, in the order of the tables."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(*problems)
        self.problems = list(problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def problem_at(where: Location, message: str, document: dict[str, object], line: int) -> Problem:
    path = ""
    for part in where:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            key = part if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", part) else shown(part)
            path += f".{key}" if path else key
    return Problem(path, message, _table_name(where, document), line)


def described(error: ErrorDetails) -> tuple[Location, str]:
    """The place and the words for one error of pydantic's. Only harmless kinds of values are quoted: what may be a
    secret is checked by functions of ours, which word their own message (`values.py`)."""
    where = tuple(part for part in error["loc"] if part != "[key]")  # pydantic's mark for the key of a pair
    return where, _words(error["type"], where, error)


def _words(kind: str, where: Location, error: ErrorDetails) -> str:
    value = error["input"]
    bounds = error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(where)
    if kind == "missing":
        return f"is missing; add {where[-1]} = ..."
    if kind == "literal_error":
        return _not_one_of(value, where)
    if kind == "greater_than_equal":
        return f"{shown(value)} is too small; give at least {bounds['ge']:g}"
    if kind == "less_than_equal":
        return f"{shown(value)} is too large; give at most {bounds['le']}"
    if kind == "string_too_long":
        return f"is too long; give at most {bounds['max_length']} characters"
    if kind == "model_type":
        return f"must be one table; write [{where[-1]}]" if isinstance(where[-1], str) else "must be a table"
    if kind == "tuple_type":
        is_tables = len(where) == 1
        return f"must be a list of tables; write [[{where[0]}]]" if is_tables else 'must be a list, like ["one", "two"]'
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}"
    return error["msg"]


def _unknown_key(where: Location) -> str:
    *around, key = where
    table = _table_at(tuple(around))
    if homes := [home for home, model in _tables() if key in model.model_fields and model is not table]:
        return f"unknown key here; {homes[0]} has one of this name"
    if near := difflib.get_close_matches(str(key), table.model_fields, 1):
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; the keys here are {', '.join(table.model_fields)}"


def _not_one_of(value: object, where: Location) -> str:
    *around, key = where
    choices = typing.get_args(_table_at(tuple(around)).model_fields[str(key)].annotation)
    near = difflib.get_close_matches(str(value), choices, 1)
    hint = f"; did you mean {shown(near[0])}?" if near else ""
    return f"{shown(value)} is none of {', '.join(map(shown, choices))}{hint}"


def _tables() -> list[tuple[str, type[Table]]]:
    """The tables at the top of the file, as one writes their head."""
    found = []
    for name, field in Config.model_fields.items():
        is_list = typing.get_origin(field.annotation) is tuple
        found.append((f"[[{name}]]" if is_list else f"[{name}]", _table_at((name,))))
    return found


def _table_at(where: Location) -> type[Table]:
    table: type[Table] = Config
    for part in where:
        if isinstance(part, str) and part in table.model_fields:
            annotation = table.model_fields[part].annotation
            for candidate in (annotation, *typing.get_args(annotation)):
                if isinstance(candidate, type) and issubclass(candidate, Table):
                    table = candidate
    return table


def _table_name(where: Location, document: dict[str, object]) -> str:
    """What the list's table around `where` calls itself: its name, or a route's models."""
    if len(where) < 2:
        return ""
    match document.get(str(where[0])):
        case list(tables) if isinstance(where[1], int) and isinstance(table := tables[where[1]], dict):
            name, models = table.get("name"), table.get("models")
            if isinstance(models, list):
                name = ", ".join(map(str, models))
            return shown(name) if name else ""
    return ""
