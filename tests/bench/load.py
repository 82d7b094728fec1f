"""The load: `python -m bench.load --url http://127.0.0.1:PORT/v1 --workload NAME` prints one JSON object.

So many connections each send a request, read the reply to its end and send the next, until the time or the number of
requests is over. While the clock runs a reply is only searched for its end; afterwards every one is checked: status,
framing, characters of text and arguments, number of calls, their ids and names, finish reason, [DONE].
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import orjson
import uvloop

from bench import processes, workloads

MAX_HELD_BYTES = 1 << 30  # replies are kept until they are checked
LAST_REPLIES_S = 60.0
_SENT_AT = re.compile(rb"t=(\d{19})")
_LONGEST_MARK = len(workloads.MARK)

_HEAD, _CHUNKED = -2, -1  # in the place of a body's length: the head is awaited; the body says when it ends

now = time.monotonic_ns


class BadReply(Exception):
    """What is wrong with a reply."""


class Client(asyncio.Protocol):
    """One connection. `load` is told of every reply that is over."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.transport: asyncio.Transport
        self.head = b""
        self.parts: list[bytes] | None = None  # None: no reply is awaited
        self.sent_at = self.body_at = 0
        self._left = _HEAD  # bytes of the body that are to come
        self._end = b""
        self._scanned = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self) -> None:
        self.head, self.parts, self._left, self._end, self._scanned = b"", [], _HEAD, b"", b""
        self.body_at = 0
        self.sent_at = now()
        self.transport.write(self.load.request)

    def data_received(self, data: bytes) -> None:
        at = now()
        if self.parts is None:
            self.load.wrong["data outside a reply"] += 1
            return
        if self._left == _HEAD:
            data = self._read_head(data)
            if not data and self._left:
                return
        if not self.body_at:
            self.body_at = at
        self.parts.append(data)
        if self.load.timed:
            self._note_latencies(data, at)
        if self._left == _CHUNKED:
            self._end = data[-7:] if len(data) >= 7 else (self._end + data)[-7:]
            if self._end == b"\r\n0\r\n\r\n":
                self._over(at)
        else:
            self._left -= len(data)
            if self._left <= 0:
                self._over(at)

    def _read_head(self, data: bytes) -> bytes:
        """The beginning of the body, once the head is complete."""
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        if end < 0:
            return b""
        data = self.head[end + 4 :]
        self.head = self.head[: end + 2].lower()
        _, _, length = self.head.partition(b"\r\ncontent-length:")
        self._left = int(length.split(b"\r\n")[0]) if length else _CHUNKED
        return data

    def _note_latencies(self, data: bytes, at: int) -> None:
        seen, end = self._scanned + data, 0
        for match in _SENT_AT.finditer(seen):
            self.load.latencies.append(at - int(match[1]))
            end = match.end()
        self._scanned = seen[max(end, len(seen) - _LONGEST_MARK) :]

    def _over(self, at: int) -> None:
        parts, self.parts = self.parts or [], None
        self.load.received(self, parts, at)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.parts is not None:
            self.parts = None
            self.load.failed(self, f"connection lost: {exc or 'closed early'}")


class Load:
    """One measurement."""

    def __init__(self, options: argparse.Namespace) -> None:
        workload = workloads.named(options.workload)
        url = urlsplit(options.url)
        self.address = (url.hostname or "", url.port or 80)
        self.workload = workload
        self.expected: workloads.Expected = getattr(workload, options.expect)
        self.options = options
        lines = [
            f"POST {url.path}/chat/completions HTTP/1.1",
            f"host: {url.netloc}",
            "content-type: application/json",
            f"accept: {'text/event-stream' if workload.stream else 'application/json'}",
            "authorization: Bearer sk-bench",
            "user-agent: OpenAI/Python 2.9.0",
            f"content-length: {len(workload.request)}",
            *options.header,
        ]
        self.request = "\r\n".join(lines).encode() + b"\r\n\r\n" + workload.request
        self.timed = workload.timed
        size = sum(len(event) for turn in workload.turns for event in turn.events)
        self.most = max(1, min(options.requests, MAX_HELD_BYTES // size))
        self.wrong: Counter[str] = Counter()
        self.latencies: list[int] = []
        self.first_bytes: list[int] = []
        self.durations: list[int] = []
        self.replies: list[tuple[bytes, list[bytes]]] = []
        self._started = self._running = self._limit = self._deadline = 0
        self._over: asyncio.Future[None]

    async def connect(self) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: Client(self), *self.address)
        return client

    def next(self, client: Client) -> None:
        """Send the connection's next request, or count the connection as done."""
        over = self._started >= self._limit or now() >= self._deadline
        if not over and client.transport.is_closing():
            self.wrong["connection closed between requests"] += 1
            over = True
        if not over:
            self._started += 1
            client.send()
            return
        self._running -= 1
        if self._running == 0 and not self._over.done():
            self._over.set_result(None)

    def received(self, client: Client, parts: list[bytes], at: int) -> None:
        self.first_bytes.append(client.body_at - client.sent_at)
        self.durations.append(at - client.sent_at)
        self.replies.append((client.head, parts))
        self.next(client)

    def failed(self, client: Client, why: str) -> None:
        self.wrong[why] += 1
        self.next(client)

    async def section(self, clients: Sequence[Client], requests: int, seconds: float, spread_s: float) -> None:
        """Requests on all connections, whose first ones are spread over `spread_s`."""
        loop = asyncio.get_running_loop()
        self._started, self._running, self._limit = 0, len(clients), requests
        self._deadline = now() + int(seconds * 1e9)
        self._over = loop.create_future()
        for number, client in enumerate(clients):
            if spread_s:
                loop.call_later(spread_s * number / len(clients), self.next, client)
            else:
                self.next(client)
        try:
            await asyncio.wait_for(self._over, seconds + LAST_REPLIES_S)
        except TimeoutError:
            self.wrong["no end within the time"] += 1

    async def run(self) -> dict[str, Any]:
        options = self.options
        clients = await asyncio.gather(*[self.connect() for _ in range(options.concurrency)])
        if options.warm_up:
            await self.section(clients, options.warm_up, LAST_REPLIES_S, 0)
            self.check()
            if self.wrong:
                return {"error": f"warming up: {dict(self.wrong)}"}
            for times in (self.latencies, self.first_bytes, self.durations):
                times.clear()
        for pid in options.pid:
            processes.reset_peak(pid)
        used = [processes.cpu_ns(pid) for pid in options.pid]
        busy, own, began = processes.busy_ns(), time.process_time_ns(), now()
        await self.section(clients, self.most, options.seconds, options.spread_ms / 1000)
        seconds = (now() - began) / 1e9
        own = time.process_time_ns() - own
        busy = processes.busy_ns() - busy
        used = [processes.cpu_ns(pid) - before for pid, before in zip(options.pid, used, strict=True)]
        peaks = [processes.memory_mib(pid, "VmHWM") for pid in options.pid]
        for client in clients:
            client.transport.abort()
        number = len(self.durations)
        self.check()
        events = number * self.expected.events
        result: dict[str, Any] = {
            "requests": number,
            "seconds": seconds,
            "requests_per_s": number / seconds,
            "events_per_s": events / seconds,
            "first_byte_p50_ms": quantile_ms(self.first_bytes, 0.5),
            "reply_p50_ms": quantile_ms(self.durations, 0.5),
            "reply_p99_ms": quantile_ms(self.durations, 0.99),
            "load_cpu_s": own / 1e9,
            "elsewhere": (busy - own - sum(used)) / 1e9 / seconds,
            "wrong": dict(self.wrong),
        }
        if self.timed:
            result["event_p50_ms"] = quantile_ms(self.latencies, 0.5)
            result["event_p99_ms"] = quantile_ms(self.latencies, 0.99)
        if used and events:
            result["cpu_s"] = used[0] / 1e9
            result["cpu_s_per_1000_events"] = used[0] / 1e6 / events
            result["cpu_ms_per_request"] = used[0] / 1e6 / number
            result["peak_mib"] = peaks[0]
            result["others_cpu_s"] = [ns / 1e9 for ns in used[1:]]
        return result

    def check(self) -> None:
        """Count what is wrong with the replies so far, and forget them."""
        right: set[bytes] = set()
        for head, parts in self.replies:
            body = b"".join(parts)
            try:
                if b"\r\ntransfer-encoding: chunked" in head:
                    body = dechunked(body)
                if body not in right:
                    check_reply(int(head[9:12]), body, self.workload.stream, self.expected)
                    if len(right) < 50:
                        right.add(body)
            except (BadReply, ValueError, KeyError, IndexError, TypeError) as error:
                self.wrong[f"{type(error).__name__}: {error}"[:400]] += 1
        self.replies.clear()


def dechunked(data: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = data.index(b"\r\n", at)
        size = int(data[at:end].split(b";")[0], 16)
        at = end + 2 + size
        if data[at : at + 2] != b"\r\n":
            raise BadReply("bad chunk framing")
        if size == 0:
            return b"".join(parts)
        parts.append(data[end + 2 : at])
        at += 2


def check_reply(status: int, body: bytes, stream: bool, expected: workloads.Expected) -> None:
    """Raises BadReply, or what reading a malformed reply raises."""
    if status != 200:
        raise BadReply(f"status {status}: {body[:300].decode(errors='replace')}")
    if stream:
        deltas, finish = _read_stream(body)
    else:
        choice = orjson.loads(body)["choices"][0]
        message, finish = choice["message"], choice["finish_reason"]
        for index, call in enumerate(message.get("tool_calls") or ()):
            call["index"] = index
        deltas = [message]
    content = 0
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        content += len(delta.get("content") or "")
        for call in delta.get("tool_calls") or ():
            known = calls.setdefault(call["index"], ["", "", ""])
            function = call.get("function") or {}
            known[0] = call.get("id") or known[0]
            known[1] = function.get("name") or known[1]
            known[2] += function.get("arguments") or ""
    if not all(call_id and name for call_id, name, _ in calls.values()):
        raise BadReply("a call without an id or a name")
    arguments = sum(len(text) for _, _, text in calls.values())
    found = content, arguments, len(calls), finish
    wanted = expected.content, expected.arguments, expected.calls, expected.finish
    if found != wanted:
        raise BadReply(f"text, arguments, calls and finish are {found}, not {wanted}")


def _read_stream(body: bytes) -> tuple[list[dict[str, Any]], str]:
    """The deltas of choice 0, and its finish reason."""
    events = [event for event in body.replace(b"\r\n", b"\n").split(b"\n\n") if event and not event.startswith(b":")]
    if not events or events[-1] != b"data: [DONE]":
        raise BadReply(f"no [DONE] at the end: {body[-200:].decode(errors='replace')}")
    deltas, finish = [], ""
    for event in events[:-1]:
        if not event.startswith(b"data: "):
            raise BadReply(f"odd event: {event[:80].decode(errors='replace')}")
        for choice in orjson.loads(event[6:])["choices"]:
            deltas.append(choice.get("delta") or {})
            finish = choice.get("finish_reason") or finish
    return deltas, finish


def quantile_ms(times_ns: Sequence[int], share: float) -> float | None:
    if not times_ns:
        return None
    return sorted(times_ns)[min(len(times_ns) - 1, int(share * len(times_ns)))] / 1e6


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--url", required=True, help="up to and without /chat/completions")
    options.add_argument("--workload", required=True)
    options.add_argument("--expect", choices=["passed", "mended"], default="passed")
    options.add_argument("--concurrency", type=int, default=1)
    options.add_argument("--seconds", type=float, default=1.5, help="no request is sent after that")
    options.add_argument("--requests", type=int, default=20000, help="nor after so many")
    options.add_argument("--warm-up", type=int, default=0, help="requests before the clock starts")
    options.add_argument(
        "--spread-ms", type=float, default=0, help="the connections' first requests are spread over this"
    )
    options.add_argument("--pid", type=int, action="append", default=[], help="whose CPU time and memory is taken")
    options.add_argument("--header", action="append", default=[], help="NAME: VALUE")
    load = Load(options.parse_args())
    gc.freeze()
    gc.disable()
    print(json.dumps(uvloop.run(load.run())))


if __name__ == "__main__":
    main()
