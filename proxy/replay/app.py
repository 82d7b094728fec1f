"""An embedded backend that answers with recorded replies: no model, no key, no network.

The request's model names the recording (`demo/interleaved-damaged`, `demo/clean`, `demo/cut` ...); status, framing,
pace and the way the reply ends are the recording's own, whatever the request asks for: a backend that misbehaves.
Every file in `recordings/` is one model; they are case files without `expect`, and `upstream.pace_s` is the pause
before each item in seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from importlib import resources

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.replay.recording import CREATED, Recording, read_case

PREFIX = "demo/"
SHOWPIECE = "demo/interleaved-damaged"


def shipped() -> dict[str, Recording]:
    """The recordings in this package, by model name, the one that `demo` shows first."""
    files = [f for f in resources.files("proxy.replay").joinpath("recordings").iterdir() if f.name.endswith(".json")]
    files.sort(key=lambda file: file.name)
    found = {PREFIX + f.name.removesuffix(".json"): read_case(json.loads(f.read_text("utf-8"))) for f in files}
    return {SHOWPIECE: found.pop(SHOWPIECE), **found}


def build(recordings: Mapping[str, Recording] | None = None) -> ASGIApp:
    """The backend: `POST /v1/chat/completions`, `GET /v1/models`, and `GET /v1/demo/request`: a request body to try."""
    known = shipped() if recordings is None else recordings

    async def models(request: Request) -> Response:
        data = [{"id": name, "object": "model", "created": CREATED, "owned_by": "wholecall"} for name in known]
        return JSONResponse({"object": "list", "data": data})

    async def sample(request: Request) -> Response:
        name = request.query_params.get("model", next(iter(known)))
        if name not in known:
            return _refusal(404, "model_not_found", f"no recording {name!r}; there are {', '.join(known)}")
        return JSONResponse({"model": name, **known[name].request})

    async def complete(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            name = body["model"]
        except (ValueError, TypeError, KeyError):
            return _refusal(400, "invalid_request", "the body is no JSON object with a model")
        if not isinstance(name, str) or name not in known:
            return _refusal(404, "model_not_found", f"no recording {name!r}; there are {', '.join(known)}")
        return _Playback(known[name])

    return Starlette(
        routes=[
            Route("/v1/chat/completions", complete, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/demo/request", sample),
        ]
    )


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
