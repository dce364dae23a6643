"""The judgement of one plan: summaries of all arms, comparisons with the baseline, and the verdicts of the charter.

Place in the flow: `analyze` hands in the runs that were scored and gets an `Analysis`; the verdicts in it follow from
the charter's rule alone. This module knows nothing of planners, databases or servers.

The comparisons of a plan are one family: they are corrected together by Holm's step-down method (Holm 1979,
Scandinavian Journal of Statistics 6:65-70) at the plan's share of alpha. The family is fixed with the plan: an arm that
has no score, or that is not repeated, still counts. Plans share alpha, so that all of them together keep a useless arm
with at most its probability (the union bound), however many there are and whatever stops them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from scipy import special

from researcher.judge.contrasts import judge_contrast
from researcher.judge.samples import (
    NOT_ESTIMATED,
    TOLERANCE,
    Estimate,
    Sample,
    contrast_of,
    noise_of,
    sample_of,
    within,
)
from researcher.types import (
    Analysis,
    ArmSummary,
    Charter,
    Comparison,
    Contrast,
    DecisionRule,
    JudgedContrast,
    ScoredRun,
    Verdict,
)

Runs = Mapping[int, ScoredRun]
"""The runs of one arm by seed."""

_TESTS = ("welch", "paired")
_CORRECTIONS = ("holm", "none")
_DIRECTIONS = ("maximize", "minimize")


@dataclass(frozen=True, slots=True)
class Family:
    """What one plan compares, fixed before its first run.

    `runs` are, by arm, those it is judged by: its own, or also earlier ones where the plan pools them. `size` is the
    number of comparisons to correct for, which is larger than that of the arms where the plan repeats but some of an
    earlier plan's. `contrasts` go by the key of their hypothesis.
    """

    iteration: int
    runs: Mapping[str, Runs]
    size: int
    contrasts: Mapping[str, Contrast] = field(default_factory=dict[str, Contrast])


def summarize_arm(arm: str, runs: Runs, charter: Charter) -> ArmSummary:
    """Mean and interval of one arm over its runs, inside the range of the metric; one run has no interval."""
    seeds = sorted(runs)
    sample = sample_of([runs[seed] for seed in seeds])
    low, high = math.nan, math.nan
    if sample.n > 1:
        low, high = contrast_of({arm: 1.0}, {arm: sample}).interval(charter.rule.alpha)
    if charter.metric_range is not None:
        low, high = within(charter.metric_range, (low, high))
    bases = {seed: runs[seed].base for seed in seeds}
    return ArmSummary(
        arm=arm,
        scores={seed: runs[seed].score for seed in seeds},
        base_scores={seed: base for seed, base in bases.items() if base is not None},
        mean=sample.mean,
        ci_low=low,
        ci_high=high,
        run_ids=tuple(runs[seed].run_id for seed in seeds),
        failures={seed: runs[seed].failure for seed in seeds if runs[seed].failure},
    )


def judge(
    charter: Charter,
    runs: Mapping[str, Runs],
    family: Family,
    earlier: Sequence[Comparison] = (),
    failed: Mapping[str, tuple[str, ...]] | None = None,
) -> Analysis:
    """Summaries and ranking of all arms in `runs`, and the comparisons and contrasts of one family.

    `earlier` are the comparisons of plans before: those of arms that this plan repeats are replaced, the others stand
    as they were judged. Arms keep the order of `runs`; of equal arms the earlier one ranks higher, and an arm without
    scores is not ranked. Raises ValueError for a score that is not finite and a rule that is unknown.
    """
    _check(charter, runs)
    arms = tuple(summarize_arm(arm, by_seed, charter) for arm, by_seed in runs.items())
    sign = _sign(charter)
    ranked = sorted((arm for arm in arms if arm.scores), key=lambda arm: -sign * arm.mean)
    compared = _compare_family(charter, family)
    repeated = {item.arm for item in compared}
    return Analysis(
        arms=arms,
        comparisons=(*(item for item in earlier if item.arm not in repeated), *compared),
        ranking=tuple(arm.arm for arm in ranked),
        failed={arm: tuple(reasons) for arm, reasons in (failed or {}).items() if reasons},
        contrasts=_judge_contrasts(charter, runs, family),
    )


def adjust_holm(p_values: Sequence[float], size: int | None = None) -> list[float]:
    """Holm's adjusted p values in the order given, in a family of `size` (default: as many as are given).

    NaN stays NaN. It counts in the family, as does what `size` has beyond the values: neither is ever rejected.
    """
    total = len(p_values) if size is None else max(size, len(p_values))
    order = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(order):
        running = max(running, min(1.0, (total - rank) * p))
        adjusted[index] = running
    return adjusted


def share_of_alpha(rule: DecisionRule, iteration: int) -> float:
    """The part of alpha that a plan may spend."""
    if not rule.shares:
        return 1.0
    return rule.shares[iteration] if iteration < len(rule.shares) else 0.0


@dataclass(frozen=True, slots=True)
class _Compared:
    """One comparison before its correction. `estimate` is the arm minus the baseline."""

    arm: str
    seeds: tuple[int, ...]
    estimate: Estimate
    basis: str
    runs: Runs
    baseline: Runs


def _compare_family(charter: Charter, family: Family) -> tuple[Comparison, ...]:
    rule = charter.rule
    compared = [_compare(charter, arm, family) for arm in family.runs if arm != charter.baseline]
    tested = [item.estimate if item.basis == "seeds" else NOT_ESTIMATED for item in compared]
    adjusted = _correct(rule, [estimate.p_two_sided() for estimate in tested], family)
    sign = _sign(charter)
    no_gain = [
        estimate.p_below(rule.min_effect) if sign > 0 else estimate.p_above(-rule.min_effect) for estimate in tested
    ]
    adjusted_no_gain = _correct(rule, no_gain, family)
    return tuple(
        _conclude(charter, family, item, p, no_gain_p)
        for item, p, no_gain_p in zip(compared, adjusted, adjusted_no_gain, strict=True)
    )


def _correct(rule: DecisionRule, p_values: Sequence[float], family: Family) -> list[float]:
    """Adjusted for the family and for the plan's share, so that each compares with alpha itself."""
    share = share_of_alpha(rule, family.iteration)
    adjusted = adjust_holm(p_values, family.size) if rule.correction == "holm" else list(p_values)
    return [math.nan if math.isnan(p) else min(1.0, p / share) if share else 1.0 for p in adjusted]


def _compare(charter: Charter, arm: str, family: Family) -> _Compared:
    runs, baseline = family.runs[arm], family.runs.get(charter.baseline, {})
    if charter.rule.test == "paired":
        common = runs.keys() & baseline.keys()
        runs = {seed: runs[seed] for seed in sorted(common)}
        baseline = {seed: baseline[seed] for seed in sorted(common)}
    seeds = tuple(sorted(runs))
    samples = {arm: sample_of(list(runs.values())), charter.baseline: sample_of(list(baseline.values()))}
    weights = {arm: 1.0, charter.baseline: -1.0}
    fewest = min(sample.n for sample in samples.values())
    if fewest == 0:
        return _Compared(arm, seeds, NOT_ESTIMATED, "none", runs, baseline)
    if fewest == 1:
        return _Compared(arm, seeds, noise_of(weights, samples), "evaluation", runs, baseline)
    if charter.rule.test == "paired":
        estimate = _paired(runs, baseline, 1.0 / charter.eval_episodes)
    else:
        estimate = _unpaired(contrast_of(weights, samples), runs, baseline)
    return _Compared(arm, seeds, estimate, "seeds", runs, baseline)


def _unpaired(estimate: Estimate, runs: Runs, baseline: Runs) -> Estimate:
    """Welch's estimate, which a positive correlation within seeds makes safer and a negative one bolder: where runs of
    the same seed go clearly against each other, their differences give the standard error."""
    common = sorted(runs.keys() & baseline.keys())
    correlation = _correlation(runs, baseline)
    if math.isnan(correlation) or len(common) < len(runs) or not _is_clearly_negative(correlation, len(common)):
        return estimate
    paired = _paired({seed: runs[seed] for seed in common}, {seed: baseline[seed] for seed in common}, 0.0)
    return paired if paired.stderr > estimate.stderr else estimate


def _is_clearly_negative(correlation: float, pairs: int) -> bool:
    """Whether a correlation of this many pairs is below 0 at a one-sided level of 5 %."""
    if abs(correlation) >= 1 - TOLERANCE:
        return correlation < 0
    t = correlation * math.sqrt((pairs - 2) / (1 - correlation**2))
    return float(special.stdtr(pairs - 2, t)) < 0.05


def _paired(runs: Runs, baseline: Runs, resolution: float) -> Estimate:
    """The estimate from the differences within seeds. Equal ones have no sample variance: `resolution` stands in."""
    differences = [runs[seed].score - baseline[seed].score for seed in sorted(runs)]
    n, mean = len(differences), fmean(differences)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in differences) / (n - 1))
    return Estimate(mean, max(deviation if deviation > TOLERANCE else resolution, 0.0) / math.sqrt(n), n - 1)


def _correlation(runs: Runs, baseline: Runs) -> float:
    """Pearson's, between runs of the same seed; NaN for fewer than three pairs or where one side does not vary."""
    common = sorted(runs.keys() & baseline.keys())
    if len(common) < 3:
        return math.nan
    left, right = [runs[seed].score for seed in common], [baseline[seed].score for seed in common]
    a, b = ([value - fmean(side) for value in side] for side in (left, right))
    scale = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return math.nan if scale <= TOLERANCE else sum(x * y for x, y in zip(a, b, strict=True)) / scale


def _conclude(charter: Charter, family: Family, item: _Compared, p: float, no_gain_p: float) -> Comparison:
    failures = _count_failures(item.runs)
    baseline_failures = _count_failures(item.baseline)
    verdict = _verdict_by_rule(charter, item, p, no_gain_p)
    note = _note(charter, family, item, verdict)
    if verdict is Verdict.KEEP and failures * len(item.baseline) > baseline_failures * len(item.runs):
        verdict = Verdict.INCONCLUSIVE
    low, high = item.estimate.interval(charter.rule.alpha)
    if charter.metric_range is not None:
        span = charter.metric_range[1] - charter.metric_range[0]
        low, high = within((-span, span), (low, high))
    return Comparison(
        arm=item.arm,
        baseline=charter.baseline,
        difference=item.estimate.value,
        ci_low=low,
        ci_high=high,
        p=item.estimate.p_two_sided() if item.basis == "seeds" else math.nan,
        p_adjusted=p,
        seeds=item.seeds,
        verdict=verdict,
        run_ids=tuple(run.run_id for runs in (item.runs, item.baseline) for _, run in sorted(runs.items())),
        iteration=family.iteration,
        basis=item.basis,
        correlation=_correlation(item.runs, item.baseline),
        failures=failures,
        baseline_failures=baseline_failures,
        note=note,
    )


def _verdict_by_rule(charter: Charter, item: _Compared, p: float, no_gain_p: float) -> Verdict:
    """The charter's rule. NaN compares false, so what was not estimated is never decided."""
    rule, gain = charter.rule, _sign(charter) * item.estimate.value
    if min(len(item.runs), len(item.baseline)) < rule.min_seeds:
        return Verdict.INCONCLUSIVE
    if p < rule.alpha and gain >= rule.min_effect - TOLERANCE:
        return Verdict.KEEP
    if p < rule.alpha and gain < 0:
        return Verdict.WORSE
    if no_gain_p < rule.alpha:
        return Verdict.NO_BETTER
    return Verdict.INCONCLUSIVE


def _note(charter: Charter, family: Family, item: _Compared, verdict: Verdict) -> str:
    """What a reader must know beside the verdict."""
    said: list[str] = []
    if item.basis == "evaluation":
        said.append("one run of an arm: the interval covers evaluation noise alone, not how runs differ")
    if share_of_alpha(charter.rule, family.iteration) == 0.0:
        said.append("the earlier plans have spent all of alpha, so this one decides nothing")
    failures, runs = _count_failures(item.runs), len(item.runs)
    against = _count_failures(item.baseline)
    if failures:
        trained = {seed: run for seed, run in item.runs.items() if not run.failure}
        kinds = ", ".join(sorted({run.failure for run in item.runs.values() if run.failure}))
        said.append(
            f"{failures} of {runs} runs failed ({kinds}), {against} of {len(item.baseline)} of {charter.baseline}"
        )
        if trained and against < len(item.baseline):
            calm = [run.score for run in item.baseline.values() if not run.failure]
            difference = fmean(run.score for run in trained.values()) - fmean(calm)
            word = "better" if _sign(charter) * difference > 0 else "not better"
            said.append(f"{word} where it trained ({difference:+.3f})")
    elif verdict is Verdict.KEEP:
        bound = 1 - charter.rule.alpha ** (1 / runs)
        said.append(f"none of {runs} runs failed, so up to {100 * bound:.0f} % of its runs may still fail")
    return "; ".join(said)


def _count_failures(runs: Runs) -> int:
    return sum(bool(run.failure) for run in runs.values())


def _judge_contrasts(charter: Charter, runs: Mapping[str, Runs], family: Family) -> tuple[JudgedContrast, ...]:
    """Each at an equal part of the plan's alpha. An arm that the plan does not run is judged by all its runs."""
    if not family.contrasts:
        return ()
    of_plan = {**runs, **family.runs}
    samples: dict[str, Sample] = {arm: sample_of(list(of_plan[arm].values())) for arm in of_plan}
    failures = {arm: _count_failures(by_seed) / max(len(by_seed), 1) for arm, by_seed in of_plan.items()}
    alpha = charter.rule.alpha * share_of_alpha(charter.rule, family.iteration) / len(family.contrasts)
    return tuple(
        judge_contrast(charter, key, contrast, samples, failures, alpha) for key, contrast in family.contrasts.items()
    )


def _sign(charter: Charter) -> float:
    return -1.0 if charter.direction == "minimize" else 1.0


def compare_sealed(charter: Charter, arm: str, runs: Mapping[str, Runs]) -> Comparison:
    """The arm that was chosen against the baseline on the sealed split: one comparison, planned as such, with all of
    alpha."""
    whole = replace(charter, rule=replace(charter.rule, shares=()))
    family = Family(0, {name: runs[name] for name in (arm, charter.baseline) if name in runs}, size=1)
    (comparison,) = _compare_family(whole, family)
    return comparison


def contradicts(charter: Charter, sealed: Comparison) -> bool:
    """Whether the sealed split speaks against an arm that was kept: no gain on it, or an interval without one that
    would matter. Too few scores contradict nothing."""
    gain = _sign(charter) * sealed.difference
    most = sealed.ci_high if charter.direction == "maximize" else -sealed.ci_low
    return gain <= 0 or most < charter.rule.min_effect


def _check(charter: Charter, runs: Mapping[str, Runs]) -> None:
    rule = charter.rule
    for name, value, known in (
        ("direction", charter.direction, _DIRECTIONS),
        ("correction", rule.correction, _CORRECTIONS),
        ("test", rule.test, _TESTS),
    ):
        if value not in known:
            raise ValueError(f"{name} must be {' or '.join(known)}, got {value!r}")
    if sum(rule.shares[rule.plans_of_parent :]) > 1 + TOLERANCE:
        raise ValueError(f"the shares of alpha must add up to 1 at most, got {rule.shares}")
    for arm, by_seed in runs.items():
        for seed, run in by_seed.items():
            if not math.isfinite(run.score):
                raise ValueError(f"the score of arm {arm!r}, seed {seed} is {run.score}: scores must be finite")
