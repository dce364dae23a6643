"""Gatekeeping: secondary arms are tested at the whole share of alpha, and only behind primary arms that are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from searched_study import make_charter

from experiments_db import Outcome, Verdict
from researcher.analysis import Analysis
from researcher.judge import Family, Runs, judge
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
