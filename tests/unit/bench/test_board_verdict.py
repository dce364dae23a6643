"""What is called worse: what got worse by more than noise, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.board.figures import FIGURES
from bench.board.verdict import ERROR, LEAST_ROUNDS, Change, Pair, Verdict, judge, judge_all

COST, SPEED = FIGURES["sampler_cpu"], FIGURES["episode_speed"]
ROUNDS = 10
PLANTED = 1.2


def draw_noise(kind: str, deviation: float, random: np.random.Generator) -> np.ndarray:
    """Logarithms of what a machine adds to the ratio of each round."""
    match kind:
        case "normal":
            return random.normal(0, deviation, ROUNDS)
        case "heavy tails":
            return random.standard_t(3, ROUNDS) * deviation / math.sqrt(3)
        case _:  # Now and then one of the two is hit by a burst of another program.
            hit = random.random(ROUNDS) < 0.2
            return random.normal(0, deviation / 2, ROUNDS) + hit * random.choice([-3, 3], ROUNDS) * deviation


def simulate(noise: np.ndarray, ratio: float, random: np.random.Generator) -> list[Pair]:
    """What both versions took in each round. The machine drifts by far more than they differ."""
    old = 100 * np.exp(np.cumsum(random.normal(0, 0.1, len(noise))))
    return [Pair(new, before) for new, before in zip(old * ratio * np.exp(noise), old, strict=True)]


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "bursts"])
@pytest.mark.parametrize(
    "deviation", [pytest.param(0.01, marks=pytest.mark.slow), 0.05, pytest.param(0.15, marks=pytest.mark.slow)]
)
def test_a_comparison_of_equals_calls_something_worse_at_most_once_in_a_hundred(kind: str, deviation: float) -> None:
    random = np.random.default_rng(1)
    comparisons = 1000
    marked = 0
    for _ in range(comparisons):
        measured = {name: simulate(draw_noise(kind, deviation, random), 1.0, random) for name in FIGURES}
        marked += any(change.verdict is Verdict.WORSE for change in judge_all(measured).values())
    # Three standard deviations above the error that is promised.
    assert marked / comparisons <= ERROR + 3 * math.sqrt(ERROR / comparisons)


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "bursts"])
def test_a_fifth_more_is_found_beside_five_percent_of_noise(kind: str) -> None:
    random = np.random.default_rng(2)
    comparisons = 500
    found = 0
    for _ in range(comparisons):
        pairs = simulate(draw_noise(kind, 0.05, random), PLANTED, random)
        found += judge(COST, pairs, ERROR / len(FIGURES)).verdict is Verdict.WORSE
    assert found / comparisons >= 0.95


@given(
    ratios=st.lists(st.floats(0.2, 5.0), min_size=LEAST_ROUNDS, max_size=20),
    unit=st.floats(1e-3, 1e3),
)
@settings(max_examples=200)
def test_the_verdict_depends_on_neither_unit_nor_order_and_turns_round_with_the_versions(
    ratios: list[float], unit: float
) -> None:
    pairs = [Pair(ratio * 7, 7.0) for ratio in ratios]
    change = judge(COST, pairs, ERROR)
    scaled = judge(COST, [Pair(pair.new * unit, pair.old * unit) for pair in reversed(pairs)], ERROR)
    assert (interval(scaled), scaled.verdict) == (pytest.approx(interval(change)), change.verdict)
    swapped = judge(COST, [Pair(pair.old, pair.new) for pair in pairs], ERROR)
    change_of_swapped = [math.log1p(end) for end in interval(swapped)]
    assert change_of_swapped == pytest.approx([-math.log1p(end) for end in reversed(interval(change))], abs=1e-9)
    opposite = {Verdict.WORSE: Verdict.BETTER, Verdict.BETTER: Verdict.WORSE}
    assert swapped.verdict is opposite.get(change.verdict, change.verdict)


def interval(change: Change) -> list[float]:
    assert change.low is not None and change.change is not None and change.high is not None
    assert change.low <= change.change <= change.high
    return [change.low, change.change, change.high]


def test_less_is_worse_of_a_speed_and_better_of_a_cost() -> None:
    pairs = [Pair(50 + number / 10, 100.0) for number in range(6)]
    assert judge(SPEED, pairs, ERROR).verdict is Verdict.WORSE
    assert judge(COST, pairs, ERROR).verdict is Verdict.BETTER


def test_a_certain_change_below_the_least_effect_is_not_marked() -> None:
    pairs = [Pair(104.0 + number / 100, 100.0) for number in range(10)]
    change = judge(COST, pairs, ERROR)
    assert change.low is not None and change.low > 0.03
    assert change.verdict is Verdict.WITHIN_NOISE


def test_a_large_change_that_may_be_chance_is_not_marked() -> None:
    pairs = [Pair(value, 100.0) for value in (60.0, 180.0, 240.0, 90.0)]
    assert judge(COST, pairs, ERROR).verdict is Verdict.WITHIN_NOISE


def test_too_few_rounds_decide_nothing() -> None:
    change = judge(COST, [Pair(300.0, 100.0)] * (LEAST_ROUNDS - 1), ERROR)
    assert change.verdict is Verdict.TOO_FEW_ROUNDS
    assert (change.new, change.old, change.change, change.low, change.high) == (300.0, 100.0, None, None, None)


def test_the_error_is_divided_among_the_figures_that_were_measured() -> None:
    pairs = [Pair(100 + number, 100.0) for number in range(8)]
    alone = judge_all({"sampler_cpu": pairs, "learner_cpu": []})
    together = judge_all({"sampler_cpu": pairs, "learner_cpu": pairs})
    assert list(alone) == ["sampler_cpu"]
    assert interval(together["sampler_cpu"])[0] < interval(alone["sampler_cpu"])[0]
