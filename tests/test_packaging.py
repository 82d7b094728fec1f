"""What ships beside the code: dependencies and lock, image, compose.yaml, Prometheus and Grafana files, README."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import dashboard
import proxy
from dockerfile import Instruction, stages
from proxy.config import from_document
from proxy.server.metrics import Metrics

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
CONTAINER: dict[str, Any] = tomllib.loads((ROOT / "config/container.toml").read_text())


def tool(name: str) -> str:
    """The path of a program that a check needs: one of the `test` extra's, or one of the machine's."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {name}: tests/check.sh sees to it")
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


# --- dependencies ---------------------------------------------------------------------------------------------------


LOCKS = {"requirements.lock": list[str](), "config/requirements-otel.lock": ["otel"]}  # and the extras that each is for


def locked(lock: str = "requirements.lock") -> dict[str, tuple[Requirement, int]]:
    """Name to requirement and number of hashes, as a lock has them."""
    text = re.sub(r"^#.*\n", "", (ROOT / lock).read_text(), flags=re.M)
    found: dict[str, tuple[Requirement, int]] = {}
    for entry in text.replace("\\\n", " ").strip().splitlines():
        line, *hashes = re.split(r"\s+--hash=sha256:", entry.strip())
        assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in hashes), entry
        requirement = Requirement(line)
        found[canonicalize_name(requirement.name)] = requirement, len(hashes)
    return found


def test_the_lock_pins_every_package_by_hash_and_names_no_registry() -> None:
    for name in (*LOCKS, "tests/clients/package-lock.json"):
        assert "://" not in (ROOT / name).read_text()
    for requirement, hashes in (pin for lock in LOCKS for pin in locked(lock).values()):
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
        assert hashes, f"{requirement} has no hash"


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_and_pyproject_agree(lock: str) -> None:
    """Every requirement, direct or not, that holds here is locked at a version it admits; nothing else is locked."""
    pins = {name: Version(str(requirement.specifier)[2:]) for name, (requirement, _) in locked(lock).items()}
    waiting = [Requirement(text) for text in PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"]]
    for extra in LOCKS[lock]:
        waiting += [Requirement(text) for text in PROJECT["project"]["optional-dependencies"][extra]]
    reached = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        assert name in pins, f"{requirement} is not in {lock}"
        assert requirement.specifier.contains(pins[name]), f"{requirement}, but {lock} has {pins[name]}"
        if name not in reached and name not in {"flit-core"}:  # the build backend: not installed here, needs nothing
            waiting += [Requirement(text) for text in importlib.metadata.requires(name) or ()]
        reached.add(name)
    elsewhere = {name for name, (req, _) in locked(lock).items() if req.marker and not req.marker.evaluate()}
    assert reached == pins.keys() - elsewhere


def test_the_lock_with_traces_has_the_same_pins_and_more_and_the_image_takes_either() -> None:
    plain, traced = locked(), locked("config/requirements-otel.lock")
    assert {name: str(requirement) for name, (requirement, _) in plain.items()} == {
        name: str(requirement) for name, (requirement, _) in traced.items() if name in plain
    }
    assert {"opentelemetry-sdk", "protobuf"} <= traced.keys() - plain.keys()
    assert one(BUILD, "ARG").text == "LOCK=requirements.lock"
    copied = [source for i in BUILD if i.word == "COPY" for source in i.text.split()[:-1]]
    assert set(LOCKS) <= set(copied)


# Loaded only by, or for, what an extra installs.
OPTIONAL = {ROOT / "proxy/replay/plugin.py": "test", ROOT / "proxy/server/telemetry.py": "otel"}


@functools.cache
def who_brings() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def distributions(path: Path) -> list[set[str]]:
    """Of each package that a module imports and that is neither the standard library nor this one: who may bring it."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.add(node.module.split(".")[0])
    packages = who_brings()
    foreign = imported - sys.stdlib_module_names - {"proxy"}
    return [{canonicalize_name(found) for found in packages[name]} for name in sorted(foreign)]


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def test_what_the_code_imports_is_what_pyproject_declares() -> None:
    modules = [path for path in (ROOT / "proxy").rglob("*.py") if path not in OPTIONAL]
    used = {min(found) for path in modules for found in distributions(path)} - {"pydantic-core"}  # a part of pydantic
    declared = names(PROJECT["project"]["dependencies"])
    assert used <= declared
    # uvicorn loads its loop and its parser by name.
    assert declared - used <= {"uvloop", "httptools"}


@pytest.mark.parametrize("path", OPTIONAL, ids=lambda path: path.name)
def test_what_an_optional_module_imports_is_what_its_extra_declares(path: Path) -> None:
    extra = names(PROJECT["project"]["optional-dependencies"][OPTIONAL[path]])
    assert all(found & extra for found in distributions(path))


def test_every_dependency_has_its_reason_beside_it() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    lines = [
        one for key in ("dependencies", "otel") for one in text.split(f"\n{key} = [\n")[1].split("\n]")[0].splitlines()
    ]
    for before, line in zip(["", *lines], lines, strict=False):
        if not line.lstrip().startswith("#"):
            assert before.lstrip().startswith("#"), f"no reason above {line.strip()}"


def test_the_minor_version_of_the_schema_library_is_pinned() -> None:
    """Its switches that keep it off the network are young: another minor version is tried before it is let in."""
    (pinned,) = [one for one in map(Requirement, PROJECT["project"]["dependencies"]) if one.name == "jsonschema-rs"]
    major, minor, patch = locked()["jsonschema-rs"][0].specifier.__str__()[2:].split(".")
    assert pinned.specifier.contains(f"{major}.{minor}.{int(patch) + 1}")
    assert not pinned.specifier.contains(f"{major}.{int(minor) + 1}.0")
    assert not pinned.specifier.contains("0.51.0")  # the last one without `offline`


def test_the_version_is_the_same_everywhere() -> None:
    assert proxy.__version__ == importlib.metadata.version("wholecall")
    assert COMPOSE["services"]["proxy"]["image"] == f"wholecall:{proxy.__version__}"


# --- the image ------------------------------------------------------------------------------------------------------


BUILD, FINAL = stages((ROOT / "Dockerfile").read_text())


def one(stage: list[Instruction], word: str) -> Instruction:
    (found,) = [instruction for instruction in stage if instruction.word == word]
    return found


def admitted_to_the_context(path: str) -> bool:
    """As .dockerignore says, whose first line excludes all and whose `!` lines bring back files and folders."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return any(line.startswith("!") and (path == line[1:] or path.startswith(f"{line[1:]}/")) for line in lines)


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    run(tool("hadolint"), "--failure-threshold", "style", "Dockerfile")


def test_the_image_runs_as_a_numeric_user_with_exec_forms_and_a_health_check_of_its_own() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", one(FINAL, "USER").text)
    assert one(FINAL, "ENTRYPOINT").argv == ["wholecall"]
    assert one(FINAL, "CMD").argv[0] == "serve"
    assert one(FINAL, "HEALTHCHECK").argv[0] == "python"
    assert not any(instruction.word == "RUN" for instruction in FINAL), "all work is done in the first stage"


def test_all_that_the_image_installs_is_checked_by_hash() -> None:
    installs = [part for i in BUILD if i.word == "RUN" for part in i.text.split("&&") if "pip install" in part]
    assert installs
    for part in installs:
        assert "--require-hashes" in part or ("--no-deps" in part and "--no-build-isolation" in part), part


def test_every_file_that_the_image_copies_exists_and_reaches_the_builder() -> None:
    for instruction in BUILD + FINAL:
        if instruction.word == "COPY" and not instruction.text.startswith("--from"):
            for source in instruction.text.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert admitted_to_the_context(source), f"{source} is excluded by .dockerignore"


def test_ports_and_addresses_agree_between_the_image_its_configuration_and_compose() -> None:
    listen = CONTAINER["listen"]
    assert one(FINAL, "EXPOSE").text.split() == [str(listen["port"]), str(listen["admin_port"])]
    assert f"HEALTH_URL=http://127.0.0.1:{listen['admin_port']}/healthz" in one(FINAL, "ENV").text
    assert COMPOSE["services"]["proxy"]["ports"] == [f"127.0.0.1:{listen['port']}:{listen['port']}"]
    scraped = yaml.safe_load((ROOT / "config/prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"] == [{"targets": [f"proxy:{listen['admin_port']}"]}]
    (mounted,) = COMPOSE["services"]["proxy"]["volumes"]
    copied = [i.text.split() for i in FINAL if i.word == "COPY" and "container.toml" in i.text]
    assert copied == [["config/container.toml", mounted.split(":")[1]]]
    assert mounted.split(":")[1] in one(FINAL, "CMD").argv


@pytest.mark.parametrize("name", ["container.toml", "wholecall.toml"])
def test_the_shipped_configurations_are_good(name: str) -> None:
    run(BIN / "wholecall", "check-config", ROOT / "config" / name)


def test_the_readmes_configuration_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)\n```", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    file = tmp_path / "wholecall.toml"
    file.write_text(text)
    monkeypatch.setenv("VLLM_KEY", "sk-test")
    run(BIN / "wholecall", "check-config", file)


# --- compose.yaml ---------------------------------------------------------------------------------------------------


def test_compose_follows_its_specification() -> None:
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", "compose.yaml")


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_can_do_no_more_than_it_must(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", service["image"]), "a pinned tag"
    assert "build" in service or service["healthcheck"], "what is built here has its check in the image"


def mounts() -> list[tuple[str, str, str]]:
    """(service, source, target) of every file or folder of this repository that compose.yaml mounts."""
    return [
        (name, *volume.split(":")[:2])
        for name, service in COMPOSE["services"].items()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]


def test_every_mount_exists_and_is_read_only() -> None:
    assert mounts()
    for _, source, target in mounts():
        assert (ROOT / source).exists(), source
        assert f"{source}:{target}:ro" in (ROOT / "compose.yaml").read_text()
    named = {
        volume.split(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", ())
        if not volume.startswith(".")
    }
    assert named == COMPOSE["volumes"].keys()


def test_the_proxy_is_given_time_to_drain() -> None:
    drain_s = CONTAINER["listen"].get("drain_s", 30.0)
    assert float(COMPOSE["services"]["proxy"]["stop_grace_period"].removesuffix("s")) > drain_s + 1


# --- Prometheus and Grafana -----------------------------------------------------------------------------------------


def test_promtool_accepts_the_scrape_configuration_with_its_alerts() -> None:
    shown = run(tool("promtool"), "check", "config", "config/prometheus.yml")
    assert f"{len(rules())} rules found" in shown


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "config/prometheus-alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_each_alert_fires_where_it_should_and_is_silent_where_it_should_not() -> None:
    run(tool("promtool"), "test", "rules", "tests/data/prometheus-alerts.yml")
    tested = (ROOT / "tests/data/prometheus-alerts.yml").read_text()
    alerts = [rule["alert"] for rule in rules() if "alert" in rule]
    assert len(alerts) == len(set(alerts))
    assert [name for name in alerts if f'alertname="{name}"' not in tested] == []


def test_each_alert_says_what_is_wrong_and_what_to_do_and_how_grave_it_is() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert rule["annotations"].keys() == {"summary", "description"}
            what, *to_do = re.split(r"[.:] (?=[A-Z])", rule["annotations"]["summary"])
            assert what, rule
            assert to_do, rule


def test_each_metric_is_on_the_dashboard() -> None:
    exported = set(re.findall(r"^# TYPE (\w+)", Metrics().render().decode(), flags=re.M))
    ours = {name for name in exported if name.startswith("wholecall_") and not name.endswith("_created")}
    assert ours == dashboard.metrics()
    # Of the process: there with one worker only, and the platform's own dashboards have them.
    assert all(name.startswith("process_") for name in exported - ours if not name.endswith("_created"))


def test_promtool_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, (query, _) in enumerate(dashboard.queries())]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run(tool("promtool"), "check", "rules", file)


def test_grafana_is_provisioned_with_the_source_and_the_dashboard_that_exist() -> None:
    target = {name: {t: s for n, s, t in mounts() if n == name} for name in COMPOSE["services"]}["grafana"]
    provisioning = ROOT / target["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in COMPOSE["services"]
    (provider,) = yaml.safe_load((provisioning / "dashboards/wholecall.yaml").read_text())["providers"]
    folder = ROOT / target[provider["options"]["path"]]
    home = COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (folder / Path(home).name).exists()
    (variable,) = [v for v in dashboard.DASHBOARD["templating"]["list"] if v["type"] == "datasource"]
    assert variable["current"]["value"] == source["uid"]


def test_the_dashboards_panels_have_their_own_ids_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard.DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard.DASHBOARD["panels"]}) == len(dashboard.DASHBOARD["panels"])


# --- what people read and run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["README.md", "Dockerfile", "compose.yaml", ".ci/run", "tests/check.sh", "pyproject.toml", "config/container.toml"],
)
def test_every_path_that_a_file_names_exists(name: str) -> None:
    text = (ROOT / name).read_text()
    for path in re.findall(r"(?<![\w./-])(?:\./)?((?:config|tests|proxy|\.ci)/[\w./-]*\w)", text):
        assert (ROOT / path).exists() or path == "tests/clients/node_modules", f"{name} names {path}"


def test_the_readmes_key_gets_its_client_in(tmp_path: Path) -> None:
    (command,) = re.findall(r"^ *(.*hash-key\)?)$", (ROOT / "README.md").read_text(), flags=re.M)
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    config = from_document(
        {
            "backends": [{"name": "a", "dialect": "openai-chat", "base_url": "http://127.0.0.1:1/v1"}],
            "clients": [{"name": "c", "key": done.stdout.strip()}],
        },
        {},
    )
    assert config.client_for((tmp_path / "client.key").read_text().strip()) is not None
    assert (tmp_path / "client.key").stat().st_mode & 0o077 == 0


def test_every_command_that_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`?wholecall ([a-z-]+)", text)) - {"serves"}
    assert {"serve", "check-config", "hash-key", "replay", "explain", "demo"} <= named
    told = run(BIN / "wholecall", "--help")
    assert [name for name in named if not re.search(rf"^  {name} ", told, flags=re.M)] == []


def readme_commands() -> list[str]:
    return re.findall(r"^```sh\n(.*?)\n```", (ROOT / "README.md").read_text(), flags=re.M | re.S)


def test_the_readme_begins_with_the_two_commands_and_ci_runs_the_second() -> None:
    demo, test, *_ = readme_commands()
    assert demo == "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/wholecall demo"
    assert test == "sh tests/check.sh"
    assert (ROOT / ".ci/run").read_text().endswith(f"exec {test}\n")
