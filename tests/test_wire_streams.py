"""JSON lines, and the elements of one JSON array, however they are cut; and which of them a body is."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.faults import Fault
from proxy.model.findings import Quirk
from proxy.wire.body import BodyReader, Framing
from proxy.wire.jsonarray import ArrayDecoder
from proxy.wire.jsonscan import items
from proxy.wire.ndjson import NdjsonDecoder

LIMIT = 1 << 20
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(['"]', "\\", "},{", "[,"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
CUTS = st.lists(st.integers(0, 2000), max_size=12)


def cuts(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(a % (len(data) + 1) for a in at)})
    return [data[a:b] for a, b in pairwise(edges)]


def read(decoder: NdjsonDecoder | ArrayDecoder | BodyReader, pieces: list[bytes]) -> list[bytes]:
    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    return [frame.data for frame in (*frames, *decoder.close())]


# --- lines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", []),
        (b"\n\r\n \n", []),
        (b"{1}\n{2}\n", [b"{1}", b"{2}"]),
        (b"{1}\r\n\r\n{2}", [b"{1}", b"{2}"]),
        (b"\xe2\x80\xa8{1}\n", [b"\xe2\x80\xa8{1}"]),
        (b"{1}\r{2}\n", [b"{1}\r{2}"]),
    ],
)
def test_lines_end_in_lf_or_crlf_and_the_last_needs_no_end(body: bytes, expected: list[bytes]) -> None:
    assert read(NdjsonDecoder(LIMIT), [body]) == expected
    assert read(NdjsonDecoder(LIMIT), [body[i : i + 1] for i in range(len(body))]) == expected


@given(st.binary(max_size=300), CUTS)
def test_junk_gives_the_same_lines_however_it_is_cut(body: bytes, at: list[int]) -> None:
    assert read(NdjsonDecoder(LIMIT), cuts(body, at)) == read(NdjsonDecoder(LIMIT), [body])


@pytest.mark.parametrize("body", [b"x" * 1001, b"x" * 1001 + b"\n", b"y\n" + b"x" * 2000])
def test_a_line_beyond_the_limit_ends_in_a_fault_that_names_it(body: bytes) -> None:
    for pieces in ([body], [body[i : i + 7] for i in range(0, len(body), 7)]):
        with pytest.raises(Fault, match=r"max_event_bytes.*1000"):
            read(NdjsonDecoder(1000), pieces)


# --- array -------------------------------------------------------------------------------------------------------


@given(st.lists(VALUES, max_size=6), CUTS, st.sampled_from([None, 1]))
def test_the_elements_of_an_array_come_whole_however_it_is_cut(values: list[Any], at: list[int], indent: Any) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    body = b" \r\n" + text.encode("utf-8", "surrogatepass") + b"\n"
    found = read(ArrayDecoder(LIMIT), cuts(body, at))
    assert [json.loads(element.decode("utf-8", "surrogatepass")) for element in found] == values
    assert [json.loads(element) for element in items(text)] == values


@given(st.binary(max_size=300), CUTS)
def test_junk_gives_the_same_elements_however_it_is_cut(body: bytes, at: list[int]) -> None:
    body = b"[" + body
    assert read(ArrayDecoder(LIMIT), cuts(body, at)) == read(ArrayDecoder(LIMIT), [body])


def test_an_element_is_given_at_its_last_bracket() -> None:
    decoder = ArrayDecoder(LIMIT)
    assert [f.data for f in decoder.feed(b'[{"a": "]"}')] == [b'{"a": "]"}']
    assert decoder.feed(b"\n,\r\n[1,") == []
    assert [f.data for f in decoder.feed(b"2]")] == [b"[1,2]"]
    assert decoder.feed(b"] {x}") == []
    assert decoder.leftover == b"{x}"


def test_what_is_pending_when_the_body_ends_is_given_as_it_is() -> None:
    assert read(ArrayDecoder(LIMIT), [b'[{"a": 1}, {"b": ']) == [b'{"a": 1}', b'{"b":']


def test_an_element_beyond_the_limit_ends_in_a_fault_that_names_it() -> None:
    body = b'[{"a": 1}, {"b": "' + b"x" * 1001 + b'"}]'
    for pieces in ([body], [body[i : i + 7] for i in range(0, len(body), 7)]):
        with pytest.raises(Fault, match=r"max_event_bytes.*1000"):
            read(ArrayDecoder(1000), pieces)


def test_blanks_between_elements_are_not_kept() -> None:
    decoder = ArrayDecoder(1000)
    decoder.feed(b"[1,")
    for _ in range(100):
        decoder.feed(b" " * 500)
    assert [f.data for f in decoder.feed(b"2]")] == [b"2"]


@pytest.mark.parametrize("element", [b'"' + b"\\\\" * 100_000 + b'"', b"[" * 100_000 + b"]" * 100_000])
def test_a_drip_of_single_bytes_costs_no_more_than_its_length(element: bytes) -> None:
    decoder = ArrayDecoder(LIMIT)
    before = time.process_time()
    found = read(decoder, [b"[", *(element[i : i + 1] for i in range(len(element))), b"]"])
    assert found == [element]
    assert time.process_time() - before < 5


# --- which of them -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framing", "body", "kind", "frames"),
    [
        ("lines", b'{"a":1}\n{"b":2}', "lines", [b'{"a":1}', b'{"b":2}']),
        ("lines", b'\xef\xbb\xbf\r\n{"a":1}\r\n', "lines", [b'{"a":1}']),
        ("lines", b'{"a": {\n"b": " x  y "}}\n', "document", [b'{"a": {\n"b": " x  y "}}\n']),
        ("lines", b"[1]", "document", [b"[1]"]),
        ("lines", b'data: {"a":1}\n\n', "events", [b'{"a":1}']),
        ("lines", b"<html>", "page", [b"<html>"]),
        ("array", b"[1,2]", "array", [b"1", b"2"]),
        ("array", b'\xef\xbb\xbf [{"a":1}]', "array", [b'{"a":1}']),
        ("array", b'{"a":1}', "document", [b'{"a":1}']),
        ("array", b'data: {"a":1}\n\n', "events", [b'{"a":1}']),
        ("events", b"[1,2]", "document", [b"[1,2]"]),
        ("events", b'{"a":1}\n{"b":2}', "document", [b'{"a":1}\n{"b":2}']),
    ],
)
def test_the_body_itself_says_what_it_is(framing: Framing, body: bytes, kind: str, frames: list[bytes]) -> None:
    for step in (1, 3, len(body)):
        quirks: list[Quirk] = []
        reader = BodyReader(LIMIT, LIMIT, quirks.append, framing)
        found = read(reader, [body[i : i + step] for i in range(0, len(body), step)])
        assert (reader.kind, [f.strip() for f in found]) == (kind, [f.strip() for f in frames])
        assert quirks == ([Quirk.BOM] if body.startswith(b"\xef\xbb\xbf") else [])
