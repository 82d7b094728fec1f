"""A scripted upstream: an HTTP/1.1 server on a free port of 127.0.0.1 whose every byte and every silence is chosen."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import unquote


@dataclass
class Received:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    head: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(eq=False)
class Connection:
    """One connection that was made; `requests` came on it so far. `busy`: one of them is being answered."""

    writer: asyncio.StreamWriter
    open: bool = True
    requests: int = 0
    busy: bool = False


@dataclass
class Conversation:
    """The upstream's side of one connection while it answers one request."""

    request: Received
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    connection: Connection
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # by the proxy
    sent: int = 0

    @property
    def model(self) -> str:
        """The model that is asked for; Gemini's is in the path."""
        found = re.search(r"/models/(.*):", unquote(self.request.target))
        return found[1] if found else str(self.request.json["model"])

    async def raw(self, data: bytes) -> None:
        try:
            self.writer.write(data)
        except RuntimeError as error:  # uvloop: the connection is closed
            raise ConnectionResetError(str(error)) from None
        await self.writer.drain()
        await asyncio.sleep(0)  # drain does not wait as long as the kernel takes it: a flood would stop the loop
        self.sent += len(data)

    async def head(self, status: int = 200, content_type: str = "text/event-stream", **headers: str) -> None:
        fields = {"content-type": content_type, "transfer-encoding": "chunked"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in fields.items())]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def event(self, value: Any) -> None:
        """One server-sent event; an object becomes JSON."""
        text = value if isinstance(value, str) else json.dumps(value)
        await self.chunk(f"data: {text}\n\n".encode())

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def stream(self, *values: Any) -> None:
        """A whole stream: head, the events, [DONE], the end."""
        await self.head()
        for value in values:
            await self.event(value)
        await self.event("[DONE]")
        await self.end()

    async def answer(self, status: int, body: bytes, content_type: str = "application/json", **headers: str) -> None:
        await self.head(status, content_type, **headers)
        if body:
            await self.chunk(body)
        await self.end()

    def reset(self) -> None:
        """Break the connection: RST, not FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def until_closed(self, seconds: float = 5.0) -> None:
        """Wait until the proxy closes the connection. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while await self.reader.read(65536):
                pass
        self.closed.set()


Script = Callable[[Conversation], Awaitable[None]]


class Upstream:
    """`async with Upstream(script) as up:`; the script is called for each request. `up.seen` are the requests,
    `up.connections` how many connections were made, `up.open` how many are open. `up.tasks` serve them."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.tls = tls
        self.seen: list[Received] = []
        self.conversations: list[Conversation] = []
        self.connections = 0
        self.errors: list[Exception] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._open: set[Connection] = set()
        self.port = 0

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def busy(self) -> int:
        """How many open connections wait for the end of an answer."""
        return sum(connection.busy for connection in self._open)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Upstream:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if error is None and self.errors:
            raise self.errors[0]

    def hang_up(self) -> None:
        """Close every connection, whatever is going on there."""
        for connection in self._open:
            connection.writer.close()

    async def none_open(self, seconds: float = 1.0) -> None:
        """Wait until every connection has been closed. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while self.open:
                await asyncio.sleep(0.005)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        self.connections += 1
        connection = Connection(writer)
        self._open.add(connection)
        try:
            while True:
                request = await _request(reader)
                connection.requests += 1
                conversation = Conversation(request, reader, writer, connection)
                self.seen.append(conversation.request)
                self.conversations.append(conversation)
                connection.busy = True
                await self.script(conversation)
                connection.busy = False
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:  # noqa: BLE001 - a mistake in a script: raised when the test ends
            self.errors.append(error)
        finally:
            connection.open = False
            self._open.discard(connection)
            if not writer.is_closing():
                writer.close()


async def _request(reader: asyncio.StreamReader) -> Received:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    headers = {}
    for line in lines[1:]:
        if line:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
    body = bytearray()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\n")).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body += await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, target, headers, bytes(body), head)


# --- replies of a chat backend ------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chat.completion.chunk."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def text_events(*texts: str, finish: str = "stop") -> list[dict[str, Any]]:
    """A stream that says these texts."""
    return [chunk({"role": "assistant", "content": ""}), *(chunk({"content": t}) for t in texts), chunk({}, finish)]


def call_events(name: str, arguments: Iterable[str], call_id: str = "call_1") -> list[dict[str, Any]]:
    """A stream with one tool call whose arguments come in these fragments."""
    head = {"index": 0, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
    events = [chunk({"role": "assistant", "content": None, "tool_calls": [head]})]
    events += [chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}) for text in arguments]
    return [*events, chunk({}, "tool_calls")]


def completion(content: str = "Hello") -> bytes:
    """A plain chat.completion body."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    document = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(document).encode()


def says(*texts: str) -> Script:
    """A script: answer every chat request with these texts, streamed or plain as it asks."""

    async def script(c: Conversation) -> None:
        if c.request.body and c.request.json.get("stream"):
            await c.stream(*text_events(*texts))
        else:
            await c.answer(200, completion("".join(texts)))

    return script
