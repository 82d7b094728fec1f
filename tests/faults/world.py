"""The proxy between a hostile upstream and hostile clients, and what must be as before once a fault is over.

One proxy meets all faults of a test module, one after the other. Which backend of it is asked, and what the upstream
does, is in the request's model: `backend/fault#who asks`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import uvloop

from dialect_clients import CLIENTS
from faults import clients
from faults.asking import ASKERS, PATHS, Asker, judge
from faults.cuts import Breaking
from faults.listeners import Listener
from faults.replies import CALLS, REQUEST, TEXT
from faults.table import NOTHING, ClientRow, CutRow, Metrics, Row
from faults.upstreams import Act, whole
from faults.visit import PATIENCE_S, Visit
from proxy.server import http_client
from support.client import Client, Reply
from support.proxy import Proxy
from support.upstream import Conversation, Script, Upstream

# How much a fault may cost in memory besides what it takes to read it: buffers of sockets, mostly.
MEMORY = 64 << 20

_ELSEWHERE = "other path"
_PROBE = "answers well#probe"
# A schema that is no cheap one: its checks are made in the child process, which so shows that it lives.
_PATTERN = {"type": "object", "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}}}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class State:
    """Tasks by what they run, and open files and sockets; without those of the test's own upstream."""

    tasks: Counter[str]
    descriptors: int


class World:
    """The upstream answers with the script that the request's model names among `scripts`.

    `backends`: their tables in the configuration, by name; the upstream's address is filled in. `secure`: by name too,
    backends where the upstream is reached over TLS. `listeners`: backends that are something else.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script],
        backends: Mapping[str, Mapping[str, Any]],
        secure: Mapping[str, ssl.SSLContext] | None = None,
        listeners: Mapping[str, Listener] | None = None,
        **tables: Any,
    ) -> None:
        self.scripts = {**scripts, "answers well": whole}
        self.up = Upstream(self._script)
        self._secure = {name: Upstream(self._script, context) for name, context in (secure or {}).items()}
        self.asked: dict[str, list[Conversation]] = {}
        self.proxy: Proxy
        self._ends = AsyncExitStack()
        self._listeners = listeners or {}
        self._backends = backends
        self._tables = tables

    async def open(self) -> None:
        for up in self._upstreams:
            await self._ends.enter_async_context(up)
        urls = {name: up.url for name, up in self._secure.items()}
        for name, listener in self._listeners.items():
            port = await self._ends.enter_async_context(listener())
            urls[name] = f"http{'s' if 'tls' in name else ''}://127.0.0.1:{port}/v1"
        tables = {name: dict(table) for name, table in self._backends.items()}
        for name, url in urls.items():
            tables.setdefault(name, {})["base_url"] = url
        usual = {"dialect": "openai-chat", "base_url": self.up.url}
        backends = [{"name": name, **usual, **table} for name, table in tables.items()]
        routes = [{"models": [f"{name}/*"], "backends": [name], "strip_prefix": f"{name}/"} for name in tables]
        self.proxy = Proxy(**{"backends": backends, "routes": routes, **self._tables})
        await self._ends.enter_async_context(self.proxy)
        for asker in ASKERS:
            await self.exchange(asker, f"usual/{_PROBE}")
        await self.probe()
        gc.collect()
        gc.freeze()

    async def close(self) -> None:
        await self.hang_up()
        await self._ends.aclose()
        gc.unfreeze()

    @property
    def _upstreams(self) -> list[Upstream]:
        return [self.up, *self._secure.values()]

    @property
    def connected(self) -> int:
        """How many connections to the upstream are open."""
        return sum(up.open for up in self._upstreams)

    @property
    def connections(self) -> int:
        """How many were ever made."""
        return sum(up.connections for up in self._upstreams)

    async def hang_up(self) -> None:
        """No connection to the upstream is left from before, not even an idle one."""
        for up in self._upstreams:
            up.hang_up()
        assert await eventually(lambda: ["open"] * self.connected) == []

    async def _script(self, c: Conversation) -> None:
        self.asked.setdefault(c.model, []).append(c)
        await self.scripts[c.model.partition("#")[0]](c)

    # --- asking

    async def exchange(self, asker: Asker, model: str, **more: Any) -> Reply:
        async with Client(self.proxy.port) as client:
            await client.ask(asker.request(model, **more), PATHS[asker.dialect])
            return await client.rest(await client.head(PATIENCE_S), PATIENCE_S)

    async def elsewhere(self, model: str | None) -> Reply | None:
        """The same upstream, asked on a path on which the proxy only passes on."""
        if model is None:
            return None
        async with Client(self.proxy.port) as client:
            await client.ask({"model": model, "input": "x"}, "/v1/embeddings")
            return await client.rest(await client.head(PATIENCE_S), PATIENCE_S)

    async def once_more(self, asker: Asker, model: str) -> Reply:
        """The same on a connection to the upstream that was used before, the only one that is kept."""
        await self.hang_up()
        await self.exchange(asker, f"usual/{_PROBE}")
        return await self.exchange(asker, model)

    async def probe(self, times: int = 1, backend: str = "usual") -> list[str]:
        """So many good requests at once, each with a check in the child process; what is wrong with the answers."""
        function = {"name": "look", "parameters": _PATTERN}
        tools = [{"type": "function", "function": function}, *REQUEST["tools"][1:]]
        asker = Asker("openai-chat", stream=True)
        replies = await asyncio.gather(
            *(self.exchange(asker, f"{backend}/{_PROBE}", tools=tools) for _ in range(times))
        )
        return [f"the next request: {wrong}" for reply in replies for wrong in judge("whole", asker, reply)]

    # --- counting

    def counts(self) -> Counter[str]:
        """What the metrics count of requests, calls and errors, by their labels without the route."""
        found: Counter[str] = Counter()
        for key, count in _counts(self.proxy.service.metrics.render().decode()):
            found[key] += count
        return found

    def state(self) -> State:
        mine = {asyncio.current_task(), *(task for up in self._upstreams for task in up.tasks)}
        tasks = Counter(_name(task) for task in asyncio.all_tasks() if task not in mine)
        return State(tasks, len(os.listdir("/proc/self/fd")) - 2 * self.connected)

    def left_over(self, before: State) -> list[str]:
        """What runs or is open now and was not `before`."""
        now, service = self.state(), self.proxy.service
        out = [f"{count} more tasks of {name}" for name, count in (now.tasks - before.tasks).items()]
        if now.descriptors > before.descriptors:
            out.append(f"{now.descriptors - before.descriptors} more descriptors")
        if service.admission.running or service.pumps:
            out.append(f"{service.admission.running} exchanges run")
        if streams := self.proxy.metric("wholecall_streams"):
            out.append(f"wholecall_streams is {streams:g}")
        return out

    async def settled(self, before: State) -> list[str]:
        """What is left over once everything had time to end."""
        wrong = await eventually(lambda: self.left_over(before))
        return [f"left behind: {one}" for one in wrong]

    async def alone(self) -> State:
        """Nothing is left from before, not even an idle connection to the upstream; what is there then."""
        await self.hang_up()
        await asyncio.sleep(0.01)  # for the proxy to see it
        self.asked.clear()
        return self.state()

    # --- one row

    async def row(self, row: Row, act: Act) -> list[str]:
        """Every cell of a hostile upstream's row that is not as the table says, in words."""
        before = await self.alone()
        counts = self.counts()
        models = {asker: f"{act.backend}/{row.fault}#{asker}" for asker in ASKERS}
        elsewhere = f"{act.backend}/{row.fault}#{_ELSEWHERE}" if row.elsewhere is not None else None
        with memory() as grown:
            if act.warm:
                replies = [await self.once_more(asker, models[asker]) for asker in ASKERS]
                await self.hang_up()
                other = await self.elsewhere(elsewhere)
            else:
                asking = asyncio.gather(*(self.exchange(asker, models[asker]) for asker in ASKERS))
                replies, other = await asyncio.gather(asking, self.elsewhere(elsewhere))
            wrong = await self.settled(before)
        if grown.bytes > MEMORY:
            wrong.append(f"left behind: {grown.bytes >> 20} MiB of memory were needed")
        for asker, reply in zip(ASKERS, replies, strict=True):
            found = judge(row.sees(asker.stream), asker, reply, act.text)
            wrong += [f"client [{asker}]: {one}" for one in found]
        if other is not None and (got := cell_elsewhere(other)) != str(row.elsewhere).partition(":")[0]:
            wrong.append(f"client [other path]: {got!r}, want {row.elsewhere!r}")
        found = await eventually(lambda: [one for asker in ASKERS for one in self._upstream_sees(row, asker)])
        wrong += [f"upstream {one}" for one in found]
        wrong += [f"metrics: {one}" for one in differences(expected_counts(row, act), self.counts() - counts)]
        return wrong + await self._goes_on(act.backend)

    async def _goes_on(self, backend: str) -> list[str]:
        """What is wrong with the next requests, as many as there are connections that were kept, and which they use."""
        wrong = await eventually(lambda: ["upstream: an answer goes on"] * sum(up.busy for up in self._upstreams))
        made, kept = self.connections, self.connected
        wrong += await self.probe(max(1, kept), "tls" if backend == "tls" else "usual")
        if kept and self.connections != made:
            wrong.append(f"upstream: {self.connections - made} new connections for {kept} requests")
        return wrong

    # --- a hostile client's row

    async def visited(self, row: ClientRow, act: clients.Act) -> list[str]:
        """Every cell of a hostile client's row that is not as the table says, in words."""
        before = await self.alone()
        counts = self.counts()
        self.scripts[row.fault] = act.upstream
        visits: dict[str, Visit] = {}

        async def visit(asker: Asker, how: str) -> str:
            async with self.visit(row.fault, act, asker, how) as one:
                visits[one.name] = one
                return await act.do(one)

        with memory() as grown:
            cells = await asyncio.gather(*(visit(asker, how) for asker in act.askers for how in act.ways))
            wrong = await self.settled(before)
        if grown.bytes > MEMORY:
            wrong.append(f"left behind: {grown.bytes >> 20} MiB of memory were needed")
        want: Counter[str] = Counter()
        for cell, one in zip(cells, visits.values(), strict=True):
            where = f"[{one.asker}, {one.how}]"
            wrong += [f"client {where}: {cell!r}, want {row.client!r}"] if cell != row.client else []
            wrong += [f"client {where}: {what}" for what in one.wrong]
            if row.metrics.status is not None:
                label = {"dialect": one.asker.dialect, "status": row.metrics.status}
                want[_key("requests", **label)] += row.metrics.times
            want.update({_key("tool_calls", verdict=verdict): n for verdict, n in row.metrics.verdicts.items()})
        wrong += await eventually(lambda: [what for name in visits for what in self._upstream_saw(row, name)])
        wrong += [f"metrics: {one}" for one in differences(want, without_backend(self.counts() - counts))]
        return wrong + await self._goes_on("usual")

    @asynccontextmanager
    async def visit(self, fault: str, act: clients.Act, asker: Asker, how: str) -> AsyncIterator[Visit]:
        """One client's visit, before anything is done."""
        name = f"{fault}#{asker}, {how}"
        async with Client(self.proxy.port, receive_buffer=act.buffer) as client:
            yield Visit(
                client,
                asker,
                f"{act.backend}/{name}",
                how,
                lambda: self.asked.get(name, []),
                lambda: self.proxy.service.admission.running,
            )

    def _upstream_saw(self, row: ClientRow, name: str) -> list[str]:
        asked = self.asked.get(name, [])
        want = 0 if row.upstream == NOTHING else 2 if "twice" in row.upstream else 1
        if len(asked) != want:
            return [f"upstream [{name}]: asked {len(asked)} times, want {want}"]
        if asked and asked[-1].connection.open != row.upstream.endswith("kept"):
            return [f"upstream [{name}]: the connection is {'open' if asked[-1].connection.open else 'closed'}"]
        return []

    # --- a reply that breaks off

    async def cuts(self, way: Breaking, rows: Mapping[str, CutRow], *, live: bool) -> list[str]:
        """Every cell that is not as the table says, of a reply that breaks off at each of its bytes."""
        before = await self.alone()
        counts = self.counts()
        backend = ("live-" if live else "") + (way.stream.dialect if way.stream is not None else "openai-chat")
        want: Counter[str] = Counter()
        wrong: list[str] = []
        cuts = list(way.cuts())

        async def ask() -> None:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(Client(self.proxy.port))
                while cuts:
                    at, cut = cuts.pop()
                    asker = Asker(list(CLIENTS)[at % len(CLIENTS)], stream=way.stream is not None)
                    row = rows[cut.part]
                    cell = row.live if live else row.held
                    await client.ask(asker.request(f"{backend}/{way.name}#{at}"), PATHS[asker.dialect])
                    reply = await client.rest(await client.head(PATIENCE_S), PATIENCE_S)
                    where = f"{cut.part}, byte {at} [{asker}]"
                    text = "".join(TEXT) if cell == "whole" else cut.text
                    wrong.extend(f"client {where}: {one}" for one in judge(cell, asker, reply, text, live=live))
                    want.update(_expected(backend, asker, cell, row.metrics, cut.begun if row.begun else None))
                    if "close" in reply.headers.get("connection", "") or reply.broken:
                        client = await stack.enter_async_context(Client(self.proxy.port))

        await asyncio.gather(*(ask() for _ in range(16)))
        wrong += await self.settled(before)
        wrong += [f"metrics: {one}" for one in differences(want, self.counts() - counts)]
        wrong += [f"upstream {model}: asked {len(c)} times" for model, c in self.asked.items() if len(c) != 1]
        wrong += await eventually(lambda: [f"upstream: {self.connected} connections are open"] * bool(self.connected))
        return wrong + await self.probe()

    def _upstream_sees(self, row: Row, asker: Asker) -> list[str]:
        asked = self.asked.get(f"{row.fault}#{asker}", [])
        want = {NOTHING: 0, "asked twice": 2}.get(row.upstream.partition(", ")[0], 1)
        if len(asked) != want:
            return [f"[{asker}]: asked {len(asked)} times, want {want}"]
        if asked and row.upstream != "asked twice" and asked[-1].connection.open != row.upstream.endswith("kept"):
            return [f"[{asker}]: the connection is {'open' if asked[-1].connection.open else 'closed'}"]
        return []


# --- what the metrics say ------------------------------------------------------------------------------------------

_SAMPLE = re.compile(r"wholecall_(requests|upstream_errors|tool_calls)_total\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def _counts(exposition: str) -> Iterator[tuple[str, int]]:
    for family, labels, value in _SAMPLE.findall(exposition):
        named = dict(_LABEL.findall(labels))
        named.pop("route", None)
        yield _key(family, **named), int(float(value))


def _key(family: str, **labels: str) -> str:
    return family + "".join(f" {name}={labels[name]}" for name in sorted(labels))


def cell_elsewhere(reply: Reply) -> str:
    """The cell that the answer on another path comes to."""
    if reply.broken:
        return f"{reply.status}, broken off"
    if reply.status >= 500 and b'"error"' in reply.body:
        return f"{reply.status} {reply.json['error']['code']}"
    return str(reply.status)


def expected_counts(row: Row, act: Act) -> Counter[str]:
    found: Counter[str] = Counter()
    if row.elsewhere is not None:
        seen, _, kind = row.elsewhere.partition(": ")
        status, _, what = seen.partition(" ")
        found[_key("requests", backend=act.backend, dialect="none", status=status.rstrip(","))] += 1
        if what and what != "no_room":  # which is the upstream's own, passed on
            found[_key("upstream_errors", backend=act.backend, kind=kind or row.metrics.kind)] += 1
    for asker in ASKERS:
        if act.warm:
            found[_key("requests", backend="usual", dialect=asker.dialect, status="200")] += 1
            found[_key("tool_calls", backend="usual", verdict="valid")] += len(CALLS)
        found.update(_expected(act.backend, asker, row.sees(asker.stream), row.metrics))
    return found


def _expected(backend: str, asker: Asker, cell: str, metrics: Metrics, begun: int | None = None) -> Counter[str]:
    """What one exchange adds. `begun`: how many calls are incomplete, where that is not in the row."""
    status = "200" if cell == "whole" or cell.startswith("cut: ") else cell.partition(" ")[0]
    found = Counter({_key("requests", backend=backend, dialect=asker.dialect, status=status): 1})
    if cell != "whole":
        found[_key("upstream_errors", backend=backend, kind=metrics.kind)] = 1
    verdicts = dict(metrics.streamed if asker.stream else metrics.plain)
    if begun is not None:
        verdicts["incomplete"] = begun
    for verdict, count in verdicts.items():
        found[_key("tool_calls", backend=backend, verdict=verdict)] = count
    return found


def without_backend(counts: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for key, count in counts.items():
        found[re.sub(r" backend=[^ ]*", "", key)] += count
    return found


def differences(want: Counter[str], got: Counter[str]) -> list[str]:
    return [f"{key}: {got[key]}, want {want[key]}" for key in sorted({*want, *got}) if got[key] != want[key]]


# --- the machine's side --------------------------------------------------------------------------------------------


async def eventually(wrong: Callable[[], list[str]]) -> list[str]:
    """What is wrong still after a while; nothing as soon as nothing is.

    The while is counted in turns of the event loop, which all sides share: some five seconds.
    """
    for _ in range(1000):
        if not wrong():
            return []
        await asyncio.sleep(0.005)
    return wrong()


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "?")


@dataclass
class Growth:
    """By how many bytes the process grew at most, of what was resident."""

    bytes: int = 0


@contextmanager
def memory() -> Iterator[Growth]:
    grown = Growth()
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak is forgotten; where that is not allowed, an earlier one stands for it
    except OSError:
        pass
    before = resident()
    yield grown
    grown.bytes = _status("VmHWM") - before


def resident() -> int:
    """This process's memory in bytes."""
    return _status("VmRSS")


def _status(field_name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field_name))


class Loop:
    """An event loop that outlives a test; between tests it stands still."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def run(self, work: Awaitable[T]) -> T:
        async def main() -> T:
            return await work

        return self._runner.run(main())

    def close(self) -> None:
        self._runner.close()


@contextmanager
def running(world: World) -> Iterator[tuple[World, Loop]]:
    """The world in a loop of its own. On a machine that is busy with other things too, what the proxy does with a
    connection that is free shall not depend on how long the test waits."""
    loop = Loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_client, "KEEPALIVE_EXPIRY_S", 3600.0)
        patch.setattr(http_client, "DRAIN_S", 1.0)
        try:
            loop.run(world.open())
            yield world, loop
        finally:
            loop.run(world.close())
            loop.close()


def complaints(records: Sequence[logging.LogRecord]) -> list[str]:
    """What was logged that no fault of somebody else's is worth: a trace, a warning, a mistake of ours."""
    return [
        f"log: {record.name}: {record.getMessage()}"
        for record in records
        if record.exc_info or (record.levelno >= logging.WARNING and not _is_held_for_down(record))
    ]


def _is_held_for_down(record: logging.LogRecord) -> bool:
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields.get("event") == "backend"
