"""Framing, bodies and content-encoding: what bytes are, however they are cut."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.faults import Fault
from proxy.model.findings import Quirk
from proxy.wire.body import BodyReader
from proxy.wire.encoding import Doses, inflater
from proxy.wire.jsondoc import (
    MAX_DOCUMENTS,
    NotJson,
    documents,
    doubled_keys,
    dump,
    join_surrogates,
    leading_documents,
    load,
    one_line,
)
from proxy.wire.sse import Frame, SseDecoder

LIMIT = 1 << 20


def events(pieces: list[bytes], limit: int = LIMIT) -> tuple[list[Frame], list[Quirk], bytes]:
    quirks: list[Quirk] = []
    decoder = SseDecoder(limit, quirks.append)
    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    frames += decoder.close()
    decoder.settle()
    return frames, quirks, bytes(decoder.leftover)


def cuts(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(a % (len(data) + 1) for a in at)})
    return [data[a:b] for a, b in pairwise(edges)]


TABLE: list[tuple[bytes, list[Frame]]] = [
    (b"data: a\n\n", [Frame(b"", b"a")]),
    (b"data:a\n\ndata: b\n\n", [Frame(b"", b"a"), Frame(b"", b"b")]),
    (b"data: a\r\n\r\ndata: b\r\r", [Frame(b"", b"a"), Frame(b"", b"b")]),
    (b"data: a\ndata: b\n\n", [Frame(b"", b"a\nb")]),
    (b"event: x\ndata: a\nid: 1\nretry: 5\n\n", [Frame(b"x", b"a")]),
    (b": ping\n\ndata: a\n\n:\n\n", [Frame(b"", b"a")]),
    (b"data\n\n", [Frame(b"", b"")]),
    (b"data:  two blanks\n\n", [Frame(b"", b" two blanks")]),
    (b"\xef\xbb\xbfdata: a\n\n", [Frame(b"", b"a")]),
    (b"data: \xe2\x80\xa8 is no line end\n\n", [Frame(b"", b"\xe2\x80\xa8 is no line end")]),
    (b"data: pending", [Frame(b"", b"pending")]),
    (b"\n\n\ndata: a\n\n\n\n", [Frame(b"", b"a")]),
]


@pytest.mark.parametrize(("body", "expected"), TABLE)
def test_events_are_framed_as_the_standard_says_at_every_cut(body: bytes, expected: list[Frame]) -> None:
    for cut in range(len(body)):
        assert events([body[:cut], body[cut:]])[0] == expected
    assert events([body[i : i + 1] for i in range(len(body))])[0] == expected


@given(st.binary(max_size=300), st.lists(st.integers(0, 1000), max_size=12))
def test_junk_gives_the_same_events_however_it_is_cut(body: bytes, at: list[int]) -> None:
    assert events(cuts(body, at)) == events([body])


def test_an_error_field_and_lines_that_are_no_fields_are_kept() -> None:
    frames, quirks, leftover = events([b'error: {"message": "x"}\n\n{"error": 1,\n"code": 2}\n'])
    assert frames == [Frame(b"error", b'{"message": "x"}')]
    assert quirks == [Quirk.ERROR_FIELD]
    assert leftover == b'{"error": 1,\n"code": 2}\n'


def test_an_endless_line_ends_in_a_fault_that_names_the_limit() -> None:
    decoder = SseDecoder(1000, lambda quirk: None)
    with pytest.raises(Fault, match=r"max_event_bytes.*1000"):
        for _ in range(100):
            decoder.feed(b"data: " + b"x" * 50)


def test_a_drip_of_single_bytes_costs_no_more_than_its_length() -> None:
    decoder = SseDecoder(LIMIT, lambda quirk: None)
    whole = b"data: " + b"x" * 200_000 + b"\n\n"
    frames = [frame for byte in whole for frame in decoder.feed(bytes((byte,)))]
    assert [len(frame.data) for frame in frames] == [200_000]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'  {"a": 1}', "document"),
        (b"\xef\xbb\xbf[1]", "document"),
        (b"<!doctype html>", "page"),
        (b": ping\n\n", "events"),
        (b"data: {}\n\n", "events"),
        (b"\n \n", "unknown"),
    ],
)
def test_a_body_is_told_by_its_first_significant_byte(body: bytes, kind: str) -> None:
    for cut in range(len(body)):
        reader = BodyReader(LIMIT, LIMIT, lambda quirk: None)
        reader.feed(body[:cut])
        reader.feed(body[cut:])
        assert reader.kind == kind


def test_a_document_over_its_limit_ends_in_a_fault_that_names_it() -> None:
    reader = BodyReader(LIMIT, 1000, lambda quirk: None)
    with pytest.raises(Fault, match="max_held_bytes"):
        for _ in range(100):
            reader.feed(b'{"a": "' + b"x" * 50)


@pytest.mark.parametrize("encoding", ["gzip", "gzip members", "deflate", "raw"])
def test_compressed_bodies_are_decoded_at_every_cut(encoding: str) -> None:
    text = b"data: hello\n\n" * 20
    raw = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": lambda: gzip.compress(text),
        "gzip members": lambda: gzip.compress(text[:39]) + gzip.compress(b"") + gzip.compress(text[39:]),
        "deflate": lambda: zlib.compress(text),
        "raw": lambda: raw.compress(text) + raw.flush(),
    }[encoding]()
    for cut in range(len(packed)):
        inflate = inflater("deflate" if encoding == "raw" else encoding.split()[0], LIMIT)
        assert inflate is not None
        assert b"".join([*inflate.feed(packed[:cut]), *inflate.feed(packed[cut:])]) == text
        assert inflate.complete


@pytest.mark.parametrize("behind", [b"\x1f", b"\x1fx", b"\0" * 9, b"x" + gzip.compress(b"late")])
def test_what_stands_behind_a_compressed_body_is_nothing_at_every_cut(behind: bytes) -> None:
    packed = gzip.compress(b"text") + behind
    for cut in range(len(packed)):
        inflate = inflater("gzip", LIMIT)
        assert inflate is not None
        assert b"".join([*inflate.feed(packed[:cut]), *inflate.feed(packed[cut:])]) == b"text"
        assert inflate.complete


@pytest.mark.parametrize("encoding", ["gzip", "gzip members", "deflate"])
@pytest.mark.parametrize("broken", ["checksum", "data", "member"])
def test_a_broken_body_gives_what_was_whole_before_the_break_at_every_cut(encoding: str, broken: str) -> None:
    text = b"".join(b"data: hello %d\n\n" % number for number in range(40))
    pack = zlib.compress if encoding == "deflate" else partial(gzip.compress, mtime=0)
    packed = pack(text[:300]) + pack(text[300:]) if encoding == "gzip members" else pack(text)
    match broken:
        case "checksum":
            packed = packed[:-3] + bytes([packed[-3] ^ 1]) + packed[-2:]
        case "data":  # 11 is no type of a block (RFC 1951, 3.2.3)
            flushed = zlib.compressobj(wbits=15 if encoding == "deflate" else 31)
            packed = flushed.compress(text) + flushed.flush(zlib.Z_FULL_FLUSH) + b"\x07" + packed[10:]
        case "member":
            packed = packed[:2] + b"\x09" + packed[3:]

    def read(*reads: bytes) -> tuple[bytes, str]:
        inflate = inflater(encoding.split()[0], LIMIT)
        assert inflate is not None
        pieces: list[bytes] = []
        with pytest.raises(Fault, match="compressed body is broken") as told:
            for data in reads:
                pieces.extend(inflate.feed(data))
        return b"".join(pieces), str(told.value)

    whole = read(packed)
    if broken == "data" or (broken == "checksum" and encoding != "gzip members"):
        assert whole[0] == text
    for cut in range(1, len(packed)):
        assert read(packed[:cut], packed[cut:]) == whole
    assert read(*(packed[at : at + 1] for at in range(len(packed)))) == whole


def test_many_members_in_one_read_cost_no_more_than_in_many_reads() -> None:
    packed = gzip.compress(b"", mtime=0) * 50_000

    def spent(step: int) -> float:
        inflate = inflater("gzip", LIMIT)
        assert inflate is not None
        began = time.process_time()
        assert not any(list(inflate.feed(packed[at : at + step])) for at in range(0, len(packed), step))
        return time.process_time() - began

    assert spent(len(packed)) < 4 * (spent(4_096) + 0.01)


def test_a_bomb_is_stopped_early_and_a_large_body_at_the_limit() -> None:
    inflate = inflater("gzip", 50_000_000)
    assert inflate is not None
    size = 0
    with pytest.raises(Fault, match="grows more than 100-fold"):
        for piece in inflate.feed(gzip.compress(bytes(100_000_000))):
            size += len(piece)
    assert size <= 3 << 20
    inflate = inflater("gzip", 500_000)
    assert inflate is not None
    with pytest.raises(Fault, match=r"max_reply_bytes"):
        list(inflate.feed(gzip.compress(b"".join(b"%d " % number for number in range(200_000)))))


@pytest.mark.parametrize("encoding", ["gzip", "gzip members", "deflate", "raw", "broken"])
def test_a_dose_of_a_compressed_body_is_bounded_by_what_it_becomes(encoding: str) -> None:
    varied = b"".join(b"data: hello %d\n\n" % (number * number) for number in range(40_000))
    text = bytes(1_000_000) + varied + bytes(1_000_000)
    raw = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": lambda: gzip.compress(text),
        "gzip members": lambda: b"".join(gzip.compress(text[at : at + 99_999]) for at in range(0, len(text), 99_999)),
        "deflate": lambda: zlib.compress(text),
        "raw": lambda: raw.compress(text) + raw.flush(),
        "broken": lambda: gzip.compress(text)[:-9] + b"junk",
    }[encoding]()
    name = "deflate" if encoding in ("deflate", "raw") else "gzip"
    inflate, doses, at, came = inflater(name, 4 * LIMIT), Doses(name, 8192), 0, []
    assert inflate is not None
    with suppress(Fault):
        while at < len(packed):
            begin, at = at, doses.end(packed, at)
            came.append(b"".join(inflate.feed(packed[begin:at])))
    assert text.startswith(b"".join(came))
    assert encoding == "broken" or inflate.complete
    assert max(map(len, came)) < 16_384
    assert len(came) < len(text) / 4096 + 100


def test_an_unknown_encoding_is_refused_and_named() -> None:
    with pytest.raises(Fault, match="br"):
        inflater("br", LIMIT)
    with pytest.raises(Fault, match="of an unknown name"):
        inflater("sk-quoted-by-the-backend", LIMIT)
    assert inflater("identity", LIMIT) is None


def test_glued_documents_are_taken_apart_and_others_refused() -> None:
    assert documents(b'{"a":1}\n{"b":2}') == ([{"a": 1}, {"b": 2}], [Quirk.EVENTS_GLUED])
    assert documents(b'{"a":"\\ud83d"}')[0] == [{"a": "\ud83d"}]
    for bad in (b"", b"{", b'{"a":1}x', b"[" * 100_000):
        with pytest.raises(NotJson):
            documents(bad)


@pytest.mark.parametrize("read", [documents, leading_documents])
def test_no_more_documents_are_read_than_a_long_reply_has_chunks(read: Callable[[bytes], tuple[Any, ...]]) -> None:
    assert len(read(b"{}\n" * MAX_DOCUMENTS)[0]) == MAX_DOCUMENTS
    with pytest.raises(NotJson, match="more than 65536 documents in a row"):
        read(b"[]" * 4_000_000)


@pytest.mark.parametrize("levels", [241, 900, 100_000])
@pytest.mark.parametrize("read", [documents, leading_documents])
def test_a_deep_document_among_others_is_refused(read: Callable[[bytes], tuple[Any, ...]], levels: int) -> None:
    with pytest.raises(NotJson, match=r"^nested too deeply: over 240 levels$"):
        read(b'{"a":1}' + b"[" * levels + b"]" * levels)


def test_integers_are_read_and_written_whole() -> None:
    text = b'{"id":123456789012345678901234567890}'
    assert dump(load(text)) == text


@pytest.mark.parametrize("bad", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000])
def test_what_is_nested_too_deeply_is_refused_in_plain_words(bad: bytes) -> None:
    with pytest.raises(NotJson, match=r"^nested too deeply: over 240 levels$"):
        load(bad)


def test_line_separators_are_escaped_so_that_the_document_means_the_same() -> None:
    document = {"a": "x\u2028y\u2029z\u0085"}
    out = one_line(json.dumps(document, ensure_ascii=False).encode())
    assert out.decode().splitlines() == [out.decode()]
    assert json.loads(out) == document


def test_halves_of_a_character_are_joined_and_a_lone_one_replaced() -> None:
    assert join_surrogates("a\ud83d\ude80b") == "a\U0001f680b"
    assert join_surrogates("a\ud83d") == "a\ufffd"


@pytest.mark.parametrize(
    ("data", "doubled"),
    [
        (b'{"a":1,"b":{"a":1}}', False),
        (b'{"a":1,"\\u0061":2}', True),
        (b'{"x":[[{"a":1,"a":2}]]}', True),
        (b'{"function":{"arguments":{"a":1,"a":2}}}', False),
        (b'{"function":{"arguments":{}, "arguments":{}}}', True),
        (b"no JSON", False),
    ],
)
def test_doubled_keys_are_seen_at_every_level_but_inside_arguments(data: bytes, doubled: bool) -> None:
    assert doubled_keys(data, frozenset({"arguments"})) is doubled


def test_a_broken_document_that_is_too_deep_is_said_to_be_so_on_any_stack() -> None:
    """The parser gives up at a depth that depends on how deep the stack is that it is called on."""

    def at(depth: int) -> str:
        if depth:
            return at(depth - 1)
        with pytest.raises(NotJson) as refused:
            documents(b"[" * 800 + b"x")
        return str(refused.value)

    assert {at(0), at(100), at(300)} == {"nested too deeply: over 240 levels"}
