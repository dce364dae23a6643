"""The test of equality: two one-sided tests against a margin, and the hypotheses that the verdicts settle."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from experiments_db import Outcome, Verdict
from researcher.analysis import Comparison, JudgedContrast
from researcher.charter import Charter
from researcher.judge.samples import Estimate
from researcher.judge.worst_case import Runs
from researcher.plan import Relation


def p_equal(estimate: Estimate, margin: float) -> float:
    """Return the p value of a difference of the margin or more, in either direction.

    Both one-sided tests must reject (Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15:657-680).
    """
    return max(estimate.p_above(-margin), estimate.p_below(margin))


def p_different(estimate: Estimate, margin: float) -> float:
    """Return the p value of a difference of at most the margin; doubled, because either direction is looked at."""
    return min(1.0, 2 * min(estimate.p_above(margin), estimate.p_below(-margin)))


def why_not_equal(runs: Runs, baseline: Runs, missing: Mapping[str, Mapping[int, str]], arms: Sequence[str]) -> str:
    """Return why two arms are not called equal whatever the test says; empty if nothing speaks against it.

    Runs that nobody has seen may hide the difference, and they may be the arm's or the baseline's.
    """
    for arm, each in zip(arms, (runs, baseline), strict=True):
        if missing.get(arm):
            return f"not called equal, because seeds of {arm} have no score"
        if any(run.retries for run in each.values()):
            return f"not called equal, because runs of {arm} were trained again"
    failures, of_baseline = (sum(bool(run.failure) for run in each.values()) for each in (runs, baseline))
    if failures * len(baseline) != of_baseline * len(runs):
        return "not called equal, because their runs fail at different rates"
    return ""


def settle_equal(
    charter: Charter, item: JudgedContrast, compared: Sequence[Comparison], ruled_out: Collection[str]
) -> JudgedContrast:
    """Return the hypothesis of a question for equality with the outcome that the verdicts on its arms give.

    The hypothesis and the verdicts are then never at odds. Any other hypothesis is returned as it is, and so is one
    about an arm that was disqualified or not compared.
    """
    contrast, found = item.contrast, {each.arm: each for each in compared}
    is_asked = contrast.relation is Relation.EQUIVALENT and contrast.against == (charter.baseline,)
    if charter.margin is None or not is_asked or contrast.margin not in (0.0, charter.margin):
        return item
    arms = [found[arm] for arm in contrast.arms if arm in found and arm not in ruled_out]
    if len(arms) < len(contrast.arms) or any(math.isnan(each.ci_low) for each in arms):
        return item
    verdicts = {each.verdict for each in arms}
    outcome = Outcome.SUPPORTED if verdicts == {Verdict.EQUAL} else Outcome.UNDECIDED
    if Verdict.DIFFERENT in verdicts:
        outcome = Outcome.REFUTED
    listed = ", ".join(
        f"{each.arm} {each.difference:+.3f} ({each.ci_low:+.3f} to {each.ci_high:+.3f})" for each in arms
    )
    reason = (
        f"difference from {charter.baseline} with its {100 * charter.confidence:g} % interval: {listed}; the margin is "
        f"{charter.margin:g}."
    )
    return replace(item, outcome=outcome, reason=reason)


_BY_VERDICT: Mapping[Relation, Mapping[Verdict, Outcome]] = {
    Relation.BETTER: {
        Verdict.KEEP: Outcome.SUPPORTED,
        Verdict.WORSE: Outcome.REFUTED,
        Verdict.NO_BETTER: Outcome.REFUTED,
        Verdict.INCONCLUSIVE: Outcome.UNDECIDED,
    },
    Relation.NO_BETTER: {
        Verdict.WORSE: Outcome.SUPPORTED,
        Verdict.NO_BETTER: Outcome.SUPPORTED,
        Verdict.INCONCLUSIVE: Outcome.UNDECIDED,
    },
}
"""The outcome of a hypothesis about one arm and the baseline, by the verdict on the arm, where the verdict says it."""


def settle_primary(item: JudgedContrast, compared: Sequence[Comparison]) -> JudgedContrast:
    """Return the hypothesis about a primary arm with the outcome of its verdict, so that the two are never at odds."""
    contrast = item.contrast
    found = next((each for each in compared if (each.arm,) == contrast.arms), None)
    if found is None or contrast.against != (found.baseline,) or math.isnan(found.ci_low):
        return item
    if contrast.relation is Relation.BETTER and contrast.margin:
        return item
    outcome = _BY_VERDICT.get(contrast.relation, {}).get(found.verdict, item.outcome)
    is_won = outcome is Outcome.SUPPORTED and contrast.relation is Relation.BETTER
    return replace(item, outcome=outcome, winner=found.arm if is_won else "")
