"""Content-encoding of an upstream's body, undone with a bound: what comes out per byte that went in is limited.

A kilobyte of a compressed bomb is a gigabyte of text; zlib's own limit is about 1,032 to 1. Streams of one-word events,
compressed as a whole, grow 28 to 41 times (measured), so more than `_GROWTH` is taken for an attack.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from proxy.faults import Fault, FaultKind, limit_fault

_STEP = 1 << 20
_BLOCK = 16_384  # bytes that are read at once: what is behind the end of a member, of 20 bytes or more, is copied
_GROWTH = 100
_FREE = 1 << 20  # bytes out that may have grown from less
_MEMBER = b"\x1f\x8b"  # what a gzip member begins with
_KNOWN = ("br", "compress", "dcb", "dcz", "zstd")  # and not decoded


class Inflater:
    """gzip or deflate bytes in, plain bytes out; at most `limit_bytes` (`max_reply_bytes`) in all."""

    def __init__(self, encoding: str, limit_bytes: int) -> None:
        self._gzip = encoding in ("gzip", "x-gzip")
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16 if self._gzip else zlib.MAX_WBITS)
        self._limit = limit_bytes
        self._in = self._out = 0
        self._begun = b""  # what may be the beginning of a next member
        self._over = False
        self._fresh = not self._gzip  # deflate: some servers send it raw, without the zlib header

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Plain pieces of at most 1 MiB. Behind all that could be read before it: raises Fault (BAD_ENCODING, also for
        a bomb; the limit max_reply_bytes)."""
        for at in range(0, len(data), _BLOCK):
            if self._over or self._out > self._limit:
                break
            block, self._begun = self._begun + data[at : at + _BLOCK], b""
            before = self._inflate.copy(), self._fresh, self._out
            self._in += min(_BLOCK, len(data) - at)
            try:
                yield from self._pieces(block)
            except zlib.error as error:
                given = self._out - before[2]
                self._inflate, self._fresh, self._out = before
                yield from self._before_the_break(block, given)
                broken = f"the upstream's compressed body is broken: {error}"
                raise Fault(FaultKind.BAD_ENCODING, broken) from None
        if self._out > self._limit:
            raise limit_fault("max_reply_bytes", self._limit, "the upstream's reply, decompressed,")

    def _before_the_break(self, block: bytes, given: int) -> Iterator[bytes]:
        """zlib gives nothing of a read that breaks, however much was whole before the break: the block once more, byte
        by byte, without what it has `given`. So the same text comes of a broken body, however it is cut."""
        with suppress(zlib.error):
            for at in range(len(block)):
                byte, self._begun = self._begun + block[at : at + 1], b""
                for piece in self._pieces(byte):
                    if rest := piece[given:]:
                        yield rest
                    given = max(given - len(piece), 0)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        while data and self._out <= self._limit:
            if self._fresh:
                self._fresh = False
                if (data[0] & 0x0F) != 8:
                    self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            if self._inflate.eof:
                if self._gzip and data == _MEMBER[:1]:
                    self._begun = data
                    return
                if not self._gzip or not data.startswith(_MEMBER):
                    self._over = True  # bytes behind the compressed stream are nothing
                    return
                self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)  # the next member (RFC 1952, 2.2)
            piece = self._inflate.decompress(data, _STEP)
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
            self._out += len(piece)
            if self._out > _FREE + _GROWTH * self._in:
                bomb = f"the upstream's compressed body grows more than {_GROWTH}-fold"
                raise Fault(FaultKind.BAD_ENCODING, bomb)
            if piece:
                yield piece

    @property
    def complete(self) -> bool:
        return self._inflate.eof

    @property
    def cut(self) -> bool:
        """Whether a body that ends here ends too early."""
        return self._in > 0 and not self.complete


class Doses:
    """Where to cut a body in gzip or deflate: each dose becomes `plain_bytes` when it is undone, at most a few more.

    It undoes the body too, for the count: that costs little beside what is made of the plain bytes.
    """

    def __init__(self, encoding: str, plain_bytes: int) -> None:
        self._gzip = encoding.strip().lower() != "deflate"
        self._size = plain_bytes
        self._inflate: Any = None  # begins with the next byte

    def end(self, data: bytes, at: int) -> int:
        """Where the dose that begins at `at` ends."""
        block = data[at : at + self._size]  # of as many plain bytes or more
        if self._inflate is None:
            raw = not self._gzip and (block[0] & 0x0F) != 8
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | (16 if self._gzip else 0))
        try:
            self._inflate.decompress(block, self._size)
        except zlib.error:  # before so much came of it, and nothing comes behind it
            return at + len(block)
        left = self._inflate.unconsumed_tail or self._inflate.unused_data
        if self._inflate.eof:
            self._inflate = None
        return at + max(1, len(block) - len(left))


def inflater(encoding: str, limit_bytes: int) -> Inflater | None:
    """The decoder for a Content-Encoding header; None for identity. Raises Fault (BAD_ENCODING) for any other."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflater(name, limit_bytes)
    what = repr(name) if name in _KNOWN else "of an unknown name"  # not in the backend's own words
    raise Fault(
        FaultKind.BAD_ENCODING,
        f"the upstream answered with content-encoding {what} though identity was asked for; "
        "only gzip and deflate are decoded",
    )
