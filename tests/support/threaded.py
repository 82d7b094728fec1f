"""A small HTTP server in a thread, for backends that are a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], port: int = 0, *, quiet: bool = False) -> Iterator[int]:
    """Its port. `quiet`: nothing is printed of clients that read no further."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            if not quiet:
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    server = Server(("127.0.0.1", port), handler)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
