"""Certificates for servers of tests, and an authority that the proxy can be told to trust."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


class Authority:
    """`file` is its certificate, for SSL_CERT_FILE."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self.file = folder / "authority.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def server(self, host: str = "127.0.0.1", *, expired: bool = False) -> ssl.SSLContext:
        """A server's context with a certificate for this host."""
        now = datetime.now(UTC)
        day = timedelta(days=1)
        certificate = self._ca.issue_cert(host, not_before=now - 3 * day, not_after=now - day if expired else now + day)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        return context
