"""systemd and Kubernetes: what config/wholecall.service and config/kubernetes say is valid, and fits the proxy."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

import dashboard
import proxy
from proxy.cli import main
from proxy.config import Config, Listen, from_document
from proxy.server.supervisor import GRACE_S
from test_packaging import tool

ROOT = Path(__file__).resolve().parent.parent
KUBERNETES = ROOT / "config" / "kubernetes"
GATEWAY = KUBERNETES / "gateway"
OLDEST, NEWEST = "1.29", "1.37"  # the sidecar needs the first, the schemas at hand end with the second

Document = dict[str, Any]


def documents() -> Iterator[tuple[str, Document]]:
    """Every object under config/kubernetes, with its file. Not one: what configures kustomize or a Helm chart."""
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        if path.name not in ("kustomization.yaml", "prometheus-adapter.yaml"):
            for document in yaml.safe_load_all(path.read_text()):
                yield str(path.relative_to(KUBERNETES)), document


OBJECTS = list(documents())


def the(kind: str, folder: str = "gateway/") -> Any:
    (found,) = [document for file, document in OBJECTS if document["kind"] == kind and file.startswith(folder)]
    return found


# Of the Prometheus operator's objects the keys that are used here, and no other. Source: its own definitions, 0.80.
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}


def _table(required: Document, **optional: Any) -> Document:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": [*required],
        "additionalProperties": False,
    }


def _list(items: Document) -> Document:
    return {"type": "array", "minItems": 1, "items": items}


def _operators(kind: str, spec: Document) -> Document:
    return _table(
        {
            "apiVersion": {"const": "monitoring.coreos.com/v1"},
            "kind": {"const": kind},
            "metadata": _table({"name": {"type": "string"}}, labels=_LABELS),
            "spec": spec,
        }
    )


_TEXT = {"type": "string"}
_DURATION = {"type": "string", "pattern": "^[0-9]+[smhd]$"}
_SELECTOR = _table({"matchLabels": _LABELS})
_ENDPOINT = _table(
    {"port": _TEXT},
    path=_TEXT,
    interval=_DURATION,
    relabelings=_list(_table({"targetLabel": _TEXT, "replacement": _TEXT})),
)
_RULE = {
    "oneOf": [
        _table({"record": _TEXT, "expr": _TEXT}),
        _table({"alert": _TEXT, "expr": _TEXT}, **{"for": _DURATION}, labels=_LABELS, annotations=_LABELS),
    ]
}
OPERATORS = {
    "ServiceMonitor": _table({"selector": _SELECTOR, "endpoints": _list(_ENDPOINT)}),
    "PodMonitor": _table({"selector": _SELECTOR, "podMetricsEndpoints": _list(_ENDPOINT)}),
    "PrometheusRule": _table({"groups": _list(_table({"name": _TEXT, "rules": _list(_RULE)}))}),
}


def operators_schema_accepts(document: Document) -> bool:
    kind = document["kind"]
    return jsonschema_rs.validator_for(_operators(kind, OPERATORS[kind])).is_valid(document)


# --- Kubernetes: the schemas ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "document"), OBJECTS, ids=[f"{file} {one['kind']}" for file, one in OBJECTS])
def test_every_object_follows_its_schema(file: str, document: Document) -> None:
    if document["apiVersion"].startswith("monitoring.coreos.com/"):
        assert operators_schema_accepts(document)
    else:
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(document, version, strict=True)


def test_a_schema_refuses_a_key_that_it_does_not_have() -> None:
    monitor = the("ServiceMonitor")
    monitor = {**monitor, "spec": {**monitor["spec"], "endpoint": []}}
    assert not operators_schema_accepts(monitor)
    deployment = the("Deployment")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**deployment, "spec": {**deployment["spec"], "replica": 2}}, NEWEST, strict=True)


def test_the_alerts_become_a_prometheus_rule_as_their_head_says() -> None:
    lines = (ROOT / "config/prometheus-alerts.yml").read_text().splitlines()
    command = "\n".join(line.removeprefix("#") for line in lines if re.match(r"#   ", line))
    made = re.sub(r"\| kubectl apply -f -$", "", command)
    assert made != command
    done = subprocess.run(["sh", "-c", made], cwd=ROOT, capture_output=True, text=True, check=True)
    assert operators_schema_accepts(yaml.safe_load(done.stdout))


def test_kustomize_takes_every_object_but_the_secret() -> None:
    kustomization = yaml.safe_load((GATEWAY / "kustomization.yaml").read_text())
    files = {path.name for path in GATEWAY.glob("*.yaml")}
    assert {*kustomization["resources"]} == files - {"kustomization.yaml", "secret.yaml", "prometheus-adapter.yaml"}
    assert kustomization["configMapGenerator"] == [{"name": "wholecall", "files": ["wholecall.toml"]}]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_puts_the_gateway_together() -> None:
    done = subprocess.run(["kubectl", "kustomize", GATEWAY], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    made = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    assert made["ConfigMap"]["data"] == {"wholecall.toml": (GATEWAY / "wholecall.toml").read_text()}
    spec = made["Deployment"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == f"wholecall:{proxy.__version__}"
    assert spec["volumes"][0]["configMap"]["name"] == made["ConfigMap"]["metadata"]["name"] != "wholecall"
    assert {one["metadata"]["namespace"] for one in made.values()} == {"wholecall"}


# --- Kubernetes: the pods -------------------------------------------------------------------------------------------


PODS = {"gateway": the("Deployment"), "sidecar": the("Deployment", "sidecar")}


def pod(name: str) -> Any:
    return PODS[name]["spec"]["template"]["spec"]


def proxy_container(name: str) -> Any:
    spec = pod(name)
    (found,) = [one for one in [*spec["containers"], *spec.get("initContainers", ())] if one["name"] == "wholecall"]
    return found


def configuration(name: str) -> Config:
    """What the pod mounts, as the proxy's own loader reads it with the variables that the container has."""
    text = (
        (GATEWAY / "wholecall.toml").read_text()
        if name == "gateway"
        else the("ConfigMap", "sidecar")["data"]["wholecall.toml"]
    )
    variables = {one["name"]: f"key-{one['name']}" for one in proxy_container(name)["env"]}
    config = from_document(tomllib.loads(text), variables)
    assert {*re.findall(r'"env:(\w+)"', text)} == variables.keys()
    return config


@pytest.mark.parametrize("name", PODS)
def test_the_pods_configuration_is_good_and_has_its_ports(name: str) -> None:
    listen = configuration(name).listen
    container = proxy_container(name)
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "http": listen.port,
        "admin": listen.admin_port,
    }
    probes = {key: value["httpGet"] for key, value in container.items() if key.endswith("Probe")}
    assert probes["livenessProbe"] == probes["startupProbe"] == {"path": "/healthz", "port": "admin"}
    assert probes.get("readinessProbe", {"path": "/readyz", "port": "admin"}) == {"path": "/readyz", "port": "admin"}
    assert ("readinessProbe" in probes) == (name == "gateway")


@pytest.mark.parametrize("name", PODS)
def test_the_pod_is_given_time_to_drain(name: str) -> None:
    listen = configuration(name).listen
    assert pod(name)["terminationGracePeriodSeconds"] >= listen.notice_s + listen.drain_s + GRACE_S + 2


@pytest.mark.parametrize("name", PODS)
def test_the_container_runs_a_command_that_there_is(name: str) -> None:
    container = proxy_container(name)
    parsed(container["args"])
    (mounted,) = [one["mountPath"] for one in container["volumeMounts"] if one["name"] == "config"]
    assert container["args"][-1] == f"{mounted}/wholecall.toml"
    assert container["image"] in ("wholecall", f"wholecall:{proxy.__version__}")


def parsed(arguments: list[str]) -> click.Context:
    """The command line, as the command itself reads it. Raises click.UsageError."""
    command = main.commands[arguments[0]]
    return command.make_context(arguments[0], list(arguments[1:]), parent=click.Context(main))


@pytest.mark.parametrize("name", PODS)
def test_every_container_may_do_no_more_than_the_restricted_standard_allows(name: str) -> None:
    """Pod Security Standards, restricted; and more: a read-only root, no token, bounded memory."""
    spec = pod(name)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert all(volume.keys() - {"name"} <= {"configMap", "emptyDir"} for volume in spec["volumes"])
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    mounts = {mount["mountPath"]: mount for mount in proxy_container(name)["volumeMounts"]}
    assert mounts["/tmp"] == {"name": "tmp", "mountPath": "/tmp"}
    assert all(mount["readOnly"] for path, mount in mounts.items() if path != "/tmp")


def test_the_gateways_objects_fit_together() -> None:
    labels = the("Deployment")["spec"]["template"]["metadata"]["labels"]
    for selector in (
        the("Deployment")["spec"]["selector"]["matchLabels"],
        the("Service")["spec"]["selector"],
        the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        the("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels
    service = the("Service")
    monitor = the("ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    listen = configuration("gateway").listen
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert ports == {"http": listen.port, "admin": listen.admin_port}
    opened = [port["port"] for rule in the("NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]]
    assert {*opened, *(endpoint["port"] for endpoint in monitor["endpoints"])} == ports.keys()
    variables = {one["valueFrom"]["secretKeyRef"]["key"] for one in proxy_container("gateway")["env"]}
    assert the("Secret")["stringData"].keys() == variables
    assert service["metadata"]["name"] == "wholecall", "the job that the alerts ask for"


def test_the_sidecar_is_the_agents_base_url_and_only_the_agent_has_its_key() -> None:
    config = configuration("sidecar")
    assert proxy_container("sidecar")["restartPolicy"] == "Always"
    (agent,) = pod("sidecar")["containers"]
    values = {one["name"]: one.get("value") or one["valueFrom"]["secretKeyRef"]["key"] for one in agent["env"]}
    assert values == {
        "OPENAI_BASE_URL": f"http://127.0.0.1:{config.listen.port}/v1",
        "OPENAI_API_KEY": "WHOLECALL_KEY",
    }
    assert config.client_for("key-WHOLECALL_KEY") is not None
    (endpoint,) = the("PodMonitor", "sidecar")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "admin"
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "wholecall"}]


def test_the_autoscaler_asks_for_a_metric_that_there_is(tmp_path: Path) -> None:
    spec = the("HorizontalPodAutoscaler")["spec"]
    assert spec["scaleTargetRef"]["name"] == the("Deployment")["metadata"]["name"]
    (metric,) = spec["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert name in dashboard.metrics()
    assert int(metric["pods"]["target"]["averageValue"]) <= configuration("gateway").limits.max_streams / 2
    (rule,) = yaml.safe_load((GATEWAY / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert rule["name"] == {"matches": name}
    assert rule["seriesQuery"].startswith(f"{name}{{")
    query = rule["metricsQuery"]
    for placeholder, text in {"Series": name, "LabelMatchers": 'namespace="n",pod=~"a|b"', "GroupBy": "pod"}.items():
        query = query.replace(f"<<.{placeholder}>>", text)
    rules = {"groups": [{"name": "adapter", "rules": [{"record": "a", "expr": query}]}]}
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(rules))
    subprocess.run([tool("promtool"), "check", "rules", file], check=True)


# --- systemd ----------------------------------------------------------------------------------------------------------


UNIT = ROOT / "config" / "wholecall.service"
SETTINGS = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), flags=re.M))


def analyse(folder: Path, *arguments: str) -> str:
    """systemd-analyze on the unit, with a program that is there in place of the one that is not."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    unit = folder / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/wholecall/bin/wholecall", "/bin/true"))
    done = subprocess.run(
        [program, *arguments, unit],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    assert analyse(tmp_path, "verify", "--man=no") == ""


def test_systemd_finds_the_unit_well_confined(tmp_path: Path) -> None:
    """Of 10, where 10 is a service without any confinement; what is left over is that it has a network."""
    shown = analyse(tmp_path, "security", "--offline=true", "--threshold=20", "--no-pager")
    assert float(re.findall(r"exposure level for \S+: ([\d.]+)", shown)[0]) <= 1.5


def test_the_unit_starts_a_command_that_there_is_and_lets_it_drain() -> None:
    program, *arguments = shlex.split(SETTINGS["ExecStart"])
    assert Path(program).name == "wholecall"
    parsed(arguments)
    listen = Listen()
    assert float(SETTINGS["TimeoutStopSec"]) >= listen.notice_s + listen.drain_s + GRACE_S + 2
    assert SETTINGS["KillMode"] == "mixed", "the parent ends the workers"
    assert SETTINGS["ExecReload"].split()[1:] == ["-HUP", "$MAINPID"]
