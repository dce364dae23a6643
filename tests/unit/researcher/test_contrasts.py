"""Every kind of hypothesis gets the verdict that the truth asks for, and a wrong one no more often than is stated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from numpy.random import default_rng

from experiments_db import Outcome
from researcher.charter import Budget, Charter, DecisionRule
from researcher.judge import Family, judge
from researcher.judge.contrasts import ARMS_OF_RELATION, is_complete, judge_contrast
from researcher.judge.samples import ArmSample, ScoredRun, sample_of
from researcher.plan import Contrast, Relation

ALPHA = 0.05
SUPPORTED, REFUTED, UNDECIDED = Outcome.SUPPORTED, Outcome.REFUTED, Outcome.UNDECIDED
CHARTER = Charter(
    topic="t",
    question="q",
    environment_name="reverse",
    metric="m",
    direction="maximize",
    baseline="base",
    search_split="validation",
    test_split="test",
    eval_episodes=400,
    rule=DecisionRule(shares=()),
    budget=Budget(),
    planner="rules",
    metric_range=(0.0, 1.0),
)
ARMS = ("base", "a", "b", "c")
ANY = Contrast(Relation.BETTER, ("a", "b"), ("base",))
HARM = Contrast(Relation.WORSE, ("a",), ("base",))
EQUAL = Contrast(Relation.EQUIVALENT, ("a", "b"), ("base",), margin=0.05)
BEST = Contrast(Relation.BEST, ARMS)
A_IS_BEST = Contrast(Relation.BEST, ("a",), ("base", "b", "c"))
BOTH = Contrast(Relation.INTERACTION, ("base", "a", "b", "c"), margin=0.05)
MATTERS = Contrast(Relation.MATTERS_MORE, ("a",), ("b", "c"))


def samples_of(means: Mapping[str, float], deviation: float, n: int, seed: int) -> dict[str, ArmSample]:
    random = default_rng(seed)
    return {
        arm: sample_of([ScoredRun(f"{arm}-{run}", mean + deviation * random.normal(), 1e-6) for run in range(n)])
        for arm, mean in means.items()
    }


def outcome_of(contrast: Contrast, means: Mapping[str, float], *, deviation: float = 0.01, n: int = 6, seed: int = 1):
    return judge_contrast(CHARTER, "h0.0", contrast, samples_of(means, deviation, n, seed), {}, ALPHA)


def means(base: float, a: float, b: float, c: float) -> dict[str, float]:
    return dict(zip(ARMS, (base, a, b, c), strict=True))


@pytest.mark.parametrize(
    ("contrast", "truth", "outcome"),
    [
        (ANY, means(0.5, 0.5, 0.7, 0.5), SUPPORTED),
        (ANY, means(0.5, 0.4, 0.45, 0.9), REFUTED),
        (HARM, means(0.5, 0.3, 0.5, 0.5), SUPPORTED),
        (HARM, means(0.5, 0.7, 0.5, 0.5), REFUTED),
        (EQUAL, means(0.5, 0.5, 0.51, 0.9), SUPPORTED),
        (EQUAL, means(0.5, 0.5, 0.65, 0.5), REFUTED),
        (BEST, means(0.5, 0.6, 0.8, 0.7), SUPPORTED),
        (BEST, means(0.5, 0.8, 0.8, 0.7), REFUTED),
        (A_IS_BEST, means(0.5, 0.8, 0.6, 0.6), SUPPORTED),
        (A_IS_BEST, means(0.5, 0.6, 0.8, 0.6), REFUTED),
        (BOTH, means(0.5, 0.6, 0.6, 0.9), SUPPORTED),
        (BOTH, means(0.5, 0.6, 0.6, 0.7), REFUTED),
        (MATTERS, means(0.5, 0.2, 0.6, 0.45), SUPPORTED),
        (MATTERS, means(0.5, 0.55, 0.2, 0.5), REFUTED),
    ],
)
def test_each_relation_is_judged_as_it_is_stated(contrast: Contrast, truth: dict[str, float], outcome: Outcome) -> None:
    assert is_complete(contrast)
    assert outcome_of(contrast, truth, deviation=0.005).outcome is outcome
    assert outcome_of(contrast, truth, deviation=0.5, n=3).outcome is UNDECIDED


ON_THE_EDGE = [
    (ANY, means(0.5, 0.5, 0.5, 0.5), SUPPORTED),
    (ANY, means(0.5, 0.52, 0.4, 0.5), REFUTED),
    (HARM, means(0.5, 0.5, 0.5, 0.5), SUPPORTED),
    (HARM, means(0.5, 0.48, 0.5, 0.5), REFUTED),
    (EQUAL, means(0.5, 0.55, 0.5, 0.5), SUPPORTED),
    (EQUAL, means(0.5, 0.55, 0.45, 0.5), REFUTED),
    (BEST, means(0.5, 0.5, 0.5, 0.5), SUPPORTED),
    (BEST, means(0.4, 0.5, 0.52, 0.4), REFUTED),
    (A_IS_BEST, means(0.4, 0.5, 0.5, 0.4), SUPPORTED),
    (A_IS_BEST, means(0.5, 0.5, 0.5, 0.5), REFUTED),
    (BOTH, means(0.5, 0.6, 0.6, 0.7), SUPPORTED),
    (BOTH, means(0.5, 0.6, 0.6, 0.75), REFUTED),
    (MATTERS, means(0.5, 0.6, 0.6, 0.5), SUPPORTED),
    (MATTERS, means(0.5, 0.5, 0.5, 0.5), SUPPORTED),
    (MATTERS, means(0.5, 0.6, 0.4, 0.5), REFUTED),
]


@pytest.mark.parametrize(("contrast", "truth", "wrong"), ON_THE_EDGE)
def test_wrong_outcome_is_as_rare_as_stated_where_the_truth_is_on_the_edge(
    contrast: Contrast, truth: dict[str, float], wrong: Outcome
) -> None:
    tries = 400
    found = sum(outcome_of(contrast, truth, deviation=0.05, seed=seed).outcome is wrong for seed in range(tries))
    # More than 46 of 400 would come by chance once in a million times at a true rate of 5 %.
    assert found <= 46


def test_winner_of_several_is_named_and_one_that_fails_more_often_is_not_supported() -> None:
    truth = means(0.5, 0.6, 0.8, 0.7)
    assert outcome_of(BEST, truth).winner == "b"
    samples = samples_of(truth, 0.01, 6, 1)
    unstable = judge_contrast(CHARTER, "h", BEST, samples, {"b": 0.3}, ALPHA)
    assert (unstable.outcome, unstable.winner) == (UNDECIDED, "")
    assert "failed more often" in unstable.reason


def test_contrast_of_arms_with_too_few_runs_is_undecided_by_name() -> None:
    samples = samples_of(means(0.5, 0.9, 0.5, 0.5), 0.01, 2, 1)
    judged = judge_contrast(CHARTER, "h", HARM, samples, {}, ALPHA)
    assert (judged.outcome, judged.reason) == (UNDECIDED, "too few runs of a, base.")


def test_lower_is_better_where_the_metric_is_minimized() -> None:
    samples = samples_of(means(0.5, 0.3, 0.5, 0.5), 0.01, 6, 1)
    minimize = replace(CHARTER, direction="minimize")
    assert judge_contrast(minimize, "h", ANY, samples, {}, ALPHA).outcome is SUPPORTED
    assert judge_contrast(minimize, "h", BEST, samples, {}, ALPHA).winner == "a"


def test_contrasts_of_a_plan_share_its_alpha() -> None:
    runs = {
        arm: {seed: ScoredRun(f"{arm}-{seed}", score, 1e-6) for seed, score in enumerate(scores)}
        for arm, scores in {"base": (0.50, 0.55, 0.45), "a": (0.66, 0.71, 0.61)}.items()
    }
    better = Contrast(Relation.BETTER, ("a",), ("base",))
    (alone,) = judge(CHARTER, runs, Family(0, runs, size=1, contrasts={"h0.0": better})).contrasts
    several = judge(CHARTER, runs, Family(0, runs, size=1, contrasts={f"h0.{n}": better for n in range(9)})).contrasts
    assert alone.outcome is SUPPORTED
    assert {item.outcome for item in several} == {UNDECIDED}


@pytest.mark.parametrize("relation", list(Relation))
def test_contrast_that_lacks_arms_is_not_complete(relation: Relation) -> None:
    assert ARMS_OF_RELATION[relation]
    assert not is_complete(Contrast(relation, ("a",)))
