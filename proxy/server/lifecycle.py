"""One serving process: its event loop, signals, draining.

SIGTERM, SIGINT   not ready any more. For `listen.notice_s` requests are taken all the same, and answers say that they
                  end their connection. Then no new connections; running exchanges end within `listen.drain_s`, then
                  with an error in-band. A second one: at once
SIGHUP            load the configuration anew; a bad file changes nothing. Without a file: as SIGTERM
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from proxy.config import Config, ConfigError, warnings
from proxy.server import logs
from proxy.server.app import App
from proxy.server.guard import GuardedProtocol
from proxy.server.state import Service
from proxy.server.supervisor import BACKLOG, EXIT_NOT_STARTED, Load, Sockets, as_bound

# After the drain limit: how long the last error events may take to reach their clients.
FAREWELL_S = 0.5

# An exchange makes hundreds of objects and hardly a cycle: at the default of 700 the search for cycles took 8 % of the
# CPU, and searches at every 5,000 held up some of 256 streams at once for milliseconds (p99 4.7 in place of 3.0).
GC_THRESHOLDS = (50_000, 10, 100)

logger = logging.getLogger("wholecall")


class Server(uvicorn.Server):
    """One process's server on bound sockets. `load` gives the configuration anew at SIGHUP, `parent`
    is the process whose worker this is.

    `serve()` runs it in the current event loop until `stop()`; signals only where that is the main thread's.
    """

    def __init__(self, service: Service, sockets: Sockets, load: Load | None = None, parent: int | None = None) -> None:
        shares_port = sockets.admin is None
        super().__init__(_uvicorn_config(App(service, api=True, admin=shares_port)))
        self.service = service
        self._sockets = sockets
        self._load = load
        self._admin_app = None if shares_port else App(service, api=False, admin=True)
        self._admin_state = ServerState()
        self._admin: asyncio.Server | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._parent = parent

    def stop(self) -> None:
        """Begin to drain; called again: end at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def reload(self) -> None:
        """New exchanges see the new configuration; a bad file is reported and changes nothing."""
        if self._load is None:
            return
        try:
            config, fixed = as_bound(self._load(), self.service.config)
        except ConfigError as error:
            problems = str(error).splitlines()
            fields = {"event": "reload", "problems": problems}
            logger.error("the configuration was not reloaded", extra={"fields": fields})
            return
        if fixed:
            logger.warning("changes of listen.%s only count after a restart", ", listen.".join(fixed))
        if config.telemetry != self.service.config.telemetry:
            logger.warning("changes of telemetry only count after a restart")
        logs.warn(warnings(config))
        logging.getLogger("wholecall").setLevel(config.log.level.upper())
        self.service.reload(config)
        logger.info("the configuration was reloaded", extra={"fields": {"event": "reload"}})

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop()`, then drain."""
        with self._signals():
            try:
                await self._serve([self._sockets.api])
            finally:
                await self.service.aclose()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._admin_app is not None and self._sockets.admin is not None:
            config, state = _uvicorn_config(self._admin_app), self._admin_state
            config.load()
            self._admin = await asyncio.get_running_loop().create_server(
                lambda: GuardedProtocol(config, state, {}), sock=self._sockets.admin, backlog=BACKLOG
            )

    async def on_tick(self, counter: int = 0) -> bool:
        """Set the header fields that all answers have."""
        await super().on_tick(0)
        self._admin_state.default_headers = self.server_state.default_headers
        if self.service.draining:
            self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        return False

    async def main_loop(self) -> None:
        while not self._stopping.is_set():
            await self.on_tick()
            if self._parent is not None and os.getppid() != self._parent:
                return  # the parent was killed: nobody would ever stop this worker
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Give notice, then drain: exchanges may end within `listen.drain_s`, then they are ended. The admin port stays
        to the last."""
        service = self.service
        service.draining = True
        await self._give_notice(service.config.listen.notice_s)
        for server in self.servers:
            server.close()
        self._sockets.api.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()  # idle ones are closed, the others close after their answer
        drain_s = service.config.listen.drain_s
        logger.info("draining", extra={"fields": {"event": "drain", "running": service.admission.running}})
        if not await self._idle_within(drain_s, hurry=True):
            for pump in list(service.pumps):
                pump.shut_down()
            await self._idle_within(FAREWELL_S, hurry=False)
        for connection in [*self.server_state.connections, *self._admin_state.connections]:
            connection.transport.abort()
        if self._admin is not None:
            self._admin.close()
        await self._idle_within(FAREWELL_S / 2, hurry=False)
        for task in [*self.server_state.tasks, *self._admin_state.tasks]:
            task.cancel()

    async def _give_notice(self, seconds: float) -> None:
        """Whoever asks now is answered, and asks on another connection next time. No connection is closed that might
        just be used."""
        until = time.monotonic() + seconds
        for connection in self.server_state.connections:
            cycle: RequestResponseCycle | None = cast(GuardedProtocol, connection).cycle  # None before the first
            if cycle is not None and not cycle.response_started:
                cycle.keep_alive = False  # and its head will say so
        while (left := until - time.monotonic()) > 0 and not self._hurry.is_set():
            await self.on_tick()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, 1.0)):
                    await self._hurry.wait()

    async def _idle_within(self, seconds: float, hurry: bool) -> bool:
        """Whether all connections have come to their end within that time."""
        until = time.monotonic() + seconds
        state = self.server_state
        while state.tasks or state.connections:
            if time.monotonic() >= until or (hurry and self._hurry.is_set()):
                return False
            await asyncio.sleep(0.01)
        return True

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGTERM: self.stop, signal.SIGHUP: self.stop if self._load is None else self.reload}
        if self._parent is None:
            handlers[signal.SIGINT] = self.stop
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)


def _uvicorn_config(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=GuardedProtocol,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
    )


def run(load: Load, config: Config, sockets: Sockets, parent: int | None = None) -> int:
    """Serve in this process until a signal ends it; the exit status."""
    import uvloop

    logs.set_up(config.log.level)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(logs.loop_failed)
        service = Service(config)
        await service.start()
        await Server(service, sockets, load, parent).serve()

    gc.freeze()  # what was imported stays: the collector need not look at it again and again
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    try:
        uvloop.run(main())
    except (RuntimeError, OSError) as error:
        logger.error("not started: %s", error)
        return EXIT_NOT_STARTED
    finally:
        sockets.close()
    return 0
