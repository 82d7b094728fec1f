"""Schemas that are made to take for ever, through the whole proxy: who sends one hurts nobody else."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy.faults import FaultKind
from proxy.server.lifecycle import run as run_process
from proxy.server.state import Service
from proxy.server.supervisor import EXIT_NOT_STARTED, bind
from support.client import REQUEST, ask, chat
from support.proxy import Proxy, configuration
from support.upstream import Conversation, Upstream, call_events, completion

STALL_S = 0.05


def doubling(number: int) -> dict[str, Any]:
    """Two kilobytes that ask one question 2^30 times; each number another schema."""
    steps = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    properties = {"a": {"$ref": "#/$defs/d0"}}
    return {"title": str(number), "properties": properties, "$defs": {**steps, "d30": {"type": "string"}}}


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


# What ordinary tools look like, though the child has to check them.
ORDINARY = {"properties": {"a": {"$ref": "#/$defs/s"}}, "$defs": {"s": {"type": "string", "pattern": "^x"}}}


def run(test: Callable[[Proxy, Upstream], Coroutine[Any, Any, None]], **tables: Any) -> None:
    async def main() -> None:
        async with Upstream(calls_f) as up, Proxy(up.url, **tables) as proxy:
            await test(proxy, up)

    uvloop.run(main())


async def calls_f(c: Conversation) -> None:
    if c.request.json.get("tools"):
        await c.stream(*call_events("f", ['{"a":"x"}']))
    else:
        await c.answer(200, completion())


def test_a_hostile_schema_ends_in_too_costly_and_others_are_served_meanwhile() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        longest = 0.0
        attack = asyncio.gather(*(chat(proxy.port, stream=True, tools=[tool(doubling(n))]) for n in range(4)))

        async def watch() -> None:
            """The most that this thread worked between two turns of the loop, which the proxy shares with the test."""
            nonlocal longest
            while not attack.done():
                since = time.thread_time()
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - since)
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch())
        served = 0
        while not attack.done():
            assert (await chat(proxy.port)).status == 200
            served += 1
        await watching
        for reply in await attack:
            assert (reply.status, reply.error["code"]) == (502, "schema_violation")
            (call,) = reply.json["wholecall"]["calls"]
            assert (call["verdict"], call["errors"][0]["rule"]) == ("schema_violation", "too_costly")
        assert served >= 10
        assert longest < 4 * STALL_S
        assert proxy.service.checker.lost_children == 4
        good = await chat(proxy.port, stream=True, tools=[tool(ORDINARY)])
        assert good.events[-1] == "[DONE]"
        assert len(children(proxy)) == 1

    run(test)


def test_the_same_hostile_schema_a_hundred_times_costs_one_child() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for _ in range(10):
            replies = await asyncio.gather(
                *(chat(proxy.port, stream=True, tools=[tool(doubling(0))]) for _ in range(10))
            )
            # While it runs for the first time it is let through; then it is refused before anything is asked.
            assert {reply.error["code"] for reply in replies} <= {"schema_violation", "invalid_tool_schema"}
        assert proxy.service.checker.lost_children == 1

    run(test)


def children(proxy: Proxy) -> list[int]:
    child = proxy.service.checker._child
    alive = Path("/proc/self/task").glob("*/children")
    found = [int(pid) for file in alive for pid in file.read_text().split()]
    assert child is not None
    return [pid for pid in found if b"proxy.checks.child" in Path(f"/proc/{pid}/cmdline").read_bytes()]


# --- what is no schema at all -------------------------------------------------------------------------------------

NO_OBJECTS = ["{}", [], 5, True, False, 1.5, "", [{}]]
ASK: dict[str, Callable[[Any], dict[str, Any]]] = {
    "/v1/chat/completions": lambda schema: {**REQUEST, "tools": [tool(schema)]},
    "/v1/responses": lambda schema: {
        "model": "m",
        "input": "Hi",
        "tools": [{"type": "function", "name": "f", "parameters": schema}],
    },
    "/v1/messages": lambda schema: {**REQUEST, "max_tokens": 9, "tools": [{"name": "f", "input_schema": schema}]},
}


@pytest.mark.parametrize("path", ASK)
@pytest.mark.parametrize("schema", NO_OBJECTS, ids=json.dumps)
def test_parameters_that_are_no_object_are_400_naming_the_tool(path: str, schema: Any) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, ASK[path](schema), path)
        assert (reply.status, reply.error["code"]) == (400, FaultKind.INVALID_TOOL_SCHEMA.value.code)
        assert "'f'" in reply.error["message"]
        assert up.seen == []

    run(test)


@pytest.mark.parametrize("path", ASK)
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "objekt"}, "/type"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}}, "/properties/a/$ref"),
        ({"$ref": "file:///etc/passwd"}, "/$ref"),
        ({"$schema": "http://127.0.0.1:1/x"}, "/$schema"),
        ({"properties": {"a": {"pattern": "("}}}, "/properties/a/pattern"),
    ],
)
def test_a_schema_that_does_not_compile_is_400_with_tool_and_pointer(path: str, schema: Any, pointer: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, ASK[path](schema), path)
        assert (reply.status, reply.error["code"]) == (400, FaultKind.INVALID_TOOL_SCHEMA.value.code)
        assert "'f'" in reply.error["message"]
        assert pointer in reply.error["message"]
        assert up.seen == []

    run(test)


# --- the library --------------------------------------------------------------------------------------------------


def fails() -> None:
    raise RuntimeError("it reads files")


@pytest.mark.parametrize("where", ["here", "in the child"])
def test_a_library_that_reads_files_keeps_the_checks_from_starting(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if where == "here":
        monkeypatch.setattr("proxy.server.checker.self_probe", fails)
    else:  # the child imports a package in which it fails
        (tmp_path / "proxy").symlink_to(Path(__file__).parents[1] / "proxy")
        broken = (
            "import proxy.checks.schema as schema\ndef fails():\n    raise RuntimeError\nschema.self_probe = fails\n"
        )
        (tmp_path / "sitecustomize.py").write_text(broken)
        monkeypatch.setattr("proxy.server.checker._PACKAGE_FOLDER", str(tmp_path))

    async def main() -> None:
        service = Service(configuration("http://127.0.0.1:1/v1"))
        try:
            with pytest.raises(RuntimeError, match=r"reads files|does not come up"):
                await service.start()
        finally:
            await service.aclose()

    uvloop.run(main())


def test_checks_that_do_not_start_keep_the_process_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(_service: Service) -> None:
        fails()

    monkeypatch.setattr(Service, "start", start)
    config = configuration("http://127.0.0.1:1/v1")
    assert run_process(lambda: config, config, bind(config)) == EXIT_NOT_STARTED
