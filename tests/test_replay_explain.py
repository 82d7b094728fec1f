"""Every code that a report, a metric or an error can name has its meaning."""

from __future__ import annotations

import pytest

from proxy.checks import repair
from proxy.config import Limits
from proxy.faults import FaultKind
from proxy.model.calls import Verdict
from proxy.model.findings import Quirk
from proxy.replay import explain


def test_every_code_of_every_table_is_explained() -> None:
    codes = [*Verdict, *Quirk, *(kind.value.code for kind in FaultKind), *Limits.model_fields]
    assert [code for code in codes if not explain.find(code)] == []
    assert all(meaning.text and not meaning.text.endswith(".") for meaning in explain.meanings())


def test_every_repair_is_explained() -> None:
    assert [name for name in explain.REPAIR_MEANING if not callable(getattr(repair, name, None))] == []
    for text in ("```json\n{a: 'b', \"c\": [True,],}}\n```", 'json {"a":"\n"}'):
        repaired = repair.repair(text, lambda candidate: candidate.endswith('"b", "c": [true]}') or "\\n" in candidate)
        assert repaired is not None
        assert set(repaired[1]) <= set(explain.REPAIR_MEANING)


def test_a_limit_is_found_by_its_key_with_or_without_its_table() -> None:
    (meaning,) = explain.find("limits.max_calls")
    assert (meaning.kind, meaning.more) == ("limit", "default 128")
    assert explain.find("max_calls") == [meaning]


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
