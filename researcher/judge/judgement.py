"""The judgement of one plan: summaries of all arms, comparisons with the baseline, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from scipy import special

from experiments_db import IN_MEAN, RULED_OUT, Outcome, Verdict
from researcher.analysis import Analysis, ArmSummary, Comparison, JudgedContrast
from researcher.charter import Charter
from researcher.judge.contrasts import judge_contrast, rule_out_contrast
from researcher.judge.equivalence import p_different, p_equal, settle_equal, settle_primary, why_not_equal
from researcher.judge.gatekeeping import close_gate, close_gate_of_contrasts, correct_both, share_of_alpha
from researcher.judge.notes import Weighed, count_failures, describe, divide_gain, gain_of_weights
from researcher.judge.samples import (
    NOT_ESTIMATED,
    TOLERANCE,
    ArmSample,
    Estimate,
    ScoredRun,
    contrast_of,
    find_outlier,
    noise_of,
    sample_of,
    variance,
    within,
)
from researcher.judge.worst_case import Runs, largest_share, loss_by_retries, with_missing, worst_score
from researcher.plan import Contrast, Relation

_CORRECTIONS = ("holm", "none")
_DIRECTIONS = ("maximize", "minimize")
CLEARLY_NEGATIVE = 0.05
"""The level at which a negative correlation within seeds is taken into account."""


@dataclass(frozen=True, slots=True)
class Family:
    """The comparisons of one plan, fixed before its first run.

    It is fixed with the plan: an arm still counts if it has no score, is not repeated or was ruled out.

    `runs` maps each arm to the runs that it is judged by: those of the plan, and earlier ones if the plan pools runs.
    `size` is the number of comparisons to correct for. It exceeds the number of arms if the plan repeats only some arms
    of an earlier plan. `contrasts` are keyed by hypothesis. `missing` maps each arm to its planned seeds that ended
    without a score, with the reasons. `claim` counts the plans before it that made a claim, which gives the share of
    alpha. The arms that are not `primary` are tested only where the first primary one is kept; without primary arms all
    are tested alike.
    """

    iteration: int
    runs: Mapping[str, Runs]
    size: int
    claim: int = 0
    primary: tuple[str, ...] = ()
    contrasts: Mapping[str, Contrast] = field(default_factory=dict[str, Contrast])
    missing: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])

    def null_margin(self, arm: str, baseline: str) -> float | None:
        """Return the gain that the hypothesis about a primary arm rules out; None if it rules out none."""
        return next(
            (
                item.margin
                for item in self.contrasts.values()
                if arm in self.primary and item.rules_out_a_gain and (item.arms, item.against) == ((arm,), (baseline,))
            ),
            None,
        )


def summarize_arm(arm: str, runs: Runs, charter: Charter) -> ArmSummary:
    """Return the mean and interval of one arm over its runs, cut to the range of the metric.

    The interval of a single run is NaN.
    """
    seeds = sorted(runs)
    sample = sample_of([runs[seed] for seed in seeds])
    low, high = math.nan, math.nan
    if sample.n > 1:
        low, high = contrast_of({arm: 1.0}, {arm: sample}).interval(charter.rule.alpha)
    half_width = (high - low) / 2
    if charter.judged_range is not None:
        low, high = within(charter.judged_range, (low, high))
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
        half_width=half_width,
    )


def judge(
    charter: Charter,
    runs: Mapping[str, Runs],
    family: Family,
    earlier: Sequence[Comparison] = (),
    failed: Mapping[str, tuple[str, ...]] | None = None,
    disqualified: Mapping[str, str] | None = None,
) -> Analysis:
    """Return the summaries and the ranking of all arms in `runs`, and the comparisons and contrasts of one family.

    `earlier` are the comparisons of earlier plans. Those of arms that this plan repeats are replaced; the others stay
    as they were judged. Arms keep the order of `runs`. Of equal arms the earlier one ranks higher, and an arm without
    scores is not ranked. `disqualified` maps arms to reasons. These arms are neither ranked nor tested, and they lose
    their earlier verdicts.

    Raises ValueError if a score is not finite or the rule is unknown.
    """
    _check(charter, runs)
    ruled_out = disqualified or {}
    arms = tuple(summarize_arm(arm, by_seed, charter) for arm, by_seed in runs.items())
    sign = charter.sign
    eligible = [arm for arm in arms if arm.scores and arm.arm not in ruled_out]
    ranked = sorted(eligible, key=lambda arm: -sign * arm.mean)
    worst = worst_score(charter, (run.score for by_seed in runs.values() for run in by_seed.values()))
    compared = _compare_family(charter, family, worst, ruled_out)
    repeated = {item.arm for item in compared}
    return Analysis(
        arms=arms,
        comparisons=(*(rule_out(item, ruled_out) for item in earlier if item.arm not in repeated), *compared),
        ranking=tuple(arm.arm for arm in ranked),
        failed={arm: tuple(reasons) for arm, reasons in (failed or {}).items() if reasons},
        contrasts=tuple(
            settle_equal(charter, _settle_best(charter, item, compared), compared, ruled_out)
            for item in _judge_contrasts(charter, runs, family, compared, ruled_out)
        ),
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """One comparison as the test decides it.

    `estimate` is the arm minus the baseline. `p` is that of the test behind the verdict, before and after correction.
    """

    arm: str
    estimate: Estimate
    basis: str
    runs: Runs
    baseline: Runs
    p: float = math.nan
    p_adjusted: float = math.nan
    verdict: Verdict = Verdict.INCONCLUSIVE


def _compare_family(
    charter: Charter, family: Family, worst: float | None, ruled_out: Mapping[str, str]
) -> tuple[Comparison, ...]:
    tested = _test_family(charter, family, ruled_out, {})
    kept = {item.arm for item in tested}
    if worst is not None and _is_anything_unknown(family):
        at_worst, losses = _at_worst(charter, family, worst)
        at_its_worst = _test_family(charter, at_worst, ruled_out, losses)
        by_test = {item.arm: _claim_of(item) for item in tested}
        kept = {item.arm for item in at_its_worst if _claim_of(item) == by_test[item.arm] or item.arm not in losses}
    concluded = tuple(rule_out(_conclude(charter, family, item, item.arm in kept), ruled_out) for item in tested)
    return close_gate(family.primary, concluded)


def _claim_of(item: _Compared) -> tuple[Verdict, bool]:
    """Return what the test claims: a verdict, and a direction."""
    return item.verdict, item.estimate.value > 0


def _is_anything_unknown(family: Family) -> bool:
    return any(family.missing.values()) or any(run.retries for runs in family.runs.values() for run in runs.values())


def _at_worst(charter: Charter, family: Family, worst: float) -> tuple[Family, dict[str, float]]:
    """Return the family with missing seeds at the worst score, and the possible loss of each arm with unknowns.

    The loss is by how much the arm's gain may be smaller because some of its runs were trained again.
    """
    baseline = family.runs.get(charter.baseline, {})
    arms = {arm: runs for arm, runs in family.runs.items() if arm != charter.baseline}
    losses = {arm: loss_by_retries(charter, runs, baseline, worst) for arm, runs in arms.items()}
    unknown = {
        arm: with_missing(runs, family.missing.get(arm, {}), worst)
        for arm, runs in arms.items()
        if losses[arm] or family.missing.get(arm)
    }
    return replace(family, runs={**family.runs, **unknown}), {arm: losses[arm] for arm in unknown}


def _test_family(
    charter: Charter, family: Family, ruled_out: Mapping[str, str], losses: Mapping[str, float]
) -> list[_Compared]:
    rule, sign = charter.rule, charter.sign
    compared = [_compare(charter, arm, family) for arm in family.runs if arm != charter.baseline]
    compared = [replace(item, estimate=item.estimate.lowered(sign * losses.get(item.arm, 0.0))) for item in compared]
    estimates = [
        item.estimate if item.basis == "seeds" and item.arm not in ruled_out else NOT_ESTIMATED for item in compared
    ]
    p_values = [
        _p_values(charter, estimate, family.null_margin(item.arm, charter.baseline))
        for item, estimate in zip(compared, estimates, strict=True)
    ]
    share = share_of_alpha(rule, family.claim)
    first, second = correct_both(rule, share, [item.arm for item in compared], p_values, family.primary, family.size)
    return [
        _decide(charter, item, raw, corrected)
        for item, raw, corrected in zip(compared, p_values, zip(first, second, strict=True), strict=True)
    ]


def _p_values(charter: Charter, estimate: Estimate, null_margin: float | None) -> tuple[float, float]:
    """Return the p values of both tests of a question: of a difference, and of an improvement that matters.

    An improvement matters from `min_effect` on, or from the margin of the arm's own hypothesis on. A question for
    equality has the p values of equality and of a difference beyond the margin.
    """
    if charter.margin is not None:
        return p_equal(estimate, charter.margin), p_different(estimate, charter.margin)
    least = null_margin or charter.rule.min_effect
    no_gain = estimate.p_below(least) if charter.sign > 0 else estimate.p_above(-least)
    return estimate.p_two_sided(), no_gain


def _decide(charter: Charter, item: _Compared, raw: tuple[float, float], corrected: tuple[float, float]) -> _Compared:
    """Return the comparison with the verdict of the test, and with the p value of the test that it rests on."""
    verdict = _verdict_by_rule(charter, item, *corrected)
    which = int(verdict is Verdict.DIFFERENT)
    p = raw[which] if item.basis == "seeds" else math.nan
    return replace(item, p=p, p_adjusted=corrected[which], verdict=verdict)


def _compare(charter: Charter, arm: str, family: Family) -> _Compared:
    runs, baseline = family.runs[arm], family.runs.get(charter.baseline, {})
    samples = {name: _sample_of(charter, each) for name, each in ((arm, runs), (charter.baseline, baseline))}
    weights = {arm: 1.0, charter.baseline: -1.0}
    fewest = min(sample.n for sample in samples.values())
    if fewest == 0:
        return _Compared(arm, NOT_ESTIMATED, "none", runs, baseline)
    if fewest == 1:
        return _Compared(arm, noise_of(weights, samples), "evaluation", runs, baseline)
    return _Compared(arm, _against_each_other(contrast_of(weights, samples), runs, baseline), "seeds", runs, baseline)


def _sample_of(charter: Charter, runs: Runs) -> ArmSample:
    """Return the sample, without scores to pair if a verdict is about means."""
    sample = sample_of(list(runs.values()), charter.headroom_range)
    return replace(sample, scores=()) if charter.about == IN_MEAN else sample


def _against_each_other(estimate: Estimate, runs: Runs, baseline: Runs) -> Estimate:
    """Return the estimate, with a larger standard error if runs of the same seed correlate negatively.

    A positive correlation within seeds makes the estimate conservative, a negative one anti-conservative. If the
    correlation is clearly negative, the differences within seeds give the standard error.
    """
    common = sorted(runs.keys() & baseline.keys())
    correlation = _correlation(runs, baseline)
    if math.isnan(correlation) or len(common) < len(runs) or not _is_clearly_negative(correlation, len(common)):
        return estimate
    differences = [runs[seed].score - baseline[seed].score for seed in common]
    stderr = math.sqrt(variance(differences) / len(common))
    return replace(estimate, stderr=stderr, df=len(common) - 1) if stderr > estimate.stderr else estimate


def _is_clearly_negative(correlation: float, pairs: int) -> bool:
    """Return whether a correlation of this many pairs is below 0 at the level `CLEARLY_NEGATIVE`, one-sided."""
    if abs(correlation) >= 1 - TOLERANCE:
        return correlation < 0
    t = correlation * math.sqrt((pairs - 2) / (1 - correlation**2))
    return float(special.stdtr(pairs - 2, t)) < CLEARLY_NEGATIVE


def _correlation(runs: Runs, baseline: Runs) -> float:
    """Return Pearson's correlation between runs of the same seed.

    It is NaN for fewer than three pairs, or if one side does not vary.
    """
    common = sorted(runs.keys() & baseline.keys())
    if len(common) < 3:
        return math.nan
    left, right = [runs[seed].score for seed in common], [baseline[seed].score for seed in common]
    a, b = ([value - fmean(side) for value in side] for side in (left, right))
    scale = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return math.nan if scale <= TOLERANCE else sum(x * y for x, y in zip(a, b, strict=True)) / scale


def _conclude(charter: Charter, family: Family, item: _Compared, is_kept_at_worst: bool) -> Comparison:
    """Return the comparison with its verdict.

    A significant test becomes a verdict only under three more conditions. The arm's runs failed no more often than the
    baseline's. No single run lies apart from the others on the side that speaks against the verdict. The arm would
    still be kept if everything unknown about it were at its worst.
    """
    failures, baseline_failures = count_failures(item.runs), count_failures(item.baseline)
    fails_more = failures * len(item.baseline) > baseline_failures * len(item.runs)
    outlier = _outlier_against(charter, item)
    verdict, unequal = item.verdict, ""
    if verdict is Verdict.EQUAL:
        unequal = why_not_equal(item.runs, item.baseline, family.missing, (item.arm, charter.baseline))
    is_better = verdict is Verdict.KEEP or (verdict is Verdict.DIFFERENT and charter.sign * item.estimate.value > 0)
    if outlier or unequal or (is_better and (fails_more or not is_kept_at_worst)):
        verdict = Verdict.INCONCLUSIVE
    agent, training = divide_gain(item.runs, item.baseline, charter.judged_range, charter.rule.alpha)
    weights = gain_of_weights(item.runs, item.baseline, charter.judged_range, charter.rule.alpha)
    missing = dict(family.missing.get(item.arm, {}))
    weighed = Weighed(
        *(item.arm, item.runs, item.baseline, item.verdict, verdict, missing, outlier, is_kept_at_worst),
        training if math.isnan(weights.value) else weights,
        is_of_weights=not math.isnan(weights.value),
    )
    low, high = item.estimate.interval(1 - charter.confidence)
    if charter.judged_range is not None:
        span = charter.judged_range[1] - charter.judged_range[0]
        low, high = within((-span, span), (low, high))
    return Comparison(
        arm=item.arm,
        baseline=charter.baseline,
        difference=item.estimate.value,
        ci_low=low,
        ci_high=high,
        p=item.p,
        p_adjusted=item.p_adjusted,
        seeds=tuple(sorted(item.runs)),
        verdict=verdict,
        run_ids=tuple(run.run_id for runs in (item.runs, item.baseline) for _, run in sorted(runs.items())),
        iteration=family.iteration,
        basis=item.basis,
        correlation=_correlation(item.runs, item.baseline),
        failures=failures,
        baseline_failures=baseline_failures,
        note="; ".join([*_limits(charter, family, item), *describe(charter, weighed), *filter(None, [unequal])]),
        missing=missing,
        baseline_missing=dict(family.missing.get(charter.baseline, {})),
        retries=_reasons(item.runs),
        agent_gain=agent,
        training_gain=training,
        weights_gain=weights,
        unseen_failures=largest_share(failures, len(item.runs), charter.rule.alpha) if item.runs else math.nan,
    )


def _reasons(runs: Runs) -> dict[int, str]:
    return {seed: "; ".join(run.retries) for seed, run in runs.items() if run.retries}


def _verdict_by_rule(charter: Charter, item: _Compared, p: float, second_p: float) -> Verdict:
    """Return the verdict of the charter's rule by the corrected p values of both tests.

    Every comparison with NaN is false, so an estimate that is missing is never decided.
    """
    rule, gain = charter.rule, charter.sign * item.estimate.value
    if min(len(item.runs), len(item.baseline)) < rule.min_seeds:
        return Verdict.INCONCLUSIVE
    if charter.margin is not None:
        if p < rule.alpha:
            return Verdict.EQUAL
        return Verdict.DIFFERENT if second_p < rule.alpha else Verdict.INCONCLUSIVE
    if p < rule.alpha and gain >= rule.min_effect - TOLERANCE:
        return Verdict.KEEP
    if p < rule.alpha and gain < 0:
        return Verdict.WORSE
    if second_p < rule.alpha:
        return Verdict.NO_BETTER
    return Verdict.INCONCLUSIVE


def _outlier_against(charter: Charter, item: _Compared) -> tuple[str, int] | None:
    """Return the arm and the seed of a run that lies apart on the side that speaks against the test's verdict.

    A low run of a good arm, or a high run of the baseline, may be the first of many. It does not count if the verdict
    holds for it too, because it lies beyond every run of the other arm. Failed runs are left out: they are known to lie
    apart, and they are counted elsewhere. In a question for equality, any run that lies apart speaks against it.
    """
    if item.verdict is Verdict.INCONCLUSIVE:
        return None
    is_higher = item.estimate.value > 0 if item.verdict is Verdict.DIFFERENT else charter.sign > 0
    if item.verdict in (Verdict.WORSE, Verdict.NO_BETTER):
        is_higher = charter.sign < 0
    up = 1.0 if is_higher else -1.0
    sides = [(item.arm, item.runs, -up), (charter.baseline, item.baseline, up)]
    if item.verdict is Verdict.EQUAL:
        sides += [(item.arm, item.runs, up), (charter.baseline, item.baseline, -up)]
    for arm, runs, side in sides:
        trained = {seed: run for seed, run in runs.items() if not run.failure}
        noise = fmean(run.noise for run in trained.values()) if trained else 0.0
        outlier = find_outlier({seed: run.score for seed, run in trained.items()}, noise, side, charter.headroom_range)
        others = item.baseline if arm == item.arm else item.runs
        if outlier is not None and (charter.margin is not None or _reaches(runs[outlier], others, side)):
            return arm, outlier
    return None


def _reaches(run: ScoredRun, others: Runs, side: float) -> bool:
    """Return whether the run lies as far to this side as some run of the others."""
    return any(side * run.score >= side * other.score for other in others.values())


def _limits(charter: Charter, family: Family, item: _Compared) -> list[str]:
    remarks: list[str] = []
    if item.basis == "evaluation":
        remarks.append("one run of an arm: the interval covers evaluation noise alone, not how runs differ")
    alpha = charter.rule.alpha
    if item.basis == "seeds" and item.estimate.of_means.p_two_sided() < alpha <= item.estimate.p_two_sided():
        remarks.append(f"the means differ, but it is not shown that one arm is better {charter.about}")
    margin = family.null_margin(item.arm, charter.baseline)
    if margin is not None:
        remarks.append(f"the hypothesis about it asks whether it gains {margin or charter.rule.min_effect:g} or more")
    if share_of_alpha(charter.rule, family.claim) == 0.0:
        remarks.append("the earlier plans have spent all of alpha, so this one decides nothing")
    return remarks


def rule_out(comparison: Comparison, ruled_out: Mapping[str, str]) -> Comparison:
    """Return the comparison, without a verdict if its arm was disqualified."""
    reason = ruled_out.get(comparison.arm)
    if reason is None:
        return comparison
    nothing = {"p": math.nan, "p_adjusted": math.nan, "unseen_failures": math.nan}
    return replace(comparison, verdict=Verdict.INCONCLUSIVE, note=f"{RULED_OUT}{reason}", **nothing)


def _judge_contrasts(
    charter: Charter,
    runs: Mapping[str, Runs],
    family: Family,
    compared: Sequence[Comparison],
    ruled_out: Mapping[str, str],
) -> tuple[JudgedContrast, ...]:
    """Return the judged contrasts, each at an equal part of the plan's alpha.

    An arm that the plan does not run is judged by all its runs. In a plan with primary arms, the contrasts of these
    arms with the baseline share the plan's alpha, and follow the verdicts. The others share the part of the first
    primary arm, and are judged only if its contrast is supported.
    """
    if not family.contrasts:
        return ()
    of_plan = {**runs, **family.runs}
    samples = {arm: _sample_of(charter, by_seed) for arm, by_seed in of_plan.items()}
    troubles = {arm: _share_of_troubles(by_seed, family.missing.get(arm, {})) for arm, by_seed in of_plan.items()}
    alpha = charter.rule.alpha * share_of_alpha(charter.rule, family.claim)

    def judge_all(contrasts: Mapping[str, Contrast], part: float) -> list[JudgedContrast]:
        judged = (
            judge_contrast(charter, key, contrast, samples, troubles, part / len(contrasts))
            for key, contrast in contrasts.items()
        )
        return [rule_out_contrast(item, ruled_out) for item in judged]

    if not family.primary:
        return tuple(judge_all(family.contrasts, alpha))
    known = {charter.baseline, *family.primary}
    of_primary = {key: each for key, each in family.contrasts.items() if {*each.arms, *each.against} <= known}
    rest = {key: each for key, each in family.contrasts.items() if key not in of_primary}
    first = [settle_primary(item, compared) for item in judge_all(of_primary, alpha)]
    return close_gate_of_contrasts(family.primary, first, judge_all(rest, alpha / len(family.primary)))


def _settle_best(charter: Charter, item: JudgedContrast, compared: Sequence[Comparison]) -> JudgedContrast:
    """Return the contrast as supported if every other arm is worse than the baseline, by the verdicts.

    This settles only a `best` contrast that is undecided by itself. The comparisons are corrected as one family, so all
    of them are true together.
    """
    arms = {*item.contrast.arms, *item.contrast.against}
    first = item.contrast.arms[:1] if item.contrast.against else (charter.baseline,)
    worse = {each.arm for each in compared if each.verdict is Verdict.WORSE}
    is_settled = charter.baseline in first and arms - {charter.baseline} <= worse
    if item.contrast.relation is not Relation.BEST or item.outcome is not Outcome.UNDECIDED or not is_settled:
        return item
    return replace(item, outcome=Outcome.SUPPORTED, winner=charter.baseline)


def _share_of_troubles(runs: Runs, missing: Mapping[int, str]) -> float:
    """Return the share of an arm's seeds that failed, were trained again or have no score."""
    troubled = sum(bool(run.failure or run.retries) for run in runs.values())
    return (troubled + len(missing)) / max(len(runs) + len(missing), 1)


def compare_on_test(charter: Charter, arm: str, runs: Mapping[str, Runs]) -> Comparison:
    """Return the comparison of the chosen arm with the baseline on the test split.

    It is one comparison, planned as such, so it uses all of alpha.
    """
    whole = replace(charter.of_scores, rule=replace(charter.rule, shares=()))
    family = Family(0, {name: runs[name] for name in (arm, charter.baseline) if name in runs}, size=1)
    worst = worst_score(charter, (run.score for by_seed in family.runs.values() for run in by_seed.values()))
    (comparison,) = _compare_family(whole, family, worst, {})
    return comparison


def contradicts(charter: Charter, tested: Comparison) -> bool:
    """Return whether the test split speaks against an arm that was kept.

    It does if there is no gain, or if the interval excludes a gain that matters. Too few scores contradict nothing.
    """
    gain = charter.sign * tested.difference
    most = tested.ci_high if charter.sign > 0 else -tested.ci_low
    return gain <= 0 or most < charter.rule.min_effect


def _check(charter: Charter, runs: Mapping[str, Runs]) -> None:
    rule = charter.rule
    for name, value, known in (
        ("direction", charter.direction, _DIRECTIONS),
        ("correction", rule.correction, _CORRECTIONS),
    ):
        if value not in known:
            raise ValueError(f"{name} must be {' or '.join(known)}, got {value!r}")
    if sum(rule.shares) > 1 + TOLERANCE:
        raise ValueError(f"the shares of alpha must add up to 1 at most, got {rule.shares}")
    for arm, by_seed in runs.items():
        for seed, run in by_seed.items():
            if not math.isfinite(run.score):
                raise ValueError(f"the score of arm {arm!r}, seed {seed} is {run.score}: scores must be finite")
