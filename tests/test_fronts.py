"""nginx and Envoy in front, as config/nginx.conf and config/envoy.yaml have them: a real stream through each."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import uvloop
import yaml

import running
from proxy.config import Limits
from support.client import REQUEST
from support.proxy import Proxy
from support.upstream import Conversation, Upstream, chunk, says

CONFIG = Path(__file__).parent.parent / "config"
NGINX = (CONFIG / "nginx.conf").read_text()
ENVOY = (CONFIG / "envoy.yaml").read_text()
LIMITS = Limits()
MISSING = {
    "nginx": "nginx is not installed",
    "envoy": "there is no Envoy for this machine (the `test` extra has one for Linux on x86-64)",
}


def program(name: str) -> str:
    """Its path. CI must have nginx, which tests/check.sh installs; Envoy is there where its wheel is."""
    found = shutil.which(
        name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
    )
    if found is None:
        if name == "nginx" and os.environ.get("CI"):
            pytest.fail("CI must have nginx: tests/check.sh installs it")
        pytest.skip(MISSING[name])
    return found


def put(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def nginx(folder: Path, port: int, api: int, admin: int) -> list[str]:
    config = folder / "nginx.conf"
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = put(
        NGINX,
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:8080", f"127.0.0.1:{api}"),
        ("/etc/nginx/tls", str(folder)),
        ("worker_processes auto;", f"worker_processes 1; daemon off; pid {folder}/pid; error_log stderr;"),
        ("http {", f"http {{\n{paths}"),
    )
    config.write_text(text)
    return [program("nginx"), "-p", str(folder), "-e", "stderr", "-c", str(config)]


def envoy(folder: Path, port: int, api: int, admin: int) -> list[str]:
    config = folder / "envoy.yaml"
    text = put(
        ENVOY,
        ("address: 0.0.0.0, port_value: 8443", f"address: 127.0.0.1, port_value: {port}"),
        ("port_value: 8080", f"port_value: {api}"),
        ("port_value: 8081", f"port_value: {admin}"),
        ("/etc/envoy/tls", str(folder)),
    )
    config.write_text(text)
    return [program("envoy"), "-c", str(config), "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"]


FRONTS: dict[str, Callable[[Path, int, int, int], list[str]]] = {"nginx": nginx, "envoy": envoy}
CHECK = {"nginx": ["-t"], "envoy": ["--mode", "validate"]}


@dataclass
class Front:
    """`client` trusts the front's certificate and asks it at its root."""

    client: httpx.AsyncClient
    process: subprocess.Popen[bytes]


def certificate(folder: Path) -> ssl.SSLContext:
    """The front's certificate and key, where the configuration has them; gives a client's context that trusts it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "tls.key")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(folder / "tls.crt", append=True)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    return trusting


def started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


@asynccontextmanager
async def running_front(name: str, folder: Path, proxy: Proxy) -> AsyncIterator[Front]:
    port, trusting = running.free_port(), certificate(folder)
    command = FRONTS[name](folder, port, proxy.port, proxy.admin_port)
    log = folder / "front.log"
    process = started(command, log)
    try:
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=trusting, timeout=30) as client:
            # Not ready: nobody listens, or Envoy has no healthy instance yet.
            while (status := await _status(client)) != 200:
                assert process.poll() is None, log.read_text()
                assert status in (0, 503), log.read_text()
                await asyncio.sleep(0.05)
            yield Front(client, process)
    finally:
        await asyncio.to_thread(running.stop, process)


async def _status(client: httpx.AsyncClient) -> int:
    try:
        return (await client.get("/v1/models")).status_code
    except httpx.TransportError:
        return 0


def run(name: str, folder: Path, script: Any, test: Callable[[Front, Upstream, Proxy], Any], **tables: Any) -> None:
    async def main() -> None:
        listen = {"admin_port": running.free_port()}
        async with (
            asyncio.timeout(120),
            Upstream(script) as up,
            Proxy(up.url, listen=listen, **tables) as proxy,
            running_front(name, folder, proxy) as front,
        ):
            up.seen.clear()
            await test(front, up, proxy)

    program(name)
    uvloop.run(main())


async def models_or(c: Conversation, script: Any) -> None:
    """The list of models is what readiness is seen by."""
    if c.request.method == "GET":
        await c.answer(200, b'{"object":"list","data":[]}')
    else:
        await script(c)


@pytest.mark.parametrize("name", FRONTS)
def test_the_front_accepts_its_configuration(tmp_path: Path, name: str) -> None:
    certificate(tmp_path)
    command = [*FRONTS[name](tmp_path, 8443, 8080, 8081), *CHECK[name]]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "warn" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", FRONTS)
def test_events_pass_one_by_one_and_a_client_that_leaves_is_noticed(tmp_path: Path, name: str) -> None:
    told = asyncio.Event()

    async def script(c: Conversation) -> None:
        async def reply(c: Conversation) -> None:
            await c.head()
            await c.event(chunk({"role": "assistant", "content": "one"}))
            await told.wait()
            await c.event(chunk({"content": "two"}))
            await c.until_closed(60)

        await models_or(c, reply)

    async def test(front: Front, up: Upstream, proxy: Proxy) -> None:
        async with front.client.stream("POST", "/v1/chat/completions", json={**REQUEST, "stream": True}) as reply:
            assert reply.status_code == 200
            text, seen = reply.aiter_text(), ""
            while '"one"' not in seen:  # were it buffered, this would wait for ever
                seen += await anext(text)
            told.set()
            while '"two"' not in seen:
                seen += await anext(text)
        await asyncio.wait_for(up.conversations[-1].closed.wait(), 60)
        await proxy.quiet(60)

    run(name, tmp_path, script, test)


@pytest.mark.slow
@pytest.mark.parametrize("name", FRONTS)
def test_only_the_api_is_reachable_and_wholecalls_own_answers_come_through(tmp_path: Path, name: str) -> None:
    async def script(c: Conversation) -> None:
        await models_or(c, says("Hello"))

    async def test(front: Front, up: Upstream, proxy: Proxy) -> None:
        for path in ("/metrics", "/healthz", "/readyz", "/", "/v1/../metrics"):
            assert (await front.client.get(path)).status_code == 404, path
        reply = await front.client.post("/v1/chat/completions", json=REQUEST, headers={"x-request-id": "forged"})
        assert reply.json()["choices"][0]["message"]["content"] == "Hello"
        assert re.fullmatch(r"[0-9a-f-]{32,36}", reply.headers["x-request-id"])
        large = await front.client.post("/v1/chat/completions", content=b" " * (limit + 1))
        assert (large.status_code, large.json()["error"]["code"]) == (413, "max_request_bytes")

    # More than nginx takes by default. Envoy ends an HTTP/1.1 connection where an answer comes before all was sent.
    limit = 2 << 20 if name == "nginx" else 10_000
    run(name, tmp_path, script, test, limits={"max_request_bytes": limit})


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_the_fronts_wait_as_long_as_the_proxy_does() -> None:
    """Their silences must outlast the proxy's, or they cut what the proxy would still answer."""
    directives = dict(re.findall(r"^\s*(\w+) ([^;{]+);", NGINX, flags=re.M))
    (manager,) = find(yaml.safe_load(ENVOY), "stat_prefix")
    silence = max(LIMITS.first_byte_s, LIMITS.idle_s)
    assert silence < seconds(directives["proxy_read_timeout"])
    assert silence < seconds(manager["stream_idle_timeout"])
    assert seconds(directives["client_header_timeout"]) == seconds(manager["request_headers_timeout"]) == LIMITS.head_s
    assert seconds(directives["client_body_timeout"]) == seconds(manager["request_timeout"]) == LIMITS.body_s
    assert seconds(directives["send_timeout"]) == LIMITS.send_s
    assert directives["large_client_header_buffers"] == f"4 {LIMITS.max_head_bytes // 1024}k"
    assert manager["max_request_headers_kb"] == LIMITS.max_head_bytes // 1024


def find(node: Any, key: str) -> list[Any]:
    """Every table of a document that has this key."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    found = [one for part in inner for one in find(part, key)]
    return [node, *found] if isinstance(node, dict) and key in node else found


def test_the_fronts_close_idle_connections_before_the_proxy_does() -> None:
    import uvicorn

    kept_s = uvicorn.Config("app").timeout_keep_alive
    directives = re.findall(r"^\s*keepalive_timeout ([^;]+);", NGINX, flags=re.M)
    (cluster,) = find(yaml.safe_load(ENVOY), "explicit_http_config")
    assert [seconds(text) for text in directives] == [4.0]
    assert seconds(cluster["common_http_protocol_options"]["idle_timeout"]) == 4.0 < kept_s
