"""The image and the wheel, built and run for real.

Where no container engine runs, the Dockerfile's own instructions are carried out on this machine's files instead: in a
mount namespace, on an overlay that vanishes with it, with the machine's own Python in the place of the base image's.
Then the container's command runs on a read-only root as the image's user, without capabilities or a network.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dockerfile import stages
from test_packaging import readme_commands

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent


def bare(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a shell that knows nothing of this test run's virtual environment."""
    kept = {k: v for k, v in environment.items() if not k.startswith(("VIRTUAL_ENV", "PYTHON", "COVERAGE", "PYTEST"))}
    kept["PATH"] = f"{sys.base_prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return kept


def clone(folder: Path) -> Path:
    """A copy of what git would commit: the tracked files and the new ones that are not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git work tree")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=bare(dict(os.environ)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def test_the_readmes_first_command_shows_the_demo_in_a_fresh_clone(tmp_path: Path) -> None:
    command = readme_commands()[0]
    assert command.endswith("wholecall demo")
    shown = run(["sh", "-c", f"{command} --once"], clone(tmp_path))
    assert "valid" in shown


# The library and the replay backend with nothing else: no pytest, no HTTP client.
CLIENT = """
import json, urllib.request
from proxy.library import Assembler
from proxy.replay.backend import running

with running() as backend:
    request = backend.request("demo/interleaved-damaged")
    with urllib.request.urlopen(f"{backend.url}/chat/completions", json.dumps(request).encode()) as reply:
        assembler = Assembler(request, headers=dict(reply.headers))
        while data := reply.read(100):
            assembler.feed(data)
    assembler.close()
for call in assembler.calls:
    print(call.name, call.verdict)
"""


def test_the_wheel_runs_the_demo_in_a_bare_environment(tmp_path: Path) -> None:
    """With the locked versions, and without the source tree at hand."""
    source = tmp_path / "source"
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(clone(source))], tmp_path)
    (wheel,) = tmp_path.glob("wholecall-*.whl")
    run([f"{sys.base_prefix}/bin/python3", "-m", "venv", "bare"], tmp_path)
    pip = ["bare/bin/pip", "install", "--disable-pip-version-check"]
    run([*pip, "--require-hashes", "-r", str(source / "requirements.lock")], tmp_path)
    run([*pip, "--no-deps", str(wheel)], tmp_path)
    shutil.rmtree(source)
    assert "valid" in run(["bare/bin/wholecall", "demo", "--once"], tmp_path)
    assert "proxy/py.typed" in zipfile.ZipFile(wheel).namelist()
    run(["bare/bin/wholecall", "probe", "--demo", "--item", "enum", "--html", "report.html"], tmp_path)
    assert "<style>" in (tmp_path / "report.html").read_text()
    (tmp_path / "client.py").write_text(CLIENT)
    called = run(["bare/bin/python", "-W", "error", "client.py"], tmp_path)
    assert called.splitlines() == ["get_weather valid", "add_reminder valid"]


def can_have_namespaces() -> bool:
    probe = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "ip", "link", "set", "lo", "up"]
    needed = ("unshare", "setpriv", "ip", f"{sys.base_prefix}/bin/python")
    return all(map(shutil.which, needed)) and not subprocess.run(probe, capture_output=True, check=False).returncode


def script(root: Path) -> str:
    """A shell script that carries the Dockerfile out under `root` and then runs the container's command twice."""
    build, final = stages((ROOT / "Dockerfile").read_text())
    lines = []
    workdir = "/"
    environment: dict[str, str] = {}
    image: dict[str, list[str]] = {}
    for instruction in build:
        match instruction.word:
            case "WORKDIR":
                workdir = instruction.text
                lines.append(f"mkdir -p {root}{workdir}")
            case "ENV" | "ARG":
                lines.append(f"export {instruction.text}")
            case "COPY":
                *sources, target = instruction.text.split()
                lines.append(f"cp -r {' '.join(sources)} {root}{workdir}/{target}")
            case "RUN":
                lines.append(f"chroot {root} sh -euc {shlex.quote(f'cd {workdir}; {instruction.text}')}")
            case word:
                assert word == "FROM", f"{word} is not known here"
    for instruction in final:
        match instruction.word:
            case "COPY" if not instruction.text.startswith("--from"):
                source, target = instruction.text.split()
                lines.append(f"mkdir -p {root}{Path(target).parent} && cp {source} {root}{target}")
            case "ENV":
                pairs = (pair.split("=", 1) for pair in shlex.split(instruction.text))
                environment = {key: value.replace("$PATH", bare({})["PATH"]) for key, value in pairs}
            case "USER":
                image["user"] = instruction.text.split(":")
            case "ENTRYPOINT" | "CMD" | "HEALTHCHECK":
                image[instruction.word] = instruction.argv
    uid, gid = image["user"]
    inside = [
        "chroot", str(root), "setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs",
        "--bounding-set=-all", "--inh-caps=-all", "env", "-i", "--chdir=/tmp",
        *(f"{key}={value}" for key, value in environment.items()),
    ]  # fmt: skip
    serve = shlex.join([*inside, *image["ENTRYPOINT"], *image["CMD"]])
    workers = shlex.join([*inside, *image["ENTRYPOINT"], *image["CMD"], "--workers", "2"])
    health = shlex.join([*inside, *image["HEALTHCHECK"]])
    writes = shlex.join([*inside, "sh", "-c", "touch /src/here 2>/dev/null"])
    running = [
        "set -eu",
        "ip link set lo up",
        *(line for command in (serve, workers) for line in life(command, health)),
    ]
    return "\n".join(
        [
            *lines,
            # The way to this machine's Python may lead through its owner's home.
            *(f"chmod o+x {root}{folder}" for folder in Path(sys.base_prefix).parents if folder != Path("/")),
            f"mount -o remount,ro {root}",
            f"mount -t tmpfs -o mode=1777,noexec,nosuid,nodev tmpfs {root}/tmp",
            f"if {writes}; then echo 'the root is not read-only'; exit 1; fi",
            shlex.join(["unshare", "--net", "sh", "-c", "\n".join(running)]),
        ]
    )


def life(command: str, health: str) -> list[str]:
    """Start, become healthy, end cleanly on SIGTERM."""
    return [
        f"{command} & pid=$!",
        "tries=0",
        f"until {health} 2>/dev/null; do",
        '  kill -0 $pid || { echo "ended before it was healthy"; exit 1; }',
        '  tries=$((tries + 1)); [ $tries -lt 150 ] || { echo "never healthy"; exit 1; }',
        "  sleep 0.2",
        "done",
        "kill -TERM $pid",
        'code=0; wait $pid || code=$?; echo "ended with $code"',
    ]


@pytest.mark.skipif(not can_have_namespaces(), reason="needs root and namespaces (unshare, setpriv, ip)")
def test_the_dockerfile_builds_and_its_container_lives_on_a_read_only_root_as_nobody(tmp_path: Path) -> None:
    context = clone(tmp_path / "context")
    base = tmp_path / "base"
    base.mkdir()
    root = base / "root"
    lines = [
        "set -eu",
        f"mount -t tmpfs tmpfs {base}",
        f"mkdir {base}/upper {base}/work {root}",
        f"mount -t overlay overlay -o lowerdir=/,upperdir={base}/upper,workdir={base}/work {root}",
        f"mount --rbind /proc {root}/proc",
        f"mount --rbind /dev {root}/dev",
        script(root),
    ]
    shown = run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", "\n".join(lines)], context)
    assert shown.count("ended with 0") == 2
