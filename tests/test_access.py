"""Who gets in: keys compared without telling how near they were, kept as hashes, with limits of their own; and the
paths for operators apart from those for clients."""

from __future__ import annotations

import hashlib
import hmac
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy.server.auth import is_rebound
from support.client import REQUEST, ask
from support.proxy import Proxy, configuration
from support.upstream import Upstream, says

ROOT = Path(__file__).parents[1]
KEYS = ["first-key", "second-key", "third-key"]
CLIENTS = [{"name": f"c{i}", "key": key} for i, key in enumerate(KEYS)]
HEADS = {"authorization": "Bearer first-key"}
PATHS: dict[str, Any] = {
    "/v1/chat/completions": REQUEST,
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": {**REQUEST, "max_tokens": 5},
    "/v1/embeddings": {"model": "m", "input": "Hi"},
    "/v1/files": None,
    "/v1/models": None,
}


def run(test: Callable[[Proxy, Upstream], Coroutine[Any, Any, None]], **tables: Any) -> None:
    async def main() -> None:
        async with Upstream(says("Hello")) as up, Proxy(up.url, **tables) as proxy:
            await test(proxy, up)

    uvloop.run(main())


# --- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [*KEYS, "first-kez", "f", "x" * 20_000, ""])
def test_a_key_is_compared_with_every_one_in_constant_time_whichever_it_is(
    shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration("http://127.0.0.1:1/v1", clients=CLIENTS)
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noting(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    client = config.client_for(shown)
    assert (client.name if client else None) == {key: f"c{i}" for i, key in enumerate(KEYS)}.get(shown)
    assert len(compared) == len(KEYS)
    assert {len(digest) for pair in compared for digest in pair} == {32}


def test_no_client_is_kept_with_its_key_itself() -> None:
    config = configuration("http://127.0.0.1:1/v1", clients=CLIENTS)
    assert [client.key for client in config.clients] == [hashlib.sha256(key.encode()).digest() for key in KEYS]


def hash_key(shown: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "proxy", "hash-key"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, input=shown, capture_output=True, env=environment, timeout=60, check=False)


@pytest.mark.parametrize("shown", [b"wc-key", b"wc-key\n", b" wc-key\r\n"])
def test_hash_key_gives_what_stands_for_the_key_in_the_file(shown: bytes) -> None:
    done = hash_key(shown)
    assert done.returncode == 0, done.stderr
    told = done.stdout.decode().strip()
    assert told == "sha256:" + hashlib.sha256(b"wc-key").hexdigest()
    config = configuration("http://127.0.0.1:1/v1", clients=[{"name": "c", "key": told}])
    assert config.client_for("wc-key") is not None
    assert config.client_for(told) is None


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (b"", "no key"),
        (b"\n", "no key"),
        (b"k" * 20_000, "no key of 1 to 16384"),
        ("k\u00e9y".encode(), "printable ASCII"),
        (b"k\xffy", "printable ASCII"),
        (b"one\ntwo", "printable ASCII"),
        (b"sha256:" + b"0" * 64, "a hash already"),
    ],
)
def test_hash_key_refuses_what_no_client_could_show(shown: bytes, says: str) -> None:
    done = hash_key(shown)
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1
    assert shown.strip() == b"" or shown.strip() not in done.stderr


def test_hash_key_asks_at_a_terminal_and_does_not_echo() -> None:
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "proxy", "hash-key"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"}
    child = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
    )
    os.close(inside)
    told = b""
    while b"Key" not in told:
        told += os.read(terminal, 1024)
    os.write(terminal, b"wc-key\n")
    try:
        while piece := os.read(terminal, 1024):
            told += piece
    except OSError:  # its other end is closed
        pass
    os.close(terminal)
    assert child.wait(60) == 0
    assert hashlib.sha256(b"wc-key").hexdigest() in told.decode()
    assert b"wc-key" not in told


# --- pages in a browser ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-origin", 200), ("none", 200), (None, 403)])
def test_without_keys_no_page_of_another_site_gets_in(path: str, site: str | None, status: int) -> None:
    """Any page may send a browser's POST with a text for its body to any address: only its answer is kept from it."""

    async def test(proxy: Proxy, up: Upstream) -> None:
        headers = {"content-type": "text/plain", "origin": "https://elsewhere.example"}
        headers |= {"sec-fetch-site": site} if site else {}
        reply = await ask(proxy.port, PATHS[path], path, headers=headers)
        assert reply.status == status
        assert status == 200 or (up.seen == [] and reply.error["code"] == "foreign_page")
        assert "access-control-allow-origin" not in reply.headers

    run(test)


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://proxy", 200), ("http://proxy:1", 403), ("null", 403), ("app://notes", 200), (None, 200)],
)
def test_where_a_browser_tells_only_the_origin_it_decides(origin: str | None, status: int) -> None:
    """Over plain HTTP to an address in the network, no Sec-Fetch-Site is sent."""

    async def test(proxy: Proxy, up: Upstream) -> None:
        headers = {"origin": origin} if origin else {}
        assert (await ask(proxy.port, REQUEST, headers=headers)).status == status
        assert len(up.seen) == (status == 200)

    run(test)


OWN = (
    "localhost:8080",
    "LOCALHOST",
    "127.0.0.1:1",
    "[::1]:8080",
    "wholecall",
    "a.b.internal.",
    "x.local:80",
    "app.localhost",
    "wholecall.lan:8080",
    "box.home.arpa",
)
PUBLIC = (
    "attacker.example",
    "attacker.example:8080",
    "127.0.0.1.attacker.example",
    "localhost.attacker.example.",
    "lan.box",
    "attackerlan.com",
    "a.b:",
)


@pytest.mark.parametrize("host", [*OWN, *PUBLIC])
def test_a_public_name_that_is_made_to_lead_here_gets_nothing(host: str) -> None:
    """DNS rebinding: a page's own name leads to 127.0.0.1, and its browser takes the proxy for the page's site."""

    async def test(proxy: Proxy, up: Upstream) -> None:
        status = 403 if host in PUBLIC else 200
        for path, body in PATHS.items():
            reply = await ask(proxy.port, body, path, "GET" if body is None else "POST", headers={"host": host})
            assert (reply.status, path) == (status, path)
            assert status == 200 or reply.error["code"] == "foreign_host"
        assert (up.seen == []) == (host in PUBLIC)
        assert (await ask(proxy.port, None, "/metrics", "GET", headers={"host": host})).status == status
        assert (await ask(proxy.port, None, "/healthz", "GET", headers={"host": host})).status == 200

    run(test)


@pytest.mark.parametrize(
    ("host", "status"), [("LLM.example.com", 200), ("llm.example.com.:8080", 200), ("x.llm.example.com", 403)]
)
def test_public_names_in_the_configuration_are_answered_to(host: str, status: int) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for path, body in (*PATHS.items(), ("/metrics", None)):
            reply = await ask(proxy.port, body, path, "GET" if body is None else "POST", headers={"host": host})
            assert (reply.status, path) == (status, path)
            assert status == 200 or "listen.hosts" in reply.error["message"]

    run(test, listen={"hosts": ["other.example", "llm.Example.com"]})


def test_with_keys_the_api_answers_to_every_name_and_the_metrics_do_not() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        public = {"host": "api.example.com"}
        assert (await ask(proxy.port, REQUEST, headers={**HEADS, **public})).status == 200
        assert (await ask(proxy.port, None, "/metrics", "GET", headers=public)).status == 403

    run(test, clients=CLIENTS)


@pytest.mark.parametrize("address", ["10.0.0.3", "::", "fe80::1", "0.0.0.0"])  # noqa: S104 - compared, not bound
def test_on_an_address_of_the_network_every_name_is_taken(address: str) -> None:
    assert not is_rebound(address, b"api.example.com")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.2", "::1", "0:0:0:0:0:0:0:1", "::1%lo", "::ffff:127.0.0.1", "::FFFF:7f00:1"),
        *("localhost", "LocalHost", "localhost.", "proxy.localhost", "ip6-localhost", "localhost6.localdomain6"),
    ],
)
def test_however_the_local_address_is_written_it_answers_to_no_public_name(address: str) -> None:
    assert is_rebound(address, b"api.example.com")
    assert not is_rebound(address, b"localhost:8000")


@pytest.mark.parametrize("address", ["127.example.com", "notlocalhost", "localhost.example.com", "::ffff:10.0.0.3"])
def test_what_only_looks_like_the_local_address_takes_every_name(address: str) -> None:
    assert not is_rebound(address, b"api.example.com")


def test_with_a_key_a_page_gets_in_like_anybody() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for headers, status in (({}, 401), (HEADS, 200)):
            reply = await ask(proxy.port, REQUEST, headers={**headers, "sec-fetch-site": "cross-site"})
            assert reply.status == status

    run(test, clients=CLIENTS)


# --- limits of a key ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_keys_requests_are_counted_on_every_path(path: str) -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        replies = [await ask(proxy.port, PATHS[path], path, headers=HEADS) for _ in range(3)]
        assert [reply.status for reply in replies[:2]] == [200, 200]
        assert (replies[2].status, replies[2].error["code"]) == (429, "clients.requests_per_minute")
        assert int(replies[2].headers["retry-after"]) >= 1
        other = await ask(proxy.port, PATHS[path], path, headers={"x-api-key": "second-key"})
        assert other.status == 200

    run(test, clients=[{**CLIENTS[0], "requests_per_minute": 2}, CLIENTS[1]])


def test_a_refused_key_uses_up_nothing_of_anybodys() -> None:
    async def test(proxy: Proxy, up: Upstream) -> None:
        for _ in range(5):
            assert (await ask(proxy.port, REQUEST, headers={"authorization": "Bearer wrong"})).status == 401
        assert (await ask(proxy.port, REQUEST, headers=HEADS)).status == 200

    run(test, clients=[{**CLIENTS[0], "requests_per_minute": 1, "max_streams": 1}], limits={"max_streams": 1})


# --- paths for operators ------------------------------------------------------------------------------------------


def test_with_a_port_of_their_own_no_path_for_operators_answers_on_the_apis() -> None:
    async def main() -> None:
        async with Upstream(says("Hello")) as spare:
            port = spare.port
        async with Upstream(says("Hello")) as up, Proxy(up.url, listen={"admin_port": port}, clients=CLIENTS) as proxy:
            for path in ("/metrics", "/healthz", "/readyz"):
                for method in ("GET", "HEAD", "POST"):
                    for headers in ({}, HEADS):
                        assert (await ask(proxy.port, None, path, method, headers)).status == 404
                assert (await ask(proxy.admin_port, None, path)).status == 200
            for path, body in PATHS.items():
                assert (await ask(proxy.admin_port, body, path, headers=HEADS)).status == 404
            assert up.seen == []

    uvloop.run(main())


def test_no_request_path_leads_from_the_api_to_the_paths_for_operators() -> None:
    async def main() -> None:
        async with Upstream(says("Hello")) as spare:
            port = spare.port
        async with Upstream(says("Hello")) as up, Proxy(up.url, listen={"admin_port": port}) as proxy:
            for path in ("//metrics", "/v1/../metrics", "/%6detrics", "/metrics/", "/v1/%2e%2e/metrics", "/METRICS"):
                assert (await ask(proxy.port, None, path)).status in (400, 404), path

    uvloop.run(main())
