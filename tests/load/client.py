"""The clients: raw HTTP/1.1, so that a thousand of them cost little; each reply is read strictly and judged."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from casefile import Reply
from dialect_clients import CLIENTS
from load.plan import LEAVES, TOKEN, Job, call_of, text_of
from proxy.replay.inprocess import Answer

PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic-messages": "/v1/messages",
}
SLOW_BYTES, SLOW_S = 16384, 0.02
IDLE_S = 2.0  # a kept connection is used no more after this long: the proxy closes it after 5 s
PATIENCE_S = 120.0  # no exchange of the plan takes that long on any machine


@dataclass(slots=True)
class Seen:
    """What came back. `status` 0: no head. `broken`: the connection ended inside the answer, or before it."""

    job: Job
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    broken: bool = False
    began: float = 0.0
    head_at: float = 0.0
    ended: float = 0.0  # these three of the monotonic clock
    verdicts: Counter[str] = field(default_factory=Counter)
    sides: set[str] = field(default_factory=set)  # the upstreams that its words came from
    problems: list[str] = field(default_factory=list)


# Whether an answer for this token is under way at the upstream.
Has = Callable[[str], Awaitable[bool]]


class Connection:
    """One client's connection; made at need, and again where the last answer ended it."""

    def __init__(self) -> None:
        self.port = 0
        self.used_at = 0.0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def to(self, port: int, slow: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None:
            idle = time.monotonic() - self.used_at > IDLE_S
            if slow or idle or port != self.port or _has_ended(self._streams[0]):
                self.close()
        if self._streams is None:
            sock = socket.socket()
            if slow:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BYTES)
            sock.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            except OSError:
                sock.close()
                raise
            self._streams = await asyncio.open_connection(sock=sock, limit=SLOW_BYTES if slow else 1 << 20)
            self.port = port
        return self._streams

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def exchange(connection: Connection, port: int, job: Job, random: Random, has: Has) -> Seen:
    """One job, carried out and judged. Raises OSError where there is no connection to be had: then nothing was sent."""
    slow = job.kind == "long"
    reader, writer = await connection.to(port, slow)
    seen = Seen(job, began=time.monotonic())
    body = CLIENTS[job.client].ask(job.request, job.model) if job.kind != "unreadable" else b'{"model": '
    head = f"POST {PATHS[job.client]} HTTP/1.1\r\nhost: load\r\nx-request-id: {job.token}\r\n"
    keeps = False
    try:
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(PATIENCE_S):
            if job.kind == "silent":
                await _leave(reader, seen, random, has)
            else:
                keeps = await _read(reader, seen, slow, random)
    except (asyncio.IncompleteReadError, ConnectionError):
        seen.broken = True
    except TimeoutError:
        seen.problems.append("no end")
    seen.ended = connection.used_at = time.monotonic()
    if not keeps:
        connection.close()
    if not seen.broken and job.kind not in LEAVES:
        _judge(seen)
    seen.problems += [f"foreign: {one}" for one in {*TOKEN.findall(seen.body.decode(errors="replace"))} - {job.token}]
    return seen


def _has_ended(reader: asyncio.StreamReader) -> bool:
    return reader.at_eof() or reader.exception() is not None


async def _leave(reader: asyncio.StreamReader, seen: Seen, random: Random, has: Has) -> None:
    """Some time after the upstream has got the request; it does not answer."""
    while not (seen.broken or await has(seen.job.token)):
        await asyncio.sleep(0.02)
        seen.broken = _has_ended(reader)
    with suppress(TimeoutError):
        async with asyncio.timeout(random.uniform(0.0, 0.3)):
            if await reader.read(1):
                seen.problems.append("an answer that the upstream did not give")
            seen.broken = True


async def _read(reader: asyncio.StreamReader, seen: Seen, slow: bool, random: Random) -> bool:
    """Whether the connection can be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    seen.head_at = time.monotonic()
    fields = (line.partition(":") for line in head.split("\r\n")[1:] if line)
    seen.headers = {name.lower(): value.strip() for name, _, value in fields}
    seen.status = int(head.split(" ", 2)[1])
    pieces_left = random.randint(1, 20) if seen.job.kind == "endless" else -1
    if "content-length" in seen.headers:
        seen.body += await reader.readexactly(int(seen.headers["content-length"]))
    while "content-length" not in seen.headers and pieces_left:
        size = int(await reader.readuntil(b"\r\n"), 16)
        for at in range(0, size, SLOW_BYTES):
            seen.body += await reader.readexactly(min(SLOW_BYTES, size - at))
            if slow:
                await asyncio.sleep(SLOW_S)
        await reader.readexactly(2)
        pieces_left -= 1
        if not size:
            break
    return pieces_left != 0 and seen.headers.get("connection") != "close" and not slow


def _judge(seen: Seen) -> None:
    job, rule, bad = seen.job, seen.job.rule, seen.problems.append
    answer = Answer(seen.status, seen.headers, seen.body)
    try:
        reply = CLIENTS[job.client].read(answer, job.stream)
    except (ValueError, KeyError, TypeError) as error:
        bad(f"unreadable: {error!r}")
        return
    seen.problems += reply.noncanonical
    seen.verdicts.update(entry["verdict"] for entry in reply.report)
    text = reply.content.get(0, "")
    seen.sides = {word[len(job.token) : len(job.token) + 1] for word in text.split()} & {"a", "b"}
    annotated = seen.sides == {"b"} and job.kind == "invalid"  # that side's policy
    if seen.status not in (rule.statuses if job.stream else (200 if annotated else rule.plain_status,)):
        bad(f"status {seen.status}")
    if sorted(seen.verdicts.elements()) != sorted(rule.verdicts):
        bad(f"verdicts {seen.verdicts}")
    if not rule.code or annotated:
        _judge_success(reply, job, seen, len(rule.verdicts))
        return
    if not isinstance(reply.error, dict) or rule.code not in ("boom", reply.error.get("code")):
        bad(f"error {reply.error}")
    if reply.calls:
        bad("calls in spite of an error")
    if job.stream and seen.status == 200 and not _whole(job, "".join(seen.sides)).startswith(text):
        bad("text before the error")


def _judge_success(reply: Reply, job: Job, seen: Seen, calls: int) -> None:
    bad = seen.problems.append
    if reply.failed or reply.done != 1:
        bad(f"no proper end, status {seen.status}, error {reply.error}")
        return
    if reply.content.get(0, "") != _whole(job, "".join(seen.sides)):
        bad("text")
    want = [call_of(job.kind, job.token, number) for number in range(calls)]
    got = [(call.id, call.name, call.arguments) for call in reply.calls.values()]
    told = [one[1:] for one in got] == [one[1:] for one in want]
    if not told or len({one[0] for one in got}) != len(got):
        bad(f"calls {got}")
    if got[:1] != want[:1] or (job.kind != "tangled" and got != want):
        bad(f"call ids {[one[0] for one in got]}")
    if reply.finish.get(0) != ("tool_calls" if calls else "stop"):
        bad(f"finish reason {reply.finish}")


def _whole(job: Job, side: str) -> str:
    return text_of(job.kind, job.token, side)
