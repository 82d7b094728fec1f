"""The declared types of a tool's parameters: markup that is text only needs them to become JSON.

A tag's value is read as its schema says, in the order null, integer, number, boolean, object, array, string; the first
that fits wins, and what fits nothing stays a string. A parameter that may be a string and nothing else is never
coerced, and neither is one that is not declared.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from proxy.dialects.markup.pythonic import to_json

_DEPTH = 8  # of nested anyOf, oneOf, allOf; a schema nested deeper gives no types
_HOPS = 16  # of $ref to $ref
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.0+)?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_LIMIT = 1024  # characters
_TYPE_OF = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class Shape:
    """The top level of one tool's parameters, from the JSON text of its schema (None: any object)."""

    def __init__(self, schema: bytes | None) -> None:
        try:
            root: Any = orjson.loads(schema) if schema else None
        except orjson.JSONDecodeError:
            root = None
        self._root = root
        self.properties: dict[str, Any] = {}
        self.required: frozenset[str] = frozenset()
        if isinstance(root, dict):
            self._collect(root, 0)

    def _collect(self, schema: Any, depth: int) -> None:
        schema = self._resolved(schema)
        if not isinstance(schema, dict) or depth > _DEPTH:
            return
        if isinstance(properties := schema.get("properties"), dict):
            self.properties = {**properties, **self.properties}
        if isinstance(required := schema.get("required"), list):
            self.required |= {key for key in required if isinstance(key, str)}
        for part in _list(schema.get("allOf")):
            self._collect(part, depth + 1)

    def property_of(self, schema: Any, key: str) -> Any:
        """The schema of a member of an object; None where it is not declared."""
        schema = self._resolved(schema)
        properties = schema.get("properties") if isinstance(schema, dict) else None
        return properties.get(key) if isinstance(properties, dict) else None

    def items_of(self, schema: Any) -> Any:
        schema = self._resolved(schema)
        return schema.get("items") if isinstance(schema, dict) else None

    def types(self, schema: Any) -> frozenset[str]:
        """The types that a value may have; none where the schema does not say."""
        found: set[str] = set()
        self._types(schema, found, set(), 0)
        return frozenset(found)

    def _types(self, schema: Any, found: set[str], seen: set[int], depth: int) -> None:
        schema = self._resolved(schema)
        if not isinstance(schema, dict) or depth > _DEPTH or id(schema) in seen:
            return
        seen.add(id(schema))
        declared = schema.get("type")
        for word in declared if isinstance(declared, list) else [declared]:
            if isinstance(word, str):
                found.add(word.lower())  # Gemini writes OBJECT, INTEGER
        if schema.get("nullable") is True:
            found.add("null")
        values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
        if declared is None:
            found |= {_TYPE_OF.get(type(value), "null") for value in values}
        for word in ("anyOf", "oneOf", "allOf"):
            for part in _list(schema.get(word)):
                self._types(part, found, seen, depth + 1)

    def _resolved(self, schema: Any) -> Any:
        """`schema`, or what its local $ref points to."""
        for _ in range(_HOPS):
            ref = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(ref, str):
                return schema
            if not ref.startswith("#"):
                return None
            schema = self._root
            for part in ref[1:].split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                schema = schema.get(key) if isinstance(schema, dict) else None
        return None

    def typed(self, text: str, schema: Any) -> str:
        """The JSON text of a value that was written as plain text."""
        types = self.types(schema)
        if not types or types == {"string"}:
            return quoted(text)
        probe = text.strip()
        if "null" in types and (probe == "null" or (probe == "None" and "string" not in types)):
            return "null"
        if ("integer" in types and _whole(_INTEGER, probe)) or ("number" in types and _whole(_NUMBER, probe)):
            return probe
        if "boolean" in types and probe.lower() in ("true", "false"):
            return probe.lower()
        for kind, bracket in (("object", "{"), ("array", "[")):
            if kind in types and probe.startswith(bracket):
                found = as_json(probe)
                if found is not None:
                    return found
        return quoted(text)


def as_json(text: str) -> str | None:
    """`text` if it is strict JSON, or the JSON text of the Python literal that it is."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return to_json(text)
    return text


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _whole(pattern: re.Pattern[str], text: str) -> bool:
    return len(text) <= _NUMBER_LIMIT and pattern.fullmatch(text) is not None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
