"""A scripted client: raw HTTP/1.1 over a socket, so that a test sees every byte and decides when to leave."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@dataclass
class Reply:
    """`broken`: the connection ended before the body did."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    broken: bool = False
    head: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, from a JSON body or from the stream."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            return next(event["error"] for event in self.events if isinstance(event, dict) and "error" in event)
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def events(self) -> list[Any]:
        """The data of a stream's events, decoded; "[DONE]" as it is. Comments are left out."""
        blocks = self.body.decode().split("\n\n")
        data = [block.removeprefix("data: ") for block in blocks if block.startswith("data: ")]
        return [text if text == "[DONE]" else json.loads(text) for text in data]

    @property
    def text(self) -> str:
        """What choice 0 said."""
        choices = [event["choices"][0] for event in self.events if isinstance(event, dict) and event.get("choices")]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


@dataclass
class Client:
    """One connection to the proxy. `async with Client(port) as client:`"""

    port: int
    host: str = "127.0.0.1"
    receive_buffer: int | None = None  # bytes; small for a client that shall stall early
    reader: asyncio.StreamReader = field(init=False)
    writer: asyncio.StreamWriter = field(init=False)

    async def __aenter__(self) -> Client:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if self.receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (self.host, self.port))
        except OSError:
            sock.close()
            raise
        limit = self.receive_buffer or 1 << 24
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=limit)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    def leave(self) -> None:
        """Close the connection at once, with a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(
        self,
        body: Any = None,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send one request; `body` bytes as they are, anything else as JSON, None: no body."""
        await self.send(request_bytes(body, path, method, headers))

    async def head(self, seconds: float = 10.0) -> Reply:
        """The next response's head."""
        async with asyncio.timeout(seconds):
            head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            if line:
                name, _, value = line.partition(":")
                headers[name.strip().lower()] = value.strip()
        return Reply(int(lines[0].split(" ")[1]), headers, head=head)

    async def piece(self, seconds: float = 10.0) -> bytes:
        """The next chunk of a chunked body; b"" at its end."""
        async with asyncio.timeout(seconds):
            size = int((await self.reader.readline()).split(b";")[0], 16)
            data = await self.reader.readexactly(size)
            await self.reader.readline()
        return data

    async def until(self, text: bytes, reply: Reply, seconds: float = 10.0) -> None:
        """Read on until the chunked body holds `text`."""
        while text not in reply.body:
            data = await self.piece(seconds)
            assert data, f"the body ended without {text!r}: {reply.body!r}"
            reply.body += data

    async def rest(self, reply: Reply, seconds: float = 10.0, has_body: bool = True) -> Reply:
        """Read the body to its end, or to where the connection breaks."""
        try:
            async with asyncio.timeout(seconds):
                if not has_body or reply.status in (204, 304):
                    return reply
                if reply.headers.get("transfer-encoding") == "chunked":
                    while data := await self.piece(seconds):
                        reply.body += data
                else:
                    reply.body += await self.reader.readexactly(int(reply.headers["content-length"]))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            reply.broken = True
        return reply

    async def closed(self, seconds: float = 10.0) -> bytes:
        """Wait for the proxy to close the connection; what came before that."""
        async with asyncio.timeout(seconds):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


def request_bytes(body: Any, path: str, method: str = "POST", headers: dict[str, str] | None = None) -> bytes:
    payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": "proxy"}
    if body is not None:
        fields |= {"content-type": "application/json", "content-length": str(len(payload))}
    fields |= headers or {}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + payload


async def ask(
    port: int,
    body: Any = None,
    path: str = "/v1/chat/completions",
    method: str | None = None,
    headers: dict[str, str] | None = None,
    seconds: float = 10.0,
) -> Reply:
    """One request on a connection of its own, and its whole reply."""
    method = method or ("GET" if body is None else "POST")
    async with Client(port) as client:
        await client.ask(body, path, method, headers)
        return await client.rest(await client.head(seconds), seconds, has_body=method != "HEAD")


async def chat(port: int, stream: bool = False, headers: dict[str, str] | None = None, **more: Any) -> Reply:
    """One chat completion."""
    return await ask(port, {**REQUEST, "stream": stream, **more}, headers=headers)
