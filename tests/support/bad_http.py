"""Requests that are no good HTTP, or that smuggle: each is refused with status 400."""

from __future__ import annotations

import json

from support.client import REQUEST

PATH = "/v1/chat/completions"
BODY = json.dumps(REQUEST).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)


def raw(*fields: bytes, body: bytes = BODY, line: bytes = b"POST /v1/chat/completions HTTP/1.1") -> bytes:
    return b"\r\n".join([line, *fields]) + b"\r\n\r\n" + body


REFUSED = {
    "length and chunked": raw(b"Host: a", b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunked and length": raw(b"Host: a", b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"),
    "two equal lengths": raw(b"Host: a", LENGTH.strip(), LENGTH.strip()),
    "two different lengths": raw(b"Host: a", b"Content-Length: 1", b"Content-Length: 2"),
    "a list of lengths": raw(b"Host: a", b"Content-Length: 2, 2"),
    "a negative length": raw(b"Host: a", b"Content-Length: -1"),
    "a signed length": raw(b"Host: a", b"Content-Length: +5"),
    "a length in hex": raw(b"Host: a", b"Content-Length: 0x10"),
    "obs-fold": raw(b"Host: a", b"X-A: 1\r\n folded", LENGTH.strip()),
    "bare LF": b"POST /v1/chat/completions HTTP/1.1\nHost: a\n" + LENGTH.replace(b"\r", b"") + b"\n" + BODY,
    "a blank before the colon": raw(b"Host : a", LENGTH.strip()),
    "no Host": raw(LENGTH.strip()),
    "two Hosts": raw(b"Host: a", b"Host: b", LENGTH.strip()),
    "two equal Hosts": raw(b"Host: a", b"Host: a", LENGTH.strip()),
    "gzip, chunked": raw(b"Host: a", b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "identity": raw(b"Host: a", b"Transfer-Encoding: identity", body=b"0\r\n\r\n"),
    "chunked twice": raw(b"Host: a", b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "xchunked": raw(b"Host: a", b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "chunked in HTTP/1.0": raw(
        b"Host: a", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n", line=b"POST /v1/chat/completions HTTP/1.0"
    ),
    "an absolute target": raw(b"Host: a", LENGTH.strip(), line=b"POST http://b/v1/chat/completions HTTP/1.1"),
    "an asterisk": raw(b"Host: a", body=b"", line=b"OPTIONS * HTTP/1.1"),
    "CONNECT": raw(b"Host: a", body=b"", line=b"CONNECT b:443 HTTP/1.1"),
    "another protocol": raw(b"Host: a", LENGTH.strip(), line=b"POST /v1/chat/completions HTTQ/1.1"),
    "HTTP/2.0": raw(b"Host: a", LENGTH.strip(), line=b"POST /v1/chat/completions HTTP/2.0"),
    "an upgrade, chunked": raw(
        b"Host: a", b"Connection: upgrade", b"Upgrade: h2c", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"
    ),
    "a NUL in a header": raw(b"Host: a", b"X-A: \x00", LENGTH.strip()),
    "a bare CR in a header": raw(b"Host: a", b"X-A: 1\rX-B: 2", LENGTH.strip()),
    "an 8-bit target": raw(b"Host: a", LENGTH.strip(), line=b"POST /v1/\xff HTTP/1.1"),
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "a chunk size that is no number": raw(b"Host: a", b"Transfer-Encoding: chunked", body=b"zz\r\nabc\r\n0\r\n\r\n"),
    "a chunk without its end": raw(b"Host: a", b"Transfer-Encoding: chunked", body=b"3\r\nabcdef\r\n0\r\n\r\n"),
}
