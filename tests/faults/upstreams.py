"""Hostile upstreams: the rows of the table, family by family, and what each of them does."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from faults.replies import CHAT, PLAIN, TEXT, chat_chunk
from support.upstream import Conversation, Script


@dataclass(frozen=True, slots=True)
class Act:
    """`do`: what the upstream does once it has the request; None where it never gets one. `backend`: which one is asked
    (tests/test_faults_of_upstreams.py has their limits). `text`: what the upstream says, None where that is its own.
    `warm`: the request comes on a connection that was used before."""

    do: Script | None
    backend: str = "usual"
    text: str | None = "".join(TEXT)
    warm: bool = False


hasty = partial(Act, backend="hasty")  # does not wait long for the upstream
brief = partial(Act, backend="brief")  # has little time for an exchange as a whole
small = partial(Act, backend="small")  # has low limits of size

HTML = b"<!doctype html><html><body><h1>504 Gateway Time-out</h1></body></html>"

# --- what an upstream can send -----------------------------------------------------------------------------------


async def a_moment() -> None:
    """For the proxy to take in what was sent: what follows comes in a read of its own."""
    await asyncio.sleep(0.05)


def streams(c: Conversation) -> bool:
    return bool(c.request.json.get("stream"))


def body_of(c: Conversation) -> bytes:
    return CHAT.body if streams(c) else PLAIN


def head(c: Conversation, *fields: str, status: str = "200 OK", kind: str | None = None) -> bytes:
    """A response head; chunked where `fields` say nothing else. `kind` "": without a content type."""
    if kind is None:
        kind = "text/event-stream" if streams(c) else "application/json"
    lines = [f"HTTP/1.1 {status}", *(fields or ("transfer-encoding: chunked",))]
    lines += [f"content-type: {kind}"] if kind else []
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def length(body: bytes) -> str:
    return f"content-length: {len(body)}"


def part_of(c: Conversation, marker: bytes, half: bool = False) -> bytes:
    """Of a stream all up to the event with `marker`, or half of that event too; of a plain reply its first half."""
    if not streams(c):
        return PLAIN[: len(PLAIN) // 2]
    number = CHAT.upto(marker)
    before = b"".join(CHAT.events[: number - half])
    return before + (CHAT.events[number - 1][:20] if half else b"")


async def whole(c: Conversation) -> None:
    """What a good upstream does."""
    await c.raw(head(c))
    for event in CHAT.events if streams(c) else (PLAIN,):
        await c.raw(chunk(event))
    await c.raw(LAST_CHUNK)


async def silence(c: Conversation) -> None:
    await c.until_closed(60)


def hangs(*sends: bytes) -> Script:
    """Sends these bytes and no more; the connection stays open."""

    async def script(c: Conversation) -> None:
        await c.raw(b"".join(sends))
        await silence(c)

    return script


def hangs_after(marker: bytes, half: bool = False) -> Script:
    async def script(c: Conversation) -> None:
        await c.raw(head(c) + chunk(part_of(c, marker, half)))
        await silence(c)

    return script


def answers(*fields: str, status: str = "200 OK", kind: str | None = None, body: bytes | None = None) -> Script:
    """A whole answer of a Content-Length, with these fields besides. `body`: the good reply, unless it is given."""

    async def script(c: Conversation) -> None:
        said = body_of(c) if body is None else body
        await c.raw(head(c, *fields, length(said), status=status, kind=kind) + said)

    return script


def sends(data: bytes, *, then_closes: bool = True) -> Script:
    """These bytes, whatever they are."""

    async def script(c: Conversation) -> None:
        await c.raw(data)
        if then_closes:
            c.writer.close()
        else:
            await silence(c)

    return script


def chunks(data: bytes, *, then_closes: bool = False) -> Script:
    """The head of a chunked reply, half of it as a good chunk, and then these bytes in place of one, and the end."""

    async def script(c: Conversation) -> None:
        await c.raw(head(c) + chunk(part_of(c, b'"look"')))
        await a_moment()
        await c.raw(data + (b"" if then_closes else LAST_CHUNK))
        if then_closes:
            c.writer.close()

    return script


def floods(data: bytes, *, first: bytes = b"", kind: str | None = None, status: str = "200 OK") -> Script:
    """`first`, and then `data` again and again, as fast as it is taken, in chunks."""

    async def script(c: Conversation) -> None:
        await c.raw(head(c, kind=kind, status=status))
        if first:
            await c.raw(chunk(first))
        block = chunk(data * max(1, 16_384 // len(data)))
        while True:
            await c.raw(block)

    return script


def drips(data: bytes, *, first: bytes = b"") -> Script:
    """`first`, and then `data` again and again, now and then."""

    async def script(c: Conversation) -> None:
        await c.raw(head(c) + (chunk(first) if first else b""))
        while True:
            await c.raw(chunk(data))
            await asyncio.sleep(0.02)

    return script


def event(delta: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps(chat_chunk(delta)).encode()


def argument(text: str) -> bytes:
    return event({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})


CALL = event({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "look"}}]})
ROLE = event({"role": "assistant", "content": ""})

# --- the connection ----------------------------------------------------------------------------------------------


async def resets(c: Conversation) -> None:
    c.reset()


async def closes(c: Conversation) -> None:
    c.writer.close()


async def closes_its_half(c: Conversation) -> None:
    """No answer will come, but the connection stays."""
    c.writer.write_eof()
    await silence(c)


CONNECTION = {
    "refuses the connection": Act(None, "refuses"),
    "takes no connection": Act(None, "full"),
    "accepts and closes": Act(None, "closes"),
    "accepts and resets": Act(None, "resets"),
    "closes in place of an answer": Act(closes),
    "resets in place of an answer": Act(resets),
    "closes its half of it": Act(closes_its_half),
}

# --- time --------------------------------------------------------------------------------------------------------


async def late(c: Conversation) -> None:
    await asyncio.sleep(0.3)
    await whole(c)


async def late_with_comments(c: Conversation) -> None:
    if streams(c):
        await c.raw(head(c))
        for _ in range(10):
            await c.raw(chunk(b": wait\n\n"))
            await asyncio.sleep(0.02)
        await c.raw(chunk(CHAT.body) + LAST_CHUNK)
    else:
        await late(c)


async def byte_by_byte(c: Conversation) -> None:
    sent = head(c) + chunk(body_of(c)) + LAST_CHUNK
    for byte in sent[:-12]:
        await c.raw(bytes((byte,)))
        await asyncio.sleep(0.001)
    await c.raw(sent[-12:])  # once [DONE] is here, the proxy waits only briefly for the end of the body


async def after_done(c: Conversation) -> None:
    """All of it but the end of the body."""
    await c.raw(head(c) + chunk(body_of(c)))
    await silence(c)


TIME = {
    "answers late": Act(late),
    "answers late, with comments before": Act(late_with_comments),
    "one byte at a time": Act(byte_by_byte),
    "stalls after the request": hasty(silence),
    "stalls inside the head": hasty(hangs(b"HTTP/1.1 200 OK\r\ncontent-ty")),
    "stalls after the head": hasty(hangs_after(b'""', half=True)),
    "stalls inside an event": hasty(hangs_after(b'" look.', half=True)),
    "stalls after the text": hasty(hangs_after(b'" look.')),
    "stalls inside a call": hasty(hangs_after(b'"look"')),
    "stalls between two calls": hasty(hangs_after(b"Cork")),
    "stalls before the finish": hasty(hangs_after(b"2]")),
    "stalls after the finish": hasty(hangs_after(b'tool_calls"}')),
    "stalls after [DONE]": hasty(after_done),
    "stalls inside an error": hasty(hangs(b"HTTP/1.1 400 X\r\ncontent-length: 99\r\n\r\nno such")),
    "speaks for ever, slowly": brief(drips(event({"content": "x"})), text=None),
    "reasons for ever, slowly": brief(drips(event({"reasoning_content": "x"}))),
    "writes arguments for ever, slowly": brief(drips(argument("x"), first=CALL)),
    "comments for ever, slowly": hasty(drips(b": x\n\n")),
    "empty deltas for ever, slowly": brief(drips(event({}))),
}

# --- lengths -----------------------------------------------------------------------------------------------------


def claims(more: int, *, then_closes: bool, extra: bytes = b"") -> Script:
    """A Content-Length that is so much more than the body, which is followed by `extra`."""

    async def script(c: Conversation) -> None:
        body = body_of(c)
        await c.raw(head(c, f"content-length: {len(body) + more}") + body + extra)
        if then_closes:
            c.writer.close()
        else:
            await silence(c)

    return script


async def too_short(c: Conversation) -> None:
    promised = part_of(c, b'"look"')
    await c.raw(head(c, length(promised)) + promised)
    await a_moment()
    await c.raw(body_of(c)[len(promised) :])
    await silence(c)


def sends_length(value: str) -> Script:
    async def script(c: Conversation) -> None:
        await c.raw(head(c, f"content-length: {value}") + body_of(c))
        await silence(c)

    return script


def one_answer_more(c: Conversation) -> bytes:
    """An answer that nobody asked for: whoever takes it for the next request's is deceived."""
    body = body_of(c).replace(b"Cork", b"Hell")
    return head(c, length(body)) + body


async def two_answers(c: Conversation) -> None:
    await c.raw(head(c, length(body_of(c))) + body_of(c) + one_answer_more(c))
    await silence(c)


async def a_second_answer_later(c: Conversation) -> None:
    """While the connection is idle. (Behind the next request nobody could tell it from that one's answer.)"""
    await c.raw(head(c, length(body_of(c))) + body_of(c))
    await a_moment()
    await c.raw(one_answer_more(c))


async def an_answer_behind_a_short_one(c: Conversation) -> None:
    await c.raw(head(c, "content-length: 20") + body_of(c)[:20] + one_answer_more(c))
    await silence(c)


async def until_it_closes(c: Conversation) -> None:
    """Without a length: the end of the connection is the end of the body."""
    await c.raw(head(c, "connection: close") + body_of(c))
    c.writer.close()


async def until_it_closes_too_early(c: Conversation) -> None:
    await c.raw(head(c, "connection: close") + part_of(c, b'"ping"'))
    c.writer.close()


async def http_1_0(c: Conversation) -> None:
    await c.raw(head(c, "x: y").replace(b"HTTP/1.1", b"HTTP/1.0") + body_of(c))
    c.writer.close()


async def length_and_chunked(c: Conversation) -> None:
    await c.raw(head(c, "content-length: 5", "transfer-encoding: chunked") + chunk(body_of(c)) + LAST_CHUNK)
    await silence(c)


LENGTHS = {
    "a good length": Act(answers()),
    "a length too long, then closes": Act(claims(9, then_closes=True)),
    "a length too long, then stalls": hasty(claims(9, then_closes=False)),
    "a length too short": Act(claims(-200, then_closes=False)),
    "a length too short, the rest later": Act(too_short, warm=True),
    "a length of 0, with a body": Act(sends_length("0")),
    "a negative length": Act(sends_length("-5")),
    "a length in words": Act(sends_length("many")),
    "a length of 2^64": Act(sends_length(str(1 << 64))),
    "two lengths": Act(sends_length("5\r\ncontent-length: 6")),
    "a length, and chunked": Act(length_and_chunked),
    "a second answer behind the first": Act(two_answers),
    "a second answer once the first was taken": Act(a_second_answer_later, warm=True),
    "a second answer behind a short one": Act(an_answer_behind_a_short_one),
    "no length, closes at the end": Act(until_it_closes),
    "no length, closes too early": Act(until_it_closes_too_early),
    "HTTP/1.0": Act(http_1_0),
}

# --- chunks ------------------------------------------------------------------------------------------------------


def endless(data: bytes, start: bytes = b"") -> Script:
    """A good chunk, and in place of the next one `start` and then `data` again and again."""

    async def script(c: Conversation) -> None:
        await c.raw(head(c) + chunk(part_of(c, b'"look"')))
        await a_moment()
        await c.raw(start)
        while True:
            await c.raw(data)
            await asyncio.sleep(0)

    return script


def endless_behind(data: bytes) -> Script:
    """The whole reply, the last chunk's size, and then `data` again and again where only a trailer may be."""

    async def script(c: Conversation) -> None:
        await c.raw(head(c) + chunk(body_of(c)) + b"0\r\n")
        while True:
            await c.raw(data)

    return script


async def claims_no_end(c: Conversation) -> None:
    await c.raw(head(c) + chunk(body_of(c)))
    c.writer.close()


async def extended_chunks(c: Conversation) -> None:
    await c.raw(head(c) + chunk(body_of(c)).replace(b"\r\n", b";a=b;c\r\n", 1) + b"0;x\r\nx-checksum: 1\r\n\r\n")


async def a_trailer_of_credentials(c: Conversation) -> None:
    await c.raw(head(c) + chunk(body_of(c)) + b"0\r\nset-cookie: a=b\r\nopenai-organization: evil\r\n\r\n")


CHUNKS = {
    "extensions and a trailer": Act(extended_chunks),
    "a trailer with fields of a head": Act(a_trailer_of_credentials),
    "a size that is no number": Act(chunks(b"zz\r\nxx\r\n")),
    "a size with 0x": Act(chunks(b"0x2\r\nxx\r\n")),
    "a negative size": Act(chunks(b"-2\r\nxx\r\n")),
    "no size": Act(chunks(b"\r\nxx\r\n")),
    "a size of 2^64": Act(chunks(b"10000000000000000\r\nxx\r\n")),
    "a size of 2^63, then closes": Act(chunks(b"7fffffffffffffff\r\nxx", then_closes=True)),
    "a chunk without its end": Act(chunks(b"2\r\nxxxxxx\r\n")),
    "a chunk that ends in LF": Act(chunks(b"2\r\nxx\n")),
    "an endless size": Act(endless(b"0" * 65_536)),
    "an endless extension": Act(endless(b"x" * 65_536, b"2;a=")),
    "an endless trailer": Act(endless_behind(b"x: " + b"y" * 1000 + b"\r\n")),
    "an endless trailer field": Act(endless_behind(b"x" * 65_536)),
    "closes without the last chunk": Act(claims_no_end),
}

# --- codings -----------------------------------------------------------------------------------------------------


def coded(coding: str, encode: Callable[[bytes], bytes], *, cut: int | None = None, status: str = "200 OK") -> Script:
    async def script(c: Conversation) -> None:
        body = encode(body_of(c))[:cut]
        await c.raw(head(c, f"content-encoding: {coding}", length(body), status=status) + body)

    return script


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def same(data: bytes) -> bytes:
    return data


def explodes(unit: bytes, *, start: bytes = b"", coding: str = "gzip", status: str = "200 OK") -> Script:
    """`start`, and 128 MiB of `unit` again and again, packed: some 128 KiB."""
    pack = gzip.compress if coding == "gzip" else zlib.compress
    block = unit * ((1 << 20) // len(unit))
    bomb = pack(start) + pack(block) * 128 if coding == "gzip" else pack(start + block * 128)

    async def script(c: Conversation) -> None:
        chunked = ("transfer-encoding: chunked", f"content-encoding: {coding}")
        await c.raw(head(c, *chunked, status=status) + chunk(bomb))
        await silence(c)

    return script


COMMENT = b": this takes time, please wait for a while\n\n"
TEXT_EVENT = event({"content": "x"})

CODINGS = {
    "gzip": Act(coded("gzip", gzip.compress)),
    "deflate": Act(coded("deflate", zlib.compress)),
    "deflate without its header": Act(coded("deflate", raw_deflate)),
    "gzip that is cut": Act(coded("gzip", gzip.compress, cut=-40)),
    "gzip that is none": Act(coded("gzip", same)),
    "gzip twice": Act(coded("gzip, gzip", lambda data: gzip.compress(gzip.compress(data)))),
    "brotli": Act(coded("br", same)),
    "zstd": Act(coded("zstd", same)),
    "gzip bomb of one line": Act(explodes(b"x")),
    "deflate bomb of one line": Act(explodes(b"x", coding="deflate")),
    "gzip bomb of one document": Act(explodes(b"x", start=b'{"a":"')),
    "gzip bomb of blanks": Act(explodes(b" ")),
    "gzip bomb of comments": small(explodes(COMMENT)),
    "gzip bomb of text": small(explodes(TEXT_EVENT), text=None),
    "gzip bomb in an error": Act(explodes(b"x", status="500 X")),
    "gzip of an error is cut": Act(coded("gzip", gzip.compress, cut=-40, status="500 X")),
    "an error in brotli": Act(hangs(b"HTTP/1.1 400 X\r\ncontent-encoding: br\r\ncontent-length: 99\r\n\r\nno such")),
}

# --- what does not end -------------------------------------------------------------------------------------------

ENDLESS = {
    "one line without end": small(floods(b"x", first=b"data: ")),
    "one event without end": small(floods(b"data: x\n")),
    "one document without end": small(floods(b"x", first=b'{"a":"')),
    "blank lines without end": small(floods(b"\n")),
    "comments without end": small(floods(COMMENT)),
    "pings without end": small(floods(b"event: ping\ndata: {}\n\n")),
    "empty deltas without end": small(floods(event({}))),
    "text without end": small(floods(TEXT_EVENT), text=None),
    "long text without end": small(floods(event({"content": "x" * 65_000})), text=None),
    "reasoning without end": small(floods(event({"reasoning_content": "x"})), text=None),
    "blank text without end": small(floods(event({"content": " " * 1000}))),
    "calls without end": small(floods(event({"tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}))),
    "arguments without end": small(floods(argument("x" * 60_000), first=CALL)),
    "an error without end": small(floods(b"x", status="500 X")),
}

# --- what the body is --------------------------------------------------------------------------------------------


def holds(body: bytes, kind: str | None = None) -> Script:
    return answers(kind=kind, body=body)


async def the_other_form(c: Conversation) -> None:
    """A stream for who asked for a plain reply, and the other way round, labelled as what was asked for."""
    body = PLAIN if streams(c) else CHAT.body
    await c.raw(head(c, length(body)) + body)


ERROR = {"error": {"message": "no room", "type": "server_error", "code": "no_room"}}

BODIES = {
    "an HTML page": Act(holds(HTML, "text/html")),
    "an HTML page as JSON": Act(holds(HTML, "application/json")),
    "declared as text": Act(answers(kind="text/plain")),
    "declared as JSON": Act(answers(kind="application/json")),
    "declared as a stream": Act(answers(kind="text/event-stream")),
    "declared as a picture": Act(answers(kind="image/png")),
    "declared as nothing": Act(answers(kind="")),
    "not the form that was asked for": Act(the_other_form),
    "nothing": Act(holds(b"")),
    "[DONE] only": Act(holds(b"data: [DONE]\n\n")),
    "comments only": Act(holds(COMMENT * 3)),
    "an empty object": Act(holds(b"{}")),
    "an empty list": Act(holds(b"[]")),
    "null": Act(holds(b"null")),
    "half a document": Act(holds(PLAIN[:-9])),
    "zeros": Act(holds(bytes(1000))),
    "no UTF-8": Act(holds(b"\xff\xfe\x80" * 300)),
    "an error with status 200": Act(holds(json.dumps(ERROR).encode())),
    "deeper than any parser": Act(holds(b"[" * 100_000)),
}

# --- statuses ----------------------------------------------------------------------------------------------------


def before_it(interim: bytes, times: int) -> Script:
    async def script(c: Conversation) -> None:
        for _ in range(times):
            await c.raw(interim)
        await whole(c)

    return script


async def interim_for_ever(c: Conversation) -> None:
    while True:
        await c.raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def says_status(line: str) -> Script:
    async def script(c: Conversation) -> None:
        body = json.dumps(ERROR).encode()
        await c.raw(head(c, length(body), "retry-after: 7", "location: http://127.0.0.1:1/", status=line) + body)

    return script


STATUSES = {
    "100 before it": Act(before_it(b"HTTP/1.1 100 Continue\r\n\r\n", 1)),
    "103 before it, 2,000 times": Act(before_it(b"HTTP/1.1 103 X\r\nlink: x\r\n\r\n", 2000)),
    "100 for ever": Act(interim_for_ever),
    "status 101 Switching Protocols": Act(sends(b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")),
    "status 204 No Content": Act(sends(b"HTTP/1.1 204 No Content\r\n\r\n")),
    "status 205 Reset Content": Act(says_status("205 Reset Content")),
    "status 301 Moved": Act(says_status("301 Moved")),
    "status 304 Not Modified": Act(sends(b"HTTP/1.1 304 X\r\n\r\n")),
    "status 400 Bad Request": Act(says_status("400 Bad Request")),
    "status 401 Unauthorized": Act(says_status("401 Unauthorized")),
    "status 403 Forbidden": Act(says_status("403 Forbidden")),
    "status 404 Not Found": Act(says_status("404 Not Found")),
    "status 429 Too Many Requests": Act(says_status("429 Too Many Requests")),
    "status 500 Internal Server Error": Act(says_status("500 Internal Server Error")),
    "status 503 Service Unavailable": Act(says_status("503 Service Unavailable")),
    "status 529 Overloaded": Act(says_status("529 Overloaded")),
    "status 599 X": Act(says_status("599 X")),
    "status 600 X": Act(says_status("600 X")),
    "status 999 X": Act(says_status("999 X")),
    "status 42 X": Act(says_status("42 X")),
    "status 1000 X": Act(says_status("1000 X")),
    "status abc X": Act(says_status("abc X")),
    "status -200 X": Act(says_status("-200 X")),
    "status 200 without words": Act(answers(status="200")),
}

# --- heads -------------------------------------------------------------------------------------------------------


def with_head(change: Callable[[bytes], bytes]) -> Script:
    async def script(c: Conversation) -> None:
        await c.raw(change(head(c, length(body_of(c)))) + body_of(c))

    return script


def with_field(field: bytes) -> Script:
    return with_head(lambda head: head.replace(b"\r\n", b"\r\n" + field + b"\r\n", 1))


def endless_head(data: bytes) -> Script:
    async def script(c: Conversation) -> None:
        await c.raw(b"HTTP/1.1 200 OK\r\n")
        while True:
            await c.raw(data)

    return script


HEADS = {
    "a control character in a field": Act(with_field(b"openai-x: a\x01b")),
    "NUL in a field": Act(with_field(b"openai-x: a\x00b")),
    "bytes above ASCII in a field": Act(with_field(b"openai-x: a\xff\xc3\xa9")),
    "a folded field": Act(with_field(b"openai-x: a\r\n b")),
    "a field without a colon": Act(with_field(b"openai-x")),
    "a field with a blank in its name": Act(with_field(b"openai x: a")),
    "a field without a name": Act(with_field(b": a")),
    "bare CR in a field": Act(with_field(b"openai-x: a\rset-cookie: b")),
    "a cookie, a server name": Act(with_field(b"set-cookie: a=b\r\nserver: secret\r\nx-powered-by: y")),
    "asks for an upgrade": Act(with_field(b"connection: upgrade\r\nupgrade: h2c")),
    "connection: close": Act(with_field(b"connection: close")),
    "10,000 fields": Act(with_field(b"\r\n".join(b"x-%d: y" % n for n in range(10_000)))),
    "a field of 1 MiB": Act(with_field(b"x: " + b"y" * (1 << 20))),
    "fields without end": Act(endless_head(b"x: y\r\n" * 1000)),
    "a field without end": Act(endless_head(b"x" * 65_536)),
    "lines that end in LF": Act(with_head(lambda head: head.replace(b"\r", b""))),
    "HTTP/2.0": Act(with_head(lambda head: head.replace(b"/1.1", b"/2.0"))),
    "another protocol": Act(sends(b"220 smtp.example ESMTP\r\n")),
    "junk before the head": Act(with_head(lambda head: b"\x00\x01junk\r\n" + head)),
    "blank lines before the head": Act(with_head(lambda head: b"\r\n\r\n" + head)),
}

# --- TLS ---------------------------------------------------------------------------------------------------------


TLS = {
    "a certificate of the trusted authority": Act(whole, "tls"),
    "no length, closes too early, over TLS": Act(until_it_closes_too_early, "tls"),
    "a certificate of its own making": Act(None, "self-signed"),
    "a certificate for another host": Act(None, "other-host"),
    "a certificate that has expired": Act(None, "expired"),
    "plain HTTP on the TLS port": Act(None, "no-tls"),
    "closes in the handshake": Act(None, "closes-tls"),
    "resets in the handshake": Act(None, "resets-tls"),
    "stalls in the handshake": Act(None, "stalls-tls"),
}

# --- a connection that was kept ----------------------------------------------------------------------------------


def at_first(do: Script) -> Script:
    """On a kept connection `do`, on a new one what a good upstream does."""

    async def script(c: Conversation) -> None:
        await (do if c.connection.requests > 1 else whole)(c)

    return script


async def half_a_head(c: Conversation) -> None:
    await c.raw(b"HTTP/1.1 200 OK\r\ncontent-ty")
    c.writer.close()


async def reset_in_the_text(c: Conversation) -> None:
    await c.raw(head(c) + chunk(part_of(c, b'"Let me')))
    await a_moment()
    c.reset()


async def an_error_and_closes(c: Conversation) -> None:
    body = json.dumps(ERROR).encode()
    await c.raw(head(c, length(body), status="500 X") + body)
    c.writer.close()


KEPT = {
    "closes it in place of an answer": Act(at_first(closes), warm=True),
    "resets it in place of an answer": Act(at_first(resets), warm=True),
    "closes it, and the next one too": Act(closes, warm=True),
    "resets it, and the next one too": Act(resets, warm=True),
    "closes it inside the head": Act(at_first(half_a_head), warm=True),
    "resets it inside the answer": Act(at_first(reset_in_the_text), warm=True),
    "answers an error and closes it": Act(at_first(an_error_and_closes), warm=True),
}

ACTS = CONNECTION | TIME | LENGTHS | CHUNKS | CODINGS | ENDLESS | BODIES | STATUSES | HEADS | TLS | KEPT
