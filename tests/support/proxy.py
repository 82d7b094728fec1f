"""The proxy between the scripted ends: in the test's own event loop on free ports, or as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from proxy.config import Config, from_document
from proxy.server.lifecycle import Server
from proxy.server.state import Service
from proxy.server.supervisor import bind


def document(*urls: str, **tables: Any) -> dict[str, Any]:
    """A configuration: backends b0, b1 ... at these URLs, one route to all of them in order.

    `limits`, `policy`, `listen`, `clients`, `backend` (keys for each backend) and `routes` replace or add tables.
    """
    backend = tables.pop("backend", {})
    backends = [{"name": f"b{i}", "dialect": "openai-chat", "base_url": url, **backend} for i, url in enumerate(urls)]
    listen = {"host": "127.0.0.1", "port": 0, "drain_s": 0.0} | tables.pop("listen", {})
    route = {"models": ["*"], "backends": [one["name"] for one in backends]}
    return {"listen": listen, "backends": backends, "routes": [route], **tables}


def configuration(*urls: str, **tables: Any) -> Config:
    return from_document(document(*urls, **tables), {})


class Proxy:
    """`async with Proxy(up.url, limits={...}) as proxy:` serves on `proxy.port` until the block ends."""

    def __init__(self, *urls: str, **tables: Any) -> None:
        self.config = configuration(*urls, **tables)
        self.port = 0
        self.admin_port = 0
        self.service: Service
        self.server: Server
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Proxy:
        sockets = bind(self.config)
        self.port = sockets.api.getsockname()[1]
        self.admin_port = sockets.admin.getsockname()[1] if sockets.admin is not None else self.port
        self.service = Service(self.config)
        self.server = Server(self.service, sockets)
        self._task = asyncio.create_task(self.server.serve())
        while not self.server.started:
            await asyncio.sleep(0.005)
            if self._task.done():
                self._task.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop()
        await self._task

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the samples of one metric that carry these labels."""
        return metric(self.service.metrics.render().decode(), name, **labels)

    async def quiet(self, seconds: float = 20.0) -> None:
        """Wait until no exchange runs."""
        async with asyncio.timeout(seconds):
            while self.service.admission.running:
                await asyncio.sleep(0.005)


def metric(exposition: str, name: str, **labels: str) -> float:
    """The sum over the samples of one metric of a Prometheus exposition that carry these labels."""
    total = 0.0
    for line in exposition.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")) and all(
            f'{key}="{value}"' in line for key, value in labels.items()
        ):
            total += float(line.rsplit(" ", 1)[1])
    return total


class Process:
    """`wholecall serve` as a process of its own; `log` are its log lines so far, decoded."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self.port = 0
        self.admin_port = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.log.append({"event": "no json", "line": line.decode()})

    async def logged(self, event: str, seconds: float = 20.0) -> dict[str, Any]:
        """The first log line of this event; waits for it."""
        async with asyncio.timeout(seconds):
            while True:
                for line in self.log:
                    if line.get("event") == event:
                        return line
                assert not (self._reading.done() and self.process.returncode is not None), self.log
                await asyncio.sleep(0.01)

    def kill(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, seconds: float = 20.0) -> int:
        """Its exit status; waits for it."""
        async with asyncio.timeout(seconds):
            return await self.process.wait()


@asynccontextmanager
async def running(path: Path, *options: str) -> AsyncIterator[Process]:
    """`wholecall serve --config path`, listening."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", "serve", "--config", str(path), *options,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    process = Process(child)
    try:
        line = await process.logged("listening")
        process.port = int(line["address"].rsplit(":", 1)[1])
        process.admin_port = int(line.get("admin", line["address"]).rsplit(":", 1)[1])
        yield process
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        await process._reading


def write_config(path: Path, document: dict[str, Any]) -> Path:
    """Write a configuration as TOML."""
    lines: list[str] = []
    for name, table in document.items():
        tables = table if isinstance(table, list) else [table]
        for one in tables:
            lines.append(f"[[{name}]]" if isinstance(table, list) else f"[{name}]")
            lines += [f"{key} = {_toml(value)}" for key, value in one.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)
