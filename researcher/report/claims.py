"""The check of a planner's claims against the facts of a study: arm, direction, size and significance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import pairwise

from experiments_db import Verdict
from researcher.analysis import ArmSummary, Comparison
from researcher.claims import Claim, ClaimKind, Measured
from researcher.report.advice import describe_failures
from researcher.report.formats import (
    LEAST,
    count,
    describe_p,
    format_difference,
    format_interval,
    format_score,
    is_known,
)
from researcher.report.numbers.facts import ArmFacts, StudyFacts

ROUNDING = 0.5 + 1e-6
"""Half a unit of the last digit, plus a margin for the representation of decimals as floats."""

COARSEST = 0.1
"""The coarsest unit of a claimed number: one decimal, so that "about 0" does not match a difference of 0.4."""

SIGNIFICANT = frozenset({Verdict.KEEP, Verdict.WORSE, Verdict.DIFFERENT})
"""The verdicts that only a significant comparison has."""


@dataclass(frozen=True, slots=True)
class CheckedClaim:
    """A claim after its check.

    `sentence` is a true claim in the record's numbers, or an opinion as it was written. It is empty if the claim is
    false. `claimed` is then the claim in words, and `record` is what the record has instead.
    """

    sentence: str
    claimed: str = ""
    record: str = ""
    is_opinion: bool = False


class _Untrue(Exception):
    """A claim that the record does not support; the message is what the record has."""


def check_claim(claim: Claim, facts: StudyFacts) -> CheckedClaim:
    """Return a claim after its check: it is true if the record supports all of it."""
    if claim.kind is ClaimKind.OPINION:
        return CheckedClaim(claim.text, is_opinion=True)
    try:
        return CheckedClaim(_CHECKS[claim.kind](claim, facts))
    except _Untrue as error:
        return CheckedClaim("", _in_words(claim, facts), str(error))


def check_claims(claims: Iterable[Claim], facts: StudyFacts) -> tuple[CheckedClaim, ...]:
    return tuple(check_claim(claim, facts) for claim in claims)


def _in_words(claim: Claim, facts: StudyFacts) -> str:
    """Return a claim as it was made, in words."""
    number = "" if claim.number is None else f"{claim.number:g}"
    by = f" by {number}" if number else ""
    significantly = {None: "", True: ", significantly", False: ", not significantly"}[claim.significant]
    of = f" of {claim.of}" if claim.of is not None else ""
    when, moment = _when(claim.measured, facts), _moment(claim, facts)
    return {
        ClaimKind.MEAN: f"{claim.arm} has a mean score of {number} {when}",
        ClaimKind.BETTER: f"{claim.arm} is better than {claim.other}{by} {when}{significantly}",
        ClaimKind.WORSE: f"{claim.arm} is worse than {claim.other}{by} {when}{significantly}",
        ClaimKind.EQUAL: f"{claim.arm} and {claim.other} are equal within {number} {when}",
        ClaimKind.P_VALUE: f"the corrected p value of {claim.arm} against {claim.other} is {number}",
        ClaimKind.BEST: f"{claim.arm} has the best mean score",
        ClaimKind.RANKING: f"by their means{moment}, best first: {', '.join(claim.arms)}",
        ClaimKind.FAILED: f"{number}{of} runs{f' of {claim.arm}' if claim.arm else ''} failed",
    }[claim.kind]


def _when(measured: Measured, facts: StudyFacts) -> str:
    return {
        Measured.BEFORE: "before training",
        Measured.AFTER: "in exploration" if facts.is_of_exploration else "after training",
        Measured.TEST: f"on the {facts.charter.test_split} split",
    }[measured]


def _moment(claim: Claim, facts: StudyFacts) -> str:
    """Return when or on which split a score was measured; empty for scores after training, the usual case."""
    is_usual = claim.measured is Measured.AFTER and not facts.is_of_exploration
    return "" if is_usual else f" {_when(claim.measured, facts)}"


def _check_mean(claim: Claim, facts: StudyFacts) -> str:
    arm = _arm(claim.arm, facts)
    summary = _summary(arm, claim.measured)
    _same(_size(claim), summary.mean, "the mean")
    runs = count(len(summary.scores), "run")
    return f"{arm.name} has a mean score of {format_score(summary.mean)} {_when(claim.measured, facts)}, over {runs}."


def _check_difference(claim: Claim, facts: StudyFacts, direction: float, word: str) -> str:
    arm, other = _pair(claim, facts)
    found, difference = _difference(arm, other, claim.measured, facts)
    gain = direction * difference * facts.charter.sign
    if gain < LEAST:
        raise _Untrue(f"{arm.name} less {other.name} is {format_difference(difference)}")
    if claim.number is not None:
        _same(_size(claim), gain, "the difference")
    tested = "not tested" if found is None else _significance(found, facts)
    if claim.significant is not None and tested != ("significant" if claim.significant else "not significant"):
        raise _Untrue(f"the difference of {arm.name} and {other.name} is {tested}")
    p = f", {describe_p(found.p_adjusted)} corrected" if found is not None and is_known(found.p_adjusted) else ""
    moment = _moment(claim, facts)
    return f"{arm.name} is {word} than {other.name} by {format_score(gain)}{moment} ({tested}{p})."


def _check_equal(claim: Claim, facts: StudyFacts) -> str:
    arm, other = _pair(claim, facts)
    found, difference = _difference(arm, other, claim.measured, facts)
    low, high = _interval(found, arm, other)
    margin = _size(claim)
    if margin <= 0 or max(abs(low), abs(high)) > margin:
        raise _Untrue(f"the interval of the difference is {format_interval(low, high, signed=True)}")
    return (
        f"{arm.name} and {other.name} are equal within {margin:g}: {format_difference(difference)}, with the interval "
        f"{format_interval(low, high, signed=True)}."
    )


def _check_p_value(claim: Claim, facts: StudyFacts) -> str:
    arm, other = _pair(claim, facts)
    found, _ = _difference(arm, other, claim.measured, facts)
    if found is None or not is_known(found.p_adjusted):
        raise _Untrue(f"{arm.name} and {other.name} were not compared by a test")
    if not _is_same(_size(claim), found.p_adjusted):
        raise _Untrue(f"{arm.name} against {other.name} has {describe_p(found.p_adjusted)} corrected")
    return f"{arm.name} against {other.name}: {describe_p(found.p_adjusted)} corrected."


def _check_best(claim: Claim, facts: StudyFacts) -> str:
    arm = _arm(claim.arm, facts)
    best = facts.ranked[0].search.mean if facts.ranked else math.nan
    equal = [other.name for other in facts.ranked if abs(other.search.mean - best) < LEAST]
    if equal != [arm.name]:
        held = f"the best mean, {format_score(best)}, is that of {', '.join(equal)}" if equal else "no arm has a score"
        raise _Untrue(held)
    return f"{arm.name} has the best mean score, {format_score(arm.search.mean)}, of {count(len(facts.ranked), 'arm')}."


def _check_ranking(claim: Claim, facts: StudyFacts) -> str:
    if len(set(claim.arms)) < 2 or len(set(claim.arms)) < len(claim.arms):
        raise _Untrue("a ranking names two arms or more, each once")
    arms = [_arm(name, facts) for name in claim.arms]
    charter = facts.charter if claim.measured is Measured.AFTER else facts.charter.of_scores
    means = [charter.sign * _summary(arm, claim.measured).mean for arm in arms]
    listed = ", ".join(f"{arm.name} {format_score(_summary(arm, claim.measured).mean)}" for arm in arms)
    if any(earlier - later < LEAST for earlier, later in pairwise(means)):
        raise _Untrue(f"the means are {listed}")
    return f"By their means{_moment(claim, facts)}, best first: {listed}."


def _check_failed(claim: Claim, facts: StudyFacts) -> str:
    counts = _arm(claim.arm, facts).counts if claim.arm else facts.counts
    sentence = f"{f'of the runs of {claim.arm}, ' if claim.arm else ''}{describe_failures(counts)}"
    if claim.number != counts.failed or (claim.of is not None and claim.of != counts.counting):
        raise _Untrue(sentence)
    return f"{sentence[0].upper()}{sentence[1:]}."


_CHECKS: Mapping[ClaimKind, Callable[[Claim, StudyFacts], str]] = {
    ClaimKind.MEAN: _check_mean,
    ClaimKind.BETTER: partial(_check_difference, direction=1.0, word="better"),
    ClaimKind.WORSE: partial(_check_difference, direction=-1.0, word="worse"),
    ClaimKind.EQUAL: _check_equal,
    ClaimKind.P_VALUE: _check_p_value,
    ClaimKind.BEST: _check_best,
    ClaimKind.RANKING: _check_ranking,
    ClaimKind.FAILED: _check_failed,
}


def _arm(name: str | None, facts: StudyFacts) -> ArmFacts:
    found = next((arm for arm in facts.arms if arm.name == name), None)
    if found is None:
        raise _Untrue(f"there is no arm {name!r}" if name else "no arm is named")
    return found


def _pair(claim: Claim, facts: StudyFacts) -> tuple[ArmFacts, ArmFacts]:
    arm, other = _arm(claim.arm, facts), _arm(claim.other, facts)
    if arm is other:
        raise _Untrue("an arm is compared with itself")
    return arm, other


def _summary(arm: ArmFacts, measured: Measured) -> ArmSummary:
    summary = {Measured.BEFORE: arm.base, Measured.AFTER: arm.search, Measured.TEST: arm.test}[measured]
    if summary is None or not summary.scores:
        raise _Untrue(f"{arm.name} has no such score")
    return summary


def _difference(
    arm: ArmFacts, other: ArmFacts, measured: Measured, facts: StudyFacts
) -> tuple[Comparison | None, float]:
    """Return arm minus other, with the judge's comparison if it compared the two.

    Without a comparison, the difference is that of the means. The comparison is returned as it was made, whichever of
    the two is its arm.
    """
    if measured is Measured.AFTER:
        for one, against, sign in ((arm, other, 1.0), (other, arm, -1.0)):
            found = one.comparison
            if found is not None and against is facts.baseline and is_known(found.difference):
                return found, sign * found.difference
    return None, _summary(arm, measured).mean - _summary(other, measured).mean


def _interval(found: Comparison | None, arm: ArmFacts, other: ArmFacts) -> tuple[float, float]:
    """Return the interval of arm minus other."""
    if found is None or not (is_known(found.ci_low) and is_known(found.ci_high)):
        raise _Untrue(f"the difference of {arm.name} and {other.name} has no interval")
    return (found.ci_low, found.ci_high) if found.arm == arm.name else (-found.ci_high, -found.ci_low)


def _significance(found: Comparison, facts: StudyFacts) -> str:
    # The p value of a question for equality is not that of a difference.
    is_difference = facts.charter.margin is None and found.p_adjusted < facts.charter.rule.alpha
    is_significant = found.verdict in SIGNIFICANT or is_difference
    return "significant" if is_significant else "not significant"


def _size(claim: Claim) -> float:
    if claim.number is None or not math.isfinite(claim.number) or claim.number < 0:
        raise _Untrue(f"{claim.number} is no size")
    return claim.number


def _same(claimed: float, known: float, what: str) -> None:
    """Raise _Untrue unless `known` is the claimed number."""
    if not _is_same(claimed, known):
        raise _Untrue(f"{what} is {format_score(known)}")


def _is_same(claimed: float, known: float) -> bool:
    """Return whether `known`, rounded to the digits of the claim, is the claimed number."""
    exponent = int(Decimal(repr(claimed)).as_tuple().exponent)
    return abs(known - claimed) <= ROUNDING * min(COARSEST, 10.0**exponent)
