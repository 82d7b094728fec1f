"""From a configuration to processes that serve it: this one alone, or a parent with several workers.

The parent binds the sockets, forks the workers, restarts those that die and hands on signals. It runs no event loop, so
that forking is safe at any time; modules are imported before the first fork and shared.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

from proxy.config import Config, ConfigError, warnings
from proxy.server import logs

# prometheus_client reads this when it is imported, and with it decides whether it counts for one process or several:
# it is set, or unset, before anything here imports `lifecycle`.
MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"
# A worker that lived shorter than this died of something that will not pass: the next one waits, longer each time.
SETTLED_S = 10.0
MAX_BACKOFF_S = 30.0
# How much longer than `listen.notice_s` and `listen.drain_s` a worker may take to end before it is killed.
GRACE_S = 2.0
BACKLOG = 2048
MAX_FILES = 65536
EXIT_NOT_STARTED = 3

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Load = Callable[[], Config]

logger = logging.getLogger("wholecall")


class NotStarted(Exception):
    """The server cannot start; the text says why, in one line."""


def serve(load: Load, config: Config, workers: int = 1) -> int:
    """Serve `config` until a signal ends it; the exit status. Raises NotStarted.

    `load` gives the configuration anew and raises ConfigError. Call it from the main thread.
    """
    logs.set_up(config.log.level)
    logs.warn(warnings(config))
    _allow_many_files()
    sockets = bind(config)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until there are handlers: an early SIGHUP would end the process
    fields = {"event": "listening", "address": address_of(sockets.api), "workers": workers}
    if sockets.admin is not None:
        fields["admin"] = address_of(sockets.admin)
    logger.info("listening on %s", address_of(sockets.api), extra={"fields": fields})
    if workers == 1:
        os.environ.pop(MULTIPROCESS_DIR, None)
        from proxy.server.lifecycle import run

        return run(load, config, sockets)
    return Supervisor(load, config, sockets, workers).run()


def _allow_many_files() -> None:
    """Two descriptors a stream: the usual soft limit of 1024 would be reached before `max_streams`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True)
class Sockets:
    """Listening, not yet accepting. `admin` is None where metrics and health share the port."""

    api: socket.socket
    admin: socket.socket | None

    def close(self) -> None:
        self.api.close()
        if self.admin is not None:
            self.admin.close()


def bind(config: Config, port_is_set_by: str = "listen.port or --port (0: a free one)") -> Sockets:
    """Raises NotStarted, whose text says what sets the port."""
    listen = config.listen
    api = _bound(listen.host, listen.port, port_is_set_by)
    try:
        admin = _bound(listen.host, listen.admin_port, "listen.admin_port") if listen.admin_port else None
    except NotStarted:
        api.close()
        raise
    return Sockets(api, admin)


def _bound(host: str, port: int, set_by: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise NotStarted(f"listen.host = {host!r} is no address of this machine: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)  # from here on nobody is refused, even while the workers start
    except OSError as error:
        sock.close()
        what = f"cannot listen on {host} port {port}: {error.strerror}; choose another with {set_by}"
        raise NotStarted(what) from None
    return sock


def as_bound(config: Config, bound: Config) -> tuple[Config, list[str]]:
    """`config` with the addresses of `bound`, whose sockets stay, and the keys of `listen` that this changed."""
    kept = {key: getattr(bound.listen, key) for key in ("host", "port", "admin_port")}
    changed = [key for key, value in kept.items() if getattr(config.listen, key) != value]
    if not changed:
        return config, []
    return config.model_copy(update={"listen": config.listen.model_copy(update=kept)}), changed


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Supervisor:
    """The parent of the workers."""

    def __init__(self, load: Load, config: Config, sockets: Sockets, workers: int) -> None:
        self._load = load
        self._config = config
        self._sockets = sockets
        self._number = workers
        self._alive: dict[int, float] = {}  # process id -> when it was started
        self._restarts: list[float] = []  # when to start a worker again
        self._backoff_s = 0.0
        self._stop_at: float | None = None  # when what is left is killed
        self._status = 0

    def run(self) -> int:
        with tempfile.TemporaryDirectory(prefix="wholecall-metrics-") as directory:
            os.environ[MULTIPROCESS_DIR] = directory
            import proxy.server.lifecycle  # noqa: F401 - imported once, for all workers

            gc.enable()  # see `cli.serve`
            awaited = (*SIGNALS, signal.SIGCHLD)
            signal.pthread_sigmask(signal.SIG_BLOCK, awaited)  # they are waited for, not handled
            for _ in range(self._number):
                self._start()
            while self._alive or self._stop_at is None:
                received = signal.sigtimedwait(awaited, self._pause())
                # Stopped and continued meanwhile (job control, a suspended machine), CPython 3.11 gives a number that
                # is none of these.
                if received is not None and received.si_signo in awaited:
                    self._handle(signal.Signals(received.si_signo))
                self._reap(directory)
                self._start_due()
                if self._stop_at is not None and time.monotonic() >= self._stop_at:
                    self._send(signal.SIGKILL)
        return self._status

    def _pause(self) -> float:
        due = [*self._restarts, time.monotonic() + 1.0]
        if self._stop_at is not None:
            due.append(self._stop_at)
        return max(0.0, min(due) - time.monotonic())

    def _handle(self, number: signal.Signals) -> None:
        if number is signal.SIGHUP:
            # A worker that is started later gets what the others have: the last good configuration.
            with contextlib.suppress(ConfigError):
                self._config, _ = as_bound(self._load(), self._config)
            self._send(number)
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._stop()

    def _stop(self) -> None:
        self._sockets.close()  # or the kernel would go on accepting connections for nobody
        if self._stop_at is None:
            listen = self._config.listen
            self._stop_at = time.monotonic() + listen.notice_s + listen.drain_s + GRACE_S
        self._restarts.clear()
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _start(self) -> None:
        pid = os.fork()
        if pid:
            self._alive[pid] = time.monotonic()
            return
        status = EXIT_NOT_STARTED
        try:
            from proxy.server.lifecycle import run

            # A terminal's interrupt reaches the whole group; the parent alone decides what it means.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
            status = run(self._load, self._config, self._sockets, parent=os.getppid())
        except BaseException:
            logger.exception("a worker failed")
        finally:
            logging.shutdown()
            os._exit(status)  # the parent's own clean-up is not the child's

    def _start_due(self) -> None:
        now = time.monotonic()
        for at in [at for at in self._restarts if at <= now]:
            self._restarts.remove(at)
            self._start()

    def _reap(self, directory: str) -> None:
        from prometheus_client.multiprocess import mark_process_dead  # not before the directory is set

        while self._alive:
            pid, raw = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            started = self._alive.pop(pid, None)
            if started is None:
                continue
            mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]  # its gauges no longer count, its counters do
            if self._stop_at is not None:
                continue
            status = os.waitstatus_to_exitcode(raw)
            now = time.monotonic()
            self._backoff_s = 0.0 if now - started > SETTLED_S else min(MAX_BACKOFF_S, 2 * self._backoff_s or 0.5)
            logger.error("worker %d ended with status %d; another one starts in %g s", pid, status, self._backoff_s)
            self._restarts.append(now + self._backoff_s)
            if status == EXIT_NOT_STARTED and not self._alive:
                self._status = status  # none can start: the next ones would not either
                self._stop()
                return
