"""Every code that a report, a metric or an error can name has its meaning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.checks import repair
from proxy.config import Limits
from proxy.faults import FaultKind
from proxy.model.calls import Verdict
from proxy.model.findings import Quirk
from proxy.replay import explain
from proxy.server import endpoints
from proxy.server.entry import INTERNAL

# Keys of [limits] that are pauses: nothing ends when they are over.
NO_CODES = {"settle_ms", "keepalive_s"}


def test_every_code_of_every_table_is_explained() -> None:
    limits = Limits.model_fields.keys() - NO_CODES
    codes = [*Verdict, *Quirk, *(kind.value.code for kind in FaultKind), *limits]
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
    assert (meaning.kind, meaning.more) == ("limit", "HTTP 502; set by limits.max_calls, default 128")
    assert explain.find("max_calls") == [meaning]
    assert [m.code for m in explain.find("max_streams")] == ["max_streams", "clients.max_streams"]
    assert [m.code for m in explain.find("requests_per_minute")] == ["clients.requests_per_minute"]


def test_every_code_that_is_written_in_the_source_is_explained() -> None:
    files = (Path(__file__).parents[1] / "proxy").rglob("*.py")
    calls = re.compile(r'(?:(?:limit_fault|_busy|_too_many)\(\s*|code\s?=\s?)"([\w.]+)"')
    codes = {code for file in files for code in calls.findall(file.read_text())}
    assert {"clients.requests_per_minute", "max_tools", "max_event_bytes", "send_s"} <= codes
    assert [code for code in codes if not explain.find(code)] == []
    assert explain.find(INTERNAL)


def test_each_limit_says_what_it_bounds_and_pauses_are_no_limits() -> None:
    assert len({text for text, _ in explain.LIMIT_MEANING.values()}) == len(explain.LIMIT_MEANING)
    assert [key for key in NO_CODES if explain.find(key)] == []
    fixed = {
        "max_request_values": endpoints.MAX_REQUEST_VALUES,
        "max_schemas_bytes": endpoints.MAX_SCHEMAS_BYTES,
        "max_tools": endpoints.MAX_TOOLS,
    }
    assert fixed == explain.FIXED_LIMITS


def test_an_error_says_each_status_that_it_may_have() -> None:
    (meaning,) = explain.find("limit_exceeded")
    assert [status for status in ("502", "413", "431", "408", "429", "503") if status not in meaning.more] == []
    assert explain.find("529")[0].kind == "error"
    assert "credential" in explain.find("401")[0].text
    assert explain.find("200") == []


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


def test_the_page_of_all_codes_is_up_to_date() -> None:
    page = (Path(__file__).parents[1] / "config/codes.md").read_text()
    assert page == explain.markdown(), "wholecall explain --markdown > config/codes.md"
    assert [meaning.code for meaning in explain.meanings() if f"\n| `{meaning.code}` | " not in page] == []
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [line for line in rows if len(re.findall(r"(?<!\\)\|", line)) != 4] == [], "a bar that splits a cell"
