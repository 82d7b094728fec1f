"""JSON Schema of the declared tools: mended, compiled once, and asked about one value.

A schema comes from the client and is hostile until shown otherwise. No reference leaves the document (`offline=True`;
jsonschema-rs fetches http and file references by default, and its `meta` functions do so even with `offline`), regular
expressions are linear or give up early, size and nesting are checked before anything else. Validation holds the GIL,
and a schema of two kilobytes can keep it for ever: what `schema_is_cheap` does not vouch for belongs in a process that
can be killed. Only the first error is ever asked for: collecting all of a million took 15 s and 1.5 GiB.

A check that cannot be carried out is an error of the call, never a pass.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import jsonschema_rs

from proxy.checks.jsontext import MAX_LEVELS
from proxy.faults import Fault, FaultKind
from proxy.model.calls import CallError
from proxy.wire.jsonscan import is_deeper

MAX_SCHEMA_BYTES = 262_144
CHEAP_SCHEMA_BYTES = 16_384

UNCHECKABLE = CallError("", "uncheckable", "the arguments could not be checked against the schema")

_T = TypeVar("_T")


class BoundedCache(Generic[_T]):
    """Values by key; the ones used longest ago go when their count or the sum of their sizes exceeds a limit."""

    def __init__(self, max_entries: int, max_size: int) -> None:
        self._max_entries, self._max_size = max_entries, max_size
        self._size = 0
        self._entries: OrderedDict[Any, tuple[_T, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Any) -> _T | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Any, value: _T, size: int) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._size -= old[1]
        self._entries[key] = value, size
        self._size += size
        while len(self._entries) > self._max_entries or self._size > self._max_size:
            self._size -= self._entries.popitem(last=False)[1][1]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a schema cannot be used: `pointer` into the schema, and one line that quotes nothing of it."""

    pointer: str
    message: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """A usable schema. `names`: the property names that it declares anywhere, which alone may stand in an error."""

    validator: jsonschema_rs.Validator
    names: frozenset[str]
    mended: bool
    wants_object: bool
    """A string that holds an object is meant as the object."""
    only_object: bool
    """Nothing in the schema speaks of its top level, so the rule for tools holds: an object."""


# --- drafts and engines

_DRAFTS: dict[str, type[jsonschema_rs.Validator]] = {
    "json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "json-schema.org/schema": jsonschema_rs.Draft202012Validator,
    "": jsonschema_rs.Draft202012Validator,
}

# The first is linear but has no look-around, and refuses a schema that uses it; the second gives up on a value after so
# many steps back, and what it gave up on is not valid. (It can still be quadratic: such schemas are not cheap.)
_REGEX_ENGINES = (
    jsonschema_rs.RegexOptions(size_limit=1 << 20),
    jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000),
)


def _build(
    draft: type[jsonschema_rs.Validator],
    schema: dict[str, Any],
    formats: bool,
    engine: jsonschema_rs.PatternOptionsType,
) -> jsonschema_rs.Validator:
    return draft(schema, validate_formats=formats, offline=True, pattern_options=engine)


def self_probe() -> None:
    """Raises RuntimeError unless the schema library refuses to read a file that a schema refers to."""
    try:
        _build(jsonschema_rs.Draft202012Validator, {"$ref": "file:///wholecall-probe.json"}, False, _REGEX_ENGINES[0])
    except jsonschema_rs.ValidationError as error:
        if "disabled" in error.message:
            return
    raise RuntimeError("the installed jsonschema-rs follows file:// references: install the version that was locked")


# --- mending

_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLES = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
)
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NULL_IS_A_VALUE = frozenset({"const", "default", "example"})
_SHAPES = frozenset({"$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "not", "if", "const"})


class _Mender:
    """Rewrites what providers accept although JSON Schema does not; `changed` says whether anything was.

    Recursive: a schema has at most 64 levels.
    """

    def __init__(self, draft: type[jsonschema_rs.Validator]) -> None:
        self._boolean_bounds = draft is jsonschema_rs.Draft4Validator
        self.changed = False

    def mend(self, schema: Any, *, top: bool = False) -> Any:
        if not isinstance(schema, dict):
            return schema
        mended = {key: value for key, value in schema.items() if value is not None or key in _NULL_IS_A_VALUE}
        self.changed |= len(mended) < len(schema)
        self._required(mended)
        for key in _MAPS:
            if isinstance(mended.get(key), dict):
                self.changed |= None in mended[key].values()
                mended[key] = {name: {} if sub is None else self.mend(sub) for name, sub in mended[key].items()}
        for key in _LISTS:
            if isinstance(mended.get(key), list):
                mended[key] = [self.mend(sub) for sub in mended[key]]
        for key in _SINGLES:
            if isinstance(mended.get(key), dict):
                mended[key] = self.mend(mended[key])
        self._types(mended)
        self._counts(mended)
        self._bounds(mended)
        return self._nullable(mended, top)

    def _types(self, schema: dict[str, Any]) -> None:
        """Gemini writes the types in capitals, and has one for "not said"."""
        said = schema.get("type")
        if said == "TYPE_UNSPECIFIED":
            del schema["type"]
        elif isinstance(said, str) and said.lower() in _TYPES:
            schema["type"] = said.lower()
        elif isinstance(said, list):
            schema["type"] = [one.lower() if isinstance(one, str) and one.lower() in _TYPES else one for one in said]
        self.changed |= schema.get("type") != said

    def _required(self, schema: dict[str, Any]) -> None:
        """`required: true` on a property (draft 3, and many a hand-written tool) names it in its parent's list."""
        if isinstance(schema.get("required"), bool):
            del schema["required"]
            self.changed = True
        properties = schema.get("properties")
        listed = schema.get("required", [])
        if isinstance(properties, dict) and isinstance(listed, list):
            marked = [name for name, sub in properties.items() if isinstance(sub, dict) and sub.get("required") is True]
            if marked:
                schema["required"] = listed + [name for name in marked if name not in listed]

    def _counts(self, schema: dict[str, Any]) -> None:
        """Gemini's counts are 64-bit integers, which Google's JSON writes as strings."""
        for key in _COUNTS:
            said = schema.get(key)
            if isinstance(said, str) and re.fullmatch("[0-9]{1,18}", said):
                schema[key] = int(said)
                self.changed = True

    def _bounds(self, schema: dict[str, Any]) -> None:
        """Draft 4's boolean exclusiveMinimum and exclusiveMaximum."""
        if self._boolean_bounds:
            return
        for flag, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(schema.get(flag), bool):
                if schema.pop(flag) and bound in schema:
                    schema[flag] = schema.pop(bound)
                self.changed = True

    def _nullable(self, schema: dict[str, Any], top: bool) -> Any:
        """OpenAPI's `nullable`. The arguments as a whole are never null, whatever the schema says."""
        if schema.get("nullable") is not True:
            return schema
        del schema["nullable"]
        self.changed = True
        if top:
            return schema
        if _SHAPES & schema.keys():
            return {"anyOf": [schema, {"type": "null"}]}
        said = schema.get("type")
        if isinstance(said, str):
            schema["type"] = list(dict.fromkeys((said, "null")))
        elif isinstance(said, list) and "null" not in said:
            schema["type"] = [*said, "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
        return schema


# --- compiling

_ANY_OBJECT = b'{"type":"object"}'
_compiled: BoundedCache[Compiled | Problem] = BoundedCache(max_entries=512, max_size=8 << 20)


def compiled(schema: bytes | None, formats: bool = False) -> Compiled | Problem:
    """The schema (JSON text; None: any object) ready for use, from a bounded cache, or why it cannot be used.

    `formats`: whether `format` is asserted, in every draft alike.
    """
    source = _ANY_OBJECT if schema is None else schema
    known = _compiled.get((source, formats))
    if known is None:
        known = _compile(source, formats)
        _compiled.put((source, formats), known, len(source) + 256)
    return known


def compile_problem(schema: bytes, max_schema_bytes: int = MAX_SCHEMA_BYTES) -> tuple[str, str] | None:
    """Pointer and message where a declared schema cannot be used; None: it can, perhaps mended.

    Compiling may be costly unless `schema_is_cheap`.
    """
    if len(schema) > max_schema_bytes:
        return "", f"the schema has {len(schema)} bytes, more than the limit of {max_schema_bytes} (max_schema_bytes)"
    found = compiled(schema)
    return (found.pointer, found.message) if isinstance(found, Problem) else None


def unusable_schema(tool: str, problem: tuple[str, str]) -> Fault:
    """The error for a request whose tool of this name has a schema with this `compile_problem`."""
    pointer, message = problem
    what = f"tool {tool[:128]!r}: its parameters are no usable JSON Schema at {pointer or '/'}: {message}"
    return Fault(FaultKind.INVALID_TOOL_SCHEMA, what, param="tools")


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


def _read(schema: bytes) -> dict[str, Any] | Problem:
    try:
        text = schema.decode()
        if is_deeper(text, MAX_LEVELS):
            return Problem("", f"the schema is nested deeper than {MAX_LEVELS} levels")
        value = json.loads(text, parse_constant=_refuse)
    except ValueError:
        return Problem("", "the schema is not JSON")
    return value if isinstance(value, dict) else Problem("", "the schema must be a JSON object")


def _compile(source: bytes, formats: bool) -> Compiled | Problem:
    schema = _read(source)
    if isinstance(schema, Problem):
        return schema
    named = schema.get("$schema")
    draft = _draft(named)
    if draft is None:
        return Problem("/$schema", "$schema names no known draft; leave it out or name 2020-12, 2019-09, 7, 6 or 4")
    mender = _Mender(draft)
    schema = mender.mend(schema, top=True)
    # Schemas written for an older draft mostly do not say so; `items` with a list is the common case.
    drafts = [draft] if named else [draft, jsonschema_rs.Draft7Validator]
    problem: Problem | None = None
    for tried in drafts:
        refused: BaseException | None = None
        for engine in _REGEX_ENGINES:
            try:
                validator = _build(tried, schema, formats, engine)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001  # a panic of the library is no Exception
                refused = error.with_traceback(None)  # which holds this frame
            else:
                return _made(validator, schema, mender.changed or tried is not draft)
        problem = problem or _problem(schema, refused)
        if isinstance(refused, jsonschema_rs.ValidationError) and _is_reference(refused):
            break  # an older draft may not know the keyword, and would not look at it
    return problem or Problem("", "the schema cannot be compiled")


def _draft(named: Any) -> type[jsonschema_rs.Validator] | None:
    if named is None:
        return jsonschema_rs.Draft202012Validator
    if not isinstance(named, str):
        return None
    return _DRAFTS.get(re.sub("^https?://", "", named).removesuffix("#"))


def _made(validator: jsonschema_rs.Validator, schema: dict[str, Any], mended: bool) -> Compiled:
    said = schema.get("type")
    words = said if isinstance(said, list) else [said]
    speaks = bool((_SHAPES | {"enum"}) & schema.keys())
    return Compiled(
        validator,
        _names(schema),
        mended,
        wants_object=said is None or ("object" in words and "string" not in words),
        only_object=said is None and ("properties" in schema or not speaks),
    )


def _names(schema: Any) -> frozenset[str]:
    names: set[str] = set()
    todo = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            declared = value.get("properties")
            if isinstance(declared, dict):
                names.update(declared)
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
    return frozenset(names)


def _problem(schema: dict[str, Any], error: BaseException | None) -> Problem:
    if not isinstance(error, jsonschema_rs.ValidationError):
        return Problem("", "the schema cannot be compiled")
    path = list(error.instance_path)
    keyword = next((part for part in reversed(path) if isinstance(part, str)), "")
    if _is_reference(error):
        return Problem(_outside(schema), "the reference leads nowhere; other documents are not looked into")
    if error.kind.name == "format" and "attern" in "".join(part for part in path if isinstance(part, str)):
        return Problem(_pointer(path), "not a regular expression that can be used here")
    if re.fullmatch(r"\$?[A-Za-z]{1,30}", keyword):
        return Problem(_pointer(path), f'the value of "{keyword}" is not one that JSON Schema allows')
    return Problem(_pointer(path), "not a valid JSON Schema")


def _is_reference(error: jsonschema_rs.ValidationError) -> bool:
    return isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing)


def _outside(schema: dict[str, Any]) -> str:
    """Pointer to the first reference that leaves the schema; empty if there is none."""
    todo: list[tuple[Any, list[str | int]]] = [(schema, [])]
    while todo:
        value, path = todo.pop()
        if isinstance(value, dict):
            for key in ("$ref", "$dynamicRef", "$schema"):
                if isinstance(value.get(key), str) and not value[key].startswith("#") and (path or key != "$schema"):
                    return _pointer([*path, key])
            todo.extend((sub, [*path, key]) for key, sub in reversed(value.items()))
        elif isinstance(value, list):
            todo.extend((sub, [*path, index]) for index, sub in reversed(list(enumerate(value))))
    return ""


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)[:200]


# --- checking a value

_MESSAGES = {
    "additionalItems": "has more items than the schema allows",
    "additionalProperties": "has a property that the schema does not declare",
    "anyOf": "matches none of the alternatives",
    "const": "is not the one value that the schema allows",
    "contains": "does not contain the right number of the items that the schema asks for",
    "contentEncoding": "is not encoded as the schema asks",
    "contentMediaType": "is not of the media type that the schema asks for",
    "enum": "is none of the values that the schema lists",
    "exclusiveMaximum": "is not below the limit",
    "exclusiveMinimum": "is not above the limit",
    "falseSchema": "is not allowed here",
    "format": "does not have the format that the schema asks for",
    "maxItems": "has too many items",
    "maxLength": "is too long",
    "maxProperties": "has too many properties",
    "maximum": "is above the maximum",
    "minItems": "has too few items",
    "minLength": "is too short",
    "minProperties": "has too few properties",
    "minimum": "is below the minimum",
    "multipleOf": "is not a multiple of what the schema asks for",
    "not": "matches what the schema excludes",
    "oneOf": "does not match exactly one of the alternatives",
    "pattern": "does not match the pattern",
    "propertyNames": "has a property whose name the schema does not allow",
    "required": "lacks a required property",
    "type": "is not of the type that the schema asks for",
    "unevaluatedItems": "has an item that the schema does not allow",
    "unevaluatedProperties": "has a property that the schema does not declare",
    "uniqueItems": "has items that are equal",
}
_PLAIN_NAME = re.compile(r"[\w$.@:+-]{1,64}")
_NOT_AN_OBJECT = CallError("", "type", "is not of type object")


def shown_path(path: Sequence[str | int], names: frozenset[str]) -> str:
    """JSON pointer in which only declared, plain names and list indexes stand; anything else is `*`."""
    return _pointer([part if isinstance(part, int) or _shown(part, names) else "*" for part in path])


def _shown(name: str, names: frozenset[str]) -> bool:
    return name in names and _PLAIN_NAME.fullmatch(name) is not None


def validate(schema: Compiled, value: Any) -> CallError | None:
    """The first thing that the schema refuses in `value`, in fixed words; None: nothing. Never raises."""
    if schema.only_object and not isinstance(value, dict):
        return _NOT_AN_OBJECT
    try:
        schema.validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return _call_error(error, schema.names)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001  # whatever went wrong (a panic is no Exception), it is not valid
        return UNCHECKABLE
    return None


def _call_error(error: jsonschema_rs.ValidationError, names: frozenset[str]) -> CallError:
    rule = error.kind.name
    message = _MESSAGES.get(rule)
    if message is None:
        return CallError(shown_path(error.instance_path, names), "uncheckable", UNCHECKABLE.message)
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Type):
        message = "is not of type " + " or ".join(sorted(error.kind.types))
    elif isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Required) and _shown(error.kind.property, names):
        message = f'lacks the required property "{error.kind.property}"'
    return CallError(shown_path(error.instance_path, names), rule, message)


# --- what is cheap

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "example", "examples", "$comment", "$schema", "$id", "id", "deprecated"}
    | {"readOnly", "writeOnly", "nullable", "propertyOrdering", "strict"}
)
_FLAT = frozenset(
    {"type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "required", "format"}
)
_cheap: BoundedCache[bool] = BoundedCache(max_entries=1024, max_size=8 << 20)


def schema_is_cheap(schema: bytes | None, formats: bool = False) -> bool:
    """Whether compiling the schema is linear in its size, and validating at most in its size times the value's.

    A list of what is allowed, not of what is dangerous: no references, no regular expressions, nothing that looks at a
    value twice, alternatives only between schemas without parts (a failed alternative collects all its errors), and no
    multipleOf (1e300 and 1e-300 took 19 microseconds an item).
    """
    if schema is None:
        return True
    if len(schema) > CHEAP_SCHEMA_BYTES:
        return False
    known = _cheap.get((schema, formats))
    if known is None:
        read = _read(schema)
        known = isinstance(read, Problem) or _is_cheap(read, formats)
        _cheap.put((schema, formats), known, len(schema) + 128)
    return known


def _is_cheap(schema: dict[str, Any], formats: bool) -> bool:
    todo: list[Any] = [schema]
    while todo:
        one = todo.pop()
        if isinstance(one, bool) or one is None:
            continue
        if not isinstance(one, dict):
            return False
        for key, value in one.items():
            if key == "properties" and isinstance(value, dict):
                todo.extend(value.values())
            elif key in ("items", "additionalProperties"):
                todo.append(value)
            elif key in ("anyOf", "oneOf"):
                if not isinstance(value, list) or not all(_is_flat(sub, formats) for sub in value):
                    return False
            elif not (_is_flat({key: value}, formats) or (key == "uniqueItems" and value is False)):
                return False
    return True


def _is_flat(schema: Any, formats: bool) -> bool:
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    for key, value in schema.items():
        if key in _FLAT:
            if key == "format" and formats:
                return False
            if key == "const" and isinstance(value, (dict, list)):
                return False
            if key == "enum" and isinstance(value, list) and any(isinstance(option, (dict, list)) for option in value):
                return False
        elif key not in _ANNOTATIONS and not key.startswith("x-"):
            return False
    return True
