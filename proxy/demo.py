"""`wholecall demo`: the proxy in front of an embedded backend that misbehaves, in one process. No key, no network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import click
import orjson
import uvicorn
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from proxy.config import Config, from_document
from proxy.conformance.models import probe_models
from proxy.replay import show
from proxy.replay.app import SHOWPIECE, build, shipped
from proxy.replay.embedded import Embedded, accepting, listening_on
from proxy.replay.outcome import payloads, read_outcome
from proxy.server import logs
from proxy.server.http_client import Pool
from proxy.server.supervisor import MULTIPROCESS_DIR, NotStarted, address_of, bind

HOST = "127.0.0.1"
EXIT_UNUSABLE = 2


def run(once: bool, port: int) -> int:
    """Show one exchange; then, unless `once`, serve until Ctrl-C or until the terminal is closed. `port` 0: a free
    one. The exit status."""
    os.environ.pop(MULTIPROCESS_DIR, None)  # metrics of one process; read when they are imported
    logs.set_up("error")
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the backend leaves replies unfinished on purpose
    try:
        asyncio.run(_demo(once, port, show.console()))
    except NotStarted as error:
        click.echo(str(error), err=True)
        return EXIT_UNUSABLE
    return 0


async def _demo(once: bool, port: int, console: Console) -> None:
    from proxy.server.lifecycle import Server
    from proxy.server.state import Service

    backend = Embedded(build(answering=probe_models()))
    listening = listening_on(HOST)
    upstream = address_of(listening)
    async with _running(backend, backend.serve([listening])):
        config = _config(upstream, port)
        sockets = bind(config, "--port (0: a free one)")
        address = address_of(sockets.api)
        proxy = Server(Service(config), sockets)
        async with _running(proxy, proxy.serve()) as serving:
            await _show_exchange(console, address)
            if once:
                proxy.stop()
            else:
                _invite(console, address, upstream)
                logging.getLogger("wholecall").setLevel(logging.INFO)  # from now on a line for each exchange
            await serving
        backend.should_exit = True


@contextlib.asynccontextmanager
async def _running(server: uvicorn.Server, work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """`work`, which runs `server`, as a task that accepts connections. Where this ends well, so does the task."""
    task = asyncio.create_task(work)
    try:
        await accepting(server, task)
        yield task
        await task
    finally:
        task.cancel()


def _config(upstream: str, port: int) -> Config:
    document = {
        "listen": {"host": HOST, "port": port, "drain_s": 1.0},
        "policy": {"annotations": "always"},
        "backends": [{"name": "replay", "dialect": "openai-chat", "base_url": f"{upstream}/v1"}],
        "routes": [{"models": ["*"], "backends": ["replay"]}],
    }
    return from_document(document, {})


async def _show_exchange(console: Console, address: str) -> None:
    """One request to the proxy: what the backend answered, what came out, what was found."""
    recording = shipped()[SHOWPIECE]
    pool = Pool()
    url, request = f"{address}/v1/chat/completions", orjson.dumps({"model": SHOWPIECE, **recording.request})
    async with asyncio.timeout(30):
        reply = await pool.send("the proxy", url, [("content-type", "application/json")], request, connect_s=30)
        pieces = []
        while data := await reply.read():
            pieces.append(data)
    await reply.aclose()
    await pool.aclose()
    body = b"".join(pieces)
    outcome = read_outcome(reply.status, reply.headers, body)
    prompt = recording.request["messages"][0]["content"]
    console.print(Text.assemble(("Asked: ", "bold"), f"{prompt} (model {SHOWPIECE})"))
    _headline(console, "What came in", f"the backend's reply, event by event: {recording.title}")
    console.print(show.stream_table(payloads(b"".join(recording.pieces))))
    _headline(console, "What went out", "what the client got from the proxy: text at once, then each call whole")
    console.print(show.stream_table(payloads(body)))
    _headline(console, "Verdicts", "each call against the tools and schemas of the request")
    console.print(show.calls_table(outcome.calls))
    mended = show.quirks_table(outcome)
    if mended is not None:
        _headline(console, "Quirks", "what was mended on the way; `wholecall explain CODE` says more")
        console.print(mended)
    console.print()
    console.print(show.result_line(outcome))


def _headline(console: Console, title: str, text: str) -> None:
    console.print()
    console.print(Text.assemble((f"{title}:", "bold"), f" {text}"))
    console.print()


def _invite(console: Console, address: str, upstream: str) -> None:
    """Where a client goes. Lines to copy are not wrapped, whatever the width."""
    text = f"""
The proxy listens on {address}/v1 (any API key). Try it:

  curl -s {address}/v1/demo/request |
    curl -sN {address}/v1/chat/completions \\
      -H 'content-type: application/json' -d @-

The same without the proxy: {upstream}/v1
Append ?model=NAME to the first address for another reply. NAME is one of"""
    console.print(Text(text), soft_wrap=True)
    console.print(Padding(Text(", ".join(shipped())), (0, 0, 0, 2), expand=False))
    console.print(Text("\nEach exchange is logged as one line. Ctrl-C ends."), soft_wrap=True)
