"""The configuration: what the shown file says is true, every mistake is found at once, and no secret shows."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.config import Client, Config, ConfigError, Listen, Policy, check, from_document, load, summary, warnings
from proxy.config.lines import MAX_READS
from proxy.config.tables import Backend, RouteTable, Table
from proxy.config.values import BUILT
from proxy.exchange import ExchangeSettings

SHOWN = Path(__file__).parents[1] / "config" / "wholecall.toml"
ENV = {"VLLM_KEY": "sk-upstream", "WHOLECALL_KEY": "wc-client"}
BACKEND = '[[backends]]\nname = "a"\ndialect = "openai-chat"\nbase_url = "http://127.0.0.1:8000/v1"\n'


def built(text: str, env: Mapping[str, str] = ENV) -> Config:
    return from_document(tomllib.loads(text), env)


def problems(text: str, env: Mapping[str, str] = ENV) -> dict[str, str]:
    """The problems of a file by key path; fails where there are none."""
    with pytest.raises(ConfigError) as caught:
        built(text, env)
    return {problem.key_path: problem.message for problem in caught.value.problems}


def with_examples(text: str) -> str:
    """The shown file with the examples in it turned on: lines that begin with "#" and no blank."""
    return re.sub(r"^#(?=[\[a-z])", "", text, flags=re.MULTILINE)


def fields_of(table: type[Table]) -> Iterator[tuple[str, type[Table] | None, Any]]:
    """The keys of a table: name, the table it holds (if any), its default."""
    for name, field in table.model_fields.items():
        inner = [
            part
            for part in (field.annotation, *typing.get_args(field.annotation))
            if isinstance(part, type) and issubclass(part, Table)
        ]
        yield name, inner[0] if inner else None, ... if field.is_required() else field.get_default()


# --- the shown file ----------------------------------------------------------------------------------------------


def test_the_shown_file_works_as_it_stands_without_any_environment() -> None:
    config = load(SHOWN, {})
    plan = config.router.match("any/model")
    assert plan is not None
    backend = config.backend(plan.route.backends[0])
    assert (backend.base_url, backend.api_key.mode) == ("http://127.0.0.1:8000/v1", "none")
    assert config.settings_for(plan.route, backend) == ExchangeSettings()
    assert not config.clients


def test_the_shown_file_has_every_key_with_its_true_default() -> None:
    document = tomllib.loads(with_examples(SHOWN.read_text()))

    def compare(table: type[Table], shown: dict[str, Any], where: str) -> None:
        for name, inner, default in fields_of(table):
            assert name in shown, f"{where}.{name} is not shown"
            if inner and table in (Backend, RouteTable):
                assert set(shown[name]) <= set(inner.model_fields), where  # overrides: an example of a few keys
            elif inner:
                value = shown[name]
                compare(inner, value[0] if isinstance(value, list) else value, f"{where}.{name}")
            elif default is not ... and name not in ("api_key", "token"):
                default = list(default) if isinstance(default, tuple) else default
                assert (shown[name], type(shown[name])) == (default, type(default)), f"{where}.{name}"

    compare(Config, document, "")
    assert document["backends"][0]["api_key"] == document["inspector"]["token"] == ""


def test_the_examples_in_the_shown_file_are_valid_too() -> None:
    config = built(with_examples(SHOWN.read_text()))
    assert config.client_for("wc-client") is config.clients[0]
    assert config.limits_for(config.backends[0]).max_streams == 64


def test_the_shown_file_gives_every_limit_its_unit_in_the_name_or_counts_something() -> None:
    counts = {"max_headers", "max_calls", "max_events", "max_streams"}
    for name, _, _ in fields_of(type(Config().limits)):
        assert name in counts or name.endswith(("_bytes", "_s", "_ms")), name


# --- good files --------------------------------------------------------------------------------------------------


def test_a_single_backend_needs_no_route() -> None:
    config = built(BACKEND)
    plan = config.router.match("gpt-4o")
    assert plan is not None
    assert (plan.pattern, plan.model, plan.route.backends) == ("*", "gpt-4o", ("a",))


def test_a_backend_overrides_single_keys_of_its_route_which_overrides_the_defaults() -> None:
    config = built(
        '[policy]\nmode = "annotate"\nannotations = "never"\nrepair = "off"\n[limits]\nmax_calls = 7\nsettle_ms = 50\n'
        + BACKEND
        + '[backends.policy]\nannotations = "always"\n[backends.limits]\nmax_events = 9\n'
        + BACKEND.replace('"a"', '"b"')
        + '[[routes]]\nmodels = ["x"]\nbackends = ["a", "b"]\n'
        + '[routes.policy]\nannotations = "problems"\nmode = "block"\nuncompilable_schema = "skip"\n'
        + '[[routes]]\nmodels = ["*"]\nbackends = ["b"]\n'
    )
    first, second = config.router.routes
    a, b = config.backends
    expected = ExchangeSettings(
        mode="block",
        annotations="always",
        repair=False,
        skip_uncompilable=True,
        max_calls=7,
        max_events=9,
        settle_s=0.05,
    )
    assert config.settings_for(first, a) == expected
    assert config.settings_for(first, b) == dataclasses.replace(expected, annotations="problems", max_events=1_000_000)
    assert config.settings_for(second, b) == ExchangeSettings(
        mode="annotate", annotations="never", repair=False, max_calls=7, settle_s=0.05
    )


def test_a_key_set_to_its_default_in_an_override_still_overrides() -> None:
    config = built('[policy]\nmode = "annotate"\n' + BACKEND + '[backends.policy]\nmode = "block"\n')
    assert config.settings_for(config.router.routes[0], config.backends[0]).mode == "block"


def test_a_configuration_is_immutable() -> None:
    config = built(BACKEND + 'headers = { X-A = "1" }\n')
    with pytest.raises(ValidationError):
        config.listen.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.backends[0].headers["x-a"] = "2"  # type: ignore[index]


def test_a_byte_order_mark_before_the_file_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(b"\xef\xbb\xbf" + BACKEND.encode())
    assert load(file, {}).backends[0].name == "a"


@pytest.mark.parametrize(
    ("header", "passes"),
    [
        ("openai-organization", True),
        ("anthropic-beta", True),
        ("traceparent", True),
        ("x-trace-id", True),
        ("x-api-key", False),
        ("authorization", False),
        ("cookie", False),
        ("connection", False),
        ("user-agent", False),
    ],
)
def test_only_named_headers_go_upstream_and_never_a_credential(header: str, passes: bool) -> None:
    backend = built(BACKEND + 'forward_headers = ["X-Trace-*", "x-*"]\n').backends[0]
    assert backend.forwards(header) is passes


# --- mistakes ----------------------------------------------------------------------------------------------------


def test_all_mistakes_of_a_file_are_found_at_once() -> None:
    found = problems(
        """
port = 3
[listen]
prot = 8080
port = 99999
[policy]
mode = "blok"
[limits]
max_calls = "many"
[[backends]]
name = "a"
dialect = "openai-chat"
base_url = "http://user:pw@host/v1"
api_key = "env:NOT_SET"
[[backends]]
name = "a"
dialect = "openai-chat"
[[routes]]
models = ["[qwen"]
backends = ["a", "nowhere"]
weights = [1]
[routes.policy]
mode = 1
[[clients]]
name = "c"
key = "sha256:12"
"""
    )
    assert list(found) == [
        "port",
        "listen.port",
        "listen.prot",
        "policy.mode",
        "limits.max_calls",
        "backends[0].base_url",
        "backends[0].api_key",
        "backends[1].name",
        "backends[1].base_url",
        "routes[0].backends[1]",
        "routes[0].weights",
        "routes[0].models[0]",
        "routes[0].policy.mode",
        "clients[0].key",
    ]
    assert found["port"] == "unknown key here; [listen] has one of this name"
    assert found["listen.prot"] == "unknown key; did you mean port?"
    assert found["policy.mode"] == '"blok" is none of "block", "annotate"; did you mean "block"?'


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("", "backends", "add a [[backends]] table"),
        ("[backends]\n", "backends", "write [[backends]]"),
        ("backends = 3\n", "backends", "write [[backends]]"),
        ("backends = [3]\n", "backends[0]", "must be a table"),
        ("[[listen]]\n" + BACKEND, "listen", "write [listen]"),
        ("[inspect]\nenabled = true\n" + BACKEND, "inspect", "did you mean inspector?"),
        ("[inspector]\nenabled = true\n" + BACKEND, "inspector.token", "is missing"),
        ('[inspector]\ntoken = "short"\n' + BACKEND, "inspector.token", "is shorter than 16 characters"),
        ("[inspector]\nentry_bytes = 40000000\n" + BACKEND, "inspector.entry_bytes", "is more than bytes"),
        (BACKEND + BACKEND.replace('"a"', '"b"'), "routes", "add a [[routes]] table"),
        (BACKEND + '[policy]\nrecover = "all"\n', "policy.recover", 'must be "auto", "off" or a list of formats'),
        (BACKEND + '[policy]\nrecover = ["hermes", "herpes"]\n', "policy.recover", '"herpes" is no format; these are'),
        (BACKEND + "[policy]\nrecover = true\n", "policy.recover", 'must be "auto", "off" or a list of formats'),
        (BACKEND + "[policy]\nreask = 4\n", "policy.reask", "at most 3"),
        (BACKEND.replace("openai-chat", "openai"), "backends[0].dialect", 'did you mean "openai-chat"?'),
        (BACKEND + "[policy]\nformats = 1\n", "policy.formats", "true or false"),
        (BACKEND + "[limits]\nmax_calls = true\n", "limits.max_calls", "a whole number"),
        (BACKEND + "[limits]\nmax_calls = 0\n", "limits.max_calls", "at least 1"),
        (BACKEND + "[limits]\nhead_s = nan\n", "limits.head_s", "a finite number"),
        (BACKEND + "[limits]\nhead_s = -1\n", "limits.head_s", "at least 0.001"),
        (BACKEND + "[limits]\nmax_calls = 0x" + "f" * 9000 + "\n", "limits.max_calls", "at most"),
        (BACKEND + "[backends.limits]\nhead_s = 1.0\n", "backends[0].limits.head_s", "set it in [limits]"),
        (BACKEND + "forward_headers = 'a'\n", "backends[0].forward_headers", "must be a list"),
        (BACKEND + "forward_headers = ['Cookie']\n", "backends[0].forward_headers[0]", "carries a credential"),
        (BACKEND + "forward_headers = ['*']\n", "backends[0].forward_headers[0]", "may only end a name"),
        (BACKEND + "headers = { Host = 'a' }\n", "backends[0].headers.Host", "single connection"),
        (BACKEND + 'headers = { x = "a\\r\\nb: c" }\n', "backends[0].headers.x", "cannot carry"),
        (BACKEND + "headers = { 'a b' = 'c' }\n", 'backends[0].headers."a b"', "no name of a header"),
        (BACKEND + "headers = { x-A = '', X-a = '' }\n", "backends[0].headers.x-a", "stands twice"),
        (
            BACKEND + "api_key = 'k'\nheaders = { Authorization = 'x' }\n",
            "backends[0].headers.authorization",
            "keep one of the two",
        ),
        (BACKEND + "api_key = 'Bearer abc'\n", "backends[0].api_key", "give the key alone"),
        (BACKEND + "api_key = 'file:key'\n", "backends[0].api_key", "must be absolute"),
        (BACKEND + "api_key = 'file:/no/such/file'\n", "backends[0].api_key", "there is no file"),
        (BACKEND + "api_key = 'env:EMPTY'\n", "backends[0].api_key", "is empty"),
        (BACKEND + "api_key = 1\n", "backends[0].api_key", "text in quotes"),
        (BACKEND + "[[routes]]\nmodels = []\nbackends = ['a']\n", "routes[0].models", "give at least one"),
        (BACKEND + "[[routes]]\nmodels = ['*']\nbackends = []\n", "routes[0].backends", "give at least one"),
        (BACKEND + "[[routes]]\nmodels = ['*']\nbackends = ['a', 'a']\n", "routes[0].backends", '"a" twice'),
        (BACKEND + "[[routes]]\nmodels = ['*']\nbackends = ['a']\nweights = [0]\n", "routes[0].weights", "are all 0"),
        (
            BACKEND + "[[routes]]\nmodels = ['*']\nbackends = ['a']\nweights = [-1]\n",
            "routes[0].weights[0]",
            "at least 0",
        ),
        (
            BACKEND + "[[routes]]\nmodels = ['*']\nbackends = ['a']\nmodel = 'm'\nstrip_prefix = 'p'\n",
            "routes[0].strip_prefix",
            "does nothing where model is set",
        ),
        (BACKEND + "[listen]\nport = 9000\nadmin_port = 9000\n", "listen.admin_port", "same as port"),
        (BACKEND + "[listen]\nhost = '[::1]'\n", "listen.host", "no address to listen on"),
        (BACKEND + "[listen]\nhost = '127.0.0.256'\n", "listen.host", "no address to listen on"),
        (BACKEND + "api_key = '$VLLM_KEY'\n", "backends[0].api_key", "env:NAME"),
        (BACKEND + "[listen]\nhosts = ['llm.example.com:8080']\n", "listen.hosts[0]", "no host name"),
        (BACKEND + "[listen]\nhosts = ['a', 'https://llm.example.com']\n", "listen.hosts[1]", "no host name"),
        (BACKEND + "[[clients]]\nname = 'c'\nkey = ''\n", "clients[0].key", "is empty"),
        (BACKEND + "[[clients]]\nname = 'c'\nkey = 'k'\n" * 2, "clients[1].name", "is the name of clients[0] too"),
        (
            BACKEND + "[[clients]]\nname = 'c'\nkey = 'k'\n[[clients]]\nname = 'd'\nkey = 'k'\n",
            "clients[1].key",
            "the key of another client",
        ),
    ],
)
def test_a_mistake_is_named_with_its_key_and_what_to_do(text: str, key: str, says: str) -> None:
    found = problems(text, {"EMPTY": " \n"})
    assert key in found
    assert says in found[key]


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000/v1",
        "ftp://host/v1",
        "http://",
        "http:///v1",
        "http://host:port/v1",
        "http://host:0/v1",
        "http://host:99999/v1",
        "http://user@host/v1",
        "http://host/v1?api-version=1",
        "http://host/v1#x",
        "http://host/../admin",
        "http://host/v 1",
        "http://host/v1\u0007",
        "http://[::1/v1",
        "http://host/v1/chat/completions",
    ],
)
def test_a_base_url_that_would_not_do_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_document({"backends": [{"name": "a", "dialect": "openai-chat", "base_url": url}]}, {})
    assert [problem.key_path for problem in caught.value.problems] == ["backends[0].base_url"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[policy]\ndelivery = "live"\nblock_as = "drop"\n' + BACKEND, "policy.delivery"),
        (
            '[policy]\nblock_as = "drop"\n' + BACKEND + '[backends.policy]\ndelivery = "live"\n',
            "backends[0].policy.delivery",
        ),
        (
            '[policy]\ndelivery = "live"\n'
            + BACKEND
            + '[[routes]]\nmodels = ["*"]\nbackends = ["a"]\n[routes.policy]\nblock_as = "drop"\n',
            "policy.delivery",
        ),
    ],
)
def test_live_delivery_does_not_go_with_drop_wherever_the_two_are_set(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(text)
    assert [p.key_path for p in caught.value.problems if 'block_as = "drop"' in p.message] == [key]


def test_a_problem_is_one_line_and_names_its_table_as_the_file_does() -> None:
    with pytest.raises(ConfigError) as caught:
        built(BACKEND + '"evil\\nkey\\u2028" = 1\n[[routes]]\nmodels = ["qwen*", "x"]\nbackends = ["b"]\n')
    keys = "name, dialect, base_url, api_key, headers, forward_headers, policy, limits"
    assert str(caught.value).splitlines() == [
        f'backends[0]."evil\\nkey\\u2028" ("a"): unknown key; the keys here are {keys}',
        'routes[0].backends[0] ("qwen*, x"): there is no backend "b"; there are: a',
    ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[listen]\nport 8080\n", "line 2, column 6: no valid TOML"),
        (b"a = 1\na = 2\n", "line 2, column 6: no valid TOML: a key stands twice"),
        (b"a = 1\n\xff", "is no UTF-8 text (byte 6)"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"a = " + b"1" * 5000, "too large"),
        (b"#" * (1 << 20) + b"\n", "is over 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_toml_gives_one_line_with_the_place(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(data)
    (line,) = check(file, {})
    assert line.startswith(f"{file}: {says}") or says in line
    assert "\n" not in line


def test_a_file_that_is_missing_or_a_folder_gives_one_line(tmp_path: Path) -> None:
    assert check(tmp_path / "none.toml", {}) == [
        f"{tmp_path / 'none.toml'}: cannot be read: No such file or directory; check the path and its permissions"
    ]
    (line,) = check(tmp_path, {})
    assert "Is a directory" in line


KEYS = sorted({key for table in (Config, Policy, Backend, RouteTable, Client, Listen) for key in table.model_fields})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "env:X", "*", "live", "[", "\n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=40,
)


@given(st.dictionaries(st.sampled_from([*Config.model_fields]), VALUES))
def test_whatever_a_file_says_the_answer_is_a_configuration_or_lines_of_problems(document: dict[str, Any]) -> None:
    lines = []
    try:
        from_document(document, {})
    except ConfigError as error:
        lines = list(map(str, error.problems))
    assert [line for line in lines if len(line.splitlines()) != 1 or line.startswith(":")] == []


def test_what_is_built_is_a_part_of_what_the_file_can_say() -> None:
    assert all(BUILT.values())


# --- secrets -----------------------------------------------------------------------------------------------------

SECRET = "sk-very-secret-0123456789"


def test_a_key_may_come_from_the_environment_a_file_or_the_text_itself(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    for form, env in ((SECRET, {}), ("env:K", {"K": SECRET}), (f"file:{file}", {})):
        key = built(f'{BACKEND}api_key = "{form}"\nheaders = {{ api-key = "{form}" }}\n', env).backends[0]
        assert (key.api_key.mode, key.api_key.secret.reveal()) == ("own", SECRET)
        assert key.headers["api-key"].reveal() == SECRET
    assert built(BACKEND + 'api_key = "forward"\n').backends[0].api_key.mode == "forward"
    assert built(BACKEND + 'api_key = "env:K"\n', {"K": "forward"}).backends[0].api_key.mode == "own"


def test_no_secret_shows_in_a_repr_or_the_summary() -> None:
    config = built(
        f'{BACKEND}api_key = "{SECRET}"\nheaders = {{ api-key = "{SECRET}" }}\n'
        f'[[clients]]\nname = "c"\nkey = "{SECRET}"\n'
    )
    shown = [repr(config), str(config), *summary(config)]
    assert not [text for text in shown if SECRET in text]
    assert hashlib.sha256(SECRET.encode()).hexdigest() not in repr(config)


def test_no_secret_shows_in_a_message_about_it(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(f"{SECRET}\u20ac".encode())
    for value in (f"Bearer {SECRET}", f"{SECRET}\u20ac", f"file:{file}", f"env:{SECRET[:3]}"):
        with pytest.raises(ConfigError) as caught:
            from_document(
                {
                    "backends": [
                        {
                            "name": "a",
                            "dialect": "openai-chat",
                            "base_url": f"http://u:{SECRET}@h/?{SECRET}",
                            "api_key": value,
                            "headers": {"x": f"{SECRET}\n"},
                        }
                    ],
                    "clients": [{"name": "c", "key": f"sha256:{SECRET}"}, {"name": "d", "key": [SECRET]}],
                },
                {},
            )
        assert len(caught.value.problems) == 5
        assert SECRET not in f"{caught.value}{caught.value!r}"
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_client_is_known_by_its_key_however_the_file_gives_it() -> None:
    digest = hashlib.sha256(b"hashed").hexdigest().upper()
    config = built(
        BACKEND
        + "".join(
            f'[[clients]]\nname = "{name}"\nkey = "{key}"\n'
            for name, key in (("plain", "literal"), ("hash", f"sha256:{digest}"), ("var", "env:WHOLECALL_KEY"))
        )
    )

    def name_for(key: str) -> str | None:
        client: Client | None = config.client_for(key)
        return client.name if client else None

    assert [name_for(key) for key in ("literal", "hashed", "wc-client")] == ["plain", "hash", "var"]
    assert [name_for(key) for key in ("", "litera", f"sha256:{digest}", digest, "\ud800", "k\xe9y")] == [None] * 6


def test_a_problem_of_a_file_tells_its_line(tmp_path: Path) -> None:
    lines = {
        "[listen]": "",
        "port = 99999": "listen.port",
        "[polices]": "polices",
        "[[backends]]": "backends[0].dialect",  # missing: the head of its table
        'name = "a"': "",
        'base_url = "ftp://x"': "backends[0].base_url",
        'api_key = """': "backends[0].api_key",
        "two": "",
        '# lines"""': "",
        "[[backends]]  # again": "",
        'name = "a" # name = "b"': "backends[1].name",
        'dialect = """': "",
        'openai-chat"""': "",
        'base_url = "http://127.0.0.1:1/v1"': "",
        "[backends.limits]": "",
        "head_s = 3": "backends[1].limits.head_s",
        "[[routes]]": "",
        'models = ["*"]': "",
        "backends = [": "routes[0].backends[1]",
        '  "a",': "",
        '  "zz",': "",
        "]": "",
        "'policy'.mode = 'blocks'": "routes[0].policy.mode",
    }
    path = tmp_path / "c.toml"
    for end in ("\n", "\r\n"):
        path.write_text("\ufeff" + end.join(lines), newline="")
        with pytest.raises(ConfigError) as caught:
            load(path, ENV)
        told = {problem.key_path: problem.line for problem in caught.value.problems}
        assert told == {key: number for number, key in enumerate(lines.values(), 1) if key}
    assert any(line.startswith("listen.port, line 2: 99999") for line in check(path, ENV))


@pytest.mark.parametrize(("element", "told"), [("1,", {0, 1, 3_003}), ('"a = b",', {0}), ("[],", {0})])
def test_a_file_is_read_a_bounded_number_of_times_for_its_lines(
    element: str, told: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "long = [\n" + (element + "\n") * 3_000 + "]\n[polices]\n"
    reads = []
    loads = tomllib.loads

    def counted(text: str) -> dict[str, Any]:
        reads.append(text)
        return loads(text)

    document = tomllib.loads(text)
    monkeypatch.setattr("proxy.config.lines.tomllib.loads", counted)
    with pytest.raises(ConfigError) as caught:
        from_document(document, ENV, text)
    assert {problem.line for problem in caught.value.problems} == told
    assert len(reads) <= MAX_READS


def test_a_problem_tells_no_line_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    for text in ("", "[log]\n", "[polices]\n" + "# long\n" * 10_000):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load(path, ENV)
        assert {problem.line for problem in caught.value.problems} == {0}


# --- for check-config --------------------------------------------------------------------------------------------


def test_the_summary_tells_where_requests_go() -> None:
    config = built(
        BACKEND
        + 'api_key = "env:VLLM_KEY"\n'
        + BACKEND.replace('"a"', '"b"')
        + '[[routes]]\nmodels = ["qwen*", "m"]\nbackends = ["a", "b"]\nweights = [1, 2]\n'
        + '[[clients]]\nname = "agents"\nkey = "env:WHOLECALL_KEY"\n'
    )
    assert summary(config) == [
        "listen   127.0.0.1 port 8080; metrics and health on the same port",
        "clients  agents",
        "policy   block, as error; repair safe; annotations problems",
        "backend  a: openai-chat at http://127.0.0.1:8000/v1, its own key",
        "backend  b: openai-chat at http://127.0.0.1:8000/v1, no key",
        "route    qwen*, m -> a, b (drawn by weight)",
    ]
    assert check(SHOWN, {}) == []


def test_a_backend_that_would_be_sent_the_keys_of_clients_is_warned_of() -> None:
    forward, client = 'api_key = "forward"\n', '[[clients]]\nname = "agents"\nkey = "env:WHOLECALL_KEY"\n'
    second = BACKEND.replace('"a"', '"b"') + '[[routes]]\nmodels = ["*"]\nbackends = ["a", "b"]\n'
    (line,) = warnings(built(BACKEND + second.replace("[[routes]]", forward + "[[routes]]") + client))
    assert line.startswith('backends[1].api_key ("b"): "forward" sends the keys of [[clients]] to this backend')
    for harmless in (BACKEND + forward, BACKEND + client, BACKEND + 'api_key = "env:VLLM_KEY"\n' + client):
        assert warnings(built(harmless)) == []
    assert warnings(load(SHOWN, {})) == []


def test_a_key_in_a_header_is_warned_of_too() -> None:
    listen = '[listen]\nhost = "10.0.0.1"\n'
    assert warnings(built(listen + BACKEND + 'headers = {"x-team" = "a"}\n')) == []
    assert len(warnings(built(listen + BACKEND + 'headers = {"api-key" = "a"}\n'))) == 1


def test_a_public_name_may_end_in_a_dot() -> None:
    assert built(BACKEND + "[listen]\nhosts = ['LLM.example.com.']\n").listen.hosts == ("llm.example.com",)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "127.0.0.1", "::1", "localhost"])  # noqa: S104
def test_a_backend_key_that_anyone_on_the_network_may_use_is_warned_of(host: str) -> None:
    own, client = 'api_key = "env:VLLM_KEY"\n', '[[clients]]\nname = "agents"\nkey = "env:WHOLECALL_KEY"\n'
    listen = f'[listen]\nhost = "{host}"\n'
    assert warnings(built(listen + BACKEND + own + client)) == warnings(built(listen + BACKEND)) == []
    found = warnings(built(listen + BACKEND + own))
    if host in ("127.0.0.1", "::1", "localhost"):
        assert found == []
    else:
        (line,) = found
        assert line.startswith(f'listen.host ("{host}")')
        assert "[[clients]]" in line
