"""Gatekeeping: secondary arms are tested at the whole share of alpha, and only behind primary arms that are kept."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.random import default_rng
from scipy import special
from searched_study import make_charter

from experiments_db import Outcome, Verdict
from researcher.analysis import Analysis
from researcher.judge import Family, Runs, adjust_holm, judge
from researcher.judge.gatekeeping import adjust_in_order
from researcher.judge.samples import ScoredRun
from researcher.plan import Contrast, Relation

CHARTER = replace(make_charter(), eval_episodes=400, metric_range=None)
BASELINE = (0.50, 0.51, 0.49, 0.50)


def runs_of(scores: tuple[float, ...]) -> Runs:
    return {seed: ScoredRun(f"run-{score}-{seed}", score, 1e-6) for seed, score in enumerate(scores)}


def judged(*, primary: tuple[str, ...] = ("best",), **arms: tuple[float, ...]) -> Analysis:
    runs = {"baseline": runs_of(BASELINE), **{name: runs_of(scores) for name, scores in arms.items()}}
    contrasts = {
        "h0.0": Contrast(Relation.BETTER, ("best",), ("baseline",)),
        "h0.1": Contrast(Relation.BETTER, ("best",), ("part",)),
    }
    return judge(CHARTER, runs, Family(0, runs, size=len(arms), primary=primary, contrasts=contrasts))


GOOD, FAIR, POOR = (0.70, 0.71, 0.69, 0.70), (0.60, 0.61, 0.59, 0.60), (0.50, 0.52, 0.48, 0.50)


def test_primary_arm_is_corrected_alone_and_a_secondary_one_is_never_more_certain() -> None:
    alone = {item.arm: item for item in judged(best=GOOD, part=FAIR, other=POOR).comparisons}
    together = {item.arm: item for item in judged(primary=(), best=GOOD, part=FAIR, other=POOR).comparisons}

    assert alone["best"].p_adjusted == pytest.approx(alone["best"].p / 0.75)
    assert together["best"].p_adjusted == pytest.approx(3 * alone["best"].p_adjusted)
    assert alone["part"].p_adjusted == pytest.approx(2 * alone["part"].p / 0.75)
    assert alone["part"].p_adjusted >= alone["best"].p_adjusted
    assert {name: item.verdict for name, item in alone.items()}["part"] is Verdict.KEEP


@pytest.mark.parametrize("best", [POOR, (0.3, 0.31, 0.29, 0.3), (0.4, 0.9, 0.5, 0.8)])
def test_secondary_arm_has_no_verdict_behind_a_primary_one_that_is_not_kept(best: tuple[float, ...]) -> None:
    analysis = judged(best=best, part=GOOD)

    part = next(item for item in analysis.comparisons if item.arm == "part")
    assert part.verdict is Verdict.INCONCLUSIVE and "best was not kept" in part.note
    assert analysis.contrasts[1].outcome is Outcome.UNDECIDED


def test_contrasts_of_secondary_arms_have_the_whole_share_once_the_primary_ones_are_supported() -> None:
    analysis = judged(best=GOOD, part=FAIR)

    assert [(item.key, item.outcome) for item in analysis.contrasts] == [
        ("h0.0", Outcome.SUPPORTED),
        ("h0.1", Outcome.SUPPORTED),
    ]


def test_secondary_arm_has_no_verdict_if_the_primary_one_has_no_score() -> None:
    analysis = judged(best=(), part=GOOD)

    part = next(item for item in analysis.comparisons if item.arm == "part")
    assert (part.p_adjusted, part.verdict) == (1.0, Verdict.INCONCLUSIVE)


def test_primary_arms_without_secondary_ones_are_corrected_by_holm() -> None:
    p_values = {"a": 0.02, "b": 0.001, "c": 0.5, "d": 0.013}
    in_order = adjust_in_order(("a", "b", "c", "d"), p_values, 0)
    assert list(in_order.values()) == pytest.approx(adjust_holm([*p_values.values()]))


def test_a_primary_arm_without_a_score_keeps_its_share_and_opens_nothing() -> None:
    found = adjust_in_order(("a", "b"), {"a": math.nan, "b": 0.01, "part": 0.0}, 1)
    assert math.isnan(found["a"]) and (found["b"], found["part"]) == (0.02, 1.0)


PRIMARY, PARTS = ("a", "b", "c", "d"), ("e", "f", "g")
TRUTHS = [
    {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 0.0, "f": 0.0, "g": 0.0},
    {"a": 9.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 0.0, "f": 0.0, "g": 0.0},
    {"a": 9.0, "b": 9.0, "c": 9.0, "d": 0.0, "e": 0.0, "f": 9.0, "g": 9.0},
    {"a": 0.0, "b": 9.0, "c": 9.0, "d": 9.0, "e": 9.0, "f": 9.0, "g": 9.0},
    {"a": 2.5, "b": 2.5, "c": 0.0, "d": 0.0, "e": 0.0, "f": 0.0, "g": 0.0},
]


@pytest.mark.parametrize("truth", TRUTHS)
def test_whatever_is_true_some_wrong_arm_is_rejected_with_probability_alpha_at_most(truth: dict[str, float]) -> None:
    random, wrong, studies = default_rng(3), 0, 3000
    shifts = np.array([*truth.values()])
    for z in random.standard_normal((studies, len(truth))) + shifts:
        p_values = dict(zip(truth, special.ndtr(-z), strict=True))
        adjusted = adjust_in_order(PRIMARY, p_values, len(PARTS))
        wrong += any(p < 0.05 and not truth[arm] for arm, p in adjusted.items())
    assert wrong / studies < 0.05 + 3 * (0.05 * 0.95 / studies) ** 0.5


@pytest.mark.parametrize("other", [POOR, GOOD])
def test_parts_of_the_first_arm_are_tested_at_its_share_whatever_becomes_of_the_others(
    other: tuple[float, ...],
) -> None:
    compared = judged(primary=("best", "other"), best=GOOD, other=other, part=FAIR).comparisons
    found = {item.arm: item for item in compared}
    for arm in ("best", "part"):
        assert found[arm].p / 0.75 < found[arm].p_adjusted * (1 + 1e-9) <= 2 * found[arm].p / 0.75 * (1 + 1e-9) + 1e-5
    assert found["part"].verdict is Verdict.KEEP


@pytest.mark.parametrize(
    ("scores", "margin", "verdict", "outcome"),
    [
        (POOR, 0.05, Verdict.NO_BETTER, Outcome.SUPPORTED),
        (POOR, 0.005, Verdict.INCONCLUSIVE, Outcome.UNDECIDED),
        (GOOD, 0.05, Verdict.KEEP, Outcome.REFUTED),
        ((0.525, 0.53, 0.52, 0.525), 0.3, Verdict.KEEP, Outcome.SUPPORTED),
        ((0.3, 0.31, 0.29, 0.3), 0.05, Verdict.WORSE, Outcome.SUPPORTED),
    ],
)
def test_a_null_of_a_primary_arm_is_judged_by_its_own_margin_with_an_interval(
    scores: tuple[float, ...], margin: float, verdict: Verdict, outcome: Outcome
) -> None:
    runs = {"baseline": runs_of(BASELINE), "partial": runs_of(scores)}
    contrasts = {"h0.0": Contrast(Relation.NO_BETTER, ("partial",), ("baseline",), margin)}
    found = judge(CHARTER, runs, Family(0, runs, size=1, primary=("partial",), contrasts=contrasts))

    (comparison,), (contrast,) = found.comparisons, found.contrasts
    assert (comparison.verdict, contrast.outcome, contrast.winner) == (verdict, outcome, "")
    assert f"({comparison.ci_low:+.3f} to {comparison.ci_high:+.3f})" in contrast.reason
    assert f"{margin:g} or more" in comparison.note
