"""Whole answers and response heads."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import Receive, Send

from proxy.dialects import error_body
from proxy.faults import Fault
from proxy.model.commands import Record
from proxy.server.entry import NONE, Entry
from proxy.server.state import clock
from proxy.server.upstream import Headers

# uvicorn answers nothing at all where a header holds a control character.
_SAFE_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


class ClientGone(Exception):
    """The client left while its request was being read."""


def header_block(
    headers: Iterable[tuple[str, str]], request_id: str, extra: Headers = (), length: int | None = None
) -> list[tuple[bytes, bytes]]:
    """A response head's fields: `headers`, the request id, and of `extra` what is not among them."""
    block = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
    block = [(name, value) for name, value in block if _SAFE_VALUE.fullmatch(value)]
    names = {name for name, _ in block}
    block += [field for field in extra if field[0] not in names]
    block.append((b"x-request-id", request_id.encode()))
    if length is not None:
        block.append((b"content-length", str(length).encode()))
    return block


async def respond(
    send: Send,
    entry: Entry,
    status: int,
    body: bytes,
    content_type: str = "application/json",
    headers: Iterable[tuple[str, str]] = (),
) -> None:
    """A whole answer."""
    entry.head_sent = True
    entry.record.status = status
    if entry.first_byte_at is None:
        entry.first_byte_at = clock()
    block = header_block([("content-type", content_type), *headers], entry.request_id, length=len(body))
    await send({"type": "http.response.start", "status": status, "headers": block})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def respond_fault(send: Send, entry: Entry, fault: Fault) -> None:
    """The answer to a request that came to no exchange. Ends the connection if the request's body is still coming."""
    record = entry.record = Record(outcome="error", status=fault.public_status, code=fault.public_code)
    dialect = "openai-chat" if entry.dialect == NONE else entry.dialect
    headers = list(fault.headers)
    if entry.unread:
        headers.append(("connection", "close"))
    await respond(send, entry, record.status, error_body(dialect, fault), headers=headers)


async def read_some(receive: Receive) -> tuple[bytes, bool]:
    """The next bytes of the request's body and whether more follow. Raises ClientGone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)
