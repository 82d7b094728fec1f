"""Asking the model again for a faulty call: the client sees one reply, whatever the later turns bring."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from proxy.checks.judge import judge
from proxy.exchange import Exchange, ExchangeSettings
from proxy.faults import Fault, FaultKind
from proxy.model.commands import Ask, Check, Command, Finish, Retry, Send, Start
from proxy.policy.reask import STANDING
from test_exchange import DONE, HEAD, ROLE, call, chunk, exchange

SETTINGS = ExchangeSettings(reask=2, annotations="always")
GOOD = call('{"harbor":"Hull"}', call_id="g", name="get_tide")
BAD = call('{"town":"Cork"}', index=1, call_id="b", name="get_tide")
CUT_TEXT = call('{"harbor":', index=1, call_id="b", name="get_tide")
FIXED = call('{"harbor":"Cork"}', call_id="n", name="get_tide")
END = chunk(finish="tool_calls") + DONE


def usage(tokens: int) -> bytes:
    counts = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
    document = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
        "choices": [],
        "usage": counts,
    }
    return b"data: " + json.dumps(document).encode() + b"\n\n"


class Script:
    """Plays one upstream reply a turn; `asked` are the requests of the further turns."""

    def __init__(self, machine: Exchange) -> None:
        self.machine = machine
        self.out = b""
        self.status = 0
        self.asked: list[dict[str, Any]] = []
        self.finish: Finish | None = None

    def play(self, *turns: bytes | Fault) -> Script:
        first, *later = turns
        assert isinstance(first, bytes)
        self._carry_out(self.machine.receive(first, 1.0))
        for turn in later:
            assert self.finish is None, "over before its time"
            if isinstance(turn, Fault):
                self._carry_out(self.machine.broken(turn, 2.0))
            else:
                self.machine.opened(200, HEAD, 2.0)
                self._carry_out(self.machine.receive(turn, 2.0))
        return self

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(data):
                    self.out += data
                case Start(status):
                    self.status = status
                case Check(jobs):
                    self._carry_out(self.machine.checked([judge(job) for job in jobs], 1.0))
                case Ask(request):
                    self.asked.append(request.body)
                case Finish():
                    self.finish = command
                case Retry():
                    pytest.fail("a further turn is never tried elsewhere")

    @property
    def calls(self) -> list[tuple[str, str]]:
        found: dict[int, list[str]] = {}
        for document in self.documents:
            for choice in document.get("choices", ()):
                for entry in choice["delta"].get("tool_calls", ()):
                    place = found.setdefault(entry["index"], ["", ""])
                    place[0] += entry.get("id", "")
                    place[1] += entry["function"]["arguments"]
        return [(a, b) for a, b in found.values()]

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line[6:]) for line in self.out.splitlines() if line.startswith(b"data: {")]

    @property
    def outcome(self) -> str:
        assert self.finish is not None
        return self.finish.record.reask


def script(settings: ExchangeSettings = SETTINGS, **request: Any) -> Script:
    return Script(exchange(settings, **request))


def test_corrected_at_the_first_turn_the_valid_sibling_keeps_its_id_and_comes_once() -> None:
    run = script().play(ROLE + chunk({"content": "Look."}) + GOOD + BAD + END, ROLE + FIXED + END)
    assert run.calls == [("g", '{"harbor":"Hull"}'), ("n", '{"harbor":"Cork"}')]
    assert run.outcome == "corrected"
    assert run.status == 200
    assert run.out.endswith(b"data: [DONE]\n\n")
    assert run.out.count(b"Look.") == 1


def test_the_model_is_told_of_each_call_in_a_fixed_wording() -> None:
    run = script().play(ROLE + chunk({"content": "Look."}) + GOOD + BAD + END, ROLE + FIXED + END)
    user, assistant, accepted, rejected = run.asked[0]["messages"]
    assert user["role"] == "user"
    assert assistant["content"] == "Look."
    assert [c["id"] for c in assistant["tool_calls"]] == ["g", "b"]
    assert accepted["tool_call_id"] == "g"
    assert "Do not repeat" in accepted["content"]
    assert rejected["tool_call_id"] == "b"
    assert rejected["content"].startswith("Rejected: the arguments break the tool's schema")
    assert "Cork" not in rejected["content"]
    assert "town" not in rejected["content"]


def test_corrected_at_the_third_turn() -> None:
    run = script().play(ROLE + BAD + END, ROLE + CUT_TEXT + END, ROLE + FIXED + END)
    assert run.calls == [("n", '{"harbor":"Cork"}')]
    assert run.outcome == "corrected"
    assert len(run.asked[1]["messages"]) == 5


def test_exhausted_the_policy_decides_as_if_nothing_had_been_asked() -> None:
    run = script().play(ROLE + GOOD + BAD + END, ROLE + BAD + END, ROLE + BAD + END)
    assert run.outcome == "exhausted"
    assert run.status == 502
    assert json.loads(run.out)["error"]["code"] == "schema_violation"
    dropped = script(replace(SETTINGS, block_as="drop")).play(
        ROLE + GOOD + BAD + END, ROLE + BAD + END, ROLE + BAD + END
    )
    assert dropped.calls == [("g", '{"harbor":"Hull"}')]


@pytest.mark.parametrize(
    "second",
    [
        Fault(FaultKind.UNREACHABLE, "gone"),
        ROLE + FIXED + b"data: {broken\n\n",
        b'data: {"error": {"message": "overloaded"}}\n\n',
    ],
)
def test_a_second_turn_that_fails_leaves_the_first_as_it_was(second: bytes | Fault) -> None:
    run = script(replace(SETTINGS, block_as="drop")).play(ROLE + GOOD + BAD + END, second)
    assert run.outcome == "failed"
    assert run.calls == [("g", '{"harbor":"Hull"}')]


def test_a_repeat_of_an_accepted_call_is_dropped_and_told() -> None:
    again = call('{ "harbor": "Hull" }', call_id="g2", name="get_tide")
    fixed = call('{"harbor":"Cork"}', index=1, call_id="n", name="get_tide")
    run = script().play(ROLE + GOOD + BAD + END, ROLE + again + fixed + END)
    assert run.calls == [("g", '{"harbor":"Hull"}'), ("n", '{"harbor":"Cork"}')]
    assert b"reask_repeat" in run.out


def test_the_new_turns_text_is_not_mixed_in_and_usage_is_the_sum() -> None:
    run = script(stream_options={"include_usage": True}).play(
        ROLE + BAD + chunk(finish="tool_calls") + usage(5) + DONE,
        ROLE + chunk({"content": "Sorry, here it is."}) + FIXED + chunk(finish="tool_calls") + usage(7) + DONE,
    )
    assert b"Sorry" not in run.out
    told = [d["usage"] for d in run.documents if d.get("usage")]
    assert told == [{"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32}]


def test_a_required_call_that_did_not_come_is_asked_for() -> None:
    run = script(tool_choice="required").play(ROLE + chunk({"content": "No."}, "stop") + DONE, ROLE + FIXED + END)
    assert run.calls == [("n", '{"harbor":"Cork"}')]
    assert run.asked[0]["messages"][-1]["role"] == "user"
    assert run.out.count(b"No.") == 1


def test_a_call_that_the_limit_cut_is_not_asked_for_again() -> None:
    run = script().play(ROLE + BAD + chunk(finish="length") + DONE)
    assert run.asked == []
    assert run.outcome == ""


def test_the_budgets_end_the_asking() -> None:
    spent = script(replace(SETTINGS, reask_tokens=5)).play(ROLE + BAD + chunk(finish="tool_calls") + usage(5) + DONE)
    assert spent.asked == []
    late = script(replace(SETTINGS, reask_s=0.5)).play(ROLE + BAD + END)
    assert late.asked == []


def test_a_client_that_left_in_between_ends_it() -> None:
    run = script().play(ROLE + BAD + END)
    assert len(run.asked) == 1
    (finish,) = run.machine.gone(1.5)
    assert isinstance(finish, Finish)
    assert finish.record.outcome == "gone"


def test_between_the_turns_comments_keep_the_connection_alive() -> None:
    run = script().play(ROLE + chunk({"content": "Look."}) + BAD + END)
    assert run.machine.deadline == pytest.approx(11.0)
    (send,) = run.machine.tick(11.0)
    assert isinstance(send, Send)
    assert send.data == b": wholecall\n\n"


def test_a_further_call_where_one_is_allowed_is_not_asked_for_again() -> None:
    run = script(replace(SETTINGS, block_as="drop"), parallel_tool_calls=False).play(ROLE + GOOD + BAD + END)
    assert run.calls == [("g", '{"harbor":"Hull"}')]
    assert run.asked == []


def test_a_fault_that_stands_while_all_new_calls_are_good_is_named() -> None:
    other = call('{"town":"Kiel"}', call_id="c", name="get_tide")
    again = call('{"harbor":"Cork"}', call_id="d", name="get_tide")
    run = script().play(ROLE + other + BAD + END, ROLE + FIXED + END, ROLE + again + END)
    assert run.asked[1]["messages"][-1] == {"role": "user", "content": STANDING}


def test_a_faulty_call_that_no_new_call_came_for_stands() -> None:
    other = call('{"town":"Kiel"}', call_id="c", name="get_tide")
    run = script(replace(SETTINGS, reask=1, block_as="drop")).play(ROLE + other + BAD + END, ROLE + FIXED + END)
    assert run.calls == [("n", '{"harbor":"Cork"}')]
    assert run.outcome == "exhausted"
    verdicts = [c["verdict"] for d in run.documents if "wholecall" in d for c in d["wholecall"]["calls"]]
    assert sorted(verdicts) == ["schema_violation", "valid"]


def test_a_further_turn_that_a_limit_cut_corrects_nothing() -> None:
    run = script(replace(SETTINGS, reask=1, block_as="drop")).play(
        ROLE + GOOD + BAD + END, ROLE + CUT_TEXT + chunk(finish="length") + DONE
    )
    assert run.calls == [("g", '{"harbor":"Hull"}')]
    assert run.outcome == "exhausted"


def test_a_turn_that_a_limit_cut_does_not_spoil_the_next_one() -> None:
    run = script().play(ROLE + BAD + END, ROLE + CUT_TEXT + chunk(finish="length") + DONE, ROLE + FIXED + END)
    assert run.calls == [("n", '{"harbor":"Cork"}')]
    assert run.outcome == "corrected"


def test_a_text_only_turn_is_told_what_stands_and_not_that_a_call_is_required() -> None:
    run = script().play(ROLE + BAD + END, ROLE + chunk({"content": "Sorry."}, "stop") + DONE, ROLE + FIXED + END)
    assert run.asked[1]["messages"][-1] == {"role": "user", "content": STANDING}


@pytest.mark.parametrize("wish", [{"text": "hello"}, {"text": [1]}, {"output_config": True}, {"guided_json": {}}])
def test_unknown_fields_of_a_request_pass(wish: dict[str, Any]) -> None:
    assert script(**wish).play(ROLE + GOOD + END).calls == [("g", '{"harbor":"Hull"}')]
