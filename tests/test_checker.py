from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy.checks.child import compile_job, judge_job, pack, read_result, unpack
from proxy.checks.judge import judge
from proxy.model.calls import CallCheck, CallError, CheckResult, Verdict
from proxy.model.findings import Quirk
from proxy.server import checker as checking
from proxy.server.checker import Checker

REFERENCE = {"$defs": {"n": {"type": "integer"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}
WRONG_REFERENCE = b'{"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}'
TOO_COSTLY = CallError("", "too_costly", "the check took too long and was ended")


def doubling(word: str, levels: int, last: Any) -> dict[str, Any]:
    """Two kilobytes of schema that ask the same question 2 to the power of `levels` times."""
    definitions = {f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"type": "object", "$defs": {**definitions, f"d{levels}": last}, "properties": {"a": {"$ref": "#/$defs/d0"}}}


HOSTILE = doubling("allOf", 30, {"type": "string"})


def check(text: str, schema: Any = REFERENCE, **options: bool) -> CallCheck:
    return CallCheck(1, (text,), (False,), None if schema is None else json.dumps(schema).encode(), **options)


def with_checker(what: Callable[[Checker], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        checker = Checker(**options)
        try:
            await what(checker)
        finally:
            await checker.close()

    asyncio.run(main())


def pid_of(checker: Checker) -> int:
    assert checker._child is not None
    return checker._child.pid


def test_cheap_checks_need_no_child() -> None:
    async def run(checker: Checker) -> None:
        jobs = [check('{"a":1}', {"type": "object"}), check("[1]", None), check('{"a":1', {})]
        assert [result.verdict for result in await checker.judge(jobs)] == [
            Verdict.VALID,
            Verdict.SCHEMA_VIOLATION,
            Verdict.INVALID_JSON,
        ]
        assert await checker.compile_problems([b"{}", b"5", b'{"type":"str"}']) == [
            None,
            ("", "the schema must be a JSON object"),
            ("/type", 'the value of "type" is not one that JSON Schema allows'),
        ]
        assert checker._child is None

    with_checker(run)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_child_answers_as_the_function_does(loop: str) -> None:
    async def main() -> None:
        checker = Checker()
        await checker.start()
        jobs = [
            check('{"a":18446744073709551616}'),
            check('{"a":"x"}'),
            check('{"a":1,}', repair=True),
            check('{"a":"\ud800"}'),
            check('{"a":[' + "1," * 300_000 + "1]}", None),
            CallCheck(5, ('{"a":1}', '{"a":2}'), (True, True), json.dumps(REFERENCE).encode()),
            check('{"a":1}', {**REFERENCE, "description": "ünïcode \U0001f680"}),
        ]
        try:
            results = await checker.judge(jobs)
        finally:
            await checker.close()
        assert results == [judge(job) for job in jobs]
        assert results[0].quirks == (Quirk.BIG_INTEGER,)
        assert results[5].text == '{"a":2}'

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(main())


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (HOSTILE, '{"a":"x"}'),
        (doubling("anyOf", 40, {"type": "integer"}), '{"a":"x"}'),
        ({"properties": {"a": {"pattern": "(?=.*x)(?=.*y)z"}}}, '{"a":"' + "xy" * 100_000 + '"}'),
        (
            {"properties": {"a": {"uniqueItems": True}}},
            '{"a":[' + ",".join(str(2**64 + n) for n in range(20_000)) + "]}",
        ),
    ],
    ids=["allOf", "anyOf", "look-ahead", "uniqueItems"],
)
def test_what_takes_too_long_is_ended_and_never_valid(schema: Any, text: str) -> None:
    async def run(checker: Checker) -> None:
        await checker.start()
        since = time.process_time()
        hostile, good = await checker.judge([check(text, schema), check('{"a":1}')])
        assert hostile == CheckResult(1, Verdict.SCHEMA_VIOLATION, text, error=TOO_COSTLY)
        assert good.verdict is Verdict.VALID
        assert checker.lost_children == 1
        # What this process itself worked, the event loop included.
        assert time.process_time() - since < 4 * 0.05

    with_checker(run)


def test_others_are_served_while_a_hostile_check_runs() -> None:
    async def run(checker: Checker) -> None:
        await checker.start()
        hostile = asyncio.create_task(checker.judge([check('{"a":"x"}', HOSTILE)]))
        served = 0
        while not hostile.done():
            assert (await checker.judge([check('{"a":1}', {})]))[0].verdict is Verdict.VALID
            served += 1
            await asyncio.sleep(0.001)
        assert served > 20

    with_checker(run)


def test_a_schema_that_ran_out_of_time_costs_one_child_until_it_is_forgotten() -> None:
    now = 0.0

    async def run(checker: Checker) -> None:
        nonlocal now
        for _ in range(100):
            results = await checker.judge([check('{"a":"x"}', HOSTILE), check('{"a":1}')])
            assert [result.error for result in results] == [TOO_COSTLY, None]
        assert checker.lost_children == 1
        assert await checker.compile_problems([json.dumps(HOSTILE).encode()]) == [("", TOO_COSTLY.message)]
        now = 599.0
        await checker.judge([check('{"a":"x"}', HOSTILE)])
        assert checker.lost_children == 1
        now = 601.0
        await checker.judge([check('{"a":"x"}', HOSTILE)])
        assert checker.lost_children == 2

    with_checker(run, clock=lambda: now)


def test_a_cheap_schema_is_not_blamed_for_large_arguments() -> None:
    async def run(checker: Checker) -> None:
        large = check('{"a":"' + "x" * 100_000 + '"}', {"type": "object"})
        assert (await checker.judge([large]))[0].error == TOO_COSTLY
        checker._deadline_s = 0.25
        assert (await checker.judge([large]))[0].verdict is Verdict.VALID

    with_checker(run, deadline_s=1e-6)


def test_a_schema_that_takes_too_long_to_compile_is_a_problem() -> None:
    async def run(checker: Checker) -> None:
        schema = json.dumps(REFERENCE).encode()
        assert await checker.compile_problems([schema]) == [("", TOO_COSTLY.message)]
        checker._deadline_s = 0.25
        assert await checker.compile_problems([schema]) == [("", TOO_COSTLY.message)]
        assert checker.lost_children == 1

    with_checker(run, deadline_s=1e-6)


def test_problems_come_from_the_child_once() -> None:
    async def run(checker: Checker) -> None:
        outside = json.dumps({"$ref": "file:///etc/passwd"}).encode()
        schemas = [json.dumps(REFERENCE).encode(), outside, json.dumps({"pattern": "("}).encode(), b"{" * 300_000]
        for _ in range(2):
            problems = await checker.compile_problems(schemas)
            assert [problem and problem[0] for problem in problems] == [None, "/$ref", "/pattern", ""]
        assert problems[3] == ("", "the schema has 300000 bytes, more than the limit of 262144 (max_schema_bytes)")
        assert len(checker._compiled) == 3

    with_checker(run)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_that_died_while_idle_is_replaced(how: signal.Signals) -> None:
    async def run(checker: Checker) -> None:
        await checker.start()
        first = pid_of(checker)
        os.kill(first, how)
        assert checker._child is not None
        await checker._child.wait()
        assert (await checker.judge([check('{"a":1}')]))[0].verdict is Verdict.VALID
        assert pid_of(checker) != first

    with_checker(run)


def test_a_child_that_dies_during_a_job_fails_that_call_only() -> None:
    async def run(checker: Checker) -> None:
        await checker.start()
        first = pid_of(checker)
        jobs = asyncio.create_task(checker.judge([check('{"a":"x"}', HOSTILE), check('{"a":1}')]))
        await asyncio.sleep(0.02)
        os.kill(first, signal.SIGKILL)
        assert [result.error for result in await jobs] == [TOO_COSTLY, None]

    with_checker(run)


def test_without_a_child_the_call_is_faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(checker: Checker) -> None:
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(OSError, match="nonexistent"):
            await checker.start()
        result = (await checker.judge([check('{"a":1}')]))[0]
        assert (result.verdict, result.text) == (Verdict.SCHEMA_VIOLATION, '{"a":1}')
        assert result.error == CallError("", "uncheckable", "the check could not be carried out now")
        assert await checker.compile_problems([WRONG_REFERENCE]) == [None]
        monkeypatch.undo()
        assert (await checker.compile_problems([WRONG_REFERENCE]))[0] is not None
        assert (await checker.judge([check('{"a":1}')]))[0].verdict is Verdict.VALID

    with_checker(run)


def test_a_program_that_is_no_child_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(checker: Checker) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/echo")
        result = (await checker.judge([check('{"a":1}')]))[0]
        assert result.error is not None
        assert result.error.rule == "uncheckable"
        assert checker._child is None

    with_checker(run)


def test_only_so_many_checks_may_wait() -> None:
    async def run(checker: Checker) -> None:
        results = await checker.judge([check('{"a":1}')] * 6)
        assert [result.verdict for result in results] == [Verdict.VALID] * 2 + [Verdict.SCHEMA_VIOLATION] * 4
        assert results[-1].error == CallError("", "uncheckable", "too many checks are waiting")

    with_checker(run, max_waiting=2)


def test_clients_take_turns_so_that_one_holds_up_itself() -> None:
    def hostile(number: int) -> Any:
        return {**HOSTILE, "title": str(number)}

    async def run(checker: Checker) -> None:
        await checker.start()
        bad = asyncio.create_task(checker.judge([check('{"a":"x"}', hostile(n)) for n in range(12)], "bad"))
        await asyncio.sleep(0.02)
        for client in ("good", "other", "good"):
            before = checker.lost_children
            assert (await checker.judge([check('{"a":1}')], client))[0].verdict is Verdict.VALID
            assert checker.lost_children - before <= 2  # the one that ran already, and one turn
        assert not bad.done()
        bad.cancel()

    with_checker(run)


def test_only_so_many_checks_of_a_client_may_wait() -> None:
    async def run(checker: Checker) -> None:
        bad = asyncio.create_task(checker.judge([check('{"a":1}')] * 9, "bad"))
        await asyncio.sleep(0)
        assert (await checker.judge([check('{"a":1}')] * 2, "good"))[1].verdict is Verdict.VALID
        assert [result.error and result.error.rule for result in await bad] == [None] * 2 + ["uncheckable"] * 7

    with_checker(run, max_waiting=2)


def test_behind_a_schema_that_takes_too_long_no_other_of_the_request_is_tried() -> None:
    async def run(checker: Checker) -> None:
        costly = [json.dumps({"allOf": [{"pattern": f"(a{{{500 + i}}}b?){{20}}"} for i in range(300)], "title": str(n)})
                  for n in range(5)]  # fmt: skip
        problems = await checker.compile_problems([b'{"type":"x"}', *map(str.encode, costly)])
        assert problems[1:] == [("", TOO_COSTLY.message), None, None, None, None]
        assert checker.lost_children == 1

    with_checker(run)


def test_a_schema_is_no_problem_where_too_many_checks_wait() -> None:
    async def run(checker: Checker) -> None:
        waiting = asyncio.create_task(checker.judge([check('{"a":1}')] * 2))
        await asyncio.sleep(0)
        assert await checker.compile_problems([WRONG_REFERENCE]) == [None]
        await waiting
        assert (await checker.compile_problems([WRONG_REFERENCE]))[0] is not None

    with_checker(run, max_waiting=1)


def test_a_caller_that_leaves_disturbs_nobody() -> None:
    async def run(checker: Checker) -> None:
        await checker.start()
        leaving = asyncio.create_task(checker.judge([check('{"a":"x"}', HOSTILE)] * 3))
        await asyncio.sleep(0.02)
        leaving.cancel()
        results = await asyncio.gather(*(checker.judge([check(f'{{"a":{n}}}')]) for n in range(20)))
        assert [result.text for (result,) in results] == [f'{{"a":{n}}}' for n in range(20)]
        assert checker.lost_children == 1

    with_checker(run)


def test_closing_ends_the_child_and_fails_what_waits() -> None:
    async def run(checker: Checker) -> None:
        await checker.start()
        pid = pid_of(checker)
        waiting = asyncio.create_task(checker.judge([check('{"a":"x"}', HOSTILE), check('{"a":1}')]))
        await asyncio.sleep(0.02)
        await checker.close()
        unavailable = CallError("", "uncheckable", "the check could not be carried out now")
        assert [result.error for result in await waiting] == [unavailable] * 2
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    with_checker(run)


def test_the_child_knows_no_secrets_and_has_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "secret-of-the-proxy")

    async def run(checker: Checker) -> None:
        await checker.start()
        process = Path(f"/proc/{pid_of(checker)}")
        assert b"secret-of-the-proxy" not in (process / "environ").read_bytes()
        limits = (process / "limits").read_text()
        assert f"Max address space         {1 << 30}" in limits
        assert "Max core file size        0" in limits

    with_checker(run)


def run_child(jobs: bytes) -> tuple[int, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "proxy.checks.child"],
        input=jobs,
        capture_output=True,
        cwd=Path(checking.__file__).parents[2],
        timeout=60,
    )
    answers, rest = [], done.stdout
    while rest:
        size = int.from_bytes(rest[:4], "big")
        answers.append(unpack(rest[4 : 4 + size]))
        rest = rest[4 + size :]
    return done.returncode, answers


def test_the_child_ends_with_its_input() -> None:
    code, answers = run_child(
        pack(judge_job(check('{"a":"x"}'), 1.0)) + pack(compile_job(b'{"type":"x"}', 100, 1.0)) + pack({"half": 1})[:5]
    )
    assert answers[0] is None
    assert read_result(answers[1]) == judge(check('{"a":"x"}'))
    assert answers[2] == ["/type", 'the value of "type" is not one that JSON Schema allows']
    assert len(answers) == 3
    assert code != 0  # the input ended inside a frame


def test_the_child_ends_itself_when_its_cpu_time_is_used_up() -> None:
    code, answers = run_child(pack(judge_job(check('{"a":"x"}', HOSTILE), 0.1)))
    assert code == -signal.SIGPROF
    assert answers == [None]


def test_the_child_ends_well() -> None:
    assert run_child(b"") == (0, [None])


def test_a_million_fragments_are_handed_over_without_a_stall() -> None:
    async def run(checker: Checker) -> None:
        await checker.start()
        fragments = ('{"a":"', *"x" * 1_000_000, '"}')
        job = CallCheck(1, fragments, (False,) * len(fragments), b'{"type":"object"}')
        since = time.process_time()
        asked = asyncio.create_task(checker.judge([job]))
        await asyncio.sleep(0)
        # What the task did before it first waited.
        assert time.process_time() - since < 4 * 0.05
        assert (await asked)[0].verdict is Verdict.VALID

    with_checker(run)
