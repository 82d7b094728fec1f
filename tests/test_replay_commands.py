"""`wholecall replay` and `wholecall explain`, run in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from proxy.replay.commands import register

ROOT = Path(__file__).parent.parent
CHAT = Path(__file__).parent / "cases" / "chat"
DAMAGED = Path(__file__).parent.parent / "proxy" / "replay" / "recordings" / "interleaved-damaged.json"


def invoke(*arguments: str | Path, columns: int = 100, stdin: bytes | None = None) -> Result:
    group = click.Group("wholecall")
    register(group)
    runner = CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": None, "FORCE_COLOR": None})
    return runner.invoke(group, [str(argument) for argument in arguments], input=stdin)


def raw_stream(case: Path) -> bytes:
    items = json.loads(case.read_text("utf-8"))["upstream"]["body"]
    return b"".join(
        item.encode() if isinstance(item, str) else b"data: " + json.dumps(item).encode() + b"\n\n" for item in items
    )


def entries(result: Result) -> list[dict[str, Any]]:
    return list(json.loads(result.stdout))


def test_a_case_file_is_judged_with_the_tools_of_its_request() -> None:
    result = invoke("replay", "--json", DAMAGED)
    assert result.exit_code == 0, result.output
    (entry,) = entries(result)
    assert [(call["name"], call["verdict"]) for call in entry["calls"]] == [
        ("get_weather", "valid"),
        ("add_reminder", "valid"),
    ]
    assert json.loads(entry["calls"][0]["arguments"]) == {"city": "Lyon", "unit": "celsius"}
    assert entry["tools"] == "declared"
    assert entry["text"] == "Let me check the weather."
    assert "id_repeated" in entry["calls"][0]["quirks"]


def test_the_table_names_calls_verdicts_and_quirks() -> None:
    result = invoke("replay", DAMAGED)
    for text in ("get_weather", "add_reminder", "valid", "args_cumulative", "2 of 2 calls", "finish_reason tool_calls"):
        assert text in result.output


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_terminal_and_none_has_colours_without_one(columns: int) -> None:
    result = invoke("replay", DAMAGED, *sorted(CHAT.glob("*.json"))[:40], columns=columns)
    assert max(map(len, result.output.splitlines())) <= columns
    assert "\x1b" not in result.output


def test_a_capture_without_tools_counts_each_called_name_as_declared_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "reply.sse"
    file.write_bytes(raw_stream(CHAT / "val-undeclared-tool.json"))
    result = invoke("replay", file)
    assert result.exit_code == 0, result.output
    assert "no tools given" in result.output
    (entry,) = entries(invoke("replay", "--json", file))
    assert entry["tools"] == "any"


@pytest.mark.parametrize("whole_request", [False, True])
def test_tools_may_be_a_list_or_a_request(tmp_path: Path, whole_request: bool) -> None:
    case = CHAT / "val-undeclared-tool.json"
    request = json.loads(case.read_text("utf-8"))["request"]
    file, tools = tmp_path / "reply.sse", tmp_path / "tools.json"
    file.write_bytes(raw_stream(case))
    tools.write_text(json.dumps({"model": "m", **request} if whole_request else request["tools"]))
    result = invoke("replay", "--json", "--tools", tools, file)
    assert result.exit_code == 1, result.output
    assert [call["verdict"] for call in entries(result)[0]["calls"]] == ["unknown_tool"]


@pytest.mark.parametrize(
    ("name", "status"),
    [("idx-interleaved-parallel", 0), ("val-enum-letter-case", 1), ("cut-after-header", 1), ("http200-empty-body", 1),
     ("plain-server-error-page", 1), ("finish-stop-not-streamed", 0), ("finish-length-first-complete", 1)],
)  # fmt: skip
def test_the_exit_status_says_whether_something_is_faulty(name: str, status: int) -> None:
    for mode in ("block", "annotate", "drop"):
        assert invoke("replay", "--mode", mode, CHAT / f"{name}.json").exit_code == status


def test_repairs_can_be_switched_off() -> None:
    file = CHAT / "plain-trailing-comma.json"
    repaired = entries(invoke("replay", "--json", file))[0]["calls"][0]
    assert (repaired["verdict"], bool(repaired["repairs"])) == ("valid", True)
    plain = entries(invoke("replay", "--json", "--repair", "off", file))[0]["calls"][0]
    assert (plain["verdict"], plain["repairs"]) == ("invalid_json", [])


def test_a_call_that_came_as_text_is_judged_with_its_markup_named(tmp_path: Path) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
    file, tools = tmp_path / "leaked.sse", tmp_path / "tools.json"
    file.write_bytes(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
    tools.write_text('[{"type": "function", "function": {"name": "f"}}]')
    (call,) = entries(invoke("replay", "--json", "--tools", tools, file))[0]["calls"]
    assert (call["name"], call["verdict"], call["format"]) == ("f", "valid", "hermes")


def test_standard_input_is_a_file_too() -> None:
    assert invoke("replay", "-", stdin=raw_stream(CHAT / "idx-interleaved-parallel.json")).exit_code == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "no such file"), (b"", "empty"), (b"<html>", "neither SSE"), (b'{"a":1}', "neither choices")],
)
def test_a_file_that_cannot_be_used_gets_one_line_and_status_2(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "x"
    if content is not None:
        file.write_bytes(content)
    result = invoke("replay", file, DAMAGED)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert why in result.stderr
    assert "get_weather" in result.stdout, "the other files are still judged"


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        (b"{", "line 1, column 2"),
        (b'"x"', "a JSON list of tools"),
        (b"{}", "a JSON list of tools"),
        (b"\xff", "no JSON"),
        (b"[1]", "tools"),
        (b'[{"type":"function","function":{"name":"f","parameters":{"type":"object","required":7}}}]', "tool f"),
        (b'[{"type":"function","function":{"name":"f","parameters":{"$ref":"http://127.0.0.1/x"}}}]', "tool f"),
    ],
)
def test_tools_that_cannot_be_used_get_one_line_and_status_2(tmp_path: Path, tools: bytes, why: str) -> None:
    file = tmp_path / "tools.json"
    file.write_bytes(tools)
    result = invoke("replay", "--tools", file, DAMAGED)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert why in result.stderr


def test_control_characters_of_a_reply_never_reach_the_terminal(tmp_path: Path) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "\x1b[2J", "arguments": '{"\x9b": 1'}}
    delta = {"content": "\x1b]0;owned\x07", "tool_calls": [call]}
    chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
    file = tmp_path / "evil.sse"
    file.write_bytes(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
    for arguments in ((), ("--json",)):
        output = invoke("replay", *arguments, file).output
        assert "owned" in output
        assert not set(output) & {"\x1b", "\x07", "\x9b"}


def test_characters_that_the_terminal_lacks_are_escaped() -> None:
    command = "import click, proxy.replay.commands as c; g = click.Group(); c.register(g); g()"
    file = CHAT.parent / "own" / "text-halves-in-two-events.json"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", command, "replay", file], capture_output=True, env=env, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"xa\\U0001f600b" in done.stdout


def test_explain_says_what_a_code_means_and_where_it_is_seen() -> None:
    result = invoke("explain", "index_missing")
    assert result.exit_code == 0
    assert "no index" in result.output
    assert "quirk" in result.output


def test_explain_without_a_code_lists_all() -> None:
    result = invoke("explain")
    assert result.exit_code == 0
    for code in ("valid", "args_cumulative", "stream_cut"):
        assert code in result.output


def test_brackets_in_a_meaning_are_no_markup() -> None:
    assert "[[clients]]" in invoke("explain").output


def test_explain_makes_the_page_of_all_codes() -> None:
    result = invoke("explain", "--markdown")
    assert (result.exit_code, result.output) == (0, (ROOT / "config/codes.md").read_text())


def test_explain_offers_the_nearest_codes() -> None:
    result = invoke("explain", "indx_missing")
    assert result.exit_code == 2
    assert "did you mean" in result.stderr
    assert "index_missing" in result.stderr
    assert "lists all" in invoke("explain", "xyzzy").stderr
