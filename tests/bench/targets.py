"""What is measured: the mock backend itself ("direct"), Wholecall, and the peers that are installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.processes import Program

HERE = Path(__file__).resolve().parent

NGINX = """\
worker_processes 1; master_process off; daemon off;
pid nginx.pid; error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 1000000;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  upstream mock {{ server 127.0.0.1:{upstream}; keepalive 2048; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 300s; client_body_buffer_size 1m; client_max_body_size 32m;
    }}
  }}
}}
"""

# Production settings: judging with `block`, leaked calls recovered; one log line a reply is turned off like the peers'.
WHOLECALL = """\
[listen]
host = "127.0.0.1"
port = {port}

[log]
level = "warning"

[limits]
{limits}

[[backends]]
name = "mock"
dialect = "openai-chat"
base_url = "http://127.0.0.1:{upstream}/v1"
api_key = ""

[[routes]]
models = ["reask"]
backends = ["mock"]

[routes.policy]
reask = 1

[[routes]]
models = ["*"]
backends = ["mock"]
"""


class Missing(Exception):
    """A peer that is not installed; the text says how it is."""


@dataclass(frozen=True, slots=True)
class Target:
    """A running server. `expect`: which of a workload's two right replies it gives; `versions`: of what it runs on."""

    name: str
    port: int
    pid: int
    expect: Literal["passed", "mended"] = "passed"
    headers: Sequence[str] = ()
    versions: str = ""
    workers: int = 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@dataclass(frozen=True, slots=True)
class Peer:
    """`program(environments, upstream, port, folder)` writes its configuration into `folder` or raises Missing."""

    program: Callable[[Path, int, int, Path], Program]
    versions: Callable[[Path], str]
    headers: Callable[[int], Sequence[str]] = lambda upstream: ()
    slow: bool = False


def upstream(port: int) -> Program:
    return Program(
        [sys.executable, "-m", "bench.upstream", "--port", str(port)], port, {"PYTHONPATH": str(HERE.parent)}
    )


def wholecall(
    command: Path, port: int, upstream_port: int, folder: Path, limits: str = "", workers: int = 1
) -> Program:
    """`limits`: lines of TOML."""
    config = folder / f"wholecall-{port}.toml"
    config.write_text(WHOLECALL.format(port=port, upstream=upstream_port, limits=limits))
    return Program([command, "serve", "--config", config, "--workers", str(workers)], port)


def wholecall_versions(command: Path) -> dict[str, str]:
    """Of an installed `wholecall`: commit of the source, Python, and the packages it depends on."""
    program = (
        "import importlib.metadata as m, json, pathlib, platform, proxy, re\n"
        "names = [re.split(r'[^\\w.-]', text)[0] for text in m.requires('wholecall') if 'extra ==' not in text]\n"
        "print(json.dumps({'source': str(pathlib.Path(proxy.__file__).parent), 'python': platform.python_version(),"
        " 'wholecall': proxy.__version__, **{name: m.version(name) for name in sorted(names)}}))"
    )
    python = command.resolve().with_name("python")
    versions: dict[str, str] = json.loads(_output(str(python), "-c", program))
    source = versions.pop("source")
    git = ["git", "-C", source]
    described = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, check=False)
    commit = described.stdout.strip() or "unknown"
    return {"commit": commit + (" and changes" if changed.stdout else ""), **versions}


def _output(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.strip()


def _found(path: Path, name: str) -> Path:
    if not path.exists():
        raise Missing(
            f"{name} is not in {path.parent}: `sh tests/bench/setup.sh DIR` sets it up, `--environments DIR` uses it"
        )
    return path


def _nginx(_environments: Path, upstream_port: int, port: int, folder: Path) -> Program:
    binary = shutil.which("nginx", path="/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin:/opt/homebrew/bin")
    if binary is None:
        raise Missing("nginx is not installed: `apt-get install nginx`, or `sh tests/bench/setup.sh DIR`")
    prefix = folder / "nginx"
    prefix.mkdir()
    (prefix / "nginx.conf").write_text(NGINX.format(upstream=upstream_port, port=port))
    return Program([binary, "-c", prefix / "nginx.conf", "-p", prefix, "-e", "stderr"], port)


def _python(environments: Path) -> Path:
    """That of the environment with only what the passthrough needs, else this one."""
    own = environments / "venvs/core/bin/python"
    return own if own.exists() else Path(sys.executable)


def _passthrough(transport: str) -> Callable[[Path, int, int, Path], Program]:
    def program(environments: Path, upstream_port: int, port: int, _folder: Path) -> Program:
        command: list[str | Path] = [
            *(_python(environments), "-m", "uvicorn", "passthrough:app", "--app-dir", HERE, "--host", "127.0.0.1"),
            *(
                "--port",
                str(port),
                "--loop",
                "uvloop",
                "--http",
                "httptools",
                "--no-access-log",
                "--log-level",
                "warning",
            ),
        ]
        return Program(command, port, {"UPSTREAM": f"http://127.0.0.1:{upstream_port}", "TRANSPORT": transport})

    return program


def _litellm(environments: Path, upstream_port: int, port: int, folder: Path) -> Program:
    backend = {"api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "sk-x"}
    models = ("text-200", "tools-2x40", "long-2000", "bigargs-1m", "paced", "nonstream", "schema-100")
    settings = {
        "model_list": [
            {"model_name": name, "litellm_params": {"model": f"openai/{name}", **backend}} for name in models
        ],
        "litellm_settings": {"telemetry": False, "success_callback": [], "failure_callback": [], "num_retries": 0},
        "general_settings": {"disable_spend_logs": True, "disable_error_logs": True},
    }
    config = folder / "litellm.yaml"
    config.write_text(json.dumps(settings))  # JSON is YAML
    binary = _found(environments / "venvs/litellm/bin/litellm", "LiteLLM")
    command: list[str | Path] = [
        binary,
        "--config",
        config,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]
    environment = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DISABLE_ADMIN_UI": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    return Program([*command, "--telemetry", "False"], port, environment)


def _portkey(environments: Path, _upstream: int, port: int, _folder: Path) -> Program:
    server = environments / "npm/node_modules/@portkey-ai/gateway/build/start-server.js"
    command: list[str | Path] = ["node", _found(server, "Portkey"), "--headless", f"--port={port}"]
    return Program(command, port, {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"})


def _passthrough_versions(environments: Path) -> str:
    program = (
        "import importlib.metadata as m\n"
        "have = {d.name: d.version for d in m.distributions()}\n"
        "names = 'starlette uvicorn httpx httpcore anyio sniffio httpx-aiohttp aiohttp'.split()\n"
        "print(', '.join(f'{n} {have[n]}' if n in have else f'no {n}' for n in names))"
    )
    return _output(str(_python(environments)), "-c", program)


def _litellm_version(environments: Path) -> str:
    python = str(environments / "venvs/litellm/bin/python")
    return _output(python, "-c", "import importlib.metadata as m; print(m.version('litellm'))")


def _portkey_version(environments: Path) -> str:
    package = environments / "npm/node_modules/@portkey-ai/gateway/package.json"
    return f"{json.loads(package.read_text())['version']}, node {_output('node', '--version')}"


def _portkey_headers(upstream_port: int) -> Sequence[str]:
    return ("x-portkey-provider: openai", f"x-portkey-custom-host: http://127.0.0.1:{upstream_port}/v1")


PEERS: dict[str, Peer] = {
    "nginx": Peer(_nginx, lambda _: _output("nginx", "-v").removeprefix("nginx version: ")),
    "naive": Peer(_passthrough("httpx"), _passthrough_versions),
    "naive-aiohttp": Peer(_passthrough("aiohttp"), _passthrough_versions),
    "litellm": Peer(_litellm, _litellm_version, slow=True),
    "portkey": Peer(_portkey, _portkey_version, _portkey_headers, slow=True),
}
