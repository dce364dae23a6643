"""The rule of decision holds for the shapes that runs have: a short version of the bank of cases.

Each bound is one that a rule which is wrong in 5 % of studies exceeds less than once in a million times;
`python -m bench judge` measures the rates themselves, on more studies and through the real nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from researcher.charter import Charter


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global np, stats, Case, draw, judge_one, play, play_real, decide, fixed_seeds, beta, Verdict, Spread, power_of
    global SHRINKAGE, BANK, normal, evaluate, chances_of
    import numpy as np
    from scipy import stats

    from bench.judge.bank import Case, cases, draw, judge_one, play, play_real
    from bench.judge.many_studies import chances_of, decide, evaluate
    from bench.judge.policies import fixed_seeds
    from bench.judge.shapes import beta, normal
    from experiments_db import Verdict
    from researcher.judge.power import Spread, power_of
    from researcher.judge.samples import SHRINKAGE

    BANK = {case.name: case for case in cases()}


STUDIES = 1000


def most_by_chance(rate: float, studies: int) -> int:
    return int(stats.binom.isf(1e-6, studies, rate))


@pytest.mark.parametrize("arms", [1, pytest.param(3, marks=pytest.mark.slow), 4])
def test_arms_with_the_mean_of_the_baseline_are_neither_kept_nor_called_worse(arms: int) -> None:
    wrong: dict[tuple[str, int], int] = {}
    for name, case in BANK.items():
        for seeds in () if case.is_better else case.holding_with:
            rates = play(case, seeds, STUDIES, seed=1, arms=arms)
            wrong[name, seeds] = max(rates.kept, rates.worse)

    assert {case: count for case, count in wrong.items() if count > most_by_chance(0.05, STUDIES)} == {}


def test_program_that_picks_its_trainings_gains_nothing_by_it() -> None:
    picked = BANK["trained until liked: lower third"]
    without = Case("the same, every training shown", picked.baseline, picked.baseline)

    gained = play(picked, 9, STUDIES, seed=2).kept - play(without, 9, STUDIES, seed=2).kept
    assert gained <= most_by_chance(0.01, STUDIES)


@pytest.mark.parametrize("seeds", [6, 9])
def test_better_arm_is_found_as_often_as_the_design_says(seeds: int) -> None:
    charter = fixed_seeds(4, seeds).charter
    for case in (each for each in BANK.values() if each.is_better):
        found = play(case, seeds, STUDIES, seed=3).first_kept / STUDIES
        deviation, noise = float(case.name.split()[-1]), 0.25 / charter.eval_episodes
        said = power_of(charter, Spread(deviation**2, 1e6, noise, "known", 0.5), 4, seeds, 0.10)
        assert said == pytest.approx(found, abs=0.06), case.name


@pytest.mark.parametrize("seeds", [4, 9])
@pytest.mark.parametrize(("mean", "other"), [(0.98, 0.88), (0.95, 0.85), (0.85, 0.95), (0.02, 0.12), (0.1, 0.2)])
def test_arm_near_an_end_of_the_range_is_found_as_often_as_the_design_says(
    mean: float, other: float, seeds: int
) -> None:
    deviation, charter = 0.015, fixed_seeds(4, seeds).charter
    wider = deviation * (other * (1 - other) / (mean * (1 - mean))) ** (SHRINKAGE / 2)
    rates = play(Case("near an end", beta(other, wider), beta(mean, deviation), arms=1), seeds, STUDIES, seed=3)
    found = (rates.first_kept if other > mean else rates.worse) / STUDIES

    noise = mean * (1 - mean) / charter.eval_episodes
    said = power_of(charter, Spread(deviation**2, 1e6, noise, "known", mean), 4, seeds, 0.10)
    assert said == pytest.approx(found, abs=0.08)


@pytest.mark.parametrize(
    "name",
    [
        "mean 0.9, sd 0.1 against 0.02",
        "two groups, 0.7 and 0.3, in all arms",
        "20 % fail and count with the base score",
        "seeds left out: lower third",
        "trained until liked: lowest tenth",
        "better by 0.10, sd 0.05",
    ],
)
def test_arrays_decide_as_the_judge_does_study_by_study(name: str) -> None:
    charter, studies = fixed_seeds(4, 6).charter, 40
    arms, baseline = draw(BANK[name], charter, 6, studies, seed=4)
    with np.errstate(divide="ignore", invalid="ignore"):
        is_kept, is_worse = decide(charter.rule, arms, baseline)

    for study in range(studies):
        verdicts = list(judge_one(charter, arms, baseline, study).values())
        assert [verdict is Verdict.KEEP for verdict in verdicts] == is_kept[study].tolist()
        assert [verdict is Verdict.WORSE for verdict in verdicts] == is_worse[study].tolist()


@pytest.mark.parametrize("name", ["trained until liked: lower third", "20 % fail and count with the base score"])
def test_real_nodes_decide_as_the_judge_alone(name: str) -> None:
    case, studies = BANK[name], 10
    real, alone = play_real(case, 6, studies, seed=4), play(case, 6, STUDIES, seed=4)

    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], studies, max(alone.kept / alone.studies, 0.02))
    assert low <= real.kept <= high


def test_case_that_no_test_can_hold_says_why() -> None:
    assert all(case.why for case in BANK.values() if case.impossible_with)
    assert all(set(case.impossible_with) <= set(case.seeds) for case in BANK.values())


@pytest.mark.parametrize("arms", [1, 4])
def test_skewed_arm_with_the_mean_of_the_baseline_is_kept_as_rarely_as_the_documentation_says(arms: int) -> None:
    case = BANK["left tail, exponential, sd 0.08 against 0.02"]
    kept = play(case, 9, STUDIES, seed=1, arms=arms).kept
    assert kept <= most_by_chance({1: 0.06, 4: 0.10}[arms], STUDIES)


FEW, MANY = (20, 100, 400), (20, 50, 100, 200, 400, 1000)


def find_better(
    charter: Charter, seeds: int, baseline: float, means: Sequence[float], deviation: float, studies: int
) -> list[Any]:
    """Return, for each mean, which studies keep the arm.

    The studies of all means share the draws of their runs and of their episodes, so a better mean never wins an episode
    less. Where a mean lies near an end of the range, runs beyond the end are moved to it.
    """
    episodes = charter.eval_episodes
    luck = [np.random.default_rng(key).random((studies, 1, seeds, episodes), np.float32) for key in (1, 2)]

    def evaluated(mean: float, arm: int) -> Any:
        drawn = normal(mean, deviation)(np.random.default_rng(3 + arm), (studies, 1, seeds))
        return evaluate(drawn, (luck[arm] < chances_of(drawn)[..., None].astype(np.float32)).sum(-1), episodes)

    of_baseline = evaluated(baseline, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return [decide(charter.rule, evaluated(mean, 1), of_baseline)[0][:, 0] for mean in means]


def fall_of_power(found: Sequence[Any]) -> float:
    """Return the largest fall behind a smaller mean, in standard errors of the studies that differ."""
    best, fall = found[0], 0.0
    for each in found[1:]:
        lost, won = int((best & ~each).sum()), int((each & ~best).sum())
        fall = max(fall, (lost - won) / max(lost + won, 1) ** 0.5)
        best = each if each.sum() > best.sum() else best
    return fall


@pytest.mark.parametrize(
    ("episodes", "baselines", "deviations", "seeds", "studies"),
    [
        (FEW, (0.2, 0.5, 0.8), (0.0, 0.05), (3, 9), 400),
        ((1000,), (0.8,), (0.02,), (3,), 1000),
        ((1000,), (0.5,), (0.1,), (9,), 1000),
        pytest.param(
            *(MANY, (0.05, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95), (0.0, 0.02, 0.05, 0.1), (3, 6, 9, 12), 1000),
            marks=[pytest.mark.slow, pytest.mark.timeout(1200)],
        ),
    ],
)
def test_larger_effect_is_never_found_less_often(
    episodes: tuple[int, ...],
    baselines: tuple[float, ...],
    deviations: tuple[float, ...],
    seeds: tuple[int, ...],
    studies: int,
) -> None:
    fallen: dict[tuple[float, ...], float] = {}
    for count, mean, sd, runs in product(episodes, baselines, deviations, seeds):
        charter = replace(fixed_seeds(1, runs).charter, eval_episodes=count)
        means = [each for each in sorted({*np.linspace(mean, 1, 9).tolist(), 0.97, 0.985}) if each >= mean]
        fallen[count, mean, sd, runs] = fall_of_power(find_better(charter, runs, mean, means, sd, studies))

    assert {case: fall for case, fall in fallen.items() if fall > 3.5} == {}


@pytest.mark.parametrize("episodes", [20, 100, 400, 1000])
@pytest.mark.parametrize("mean", [0.05, 0.5, 0.8, 0.95])
def test_power_that_a_design_states_grows_with_the_effect(mean: float, episodes: int) -> None:
    charter = replace(fixed_seeds(4, 3).charter, eval_episodes=episodes)
    noise = max(mean * (1 - mean), 1 / episodes) / episodes
    for deviation in (0.0, 0.02, 0.08):
        spread = Spread(deviation**2, 1e6, noise, "known", mean)
        effects = np.linspace(0.01, 1 - mean, 25)
        powers = [power_of(charter, spread, 4, 9, float(effect)) for effect in effects]
        assert all(later >= earlier - 0.01 for earlier, later in pairwise(powers)), powers
