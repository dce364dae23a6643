"""The judge: what the scores of a study say, by statistics fixed before the first run.

Place in the flow: `analyze` hands in the scores that the evaluator measured and gets an `Analysis`; the verdicts in it
follow from the charter's rule alone. This module knows nothing of planners, databases or servers.

Seeds are blocks. An arm is summarized by the mean over its seeds with Student's t interval; it is compared with the
baseline by the differences within the seeds both have (paired t test, two-sided), and the p values of all comparisons
are adjusted by Holm's step-down method (Holm 1979, Scandinavian Journal of Statistics 6:65-70). What cannot be
estimated is NaN: a mean without scores, an interval or a p value from fewer than two seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy import stats

from researcher.types import Analysis, ArmSummary, Charter, Comparison, DecisionRule, Verdict

# Scores are ratios of small integers: what differs by less than this differs only by rounding.
TOLERANCE = 1e-12


def summarize_arm(
    arm: str,
    scores: Mapping[int, float],
    base_scores: Mapping[int, float],
    run_ids: Mapping[int, str],
    alpha: float,
    resolution: float = 0.0,
) -> ArmSummary:
    """Mean and interval of one arm over its seeds; `run_ids` maps seed to the run behind the score.

    `resolution` is the smallest difference the metric can show; see `_estimate`.
    """
    seeds = sorted(scores)
    estimate = _estimate([scores[seed] for seed in seeds], alpha, resolution)
    return ArmSummary(
        arm=arm,
        scores={seed: scores[seed] for seed in seeds},
        base_scores={seed: base_scores[seed] for seed in sorted(base_scores)},
        mean=estimate.mean,
        ci_low=estimate.low,
        ci_high=estimate.high,
        run_ids=tuple(run_ids[seed] for seed in seeds if seed in run_ids),
    )


def judge(
    charter: Charter,
    scores: Mapping[str, Mapping[int, float]],
    base_scores: Mapping[str, Mapping[int, float]],
    run_ids: Mapping[str, Mapping[int, str]],
    failed: Mapping[str, tuple[str, ...]],
) -> Analysis:
    """Summaries, comparisons with verdicts, and the ranking of all arms of a study.

    The three mappings go from arm to seed to value. Arms keep the order of `scores`; of equal arms the earlier one
    ranks higher, and an arm without scores is not ranked. Raises ValueError for a score that is not finite, a
    direction or a correction that is unknown.
    """
    _check(charter, scores)
    resolution = 1.0 / charter.eval_episodes
    arms = tuple(
        summarize_arm(
            arm, by_seed, base_scores.get(arm, {}), run_ids.get(arm, {}), charter.rule.alpha, resolution=resolution
        )
        for arm, by_seed in scores.items()
    )
    sign = -1.0 if charter.direction == "minimize" else 1.0
    ranked = sorted((arm for arm in arms if arm.scores), key=lambda arm: -sign * arm.mean)
    return Analysis(
        arms=arms,
        comparisons=_compare_all(charter, scores, run_ids, resolution),
        ranking=tuple(arm.arm for arm in ranked),
        failed={arm: tuple(reasons) for arm, reasons in failed.items() if reasons},
    )


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values in the order given. NaN stays NaN and does not count as a test."""
    order = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(order):
        running = max(running, min(1.0, (len(order) - rank) * p))
        adjusted[index] = running
    return adjusted


@dataclass(frozen=True, slots=True)
class _Estimate:
    mean: float
    low: float
    high: float
    p: float


def _estimate(values: Sequence[float], alpha: float, resolution: float) -> _Estimate:
    """Mean, Student's t interval and two-sided p value against a mean of 0.

    Equal values have no sample variance, and t is undefined. They are then no more certain than the metric is fine:
    `resolution` stands in for their standard deviation. At resolution 0 the interval shrinks to the mean.
    """
    n = len(values)
    if n == 0:
        return _Estimate(math.nan, math.nan, math.nan, math.nan)
    mean = fmean(values)
    if n == 1:
        return _Estimate(mean, math.nan, math.nan, math.nan)
    deviation = stdev(values)
    if deviation <= TOLERANCE:
        deviation = resolution
    stderr = deviation / math.sqrt(n)
    if stderr == 0.0:
        return _Estimate(mean, mean, mean, 1.0 if abs(mean) <= TOLERANCE else 0.0)
    half_width = float(stats.t.ppf(1 - alpha / 2, df=n - 1)) * stderr
    p = 2 * float(stats.t.sf(abs(mean) / stderr, df=n - 1))
    return _Estimate(mean, mean - half_width, mean + half_width, p)


def _compare_all(
    charter: Charter,
    scores: Mapping[str, Mapping[int, float]],
    run_ids: Mapping[str, Mapping[int, str]],
    resolution: float,
) -> tuple[Comparison, ...]:
    baseline = scores.get(charter.baseline, {})
    paired: list[tuple[str, tuple[int, ...], _Estimate]] = []
    for arm, by_seed in scores.items():
        if arm == charter.baseline:
            continue
        seeds = tuple(sorted(by_seed.keys() & baseline.keys()))
        differences = [by_seed[seed] - baseline[seed] for seed in seeds]
        paired.append((arm, seeds, _estimate(differences, charter.rule.alpha, resolution)))
    p_values = [estimate.p for _, _, estimate in paired]
    adjusted = adjust_holm(p_values) if charter.rule.correction == "holm" else p_values
    return tuple(
        Comparison(
            arm=arm,
            baseline=charter.baseline,
            difference=estimate.mean,
            ci_low=estimate.low,
            ci_high=estimate.high,
            p=estimate.p,
            p_adjusted=p_adjusted,
            seeds=seeds,
            verdict=_verdict_by_rule(charter.rule, charter.direction, estimate, p_adjusted, len(seeds)),
            run_ids=_runs_of(seeds, run_ids.get(arm, {}), run_ids.get(charter.baseline, {})),
        )
        for (arm, seeds, estimate), p_adjusted in zip(paired, adjusted, strict=True)
    )


def _verdict_by_rule(rule: DecisionRule, direction: str, estimate: _Estimate, p_adjusted: float, seeds: int) -> Verdict:
    """The charter's rule. NaN compares false, so what was not estimated is never kept and never rejected."""
    gain, highest_gain = estimate.mean, estimate.high
    if direction == "minimize":
        gain, highest_gain = -estimate.mean, -estimate.low
    if seeds < rule.min_seeds:
        return Verdict.INCONCLUSIVE
    significant = p_adjusted < rule.alpha
    if significant and gain > 0 and gain >= rule.min_effect - TOLERANCE:
        return Verdict.KEEP
    if (significant and gain < 0) or highest_gain < rule.min_effect - TOLERANCE:
        return Verdict.REJECT
    return Verdict.INCONCLUSIVE


def _runs_of(seeds: Sequence[int], arm: Mapping[int, str], baseline: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(by_seed[seed] for by_seed in (arm, baseline) for seed in seeds if seed in by_seed)


def _check(charter: Charter, scores: Mapping[str, Mapping[int, float]]) -> None:
    if charter.direction not in ("maximize", "minimize"):
        raise ValueError(f"direction must be maximize or minimize, got {charter.direction!r}")
    if charter.rule.correction not in ("holm", "none"):
        raise ValueError(f"correction must be holm or none, got {charter.rule.correction!r}")
    for arm, by_seed in scores.items():
        for seed, score in by_seed.items():
            if not math.isfinite(score):
                raise ValueError(f"the score of arm {arm!r}, seed {seed} is {score}: scores must be finite")
