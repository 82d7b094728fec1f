"""Hostile clients: what each of them does; table.md says what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from faults.asking import ASKERS, STREAMED, Asker
from faults.replies import REQUEST
from faults.upstreams import chunk, event, floods, hangs, hangs_after, silence, whole
from faults.visit import Visit
from support.bad_http import REFUSED
from support.upstream import Conversation, Script

WAYS = ("close", "reset", "half-close")
Deed = Callable[[Visit], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Act:
    """`do` gives the cell that the client sees. `upstream`: what the upstream does meanwhile. `backend`: which one is
    asked (tests/test_faults_of_clients.py has their limits and policies). Each of `askers` does it in each of `ways`.
    `buffer`: bytes that its system holds for it.
    """

    do: Deed
    upstream: Script = whole
    backend: str = "usual"
    ways: Sequence[str] = ("",)
    askers: Sequence[Asker] = STREAMED
    buffer: int | None = None


leaving = partial(Act, ways=WAYS)
once = partial(Act, askers=STREAMED[:1])  # where it is the same for all dialects

# --- it leaves ---------------------------------------------------------------------------------------------------


async def before_anything(v: Visit) -> str:
    return await v.leave()


def after_sending(part: Callable[[bytes], bytes]) -> Deed:
    """A part of the request."""

    async def do(v: Visit) -> str:
        await v.client.send(part(v.request()))
        await asyncio.sleep(0.05)  # for the proxy to take it in
        return await v.leave()

    return do


async def once_asked(v: Visit) -> str:
    await v.ask()
    await v.until_asked()
    await asyncio.sleep(0.05)  # for what the upstream sends, if it does
    return await v.leave()


async def once_there_is_text(v: Visit) -> str:
    await v.ask()
    await v.until(b"Let me")
    return await v.leave()


async def once_all_was_said(v: Visit) -> str:
    """Its check takes longer than this."""
    await v.ask(tools=[COSTLY, *REQUEST["tools"][1:]])
    await v.until(b" look.")
    await asyncio.sleep(0.05)
    return await v.leave()


async def once_asked_again(v: Visit) -> str:
    await v.ask(tools=[PICKY, *REQUEST["tools"][1:]])
    await v.until_asked(2)
    return await v.leave()


async def after_the_last_byte(v: Visit) -> str:
    await v.ask()
    seen = await v.answer()
    await v.leave()
    return seen


async def faulty_then_silent(c: Conversation) -> None:
    """A reply whose call does not fit the schema; when it is asked again, nothing."""
    if b"tool_call_id" in c.request.body:
        await silence(c)
    await whole(c)


def function(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", "parameters": parameters}}


PICKY = function({"type": "object", "required": ["country"]})
# 2^30 ways to say the same: takes far longer than a check may.
LEVELS = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(30)}
COSTLY = function({"$ref": "#/$defs/l0", "$defs": {**LEVELS, "l30": {"type": "object"}}})

LEAVES = {
    "leaves before it sent anything": leaving(before_anything),
    "leaves inside the head": leaving(after_sending(lambda request: request[:40])),
    "leaves behind the head": leaving(after_sending(lambda request: request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")),
    "leaves inside the body": leaving(after_sending(lambda request: request[:-20])),
    "leaves before the upstream answers": leaving(once_asked, silence),
    "leaves inside the upstream's head": leaving(once_asked, hangs(b"HTTP/1.1 200 OK\r\ncontent-ty")),
    "leaves behind the upstream's head": leaving(once_asked, hangs_after(b'""', half=True)),
    "leaves while an error comes": leaving(once_asked, hangs(b'HTTP/1.1 500 X\r\ncontent-length: 99\r\n\r\n{"error":')),
    "leaves inside the text": leaving(once_there_is_text, hangs_after(b'"Let me')),
    "leaves while a call is held": leaving(once_there_is_text, hangs_after(b'"look"')),
    "leaves while a call is sent live": leaving(once_there_is_text, hangs_after(b'"look"'), "live"),
    "leaves while a plain reply comes": leaving(
        once_asked, hangs_after(b"", half=True), askers=tuple(asker for asker in ASKERS if not asker.stream)
    ),
    "leaves while a check runs": leaving(once_all_was_said),
    "leaves while the model is asked again": leaving(once_asked_again, faulty_then_silent, "asks-again"),
    "leaves after the last byte": leaving(after_the_last_byte),
}

# --- it reads slowly, or not at all ------------------------------------------------------------------------------


async def byte_by_byte(v: Visit) -> str:
    await v.ask(b"connection: close")
    return await v.answer(at_once=1)


async def nothing(v: Visit) -> str:
    await v.ask()
    await v.until_asked()
    return await v.dropped()


async def late(v: Visit) -> str:
    await v.ask()
    await v.until_asked()
    await asyncio.sleep(0.2)
    return await v.answer()


READS = {
    "reads one byte at a time": Act(byte_by_byte, buffer=1),
    "reads late": Act(late),
    "reads nothing of a flood": Act(nothing, floods(event({"content": "x" * 65_000})), "impatient", buffer=65_536),
}

# --- it sends slowly ---------------------------------------------------------------------------------------------


async def nothing_is_sent(v: Visit) -> str:
    return await v.closed()


async def half_a_head(v: Visit) -> str:
    await v.client.send(v.request()[:40])
    return await v.answer()


async def half_a_body(v: Visit) -> str:
    await v.client.send(v.request()[:-20])
    return await v.answer()


async def request_byte_by_byte(v: Visit) -> str:
    for byte in v.request():
        await v.client.send(bytes((byte,)))
        await asyncio.sleep(0)
    return await v.answer()


async def body_in_small_chunks(v: Visit) -> str:
    await v.client.send(v.head(b"transfer-encoding: chunked"))
    for byte in v.body():
        await v.client.send(chunk(bytes((byte,))))
        await asyncio.sleep(0)
    await v.client.send(b"0\r\nopenai-beta: no\r\n\r\n")
    return await v.answer()


SLOW = {
    "sends nothing": Act(nothing_is_sent),
    "sends half a head": Act(half_a_head),
    "sends half a body": Act(half_a_body),
    "sends its request byte by byte": Act(request_byte_by_byte),
    "sends its body in chunks of a byte": Act(body_in_small_chunks),
}

# --- it sends too much -------------------------------------------------------------------------------------------


def pushes(*first: bytes, again: bytes = b"", times: int = 0) -> Deed:
    """Sends that, as far as it is taken, and reads the answer."""

    async def do(v: Visit) -> str:
        v.push(b"".join(first), *[again] * times)
        return await v.answer()

    return do


def with_fields(*fields: bytes, path: bytes = b"") -> Deed:
    async def do(v: Visit) -> str:
        head = v.head(b"content-length: %d" % len(v.body()), *fields)
        v.push(head.replace(b" HTTP/1.1", path + b" HTTP/1.1", 1), v.body())
        return await v.answer()

    return do


def body_of(size: int, *, chunked: bool, times: int = 1) -> Deed:
    """A body of so many bytes, or so many chunks of it."""

    async def do(v: Visit) -> str:
        if chunked:
            v.push(v.head(b"transfer-encoding: chunked"), *[chunk(b"a" * size)] * times)
        else:
            v.push(v.head(b"content-length: %d" % size), *[b"a" * 65_536] * 20)
        return await v.answer()

    return do


def chunked(*pieces: bytes, times: int = 1) -> Deed:
    async def do(v: Visit) -> str:
        v.push(v.head(b"transfer-encoding: chunked"), *pieces[:-1], *pieces[-1:] * times)
        return await v.answer()

    return do


def tools(*parameters: dict[str, Any]) -> Deed:
    async def do(v: Visit) -> str:
        functions = [{"name": f"t{n}", "parameters": schema} for n, schema in enumerate(parameters)]
        await v.ask(tools=[{"type": "function", "function": function} for function in functions])
        return await v.answer()

    return do


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


SIZES = {
    "a field of 64 KiB": Act(with_fields(b"x: " + b"a" * 65_536)),
    "a field without end": once(pushes(b"GET / HTTP/1.1\r\nhost: a\r\nx: ", again=b"a" * 65_536, times=1000)),
    "1,000 fields": Act(with_fields(*(b"x-%d: a" % n for n in range(1000)))),
    "fields without end": once(pushes(b"GET / HTTP/1.1\r\nhost: a\r\n", again=b"x: a\r\n" * 9999, times=20)),
    "a path of 64 KiB": Act(with_fields(path=b"?" + b"a" * 65_536)),
    "a path without end": once(pushes(b"GET /", again=b"a" * 65_536, times=20)),
    "a body that says it is too large": Act(body_of(64 << 20, chunked=False)),
    "a chunked body that is too large": Act(body_of(65_536, chunked=True, times=20)),
    "an extension of a chunk without end": Act(chunked(b"2\r\n{}\r\n2;a=", b"a" * 65_536, times=20)),
    "a trailer without end": Act(chunked(b"2\r\n{}\r\n0\r\n", b"x: a\r\n" * 9999, times=20)),
    "600 tools": Act(tools(*[{}] * 600)),
    "a schema of 512 KiB": Act(tools({"description": "a" * (1 << 19)})),
    "a schema of 100 levels": Act(tools(deep(100))),
    "a schema that cannot be used": Act(tools({"type": "objekt"})),
    "a schema that refers elsewhere": Act(tools({"$ref": "http://127.0.0.1:1/x"})),
}

# --- heads that conflict -----------------------------------------------------------------------------------------

FRAMING = {name: once(pushes(request)) for name, request in REFUSED.items()}

# --- one request behind another ----------------------------------------------------------------------------------


async def two_at_once(v: Visit) -> str:
    await v.client.send(v.request() * 2)
    return f"{await v.answer()}, {await v.answer()}"


async def one_behind_a_refused_one(v: Visit) -> str:
    await v.client.send(REFUSED["length and chunked"] + v.request())
    return f"{await v.answer()}, {await v.closed()}"


async def one_behind_one_of_a_length_too_short(v: Visit) -> str:
    """What is behind the announced length is the next request, and none."""
    await v.client.send(v.head(b"content-length: %d" % (len(v.body()) - 1)) + v.body())
    return f"{await v.answer()}, {await v.closed()}"


async def junk_behind_it(v: Visit) -> str:
    await v.client.send(v.request() + b"\x00junk\r\n\r\n")
    return f"{await v.answer()}, {await v.closed()}"


PIPELINES = {
    "two requests at once": Act(two_at_once),
    "a request behind one that is refused": Act(one_behind_a_refused_one),
    "a length that is too short": Act(one_behind_one_of_a_length_too_short),
    "junk behind a request": Act(junk_behind_it),
}

# --- bodies ------------------------------------------------------------------------------------------------------


def changed(change: Callable[[bytes], bytes]) -> Deed:
    """The request's body, changed."""

    async def do(v: Visit) -> str:
        body = change(v.body())
        v.push(v.head(b"content-length: %d" % len(body)), body)
        return await v.answer()

    return do


def first(field: bytes) -> Deed:
    """With this field before the others."""
    return changed(lambda body: b"{" + field + b"," + body[1:])


def also(field: bytes) -> Deed:
    """With this field behind the others."""
    return changed(lambda body: body[:-1] + b"," + field + b"}")


def text(said: bytes) -> Deed:
    """With this in the user's words, between quotation marks."""
    return changed(lambda body: body.replace(b"Where, and how far?", said))


BODIES = {
    "an empty body": Act(changed(lambda body: b"")),
    "no JSON": Act(changed(lambda body: b"{")),
    "null": Act(changed(lambda body: b"null")),
    "a list": Act(changed(lambda body: b"[]")),
    "two documents": Act(changed(lambda body: body + body)),
    "a comma too many": Act(changed(lambda body: body[:-1] + b",}")),
    "UTF-16": Act(changed(lambda body: body.decode().encode("utf-16"))),
    "a byte order mark": Act(changed(lambda body: b"\xef\xbb\xbf" + body)),
    "100,000 levels": Act(also(b'"x":' + b"[" * 100_000 + b"]" * 100_000)),
    "100,000 levels that do not end": Act(changed(lambda body: b"[" * 100_000)),
    "200 levels": Act(also(b'"x":' + b"[" * 200 + b"]" * 200)),
    "the model twice": Act(first(b'"model":"elsewhere"')),
    "the model twice, escaped": Act(first(b'"m\\u006fdel":"elsewhere"')),
    "an escaped key": Act(changed(lambda body: body.replace(b'"model"', b'"m\\u006fdel"'))),
    "half a character": Act(text(b"\\ud800")),
    "NUL, escaped": Act(text(b"a\\u0000b")),
    "NUL": Act(text(b"a\x00b")),
    "no UTF-8": Act(text(b"a\xff\xfeb")),
    "half a character in UTF-8": Act(text(b"\xed\xa0\x80")),
    "a key with half a character": Act(also(b'"\\ud800":1')),
    "1e400": Act(also(b'"x":1e400')),
    "NaN": Act(also(b'"x":NaN')),
    "an integer of 30 digits": Act(also(b'"x":' + b"9" * 30)),
    "an integer of 5,000 digits": Act(also(b'"x":' + b"9" * 5000)),
    "__proto__": Act(also(b'"__proto__":{"x":1}')),
}

ACTS = LEAVES | READS | SLOW | SIZES | FRAMING | PIPELINES | BODIES
