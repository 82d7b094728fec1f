"""An embedded backend that answers with recorded replies: no model, no key, no network.

The request's model names the recording (`demo/interleaved-damaged`, `demo/clean`, `demo/cut` ...); status, framing,
pace and the way the reply ends are the recording's own, whatever the request asks for: a backend that misbehaves.
Every file in `recordings/` is one model; they are case files without `expect`, and `upstream.pace_s` is the pause
before each item in seconds. A recording is played at the path of its dialect, and at no other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.library import Assembler
from proxy.replay.recording import CREATED, Recording, read_case

# Below the root; a Gemini model stands in the path.
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic-messages": "/v1/messages",
    "gemini": "/v1beta/models/{model:path}:{method}",
    "ollama-chat": "/api/chat",
}
PREFIX = "demo/"
SHOWPIECE = "demo/interleaved-damaged"


def shipped() -> dict[str, Recording]:
    """The recordings in this package, by model name, the one that `demo` shows first."""
    files = [f for f in resources.files("proxy.replay").joinpath("recordings").iterdir() if f.name.endswith(".json")]
    files.sort(key=lambda file: file.name)
    found = {PREFIX + f.name.removesuffix(".json"): read_case(json.loads(f.read_text("utf-8"))) for f in files}
    return {SHOWPIECE: found.pop(SHOWPIECE), **found}


def assembled(recording: Recording) -> Assembler:
    """What the proxy's core makes of a recording: its calls with their verdicts, its text and how it ended."""
    assembler = Assembler(
        recording.request,
        dialect=recording.dialect,
        request_dialect="openai-chat",
        status=recording.status,
        headers=recording.headers,
    )
    for piece in recording.pieces:
        assembler.feed(piece)
    assembler.close(broken=recording.end == "reset")
    return assembler


def expected(recording: Recording) -> dict[str, Any]:
    """The same as JSON, for tests in any language. `error` is null where the reply ended well."""
    found = assembled(recording)
    fault = found.fault
    return {
        "fault": recording.title,
        "text": found.text,
        "calls": [call.as_json() for call in found.calls],
        "finish_reason": found.finish_reason,
        "error": None if fault is None else {"code": fault.public_code, "message": fault.detail},
        "quirks": found.quirks,
    }


def build(
    recordings: Mapping[str, Recording] | None = None,
    answering: Mapping[str, Callable[[Mapping[str, Any]], Recording]] | None = None,
) -> ASGIApp:
    """The backend: a path for each dialect, `GET /v1/models`, and of one recording, by `?model=NAME`,
    `GET /v1/demo/request` (a chat request to try) and `GET /v1/demo/expected` (what a client should make of the reply).

    `answering`: further models, which make their recording from the request's body.
    """
    known = shipped() if recordings is None else recordings
    made = answering or {}

    async def models(request: Request) -> Response:
        names = (*known, *made)
        data = [{"id": name, "object": "model", "created": CREATED, "owned_by": "wholecall"} for name in names]
        return JSONResponse({"object": "list", "data": data})

    async def sample(request: Request) -> Response:
        name = request.query_params.get("model", next(iter(known)))
        return JSONResponse({"model": name, **known[name].request}) if name in known else _unknown(name, known)

    async def outcome(request: Request) -> Response:
        name = request.query_params.get("model", next(iter(known)))
        return JSONResponse({"model": name, **expected(known[name])}) if name in known else _unknown(name, known)

    def complete(dialect: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                body = json.loads(await request.body())
                name = request.path_params.get("model") or body["model"]
            except (ValueError, TypeError, KeyError):
                return _refusal(400, "invalid_request", "the body is no JSON object with a model")
            if not isinstance(name, str) or name not in (*known, *made):
                return _unknown(name, (*known, *made))
            recording = known[name] if name in known else made[name](body)
            if recording.dialect != dialect:
                told = f"recording {name!r} speaks {recording.dialect}: ask {PATHS[recording.dialect]}"
                return _refusal(404, "model_not_found", told)
            return _Playback(recording)

        return answer

    return Starlette(
        routes=[
            *(Route(path, complete(dialect), methods=["POST"]) for dialect, path in PATHS.items()),
            Route("/v1/models", models),
            Route("/v1/demo/request", sample),
            Route("/v1/demo/expected", outcome),
        ]
    )


def _unknown(name: object, known: Iterable[str]) -> Response:
    return _refusal(404, "model_not_found", f"no recording {name!r}; there are {', '.join(known)}")


def _refusal(status: int, code: str, message: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": "model", "code": code}
    return JSONResponse({"error": error}, status)


class _Playback(Response):
    """Sends a recording. A reset is a body that is never finished: the server then drops the connection."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(status_code=recording.status)
        self.recording = recording

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        heads = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.recording.headers.items()]
        await send({"type": "http.response.start", "status": self.recording.status, "headers": heads})
        for piece in self.recording.pieces:
            if self.recording.pace_s:
                await asyncio.sleep(self.recording.pace_s)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if self.recording.end == "eof":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
