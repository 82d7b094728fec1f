"""The replay backend as a process of its own: `wholecall backend`, and the same for tests in Python."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import uvicorn

from proxy.library import Assembler
from proxy.replay.app import assembled, build, shipped
from proxy.replay.capture import read_capture, read_file
from proxy.replay.commands import EXIT_UNUSABLE
from proxy.replay.recording import Recording


def serve(files: Sequence[Path], host: str, port: int, *, attached: bool = False) -> int:
    """Serve the shipped recordings and those in `files` until a signal, or, if `attached`, until the end of standard
    input. The first line of output is the base URL. The exit status."""
    try:
        recordings = shipped() | {file.stem: _read(file) for file in files}
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except ValueError as error:
        click.echo(str(error), err=True)
        return EXIT_UNUSABLE
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # `create_server` adds the address
        click.echo(f"cannot listen on {host} port {port}: {why}; choose another with --port", err=True)
        return EXIT_UNUSABLE
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # some replies are left unfinished on purpose
    config = uvicorn.Config(
        build(recordings), lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    if attached:
        threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
    name = f"[{host}]" if ":" in host else host
    click.echo(f"http://{name}:{listening.getsockname()[1]}/v1")
    click.echo(f"models: {', '.join(recordings)}")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):  # which uvicorn raises again after it has ended well
        server.run(sockets=[listening])
    return 0


def _end_with_input(server: uvicorn.Server) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    server.should_exit = True


def _read(file: Path) -> Recording:
    """Raises ValueError with one line that names the file."""
    try:
        return read_capture(read_file(file), file.stem)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


class ReplayBackend:
    """A running backend. `url` is its base URL, with /v1 at its end; `models` the names of its recordings, most of them
    damaged. Every request may have any key; the same model always gives the same bytes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.recordings = shipped()
        self.models = tuple(self.recordings)

    def request(self, model: str) -> dict[str, Any]:
        """The chat request that this model's reply answers, with its tools."""
        return {"model": model, **self.recordings[model].request}

    def expected(self, model: str) -> Assembler:
        """What a client should make of the reply: `calls`, each with its verdict, `text`, `finish_reason`, `fault`."""
        return assembled(self.recordings[model])


@contextmanager
def running() -> Iterator[ReplayBackend]:
    """The backend on a free port of 127.0.0.1, in a process that ends with this one at the latest."""
    command = [sys.executable, "-m", "proxy", "backend", "--port", "0", "--attached"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ourselves
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"the replay backend did not start: exit status {process.wait()}")
        try:
            yield ReplayBackend(url)
        finally:
            process.stdin.close()
            process.stdout.close()
