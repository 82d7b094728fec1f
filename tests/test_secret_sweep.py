"""No secret comes out anywhere: a distinct marker in every place that holds one, many good and bad exchanges and
configurations, and then a search through all that the process wrote and answered."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import uvloop
from pydantic import BaseModel, ValidationError

from proxy.config import Config, ConfigError, load
from proxy.config.values import Context
from proxy.faults import Fault, FaultKind
from proxy.server import logs
from support.client import REQUEST, Client, Reply, ask, chat
from support.proxy import Proxy, write_config
from support.upstream import Conversation, Upstream, call_events, chunk, text_events

ROOT = Path(__file__).parents[1]

# What a backend is sent.
LITERAL, ENV, FILE = "Mark-Literal-0aF31", "mark-environment-1b42", "mark-file-2c53/+=x"
HEADER = "mark-header-3d64"
# What clients show: three configured ones, of which the last is sent on; and what nobody has.
CLIENT, HASHED, FORWARDED = "mark-client-4e75", "mark-hashed-5f86", "mark-forwarded-6a97"
WRONG, BASIC, COOKIE = "mark-wrong-7ba8", "mark-basic-8cb9", "mark-cookie-9dca"
# What stands in requests.
QUERY, USER, PROMPT, ARGUMENT = "mark-query-aedb", "mark-userinfo-bfec", "mark-prompt-c0fd", "mark-argument-d10e"
# A name that a model made up: the inspector shows it, since it is what is wrong with the call.
KEY = "mark-key-e21f"
# Who may look into the inspector.
TOKEN = "mark-inspector-f320"

BACKENDS = (LITERAL, ENV, FILE, HEADER)
CLIENTS = (CLIENT, HASHED, FORWARDED, WRONG, BASIC, COOKIE)
ALL = (*BACKENDS, *CLIENTS, TOKEN, KEY, QUERY, USER, PROMPT, ARGUMENT)

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}}}


def forms(secret: str) -> set[str]:
    """How it could show: as it is, in JSON, in a URL, in Basic authentication; and most of its beginning alone."""
    quoted = json.dumps(secret)[1:-1]
    encoded = base64.b64encode(f"user:{secret}".encode()).decode()
    return {
        secret,
        secret[:14],
        quoted,
        quoted.replace("/", r"\/"),
        encoded,
        hashlib.sha256(secret.encode()).hexdigest(),
    }


def found(text: str, secrets: tuple[str, ...]) -> list[str]:
    lowered = text.lower()
    return [secret for secret in secrets if any(form.lower() in lowered for form in forms(secret))]


# --- the file -----------------------------------------------------------------------------------------------------


def document(url: str, folder: Path) -> dict[str, Any]:
    """A backend for each way to give a key, and the model's first letter finds it."""
    file = folder / "key"
    file.write_text(f"{FILE}\n")
    keys = {"l": LITERAL, "e": "env:BACKEND_KEY", "f": f"file:{file}", "w": "forward"}
    return {
        "listen": {"host": "127.0.0.1", "port": 0, "drain_s": 0.2},
        "log": {"level": "debug"},
        "inspector": {"enabled": True, "token": "env:INSPECT_TOKEN", "entries": 10_000},
        "limits": {"idle_s": 2.0, "first_byte_s": 2.0, "head_s": 2.0},
        "backends": [
            {
                "name": name,
                "dialect": "openai-chat",
                "base_url": url,
                "api_key": key,
                "headers": {"x-gate": f"Basic {HEADER}"},
                "forward_headers": ["x-mine"],
            }
            for name, key in keys.items()
        ],
        "routes": [
            *({"models": [f"{name}-*"], "backends": [name]} for name in keys),
            {"models": ["*"], "backends": ["l", "e"]},
        ],
        "clients": [
            {"name": "one", "key": CLIENT, "requests_per_minute": 1_000_000},
            {"name": "two", "key": f"sha256:{hashlib.sha256(HASHED.encode()).hexdigest()}", "max_streams": 1},
            {"name": "three", "key": "env:CLIENT_KEY"},
        ],
    }


ENVIRONMENT = {"BACKEND_KEY": ENV, "CLIENT_KEY": FORWARDED, "INSPECT_TOKEN": TOKEN}


# --- a backend that quotes whatever it was sent -------------------------------------------------------------------


async def quoting(c: Conversation) -> None:  # noqa: C901 - a table of answers
    request = c.request
    said = request.head.decode("latin-1").replace("\r\n", " ")
    key = request.headers.get("authorization", "none").removeprefix("Bearer ")
    body = json.loads(request.body) if request.body.startswith(b"{") else {}
    what = str(body.get("model", request.target)).partition("-")[2]
    error = {"error": {"message": f"you sent {said}", "type": key, "code": key, "param": key, "hint": {key: said}}}
    odd = {"x_request_id": key, "x_ratelimit_hint": key, "retry_after": key, "location": f"/{key}", "set_cookie": key}
    match what:
        case "text":
            await c.head(x_request_id=key)
            for event in text_events("one"):
                await c.event(event)
            usage = {"total_tokens": 3, KEY: 4, "\ud800": 5, "big": 10**30}
            await c.event({**chunk(), "choices": [], "usage": usage})
            await c.event("[DONE]")
            await c.end()
        case "call":
            await c.stream(*call_events("f", [json.dumps({"a": ARGUMENT})]))
        case "bad call":
            await c.stream(*call_events("f", [json.dumps({KEY: ARGUMENT})]))
        case "no JSON":
            await c.stream(*call_events("f", ['{"a": ' + ARGUMENT]))
        case "page":
            await c.answer(500, f"<html><b>{said}</b></html>".encode(), "text/html", **odd)
        case "page with 200":
            await c.answer(200, f"<html>{said}</html>".encode(), "text/html", **odd)
        case "event" | "event after text":
            await c.head(200, **odd)
            if what == "event after text":
                await c.event(chunk({"content": "one"}))
            await c.event(error)
            await c.end()
        case "long event":
            await c.head()
            # What is cut at 500 and at 80 characters would be cut inside the key.
            await c.event({"error": {"message": "x " * 242 + key, "code": "y" * 64 + key}})
            await c.end()
        case "text event":
            await c.head()
            await c.chunk(f"event: error\ndata: {'x ' * 242}{key}\n\n".encode())
            await c.end()
        case "error with 200":
            await c.answer(200, json.dumps(error).encode(), **odd)
        case "left over":
            await c.head()
            await c.chunk(json.dumps(error).encode())
            await c.end()
        case "odd status":
            await c.raw(f"HTTP/1.1 999 {key}\r\ncontent-length: 0\r\n\r\n".encode())
        case "no HTTP":
            await c.raw(f"HTTP/1.1 200 OK\r\n{key}\r\n{key} : {key}\r\n\r\n".encode())
            await c.until_closed()
        case "bad chunk":
            await c.head()
            await c.raw(f"{key}\r\n{key}\r\n".encode())
            await c.until_closed()
        case "encoding":
            await c.answer(200, b"x", content_encoding=key)
        case "error encoding":
            await c.answer(400, b"x", content_encoding=key)
        case "reset":
            c.reset()
        case "silence":
            await c.until_closed()
        case "finish":
            await c.stream(chunk({"content": "one"}), chunk({}, "error"))
        case _:
            status = int(what) if what.isdigit() else 404
            await c.answer(status, json.dumps(error).encode(), **odd)


WHAT = [
    "text", "call", "bad call", "no JSON", "page", "page with 200", "event", "event after text", "long event",
    "text event", "error with 200", "left over", "odd status", "no HTTP", "bad chunk", "encoding", "error encoding",
    "reset", "silence", "finish", "302", "400", "401", "403", "404", "429", "500", "503",
]  # fmt: skip


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def extra(key: str) -> dict[str, str]:
    """What else a client's head may hold."""
    return {**bearer(key), "cookie": f"s={COOKIE}", "x-mine": "m", "referer": f"http://a/?key={QUERY}"}


def bodies(model: str, stream: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    messages = [{"role": "user", "content": PROMPT}]
    more = {"model": model, "stream": stream}
    yield "/v1/chat/completions", {**more, "messages": messages, "tools": [TOOL]}
    yield "/v1/messages", {**more, "max_tokens": 9, "messages": messages}
    yield "/v1/responses", {**more, "input": PROMPT}
    yield f"/v1/embeddings?key={QUERY}", {**more, "input": PROMPT}


async def exchanges(port: int) -> list[tuple[str, Reply]]:
    """(the key that was shown, the reply) of each."""
    replies: list[tuple[str, Reply]] = []

    async def one(key: str, path: str, body: Any) -> None:
        replies.append((key, await ask(port, body, path, headers=extra(key), seconds=60)))

    for what in WHAT:
        asked = [
            one(key, path, body)
            for name, key in (("l", CLIENT), ("e", CLIENT), ("f", CLIENT), ("w", FORWARDED))
            for stream in (True, False)
            for path, body in bodies(f"{name}-{what}", stream)
        ]
        await asyncio.gather(*asked)
    for headers in (
        {},
        bearer(WRONG),
        {"x-api-key": WRONG},
        {"authorization": "Basic " + base64.b64encode(f"user:{BASIC}".encode()).decode()},
        {"authorization": BASIC, "cookie": COOKIE},
        {"proxy-authorization": f"Bearer {WRONG}"},
    ):
        for path in ("/v1/chat/completions", f"/v1/files?key={QUERY}", "/v1/models"):
            body = None if path.endswith("models") else REQUEST
            replies.append(("", await ask(port, body, path, headers=headers)))
    for path in (
        f"/v1/files?key={QUERY}",
        f"/v1/files/../{QUERY}?key={QUERY}",
        f"/v1/chat/completions?key={QUERY}",
        f"/v1/models?key={QUERY}",
        f"/v2/nothing?key={QUERY}",
        f"/healthz?key={QUERY}",
        f"/metrics?key={QUERY}",
        f"/inspect?key={QUERY}",
        f"/inspect/replies?key={QUERY}",
        f"/v1/files?{QUERY}={QUERY}#{QUERY}",
    ):
        await one(CLIENT, path, None)
    replies.append((HASHED, await chat(port, headers=bearer(HASHED), model="l-text")))
    replies.append((CLIENT, await ask(port, b'{"model": "' + PROMPT.encode(), headers=bearer(CLIENT))))
    replies.append((CLIENT, await ask(port, {"model": 5, "messages": [PROMPT]}, headers=bearer(CLIENT))))
    bad_tool = {"type": "function", "function": {"name": "f", "parameters": {"type": PROMPT}}}
    replies.append((CLIENT, await chat(port, headers=bearer(CLIENT), tools=[bad_tool])))
    for raw in (
        f"GET http://user:{USER}@proxy/v1/files?key={QUERY} HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET /v1/files?key={QUERY} HTTP/1.1\r\nHost: a\r\nHost: b\r\nAuthorization: Bearer {CLIENT}\r\n\r\n",
        f"GET /v1/files?key={QUERY} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {CLIENT}\x00\r\n\r\n",
        f"POST /v1/x?key={QUERY} HTTP/1.1\r\nHost: a\r\nContent-Length: {WRONG}\r\n\r\n",
        f"GET /v1/files?key={QUERY} HTTP/1.1\r\nAuthorization: Bearer {CLIENT}\r\nHo",
        f"POST /v1/x HTTP/1.1\r\nHost: a\r\nx: {CLIENT}\r\nTransfer-Encoding: chunked\r\n\r\n{WRONG}\r\n",
    ):
        async with Client(port) as client:
            await client.send(raw.encode("latin-1"))
            replies.append(("", await client.rest(await client.head())))
    for again in range(2):  # clients that leave: before the answer, and inside their request
        async with Client(port) as client:
            if again:
                await client.ask({**REQUEST, "model": "l-silence"}, headers=extra(CLIENT))
            else:
                await client.send(f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nx: {CLIENT}\r\n".encode())
            await asyncio.sleep(0.1)
            client.leave()
    async with Client(port) as held:  # over a limit of the client's own
        await held.ask({**REQUEST, "model": "l-silence"}, headers=bearer(HASHED))
        await asyncio.sleep(0.1)
        replies.append((HASHED, await chat(port, headers=bearer(HASHED), model="l-text")))
        assert replies[-1][1].status == 429
    return replies


def test_nothing_that_the_process_writes_or_answers_holds_a_secret(tmp_path: Path) -> None:
    async def main() -> None:
        async with Upstream(quoting) as up:
            good = document(up.url, tmp_path)
            path = write_config(tmp_path / "c.toml", good)
            with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-X", "dev", "-m", "proxy", "serve", "--config", str(path),
                    stdout=out, stderr=err, env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
                )  # fmt: skip
                try:
                    port = await listening(tmp_path / "err", process)
                    replies = await exchanges(port)
                    metrics = await ask(port, None, "/metrics")
                    inspected = await inspections(port)
                    # A new configuration that cannot be used, and one that cannot even be read.
                    count = 0
                    for number, text in enumerate(BAD_FILES.values()):
                        path.write_text(text)
                        process.send_signal(signal.SIGHUP)
                        count = await reloaded(tmp_path / "err", number + 1)
                    assert count == len(BAD_FILES)
                finally:
                    process.terminate()
                    await process.wait()
            up.errors.clear()
        logged = (tmp_path / "err").read_text()
        # A good answer on a path that is only passed on is not looked into.
        passed_on = {line["request_id"] for line in exchanges_in(logged) if line["endpoint"] == "passthrough"}
        assert len(exchanges_in(logged)) > 200
        assert len(passed_on) > 100
        assert found(logged, ALL) == []
        assert found((tmp_path / "out").read_text(), ALL) == []
        assert found(metrics.body.decode(), ALL) == []
        assert len(inspected) > 500
        assert found("\n".join(inspected), tuple(secret for secret in ALL if secret != KEY)) == []
        assert {reply.status for _, reply in replies} >= {200, 400, 401, 404, 408, 429, 500, 502, 503, 504}
        for shown, reply in replies:
            if reply.status == 200 and reply.headers["x-request-id"] in passed_on:
                continue
            text = reply.head.decode("latin-1") + reply.body.decode("utf-8", "replace")
            others = tuple(key for key in (*BACKENDS, *CLIENTS) if key != shown)
            assert found(text, others) == [], text
            assert shown == FORWARDED or found(text, (shown,) if shown else ()) == [], text

    uvloop.run(main())


async def inspections(port: int) -> list[str]:
    """All that the inspector says of the exchanges: its list, each reply, each case file."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    entered = await ask(port, f"token={TOKEN}".encode(), "/inspect/login", headers=form)
    cookie = {"cookie": entered.headers["set-cookie"].partition(";")[0]}
    told: list[str] = [(await ask(port, f"token={WRONG}".encode(), "/inspect/login", headers=form)).body.decode()]
    async with Client(port) as client:

        async def get(path: str) -> str:
            await client.ask(None, path, "GET", headers=cookie)
            reply = await client.rest(await client.head(60), 60)
            assert reply.status in (200, 404)
            told.append(reply.head.decode() + reply.body.decode())
            return reply.body.decode()

        after = 0
        while rows := json.loads(await get(f"/inspect/replies?after={after}"))["replies"]:
            for row in rows:
                await get(f"/inspect/replies/{row['number']}")
                await get(f"/inspect/replies/{row['number']}/case")
            after = rows[-1]["number"]
    return told


def exchanges_in(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if '"event":"exchange"' in line]


async def listening(log: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(60):
        while True:
            for line in log.read_text().splitlines():
                if '"event":"listening"' in line:
                    return int(json.loads(line)["address"].rsplit(":", 1)[1])
            assert process.returncode is None, log.read_text()
            await asyncio.sleep(0.05)


async def reloaded(log: Path, count: int) -> int:
    """How often a reload was reported; waits for `count`."""
    async with asyncio.timeout(30):
        while (seen := log.read_text().count('"event":"reload"')) < count:
            await asyncio.sleep(0.02)
    return seen


# --- files that cannot be used ------------------------------------------------------------------------------------

BACKEND = '[[backends]]\nname = "a"\ndialect = "openai-chat"\nbase_url = "http://127.0.0.1:1/v1"\n'

BAD_FILES: dict[str, str] = {
    "user info": f'[[backends]]\nname = "a"\ndialect = "openai-chat"\nbase_url = "http://user:{USER}@h/v1"\n',
    "a query": f'[[backends]]\nname = "a"\ndialect = "openai-chat"\nbase_url = "http://h/v1?key={QUERY}"\n',
    "a key in place of the URL": f'[[backends]]\nname = "a"\ndialect = "openai-chat"\nbase_url = "{LITERAL}"\n',
    "Bearer": BACKEND + f'api_key = "Bearer {LITERAL}"\n',
    "no ASCII": BACKEND + f'api_key = "{LITERAL}\u20ac"\n',
    "a line end": BACKEND + f'api_key = "{LITERAL}\\n"\n',
    "a list": BACKEND + f'api_key = ["{LITERAL}"]\n',
    "a table": BACKEND + f'api_key = {{ value = "{LITERAL}" }}\n',
    "a misspelt key": BACKEND + f'api_kye = "{LITERAL}"\n',
    "an unknown table": BACKEND + f'[backend]\napi_key = "{LITERAL}"\n',
    "beside another header": BACKEND + f'api_key = "{LITERAL}"\nheaders = {{ Authorization = "{HEADER}" }}\n',
    "headers as text": BACKEND + f'headers = "{HEADER}"\n',
    "headers as a list": BACKEND + f'headers = ["{HEADER}"]\n',
    "a header as a list": BACKEND + f'headers = {{ x = ["{HEADER}"] }}\n',
    "a header with a line end": BACKEND + f'headers = {{ x = "{HEADER}\\r\\ny: z" }}\n',
    "a header of a connection": BACKEND + f'headers = {{ host = "{HEADER}" }}\n',
    "a header twice": BACKEND + f'headers = {{ x = "{HEADER}", X = "{HEADER}" }}\n',
    "a client's key as a list": BACKEND + f'[[clients]]\nname = "c"\nkey = ["{CLIENT}"]\n',
    "a client's key with a blank": BACKEND + f'[[clients]]\nname = "c"\nkey = " {CLIENT}"\n',
    "a client's key twice": BACKEND
    + "".join(f'[[clients]]\nname = "{name}"\nkey = "{CLIENT}"\n' for name in ("c", "d")),
    "a token that is short": BACKEND + f'[inspector]\nenabled = true\ntoken = "{TOKEN[:15]}"\n',
    "a token as a list": BACKEND + f'[inspector]\ntoken = ["{TOKEN}"]\n',
    "a token that is a client's key": BACKEND
    + f'[inspector]\ntoken = "{CLIENT}"\n[[clients]]\nname = "c"\nkey = "{CLIENT}"\n',
    "a client's name missing": BACKEND + f'[[clients]]\nkey = "{CLIENT}"\n',
    "a client as text": BACKEND + f'clients = "{CLIENT}"\n',
    "no hash": BACKEND + f'[[clients]]\nname = "c"\nkey = "sha256:{CLIENT}"\n',
    "no quotes": BACKEND + f"api_key = {LITERAL}\n",
    "no closing quote": BACKEND + f'api_key = "{LITERAL}\n',
    "the key twice": BACKEND + f'api_key = "{LITERAL}"\napi_key = "{LITERAL}"\n',
    "a bad escape": BACKEND + f'api_key = "{LITERAL}\\q"\n',
    "a key without a value": BACKEND + f'api_key "{LITERAL}"\n',
    "another mistake beside good secrets": BACKEND
    + f'api_key = "{LITERAL}"\nheaders = {{ x = "{HEADER}" }}\n[limits]\nidle_s = "long"\n'
    + f'[[clients]]\nname = "c"\nkey = "{CLIENT}"\n',
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_FILES)
def test_what_is_wrong_with_a_file_is_told_without_its_secrets(what: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(BAD_FILES[what])
    with pytest.raises(ConfigError) as caught:
        load(path, ENVIRONMENT)
    error: BaseException | None = caught.value
    texts = [str(problem) for problem in caught.value.problems]
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    assert found("\n".join(texts), ALL) == []


def test_a_secret_that_cannot_be_read_is_told_without_it(tmp_path: Path) -> None:
    large, odd = tmp_path / "large", tmp_path / "odd"
    large.write_text(FILE * 2000)
    odd.write_bytes(FILE.encode() + b"\xff")
    for key in (f"file:{large}", f"file:{odd}", "env:ODD_KEY"):
        path = tmp_path / "c.toml"
        path.write_text(BACKEND + f'api_key = "{key}"\n')
        with pytest.raises(ConfigError) as caught:
            load(path, {"ODD_KEY": f"{ENV}\u20ac"})
        assert found(f"{caught.value}{caught.value!r}", ALL) == []


def test_the_commands_tell_of_good_and_bad_files_without_their_secrets(tmp_path: Path) -> None:
    good = write_config(tmp_path / "good.toml", document("http://127.0.0.1:1/v1", tmp_path))
    bad = tmp_path / "bad.toml"
    bad.write_text("\n".join(BAD_FILES[what] for what in ("user info", "Bearer", "no hash", "a list")))
    for arguments in (["check-config", str(good)], ["check-config", str(bad)], ["serve", "--config", str(bad)]):
        done = subprocess.run(
            [sys.executable, "-m", "proxy", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == (0 if arguments[1] == str(good) else 2)
        assert done.stdout + done.stderr
        assert found(done.stdout + done.stderr, ALL) == []


# --- what objects say of themselves -------------------------------------------------------------------------------


def reachable(*roots: object) -> list[object]:
    """The objects of the product's own classes, and pydantic's, that can be reached from `roots`."""
    ours: list[object] = []
    seen: set[int] = set()
    todo = list(roots)
    containers = (dict, list, tuple, set, frozenset, MappingProxyType)
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        is_ours = type(one).__module__.startswith(("proxy.", "pydantic")) and not isinstance(one, type)
        if is_ours:
            ours.append(one)
        if is_ours or isinstance(one, containers):
            todo += gc.get_referents(one)
            if isinstance(one, Mapping):
                todo += one.values()
    return ours


def told_by(one: object) -> Iterator[str]:
    yield repr(one)
    yield str(one)
    yield f"{one}"
    if isinstance(one, BaseModel):
        yield str(one.model_dump(warnings="none"))
        try:
            yield one.model_dump_json(warnings="none")
        except ValueError as error:
            yield f"{error!r} {error}"


def test_no_object_shows_a_secret_of_its_own_accord(tmp_path: Path) -> None:
    async def main() -> None:
        async with Upstream(quoting) as up:
            path = write_config(tmp_path / "c.toml", document(up.url, tmp_path))
            config = load(path, ENVIRONMENT)
            assert config.mask.over(FILE.encode()) == b"*" * len(FILE)
            async with Proxy(up.url) as proxy:
                proxy.service.reload(config)
                async with Client(proxy.port) as client, Client(proxy.port) as other:
                    await client.ask({**REQUEST, "model": "l-silence"}, headers=bearer(CLIENT))
                    await other.ask({**REQUEST, "model": "w-silence"}, headers=bearer(FORWARDED))
                    while len(up.seen) < 2:
                        await asyncio.sleep(0.01)
                    objects = reachable(config, proxy.service, proxy.server, Context(ENVIRONMENT))
                    kinds = {type(one).__name__ for one in objects}
                    assert kinds >= {
                        "Config",
                        "Backend",
                        "Client",
                        "Secret",
                        "ApiKey",
                        "Mask",
                        "Pump",
                        "Entry",
                        "Notes",
                        "Inspector",
                        "Context",
                    }
                    for one in objects:
                        for text in told_by(one):
                            assert found(text, (*BACKENDS, *CLIENTS)) == [], type(one)

    uvloop.run(main())


def test_pydantics_own_error_texts_hide_what_was_given() -> None:
    for given in ({"listen": LITERAL}, {"backends": [{"name": LITERAL, "api_key": [LITERAL]}]}, {LITERAL[:3]: LITERAL}):
        with pytest.raises(ValidationError) as caught:
            Config.model_validate(given, context=Context({}))
        assert LITERAL not in f"{caught.value}{caught.value!r}"


def test_a_fault_shows_nothing_of_what_the_backend_quoted() -> None:
    error = {"message": LITERAL}
    assert LITERAL not in repr(Fault(FaultKind.UPSTREAM_ERROR, "x", error=error, document={"error": error}))


# --- our own mistakes ---------------------------------------------------------------------------------------------


def test_a_trace_says_where_and_what_kind_and_not_which_text() -> None:
    def fails() -> None:
        try:
            raise KeyError(LITERAL)
        except KeyError as error:
            raise ValueError(f"no {PROMPT}") from error

    try:
        fails()
    except ValueError:
        record = logging.LogRecord("wholecall", logging.ERROR, "", 0, "an exchange failed", (), sys.exc_info())
    line = json.loads(logs.JsonLines().format(record))
    assert line["trace"].index("builtins.KeyError") < line["trace"].index("builtins.ValueError")
    assert "in fails" in line["trace"]
    assert found(json.dumps(line), ALL) == []


def test_what_fails_outside_of_an_exchange_is_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(logs.loop_failed)

        async def fails() -> None:
            raise KeyError(LITERAL)

        task = loop.create_task(fails())
        await asyncio.sleep(0.01)
        del task
        gc.collect()
        loop.call_soon(dict[str, str]().__getitem__, LITERAL)
        await asyncio.sleep(0.01)

    uvloop.run(main())
    assert len(caplog.records) == 2
    assert all(record.exc_info for record in caplog.records)
    text = "\n".join(map(logs.JsonLines().format, caplog.records))
    assert found(text, ALL) == []
