"""Every code that a report, a metric or an error can name has its meaning."""

from __future__ import annotations

import pytest

from proxy.faults import FaultKind
from proxy.model.calls import Verdict
from proxy.model.findings import Quirk
from proxy.replay import explain


def test_every_code_of_every_table_is_explained() -> None:
    codes = [*Verdict, *Quirk, *(kind.value.code for kind in FaultKind)]
    assert [code for code in codes if not explain.find(code)] == []
    assert all(meaning.text and not meaning.text.endswith(".") for meaning in explain.meanings())


def test_a_code_with_two_meanings_gets_both() -> None:
    assert [meaning.kind for meaning in explain.find("invalid_json")] == ["verdict", "error"]


def test_letter_case_and_dashes_do_not_matter() -> None:
    assert explain.find(" Index-Missing ") == explain.find("index_missing") != []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("index_mising", "index_missing"), ("schema_violations", "schema_violation"), ("streamcut", "stream_cut")],
)
def test_a_mistyped_code_gets_its_neighbour(typed: str, meant: str) -> None:
    assert explain.find(typed) == []
    assert explain.near(typed)[0] == meant


def test_nonsense_gets_no_neighbour() -> None:
    assert explain.near("xyzzy") == []
