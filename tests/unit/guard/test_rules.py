"""The rules over the metrics of a training: what they find, how soon, and what they leave alone."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from swarm.guard import (
    AGREEMENT,
    ENTROPY,
    GRADED_GROUPS,
    GROUPS,
    KL,
    REWARD,
    SILENT_GROUPS,
    SPREAD,
    SUCCESS,
    MetricLimits,
    StepRow,
    TrainingFault,
    find_fault,
)

NAMES = {
    "reward": REWARD, "spread": SPREAD, "success": SUCCESS, "entropy": ENTROPY, "kl": KL, "groups": GROUPS,
    "silent": SILENT_GROUPS, "agreement": AGREEMENT, "graded": GRADED_GROUPS,
}  # fmt: skip
LIMITS = MetricLimits()
EPISODES = 128
SOON = 5
"""Steps within which a collapse has to be noticed, counted from the first one whose batch shows it."""


def rows_of(training: dict[str, list[float | None]]) -> list[StepRow]:
    columns = {NAMES[short]: values for short, values in training.items() if short in NAMES}
    return [
        StepRow(place + 1, {name: value for name, values in columns.items() if (value := values[place]) is not None})
        for place in range(len(training["reward"]))
    ]


RECORDED = json.loads((Path(__file__).parents[2] / "guarded_trainings.json").read_text())
"""Real trainings of the bundled model on several tasks, algorithms and learning rates."""
HEALTHY = [rows_of(each) for each in RECORDED["healthy"]]


def first(rows: Sequence[StepRow], limits: MetricLimits = LIMITS, *, begin: int = 0) -> TrainingFault | None:
    """What is found first, when the rules look at every step behind `begin` as it is done."""
    ends = range(begin + 1, len(rows) + 1)
    return next((found for end in ends if (found := find_fault(rows[:end], limits))), None)


def scored(rates: Iterable[float], *, groups: float = 16, **more: float) -> list[StepRow]:
    """Steps with these success rates, and rewards of 0 and 1."""
    others = {NAMES[name]: value for name, value in more.items()}
    return [
        StepRow(
            step,
            {REWARD: rate, SUCCESS: rate, SPREAD: math.sqrt(max(0.0, rate * (1 - rate))), GROUPS: groups, **others},
        )
        for step, rate in enumerate(rates, start=1)
    ]


def drawn(rates: Iterable[float], seed: int) -> list[float]:
    """Success rates as batches of EPISODES show them."""
    source = random.Random(seed)
    return [sum(source.random() < rate for _ in range(EPISODES)) / EPISODES for rate in rates]


def test_no_training_that_went_well_is_touched() -> None:
    assert len(HEALTHY) >= 40
    assert [found for rows in HEALTHY if (found := first(rows)) is not None] == []


@pytest.mark.parametrize("level", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("groups", [1, 2, 16])
def test_the_noise_of_a_policy_that_does_not_change_is_no_fault(level: float, groups: int) -> None:
    """With one group of two episodes a step, many rewards in a row are 0 by chance."""
    limits = LIMITS if level else MetricLimits(dead_steps=10**6)
    for seed in range(5):
        source = random.Random(seed)
        rates = [sum(source.random() < level for _ in range(2 * groups)) / (2 * groups) for _ in range(100)]
        assert first(scored(rates, groups=groups), limits) is None


@pytest.mark.parametrize("training", RECORDED["collapsed"])
def test_real_collapses_are_noticed_in_the_third_batch_that_shows_them(training: dict[str, Any]) -> None:
    """At the default learning rate, a step left the policy without any right answer, and no later one mended it."""
    rows = rows_of(training)
    fallen = next(row.step for row in rows if row.metrics[SUCCESS] == 0)
    found = first(rows)
    assert found is not None and (found.kind, found.step) == ("collapse", fallen + 2)
    assert found.good_step == fallen - 2, "the update of the step before the first bad batch was the bad one"


def collapses() -> dict[str, Callable[[float, int], float]]:
    """The success rate so many steps after the fault, from the rate before it."""
    return {
        "at once": lambda rate, step: 0.0,
        "to chance": lambda rate, step: 0.15 * rate,
        "in three steps": lambda rate, step: rate * max(0.0, 1 - step / 3),
    }


@pytest.mark.parametrize("shape", collapses())
def test_a_collapse_is_noticed_within_five_steps_and_the_weights_before_it_are_named(shape: str) -> None:
    for number, rows in enumerate(HEALTHY):
        rates = [row.metrics.get(SUCCESS) or row.metrics[REWARD] or 0.0 for row in rows]
        planted = len(rates) - 2
        level = sum(rates[planted - 4 : planted]) / 4
        after = drawn((collapses()[shape](level, step) for step in range(1, SOON + 1)), number)
        collapsing = scored([*rates[:planted], *after])
        found = first(collapsing, begin=planted)
        assert found is not None and found.kind == "collapse", (number, level)
        # The first bad batch, of step `planted` + 1, was sampled with the weights of step `planted`.
        assert planted < found.step <= planted + SOON
        assert found.good_step is not None and found.good_step < planted
        assert rates[found.good_step] >= 0.8 * level, "the batch of the weights that are named was as good"


def test_a_reward_that_is_turned_around_is_noticed_at_its_second_step() -> None:
    rows = scored([0.2, 0.4, 0.6, 0.7, 0.7, 0.7])
    turned = [StepRow(step, {**rows[-1].metrics, REWARD: -0.7}) for step in range(7, 10)]
    found = first([*rows, *turned])
    assert found is not None and (found.kind, found.step, found.good_step) == ("collapse", 8, 5)


def test_a_program_may_make_its_reward_smaller_while_it_solves_as_much() -> None:
    rows = scored([0.2, 0.4, 0.6, 0.7, 0.7, 0.7])
    smaller = [StepRow(step, {**rows[-1].metrics, REWARD: 0.2}) for step in range(7, 20)]
    assert first([*rows, *smaller]) is None


@pytest.mark.parametrize("value", [math.nan, -math.inf, None])
def test_a_number_that_is_not_finite_is_noticed_at_once(value: float | None) -> None:
    rows = scored([0.5, 0.5])
    found = first([*rows, StepRow(3, {REWARD: 0.5, "actor/pg_loss": value})])
    assert found is not None and (found.kind, found.step, found.good_step) == ("not_finite", 3, 2)


@pytest.mark.parametrize(("updates", "kind"), [({}, "not_finite"), ({"actor/updates": 3.0}, None)])
def test_a_step_all_of_whose_updates_were_skipped_is_one_of_them(updates: dict[str, float], kind: str | None) -> None:
    found = find_fault([StepRow(1, {REWARD: 0.5, "actor/updates_not_finite": 1.0, **updates})], LIMITS)
    assert (None if found is None else found.kind) == kind


def test_a_leap_of_the_policy_is_noticed_at_once() -> None:
    found = first([*scored([0.5, 0.5]), StepRow(3, {REWARD: 0.5, KL: -11.0})])
    assert found is not None and (found.kind, found.good_step) == ("kl_divergence", 2)


def test_groups_without_a_difference_name_the_weights_before_them() -> None:
    rows = [*scored([0.3, 0.4, 0.5], silent=4), *(StepRow(step, {**scored([0.5], silent=16)[0].metrics})
            for step in range(4, 16))]  # fmt: skip
    found = first(rows)
    assert found is not None and (found.kind, found.step, found.good_step) == ("no_signal", 15, 2)
    never = first([StepRow(step, scored([0.5], silent=16)[0].metrics) for step in range(1, 13)])
    assert never is not None and never.good_step is None


def test_a_settled_policy_names_the_weights_before_it() -> None:
    entropies = [1.5] * 6 + [0.001] * 12
    found = first([StepRow(step, {SUCCESS: 0.3, ENTROPY: value}) for step, value in enumerate(entropies, start=1)])
    assert found is not None and (found.kind, found.step, found.good_step) == ("entropy_collapse", 18, 5)


def test_a_few_groups_a_step_need_more_steps_before_rewards_of_zero_say_anything() -> None:
    assert (found := first(scored([0.0] * 12))) is not None and found.kind == "dead_reward"
    assert first(scored([0.0] * 49, groups=2)) is None
    assert (found := first(scored([0.0] * 50, groups=2))) is not None and found.good_step is None


def test_a_reward_that_is_turned_around_is_noticed_in_its_third_batch() -> None:
    rows = scored([0.6] * 5, agreement=1.0, graded=8)
    turned = [StepRow(6 + place, {**rows[-1].metrics, AGREEMENT: -0.9}) for place in range(3)]
    assert first([*rows, *turned[:2]]) is None
    found = first([*rows, *turned])
    assert found is not None and (found.kind, found.step, found.good_step) == ("contrary_reward", 8, 4)


def test_a_reward_that_was_contrary_from_the_first_step_leaves_no_good_weights() -> None:
    found = first(scored([0.5] * 3, agreement=-1.0, graded=8))
    assert found is not None and (found.kind, found.good_step) == ("contrary_reward", None)


@pytest.mark.parametrize("agreement", [-0.4, 0.0, 1.0])
def test_a_reward_with_little_to_do_with_success_is_not_contrary(agreement: float) -> None:
    assert first(scored([0.5] * 30, agreement=agreement, graded=8)) is None


def test_a_few_contrary_groups_are_chance() -> None:
    rows = scored([0.5] * 11, agreement=-1.0, graded=1)
    assert first(rows) is None
    assert first([*rows, StepRow(12, rows[0].metrics)]) is not None
