"""When a run is given up, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from waiting import SetClock

from researcher.execution.early_stopping import (
    OVERRUN_FACTOR,
    PACE_STEPS,
    STALL_FACTOR,
    TIME_LIMITS,
    EarlyStopping,
    StoppingLimits,
)
from researcher.record.runs import Diagnosis
from swarm.guard import ENTROPY, GROUPS, KL, REWARD, SILENT_GROUPS, SPREAD, SUCCESS


def _watch(rewards: Iterable[float], **limits: float) -> EarlyStopping:
    early_stopping = EarlyStopping(StoppingLimits(**limits), "local", 30, clock=SetClock(0.0))  # pyright: ignore[reportArgumentType]
    for step, reward in enumerate(rewards, start=1):
        early_stopping.observe(step, {REWARD: reward, "actor/entropy": 0.5})
    return early_stopping


@pytest.mark.parametrize(
    "rewards",
    [[], [0.0] * 11, [0.0] * 11 + [0.1] * 5, [0.1, 0.2, 0.5, 0.9, 1.0] * 4, [1.0] * 40, [0.05] * 5 + [0.0] * 6],
)
def test_run_that_may_still_learn_goes_on(rewards: list[float]) -> None:
    assert _watch(rewards).diagnose() is None


@pytest.mark.parametrize(
    ("steps", "kind", "is_scored", "words"),
    [
        ([{REWARD: 0.0}] * 12, "dead_reward", True, ["12 steps"]),
        (
            [{REWARD: value, ENTROPY: 0.5} for value in (0.2, 0.4, 0.6, 0.8, 0.8, *[0.01] * 8)],
            "collapse",
            True,
            ["0.010", "entropy 0.5"],
        ),
        *(
            ([{REWARD: 0.5}] * 2 + [{REWARD: 0.5, "actor/pg_loss": value}], "not_finite", False, ["pg_loss", "step 3"])
            for value in (math.nan, math.inf, None)
        ),
        ([{REWARD: 0.5, KL: 25.0}], "kl_divergence", True, []),
    ],
)
def test_a_fault_that_the_guard_finds_ends_the_run_and_is_not_tried_again(
    steps: list[dict[str, float | None]], kind: str, is_scored: bool, words: list[str]
) -> None:
    diagnosis = _diagnose(steps)
    assert diagnosis is not None and (diagnosis.kind, diagnosis.is_scored, diagnosis.is_retried) == (
        kind, is_scored, False,
    )  # fmt: skip
    assert all(word in diagnosis.sentence for word in words)


def test_stall_is_the_systems_fault_and_a_step_resets_it() -> None:
    clock = SetClock(0.0)
    early_stopping = EarlyStopping(StoppingLimits(stall_s=10), "local", 30, clock=clock)
    clock.now = 9.0
    early_stopping.observe(1, {REWARD: 0.1})
    clock.now = 18.0
    assert early_stopping.diagnose() is None

    clock.now = 20.0
    diagnosis = early_stopping.diagnose()

    assert diagnosis is not None and diagnosis.kind == "stall" and diagnosis.is_retried and not diagnosis.is_scored


def test_time_without_an_answer_of_the_server_is_neither_a_stall_nor_an_overrun() -> None:
    clock = SetClock(0.0)
    early_stopping = EarlyStopping(StoppingLimits(stall_s=10, overrun_s=15), "local", 30, clock=clock)
    clock.now = 9.0
    early_stopping.pause()
    clock.now = 5000.0
    early_stopping.pause()
    early_stopping.resume()
    early_stopping.resume()
    assert early_stopping.diagnose() is None

    clock.now += 2.0
    diagnosis = early_stopping.diagnose()

    assert diagnosis is not None and diagnosis.kind == "stall"


def test_a_stall_is_measured_by_the_engine_at_first_and_by_the_runs_own_steps_then() -> None:
    clock = SetClock(0.0)
    early_stopping = EarlyStopping(StoppingLimits(), "local", 30, clock=clock)
    clock.now = TIME_LIMITS["local"].step_s - 1
    assert early_stopping.diagnose() is None
    early_stopping.observe(1, {REWARD: 0.1})
    clock.now += STALL_FACTOR * TIME_LIMITS["local"].step_s - 20
    assert early_stopping.diagnose() is None
    clock.now += 20
    diagnosis = early_stopping.diagnose()
    assert diagnosis is not None and diagnosis.kind == "stall"


def test_a_run_may_take_what_its_first_steps_announce() -> None:
    clock = SetClock(0.0)
    early_stopping = EarlyStopping(StoppingLimits(), "fake", 1000, clock=clock)
    for step in range(1, PACE_STEPS + 1):
        clock.now += 60.0
        early_stopping.observe(step, {REWARD: 0.1})
    while clock.now < OVERRUN_FACTOR * 60.0 * 1000:
        assert early_stopping.diagnose() is None
        clock.now += 60.0
        early_stopping.observe(6, {REWARD: 0.1})
    clock.now += 1
    diagnosis = early_stopping.diagnose()
    assert diagnosis is not None and diagnosis.kind == "overrun" and not diagnosis.is_retried


def test_what_came_before_the_training_is_not_counted() -> None:
    clock = SetClock(0.0)
    early_stopping = EarlyStopping(StoppingLimits(), "verl", 30, clock=clock)
    clock.now = 2 * TIME_LIMITS["verl"].step_s
    early_stopping.begin()
    assert early_stopping.diagnose() is None


def _steps(count: int, **metrics: float) -> list[dict[str, float | None]]:
    names = {"reward": REWARD, "spread": SPREAD, "success": SUCCESS, "entropy": ENTROPY, "silent": SILENT_GROUPS}
    return [{GROUPS: 16.0, **{names[name]: value for name, value in metrics.items()}} for _ in range(count)]


def _diagnose(steps: Iterable[dict[str, float | None]], limits: StoppingLimits | None = None) -> Diagnosis | None:
    early_stopping = EarlyStopping(limits or StoppingLimits(), "local", 100, clock=SetClock(0.0))
    for step, metrics in enumerate(steps, start=1):
        early_stopping.observe(step, metrics)
    return early_stopping.diagnose()


def test_groups_without_a_difference_end_a_run_that_has_not_solved_its_task() -> None:
    diagnosis = _diagnose([*_steps(3, reward=0.4, silent=4), *_steps(12, reward=0.5, silent=16)])
    assert diagnosis is not None and diagnosis.kind == "no_signal"
    assert diagnosis.is_scored and not diagnosis.is_retried
    assert _diagnose(_steps(15, reward=0.97, silent=16)) is None
    assert _diagnose(_steps(11, reward=0.5, silent=16)) is None
    assert _diagnose([*_steps(12, reward=0.5, silent=16), *_steps(1, reward=0.5, silent=12)]) is None


def test_a_policy_that_has_settled_on_wrong_answers_is_stopped_and_one_on_right_answers_is_not() -> None:
    before = _steps(5, reward=0.2, success=0.2, entropy=1.5)
    diagnosis = _diagnose([*before, *_steps(12, reward=0.3, success=0.3, entropy=0.001)])
    assert diagnosis is not None and diagnosis.kind == "entropy_collapse" and diagnosis.is_scored
    assert "1.5" in diagnosis.sentence
    assert _diagnose([*before, *_steps(12, reward=0.99, success=0.99, entropy=0.001)]) is None
    assert _diagnose([*before, *_steps(12, reward=0.3, success=0.3, entropy=0.1)]) is None


def test_a_training_reward_that_rises_while_fewer_tasks_are_solved_is_a_reward_gap() -> None:
    before = _steps(5, reward=0.2, spread=0.3, success=0.4)
    diagnosis = _diagnose([*before, *_steps(5, reward=0.9, spread=0.1, success=0.1)])
    assert diagnosis is not None and diagnosis.kind == "reward_gap" and diagnosis.is_scored
    assert "0.200 to 0.900" in diagnosis.sentence and "0.400 to 0.100" in diagnosis.sentence
    for reward, success in ((0.9, 0.4), (0.3, 0.2), (0.9, 0.35)):
        assert _diagnose([*before, *_steps(5, reward=reward, spread=0.1, success=success)]) is None


def test_limits_are_wider_where_runs_that_went_well_came_close_to_them() -> None:
    slow = [*_steps(20, reward=0.0, silent=16), *_steps(10, reward=0.5, silent=4)]
    slow[25] = {**slow[25], KL: -9.0}
    wider = StoppingLimits().learned_from([slow, _steps(5, reward=0.5, silent=2)])
    assert (wider.dead_steps, wider.silent_steps, wider.kl_limit) == (40, 40, 18.0)
    assert StoppingLimits().learned_from([_steps(5, reward=0.5, silent=2)]) == StoppingLimits()
    assert _diagnose(_steps(20, reward=0.0)) is not None
    assert _diagnose(_steps(20, reward=0.0), wider) is None
