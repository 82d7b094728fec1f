"""The embedded backend plays what was recorded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

import casefile
from proxy.replay.app import PATHS, SHOWPIECE, build, shipped
from proxy.replay.recording import Recording


def ask(method: str, path: str, app: ASGIApp | None = None, **options: Any) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app or build())
        async with httpx.AsyncClient(transport=transport, base_url="http://demo") as client:
            return await client.request(method, path, **options)

    return asyncio.run(asked())


def test_every_recording_is_a_model_and_the_showpiece_comes_first() -> None:
    names = [model["id"] for model in ask("GET", "/v1/models").json()["data"]]
    assert names == list(shipped())
    assert names[0] == SHOWPIECE
    assert len(names) >= 8


def test_a_completion_is_the_recording_byte_for_byte() -> None:
    reply = ask("POST", "/v1/chat/completions", json={"model": SHOWPIECE, "messages": []})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.content == b"".join(shipped()[SHOWPIECE].pieces)


def test_a_recorded_error_keeps_its_status_and_headers() -> None:
    reply = ask("POST", "/v1/chat/completions", json={"model": "demo/overloaded"})
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
    assert reply.json()["error"]["code"] == "overloaded"


def test_the_sample_request_asks_for_the_model_it_names() -> None:
    body = ask("GET", "/v1/demo/request?model=demo/cut").json()
    assert body["model"] == "demo/cut"
    assert body["tools"]
    assert ask("GET", "/v1/demo/request").json()["model"] == SHOWPIECE


@pytest.mark.parametrize("dialect", PATHS)
def test_each_dialect_has_its_path_and_a_recording_is_played_at_its_own_alone(dialect: str) -> None:
    case = next(case for case in casefile.read_all(*casefile.FOLDERS) if case.recording.dialect == dialect)
    app = build({case.id: case.recording})
    for other, path in PATHS.items():
        filled = path.replace("{model:path}", case.id).replace("{method}", "streamGenerateContent")
        reply = ask("POST", filled, app=app, json={"model": case.id})
        if other == dialect:
            assert (reply.status_code, reply.content) == (case.recording.status, b"".join(case.recording.pieces))
        else:
            assert reply.status_code == 404
            assert f"speaks {dialect}" in reply.json()["error"]["message"]


def test_what_is_expected_of_a_client_is_told_for_every_recording() -> None:
    told = {name: ask("GET", f"/v1/demo/expected?model={name}").json() for name in shipped()}
    assert told[SHOWPIECE]["calls"] == ask("GET", "/v1/demo/expected").json()["calls"]
    assert [call["verdict"] for call in told[SHOWPIECE]["calls"]] == ["valid", "valid"]
    assert json.loads(told[SHOWPIECE]["calls"][1]["arguments"])["at"] == "18:00"
    assert told[SHOWPIECE]["finish_reason"] == "tool_calls"
    assert "args_cumulative" in told[SHOWPIECE]["calls"][0]["quirks"]
    assert told["demo/reset"]["error"]["code"] == "stream_cut"
    assert told["demo/wrong-arguments"]["calls"][1]["error"]["rule"] == "required"
    assert {name for name, one in told.items() if one["error"]} == {
        "demo/cut", "demo/error-in-stream", "demo/overloaded", "demo/reset"
    }  # fmt: skip
    assert ask("GET", "/v1/demo/expected?model=x").status_code == 404


def test_an_unknown_model_and_a_body_that_is_no_json_are_refused_in_words() -> None:
    unknown = ask("POST", "/v1/chat/completions", json={"model": "gpt-4o"})
    assert unknown.status_code == 404
    assert SHOWPIECE in unknown.json()["error"]["message"]
    assert ask("GET", "/v1/demo/request?model=x").status_code == 404
    for body in (b"{", b"[]", b'{"messages": []}', b"\xff"):
        assert ask("POST", "/v1/chat/completions", content=body).status_code == 400


def test_a_reset_never_finishes_the_body() -> None:
    recording = Recording(
        "r", "", "openai-chat", (b"data: {}\n\n",), headers={"content-type": "text/event-stream"}, end="reset"
    )
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"model": "r"}).encode(), "more_body": False}

    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b"",
    }  # fmt: skip

    async def play() -> None:
        await build({"r": recording})(scope, receive, send)

    asyncio.run(play())
    assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
    assert sent[-1]["more_body"] is True
