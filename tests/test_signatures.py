"""A thought signature in a call id comes back as it was, and no other id is taken apart."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.signatures import carry, split

IDS = st.text("ABCxyz019_-", min_size=1, max_size=40)
BASE64 = st.binary(min_size=1, max_size=200).flatmap(
    lambda raw: st.sampled_from(
        [
            base64.b64encode(raw).decode(),
            base64.urlsafe_b64encode(raw).decode(),
            base64.b64encode(raw).decode().rstrip("="),
            base64.urlsafe_b64encode(raw).decode().rstrip("="),
        ]
    )
)


@given(IDS, BASE64 | st.text(min_size=1, max_size=50))
def test_id_and_signature_come_back_as_they_were(call_id: str, signature: str) -> None:
    carried = carry(call_id, signature)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", carried)
    assert split(carried) == (call_id, signature)


@given(IDS, BASE64)
def test_an_id_that_was_changed_or_cut_is_no_carrier(call_id: str, signature: str) -> None:
    carried = carry(call_id, signature)
    for changed in (carried[:-1], carried + "x", "x" + carried, carried[:40] + "Q" + carried[41:]):
        assert split(changed) == (changed, None) or changed == carried


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "Ab3dE9x1Q",
        "call_abcdefghijklmnopqrstuvwx",
        "toolu_01A09q90qw90lq917835lq9",
        "functions.get_weather:0",
        "call_x__thought__R2VtU2VhbDE=",
        "__" * 5000,
        "a__b__s0000001AAAAAAAA",
        "a__b__s0ffffffAAAAAAAA",
        "é__R2Vt__s0000004AAAAAAAA",
    ],
)
def test_a_foreign_id_stays_whole(foreign: str) -> None:
    assert split(foreign) == (foreign, None)


def test_ids_can_be_nested_and_empty_signatures_are_nothing() -> None:
    once = carry("a__b", "R2Vt==")
    assert split(carry(once, "x+/y")) == (once, "x+/y")
    assert carry("a", "") == "a"
