"""The rule of decision holds for the shapes that runs have: a short version of the bank of cases.

Each bound is one that a rule which is wrong in 5 % of studies exceeds less than once in a million times;
`python -m bench judge` measures the rates themselves.
"""

from __future__ import annotations

import pytest
from scipy import stats

from bench.judge.bank import Case, cases, play, play_real

BANK = {case.name: case for case in cases()}
FOUND = (
    "mean 0.9, sd 0.1 against 0.02",
    "mean 0.93, sd 0.08 against 0.015",
    "mean 0.07, sd 0.08 against 0.015",
    "two groups, 0.7 and 0.3, against 0.5",
    "trained until liked: lower half",
    "seeds left out: lower third",
    "trained until above 0.85 at mean 0.9",
)


def most_by_chance(rate: float, studies: int) -> int:
    return int(stats.binom.isf(1e-6, studies, rate))


@pytest.mark.parametrize("name", FOUND)
def test_arms_with_the_mean_of_the_baseline_are_neither_kept_nor_called_worse(name: str) -> None:
    rates = play(BANK[name], seeds=9, studies=250, seed=1)

    assert max(rates.kept, rates.worse) <= most_by_chance(0.05, rates.studies)


def test_program_that_picks_its_trainings_gains_nothing_by_it() -> None:
    picked = BANK["trained until liked: lower half"]
    without = Case("the same, every training shown", picked.baseline, picked.baseline)
    studies = 250

    gained = play(picked, seeds=9, studies=studies, seed=2).kept - play(without, seeds=9, studies=studies, seed=2).kept
    assert gained <= most_by_chance(0.02, studies)


def test_better_arm_is_found_as_often_as_the_docs_say() -> None:
    rates = play(BANK["better by 0.10, sd 0.05"], seeds=9, studies=250, seed=3)

    assert rates.studies - rates.first_kept <= most_by_chance(0.24, rates.studies)


@pytest.mark.parametrize("name", ["trained until liked: lower third", "20 % fail and count with the base score"])
def test_real_nodes_decide_as_the_judge_alone(name: str) -> None:
    case, studies = BANK[name], 12
    real, alone = play_real(case, 6, studies, seed=4), play(case, 6, 200, seed=4)

    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], studies, max(alone.kept / alone.studies, 0.02))
    assert low <= real.kept <= high


def test_case_that_no_test_can_hold_says_why() -> None:
    assert all(case.why for case in BANK.values() if case.impossible_with)
    assert all(set(case.impossible_with) <= set(case.seeds) for case in BANK.values())
