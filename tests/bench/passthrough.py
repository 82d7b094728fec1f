"""What one writes in ten minutes: a Starlette app that hands the bytes of an httpx reply on. A peer of the comparison.

UPSTREAM is the backend's root URL. TRANSPORT: "httpx" (httpx's own) or "aiohttp".
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

UPSTREAM = os.environ["UPSTREAM"]
_NOT_SENT = {b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
_NOT_RETURNED = {"transfer-encoding", "content-length", "connection"}


def _client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)
    if os.environ.get("TRANSPORT") == "aiohttp":
        import httpx_aiohttp

        client: httpx.AsyncClient = httpx_aiohttp.HttpxAiohttpClient(timeout=60, trust_env=False, limits=limits)
        return client
    return httpx.AsyncClient(timeout=60, trust_env=False, limits=limits)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    async with _client() as client:
        app.state.client = client
        yield


async def chat(request: Request) -> Response:
    client: httpx.AsyncClient = request.app.state.client
    headers = [field for field in request.headers.raw if field[0] not in _NOT_SENT]
    asked = client.build_request("POST", UPSTREAM + request.url.path, headers=headers, content=await request.body())
    reply = await client.send(asked, stream=True)

    async def body() -> AsyncIterator[bytes]:
        try:
            async for data in reply.aiter_raw():
                yield data
        finally:
            await reply.aclose()

    kept = {name: value for name, value in reply.headers.items() if name not in _NOT_RETURNED}
    return StreamingResponse(body(), reply.status_code, kept)


app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])], lifespan=_lifespan)
