"""Checks what a planner claims against the facts of a study, and puts what is true into words of our own.

Place in the flow: the decide node and the report pass a planner's claims through here. A claim is printed only if the
record bears out all of it: arm, direction, size and significance. The sentence gives the record's numbers, never those
of the claim. Free text is an opinion, printed as such if it states nothing that a record could contradict. The prose
that earlier versions stored is read for the claims in it by `prose.py`.

This module knows nothing of where claims come from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import pairwise

from experiments_db import Finding
from researcher.report.facts import ArmFacts, StudyFacts
from researcher.report.prose import read_claims
from researcher.types import ArmSummary, Claim, ClaimKind, Measured

ROUNDING = 0.5 + 1e-6
"""Half a unit of the last digit, with room for the representation of decimals as floats."""

COARSEST = 0.1
"""A number counts as given to one decimal at least: "about 0" is no size of a difference of 0.4."""

SIGNIFICANT = frozenset({"keep", "worse"})
"""Verdicts that a comparison has only if it is significant."""

_STATEMENTS = re.compile(
    r"\d|%|\b(?:better|worse|best|worst|higher|highest|lower|lowest|more|less|fewer|greater|larger|smaller|faster|slower|"
    r"superior|inferior|outperform\w*|beats?|beaten|wins?|winner|winning|won|loses?|loser|lost|equal\w*|equivalent|same|"
    r"identical|no difference|significan\w*|insignifican\w*|clear\w*|proves?|proven|confirm\w*|refut\w*|reject\w*|keep|"
    r"kept|inconclusive|improv\w*|gains?|gained|harm\w*|hurts?|helps?|helped|increas\w*|decreas\w*|reduc\w*|rais\w*|"
    r"drops?|dropped|doubl\w*|tripl\w*|twice|half|halv\w*|percent|none|never|always|no (?:run|arm)s?|fail\w*|"
    r"one|two|three|four|five|six|seven|eight|nine|ten|dozen|most|least|first|last|second|third|works?|worked|"
    r"\w+er than)\b",
    re.IGNORECASE,
)
"""What makes a text more than an opinion: numbers, comparisons, counts and verdicts."""


@dataclass(frozen=True, slots=True)
class CheckedClaim:
    """`sentence` is what may be printed, empty if nothing may; `problem` then says why."""

    sentence: str
    problem: str = ""
    is_opinion: bool = False


class _Untrue(Exception):
    """The record does not bear the claim out; the message says where."""


def check_claim(claim: Claim, facts: StudyFacts) -> CheckedClaim:
    try:
        sentence = _CHECKS[claim.kind](claim, facts)
    except _Untrue as error:
        return CheckedClaim("", str(error))
    return CheckedClaim(sentence, is_opinion=claim.kind is ClaimKind.OPINION)


def check_claims(claims: Iterable[Claim], facts: StudyFacts) -> tuple[CheckedClaim, ...]:
    return tuple(check_claim(claim, facts) for claim in claims)


def check_text(text: str, facts: StudyFacts) -> tuple[CheckedClaim, ...]:
    """What may be printed of prose, sentence by sentence: the claims that are read in it, or an opinion."""
    names = [arm.name for arm in facts.arms]
    return check_claims(read_claims(text, names, facts.charter.baseline), facts)


def _check_mean(claim: Claim, facts: StudyFacts) -> str:
    arm = _arm(claim.arm, facts)
    summary = _summary(arm, claim.measured)
    _same(_size(claim), summary.mean, "mean")
    when = {
        Measured.BEFORE: "before training",
        Measured.AFTER: "after training",
        Measured.TEST: f"on the {facts.charter.sealed_split} split",
    }[claim.measured]
    return f"{arm.name} has a mean score of {summary.mean:.3f} {when}, over {_count(len(summary.scores), 'seed')}."


def _check_difference(claim: Claim, facts: StudyFacts, direction: float, word: str) -> str:
    arm, other = _pair(claim, facts)
    finding, difference = _difference(arm, other, claim.measured, facts)
    gain = direction * difference * (-1.0 if facts.charter.direction == "minimize" else 1.0)
    if not gain > 0:
        raise _Untrue(f"{arm.name} is not {word} than {other.name}: the difference is {difference:+.3f}")
    if claim.number is not None:
        _same(_size(claim), gain, "difference")
    tested = "not tested" if finding is None else _significance(finding, facts)
    if claim.significant is not None and tested != ("significant" if claim.significant else "not significant"):
        raise _Untrue(f"the difference of {arm.name} and {other.name} is {tested}")
    p = f", corrected p = {finding.p_adjusted:.3f}" if finding is not None and finding.p_adjusted is not None else ""
    split = f" on the {facts.charter.sealed_split} split" if claim.measured is Measured.TEST else ""
    return f"{arm.name} is {word} than {other.name} by {gain:.3f}{split} ({tested}{p})."


def _check_equal(claim: Claim, facts: StudyFacts) -> str:
    arm, other = _pair(claim, facts)
    finding, difference = _difference(arm, other, claim.measured, facts)
    low, high = _interval(finding, f"{arm.name} and {other.name}")
    margin = _size(claim)
    if margin <= 0 or max(abs(low), abs(high)) > margin:
        raise _Untrue(f"the interval of the difference, {low:+.3f} to {high:+.3f}, reaches beyond {margin:g}")
    return (
        f"{arm.name} and {other.name} are equal within {margin:g}: their difference is {difference:+.3f}, with the "
        f"interval {low:+.3f} to {high:+.3f}."
    )


def _check_half_width(claim: Claim, facts: StudyFacts) -> str:
    if claim.other is None:
        arm = _arm(claim.arm, facts)
        summary = _summary(arm, claim.measured)
        low, high, what = summary.ci_low, summary.ci_high, f"the mean of {arm.name}, {summary.mean:.3f},"
        if not (math.isfinite(low) and math.isfinite(high)):
            raise _Untrue(f"{arm.name} has no interval")
    else:
        arm, other = _pair(claim, facts)
        finding, difference = _difference(arm, other, claim.measured, facts)
        low, high = _interval(finding, f"{arm.name} and {other.name}")
        what = f"the difference of {arm.name} and {other.name}, {difference:+.3f},"
    _same(_size(claim), (high - low) / 2, "half width")
    return f"The interval of {what} is {low:.3f} to {high:.3f}: half its width is {(high - low) / 2:.3f}."


def _check_p_value(claim: Claim, facts: StudyFacts) -> str:
    arm, other = _pair(claim, facts)
    finding, _ = _difference(arm, other, claim.measured, facts)
    if finding is None or finding.p_adjusted is None:
        raise _Untrue(f"{arm.name} and {other.name} were not compared by a test")
    _same(_size(claim), finding.p_adjusted, "corrected p value")
    return f"The corrected p value of {arm.name} against {other.name} is {finding.p_adjusted:.4f}."


def _check_best(claim: Claim, facts: StudyFacts) -> str:
    arm = _arm(claim.arm, facts)
    ranked = _ranked(facts)
    if not ranked or ranked[0].name != arm.name:
        raise _Untrue(f"{arm.name} does not have the best mean")
    return f"{arm.name} has the best mean score, {arm.search.mean:.3f}, of {_count(len(ranked), 'arm')}."


def _check_ranking(claim: Claim, facts: StudyFacts) -> str:
    if len(set(claim.arms)) < 2 or len(set(claim.arms)) < len(claim.arms):
        raise _Untrue("a ranking names two arms or more, each once")
    arms = [_arm(name, facts) for name in claim.arms]
    sign = -1.0 if facts.charter.direction == "minimize" else 1.0
    means = [sign * _summary(arm, claim.measured).mean for arm in arms]
    if any(later >= earlier for earlier, later in pairwise(means)):
        raise _Untrue("the means are in another order, or some of them are equal")
    listed = ", ".join(f"{arm.name} ({_summary(arm, claim.measured).mean:.3f})" for arm in arms)
    return f"By their means, best first: {listed}."


def _check_failed(claim: Claim, facts: StudyFacts) -> str:
    runs = _arm(claim.arm, facts).runs if claim.arm else facts.runs
    failed = sum(item in facts.failed_runs for item in runs)
    if claim.number != failed or (claim.of is not None and claim.of != len(runs)):
        raise _Untrue(f"{failed} of {len(runs)} runs failed")
    return f"{failed} of {_count(len(runs), 'run')}{f' of {claim.arm}' if claim.arm else ''} failed."


def _check_opinion(claim: Claim, facts: StudyFacts) -> str:
    text = " ".join(claim.text.split())
    if not text:
        raise _Untrue("there is no text")
    if found := _STATEMENTS.search(text):
        raise _Untrue(f"free text must state nothing that can be checked, and says {found.group()!r}")
    if named := next((arm.name for arm in facts.arms if mentions(text, arm.name)), None):
        raise _Untrue(f"free text must name no arm, and names {named!r}")
    return text


_CHECKS: Mapping[ClaimKind, Callable[[Claim, StudyFacts], str]] = {
    ClaimKind.MEAN: _check_mean,
    ClaimKind.BETTER: partial(_check_difference, direction=1.0, word="better"),
    ClaimKind.WORSE: partial(_check_difference, direction=-1.0, word="worse"),
    ClaimKind.EQUAL: _check_equal,
    ClaimKind.HALF_WIDTH: _check_half_width,
    ClaimKind.P_VALUE: _check_p_value,
    ClaimKind.BEST: _check_best,
    ClaimKind.RANKING: _check_ranking,
    ClaimKind.FAILED: _check_failed,
    ClaimKind.OPINION: _check_opinion,
}


def mentions(text: str, name: str) -> bool:
    """Whether `text` names this arm, and not one whose name merely begins or ends alike."""
    return re.search(rf"(?<![\w=.+-]){re.escape(name)}(?![\w=+-]|\.\d)", text) is not None


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
    summary = {Measured.BEFORE: arm.base, Measured.AFTER: arm.search, Measured.TEST: arm.sealed}[measured]
    if summary is None or not summary.scores:
        raise _Untrue(f"{arm.name} has no such score")
    return summary


def _ranked(facts: StudyFacts) -> list[ArmFacts]:
    return [arm for arm in facts.arms if arm.search.scores]


def _difference(arm: ArmFacts, other: ArmFacts, measured: Measured, facts: StudyFacts) -> tuple[Finding | None, float]:
    """Arm minus other: that of the finding where the judge compared the two, else that of the means."""
    if measured is Measured.AFTER:
        for one, sign in ((arm, 1.0), (other, -1.0)):
            against = other if one is arm else arm
            if one.finding is not None and against is facts.baseline and one.finding.effect is not None:
                return (one.finding if sign > 0 else _mirrored(one.finding)), sign * one.finding.effect
    return None, _summary(arm, measured).mean - _summary(other, measured).mean


def _mirrored(finding: Finding) -> Finding:
    """The same comparison told of the other arm."""

    def turned(value: float | None) -> float | None:
        return None if value is None else -value

    return replace(
        finding, effect=turned(finding.effect), ci_low=turned(finding.ci_high), ci_high=turned(finding.ci_low)
    )


def _interval(finding: Finding | None, pair: str) -> tuple[float, float]:
    if finding is None or finding.ci_low is None or finding.ci_high is None:
        raise _Untrue(f"the difference of {pair} has no interval")
    return finding.ci_low, finding.ci_high


def _significance(finding: Finding, facts: StudyFacts) -> str:
    is_significant = finding.verdict.value in SIGNIFICANT or (
        finding.p_adjusted is not None and finding.p_adjusted < facts.charter.rule.alpha
    )
    return "significant" if is_significant else "not significant"


def _size(claim: Claim) -> float:
    if claim.number is None or not math.isfinite(claim.number) or claim.number < 0:
        raise _Untrue(f"{claim.number} is no size")
    return claim.number


def _same(claimed: float, known: float, what: str) -> None:
    """Whether `known`, rounded to as many digits as were claimed, is the claimed number. Raises _Untrue."""
    exponent = int(Decimal(repr(claimed)).as_tuple().exponent)
    unit = min(COARSEST, 10.0**exponent)
    if not abs(known - claimed) <= ROUNDING * unit:
        raise _Untrue(f"the {what} is {known:.3f}, not {claimed:g}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
