"""Which backend is asked: globs, rewriting, order, and the circuit breaker as a model of its promises."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.routing.health import Breaker
from proxy.routing.plan import MAX_MODEL_CHARS, Route, RoutePlan, Router, order


def plan_for(backends: str, weights: tuple[float, ...] = ()) -> RoutePlan:
    return RoutePlan(Route(0, ("*",), tuple(backends), weights), "*", "m")


# --- the plan ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "pattern", "upstream"),
    [
        ("qwen3-32b", "qwen*", "qwen3-32b"),
        ("gpt-4o", "gpt-4o", "gpt-4o"),
        ("openai/gpt-4o", "openai/*", "gpt-4o"),
        ("openai/", "openai/*", "openai/"),
        ("fast", "fast", "qwen3-8b"),
        ("v1", "v[12]", "v1"),
        ("v3", "*", "v3"),
        ("QWEN3", "*", "QWEN3"),
        ("xqwen", "*", "xqwen"),
        ("gpt-4o\n", "*", "gpt-4o\n"),
        ("", "*", ""),
    ],
)
def test_the_first_glob_that_matches_wins_and_the_model_is_rewritten(model: str, pattern: str, upstream: str) -> None:
    router = Router(
        [
            Route(0, ("qwen*", "gpt-4o"), ("a",)),
            Route(1, ("openai/*",), ("a",), strip_prefix="openai/"),
            Route(2, ("fast",), ("a",), model="qwen3-8b"),
            Route(3, ("v[12]", "qwen3*"), ("a",)),
            Route(4, ("*",), ("a",)),
        ]
    )
    plan = router.match(model)
    assert plan is not None
    assert (plan.pattern, plan.model, plan.label) == (pattern, upstream, pattern)


def test_a_model_that_no_route_has_gives_nothing() -> None:
    router = Router([Route(0, ("a*",), ("x",))])
    assert router.match("b") is None
    assert router.default is None
    assert router.match("a" * (MAX_MODEL_CHARS + 1)) is None


def test_the_last_route_with_a_star_is_the_default() -> None:
    router = Router([Route(0, ("*",), ("x",)), Route(1, ("b", "*"), ("y",), model="m"), Route(2, ("c",), ("z",))])
    assert router.default is not None
    assert (router.default.route.index, router.default.model) == (1, "m")


def test_models_named_in_full_are_listed_once_and_globs_are_not() -> None:
    router = Router([Route(0, ("b", "a*"), ("x",)), Route(1, ("a", "b", "c?", "[d]"), ("x",))])
    assert router.plain_models == ("b", "a")


def test_a_label_is_never_longer_than_64_characters() -> None:
    plan = Router([Route(0, ("m" * 200,), ("x",))]).match("m" * 200)
    assert plan is not None
    assert plan.label == "m" * 64


def test_without_weights_backends_are_tried_in_order_and_those_that_are_down_are_left_out() -> None:
    assert order(plan_for("abc"), 0.9, lambda _: True) == ["a", "b", "c"]
    assert order(plan_for("abc"), 0.9, lambda name: name != "b") == ["a", "c"]


def test_where_all_backends_are_down_all_are_tried_in_order() -> None:
    assert order(plan_for("abc", (0, 0, 9)), 0.5, lambda _: False) == ["a", "b", "c"]


def test_the_first_backend_is_drawn_by_weight_and_the_others_follow_in_order() -> None:
    plan = plan_for("abcd", (1, 2, 0, 1))
    drawn = [order(plan, i / 8, lambda _: True) for i in range(8)]
    assert Counter(names[0] for names in drawn) == {"a": 2, "b": 4, "d": 2}
    assert drawn[3] == ["b", "a", "c", "d"]


def test_the_draw_is_among_the_backends_that_are_up() -> None:
    plan = plan_for("abc", (2, 1, 1))
    drawn = Counter(order(plan, i / 8, lambda name: name != "a")[0] for i in range(8))
    assert drawn == {"b": 4, "c": 4}
    assert order(plan_for("abc", (1, 0, 0)), 0.5, lambda name: name != "a") == ["b", "c"]


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=6).filter(any),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 63),
)
def test_an_order_has_each_usable_backend_once_and_is_never_empty(weights: list[float], draw: float, up: int) -> None:
    backends = "abcdef"[: len(weights)]
    usable = [name for i, name in enumerate(backends) if up >> i & 1]
    names = order(plan_for(backends, tuple(weights)), draw, usable.__contains__)
    assert sorted(names) == (usable or list(backends))
    assert names[1:] == sorted(names[1:])


# --- the breaker -------------------------------------------------------------------------------------------------


def opened(now: float = 0.0, retry_after_s: float | None = None) -> Breaker:
    breaker = Breaker()
    for _ in range(5):
        breaker.record_failure(now, retry_after_s)
    return breaker


def test_failures_in_a_row_open_the_breaker_and_one_success_starts_the_count_again() -> None:
    breaker = Breaker()
    for _ in range(3):
        for _ in range(4):
            breaker.record_failure(0.0)
        breaker.record_success(0.0)
    assert breaker.state(0.0) == "closed"
    for _ in range(5):
        assert breaker.begin(0.0)
        breaker.record_failure(0.0)
    assert breaker.state(0.0) == "open"
    assert not breaker.begin(0.0)


def test_failures_that_lie_further_apart_than_the_window_open_nothing() -> None:
    breaker = Breaker(window_s=60)
    for i in range(50):
        breaker.record_failure(i * 16.0)
    assert breaker.is_up(800.0)


def test_after_the_back_off_one_probe_passes_and_its_success_closes() -> None:
    breaker = opened()
    assert not breaker.is_up(0.99)
    assert breaker.state(1.0) == "half_open"
    assert breaker.is_up(1.0)
    assert breaker.begin(1.0)
    assert not breaker.is_up(1.0)
    assert not breaker.begin(1.5)
    breaker.record_success(2.0)
    assert breaker.state(2.0) == "closed"
    assert breaker.begin(2.0)
    assert breaker.begin(2.0)


def test_the_back_off_doubles_from_one_second_to_sixty() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(9):
        start = now
        while not breaker.begin(now):
            now += 0.5
        waits.append(now - start)
        breaker.record_failure(now)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_an_outage_after_a_recovery_begins_with_one_second_again() -> None:
    breaker = opened()
    breaker.begin(1.0)
    breaker.record_failure(1.0)
    breaker.begin(3.0)
    breaker.record_success(3.0)
    for _ in range(5):
        breaker.record_failure(3.0)
    assert breaker.is_up(4.0)


def test_a_client_that_leaves_during_the_probe_makes_room_for_the_next_one() -> None:
    breaker = opened()
    assert breaker.begin(1.0)
    breaker.release()
    assert breaker.begin(1.0)


def test_a_probe_without_an_outcome_does_not_close_the_backend_for_ever() -> None:
    breaker = opened()
    assert breaker.begin(1.0)
    assert not breaker.begin(60.9)
    assert breaker.begin(61.0)


@pytest.mark.parametrize(
    ("retry_after_s", "up_at"),
    [(None, 1), (0, 1), (-5, 1), (math.nan, 1), (0.5, 1), (20, 20), (3600, 60), (math.inf, 60)],
)
def test_retry_after_keeps_an_open_breaker_open_but_not_beyond_a_minute(
    retry_after_s: float | None, up_at: float
) -> None:
    breaker = opened(0.0, retry_after_s)
    assert not breaker.is_up(up_at - 0.01)
    assert breaker.is_up(up_at)


def test_retry_after_on_a_single_failure_opens_nothing() -> None:
    breaker = Breaker()
    breaker.record_failure(0.0, 30.0)
    assert breaker.is_up(0.0)


def test_late_failures_of_an_outage_double_nothing() -> None:
    breaker = opened()
    for _ in range(100):
        breaker.record_failure(0.5)
    assert breaker.is_up(1.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "success", "failure", "release", "wait"]),
        st.floats(0, 100),
        st.none() | st.floats(-10, 1e6),
    ),
    max_size=60,
)


@given(STEPS)
def test_a_breaker_lets_out_one_probe_at_a_time_and_is_never_stuck(
    steps: list[tuple[str, float, float | None]],
) -> None:
    breaker, now = Breaker(), 0.0
    probe_until = -1.0
    for action, seconds, retry_after_s in steps:
        is_up, state = breaker.is_up(now), breaker.state(now)
        if action == "begin":
            assert breaker.begin(now) is is_up
            if is_up and state == "half_open":
                assert now >= probe_until, "a second probe while one is out"
                probe_until = now + 60.0
        elif action == "success":
            breaker.record_success(now)
            probe_until = -1.0
            assert breaker.state(now) == "closed"
        elif action == "failure":
            breaker.record_failure(now, retry_after_s)
            if state == "half_open":
                assert breaker.state(now) == "open"
                probe_until = -1.0
        elif action == "release":
            breaker.release()
            probe_until = -1.0
        else:
            now += seconds
    # whatever happened: at most a minute of waiting for the back-off or for a lost probe, then it is tried again
    assert breaker.is_up(now + 60.001)
