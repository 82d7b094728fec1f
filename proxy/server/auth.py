"""Who asks: the key in a request's headers, the configured client it belongs to, and the pages of browsers."""

from __future__ import annotations

import re
from functools import lru_cache

from proxy.config import Client, Config, is_loopback
from proxy.faults import Fault, FaultKind
from proxy.server.upstream import Headers

# Names that nobody can give to a page of theirs: without a dot, of a top level that is reserved (RFC 2606, 6762, 8375;
# .internal and .corp by ICANN) or that home and office networks use and the root has not, and addresses.
_OWN_TOP = rb"localhost|local|internal|test|corp|home|lan|intranet|localdomain|private|home\.arpa"
_OWN_NAME = re.compile(
    rb"(?:[^.]*|[^:]*\.(?:%b)|[0-9]{1,3}(?:\.[0-9]{1,3}){3})\.?(?::[0-9]*)?|\[[^\]]*\](?::[0-9]*)?" % _OWN_TOP,
    re.IGNORECASE,
)


@lru_cache(maxsize=256)
def is_rebound(listen_host: str, host: bytes, allowed: tuple[str, ...] = ()) -> bool:
    """Whether a public name leads to a proxy that listens on this machine's own address alone, as an attacker's does
    for his page in a browser here (DNS rebinding): to the browser that page and the proxy are one site then, and
    nothing else tells. Who listens on the network too may be asked over loopback by any name: by a mesh's sidecar.
    `allowed`: `listen.hosts`."""
    if not is_loopback(listen_host) or _OWN_NAME.fullmatch(host) is not None:
        return False
    return host.partition(b":")[0].rstrip(b".").lower().decode("latin-1") not in allowed


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
