"""Real processes for tests: a scripted upstream on a real socket, and the proxy in front of it.

Everything listens on 127.0.0.1 and on ports that were free a moment ago.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from support.threaded import serving

WHOLECALL = Path(sys.executable).with_name("wholecall")  # the command as installed beside this Python
WAIT_S = 60.0  # for a process to come up or an expected state to show: generous, since machines are shared


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str) -> tuple[int, bytes]:
    """Status and body, whatever the status; (0, b"") where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""


def until(state: Callable[[], bool], what: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for a state; fail with `what` if it does not come, at once if `process` ended."""
    end = time.monotonic() + WAIT_S
    while not state():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"{what}: the process ended with {process.returncode}")
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {WAIT_S:g} s")
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Script:
    """What the upstream answers: SSE payloads or one JSON document. Not `clean`: it closes inside the body."""

    events: tuple[str, ...] = ()
    document: str = ""
    clean: bool = True


@dataclass(slots=True)
class Upstream:
    """A running scripted upstream; a request's `model` picks the script. `seen` holds the requests' bodies."""

    url: str
    seen: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def upstream(streams: Mapping[str, Script], documents: Mapping[str, Script]) -> Iterator[Upstream]:
    """`streams` answer requests with `stream`, `documents` those without; `{}` for an unknown model."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.seen.append(body)
            script = (streams if body.get("stream") else documents).get(body["model"], Script(document="{}"))
            self.send_response(200)
            if script.events:
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for event in script.events:
                    self.chunk(f"data: {event}\n\n".encode())
                if script.clean:
                    self.wfile.write(b"0\r\n\r\n")
                else:
                    self.close_connection = True
            else:
                data = script.document.encode()
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    with serving(Handler) as port:
        found = Upstream(f"http://127.0.0.1:{port}/v1")
        yield found


@contextmanager
def proxy(
    folder: Path, upstream_url: str, policy: str = "", arguments: tuple[str, ...] = (), routes: str = ""
) -> Iterator[str]:
    """`wholecall serve` with one backend; gives its root URL. `policy`: lines of TOML for [policy]; `routes`: tables
    [[routes]] before the one for all models."""
    port = free_port()
    config = folder / "wholecall.toml"
    config.write_text(
        f'[listen]\nhost = "127.0.0.1"\nport = {port}\n\n[policy]\n{policy}\n\n'
        f'[[backends]]\nname = "scripted"\ndialect = "openai-chat"\nbase_url = "{upstream_url}"\napi_key = ""\n\n'
        f"{routes}\n"
        '[[routes]]\nmodels = ["*"]\nbackends = ["scripted"]\n'
    )
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen([WHOLECALL, "serve", "--config", str(config), *arguments], stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: get(f"{url}/readyz")[0] == 200, "the proxy is ready", process)
            yield url
        except AssertionError as error:
            error.add_note((folder / "proxy.log").read_text(errors="replace")[-4000:])
            raise
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
