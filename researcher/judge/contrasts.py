"""The judgement of a hypothesis' prediction: supported, refuted or undecided."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from experiments_db import Outcome
from researcher.analysis import JudgedContrast
from researcher.charter import Charter
from researcher.judge.equivalence import p_different, p_equal
from researcher.judge.samples import ArmSample, Estimate, contrast_of
from researcher.plan import Contrast, Relation

Judged = tuple[float, float, str, str]
"""The p value of the claim, the p value of its opposite, a sentence with the numbers, and the winner or ""."""


ARMS_OF_RELATION: Mapping[Relation, str] = {
    Relation.BETTER: "one arm or several, against one",
    Relation.WORSE: "one arm or several, against one",
    Relation.NO_BETTER: "one arm or several, against one",
    Relation.EQUIVALENT: "one arm or several, against one",
    Relation.INTERACTION: "four arms: with neither change, with the first, with the second, with both",
    Relation.BEST: "two arms or more, or one arm against its rivals",
    Relation.MATTERS_MORE: "the arms that change one factor, against those that change the other",
}
"""The arms that each relation takes, in words."""


def judge_contrast(
    charter: Charter,
    key: str,
    contrast: Contrast,
    samples: Mapping[str, ArmSample],
    failures: Mapping[str, float],
    alpha: float,
) -> JudgedContrast:
    """Return the contrast with its outcome.

    A claim that needs several differences at once takes the largest of their p values, without a correction
    (intersection-union test: Berger 1982, Technometrics 24:295-300). A claim that needs any of several differences
    takes the smallest, times their number (Bonferroni). Equivalence is two one-sided tests (Schuirmann 1987, Journal of
    Pharmacokinetics and Biopharmaceutics 15:657-680). The best of several must beat each of the others (multiple
    comparisons with the best: Hsu 1984, Annals of Statistics 12:1136-1144). The p value of a one-sided claim is
    doubled, so that its threshold is that of a two-sided comparison.

    `failures` maps each arm to its share of failed runs. An arm that fails more often than its rivals is not supported
    as the better one. `alpha` bounds the probability of a wrong outcome.
    """
    named = [*contrast.arms, *contrast.against, charter.baseline]
    missing = [arm for arm in named if arm not in samples or samples[arm].n < charter.rule.min_seeds]
    if missing or not is_complete(contrast):
        why = f"too few runs of {', '.join(dict.fromkeys(missing))}" if missing else "the contrast lacks arms"
        return JudgedContrast(key, contrast, Outcome.UNDECIDED, f"{why}.")
    sign = charter.sign
    supported, refuted, sentence, winner = _JUDGES[contrast.relation](
        _Scores(samples, sign, charter.baseline, charter.rule.min_effect, charter.confidence), contrast
    )
    outcome = Outcome.UNDECIDED
    if supported < alpha:
        outcome = Outcome.SUPPORTED
    elif refuted < alpha:
        outcome = Outcome.REFUTED
    if outcome is Outcome.SUPPORTED and contrast.relation in (Relation.BETTER, Relation.BEST):
        rivals = contrast.against or tuple(arm for arm in contrast.arms if arm != winner)
        if any(failures.get(winner, 0.0) > failures.get(rival, 0.0) for rival in rivals):
            outcome, sentence = Outcome.UNDECIDED, f"{sentence}, but runs of {winner} failed more often"
    return JudgedContrast(key, contrast, outcome, f"{sentence}.", winner if outcome is Outcome.SUPPORTED else "")


def rule_out_contrast(judged: JudgedContrast, ruled_out: Collection[str]) -> JudgedContrast:
    """Return the contrast, undecided if it names an arm that was disqualified."""
    out = [arm for arm in (*judged.contrast.arms, *judged.contrast.against) if arm in ruled_out]
    if not out:
        return judged
    return JudgedContrast(judged.key, judged.contrast, Outcome.UNDECIDED, f"{', '.join(out)} disqualified")


def is_complete(contrast: Contrast) -> bool:
    """Return whether the contrast names as many arms as its relation takes."""
    arms, against = len(contrast.arms), len(contrast.against)
    match contrast.relation:
        case Relation.BETTER | Relation.WORSE | Relation.NO_BETTER | Relation.EQUIVALENT:
            return arms >= 1 and against == 1
        case Relation.INTERACTION:
            return arms == 4
        case Relation.BEST:
            return (arms == 1 and against >= 1) or (arms >= 2 and not against)
        case Relation.MATTERS_MORE:
            return arms >= 1 and against >= 1


class _Scores:
    """The arms of one contrast.

    Differences are gains: more is better, whatever the metric's direction.
    """

    def __init__(
        self, samples: Mapping[str, ArmSample], sign: float, baseline: str, min_effect: float, confidence: float
    ) -> None:
        self._samples = samples
        self._sign = sign
        self.baseline = baseline
        self.min_effect = min_effect
        self._confidence = confidence

    def gain(self, arm: str, over: str) -> Estimate:
        return self.sum_of({arm: 1.0, over: -1.0})

    def sum_of(self, weights: Mapping[str, float]) -> Estimate:
        return contrast_of({arm: self._sign * weight for arm, weight in weights.items()}, self._samples)

    def describe_gains(self, gains: Mapping[str, Estimate], rival: str, margin: float) -> str:
        """Return the gains with their intervals, for a claim that none is as large as a margin."""
        listed: list[str] = []
        for arm, gain in gains.items():
            low, high = gain.interval(1 - self._confidence)
            listed.append(f"{arm} {gain.value:+.3f} ({low:+.3f} to {high:+.3f})")
        interval = f"with its {100 * self._confidence:g} % interval"
        return f"gain over {rival} {interval}: {', '.join(listed)}; the margin is {margin:g}"

    def mean(self, arm: str) -> float:
        return self._samples[arm].mean

    def rank(self, arms: Sequence[str]) -> list[str]:
        return sorted(arms, key=lambda arm: -self._sign * self.mean(arm))


def _any_beyond(scores: _Scores, contrast: Contrast, direction: float) -> Judged:
    """Judge whether some arm is beyond the margin, or no arm by as much as would matter."""
    (rival,) = contrast.against
    needed = max(contrast.margin, scores.min_effect)
    gains = {arm: scores.sum_of({arm: direction, rival: -direction}) for arm in contrast.arms}
    claimed = {arm: gain.p_above(contrast.margin) for arm, gain in gains.items()}
    first = min(claimed, key=lambda arm: claimed[arm])
    supported = min(1.0, 2 * len(claimed) * claimed[first])
    if gains[first].value < needed:
        supported = 1.0
    refuted = max(gain.p_below(needed) for gain in gains.values())
    listed = ", ".join(f"{arm} {direction * gain.value:+.3f}" for arm, gain in gains.items())
    return supported, refuted, f"gain over {rival}: {listed}", first


def _no_better(scores: _Scores, contrast: Contrast) -> Judged:
    """Judge whether no arm gains the margin or more, or some arm gains more."""
    (rival,) = contrast.against
    margin = contrast.margin or scores.min_effect
    gains = {arm: scores.gain(arm, rival) for arm in contrast.arms}
    supported = max(gain.p_below(margin) for gain in gains.values())
    refuted = min(1.0, 2 * len(gains) * min(gain.p_above(margin) for gain in gains.values()))
    return supported, refuted, scores.describe_gains(gains, rival, margin), ""


def _equivalent(scores: _Scores, contrast: Contrast) -> Judged:
    (rival,) = contrast.against
    margin = contrast.margin or scores.min_effect
    gains = {arm: scores.gain(arm, rival) for arm in contrast.arms}
    supported = max(p_equal(gain, margin) for gain in gains.values())
    refuted = min(1.0, len(gains) * min(p_different(gain, margin) for gain in gains.values()))
    return supported, refuted, scores.describe_gains(gains, rival, margin), ""


def _interaction(scores: _Scores, contrast: Contrast) -> Judged:
    """Judge the difference of differences, and whether it is within the margin."""
    neither, first, second, both = contrast.arms
    margin = contrast.margin or scores.min_effect
    extra = scores.sum_of({both: 1.0, first: -1.0, second: -1.0, neither: 1.0})
    refuted = p_equal(extra, margin)
    sentence = f"{both} is {extra.value:+.3f} from the sum of {first} and {second}"
    return extra.p_two_sided(), refuted, sentence, ""


def _best(scores: _Scores, contrast: Contrast) -> Judged:
    if contrast.against:
        winner, rivals = contrast.arms[0], scores.rank(contrast.against)
        tries = 1
    else:
        winner, *rivals = scores.rank(contrast.arms)
        # Every arm except the true best may be mistaken for it.
        tries = len(contrast.arms) - 1
    supported = min(1.0, 2 * tries * max(scores.gain(winner, rival).p_above(contrast.margin) for rival in rivals))
    if contrast.against:
        refuted = min(1.0, len(rivals) * min(scores.gain(winner, rival).p_below() for rival in rivals))
    else:
        needed = contrast.margin or scores.min_effect
        refuted = max(p_equal(scores.gain(winner, rival), needed) for rival in rivals[:1])
    listed = ", ".join(f"{arm} {scores.mean(arm):.3f}" for arm in (winner, *rivals))
    return supported, refuted, f"means: {listed}", winner


def _matters_more(scores: _Scores, contrast: Contrast) -> Judged:
    claimed = _further(scores, contrast.arms, contrast.against)
    opposite = _further(scores, contrast.against, contrast.arms)
    gains = {arm: scores.gain(arm, scores.baseline).value for arm in (*contrast.arms, *contrast.against)}
    listed = ", ".join(f"{arm} {gain:+.3f}" for arm, gain in gains.items())
    return claimed, opposite, f"gain over {scores.baseline}: {listed}", ""


def _further(scores: _Scores, arms: Sequence[str], others: Sequence[str]) -> float:
    """Return the p value of no arm being further from the baseline, in either direction, than all of the others.

    |a - b| > |c - b| exactly if (a - c) and (a + c - 2 b) have the same sign. Both must therefore be clear of 0 on one
    side.
    Any of `arms` may be the one, so the p value is multiplied by their number.
    """
    base = scores.baseline
    best = 1.0
    for arm in arms:
        parts: list[float] = []
        for other in others:
            apart = scores.gain(arm, other)
            total = scores.sum_of({arm: 1.0, other: 1.0, base: -2.0})
            up, down = max(apart.p_above(), total.p_above()), max(apart.p_below(), total.p_below())
            parts.append(2 * min(up, down))
        best = min(best, len(arms) * max(parts))
    return math.nan if math.isnan(best) else min(1.0, best)


_JUDGES: Mapping[Relation, Callable[[_Scores, Contrast], Judged]] = {
    Relation.BETTER: partial(_any_beyond, direction=1.0),
    Relation.WORSE: partial(_any_beyond, direction=-1.0),
    Relation.NO_BETTER: _no_better,
    Relation.EQUIVALENT: _equivalent,
    Relation.INTERACTION: _interaction,
    Relation.BEST: _best,
    Relation.MATTERS_MORE: _matters_more,
}
