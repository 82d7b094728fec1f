"""`wholecall probe` against backends on real sockets: what it asks, what it scores, what it never says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from proxy.cli import main
from proxy.conformance.battery import ANSWERS, ITEMS
from proxy.conformance.items import Expect, Item, read_items
from proxy.conformance.models import CLEAN, DAMAGED, UNWILLING
from proxy.conformance.runs import CallSeen, Run, State
from proxy.conformance.scores import DAMAGE, FINISH, FORM, KIND_OF, MODEL, REQUEST, SCORES, Score, Threshold, tally
from proxy.model.calls import Verdict
from proxy.model.findings import Quirk
from running import WHOLECALL, until
from support.answering import ROOTS, answering, prompt_of
from support.upstream import Conversation, Upstream

ROOT = Path(__file__).parent.parent
DAMAGES = [kind.name for kind in SCORES if kind.group == "damage"]
BEHAVIOURS = [kind.name for kind in SCORES if kind.group == "behaviour"]


def probe(*arguments: str | Path, columns: int = 120, env: dict[str, str] | None = None) -> Result:
    runner = CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": None, "FORCE_COLOR": None, **(env or {})})
    result = runner.invoke(main, ["probe", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def report(*arguments: str | Path, status: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    result = probe(*arguments, "--json", "-", env=env)
    assert result.exit_code == status, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def shares(target: dict[str, Any]) -> dict[str, float | None]:
    return {name: score["share"] for name, score in target["scores"].items()}


# --- the embedded backends -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One probe of the embedded backends, in every form of report."""
    folder = tmp_path_factory.mktemp("probe")
    outputs = {name: folder / f"report.{name}" for name in ("json", "markdown", "html")}
    arguments = [part for name, path in outputs.items() for part in (f"--{name}", path)]
    result = probe("--demo", "--runs", "2", *arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(outputs["json"].read_text())
    targets = {target["target"]: target for target in document["targets"]}
    return {**{name: path.read_text() for name, path in outputs.items()}, "targets": targets, "terminal": result.stdout}


def test_a_clean_backend_has_every_score_whole(demo: dict[str, Any]) -> None:
    target = demo["targets"][CLEAN]
    assert set(shares(target).values()) == {1.0}
    assert (target["quirks"], target["findings"], target["errors"]) == ([], [], [])
    assert target["runs"] == 2 * 2 * len(ITEMS)


def test_a_damaged_backend_loses_in_damage_and_its_model_keeps_its_name(demo: dict[str, Any]) -> None:
    target = demo["targets"][DAMAGED]
    found = shares(target)
    assert all((found[name] or 0) < 1 for name in DAMAGES), found
    assert found["name"] == found["schema"] == 1.0
    assert (found["agree"] or 0) < 1, "of two calls one is lost in the stream alone"
    quirks = {quirk["code"]: quirk["kind"] for quirk in target["quirks"]}
    assert quirks.keys() >= {
        "index_missing", "index_reused", "id_repeated", "name_repeated", "args_cumulative", "args_double_encoded",
        "leaked_as_text", "finish_wrong",
    }  # fmt: skip
    assert target["repairs"].keys() == {"control_characters", "trailing_commas"}
    assert [error["code"] for error in target["errors"]] == ["stream_cut"]
    assert target["verdicts"]["invalid_json"] == 4
    assert target["verdicts"]["incomplete"] == 2


def test_an_unwilling_model_loses_in_behaviour_and_its_backend_keeps_its_name(demo: dict[str, Any]) -> None:
    found = shares(demo["targets"][UNWILLING])
    assert {name: found[name] for name in DAMAGES} == dict.fromkeys(DAMAGES, 1.0)
    assert all((found[name] or 0) < 1 for name in BEHAVIOURS), found
    codes = Counter(code for finding in demo["targets"][UNWILLING]["findings"] for code in finding["codes"])
    assert codes.keys() >= {"call_count", "schema_violation", "not_allowed", "unknown_tool"}


def test_what_was_wrong_is_told_with_the_place(demo: dict[str, Any]) -> None:
    by_item = {(f["item"], f["streamed"]): f for f in demo["targets"][DAMAGED]["findings"] if f["group"] == "damage"}
    assert "invalid_json" in by_item["next-call", False]["codes"]
    assert by_item["next-call", False]["arguments"].startswith('{"flight"')
    assert ("one-call", False) not in by_item, "only its streams are damaged"
    text = demo["terminal"]
    assert "args_cumulative" in text  # whole, however narrow the terminal
    for part in ("Calls whole", "index_reused", "breaks calls", "probe/damaged: damage", "probe/unwilling: behaviour"):
        assert part in text


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_of_the_tables_is_wider_than_the_terminal(columns: int) -> None:
    shown = probe("--demo", "--item", "enum", "--item", "many-tools", columns=columns).stdout
    assert max(map(len, shown.splitlines())) <= columns
    assert "\x1b" not in shown


# --- every dialect -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ROOTS)
def test_a_careful_backend_of_any_dialect_has_every_score_whole(dialect: str) -> None:
    with answering(dialect) as backend:
        (target,) = report(backend.url, "--dialect", dialect, "--model", "m1")["targets"]
    assert set(shares(target).values()) == {1.0}, target["findings"]
    assert target["quirks"] == []
    assert len(backend.requests) == 2 * len(ITEMS)


@pytest.mark.parametrize("dialect", ROOTS)
def test_a_backend_of_any_dialect_that_cuts_its_streams_is_told_from_its_model(dialect: str) -> None:
    def cut(item: str, streamed: bool, pieces: list[bytes]) -> Sequence[bytes]:
        return pieces[: len(pieces) // 2] if streamed and item.startswith("parallel") else pieces

    with answering(dialect, cut) as backend:
        (target,) = report(backend.url, "--dialect", dialect, "--model", "m1")["targets"]
    found = shares(target)
    assert target["scores"]["replies"]["of"] - target["scores"]["replies"]["good"] == 3
    assert {name: found[name] for name in BEHAVIOURS} == dict.fromkeys(BEHAVIOURS, 1.0)
    assert found["agree"] == 1.0, "a broken reply tells nothing about the model"
    assert {error["code"] for error in target["errors"]} == {"stream_cut"}
    wrong = {(cell["item"], cell["streamed"]["undamaged"][0]) for cell in target["items"]}
    assert {item for item, good in wrong if not good} == {"parallel-same", "parallel-different", "parallel-off"}


@pytest.mark.parametrize(
    ("dialect", "header", "value"),
    [
        ("openai-chat", "authorization", "Bearer mark-key-77"),
        ("anthropic-messages", "x-api-key", "mark-key-77"),
        ("gemini", "x-goog-api-key", "mark-key-77"),
    ],
)
def test_the_key_goes_as_the_dialect_wants_it(dialect: str, header: str, value: str) -> None:
    with answering(dialect) as backend:
        arguments = (backend.url, "--dialect", dialect, "-m", "m1", "--api-key-env", "PROBE_KEY", "--item", "enum")
        report(*arguments, env={"PROBE_KEY": "mark-key-77"})
    assert [headers[header] for _, headers, _ in backend.requests] == [value, value]


# --- the battery ---------------------------------------------------------------------------------------------------


def test_the_items_have_names_prompts_and_answers_of_their_own() -> None:
    assert len({item.id for item in ITEMS}) == len({prompt_of(item.request) for item in ITEMS}) == len(ITEMS)
    assert ANSWERS.keys() == {item.id for item in ITEMS}
    assert len({item.digest for item in ITEMS}) == len(ITEMS)


def test_every_quirk_is_of_one_kind() -> None:
    kinds = (DAMAGE, FINISH, FORM, MODEL, REQUEST)
    assert sum(map(len, kinds)) == len(Quirk) == len(KIND_OF)


# --- scores --------------------------------------------------------------------------------------------------------

ITEM = Item("i", "", {"messages": []}, Expect(1, 1, frozenset({"f"})))


def run_of(*calls: CallSeen, number: int = 1, streamed: bool = True, **more: Any) -> Run:
    return Run("k", "t", "i", streamed, number, **{"outcome": "ended", "status": 200, "calls": list(calls), **more})


def test_nothing_that_was_refused_counts_as_damage_or_behaviour() -> None:
    result = tally("openai-chat", [ITEM], [run_of(outcome="refused", status=429, code="busy")])
    assert result.scores["answered"] == Score(0, 1)
    assert all(result.scores[name].of == 0 for name in (*DAMAGES, *BEHAVIOURS))
    assert result.cells["i", True].refused == 1


def test_a_call_that_an_honest_limit_cut_is_the_models_and_not_the_backends() -> None:
    result = tally("openai-chat", [ITEM], [run_of(CallSeen("f", Verdict.INCOMPLETE), finish="length")])
    assert result.scores["undamaged"] == Score(1, 1)
    assert result.scores["whole"] == Score(0, 0)
    assert result.scores["as_asked"] == Score(0, 1)
    result = tally("openai-chat", [ITEM], [run_of(CallSeen("f", Verdict.INCOMPLETE), outcome="broken", code="cut")])
    assert result.scores["undamaged"] == result.scores["whole"] == Score(0, 1)
    assert result.scores["as_asked"] == Score(0, 0)


def test_damage_of_a_whole_reply_takes_its_calls_with_it() -> None:
    result = tally("openai-chat", [ITEM], [run_of(CallSeen("f", Verdict.VALID), quirks=[Quirk.EVENTS_GLUED])])
    assert result.scores["whole"] == result.scores["replies"] == Score(0, 1)
    assert result.scores["json"] == result.scores["schema"] == Score(1, 1)


def test_a_named_choice_may_end_in_stop_as_openai_has_it() -> None:
    runs = [run_of(CallSeen("f", Verdict.VALID), quirks=[Quirk.FINISH_WRONG])]
    named = Item("i", "", {"messages": [], "tool_choice": {"type": "function", "function": {"name": "f"}}})
    assert tally("openai-chat", [ITEM], runs).scores["finish"] == Score(0, 1)
    assert tally("openai-chat", [named], runs).scores["finish"] == Score(1, 1)


def test_objects_and_missing_ids_are_a_dialects_own_way_and_another_ones_damage() -> None:
    call = CallSeen("f", Verdict.VALID, [Quirk.ARGS_OBJECT, Quirk.ID_MISSING])
    assert tally("gemini", [ITEM], [run_of(call)]).scores["whole"] == Score(1, 1)
    assert tally("openai-chat", [ITEM], [run_of(call)]).scores["whole"] == Score(0, 1)


def test_streamed_and_plain_are_compared_run_by_run_by_names_and_verdicts() -> None:
    good, bad = CallSeen("f", Verdict.VALID), CallSeen("f", Verdict.SCHEMA_VIOLATION)
    runs = [run_of(good), run_of(good, streamed=False), run_of(good, number=2), run_of(bad, number=2, streamed=False)]
    assert tally("openai-chat", [ITEM], [*runs, run_of(good, number=3)]).scores["agree"] == Score(1, 2)


def test_a_share_of_few_runs_is_known_only_roughly() -> None:
    low, high = Score(10, 10).interval
    assert (round(low, 3), round(high, 3)) == (0.722, 1.0)
    low, high = Score(500, 1000).interval
    assert (round(low, 3), round(high, 3)) == (0.469, 0.531)


# --- thresholds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thresholds", "missed"),
    [
        (["0.99"], {"undamaged", "json"}),
        (["json=0.4"], set()),
        (["json=0.6"], {"json"}),
        (["damage=0.6", "behaviour=1"], {"json", "undamaged"}),
        (["behaviour=1", "reach=1"], set()),
        (["agree=0.5"], {"agree"}),  # never counted: one form only
    ],
)
def test_the_exit_status_says_whether_the_thresholds_hold(thresholds: list[str], missed: set[str]) -> None:
    def damage(item: str, streamed: bool, pieces: list[bytes]) -> Sequence[bytes]:
        return [piece.replace(b'\\"away\\"', b"'away'") for piece in pieces] if item == "enum" else pieces

    with answering("openai-chat", damage) as backend:
        arguments = [part for text in thresholds for part in ("--fail-under", text)]
        items = ("--item", "enum", "--item", "one-call", "--form", "plain")
        found = report(backend.url, "-m", "m1", *items, *arguments, status=1 if missed else 0)
    assert set(found["targets"][0]["missed"]) == missed
    assert found["passed"] is not missed or not missed


@pytest.mark.parametrize("text", ["", "x", "1.5", "-1", "nan", "whole=", "wohle=0.9", "both ways=0.5"])
def test_a_threshold_that_is_none_gets_one_line_and_status_2(text: str) -> None:
    result = probe("http://127.0.0.1:9/v1", "-m", "m", "--fail-under", text)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "--fail-under" in result.stderr
    with pytest.raises(ValueError):
        Threshold.read(text)


# --- resuming ------------------------------------------------------------------------------------------------------


def test_finished_runs_are_not_asked_again(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    with answering("openai-chat") as backend:
        arguments = (backend.url, "-m", "m1", "--state", state, "--item", "enum", "--item", "one-call")
        first = report(*arguments)
        assert len(backend.requests) == 4
        assert report(*arguments)["targets"] == first["targets"]
        assert len(backend.requests) == 4
        with state.open("ab") as file:
            file.write(b'{"key": "cut in the mid')  # as a probe leaves it that was killed
        assert report(*arguments, "--runs", "2")["targets"][0]["runs"] == 8
        assert len(backend.requests) == 8
        assert report(*arguments, "--runs", "3", "-m", "m2")["targets"][1]["runs"] == 12
        assert len(backend.requests) == 8 + 4 + 12
    assert all(json.loads(line) for line in state.read_text().splitlines())


def test_what_nobody_answered_is_asked_again(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    with answering("openai-chat") as backend:
        url = backend.url
        port = int(url.split(":")[2].split("/")[0])
    arguments = (url, "-m", "m1", "--item", "enum", "--state", state)
    (target,) = report(*arguments, status=1)["targets"]
    assert target["scores"]["answered"] == {"group": "reach", "good": 0, "of": 2, "share": 0.0} | {
        key: target["scores"]["answered"][key] for key in ("low", "high")
    }
    assert target["errors"][0]["code"] == "unreachable"
    with answering("openai-chat", port=port) as backend:
        assert shares(report(*arguments)["targets"][0])["answered"] == 1.0
        assert len(backend.requests) == 2


@pytest.mark.parametrize("line", ["{}", "[1]", "x", '{"key":"k","quirks":["no_such_quirk"]}'])
def test_a_state_file_that_is_none_is_left_as_it_is(tmp_path: Path, line: str) -> None:
    state = tmp_path / "state.jsonl"
    state.write_text(f"{line}\nrest")
    result = probe("http://127.0.0.1:9/v1", "-m", "m", "--state", state)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "line 1" in result.stderr
    assert state.read_text() == f"{line}\nrest"


def test_a_full_disk_is_told_and_costs_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    with answering("openai-chat") as backend:
        result = probe(backend.url, "-m", "m1", "--item", "enum", "--html", full, "--json", tmp_path / "report.json")
        monkeypatch.setattr(State, "__init__", on_full_disk)
        kept = probe(backend.url, "-m", "m1", "--item", "enum", "--state", "x")
    for found, what in ((result, "/dev/full: cannot be written"), (kept, "--state x: cannot be written any more")):
        assert found.exit_code == 2
        assert found.stderr.splitlines() == [f"{what}: no space left on device"]
        assert "Calls whole" in found.stdout
    assert json.loads((tmp_path / "report.json").read_text())["done"] == 2


def on_full_disk(state: State, path: Path | None) -> None:
    state.known, state.trouble, state._path, state._file = {}, "", path, open("/dev/full", "a+b")  # noqa: SIM115


# --- who is there, and who is not ----------------------------------------------------------------------------------


async def whole(talk: Conversation, status: int, document: Any) -> None:
    await talk.answer(status, json.dumps(document).encode())


def test_a_busy_backend_is_asked_again() -> None:
    with answering("openai-chat", busy=2) as backend:
        (target,) = report(backend.url, "-m", "m1", "--item", "enum", "--concurrency", "1")["targets"]
        assert len(backend.requests) == 4
    assert set(shares(target).values()) == {1.0}


def test_a_backend_that_lets_nobody_in_is_asked_a_few_times_only() -> None:
    async def refuse(talk: Conversation) -> None:
        await whole(talk, 401, {"error": {"message": "no such key: mark-key-77", "code": "bad_key"}})

    found, asked = against(refuse, "--concurrency", "2", status=1)
    assert asked <= 6
    (target,) = found["targets"]
    assert target["errors"][0]["code"] == "bad_key"
    assert found["done"] < found["planned"]


def test_an_end_that_only_silence_proves_is_waited_for_and_told() -> None:
    async def silent(talk: Conversation) -> None:
        await talk.head()
        choice = {"index": 0, "delta": {"role": "assistant", "content": "hm"}, "finish_reason": "stop"}
        await talk.event({"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})
        await talk.until_closed(60)

    found, _ = against(silent, "--form", "streamed", "--item", "choice-none")
    (target,) = found["targets"]
    assert [quirk["code"] for quirk in target["quirks"]] == ["done_missing"]
    assert shares(target)["undamaged"] == 1.0


def test_a_reply_that_never_ends_is_given_up() -> None:
    async def silent(talk: Conversation) -> None:
        await talk.head()
        await talk.event({"choices": [{"index": 0, "delta": {"content": "hm"}, "finish_reason": None}]})
        await talk.until_closed(60)

    found, _ = against(silent, "--timeout", "0.3", "--form", "streamed", "--item", "one-call")
    (target,) = found["targets"]
    assert target["errors"][0]["code"] == "timeout"
    assert "--timeout" in target["errors"][0]["message"]
    assert shares(target)["replies"] in (0.0, None), "None: so busy a machine that not even the head came in time"


def against(behave: Any, *arguments: str, status: int = 0) -> tuple[dict[str, Any], int]:
    """The report on a scripted upstream, and how often it was asked."""

    async def probed() -> tuple[Result, int]:
        async with Upstream(behave) as upstream:
            key = {"PROBE_KEY": "mark-key-77"}
            all_arguments = (upstream.url, "-m", "m1", "--api-key-env", "PROBE_KEY", "--json", "-", *arguments)
            result = await asyncio.to_thread(probe, *all_arguments, env=key)
            return result, len(upstream.seen)

    result, asked = asyncio.run(probed())
    assert result.exit_code == status, result.output
    assert "mark-key-77" not in result.output
    return json.loads(result.stdout), asked


def test_several_backends_of_a_configuration_stand_side_by_side(tmp_path: Path) -> None:
    config = tmp_path / "wholecall.toml"
    with answering("openai-chat") as one, answering("gemini") as two:
        config.write_text(
            f'[[backends]]\nname = "one"\ndialect = "openai-chat"\nbase_url = "{one.url}"\n'
            f'[[backends]]\nname = "two"\ndialect = "gemini"\nbase_url = "{two.url}"\napi_key = "env:TWO_KEY"\n'
            'headers = { x-extra = "yes" }\n[[routes]]\nmodels = ["*"]\nbackends = ["one", "two"]\n'
        )
        arguments = ("--config", config, "-b", "one", "-b", "two=flash", "-m", "m1", "--item", "enum")
        found = report(*arguments, env={"TWO_KEY": "mark-key-88"})
    assert [target["target"] for target in found["targets"]] == ["one m1", "two flash"]
    assert [target["dialect"] for target in found["targets"]] == ["openai-chat", "gemini"]
    path, headers, _ = two.requests[0]
    assert "flash" in path
    assert (headers["x-goog-api-key"], headers["x-extra"]) == ("mark-key-88", "yes")
    assert "mark-key" not in json.dumps(found)


# --- own requests --------------------------------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def lines_of(folder: Path, *lines: Any) -> Path:
    file = folder / "requests.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def test_own_requests_are_asked_in_place_of_the_battery(tmp_path: Path) -> None:
    prompt = prompt_of(ITEMS[0].request)
    bare = {"model": "theirs", "stream": True, "messages": [{"role": "user", "content": prompt}], "tools": [TOOL]}
    names = {"calls": 2, "names": ["get_weather"]}
    file = lines_of(tmp_path, bare, "", {"id": "mine", "request": {**bare, "temperature": 0}, "expect": names})
    with answering("openai-chat") as backend:
        found = report(backend.url, "-m", "m1", "--requests", file)
    assert found["requests"] == str(file)
    (target,) = found["targets"]
    assert [item["item"] for item in target["items"]] == ["line-1", "mine"]
    assert target["scores"]["called"]["of"] == 2, "nothing says how many calls the first one should have"
    assert shares(target)["called"] == 0.0
    assert shares(target)["undamaged"] == shares(target)["name"] == 1.0
    assert {body["model"] for _, _, body in backend.requests} == {"m1"}
    assert Counter(body["stream"] for _, _, body in backend.requests) == {True: 2, False: 2}
    assert [body.get("temperature") for _, _, body in backend.requests].count(0) == 2


def test_a_schema_that_does_not_compile_is_told_and_its_calls_are_not_scored_by_it(tmp_path: Path) -> None:
    broken = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "required": 7}}}
    messages = [{"role": "_input", "content": "x"}, {"role": "user", "content": prompt_of(ITEMS[0].request)}]
    with answering("openai-chat") as backend:
        file = lines_of(tmp_path, {"messages": messages, "tools": [broken]})
        (target,) = report(backend.url, "-m", "m1", "--requests", file)["targets"]
    assert [(quirk["code"], quirk["kind"]) for quirk in target["quirks"]] == [("schema_uncompilable", "request")]
    assert (shares(target)["json"], shares(target)["schema"]) == (1.0, None)
    assert backend.requests[0][2]["messages"][0]["role"] == "system"


def test_tool_choice_alone_says_what_is_expected(tmp_path: Path) -> None:
    base = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    named = {"type": "function", "function": {"name": "get_weather"}}
    choices = (None, "none", "required", named)
    items = read_items(lines_of(tmp_path, *({**base, "tool_choice": choice} for choice in choices)))
    only = frozenset({"get_weather"})
    assert [item.expect for item in items] == [None, Expect(0, 0), Expect(1, None), Expect(1, None, only)]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "is empty"),
        (["{"], "line 1: is no JSON"),
        (["[]"], "line 1: is no JSON object"),
        (["", "{}"], 'line 2: has no "messages"'),
        ([{"messages": [], "tools": 7}], "line 1: cannot be asked: tools"),
        ([{"messages": [], "tools": [{**TOOL, "function": {"name": "f", "parameters": 7}}]}], "tool 'f'"),
        ([{"request": {"messages": []}, "expect": {"call": 1}}], "line 1: expect"),
        ([{"request": {"messages": []}, "expect": {"calls": [2, 1]}}], "line 1: expect"),
        ([{"id": "a", "request": {"messages": []}}] * 2, "line 2: a second item is called 'a'"),
    ],
)
def test_requests_that_cannot_be_used_get_one_line_and_status_2(tmp_path: Path, lines: list[Any], why: str) -> None:
    result = probe("http://127.0.0.1:9/v1", "-m", "m", "--requests", lines_of(tmp_path, *lines))
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert why in result.stderr


def test_what_a_dialect_has_no_form_for_is_not_asked_and_not_scored(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
    file = lines_of(tmp_path, {"messages": [{"role": "user", "content": [image]}]})
    with answering("ollama-chat") as backend:
        (target,) = report(backend.url, "--dialect", "ollama-chat", "-m", "m1", "--requests", file, status=1)["targets"]
    assert backend.requests == []
    assert [entry["item"] for entry in target["unasked"]] == ["line-1"]
    assert set(shares(target).values()) == {None}


# --- what cannot be used -------------------------------------------------------------------------------------------

URL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "who is to be probed"),
        ([URL], "--model"),
        (["http://127.0.0.1:9/v1/chat/completions", "-m", "m"], "must end before"),
        (["127.0.0.1:9/v1", "-m", "m"], "an address begins with http"),
        (["http://user:secret@127.0.0.1/v1", "-m", "m"], "must not hold a user"),
        ([URL, "-m", "m", "--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        ([URL, "-m", "m", "-m", "m"], "named twice"),
        ([URL, "-m", "m", "--item", "no-such"], "no item 'no-such'"),
        ([URL, "-m", "m", "--html", "no/such/folder/report.html"], "no folder"),
        ([URL, "-m", "m", "--state", "no/such/folder/state"], "--state"),
        ([URL, "-m", "m", "--state", "/dev/null"], "is no file"),
        (["-b", "one", "--config", "no-such.toml"], "no-such.toml"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_gets_one_line_and_status_2(arguments: list[str], why: str) -> None:
    result = probe(*arguments)
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1), result.output
    assert why in result.stderr
    assert "secret" not in result.stderr


# --- the README ----------------------------------------------------------------------------------------------------


def readme(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)\n```", text, flags=re.M | re.S)


COMMANDS = [line for block in readme("sh") for line in block.splitlines() if line.startswith("wholecall probe")]


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) == 3


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_does_what_it_says(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with answering("openai-chat") as backend:
        (config,) = readme("toml")
        (tmp_path / "wholecall.toml").write_text(config.replace("http://127.0.0.1:8000/v1", backend.url))
        words = shlex.split(command.replace("http://127.0.0.1:8000/v1", backend.url))
        result = probe(*words[2:])
    assert result.exit_code == 0, result.output
    assert "Calls whole" in result.stdout
    written = {word for word in words if word.startswith(("report.", "runs."))}
    assert {path.name for path in tmp_path.iterdir()} == written | {"wholecall.toml"}
    assert len(backend.requests) == (0 if "--demo" in words else 2 * len(ITEMS) * (5 if "--runs" in words else 1))


def test_through_the_proxy_nothing_of_the_damaged_backend_is_damaged() -> None:
    """As the README has it, with the demo on a free port."""
    (command,) = re.findall(r"`(wholecall probe http://127.0.0.1:8080/v1 [^`]+)`", (ROOT / "README.md").read_text())
    env = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    env["PYTHONUNBUFFERED"] = "1"
    demo = subprocess.Popen([WHOLECALL, "demo", "--port", "0"], stdout=subprocess.PIPE, env=env, text=True)
    try:
        assert demo.stdout is not None
        address = next(line.split("listens on ")[1].split(" ")[0] for line in demo.stdout if "listens on" in line)
        (target,) = report(*shlex.split(command.replace("http://127.0.0.1:8080/v1", address))[2:])["targets"]
    finally:
        demo.terminate()
        demo.communicate(timeout=60)
    found = shares(target)
    assert {name: found[name] for name in DAMAGES} == dict.fromkeys(DAMAGES, 1.0), target["findings"]
    assert target["quirks"] == []
    assert {error["code"] for error in target["errors"]} == {"invalid_json", "stream_cut"}


# --- what is shown -------------------------------------------------------------------------------------------------

EVIL = "\x1b[2J</code><script src=//x.example/a.js></script><img src=x onerror=alert(1)>|`[a](javascript:b)"


class Page(HTMLParser):
    """Everything that a page could load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]


def test_the_page_loads_and_runs_nothing(demo: dict[str, Any]) -> None:
    page = Page(demo["html"])
    assert page.tags["svg"] == 3
    assert not page.tags.keys() & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a", "use"}
    names = {name for name, _ in page.attributes}
    assert not [name for name in names if name in ("src", "href", "xlink:href", "srcset") or name.startswith("on")]
    assert "url(" not in demo["html"]
    assert "@import" not in demo["html"]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    for part in (DAMAGED, "args_cumulative", "parallel-different", "not as asked 2/2", "damaged 2/2"):
        assert part in demo["html"]


def test_nothing_of_a_backend_or_a_file_is_obeyed_by_what_shows_it(tmp_path: Path) -> None:
    async def evil(talk: Conversation) -> None:
        call = {"id": "a", "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
        message = {"role": "assistant", "content": EVIL, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        if talk.request.json["messages"][0]["content"] == "error":
            await whole(talk, 400, {"error": {"message": EVIL, "code": EVIL}})
        else:
            await whole(talk, 200, {"id": "x", "model": "m", "object": "chat.completion", "choices": [choice]})

    requests = [
        {"id": f"{EVIL}{text}", "title": EVIL, "request": {"messages": [{"role": "user", "content": text}]}}
        for text in ("error", "call")
    ]
    outputs = {name: tmp_path / name for name in ("html", "markdown", "json")}

    async def probed() -> Result:
        async with Upstream(evil) as upstream:
            arguments: list[str | Path] = [upstream.url, "-m", EVIL, "--requests", lines_of(tmp_path, *requests)]
            for name, path in outputs.items():
                arguments += [f"--{name}", path]
            return await asyncio.to_thread(probe, *arguments)

    result = asyncio.run(probed())
    shown = {name: path.read_text() for name, path in outputs.items()} | {"terminal": result.output}
    assert all("\x1b" not in text for text in shown.values())
    assert "x.example" in shown["html"]
    page = Page(shown["html"])
    assert not page.tags.keys() & {"script", "img", "a"}
    assert not re.search(r"(?<!\\)[<\[]", re.sub(r"`[a-z_]+`", "", shown["markdown"])), "every mark has its backslash"
    assert "unknown_tool" in shown["json"]


def test_a_key_that_a_backend_quotes_is_in_no_report(tmp_path: Path) -> None:
    key = "mark-key-99-abcdefgh"

    async def quote(talk: Conversation) -> None:
        if talk.request.json["stream"]:
            await whole(talk, 403, {"error": {"message": f"your key {key} is bad", "code": f"bad-{key}"}})
            return
        call = {"id": "a", "type": "function", "function": {"name": f"f_{key}", "arguments": f"{{{key}"}}
        choice = {"index": 0, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
        await whole(talk, 200, {"id": "x", "model": "m", "object": "chat.completion", "choices": [choice]})

    files = [tmp_path / name for name in ("state", "json", "html", "markdown")]

    async def probed() -> Result:
        async with Upstream(quote) as upstream:
            arguments: list[str | Path] = [upstream.url, "-m", "m", "--api-key-env", "KEY", "--item", "one-call"]
            for path in files:
                arguments += [f"--{path.name}", path]
            return await asyncio.to_thread(probe, *arguments, env={"KEY": key})

    result = asyncio.run(probed())
    assert "your key ****" in result.output, result.output
    for text in (result.output, *(path.read_text() for path in files)):
        assert key not in text
        assert key[:12] not in text


# --- Ctrl-C --------------------------------------------------------------------------------------------------------


def test_ctrl_c_writes_what_there_is(tmp_path: Path) -> None:
    state, out = tmp_path / "state.jsonl", tmp_path / "report.json"
    held = threading.Event()

    def wait(item: str, streamed: bool, pieces: list[bytes]) -> Sequence[bytes]:
        if item != "one-call":
            held.wait(300)
        return pieces

    with answering("openai-chat", wait) as backend:
        # Where the tests run in the background of a shell, SIGINT is ignored, and so it would be in the child.
        default = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-c", default, str(WHOLECALL), "probe", backend.url, "-m", "m1"]
        command += ["--state", str(state), "--json", str(out)]
        env = {**os.environ, "COLUMNS": "100"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        try:
            until(lambda: state.exists() and state.read_bytes().count(b"\n") == 2, "two runs are kept", process)
            process.send_signal(signal.SIGINT)
            shown, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            held.set()
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors
    assert b"2 of 36 were carried out" in shown
    found = json.loads(out.read_text())
    assert (found["interrupted"], found["done"]) == (True, 2)
