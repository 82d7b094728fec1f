"""`/inspect` over HTTP: who may look, what the answers' heads say, and what is kept of real exchanges."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

import running
from proxy.config import ConfigError, from_document
from proxy.server.inspector.web import COOKIE
from support.client import REQUEST, Client, Reply, ask, chat
from support.proxy import Proxy, document
from support.upstream import Conversation, Script, Upstream, call_events, text_events
from watched import judged_again

TOKEN = "inspector-token-0123"
ON = {"enabled": True, "token": TOKEN}
BEARER = {"authorization": f"Bearer {TOKEN}"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}}}


def run(test: Callable[[Proxy], Coroutine[Any, Any, None]], script: Script | None = None, **tables: Any) -> None:
    async def main() -> None:
        async with Upstream(script or quick) as up, Proxy(up.url, **{"inspector": ON, **tables}) as proxy:
            await test(proxy)

    uvloop.run(main())


async def quick(c: Conversation) -> None:
    match c.model:
        case "call":
            await c.stream(*call_events("f", ['{"a": ', '"Oslo"}']))
        case "faulty":
            await c.stream(*call_events("f", ['{"b": "Oslo"}']))
        case "down":
            await c.answer(503, b'{"error": {"message": "SECRETIVE"}}')
        case _:
            await c.stream(*text_events("Hello"), "[DONE]")


async def get(proxy: Proxy, path: str = "/inspect/replies", headers: dict[str, str] | None = None) -> Reply:
    return await ask(proxy.admin_port, None, path, headers=BEARER if headers is None else headers)


async def rows(proxy: Proxy, after: int = 0) -> list[dict[str, Any]]:
    reply = await get(proxy, f"/inspect/replies?after={after}")
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = json.loads(reply.body)["replies"]
    return found


def cookie_of(reply: Reply) -> dict[str, str]:
    return {"cookie": reply.headers["set-cookie"].partition(";")[0]}


async def login(proxy: Proxy, token: str = TOKEN, **headers: str) -> Reply:
    fields = {"content-type": "application/x-www-form-urlencoded"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    return await ask(proxy.admin_port, f"token={token}".encode(), "/inspect/login", headers=fields)


# --- who may look --------------------------------------------------------------------------------------------------

PATHS = ["/inspect", "/inspect/", "/inspect/replies", "/inspect/replies/1", "/inspect/replies/1/case"]
FILES = ["/inspect/inspect.css", "/inspect/inspect.js", "/inspect/icon.svg"]


def test_where_it_is_off_there_is_nothing() -> None:
    async def test(proxy: Proxy) -> None:
        await chat(proxy.port)
        for path in (*PATHS, *FILES):
            reply = await get(proxy, path)
            assert reply.status == 404
        assert (await login(proxy)).status == 404
        assert proxy.service.inspector is None

    run(test, inspector={"enabled": False, "token": TOKEN})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer inspector-token-0124"},
        {"authorization": f"Bearer {TOKEN}0"},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"{COOKIE.decode()}={TOKEN}"},
        {"cookie": f"{COOKIE.decode()}=" + base64.urlsafe_b64encode(b"another-token-0123").decode()},
        {"cookie": f"{COOKIE.decode()}=%%%"},
        {"authorization": "Bearer client-key-0123456"},
    ],
)
def test_without_the_token_nothing_is_shown(headers: dict[str, str]) -> None:
    async def test(proxy: Proxy) -> None:
        await chat(proxy.port, headers={"authorization": "Bearer client-key-0123456"})
        for path in PATHS:
            reply = await get(proxy, path, headers)
            assert reply.status == 401, path
            assert b"Oslo" not in reply.body
        form = await get(proxy, "/inspect", headers)
        assert b'type="password"' in form.body
        assert b"inspect.js" not in form.body

    run(test, clients=[{"name": "c", "key": "client-key-0123456"}])


def test_the_tokens_hash_is_not_the_token() -> None:
    digest = "sha256:" + hashlib.sha256(TOKEN.encode()).hexdigest()

    async def test(proxy: Proxy) -> None:
        assert (await get(proxy)).status == 200
        assert (await get(proxy, headers={"authorization": f"Bearer {digest}"})).status == 401
        assert (await get(proxy, headers={"authorization": f"Bearer {digest[7:]}"})).status == 401

    run(test, inspector={"enabled": True, "token": digest})


def test_no_token_is_taken_from_a_url() -> None:
    async def test(proxy: Proxy) -> None:
        assert (await get(proxy, f"/inspect/replies?token={TOKEN}", {})).status == 401
        assert (await ask(proxy.admin_port, None, f"/inspect/login?token={TOKEN}")).status == 405

    run(test)


def test_the_form_gives_a_cookie_that_only_this_page_can_use() -> None:
    async def test(proxy: Proxy) -> None:
        reply = await login(proxy)
        assert (reply.status, reply.headers["location"]) == (303, "/inspect")
        attributes = {part.strip() for part in reply.headers["set-cookie"].split(";")[1:]}
        assert attributes == {"Path=/inspect", "HttpOnly", "SameSite=Strict"}
        assert TOKEN not in reply.head.decode()
        for path in ("/inspect", "/inspect/replies"):
            assert (await get(proxy, path, cookie_of(reply))).status == 200
        left = await ask(proxy.admin_port, b"", "/inspect/logout", headers=cookie_of(reply))
        assert "Max-Age=0" in left.headers["set-cookie"]

    run(test)


def test_a_wrong_token_in_the_form_is_told_and_gives_no_cookie(caplog: pytest.LogCaptureFixture) -> None:
    async def test(proxy: Proxy) -> None:
        for token in ("", "wrong", TOKEN[:-1], "%00", "x" * 7000):
            reply = await login(proxy, token)
            assert reply.status == 401
            assert "set-cookie" not in reply.headers
            assert b'role="alert">' in reply.body
            assert [record.message for record in caplog.records if "wrong token" in record.message]
            assert token in ("", "wrong") or token not in caplog.text
            caplog.clear()
        assert (await login(proxy, "x" * 9000)).status == 413
        assert (await login(proxy, "&".join("abcdefghijkl"))).status == 400

    run(test)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}, False),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, True),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://behind.a.proxy"}, True),
        ({"origin": "http://proxy"}, True),
    ],
)
def test_pages_of_other_sites_are_refused_even_with_the_token(headers: dict[str, str], allowed: bool) -> None:
    async def test(proxy: Proxy) -> None:
        reply = await get(proxy, headers={**BEARER, **headers})
        assert reply.status == (200 if allowed else 403)
        posted = await ask(proxy.admin_port, f"token={TOKEN}".encode(), "/inspect/login", headers=headers)
        assert posted.status == (303 if allowed else 403)

    run(test)


def test_a_link_from_elsewhere_opens_the_form() -> None:
    async def test(proxy: Proxy) -> None:
        reply = await get(proxy, "/inspect", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
        assert reply.status == 401

    run(test)


def test_it_is_on_the_admin_port_where_there_is_one() -> None:
    async def test(proxy: Proxy) -> None:
        assert proxy.admin_port != proxy.port
        assert (await get(proxy)).status == 200
        for path in PATHS:
            assert (await ask(proxy.port, None, path, headers=BEARER)).status == 404

    run(test, listen={"admin_port": running.free_port()})


def test_a_client_with_the_inspectors_token_is_refused_on_loading() -> None:
    tables = document("http://127.0.0.1:1/v1", inspector=ON, clients=[{"name": "c", "key": TOKEN}])
    with pytest.raises(ConfigError) as caught:
        from_document(tables, {})
    assert "key of another" in str(caught.value)
    assert TOKEN not in str(caught.value)


# --- what answers say ----------------------------------------------------------------------------------------------


def test_every_answer_is_locked_down() -> None:
    async def test(proxy: Proxy) -> None:
        await chat(proxy.port)
        cookie = cookie_of(await login(proxy))
        for path in (*PATHS, *FILES):
            for headers in (cookie, {}):
                reply = await get(proxy, path, headers)
                if reply.status == 401 and path not in ("/inspect", "/inspect/"):
                    continue  # an error like any other
                assert reply.headers["cache-control"] == "no-store"
                assert reply.headers["x-content-type-options"] == "nosniff"
                assert reply.headers["x-frame-options"] == "DENY"
                assert reply.headers["cross-origin-resource-policy"] == "same-origin"
                policy = dict(
                    part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";")
                )
                assert policy["default-src"] == "'none'"
                assert policy["frame-ancestors"] == "'none'"
                assert policy["base-uri"] == "'none'"
                assert policy["require-trusted-types-for"] == "'script'"
                assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
                assert "unsafe" not in reply.headers["content-security-policy"]

    run(test)


def test_the_page_takes_nothing_from_elsewhere_and_writes_no_markup() -> None:
    async def test(proxy: Proxy) -> None:
        cookie = cookie_of(await login(proxy))
        for path in ("/inspect", *FILES):
            text = (await get(proxy, path, cookie)).body.decode()
            outside = re.findall(r"https?://[^\s\"']+", text.replace("http://www.w3.org/2000/svg", ""))
            assert outside == [], path
            assert not re.search(r"<script>|\son\w+=\"|style=\"|javascript:", text), path
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", text), (
                path
            )

    run(test)


def test_what_is_not_there_is_404_and_what_is_no_number_400() -> None:
    async def test(proxy: Proxy) -> None:
        await chat(proxy.port)
        for path in ("/inspect/replies/2", "/inspect/replies/x", "/inspect/replies/1/more", "/inspect/nothing"):
            assert (await get(proxy, path)).status == 404, path
        for path in ("/inspect/replies/1/case?attempt=1", "/inspect/replies/1/case?attempt=99999999999999"):
            assert (await get(proxy, path)).status == 404, path
        for path in ("/inspect/replies?after=x", "/inspect/replies?after=-1", "/inspect/replies/1/case?attempt=x"):
            assert (await get(proxy, path)).status == 400, path
        for path in ("/inspect/replies/1", "/inspect/replies/1/case"):  # another worker's is not this one
            assert (await get(proxy, f"{path}?worker={os.getpid()}")).status == 200
            assert (await get(proxy, f"{path}?worker=1")).status == 404
        assert (await ask(proxy.admin_port, b"", "/inspect/replies", headers=BEARER)).status == 405
        assert (await ask(proxy.admin_port, None, "/inspect", "HEAD", headers=BEARER)).status == 200

    run(test)


# --- what is kept --------------------------------------------------------------------------------------------------


def test_the_list_tells_of_each_reply_once() -> None:
    async def test(proxy: Proxy) -> None:
        await chat(proxy.port, stream=True, model="text")
        await chat(proxy.port, stream=True, model="call", tools=[TOOL], headers={"x-request-id": "mine-1"})
        await ask(
            proxy.port,
            {
                "model": "faulty",
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "?"}],
                "tools": [{"name": "f", "input_schema": TOOL["function"]["parameters"]}],  # type: ignore[index]
            },
            "/v1/messages",
        )
        first, second, third = await rows(proxy)
        assert (first["model"], first["outcome"], first["verdicts"], first["problem"]) == ("text", "ok", [], False)
        assert (second["verdicts"], second["request_id"], second["stream"]) == (["valid"], "mine-1", True)
        assert (third["outcome"], third["code"], third["status"]) == ("blocked", "schema_violation", 502)
        assert (third["client_dialect"], third["upstream_dialect"]) == ("anthropic-messages", "openai-chat")
        assert (third["backend"], third["route"], third["problem"]) == ("b0", "*", True)
        assert [row["number"] for row in await rows(proxy, after=2)] == [3]
        assert await rows(proxy, after=3) == []

    run(test)


def test_one_reply_shows_both_sides_masked_and_its_case_file_can_be_had() -> None:
    async def test(proxy: Proxy) -> None:
        await chat(proxy.port, stream=True, model="call", tools=[TOOL])
        reply = await get(proxy, "/inspect/replies/1")
        shown = json.loads(reply.body)
        assert b"Oslo" not in reply.body
        assert [part["text"] for part in shown["calls"][0]["fragments"]] == ['{"a": ', '"xxxx"}']
        assert shown["attempts"][0]["events"]
        assert shown["sent"]["events"][-1]["text"] == "data: [DONE]"
        case = await get(proxy, "/inspect/replies/1/case")
        assert case.headers["content-disposition"] == 'attachment; filename="inspected-1-0.json"'
        assert json.loads(case.body)["dialect"] == "openai-chat"
        assert b"Oslo" not in case.body

    run(test)


def test_without_redaction_values_are_shown_but_never_credentials() -> None:
    async def quotes(c: Conversation) -> None:
        key = c.request.headers["authorization"]
        await c.stream(*call_events("f", [json.dumps({"a": f"Oslo {key} client-key-0123456"})]))

    async def test(proxy: Proxy) -> None:
        await chat(proxy.port, stream=True, tools=[TOOL], headers={"authorization": "Bearer client-key-0123456"})
        for path in ("/inspect/replies/1", "/inspect/replies/1/case"):
            body = (await get(proxy, path)).body
            assert b"Oslo" in body
            assert b"backend-key-987" not in body
            assert b"client-key-0123456" not in body

    run(
        test,
        quotes,
        inspector={**ON, "redact": False},
        backend={"api_key": "backend-key-987"},
        clients=[{"name": "c", "key": "client-key-0123456"}],
    )


def test_text_that_goes_out_as_it_came_is_kept_on_both_sides() -> None:
    words = [f"word {n} " for n in range(40)]

    async def slowly(c: Conversation) -> None:
        await c.head()
        for event in text_events(*words):
            await c.event(event)
        await c.event("[DONE]")
        await c.end()

    async def test(proxy: Proxy) -> None:
        reply = await chat(proxy.port, stream=True)
        ring = proxy.service.inspector
        assert ring is not None
        (kept,) = ring.after(0)
        assert bytes(kept.sent.data) == reply.body
        assert all(word.encode() in kept.asked[0].tape.data for word in words)

    run(test, slowly)


def test_attempts_that_failed_before_are_shown_too() -> None:
    async def test(proxy: Proxy) -> None:
        await chat(proxy.port, stream=True, model="down")
        (row,) = await rows(proxy)
        assert (row["outcome"], row["attempts"]) == ("error", 1)
        shown = json.loads((await get(proxy, "/inspect/replies/1")).body)
        assert [(a["status"], bool(a["fault"])) for a in shown["attempts"]] == [(503, True)]
        assert "SECRETIVE" not in json.dumps(shown)

    run(test)


def test_each_turn_of_a_model_that_was_asked_again_has_its_calls_and_its_case_file() -> None:
    async def corrects(c: Conversation) -> None:
        again = len(c.request.json["messages"]) > 1
        await c.stream(*call_events("f", ['{"a": ', "1}"] if again else ['{"b": ', "1}"]), "[DONE]")

    async def test(proxy: Proxy) -> None:
        await chat(proxy.port, stream=True, tools=[TOOL])
        (row,) = await rows(proxy)
        assert (row["attempts"], row["reask"], row["verdicts"]) == (2, "corrected", ["valid"])
        shown = json.loads((await get(proxy, "/inspect/replies/1")).body)
        assert [(call["turn"], call["verdict"]) for call in shown["calls"]] == [(0, "schema_violation"), (1, "valid")]
        assert [[part["event"] for part in call["fragments"]] for call in shown["calls"]] == [[2, 3], [2, 3]]
        for attempt, verdict in enumerate(("schema_violation", "valid")):
            case = json.loads((await get(proxy, f"/inspect/replies/1/case?attempt={attempt}")).body)
            assert case["inspected"]["verdicts"] == [verdict]
            record = judged_again(case).record
            assert record is not None
            assert record.verdicts == [verdict]

    run(test, corrects, policy={"reask": 1})


def test_a_client_that_leaves_is_kept_and_nothing_stays_reserved() -> None:
    async def stalls(c: Conversation) -> None:
        await c.head()
        for event in text_events("Hello"):
            await c.event(event)
        await c.until_closed()

    async def test(proxy: Proxy) -> None:
        async with Client(proxy.port) as client:
            await client.ask({**REQUEST, "stream": True})
            reply = await client.head()
            await client.until(b"Hello", reply)
            client.leave()
        async with asyncio.timeout(20):
            while not (found := await rows(proxy)):
                await asyncio.sleep(0.01)
        assert found[0]["outcome"] == "gone"
        ring = proxy.service.inspector
        assert ring is not None
        assert ring.bytes == ring.after(0)[0].size

    run(test, stalls)


def test_a_reload_turns_it_on_and_off_and_keeps_what_is_kept() -> None:
    async def test(proxy: Proxy) -> None:
        def reload(**keys: Any) -> None:
            base = proxy.config.backends[0].base_url
            proxy.service.reload(from_document(document(base, inspector={**ON, **keys}), {}))

        await chat(proxy.port)
        reload(entries=5)
        assert len(await rows(proxy)) == 1
        reload(token="another-token-0123")
        assert (await get(proxy)).status == 401
        reload(enabled=False)
        assert (await get(proxy)).status == 404
        await chat(proxy.port)
        reload()
        assert await rows(proxy) == []
        await chat(proxy.port)
        assert len(await rows(proxy)) == 1

    run(test)


def test_where_it_is_off_an_exchange_is_a_plain_one() -> None:
    async def test(proxy: Proxy) -> None:
        async with Client(proxy.port) as client:
            await client.ask({**REQUEST, "stream": True})
            await client.head()
            (pump,) = proxy.service.pumps
            assert type(pump._exchange).__name__ == "Exchange"
            assert pump._entry.notes is None
            client.leave()
        await proxy.quiet()

    async def stalls(c: Conversation) -> None:
        await c.head()
        for event in text_events("Hello"):
            await c.event(event)
        await c.until_closed()

    run(test, stalls, inspector={"enabled": False})
