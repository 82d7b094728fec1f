"""Fuzzes one target, coverage-guided by atheris: see the package's docstring."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

TESTS = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(TESTS), str(TESTS.parent)]  # not this folder: its modules have names of others

if TYPE_CHECKING:
    from fuzz.targets import Target

STATUS_EVERY_S = 5.0
# CPU time of one input. libFuzzer's own limit is wall time, of which a process may be given none for a while.
LIMIT_CPU_S = 30.0


class _Watched:
    """A target's check that notes what it finds and goes on: the smallest input of each kind is kept."""

    def __init__(self, target: Target, out: Path, cpu_s: int) -> None:
        self.target = target
        self.out = out
        self.cpu_s = cpu_s
        self.executions = 0
        self.found: dict[str, dict[str, Any]] = {}
        self.began = time.time()
        self._written = 0.0
        self.commit = _commit()
        out.mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGPROF, _too_slow)

    def __call__(self, data: bytes) -> None:
        self.executions += 1
        signal.setitimer(signal.ITIMER_PROF, LIMIT_CPU_S)
        try:
            self.target.check(data)
        except Exception as error:  # noqa: BLE001  # whatever comes out is the finding
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.note(error, data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        now = time.time()
        if now - self._written > STATUS_EVERY_S:
            self._written = now
            self.write_status()
            if self.cpu_s and time.process_time() > self.cpu_s:
                os._exit(0)  # there is no other way out of libFuzzer's loop

    def note(self, error: Exception, data: bytes) -> None:
        from fuzz.findings import signature, trace

        key = signature(error)
        entry = self.found.get(key)
        if entry is None:
            name = hashlib.sha256(key.encode()).hexdigest()[:12]
            entry = self.found[key] = {"times": 0, "file": f"{name}.input", "size": len(data) + 1}
            print(f"FINDING {self.target.name} {entry['file']} {key}", file=sys.stderr, flush=True)
        entry["times"] += 1
        if len(data) < entry["size"]:
            entry["size"] = len(data)
            (self.out / entry["file"]).write_bytes(data)
            (self.out / entry["file"]).with_suffix(".txt").write_text(f"{key}\n\n{trace(error)}")
            self.write_status()

    def write_status(self) -> None:
        status = {
            "target": self.target.name,
            "commit": self.commit,
            "executions": self.executions,
            "cpu_s": round(time.process_time(), 1),
            "wall_s": round(time.time() - self.began, 1),
            "findings": self.found,
        }
        (self.out / "status.json").write_text(json.dumps(status, indent=1))


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"an input took more than {LIMIT_CPU_S:g} s of CPU time")


def _commit() -> str:
    git = ["git", "-C", str(TESTS), "describe", "--always", "--dirty"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _fuzz(atheris: ModuleType, name: str, options: argparse.Namespace) -> None:
    with atheris.instrument_imports(include=["proxy"]):
        from fuzz.targets import TARGETS
    from fuzz import corpus

    target = TARGETS[name]
    out = Path(options.out) / name
    watched = _Watched(target, out, options.cpu)
    work = out / "corpus"
    work.mkdir(exist_ok=True)
    seeds = Path(tempfile.mkdtemp(prefix="seeds-", dir=out))
    for data in (*target.seeds(), *corpus.load(name)):
        (seeds / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)

    hooks: dict[str, Any] = {}
    mutator, crossover = target.mutator, target.crossover
    if mutator is not None:
        hooks["custom_mutator"] = lambda data, most, seed: mutator(data, most, Random(seed), atheris.Mutate)
    if crossover is not None:
        hooks["custom_crossover"] = lambda one, other, most, seed: crossover(one, other, Random(seed))[:most]
    arguments = [
        sys.argv[0],
        f"-seed={options.seed}",
        f"-runs={options.runs}",
        f"-max_total_time={options.seconds}",
        f"-max_len={options.max_len}",
        f"-rss_limit_mb={options.memory_mb}",
        "-timeout=1000000",
        "-len_control=0",
        "-reload=0",  # nobody else writes there, and it would run once more whatever was not worth keeping
        "-detect_leaks=0",
        "-print_final_stats=1",
        f"-artifact_prefix={out}/",
        str(work),
        str(seeds),
    ]
    atheris.Setup(arguments, watched, **hooks)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="all", help="a target's name, or all: one process each, at once")
    parser.add_argument("--seconds", type=int, default=0, help="wall time; 0: no end")
    parser.add_argument("--cpu", type=int, default=0, help="seconds of CPU time of a process; 0: no end")
    parser.add_argument("--runs", type=int, default=-1, help="executions; -1: no end")
    parser.add_argument(
        "--out", default=str(Path(tempfile.gettempdir()) / "wholecall-fuzz"), help="corpus and findings"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; 0: another one each time")
    parser.add_argument("--max-len", type=int, default=16_384, help="bytes of an input")
    parser.add_argument("--memory-mb", type=int, default=1_000, help="the process ends at this size")
    parser.add_argument("--show", metavar="FILE", type=Path, help="show this input instead: what came, what went out")
    parser.add_argument(
        "--smaller", metavar="FILE", type=Path, help="the same, after taking away what it does not need"
    )
    parser.add_argument("--keep", metavar="OUT", type=Path, nargs="+", help="save what is worth keeping of these --out")
    options = parser.parse_args()
    if options.keep:
        from fuzz.keep import keep

        keep(options.keep)
        return 0
    if options.show or options.smaller:
        from fuzz.show import show

        return show(options.target, options.show or options.smaller, smaller=bool(options.smaller))
    import atheris

    if options.target != "all":
        _fuzz(atheris, options.target, options)
        return 0
    from fuzz.targets import TARGETS

    running = [subprocess.Popen([sys.executable, *_for(name)]) for name in TARGETS]
    return max(process.wait() for process in running)


def _for(name: str) -> list[str]:
    """This command line, for one target."""
    return [*sys.argv, "--target", name]  # the last one counts


if __name__ == "__main__":
    sys.exit(main())
