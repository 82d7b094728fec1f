"""Everything under /v1 besides chat, and the paths about the proxy itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from proxy.server.passthrough import _with_model
from support.client import REQUEST, Client, Reply, ask, chat
from support.proxy import Proxy, metric
from support.upstream import Conversation, Script, Upstream, says


def run(script: Script, test: Callable[[Proxy, Upstream], Coroutine[Any, Any, None]], **tables: Any) -> None:
    async def main() -> None:
        async with Upstream(script) as up, Proxy(up.url, **tables) as proxy:
            await test(proxy, up)

    uvloop.run(main())


async def echo(c: Conversation) -> None:
    """Answers with what came."""
    request = c.request
    said = {"method": request.method, "target": request.target, "body": request.body.decode("latin-1")}
    if request.method == "HEAD":
        await c.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\ncontent-type: text/plain\r\n\r\n")
    else:
        await c.answer(200, json.dumps(said).encode(), set_cookie="a=b", x_request_id="theirs", etag='"1"')


async def silent(c: Conversation) -> None:
    await c.until_closed()


# --- passed through -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "headers"),
    [
        ("POST", "/v1/embeddings", {"model": "m", "input": ["a"]}, {}),
        ("POST", "/v1/embeddings?x=1&y=a%20b", b'{"model": "m",   "n": 1e2, "big": 18446744073709551616}', {}),
        ("GET", "/v1/files", None, {}),
        ("GET", "/v1/files/file-1/content?limit=5", None, {"range": "bytes=0-4"}),
        ("DELETE", "/v1/files/file-1", None, {}),
        ("POST", "/v1/audio/speech", b"--b\r\n\x00\xff\r\n--b--", {"content-type": "multipart/form-data; boundary=b"}),
        ("POST", "/v1/odd", b"[no json", {"content-type": "text/plain"}),
        ("POST", "/v1/odd", b"{no json", {"content-type": "application/jsonl"}),
        ("POST", "/v1/odd", b'\n {"model": "\xc3\xa9\\u00e9\\ud83d", "n": NaN, "n": 2}', {}),
        ("POST", "/v1/odd", b"", {}),
        ("PUT", "/v1/odd/a.b-c~d_e:f@g%20h/", b"x", {"content-type": "text/plain"}),
        ("PATCH", "/v1/responses/r1/cancel", {"a": 1}, {}),
    ],
)  # fmt: skip
def test_a_request_is_passed_on_unchanged(method: str, path: str, body: Any, headers: dict[str, str]) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, body, path, method, {"authorization": "Bearer mine", **headers})
        sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        assert reply.status == 200
        assert reply.json["method"] == method
        assert reply.json["target"] == path
        assert reply.json["body"].encode("latin-1") == sent
        assert reply.headers["etag"] == '"1"'
        assert len(reply.headers["x-request-id"]) == 36
        assert "set-cookie" not in reply.headers
        seen = up.seen[0].headers
        assert "authorization" not in seen
        assert seen.get("range") == headers.get("range")
        assert seen.get("content-type") == (
            headers.get("content-type", "application/json") if body is not None else None
        )
        assert proxy.metric("wholecall_requests_total", route="*", backend="b0", status="200") == 1

    run(echo, test)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../admin",
        "/v1/files/../../admin",
        "/v1/./files",
        "/v1/files/..",
        "/v1/%2e%2e/admin",
        "/v1/%2E%2E/admin",
        "/v1/files%2f..%2fadmin",
        "/v1/files%5c..%5cadmin",
        "/v1/files\\..\\admin",
        "/v1/%252e%252e/admin",
        "/v1//admin",
        "/v1//evil.example/x",
        "/v1/a%00b",
        "/v1/a%0d%0ab",
        "/v1/a%zz",
        "/v1%2ffiles",
        "/v1/a<b>",
        "/v1/",
    ],
)
def test_a_path_that_could_lead_elsewhere_is_refused(path: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, None, path)
        assert reply.status in (400, 404)
        assert reply.error["message"]
        assert up.seen == []

    run(echo, test)


def test_head_gives_no_body_and_trace_is_refused() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, None, "/v1/files/1/content", "HEAD")
        assert (reply.status, reply.headers["content-length"], reply.body) == (200, "7", b"")
        assert (await ask(proxy.port, None, "/v1/files", "TRACE")).status == 405
        assert [request.method for request in up.seen] == ["HEAD"]

    run(echo, test)


def test_the_model_of_a_json_body_finds_the_route_and_may_be_rewritten() -> None:
    async def main() -> None:
        routes = [
            {"models": ["v/*"], "backends": ["b1"], "strip_prefix": "v/"},
            {"models": ["*"], "backends": ["b0"]},
        ]
        async with (
            Upstream(echo) as first,
            Upstream(echo) as second,
            Proxy(first.url, second.url, routes=routes) as proxy,
        ):
            await ask(proxy.port, {"model": "v/embed", "input": "x"}, "/v1/embeddings")
            await ask(proxy.port, {"model": "embed", "input": "x"}, "/v1/embeddings")
            await ask(proxy.port, {"input": "x"}, "/v1/embeddings")
            assert second.seen[0].json == {"model": "embed", "input": "x"}
            assert [request.json.get("model") for request in first.seen] == ["embed", None]

    uvloop.run(main())


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.own+json", "text/plain", None])
@pytest.mark.parametrize(
    ("body", "becomes"),
    [
        (
            b' {"n": 18446744073709551616, "model" : "v/one","f":1.0000000000000001,"input":"a","input":"\xff\xe2"}\n',
            b' {"n": 18446744073709551616, "model" : "one","f":1.0000000000000001,"input":"a","input":"\xff\xe2"}\n',
        ),
        (b'{"input":{"model":"v/one"},"mod\\u0065l":"v/one"}', b'{"input":{"model":"v/one"},"mod\\u0065l":"one"}'),
        (b'{"model":"m","x":NaN,"model":"v/one"}', b'{"model":"one","x":NaN,"model":"one"}'),
        (b'{"model":"v/one","input":"\\ud83d"}', b'{"model":"one","input":"\\ud83d"}'),
        (
            b'{"model":"v/one","input":' + b"[" * 230 + b"]" * 230 + b"}",
            b'{"model":"one","input":' + b"[" * 230 + b"]" * 230 + b"}",
        ),
        (b'\xef\xbb\xbf{"model":"v/one"}', None),
        (b'{"model":"v/one","input":' + b"[" * 300 + b"]" * 300 + b"}", None),
        (b'{"model":"v/one","input":' + b"[" * 2_000 + b"]" * 2_000 + b"}", None),
        (b'{"model":"v/one"', None),
    ],
)
def test_a_json_body_goes_where_its_model_leads_or_nowhere(
    kind: str | None, body: bytes, becomes: bytes | None
) -> None:
    async def main() -> None:
        head = "Transfer-Encoding: chunked\r\n" + (f"Content-Type: {kind}\r\n" if kind else "")
        chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:1], body[1:9], body[9:], b"")]
        reply, meant, other = await posted(head, b"".join(chunks))
        if becomes is None:
            assert (reply.status, reply.error["code"]) == (400, "invalid_json")
        else:
            assert reply.status == 200
        assert meant == ([] if becomes is None else [becomes])
        assert other == []

    uvloop.run(main())


async def asked(head: str, body: bytes) -> tuple[Reply, list[bytes], list[bytes]]:
    """As of `posted`, for a body of a length."""
    return await posted(f"Content-Length: {len(body)}\r\n{head}", body)


async def posted(head: str, body: bytes) -> tuple[Reply, list[bytes], list[bytes]]:
    """The reply, and what came to the backend of the route v/* and to the one of the route *."""
    routes = [{"models": ["v/*"], "backends": ["b1"], "strip_prefix": "v/"}, {"models": ["*"], "backends": ["b0"]}]
    async with (
        Upstream(echo) as other,
        Upstream(echo) as meant,
        Proxy(other.url, meant.url, routes=routes) as proxy,
        Client(proxy.port) as client,
    ):
        await client.send(f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\n{head}\r\n".encode() + body)
        reply = await client.rest(await client.head())
        return reply, [request.body for request in meant.seen], [request.body for request in other.seen]


@pytest.mark.parametrize(
    "head",
    [
        "content-type: text/plain\r\ncontent-encoding: identity\r\n",
        "content-encoding:\r\n",
        "content-type: image/png\r\n",
        "content-type: application/x-json\r\n",
        "content-type: application/json, text/plain\r\n",
        "content-type: multipart/form-data; boundary=b\r\n",
    ],
)
def test_whatever_json_is_called_it_goes_where_its_model_leads(head: str) -> None:
    for body, becomes in (
        (b'\n{"model":"v/one","n":1e2}\n', b'\n{"model":"one","n":1e2}\n'),
        (b'{"model":"v/one","input":' + b"[" * 300 + b"]" * 300 + b"}", None),
        (b'\xef\xbb\xbf{"model":"v/one"}', None),
    ):
        reply, meant, other = uvloop.run(asked(head, body))
        assert (reply.status, meant, other) == ((200, [becomes], []) if becomes else (400, [], []))


@pytest.mark.parametrize(
    "kind", ["application/jsonl", "application/rtf", "image/png", "multipart/form-data; boundary=b"]
)
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"v/one"}\n{"model":"v/two"}\n',
        b'{"model":"v/one"}\n' * 70_000 + b"," * 1_000_000,
        rb"{\rtf1\ansi{\fonttbl\f0 Arial;}\f0 Hello}",
        b"{\x00\xff\xfe",
        b'{"model',
        b"\xef\xbb\xbf",
    ],
    ids=["lines", "many lines", "rtf", "binary", "cut", "bom"],
)
def test_what_only_begins_like_json_is_passed_on_as_it_is(kind: str, body: bytes) -> None:
    reply, meant, other = uvloop.run(asked(f"content-type: {kind}\r\n", body))
    assert (reply.status, meant, other == [body]) == (200, [], True)


@pytest.mark.parametrize(
    "head",
    [
        "content-type: image/png\r\ncontent-type: application/json\r\n",
        "content-type: application/json\r\nContent-Type: text/plain\r\n",
        "content-type: application/json\r\ncontent-encoding: identity\r\ncontent-encoding: gzip\r\n",
    ],
)
def test_what_describes_a_body_is_said_once(head: str) -> None:
    reply, meant, other = uvloop.run(asked(head, b'{"model":"v/one"}'))
    assert (reply.status, reply.error["code"], meant, other) == (400, "invalid_request", [], [])
    assert "is sent more than once" in reply.error["message"]


@pytest.mark.parametrize("last", [b"5", b"null", b'""', b'{"a":1}'])
@pytest.mark.parametrize("key", [b"model", b"mod\\u0065l"])
def test_a_model_that_only_some_parsers_would_read_is_refused(last: bytes, key: bytes) -> None:
    reply, meant, other = uvloop.run(
        asked("content-type: application/json\r\n", b'{"model":"v/one","%b":%b}' % (key, last))
    )
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_request", "model")
    assert meant == other == []
    for body in (b'{"model":%b}' % last, b'{"model":%b,"%b":%b}' % (last, key, last)):
        reply, meant, other = uvloop.run(asked("content-type: application/json\r\n", body))
        assert (reply.status, meant, other) == (200, [], [body])


def test_a_compressed_json_body_is_refused_and_another_one_passed_on() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, b"\x1f\x8b", "/v1/odd", headers={"content-encoding": "gzip"})
        assert (reply.status, reply.error["code"]) == (415, "invalid_request")
        headers = {"content-encoding": "gzip", "content-type": "application/octet-stream"}
        assert (await ask(proxy.port, b"{\x8b", "/v1/odd", headers=headers)).status == 200
        assert [(request.body, request.headers["content-encoding"]) for request in up.seen] == [(b"{\x8b", "gzip")]

    run(echo, test)


def test_many_doubled_models_cost_no_more_than_their_number() -> None:
    body = b"{" + b",".join([b'"model":"v/one"'] * 100_000) + b"}"
    assert _with_model(body, "v/one", "one").count(b'"model":"one"') == 100_000


def test_an_unknown_model_and_no_default_route_are_404() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, {"model": "nope"}, "/v1/embeddings")
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        reply = await ask(proxy.port, None, "/v1/files")
        assert (reply.status, reply.error["code"]) == (404, "not_found")
        assert up.seen == []

    run(echo, test, routes=[{"models": ["m"], "backends": ["b0"]}])


def test_an_upload_is_streamed_and_bounded() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        head = b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Type: application/octet-stream\r\n"
        piece = b"10000\r\n" + b"a" * 65536 + b"\r\n"
        async with Client(proxy.port) as client:
            await client.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(64):
                await client.send(piece)
            await client.send(b"0\r\n\r\n")
            reply = await client.rest(await client.head())
            assert len(reply.json["body"]) == 4 << 20
        async with Client(proxy.port) as client:
            await client.send(head + b"Content-Length: 5000000\r\n\r\n")
            for _ in range(5):
                await client.send(b"x" * 1_000_000)
            reply = await client.rest(await client.head())
            assert len(reply.json["body"]) == 5_000_000
            assert up.seen[1].headers["content-length"] == "5000000"
        async with Client(proxy.port) as client:
            await client.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
            try:
                async with asyncio.timeout(0.3):
                    for _ in range(1000):
                        await client.send(piece)
            except (ConnectionError, TimeoutError):
                pass
            reply = await client.rest(await client.head())
            assert (reply.status, reply.error["code"]) == (413, "max_request_bytes")
        assert (await ask(proxy.port, None, "/v1/files")).status == 200
        assert proxy.metric("wholecall_backend_up", backend="b0") == 1

    run(echo, test, limits={"max_request_bytes": 5_000_000})


def test_a_download_is_streamed_as_it_comes() -> None:
    async def lockstep(c: Conversation) -> None:
        await c.head(content_type="text/event-stream")
        for number in range(3):
            await c.event({"number": number})
            async with asyncio.timeout(5):
                await heard.get()
        await c.end()

    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            await client.ask({"model": "m", "stream": True}, "/v1/completions")
            reply = await client.head()
            for number in range(3):
                await client.until(b'{"number": %d}' % number, reply)
                heard.put_nowait(number)
            await client.rest(reply)
            assert not reply.broken

    heard: asyncio.Queue[int] = asyncio.Queue()
    run(lockstep, test)


@pytest.mark.parametrize("uploading", [False, True])
def test_the_upstream_is_closed_when_the_client_of_another_path_leaves(uploading: bool) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port) as client:
            if uploading:
                await client.send(b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\nabc")
            else:
                await client.ask({"model": "m"}, "/v1/embeddings")
            while not up.connections:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            client.leave()
        await proxy.quiet()
        await up.none_open()
        assert proxy.metric("wholecall_upstream_errors_total") == 0

    run(silent, test)


async def cut(c: Conversation) -> None:
    await c.head(content_type="application/octet-stream")
    await c.chunk(b"half")
    await asyncio.sleep(0.05)
    c.reset()


def test_a_download_that_breaks_breaks_for_the_client_too() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, None, "/v1/files/1/content")
        assert (reply.status, reply.body, reply.broken) == (200, b"half", True)
        assert (await ask(proxy.port, None, "/healthz")).status == 200

    run(cut, test)


async def drips(c: Conversation) -> None:
    await c.head(content_type="application/octet-stream")
    while True:
        await c.chunk(b"x")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(("key", "script"), [("first_byte_s", silent), ("idle_s", None), ("total_s", drips)])
def test_deadlines_hold_for_other_paths_too(key: str, script: Script | None) -> None:
    async def stalls(c: Conversation) -> None:
        await c.head(content_type="application/octet-stream")
        await c.chunk(b"half")
        await c.until_closed()

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, None, "/v1/files/1/content")
        if key == "first_byte_s":
            assert (reply.status, reply.error["code"]) == (504, "timeout")
            assert "0.2 s (first_byte_s)" in reply.error["message"]
        else:
            assert reply.broken
        await up.none_open()
        await proxy.quiet()
        assert proxy.metric("wholecall_upstream_errors_total", kind="timeout") == 1

    run(script or stalls, test, limits={key: 0.2})


def test_a_client_that_does_not_read_a_download_is_dropped_and_no_fault_of_the_backend() -> None:
    async def flood(c: Conversation) -> None:
        await c.head(content_type="application/octet-stream")
        while True:
            await c.chunk(b"x" * 65_536)

    async def test(proxy: Proxy, up: Upstream) -> None:
        async with Client(proxy.port, receive_buffer=65_536) as client:
            await client.ask(None, "/v1/files/1/content", "GET")
            await client.head()
            await proxy.quiet()
        await up.none_open()
        assert proxy.metric("wholecall_requests_total", status="200") == 1
        assert proxy.metric("wholecall_upstream_errors_total") == 0

    run(flood, test, limits={"send_s": 0.3})


def test_a_download_over_its_limit_is_cut_off_or_refused() -> None:
    async def large(c: Conversation) -> None:
        if c.request.target.endswith("known"):
            await c.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        else:
            await c.head(content_type="application/octet-stream")
            await c.chunk(b"x" * 100_000)
            await c.end()

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, None, "/v1/files/known")
        assert (reply.status, reply.error["code"]) == (502, "max_reply_bytes")
        assert (await ask(proxy.port, None, "/v1/files/chunked")).broken

    run(large, test, limits={"max_reply_bytes": 50_000})


def test_other_paths_go_to_the_next_backend_where_the_first_cannot_be_reached() -> None:
    async def main() -> None:
        async with Upstream(echo) as good, Proxy("http://127.0.0.1:1/v1", good.url) as proxy:
            assert (await ask(proxy.port, {"model": "m"}, "/v1/embeddings")).status == 200
            assert (await ask(proxy.port, None, "/v1/files")).status == 200
            assert proxy.metric("wholecall_upstream_errors_total", backend="b0", kind="unreachable") == 2

    uvloop.run(main())


def test_an_error_status_of_another_path_is_passed_on() -> None:
    async def refuses(c: Conversation) -> None:
        await c.answer(429, b'{"error":{"message":"slow down"}}', retry_after="3")

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, {"model": "m"}, "/v1/embeddings")
        assert (reply.status, reply.json, reply.headers["retry-after"]) == (
            429,
            {"error": {"message": "slow down"}},
            "3",
        )

    run(refuses, test)


# --- models -------------------------------------------------------------------------------------------------------


def listing(*names: str) -> Script:
    async def script(c: Conversation) -> None:
        models = [{"id": name, "object": "model", "created": 5, "owned_by": "them", "extra": 1} for name in names]
        await c.answer(200, json.dumps({"object": "list", "data": models}).encode())

    return script


def test_models_are_those_of_the_routes_and_what_backends_list_for_them() -> None:
    async def main() -> None:
        routes = [
            {"models": ["gpt-4o", "v/*"], "backends": ["b0"], "strip_prefix": "v/"},
            {"models": ["fixed"], "backends": ["b1"], "model": "real"},
            {"models": ["qwen*"], "backends": ["b1", "b2", "b3"]},
        ]
        async with (
            Upstream(listing("one", "gpt-4o")) as first,
            Upstream(listing("qwen3", "other", "real")) as second,
            Upstream(silent) as third,
        ):
            third.script = lambda c: c.answer(500, b"{}")
            urls = (first.url, second.url, third.url, "http://127.0.0.1:1/v1")
            async with Proxy(*urls, routes=routes) as proxy:
                for path in ("/v1/models", "/models"):
                    reply = await ask(proxy.port, None, path)
                    assert reply.status == 200
                    models = {model["id"]: model for model in reply.json["data"]}
                    assert set(models) == {"gpt-4o", "fixed", "v/one", "v/gpt-4o", "qwen3"}
                    assert models["v/one"]["extra"] == 1
                    assert models["fixed"]["owned_by"] == "wholecall"
                    assert all(isinstance(model["created"], int) for model in models.values())
                assert first.seen[0].target == "/v1/models"

    uvloop.run(main())


def test_one_backends_odd_entry_leaves_the_others_lists_as_they_are() -> None:
    async def deep(c: Conversation) -> None:
        await c.answer(200, b'{"data":[{"id":"deep","x":' + b"[" * 300 + b"]" * 300 + b"}]}")

    async def long(c: Conversation) -> None:
        await c.answer(200, b'{"data":[{"id":"long","x":18446744073709551616,"y":"\\ud83d"}]}')

    async def main() -> None:
        async with Upstream(deep) as first, Upstream(long) as second, Upstream(listing("one")) as third:
            routes = [{"models": ["*"], "backends": ["b0", "b1", "b2"]}]
            async with Proxy(first.url, second.url, third.url, routes=routes) as proxy:
                reply = await ask(proxy.port, None, "/v1/models")
                assert reply.status == 200
                models = {model["id"]: model for model in reply.json["data"]}
                assert set(models) == {"long", "one"}
                assert models["long"]["x"] == 18446744073709551616

    uvloop.run(main())


def test_of_a_backend_that_lists_models_without_end_some_are_taken() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, None, "/v1/models")
        assert [model["id"] for model in reply.json["data"]] == [str(number) for number in range(5_000)]

    run(listing(*map(str, range(6_000))), test)


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"null", b"<html>", b'{"data":[1,{"id":5},{}]}', b"", b'{"data":[%b1]}' % (b"[]," * 200_000)]
)
def test_a_backend_whose_list_cannot_be_used_is_left_out(body: bytes) -> None:
    async def odd(c: Conversation) -> None:
        await c.answer(200, body)

    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, None, "/v1/models")
        assert (reply.status, reply.json["data"]) == (200, [])

    run(odd, test)


@pytest.mark.parametrize(
    ("dialect", "path", "sent"),
    [
        ("ollama-chat", "/v1", {"authorization": "Bearer key"}),
        ("gemini", "/openai", {"authorization": "Bearer key"}),
        ("anthropic-messages", "", {"x-api-key": "key", "anthropic-version": "2023-06-01"}),
    ],
)
def test_other_paths_are_where_a_backend_of_another_dialect_has_them(
    dialect: str, path: str, sent: dict[str, str]
) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        models = (await ask(proxy.port, None, "/v1/models")).json["data"]
        assert [model["id"] for model in models] == ["one"]
        assert up.seen[0].target == f"/v1{path}/models"
        assert sent.items() <= up.seen[0].headers.items()
        await ask(proxy.port, {"model": "one"}, "/v1/embeddings")
        assert up.seen[1].target == f"/v1{path}/embeddings"

    run(listing("one"), test, backend={"dialect": dialect, "api_key": "key"})


# --- not found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models", 404),
        ("POST", "/embeddings", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/metrics", 405),
        ("GET", "/v1/responses", 405),
        ("POST", "/v1/responses", 400),
        ("POST", "/messages", 400),
    ],
)
def test_what_is_not_here_is_a_clear_json_error(method: str, path: str, status: int) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        reply = await ask(proxy.port, {"model": "m"} if method == "POST" else None, path, method)
        assert reply.status == status
        assert reply.error["message"]
        assert reply.headers["x-request-id"]
        if status == 405:
            assert reply.headers["allow"]
        assert up.seen == []

    run(echo, test)


# --- about the proxy ----------------------------------------------------------------------------------------------


def test_metrics_and_health_have_a_port_of_their_own_where_that_is_configured() -> None:
    async def main() -> None:
        # A port that is free now: the configuration has no "any free one" for the second port.
        async with Upstream(echo) as spare:
            port = spare.port
        async with Upstream(says("Hello")) as up, Proxy(up.url, listen={"admin_port": port}) as proxy:
            assert proxy.admin_port == port
            assert (await chat(proxy.port)).status == 200
            for path in ("/metrics", "/healthz", "/readyz"):
                assert (await ask(proxy.admin_port, None, path)).status == 200
                assert (await ask(proxy.port, None, path)).status == 404
            assert (await ask(proxy.admin_port, REQUEST)).status == 404
            assert (await ask(proxy.admin_port, None, "/v1/models")).status == 404
            text = (await ask(proxy.admin_port, None, "/metrics")).body.decode()
            assert metric(text, "wholecall_requests_total", status="200") == 1

    uvloop.run(main())


def test_readiness_follows_the_backends() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        assert (await ask(proxy.port, None, "/readyz")).body == b"ok\n"
        for _ in range(5):
            await chat(proxy.port)
        reply = await ask(proxy.port, None, "/readyz")
        assert (reply.status, reply.body) == (503, b"every backend is down\n")
        assert (await ask(proxy.port, None, "/healthz")).status == 200

    async def busy(c: Conversation) -> None:
        await c.answer(503, b"{}")

    run(busy, test)
