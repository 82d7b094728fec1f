"""Processes that are measured: started, pinned, accounted for and stopped. Linux only: it reads /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

START_S = 120.0  # LiteLLM takes some twenty
STOP_S = 5.0
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


class NotStarted(Exception):
    """A process ended or does not listen; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Program:
    """How to start a server. `environment` is added to this process's own."""

    command: Sequence[str | Path]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def running(name: str, program: Program, cpus: Collection[int], folder: Path) -> Iterator[int]:
    """Its process id, once it listens. Stopped with all its descendants at the end. Raises NotStarted."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            program.command,
            env={**os.environ, **program.environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
    try:
        if not _listens(process, program.port):
            how = "does not listen" if process.poll() is None else f"ended with {process.returncode}"
            raise NotStarted(f"{name} {how}\n{log.read_text(errors='replace')[-2000:]}")
        yield process.pid
    finally:
        stop(process)


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process.poll() is None
        time.sleep(0.02)
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and after a while SIGKILL, to it and to those of its descendants that outlive it."""
    family = tree(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in family:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        end = time.monotonic() + STOP_S
        while time.monotonic() < end:
            process.poll()
            family = [pid for pid in family if _state(pid) not in ("", "Z")]
            if not family:
                return
            time.sleep(0.02)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, or none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return _stat(pid)[0] if _stat(pid) else ""


def tree(root: int) -> list[int]:
    """A process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_ns(root: int) -> int:
    """User and system time of a process tree, with those of its children that have ended."""
    total = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):  # the clock of a process: as the kernel's MAKE_PROCESS_CPUCLOCK has it
            total += time.clock_gettime_ns((~pid << 3) | 2)
        if fields := _stat(pid):
            total += (int(fields[13]) + int(fields[14])) * _TICK_NS
    return total


def busy_ns() -> int:
    """Time that all cores together were not idle, stolen time with it."""
    user, nice, system, _idle, _wait, *others = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(others)) * _TICK_NS


def memory_mib(root: int, line: str = "VmRSS") -> float:
    """Resident memory of a process tree; `line` "VmHWM": its peak."""
    total = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            for found in Path(f"/proc/{pid}/status").read_text().splitlines():
                if found.startswith(f"{line}:"):
                    total += int(found.split()[1])
    return total / 1024


def reset_peak(root: int) -> None:
    """The peak of resident memory begins anew."""
    for pid in tree(root):
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")
