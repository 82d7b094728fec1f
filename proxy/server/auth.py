"""Who asks: the key in a request's headers, and the configured client it belongs to."""

from __future__ import annotations

from proxy.config import Client, Config
from proxy.faults import Fault, FaultKind
from proxy.server.upstream import Headers


def presented_key(headers: Headers) -> str | None:
    """The credential of `Authorization: Bearer KEY` or `x-api-key: KEY`; None where there is none."""
    fallback = None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and key.strip():
                return key.strip().decode("latin-1")
        elif name == b"x-api-key" and value.strip():
            fallback = value.strip().decode("latin-1")
    return fallback


def identify(config: Config, key: str | None) -> Client | None:
    """The client that has the key; None where nobody is configured, so that anyone may ask.

    Raises Fault (401) for a missing or unknown key.
    """
    if not config.clients:
        return None
    if key is None:
        raise Fault(
            FaultKind.INVALID_API_KEY,
            "this proxy asks for a key; send one in Authorization: Bearer KEY or in x-api-key",
        )
    client = config.client_for(key)
    if client is None:
        raise Fault(FaultKind.INVALID_API_KEY, "this key belongs to no client of this proxy; check it")
    return client
