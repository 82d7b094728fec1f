"""A proxy process and the scripted upstream, and what a process tree uses."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load.ledger import Metrics
from load.plan import BACKENDS, BAD, DEAD, LIMPING
from support.client import ask
from support.proxy import write_config

TESTS = Path(__file__).parents[1]
LIMITS = {"first_byte_s": 12.0, "idle_s": 6.0}  # nobody else is that slow, however busy the machine


def allow_many_files() -> None:
    """A thousand streams are two thousand descriptors here; children inherit the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _spawn(*arguments: str, **pipes: Any) -> asyncio.subprocess.Process:
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    return await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, env=environment, **pipes)


@dataclass(frozen=True, slots=True)
class Upstream:
    port: int
    pid: int

    async def counts(self) -> dict[str, Any]:
        """`asked`, `open` and `most`, see `load.mock`."""
        reply = await ask(self.port, None, "/counts", "GET", seconds=60.0)
        found: dict[str, Any] = json.loads(reply.body)
        return found

    async def has(self, token: str) -> bool:
        return (await ask(self.port, None, f"/has/{token}", "GET", seconds=60.0)).body == b"yes"

    async def quiet(self) -> None:
        """Wait until no answer is under way: nobody waits for one any more."""
        async with asyncio.timeout(60):
            while (await self.counts())["open"]:
                await asyncio.sleep(0.2)


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    pipe = asyncio.subprocess.PIPE
    process = await _spawn("load.mock", stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield Upstream(int(await process.stdout.readline()), process.pid)
    finally:
        process.stdin.close()
        await process.wait()


def configuration(upstream: Upstream, port: int = 0, side: str = "-", **tables: Any) -> dict[str, Any]:
    """One backend a dialect, those that fail apart, and routes to them by model. `tables` add to listen, limits ..."""
    root = f"http://127.0.0.1:{upstream.port}/{side}"
    backends = [
        {"name": f"{dialect}{tail}", "dialect": dialect, "base_url": f"{root}/{dialect}"}
        for dialect in BACKENDS
        for tail in ("", "-bad")
    ]
    backends.append({"name": LIMPING, "dialect": "openai-chat", "base_url": f"{root}/{LIMPING}"})
    backends.append({"name": DEAD, "dialect": "openai-chat", "base_url": "http://127.0.0.1:1"})  # nothing listens there
    routes: list[dict[str, Any]] = [{"models": ["refused.*"], "backends": [DEAD]}]
    for dialect in BACKENDS:
        routes.append({"models": [f"{kind}.{dialect}" for kind in BAD], "backends": [f"{dialect}-bad"]})
        routes.append({"models": [f"failover.{dialect}"], "backends": [LIMPING, dialect]})
        routes.append({"models": [f"[!u]*.{dialect}"], "backends": [dialect]})
    base: dict[str, dict[str, Any]] = {
        "listen": {"host": "127.0.0.1", "port": port, "drain_s": 30.0},
        "policy": {"annotations": "always"},
        "limits": LIMITS,
    }
    merged = {name: {**base.get(name, {}), **tables.get(name, {})} for name in {**base, **tables}}
    return {**merged, "backends": backends, "routes": routes}


class Instance:
    """`wholecall serve` as a process; its log goes to a file beside its configuration."""

    def __init__(self, process: asyncio.subprocess.Process, config: Path, log: Path) -> None:
        self.process, self.config, self._log = process, config, log
        self.port = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def log(self) -> Iterator[dict[str, Any]]:
        with self._log.open() as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)

    async def logged(self, event: str, times: int = 1) -> dict[str, Any]:
        """The `times`th log line of an event."""
        async with asyncio.timeout(120):
            while True:
                found = [line for line in self.log() if line.get("event") == event]
                if len(found) >= times:
                    return found[times - 1]
                assert self.running, self._log.read_text()[-4000:]
                await asyncio.sleep(0.02)

    def exchanges(self) -> list[dict[str, Any]]:
        return [line for line in self.log() if line.get("event") == "exchange"]

    async def metrics(self) -> Metrics:
        return Metrics((await ask(self.port, None, "/metrics", seconds=60.0)).body.decode())

    async def is_ready(self) -> bool:
        """What a balancer asks every moment."""
        try:
            return (await ask(self.port, None, "/readyz")).status == 200
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return False

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def tree(self) -> list[int]:
        """The process and all below it."""
        found = [self.pid]
        for pid in found:
            found += children(pid)
        return found


@asynccontextmanager
async def instance(folder: Path, document: dict[str, Any], *options: str) -> AsyncIterator[Instance]:
    """Serving on a free port. It is killed at the end unless it has ended."""
    number = len(list(folder.glob("*.log")))
    config, log = write_config(folder / f"{number}.toml", document), folder / f"{number}.log"
    with log.open("wb") as target:
        process = await _spawn("proxy", "serve", "--config", str(config), *options, stderr=target)
    found = Instance(process, config, log)
    try:
        found.port = int((await found.logged("listening"))["address"].rsplit(":", 1)[1])
        while not await found.is_ready():
            await asyncio.sleep(0.02)
        yield found
    finally:
        if found.running:
            process.kill()
        await process.wait()


# --- what a process tree uses ---------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Use:
    """Of all processes of a tree together; `cpu_s`: of those that live."""

    at: float
    rss_kib: int
    files: int
    threads: int
    processes: int
    cpu_s: float


def use(pids: list[int]) -> Use:
    rss = files = threads = 0
    cpu = 0.0
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        try:
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            files += len(list((folder / "fd").iterdir()))
            ticks = (folder / "stat").read_text().rsplit(")", 1)[1].split()[11:13]
        except OSError:
            continue  # it has ended
        rss += int(status.get("VmRSS", "0").split()[0])
        threads += int(status["Threads"])
        cpu += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return Use(time.monotonic(), rss, files, threads, len(pids), cpu)
