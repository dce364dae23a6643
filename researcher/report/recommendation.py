"""What to do with the result of a study: an arm to use, or what would decide between the arms."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from experiments_db import Verdict
from researcher.analysis import Comparison
from researcher.charter import JudgedBy
from researcher.judge.size_words import describe_target
from researcher.record.costs import NOT_FROM_MODEL_BELOW
from researcher.report.advice import list_changes
from researcher.report.answer import unseen
from researcher.report.earned import describe_earned, find_earning_part
from researcher.report.formats import (
    LEAST,
    format_difference,
    format_interval,
    format_score,
    format_share,
    is_known,
    join_names,
)
from researcher.report.numbers.facts import ArmFacts, StudyFacts

UNDECIDED = "Undecided: "
"""The beginning of a recommendation that says what would decide."""


def recommendation(facts: StudyFacts) -> list[str]:
    """Return what to do with the result."""
    baseline = facts.baseline
    sentences: list[str] = []
    if baseline is None or not any(arm.comparison and is_known(arm.comparison.difference) for arm in facts.arms):
        sentences.append("No recommendation: nothing has been compared.")
    else:
        sentences += _what_to_use(facts, baseline)
    sentences += [
        f"{arm.name} is not recommended: the planner calls it suspect: {arm.suspect.rstrip('.')}."
        for arm in facts.arms
        if arm.suspect and not arm.disqualified
    ]
    sentences += [
        f"{arm.name} is out of the ranking: {arm.disqualified.rstrip('.')}.{_how_to_accept(arm)}"
        for arm in facts.arms
        if arm.disqualified
    ]
    sentences += [
        f"{arm.name} is in by the decision of a person: {arm.work_of_code}."
        for arm in facts.arms
        if arm.work_of_code and arm.is_accepted and not arm.disqualified
    ]
    if opened := [arm.name for arm in facts.arms if arm.is_open]:
        is_first_said = sentences[0].startswith(UNDECIDED)
        sentences.append(f"Not decided: {join_names(opened)}.{'' if is_first_said else _needed(facts)}")
    return sentences


def _how_to_accept(arm: ArmFacts) -> str:
    is_by_code = arm.disqualified == arm.work_of_code
    return f" Only a person can keep it in, with --accept {quote(arm.name)}." if is_by_code else ""


def _what_to_use(facts: StudyFacts, baseline: ArmFacts) -> Iterator[str]:
    kept = [arm for arm in facts.candidates if arm.is_kept]
    of_model = [arm for arm in kept if not is_not_from_model(arm) and not arm.suspect]
    if facts.charter.margin is not None:
        yield from _what_is_equal(facts, baseline)
    elif kept and facts.contradicted == kept[0].name:
        name, split = kept[0].name, facts.charter.test_split
        if any(arm.is_open for arm in facts.candidates):
            yield _undecided(facts, baseline)
            yield f"{name} is to be confirmed on fresh seeds: the {split} split contradicts its gain."
        else:
            yield (
                f"Stay with {baseline.name} unless {name} is confirmed on fresh seeds: the {split} split contradicts "
                "its gain."
            )
        return
    elif of_model:
        part = find_earning_part(facts, of_model[0])
        yield _use(facts, baseline, of_model[0] if part is None else part.arm)
        if part is not None:
            yield f"{part.arm.name} is recommended in place of {of_model[0].name}: {part.reason}."
    else:
        is_doubted = any(arm.suspect for arm in kept)
        why = "no other arm is both better and trusted" if is_doubted else "every other arm is worse or no better"
        yield _stay(facts, baseline, why)
    for arm in kept:
        if is_not_from_model(arm) and arm.cost.evaluation is not None:
            yield f"{arm.name} is not recommended as better trained: {_not_from_model(arm)}."


def _what_is_equal(facts: StudyFacts, baseline: ArmFacts) -> Iterator[str]:
    refuted = {item.arm for item in facts.test_comparisons if item.verdict is Verdict.DIFFERENT}
    trusted = [arm for arm in facts.candidates if not arm.suspect]
    equal = [arm for arm in trusted if arm.verdict == Verdict.EQUAL and arm.name not in refuted]
    if equal:
        names = join_names([baseline.name, *(arm.name for arm in equal)])
        why = _why_not_the_best(facts, baseline, [baseline, *equal])
        yield f"Choose by cost between {names}: they are equal within the margin{why}."
    better = [
        arm
        for arm in trusted
        if arm.comparison is not None
        and arm.verdict == Verdict.DIFFERENT
        and facts.charter.sign * arm.comparison.difference > 0
    ]
    if better:
        why = _why_not_the_best(facts, baseline, better[:1])
        yield f"Use {better[0].name}: it is better than {baseline.name} by more than the margin{why}."
    elif not equal:
        yield _stay(facts, baseline, "no arm was shown to be equal")


def _stay(facts: StudyFacts, baseline: ArmFacts, reason: str) -> str:
    """Return the advice to stay with the baseline, or what is undecided if some arm is."""
    if any(arm.is_open for arm in facts.candidates):
        return _undecided(facts, baseline)
    if all(arm.experiment.is_baseline for arm in facts.candidates):
        return f"Stay with {baseline.name}: no other arm is left."
    return f"Stay with {baseline.name}: {reason}{_why_not_the_best(facts, baseline, [baseline])}."


def _undecided(facts: StudyFacts, baseline: ArmFacts) -> str:
    """Return which of two arms leads, by how much, and what would decide between them."""
    opened = [arm for arm in facts.candidates if arm.is_open]
    known = [arm for arm in opened if arm.comparison is not None and is_known(arm.comparison.difference)]
    if not known:
        names = join_names(arm.name for arm in opened)
        return f"{UNDECIDED}{names} cannot be compared with {baseline.name}, for want of scores."
    arm = known[0]
    assert arm.comparison is not None, "its difference is known"
    why = _why_not_the_best(facts, baseline, [arm, baseline])
    return f"{UNDECIDED}{_lead(facts, arm.name, arm.comparison)}{why}{_to_decide(facts, arm)}."


def _lead(facts: StudyFacts, arm: str, found: Comparison) -> str:
    """Return which of two arms is ahead, by how much, with the interval of its lead."""
    is_ahead = facts.charter.sign * found.difference >= 0
    ends = [facts.charter.sign * end * (1 if is_ahead else -1) for end in (found.ci_low, found.ci_high)]
    leader, other = (arm, found.baseline) if is_ahead else (found.baseline, arm)
    interval = f"{100 * facts.charter.confidence:g} % interval {format_interval(min(ends), max(ends), signed=True)}"
    if abs(found.difference) < LEAST:
        return f"{leader} and {other} are level ({interval})"
    return f"{leader} leads {other} by {format_score(abs(found.difference))} ({interval})"


def _to_decide(facts: StudyFacts, arm: ArmFacts) -> str:
    """Return the number of runs that would decide about an arm, with the command; empty if it is not known."""
    wanted = facts.to_decide
    if wanted is None or wanted.arm != arm.name:
        return ""
    if wanted.seeds is None:
        return f"; even {wanted.most} fresh seeds of both are likely too few to tell"
    return f"; about {wanted.seeds} fresh seeds of both would decide: `{wanted.command}`"


def _why_not_the_best(facts: StudyFacts, baseline: ArmFacts, named: list[ArmFacts]) -> str:
    """Return why the arm with the best mean is not among the named arms; empty if its mean is no better than theirs."""
    best = facts.ranked[0] if facts.ranked else None
    means = [format_score(arm.search.mean) for arm in named]
    if best is None or best.name in {arm.name for arm in named} or format_score(best.search.mean) in means:
        return ""
    against = join_names(f"{mean} of {arm.name}" for arm, mean in zip(named, means, strict=True))
    return (
        f"; {best.name} has the best mean, {format_score(best.search.mean)} against {against}, but "
        f"{_why_not(facts, baseline, best)}"
    )


def _why_not(facts: StudyFacts, baseline: ArmFacts, best: ArmFacts) -> str:
    """Return why the arm with the best mean is not recommended."""
    found = best.comparison
    if best.experiment.is_baseline:
        return "the verdict rests on the runs of one plan, in which it is behind"
    if best.suspect or found is None:
        return "the planner calls it suspect" if best.suspect else f"it was not compared with {baseline.name}"
    if part := find_earning_part(facts, best):
        return part.reason
    if facts.confirmation is not None and best.name in {item.name for item in facts.confirmation.ablations}:
        return f"is not shown to be better than {facts.confirmation.winner}, of which it lacks a part"
    if best.is_kept and is_not_from_model(best):
        return _not_from_model(best)
    difference = f"{format_difference(found.difference)}, {format_interval(found.ci_low, found.ci_high, signed=True)}"
    match found.verdict:
        case Verdict.NO_BETTER:
            return f"it is no better than {baseline.name} by {facts.ruled_out_gain(best.name):g} or more ({difference})"
        case Verdict.WORSE:
            return f"it is worse than {baseline.name} on the runs of its plan ({difference})"
        case Verdict.INCONCLUSIVE:
            return f"whether it is better than {baseline.name} is not decided ({difference})"
        case Verdict.KEEP | Verdict.EQUAL | Verdict.DIFFERENT:
            return f"the {facts.charter.test_split} split contradicts it"


def _not_from_model(arm: ArmFacts) -> str:
    share = None if arm.cost.evaluation is None else arm.cost.evaluation.model_share
    return f"its replies do not come from the model ({format_share(share)} of their characters)"


def _use(facts: StudyFacts, baseline: ArmFacts, arm: ArmFacts) -> str:
    found = arm.comparison
    assert found is not None, "a verdict is that of a comparison"
    changes = ", ".join(list_changes(baseline, arm)) or "its settings are those of the baseline"
    sentences = [f"Use {arm.name}: {changes}{_why_not_the_best(facts, baseline, [arm])}."]
    if earned := describe_earned(facts, found, "It"):
        sentences.append(earned)
    if is_known(found.unseen_failures):
        sentences.append(f"That holds {facts.charter.about}: {unseen(found)}.")
    if facts.charter.judged_by is not JudgedBy.FINAL:
        finals = (format_score(each.final_mean) for each in (arm, baseline))
        sentences.append(f"Its mean final score is {' and that of the baseline '.join(finals)}.")
    if arm.flags:
        sentences.append(f"To be known of it: {'; '.join(arm.flags)}.")
    return " ".join(sentences)


def is_not_from_model(arm: ArmFacts) -> bool:
    """Return whether the model wrote too little of the graded text."""
    share = None if arm.cost.evaluation is None else arm.cost.evaluation.model_share
    return share is not None and share < NOT_FROM_MODEL_BELOW


def _needed(facts: StudyFacts) -> str:
    needed = facts.needed
    if needed is None:
        return ""
    target = describe_target(needed.effect, is_worse=needed.finds_worse, margin=facts.charter.margin)
    goal = f"{target} with probability {needed.power:g}"
    if needed.seeds is None:
        return f" Even with {needed.most} runs per arm, no such number is reached that {goal}."
    return f" With about {needed.seeds} runs per arm in place of {needed.has}, {goal}."
