"""What a backend says about its credential does not reach the client, nor a log."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.mask import Mask, MaskedPieces
from support.client import REQUEST, ask, chat
from support.proxy import Proxy
from support.upstream import Conversation, Script, Upstream, chunk

KEY = "sk-up/stream+0123456789"
TOKEN = "header-token-0123"
BACKEND = {"api_key": KEY, "headers": {"x-gate": f"Basic {TOKEN}"}}
WORDS = f"the key {KEY} with {TOKEN} is bad"


@pytest.fixture(autouse=True)
def _no_secret_in_a_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level("DEBUG")
    yield
    logged = [f"{record.getMessage()} {getattr(record, 'fields', '')}" for record in caplog.records]
    assert [line for line in logged if KEY in line or TOKEN in line] == []


def run(script: Script, test: Callable[[Proxy, Upstream], Coroutine[Any, Any, None]], **tables: Any) -> None:
    async def main() -> None:
        async with Upstream(script) as up, Proxy(up.url, **{"backend": BACKEND, **tables}) as proxy:
            await test(proxy, up)

    uvloop.run(main())


def refuses(
    status: int = 400, body: bytes | None = None, piece: int = 1 << 16, kind: str = "application/json", **headers: str
) -> Script:
    """Answers with an error that quotes both secrets, in pieces of so many bytes."""
    error = {"error": {"message": WORDS, "type": "invalid_request_error", "code": f"bad {KEY}", "hint": {TOKEN: [KEY]}}}
    said = json.dumps(error).encode() if body is None else body

    async def script(c: Conversation) -> None:
        await c.head(status, kind, **headers)
        for at in range(0, len(said), piece):
            await c.chunk(said[at : at + piece])
        await c.end()

    return script


PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": REQUEST,
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": {"model": "m", "max_tokens": 5, "messages": REQUEST["messages"]},
    "/v1/embeddings": {"model": "m", "input": "Hi"},
    "/v1/completions": {"model": "m", "prompt": "Hi"},
}

BODIES: dict[str, dict[str, Any]] = {
    "JSON": {},
    "byte by byte": {"piece": 1},
    "escaped": {"body": json.dumps({"error": {"message": WORDS}}).replace("/", r"\/").encode()},
    "text": {"body": WORDS.encode(), "kind": "text/plain"},
    "gzip": {"body": gzip.compress(json.dumps({"error": {"message": WORDS}}).encode()), "content_encoding": "gzip"},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", BODIES)
def test_an_error_status_that_quotes_the_key_comes_without_it(path: str, body: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for stream in (False, True):
            asked = {**PATHS[path], "stream": stream}
            reply = await ask(proxy.port, asked, path, headers={"accept-encoding": "gzip, br"})
            assert (reply.status, reply.broken) == (400, False)
            text = reply.body.decode().replace(r"\/", "/")
            assert "the key ****" in text
            assert "is bad" in text
            assert KEY not in text
            assert TOKEN not in text
            assert "content-encoding" not in reply.headers
            if body != "text":
                assert reply.json["error"]
        assert up.seen[0].headers["x-gate"] == f"Basic {TOKEN}"

    run(refuses(**BODIES[body]), test)


def test_an_error_of_a_length_keeps_it_on_the_way_through() -> None:
    async def script(c: Conversation) -> None:
        await c.raw(b"HTTP/1.1 404 X\r\ncontent-length: %d\r\n\r\n" % len(WORDS))
        if c.request.method != "HEAD":
            await c.raw(WORDS.encode())

    async def test(proxy: Proxy, up: Upstream) -> None:
        for method in ("GET", "HEAD"):
            reply = await ask(proxy.port, None, "/v1/files/1", method)
            assert (reply.status, reply.headers["content-length"], reply.broken) == (404, str(len(WORDS)), False)

    run(script, test)


def test_an_error_that_is_cut_is_told_without_the_key() -> None:
    async def script(c: Conversation) -> None:
        await c.head(400, "text/plain")
        await c.chunk(WORDS.encode())
        c.reset()

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port)
        assert (reply.status, "is bad" in reply.error["message"]) == (400, True)
        assert KEY not in reply.body.decode()
        passed = await ask(proxy.port, None, "/v1/files/1")
        assert (passed.status, passed.broken) == (400, True)
        assert KEY not in passed.body.decode()

    run(script, test)


@pytest.mark.parametrize("piece", [1 << 16, 40, 1])
def test_an_error_whose_compressed_body_breaks_is_told_as_far_as_it_was_whole(piece: int) -> None:
    packed = gzip.compress(WORDS.encode(), mtime=0)
    broken = packed[:-8] + b"checksum"
    said = WORDS.replace(KEY, "*" * len(KEY)).replace(TOKEN, "*" * len(TOKEN))

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port)
        assert (reply.status, reply.error["message"]) == (400, said)
        passed = await ask(proxy.port, None, "/v1/files/1")
        assert (passed.status, passed.broken) == (400, True)
        assert passed.body.decode() == said

    run(refuses(body=broken, piece=piece, kind="text/plain", content_encoding="gzip"), test)


def test_an_error_whose_coding_is_named_twice_is_not_taken_for_a_plain_one() -> None:
    packed = gzip.compress(WORDS.encode())

    async def script(c: Conversation) -> None:
        codings = b"content-encoding: gzip\r\ncontent-encoding: identity\r\n"
        await c.raw(b"HTTP/1.1 400 X\r\n%scontent-length: %d\r\n\r\n" % (codings, len(packed)) + packed)

    async def test(proxy: Proxy, up: Upstream) -> None:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            reply = await ask(proxy.port, PATHS[path], path, headers={"accept-encoding": "gzip"})
            assert packed not in reply.body
            assert "content-encoding" not in reply.headers

    run(script, test)


HALF = f"the key {KEY[:-1]}".encode()
_packer = zlib.compressobj(wbits=31)
PACKED_HALF = _packer.compress(HALF) + _packer.flush(zlib.Z_FULL_FLUSH)


@pytest.mark.parametrize("piece", [1 << 16, 1])
@pytest.mark.parametrize(
    "body", [HALF, b"<html>" + HALF, PACKED_HALF, PACKED_HALF + b"\7\7\7\7"], ids=["text", "page", "cut", "broken"]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
def test_an_error_that_ends_inside_the_key_is_told_without_what_came_of_it(path: str, body: bytes, piece: int) -> None:
    coding: dict[str, Any] = {} if HALF in body else {"content_encoding": "gzip"}

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, PATHS[path], path)
        assert (reply.status, reply.broken) == (400, bool(coding) and path == "/v1/embeddings")
        assert b"the key " + b"*" * (len(KEY) - 1) in reply.body

    run(refuses(body=body, piece=piece, kind="text/plain", **coding), test)


def test_a_page_that_ends_inside_the_key_is_told_without_its_last_word() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await chat(proxy.port)
        assert (reply.status, reply.error["code"]) == (502, "bad_body")
        assert reply.error["message"].endswith(": the key")

    run(refuses(200, b"<html>" + HALF, kind="text/html"), test)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
def test_a_key_that_json_writers_escape_is_masked(path: str) -> None:
    key = "AbCd+/EfGh0123456789<xyz>=="
    forms = [
        key.replace("+", r"\u002B").replace("<", r"\u003C").replace(">", r"\u003E"),  # .NET
        key.replace("/", r"\/"),  # PHP
        key.replace("<", r"\u003c").replace(">", r"\u003e"),  # Go
        key.replace("=", r"\u003d"),  # Gson
    ]
    body = json.dumps({"error": {"message": "bad: FORMS"}}).replace("FORMS", " ".join(forms)).encode()

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, PATHS[path], path)
        assert set(reply.json["error"]["message"].removeprefix("bad: ")) == {"*", " "}

    run(refuses(body=body), test, backend={"api_key": key})


@pytest.mark.parametrize("after_text", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_an_error_inside_a_reply_comes_without_the_key(path: str, after_text: bool) -> None:
    async def script(c: Conversation) -> None:
        await c.head()
        if after_text:
            await c.event(chunk({"content": "one"}))
        await c.event({"error": {"message": WORDS, "type": "server_error", "code": f"bad-{KEY}", "param": KEY}})
        await c.end()

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, {**PATHS[path], "stream": True}, path)
        text = reply.body.decode().replace(r"\/", "/")
        assert "the key ****" in text
        assert KEY not in text
        assert TOKEN not in text

    run(script, test)


def test_the_key_of_a_backend_that_failed_before_does_not_show_either() -> None:
    async def main() -> None:
        async with Upstream(refuses(503)) as up, Proxy(up.url, "http://127.0.0.1:1/v1", backend=BACKEND) as proxy:
            reply = await chat(proxy.port)
            assert reply.status in (502, 503)
            assert KEY not in reply.body.decode()

    uvloop.run(main())


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("method", ["POST", "GET", "HEAD"])
def test_a_configured_key_that_is_refused_is_the_proxys_fault_on_other_paths_too(status: int, method: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        body = PATHS["/v1/embeddings"] if method == "POST" else None
        reply = await ask(proxy.port, body, "/v1/embeddings", method)
        assert reply.status == 502
        if method != "HEAD":
            chats = await chat(proxy.port)
            assert reply.error == chats.error
            assert reply.error["code"] == str(status)
            assert proxy.metric("wholecall_upstream_errors_total", backend="b0", kind="upstream_error") >= 1
        await proxy.quiet()

    run(refuses(status), test)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_of_the_clients_own_is_told_as_it_came(status: int) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, {"input": "x"}, "/v1/embeddings", headers={"authorization": "Bearer mine"})
        assert (reply.status, reply.body) == (status, b"no")

    run(refuses(status, b"no"), test, backend={"api_key": "forward"})


def test_an_upload_that_is_refused_before_it_is_whole_is_answered() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, b"x" * 100_000, "/v1/files", headers={"content-type": "text/plain"})
        assert (reply.status, reply.error["code"]) == (502, "401")

    run(refuses(401), test)


# --- the mask itself ----------------------------------------------------------------------------------------------


def test_a_mask_covers_every_form_and_keeps_lengths() -> None:
    mask = Mask(['a"b\\c/d', "Bearer word-of-it", "xyz", ""])
    for text in (r'a"b\c/d', r"a\"b\\c/d", r"a\"b\\c\/d", "Bearer word-of-it", "word-of-it"):
        assert mask.over(f"<{text}>".encode()) == b"<%s>" % (b"*" * len(text))
    for short in (b"xyz", b"Bearer", b"a"):
        assert mask.over(short) == short
    assert Mask([]).over(b"any") == b"any"


def test_a_mask_covers_what_json_escapes_in_either_case() -> None:
    mask = Mask(['a+b"\\/é😀'])
    for text in (r"a\u002Bb\u0022\u005c\u002f\u00e9\ud83d\uDE00", r"a\u002bb\"\\\/\u00E9\uD83D\ude00", 'a+b"\\/é😀'):
        assert set(mask.over(text.encode())) == {ord("*")}
    assert mask.over(b'a+b"\\/') == b'a+b"\\/'


@pytest.mark.parametrize("secrets", [["\\" * 60 + "x"], ["/" * 60 + "x"]])
def test_many_ways_to_write_a_secret_are_not_tried_one_by_one(secrets: list[str]) -> None:
    text = b"\\/" * 60 + b"y"
    assert Mask(secrets).over_cut(text) == text


SECRETS = ["secret", "secret-long", "secrets", "cret-sec", "etse", "Bearer secret/of+it", 'q"uo\\te']


@given(
    secrets=st.lists(st.sampled_from(SECRETS), max_size=4),
    words=st.lists(st.sampled_from([*SECRETS, "secret/o", r"secret\/of\u002bit", r"q\"uo\\te", "se", r"\u00", " "])),
    cuts=st.lists(st.integers(0, 200)),
)
def test_a_text_in_pieces_is_masked_as_a_whole(secrets: list[str], words: list[str], cuts: list[int]) -> None:
    mask = Mask(secrets)
    text = "".join(words).encode()
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = MaskedPieces(mask)
    out = b"".join(pieces.feed(text[a:b]) for a, b in pairwise(places)) + pieces.rest()
    assert out == mask.over_cut(text)
    assert len(out) == len(text)
    assert not any(secret.encode() in out for secret in secrets)
    assert mask.over_cut(text + b"!") == mask.over(text + b"!")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("a sec", "a sec"),
        ("a secr", "a ****"),
        ("a secret", "a ******"),
        ("a secret-l", "a ********"),
        ("a secret-l ", "a ******-l "),
        ("a secr ", "a secr "),
    ],
)
def test_the_beginning_of_a_secret_at_the_end_is_masked(text: str, masked: str) -> None:
    assert Mask(["secret", "secret-long"]).over_cut(text.encode()) == masked.encode()
