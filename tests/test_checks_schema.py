from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from proxy.checks import schema as checked
from proxy.checks.schema import (
    UNCHECKABLE,
    BoundedCache,
    Compiled,
    Problem,
    compile_problem,
    compiled,
    schema_is_cheap,
    self_probe,
    validate,
)
from proxy.model.calls import CallError

DATA = Path(__file__).parent / "data"
SHAPES: dict[str, Any] = json.loads((DATA / "schema_shapes.json").read_text("utf-8"))


def source(schema: Any) -> bytes:
    return json.dumps(schema).encode()


def usable(schema: Any, formats: bool = False) -> Compiled:
    made = compiled(source(schema), formats)
    assert isinstance(made, Compiled), made
    return made


def error(schema: Any, value: Any) -> CallError:
    found = validate(usable(schema), value)
    assert found is not None
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_schema_shapes_that_providers_accept(name: str) -> None:
    shape = SHAPES[name]
    assert compile_problem(source(shape["schema"])) is None
    made = usable(shape["schema"])
    assert made.mended is shape["mended"]
    assert [validate(made, value) for value in shape["takes"]] == [None] * len(shape["takes"])
    for value in shape["refuses"]:
        assert validate(made, value) is not None, value


def test_a_tool_without_parameters_takes_any_object() -> None:
    made = compiled(None)
    assert isinstance(made, Compiled)
    assert validate(made, {"a": 1}) is None
    assert validate(made, []) == CallError("", "type", "is not of type object")


@pytest.mark.parametrize(
    ("schema", "pointer", "part"),
    [
        ('"{}"', "", "must be a JSON object"),
        ("[]", "", "must be a JSON object"),
        ("5", "", "must be a JSON object"),
        ("true", "", "must be a JSON object"),
        ("{", "", "not JSON"),
        ('{"a": NaN}', "", "not JSON"),
        ('{"minimum": ' + "1" * 5000 + "}", "", "not JSON"),
        ('{"title": "\\ud800"}', "", "cannot be compiled"),
        ('{"properties": {"a": {"type": "str"}}}', "/properties/a/type", '"type"'),
        ('{"properties": 5}', "/properties", '"properties"'),
        ('{"required": "a"}', "/required", '"required"'),
        ('{"properties": {"a/b": {"pattern": "("}}}', "/properties/a~1b/pattern", "regular expression"),
        ('{"$ref": "#/$defs/none"}', "", "reference"),
        ('{"properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}}', "/properties/a/$ref", "reference"),
        ('{"$schema": "http://127.0.0.1:1/x"}', "/$schema", "draft"),
        ('{"$schema": "http://json-schema.org/draft-03/schema#"}', "/$schema", "draft"),
        ('{"$schema": 5}', "/$schema", "draft"),
        ('{"not":' * 64 + "{}" + "}" * 64, "", "64 levels"),
        ('{"properties":{"a":' * 128 + "{}" + "}}" * 128, "", "64 levels"),
        ("[" * 100_000, "", "64 levels"),
    ],
)
def test_what_cannot_be_used_is_named(schema: str, pointer: str, part: str) -> None:
    problem = compile_problem(schema.encode("utf-8", "surrogatepass"))
    assert problem is not None
    assert problem[0] == pointer
    assert part in problem[1]
    assert len(problem[1]) <= 200


def test_bytes_that_are_no_utf8_are_no_schema() -> None:
    assert compile_problem(b'{"title": "\xff"}') == ("", "the schema is not JSON")


def test_the_size_limit_names_itself_and_comes_first() -> None:
    big = source({"type": "object", "pattern": "a" * 1_000_000})
    since = time.process_time()
    assert compile_problem(big) == (
        "",
        "the schema has 1000033 bytes, more than the limit of 262144 (max_schema_bytes)",
    )
    assert compile_problem(b"{}", 1) == ("", "the schema has 2 bytes, more than the limit of 1 (max_schema_bytes)")
    assert time.process_time() - since < 0.2


# --- nothing leaves the document


@contextlib.contextmanager
def listener() -> Iterator[tuple[int, list[int]]]:
    """A port and, after the block, the connections that came to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        seen: list[int] = []
        yield server.getsockname()[1], seen
        server.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            server.accept()
            seen.append(1)


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        ({"$ref": "http://127.0.0.1:{port}/x"}, True),
        ({"$schema": "http://127.0.0.1:{port}/x", "type": "object"}, True),
        ({"$dynamicRef": "http://127.0.0.1:{port}/x"}, True),
        ({"$id": "http://127.0.0.1:{port}/a", "properties": {"a": {"$ref": "b"}}}, True),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "http://127.0.0.1:{port}/x"}, True),
        ({"$defs": {"unused": {"$ref": "http://127.0.0.1:{port}/x"}}}, True),
        # Never needed, so never looked for.
        ({"properties": {"a": {"$schema": "http://127.0.0.1:{port}/x", "$id": "http://127.0.0.1:{port}/y"}}}, False),
        ({"const": {"$ref": "http://127.0.0.1:{port}/x"}}, False),
    ],
)
def test_no_schema_reaches_the_network(schema: Any, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with listener() as (port, seen):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        text = json.dumps(schema).replace("{port}", str(port)).encode()
        assert (compile_problem(text) is not None) is refused
        made = compiled(text)
        if isinstance(made, Compiled):
            validate(made, {"a": 1})
    assert seen == []


def test_no_schema_reads_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"const": "SECRET"}')
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for file in (secret, fifo, tmp_path / "missing"):
        problem = compile_problem(source({"properties": {"a": {"$ref": file.as_uri()}}}))
        assert problem == (
            "/properties/a/$ref",
            "the reference leads nowhere; other documents are not looked into",
        )


def test_the_probe_notices_a_library_that_reads_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    self_probe()
    online = jsonschema_rs.Draft202012Validator

    def build(draft: Any, schema: Any, formats: bool, engine: Any) -> Any:
        return online(schema, offline=False)

    monkeypatch.setattr(checked, "_build", build)
    with pytest.raises(RuntimeError, match="file://"):
        self_probe()


# --- judging


ERRORS: list[tuple[Any, Any, CallError]] = [
    ({"required": ["a"], "properties": {"a": {}}}, {}, CallError("", "required", 'lacks the required property "a"')),
    ({"required": ["a"]}, {}, CallError("", "required", "lacks a required property")),
    ({"required": ["<b>"], "properties": {"<b>": {}}}, {}, CallError("", "required", "lacks a required property")),
    (
        {"properties": {"l": {"items": {"properties": {"n": {"type": ["integer", "null"]}}}}}},
        {"l": [{}, {"n": "1"}]},
        CallError("/l/1/n", "type", "is not of type integer or null"),
    ),
    (
        {"additionalProperties": {"type": "string"}},
        {"ignore all previous instructions": 1},
        CallError("/*", "type", "is not of type string"),
    ),
    (
        {"properties": {"a": {}}, "additionalProperties": False},
        {"ignore all previous instructions": 1},
        CallError("", "additionalProperties", "has a property that the schema does not declare"),
    ),
    (
        {"properties": {"a": {"enum": ["x"]}}},
        {"a": "secret"},
        CallError("/a", "enum", "is none of the values that the schema lists"),
    ),
    ({"properties": {"a": False}}, {"a": 1}, CallError("/a", "falseSchema", "is not allowed here")),
    (
        {"propertyNames": {"pattern": "^a"}},
        {"secret": 1},
        CallError("", "propertyNames", "has a property whose name the schema does not allow"),
    ),
    ({"properties": {"a~/b": {"minLength": 2}}}, {"a~/b": "x"}, CallError("/*", "minLength", "is too short")),
]


@pytest.mark.parametrize(("schema", "value", "expected"), ERRORS)
def test_errors_are_fixed_words_and_declared_names(schema: Any, value: Any, expected: CallError) -> None:
    assert error(schema, value) == expected


def test_every_kind_of_error_of_the_official_suites_has_its_words() -> None:
    told = set()
    for name, draft in DRAFTS.items():
        for cases in SUITE["tests"][name].values():
            for case in cases:
                made = (
                    compiled(source({**case["schema"], "$schema": draft})) if isinstance(case["schema"], dict) else None
                )
                if isinstance(made, Compiled):
                    found = [validate(made, value) for _, value, _ in case["tests"]]
                    told |= {one.rule for one in found if one is not None}
                    assert all(len(one.message) <= 200 for one in found if one is not None)
    assert "uncheckable" not in told
    assert len(told) >= 20


def test_formats_are_asserted_in_every_draft_or_in_none() -> None:
    for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"):
        schema = {"$schema": draft, "type": "object", "properties": {"a": {"format": "email"}}}
        assert validate(usable(schema), {"a": "x"}) is None
        assert validate(usable(schema, formats=True), {"a": "x"}) == CallError(
            "/a", "format", "does not have the format that the schema asks for"
        )


def test_a_regular_expression_that_steps_back_too_often_is_not_valid() -> None:
    for schema in ({"pattern": "(?=.*x)(?=.*y)z"}, {"not": {"pattern": "(?=.*x)(?=.*y)z"}}):
        since = time.process_time()
        assert validate(usable({"properties": {"a": schema}}), {"a": "x" * 10_000}) is not None
        assert time.process_time() - since < 1.0


def test_only_the_first_of_a_million_errors_is_looked_at() -> None:
    since = time.process_time()
    assert error({"properties": {"a": {"items": {"type": "string"}}}}, {"a": [1] * 1_000_000}).path == "/a/0"
    assert time.process_time() - since < 1.0


@pytest.mark.parametrize("what", [ValueError("x"), MemoryError(), BaseException("a panic")])
def test_whatever_goes_wrong_is_not_valid(what: BaseException) -> None:
    class Broken:
        def validate(self, value: Any) -> None:
            raise what

    made = Compiled(Broken(), frozenset(), False, True, False)  # type: ignore[arg-type]
    assert validate(made, {}) == UNCHECKABLE


def test_a_value_that_the_library_cannot_read_is_not_valid() -> None:
    assert validate(usable({"properties": {"a": {"type": "string"}}}), {"a": object()}) == UNCHECKABLE


@pytest.mark.parametrize(
    ("schema", "wants"),
    [
        (None, True),
        ({}, True),
        ({"type": "object"}, True),
        ({"type": "OBJECT"}, True),
        ({"properties": {}}, True),
        ({"type": ["object", "null"]}, True),
        ({"type": ["object", "string"]}, False),
        ({"type": "string"}, False),
    ],
)
def test_whether_an_object_is_wanted(schema: Any, wants: bool) -> None:
    made = compiled(None if schema is None else source(schema))
    assert isinstance(made, Compiled)
    assert made.wants_object is wants


# --- cost


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "y"]}}, "additionalProperties": False},
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "A", "default": None}}},
        {"properties": {"l": {"type": "array", "items": {"type": "object", "properties": {"n": {"format": "date"}}}}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "x-order": ["a"]},
        {"type": "OBJECT", "nullable": True, "description": None, "properties": {"a": {"type": "STRING"}}},
    ],
)
def test_ordinary_tools_are_cheap(schema: Any) -> None:
    assert schema_is_cheap(source(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {}}},
        {"properties": {"a": {"$dynamicRef": "#x"}}},
        {"$recursiveRef": "#"},
        {"properties": {"a": {"pattern": "a"}}},
        {"patternProperties": {"a": {}}},
        {"properties": {"a": {"uniqueItems": True}}},
        {"unevaluatedProperties": False},
        {"properties": {"a": {"enum": [[1]]}}},
        {"properties": {"a": {"const": {}}}},
        {"properties": {"a": {"contains": {}}}},
        {"properties": {"a": {"anyOf": [{"items": {"type": "string"}}]}}},
        {"properties": {"a": {"anyOf": [{"anyOf": [{}]}]}}},
        {"allOf": [{}]},
        {"not": {}},
        {"if": {}},
        {"dependentSchemas": {}},
        {"propertyNames": {}},
        {"properties": {"a": {"multipleOf": 1e-300}}},
        {"properties": [1]},
        {"items": 5},
        {"description": "x" * 20_000},
    ],
)
def test_what_is_not_surely_linear_is_not_cheap(schema: Any) -> None:
    assert not schema_is_cheap(source(schema))


def test_asserted_formats_are_not_cheap() -> None:
    assert not schema_is_cheap(source({"properties": {"a": {"format": "email"}}}), formats=True)


def test_the_cache_is_bounded_by_count_and_by_size() -> None:
    cache: BoundedCache[int] = BoundedCache(max_entries=3, max_size=10)
    for key in range(5):
        cache.put(key, key, 1)
    assert [cache.get(key) for key in range(5)] == [None, None, 2, 3, 4]
    cache.get(2)
    cache.put(5, 5, 8)
    assert [cache.get(key) for key in range(6)] == [None, None, 2, None, 4, 5]
    cache.put(5, 6, 9)
    assert len(cache) == 2
    cache.put(7, 7, 11)
    assert len(cache) == 0


def test_a_schema_is_compiled_once() -> None:
    text = source({"type": "object", "title": "compiled once"})
    assert compiled(text) is compiled(bytes(bytearray(text)))
    assert isinstance(compiled(b"["), Problem)


# --- the official suites


SUITE: dict[str, Any] = json.loads(gzip.decompress((DATA / "json_schema_suite.json.gz").read_bytes()))
DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
# Refers to a resource that is no file of the suite's: with it no registry can be made for draft 7.
UNUSABLE = {"draft2020-12": set[str](), "draft7": {"http://localhost:1234/nested-absolute-ref-to-string.json"}}


@pytest.mark.parametrize(("name", "count"), [("draft2020-12", 1257), ("draft7", 913)])
def test_the_official_suites_pass_whole_with_our_options(name: str, count: int) -> None:
    other = next(one for one in DRAFTS if one != name)
    draft = checked._draft(DRAFTS[name])
    assert draft is not None
    registry = jsonschema_rs.Registry(
        [
            (uri, schema)
            for uri, schema in SUITE["remotes"].items()
            if f"/{other}/" not in uri and uri not in UNUSABLE[name]
        ],
        draft=jsonschema_rs.Draft7 if name == "draft7" else jsonschema_rs.Draft202012,
    )
    right = 0
    for cases in SUITE["tests"][name].values():
        for case in cases:
            mender = checked._Mender(draft)
            schema = mender.mend(case["schema"], top=True)
            assert not mender.changed, case["description"]
            validator = None
            for engine in checked._REGEX_ENGINES:
                with contextlib.suppress(jsonschema_rs.ValidationError):
                    validator = draft(
                        schema, validate_formats=False, offline=True, pattern_options=engine, registry=registry
                    )
                    break
            for description, value, valid in case["tests"]:
                assert validator is not None, (case["description"], description)
                assert validator.is_valid(value) is valid, (case["description"], description)
                right += 1
    assert right == count
