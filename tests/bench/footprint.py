#!/usr/bin/env python3
"""Measures what the proxy costs before it does anything: the start, a stream that says nothing, a held call, the image.

    python tests/bench/footprint.py                   about two minutes

The start: CPU time until /healthz answers. A stream: the resident memory that 500 more of them take while the backend
is silent, behind a text delta or behind a whole call of 4 KiB. The image: no container engine is needed; what the
Dockerfile installs is installed into a folder, whose size is added to what its base image is said to have.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import command, processes, targets  # noqa: E402 - of the folder above, which is no package
from bench.results import number, table  # noqa: E402
from bench.rig import Rig, rig  # noqa: E402
from bench.targets import Target  # noqa: E402
from running import free_port, get, until  # noqa: E402

ROOT = HERE.parent.parent
STARTS = 7
FEW, MORE = 100, 500  # streams; the first ones pay for pools and arenas
SETTLE_S = 4.0  # for all of them to have begun; the backend is silent for 20
START_GOAL_S = 0.5
# python:3.11-slim-bookworm, amd64, unpacked, as `docker images` shows it: between 125 and 150 MB over its releases.
BASE_MB = 140
NOT_SHIPPED = ("pip", "setuptools", "flit_core")


def start(wholecall: Path) -> dict[str, float]:
    """Medians over a few starts: CPU seconds and wall time until it answers, resident memory then.

    Bytecode is there, as pip leaves it where it installs a wheel and in the image: the first start, which writes it
    into a folder of this run's, does not count.
    """
    cpu, wall, memory = [], [], []
    with tempfile.TemporaryDirectory(prefix="wholecall-bench-") as folder:
        bytecode = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        for _ in range(1 + STARTS):
            program = targets.wholecall(wholecall, free_port(), free_port(), Path(folder))
            began = time.monotonic()
            process = subprocess.Popen(
                program.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | bytecode
            )
            try:
                url = f"http://127.0.0.1:{program.port}/healthz"
                until(partial(_answers, url), "it answers", process)
                wall.append(time.monotonic() - began)
                cpu.append(processes.cpu_ns(process.pid) / 1e9)
                memory.append(processes.memory_mib(process.pid))
            finally:
                processes.stop(process)
    return {
        "cpu_s": statistics.median(cpu[1:]),
        "wall_s": statistics.median(wall[1:]),
        "memory_mib": statistics.median(memory[1:]),
    }


def _answers(url: str) -> bool:
    return get(url)[0] == 200


def stream_kib(found: Rig, target: Target, workload: str) -> float:
    """Resident memory of one more stream while the backend is silent."""
    found.measure(target, "text-200", FEW, 1.0)
    loads = []
    try:
        sizes = []
        for streams in (FEW, MORE):
            loads.append(found.load(target, workload, streams, "--requests", str(streams), "--seconds", "1"))
            time.sleep(SETTLE_S)
            sizes.append(processes.memory_mib(target.pid))
    finally:
        for load in loads:
            load.kill()
            load.communicate()
    return (sizes[1] - sizes[0]) * 1024 / MORE


def image() -> dict[str, float]:
    """Megabytes of what the Dockerfile installs on its base; those of the base are not measured."""
    with tempfile.TemporaryDirectory(prefix="wholecall-bench-") as name:
        folder = Path(name) / "installed"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
            str(folder),
        ]
        lock = ["--require-hashes", "--only-binary=:all:", "-r", str(ROOT / "requirements.lock")]
        for what in (lock, ["--no-deps", "--upgrade", str(ROOT)]):
            subprocess.run([*pip, *what], check=True, stderr=subprocess.DEVNULL)
        installed = sum(
            path.lstat().st_size
            for path in folder.rglob("*")
            if path.is_file() and not path.relative_to(folder).parts[0].startswith(NOT_SHIPPED)
        )
    return {"installed_mb": installed / 1e6, "base_mb": BASE_MB, "sum_mb": installed / 1e6 + BASE_MB}


def markdown(found: dict[str, Any]) -> str:
    begun, streams, size = found["start"], found["streams_kib"], found["image"]
    met = "met" if begun["cpu_s"] < START_GOAL_S else "MISSED"
    rows = [
        ["CPU until it answers", f"{number(begun['cpu_s'])} s (goal: under {START_GOAL_S} s, {met})"],
        ["wall time until it answers", f"{number(begun['wall_s'])} s"],
        ["memory then", f"{number(begun['memory_mib'])} MiB"],
        *[[f"memory of {what}", f"{number(kib)} KiB"] for what, kib in streams.items()],
        ["image, estimated", f"{size['sum_mb']:.0f} MB: {size['installed_mb']:.0f} on a base of about {BASE_MB}"],
    ]
    return table(["", ""], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = command.parser(__doc__).parse_args(arguments)
    wholecalls = command.wholecalls_of(chosen)
    command.stop_by_signal()
    found = command.described(wholecalls, arguments)
    (wholecall,) = wholecalls.values()
    found["start"] = start(wholecall)
    found["streams_kib"] = {}
    for what, workload in (("an idle stream", "idle"), ("a stream that holds a call of 4 KiB", "held-4096")):
        with rig(wholecalls) as there:
            found["streams_kib"][what] = stream_kib(there, there.targets[-1], workload)
    found["image"] = image()
    command.write(chosen.out, "footprint", found, markdown(found))
    return 0 if found["start"]["cpu_s"] < START_GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
