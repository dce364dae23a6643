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
    SKIPPED_UPDATES,
    SPREAD,
    SUCCESS,
    UPDATES,
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


def then(rows: Sequence[StepRow], steps: int, **changes: float | None) -> list[StepRow]:
    """The rows, and so many steps like the last one but for some metrics."""
    changed = {NAMES.get(short, short): value for short, value in changes.items()}
    last = rows[-1]
    return [*rows, *(StepRow(last.step + number, {**last.metrics, **changed}) for number in range(1, steps + 1))]


RISING = scored([0.2, 0.4, 0.6, 0.7, 0.7, 0.7])
HALF = scored([0.5, 0.5])
AGREEING, CONTRARY = ({"agreement": value, "graded": 8.0} for value in (1.0, -1.0))
FAULTS: dict[str, tuple[list[StepRow], tuple[str, int, int | None] | None]] = {
    "the reward is turned around": (then(RISING, 3, reward=-0.7), ("collapse", 8, 5)),
    "a program makes its reward smaller and solves as much": (then(RISING, 13, reward=0.2), None),
    **{
        f"a loss of {value}": (then(HALF, 1, **{"actor/pg_loss": value}), ("not_finite", 3, 2))
        for value in (math.nan, -math.inf, None)
    },
    "all updates are skipped": (then(HALF, 1, **{SKIPPED_UPDATES: 1.0}), ("not_finite", 3, 2)),
    "some updates are skipped": (then(HALF, 1, **{SKIPPED_UPDATES: 1.0, UPDATES: 3.0}), None),
    "the policy leaps": (then(HALF, 1, kl=-11.0), ("kl_divergence", 3, 2)),
    "groups are without a difference": (then(scored([0.3, 0.4, 0.5], silent=4), 12, silent=16), ("no_signal", 15, 2)),
    "groups never differed": (scored([0.5] * 12, silent=16), ("no_signal", 12, None)),
    "the policy has settled": (
        [StepRow(step, {SUCCESS: 0.3, ENTROPY: 1.5 if step <= 6 else 0.001}) for step in range(1, 19)],
        ("entropy_collapse", 18, 5),
    ),
    "nothing is rewarded": (scored([0.0] * 12), ("dead_reward", 12, None)),
    "nothing is rewarded in too few groups": (scored([0.0] * 49, groups=2), None),
    "nothing is rewarded in few groups": (scored([0.0] * 50, groups=2), ("dead_reward", 50, None)),
    "two batches are contrary": (then(scored([0.6] * 5, **AGREEING), 2, agreement=-0.9), None),
    "three batches are contrary": (
        then(scored([0.6] * 5, **AGREEING), 3, agreement=-0.9),
        ("contrary_reward", 8, 4),
    ),
    "all batches are contrary": (scored([0.5] * 3, **CONTRARY), ("contrary_reward", 3, None)),
    "a few contrary groups are chance": (scored([0.5] * 11, agreement=-1.0, graded=1), None),
    "more contrary groups are none": (scored([0.5] * 12, agreement=-1.0, graded=1), ("contrary_reward", 12, None)),
    **{f"an agreement of {value}": (scored([0.5] * 30, agreement=value, graded=8), None) for value in (-0.4, 0.0, 1.0)},
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_noticed_as_soon_as_it_can_be_and_the_good_weights_before_it_are_named(case: str) -> None:
    rows, expected = FAULTS[case]
    found = first(rows)
    assert (found and (found.kind, found.step, found.good_step)) == expected
