"""The answer of a study, in sentences that follow from its facts by rules; terminal and webhook show them too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from experiments_db import ArmFailure, Outcome, Verdict
from researcher.analysis import Comparison, JudgedContrast
from researcher.charter import Asked, JudgedBy
from researcher.plan import Relation
from researcher.question.factors import SPECS
from researcher.question.wording import title_of, title_of_environment
from researcher.report.earned import describe_earned
from researcher.report.formats import (
    LEAST,
    count,
    count_kinds,
    describe_p,
    format_difference,
    format_interval,
    format_score,
    is_known,
    join_names,
)
from researcher.report.numbers.facts import ArmFacts, StudyFacts
from researcher.study.ending import headline

_RELATIONS: Mapping[Asked, Relation] = MappingProxyType(
    {
        Asked.MATTERS_MORE: Relation.MATTERS_MORE,
        Asked.INTERACTION: Relation.INTERACTION,
        Asked.EQUAL: Relation.EQUIVALENT,
        Asked.NEEDED: Relation.BETTER,
    }
)
"""The relation of the hypothesis that answers a question."""


def answer_relation(facts: StudyFacts) -> Iterator[str]:
    """Yield the sentence that answers the question, or nothing if it is for the best or a better arm."""
    asked = facts.charter.asks.asked
    if not facts.charter.asks.factors or not facts.compared:
        return
    if asked is Asked.EFFECT:
        yield from _of_effects(facts)
    elif asked is Asked.EQUAL:
        yield from _of_equality(facts)
    elif asked is Asked.DIVERGES:
        yield _of_divergence(facts)
    elif asked in _RELATIONS:
        relation = _RELATIONS[asked]
        for item in facts.contrasts:
            if item.contrast.relation is relation:
                yield f"{_words_on(facts, item)}{_about(facts, item)} ({item.reason.rstrip('.')})."


def _about(facts: StudyFacts, item: JudgedContrast) -> str:
    """Return what a decided contrast is about; a sum of three arms or more has no pairs of runs."""
    if _outcome(facts, item) is Outcome.UNDECIDED:
        return ""
    is_of_sums = item.contrast.relation in (Relation.MATTERS_MORE, Relation.INTERACTION)
    return " by the means" if is_of_sums else f" {facts.charter.about}"


def _outcome(facts: StudyFacts, item: JudgedContrast) -> Outcome:
    """Return the outcome of a hypothesis; undecided if the test split contradicts the arm that it rests on."""
    is_contradicted = facts.contradicted in item.contrast.arms and item.contrast.relation is Relation.BETTER
    return Outcome.UNDECIDED if is_contradicted and item.outcome is Outcome.SUPPORTED else item.outcome


def is_answered(facts: StudyFacts, relation: Relation) -> bool:
    """Return whether the first sentence of the answer is about hypotheses of this relation."""
    return bool(facts.charter.asks.factors) and _RELATIONS.get(facts.charter.asks.asked) is relation


def _of_effects(facts: StudyFacts) -> Iterator[str]:
    """Yield whether each factor matters.

    A factor matters if some arm that differs from the baseline in it alone is better or worse.
    """
    baseline = facts.baseline
    if baseline is None:
        return
    place = title_of_environment(facts.charter.environment_name)
    for factor in facts.charter.asks.factors:
        arms = [arm for arm in facts.compared if changed_factors(arm, baseline) == {factor.name}]
        # A gain that the test split contradicts shows nothing.
        verdicts = {Verdict.INCONCLUSIVE.value if arm.name == facts.contradicted else arm.verdict for arm in arms}
        if not arms:
            continue
        if {Verdict.KEEP, Verdict.WORSE} & verdicts:
            yield _sentence(f"{title_of(factor.name)} matters for {place} {facts.charter.about}.")
        elif verdicts == {Verdict.NO_BETTER}:
            yield f"No other {title_of(factor.name)} is better for {place} {facts.charter.about}."
        else:
            yield f"Whether the {title_of(factor.name)} matters for {place} is not decided."


def _of_equality(facts: StudyFacts) -> Iterator[str]:
    """Yield the verdict on each arm with its interval and the margin."""
    margin, about = f"{facts.charter.margin:g}", facts.charter.about
    for arm in facts.compared:
        found, names = arm.comparison, f"{arm.name} and {facts.charter.baseline}"
        if found is None or arm.disqualified:
            continue
        word = "better" if facts.charter.sign * found.difference > 0 else "worse"
        sentence = {
            Verdict.EQUAL: f"{names} are equal within {margin} {about}",
            Verdict.DIFFERENT: f"{names} differ by more than {margin} {about}, and {arm.name} is the {word} one",
        }.get(found.verdict, f"Whether {names} are equal within {margin} is not decided")
        tested = _found_different(facts, arm)
        if found.verdict is Verdict.EQUAL and tested is not None:
            yield (
                f"Equality is not shown: {names} are equal within {margin} {about} on the "
                f"{facts.charter.search_split} split, {effect_of(facts, found)}, and differ on the "
                f"{facts.charter.test_split} split: {effect_of(facts, tested)}."
            )
            continue
        yield f"{sentence}: {effect_of(facts, found)}{_means(arm)}{_parts(found)}."
        if found.verdict is Verdict.EQUAL and is_known(found.unseen_failures):
            yield f"This is about a typical run: {unseen(found)}."


def _found_different(facts: StudyFacts, arm: ArmFacts) -> Comparison | None:
    """Return the comparison on the test split if it finds the arm different; that split has final scores alone."""
    if facts.charter.judged_by is not JudgedBy.FINAL:
        return None
    named = (item for item in facts.test_comparisons if (item.arm, item.baseline) == (arm.name, facts.charter.baseline))
    return next((item for item in named if item.verdict is Verdict.DIFFERENT), None)


def changed_factors(arm: ArmFacts, baseline: ArmFacts) -> set[str]:
    """Return the names of the factors in which two arms differ."""
    ours, theirs = arm.experiment.factors, baseline.experiment.factors
    return {name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)}


def _of_divergence(facts: StudyFacts) -> str:
    titles = join_names(title_of(factor.name) for factor in facts.charter.asks.factors)
    failed = [arm for arm in facts.arms if arm.counts.failed]
    if not failed:
        runs = facts.counts.counting
        return f"At no {titles} that was tried did training diverge or collapse, in {runs} runs."
    arms = (f"{arm.name} in {arm.counts.failed} of {arm.counts.counting} runs" for arm in failed)
    return f"Training diverged or collapsed at {join_names(arms)}."


_MATTERS = {
    Outcome.SUPPORTED: "{first} matters more for {place} than {second}",
    Outcome.REFUTED: "{second} matters more for {place} than {first}",
    Outcome.UNDECIDED: "Whether {first} or {second} matters more for {place} is not decided",
}
_INTERACT = {
    Outcome.SUPPORTED: "{names} interact in {place}",
    Outcome.REFUTED: "{names} do not interact in {place} by {effect} or more",
    Outcome.UNDECIDED: "Whether {names} interact in {place} is not decided",
}
_NEEDED = {
    Outcome.SUPPORTED: "{names} is needed for {place}",
    Outcome.REFUTED: "{names} is not needed for {place}",
    Outcome.UNDECIDED: "Whether {names} is needed for {place} is not decided",
}
_ENOUGH = {
    Outcome.SUPPORTED: "{names} is not enough for {place}",
    Outcome.REFUTED: "{names} is enough for {place}",
    Outcome.UNDECIDED: "Whether {names} is enough for {place} is not decided",
}
"""Each has the sentences about a relation by the outcome of its hypothesis, without their full stop."""


def _words_on(facts: StudyFacts, item: JudgedContrast) -> str:
    """Return the sentence about a relation, without its full stop."""
    contrast, outcome = item.contrast, _outcome(facts, item)
    place, least = title_of_environment(facts.charter.environment_name), facts.charter.rule.min_effect
    match facts.charter.asks.asked:
        case Asked.MATTERS_MORE:
            first, second = (_changed_by(facts, arms) for arms in (contrast.arms, contrast.against))
            return _sentence(_MATTERS[outcome].format(first=first, second=second, place=place))
        case Asked.INTERACTION:
            neither, *single = contrast.arms[:3]
            names = join_names(_changed_by(facts, (arm,), neither) for arm in single)
            return _sentence(_INTERACT[outcome].format(names=names, place=place, effect=f"{least:g}"))
        case _:
            factor, (name,) = facts.charter.asks.factors[0].name, contrast.against
            arm = next(each for each in facts.arms if each.name == name)
            if arm.experiment.factors[factor] != SPECS[factor].off:
                return _ENOUGH[outcome].format(names=name, place=place)
            return _sentence(_NEEDED[outcome].format(names=title_of(factor), place=place))


def _changed_by(facts: StudyFacts, arms: tuple[str, ...], against: str | None = None) -> str:
    """Return the titles of the factors in which arms differ from another arm, or from the baseline."""
    found = {arm.name: arm for arm in facts.arms}
    base = found[against or facts.charter.baseline]
    names = dict.fromkeys(name for arm in arms for name in sorted(changed_factors(found[arm], base)))
    return join_names(map(title_of, names))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def not_studied(facts: StudyFacts) -> str:
    """Return one sentence about the parts of the topic that the study leaves out; empty if there are none."""
    named = ", ".join(facts.charter.not_studied)
    return f"Not studied, though the topic asks for it: {named}." if named else ""


def answer(facts: StudyFacts) -> str:
    """Return the answer of a study.

    A study that failed says so first, and nothing else if it compared nothing.
    """
    if failed := headline(facts.study):
        is_anything_compared = any(is_known(difference_of(arm)) for arm in facts.arms)
        return f"{failed} {_answer_so_far(facts)}" if is_anything_compared else failed
    return _answer_so_far(facts)


def _answer_so_far(facts: StudyFacts) -> str:
    return " ".join([*_not_as_claimed(facts), _of_search(facts) if facts.exploration else _of_comparisons(facts)])


def _not_as_claimed(facts: StudyFacts) -> Iterator[str]:
    """Yield the compared arms that are not what they claim to be, which is said before any verdict."""
    for arm in facts.arms:
        if arm.in_search is not None and arm.in_search.failure is ArmFailure.NOT_AS_CLAIMED:
            yield f"{arm.name} is not what it claims to be, so it has no verdict: {arm.in_search.reason}."


def _of_search(facts: StudyFacts) -> str:
    """Return what exploration found, as far as it was confirmed on fresh seeds."""
    assert facts.exploration is not None, "the caller asks for an exploring study"
    explored = count(len(facts.exploration.explored), "explored arm")
    baseline, winner = facts.baseline, facts.winner
    others = [] if baseline is None else list(_of_other_hypotheses(facts, baseline))
    if winner is None and others:
        return " ".join([f"Of {explored}, none was to be confirmed as better.", *others, *_units(facts)])
    if winner is None or baseline is None or winner.comparison is None:
        leaders = facts.exploration.leaders(facts.charter.of_scores.sign)
        lead = f" The best exploring score is that of {leaders[0].name}." if leaders else ""
        said = "No answer" if facts.study.status.is_end else "No answer yet"
        return f"{said}: none of {explored} was compared on fresh seeds, and short runs claim nothing.{lead}"
    found = [f"Of {explored}, {winner.name} was confirmed on fresh seeds."]
    if winner.disqualified:
        found = [f"No answer: of {explored}, {winner.name} led and was ruled out: {winner.disqualified.rstrip('.')}."]
    elif winner.is_kept:
        found += [*_of_kept(facts, baseline, [winner]), *_needed_parts(facts, winner)]
    else:
        found = [f"Of {explored}, {winner.name} led.", _of_single(facts, baseline, winner)]
    return " ".join([*found, *others, *_units(facts), *_spending(facts)])


def _of_other_hypotheses(facts: StudyFacts, baseline: ArmFacts) -> Iterator[str]:
    """Yield what was found about the further arms of a confirmation, each by its own hypothesis."""
    others = () if facts.confirmation is None else facts.confirmation.others
    statements = {item.key: item.statement.rstrip(".") for item in facts.hypotheses}
    judged = {item.contrast.arms: item for item in facts.contrasts if item.contrast.against == (baseline.name,)}
    for arm in [arm for arm in facts.arms if arm.name in others]:
        item = judged.get((arm.name,))
        if arm.disqualified:
            yield f"{arm.name} was ruled out: {arm.disqualified.rstrip('.')}."
        elif item is not None and item.contrast.relation is not Relation.BETTER:
            said = _ANSWERS[item.outcome].format(statement=statements.get(item.key, "the hypothesis"))
            yield f"{said}{_grounds(facts, item)}."
        elif arm.is_kept:
            yield from _of_kept(facts, baseline, [arm])
        elif arm.comparison is not None:
            yield _of_single(facts, baseline, arm)


def _needed_parts(facts: StudyFacts, winner: ArmFacts) -> Iterator[str]:
    ablations = () if facts.confirmation is None else facts.confirmation.ablations
    needed = [item.name for item in ablations if item.outcome is Outcome.SUPPORTED]
    others = [item.name for item in ablations if item.outcome is not Outcome.SUPPORTED]
    if needed:
        yield f"{winner.name} is better than {join_names(needed)} {facts.charter.about}."
    if others:
        yield f"It is not shown to be better than {join_names(others)}."


def _of_comparisons(facts: StudyFacts) -> str:
    baseline = facts.baseline
    if baseline is None or not baseline.search.scores:
        return f"No answer: the baseline {facts.charter.baseline} has no finished run to compare with."
    if not facts.compared:
        return "No answer yet: nothing has been compared with the baseline."
    lead = [_lead(facts)] if facts.is_best_asked else []
    against = [] if facts.charter.margin is not None else _against_baseline(facts, baseline)
    parts = [*answer_relation(facts), *lead, *against, *_other_contrasts(facts)]
    return " ".join([*parts, *_units(facts), *_spending(facts)])


def _units(facts: StudyFacts) -> Iterator[str]:
    """Yield the meaning of the numbers if they are not final scores, and the final scores beside them.

    An arm that learns nothing may be the most stable one.
    """
    if facts.charter.judged_by is not JudgedBy.FINAL:
        better = "larger" if facts.charter.sign > 0 else "smaller"
        yield f"The numbers are: {facts.charter.judged}; a {better} one is better."
        finals = (f"{arm.name} {format_score(arm.final_mean)}" for arm in facts.arms if is_known(arm.final_mean))
        yield f"Mean final scores: {', '.join(finals)}."


def _lead(facts: StudyFacts) -> str:
    """Return which arm is best, and whether the judge supports that."""
    asked = [item for item in facts.contrasts if item.contrast.relation is Relation.BEST]
    ranked = facts.ranked
    if asked and asked[-1].outcome is Outcome.SUPPORTED and asked[-1].winner == ranked[0].name:
        word = _BEST_WORDS.get(facts.charter.asks.asked, "is best")
        return f"{ranked[0].name} {word} {facts.charter.about}: {_mean_of(ranked[0])}."
    equal, first = _leading(facts), format_score(ranked[0].search.mean)
    if len(equal) > 1:
        found = f"{join_names(equal)} share the best mean of {len(ranked)} arms, {first}"
    else:
        found = f"{equal[0]} has the best mean of {len(ranked)} arms, {_mean_of(ranked[0])}"
    if not asked:
        return f"{found}."
    among = join_names((*asked[-1].contrast.arms, *asked[-1].contrast.against))
    sentence = {
        Outcome.SUPPORTED: f"of {among}, {asked[-1].winner} is found the best",
        Outcome.REFUTED: "the leading arms are alike",
        Outcome.UNDECIDED: "which is best is not decided",
    }[asked[-1].outcome]
    return f"{found}; {sentence}{_grounds(facts, asked[-1])}."


_BEST_WORDS: Mapping[Asked, str] = {
    Asked.SOONER: "is best, for it learns soonest",
    Asked.MORE_STABLE: "is best, for its runs differ least",
}


def _leading(facts: StudyFacts) -> list[str]:
    """Return the arms whose printed mean is the best; none if the question is not for the best arm."""
    if not facts.is_best_asked:
        return []
    first = format_score(facts.ranked[0].search.mean)
    return [arm.name for arm in facts.ranked if format_score(arm.search.mean) == first]


def _mean_of(arm: ArmFacts) -> str:
    runs = len(arm.search.scores)
    return f"{format_score(arm.search.mean)} over {runs} run{'' if runs == 1 else 's'}"


def _against_baseline(facts: StudyFacts, baseline: ArmFacts) -> Iterator[str]:
    kept = [arm for arm in facts.ranked if arm.is_kept]
    if kept:
        yield from _of_kept(facts, baseline, kept)
    elif len(facts.compared) == 1:
        yield _of_single(facts, baseline, facts.compared[0])
    else:
        rule = facts.charter.rule
        verdicts = Counter(arm.verdict for arm in facts.compared)
        yield (
            f"No arm is shown to be better {facts.charter.about} than the baseline {baseline.name} (mean "
            f"{format_score(baseline.search.mean)}) by the charter's rule (at least {rule.min_effect:g}, p below "
            f"{rule.alpha:g}): {count_kinds(verdicts)}."
        )


def _of_kept(facts: StudyFacts, baseline: ArmFacts, kept: list[ArmFacts]) -> Iterator[str]:
    best, charter = kept[0], facts.charter
    found = best.comparison
    assert found is not None, "a verdict is that of a comparison"
    if facts.contradicted == best.name:
        tested = facts.test_comparisons[0]
        interval = format_interval(tested.ci_low, tested.ci_high, signed=True)
        yield (
            f"No improvement is shown: {best.name} was better than {baseline.name} {facts.charter.about} on the "
            f"{charter.search_split} split, {effect_of(facts, found)}, and the {charter.test_split} split contradicts "
            f"it: {format_difference(tested.difference)} ({interval})."
        )
        return
    name = "It" if _leading(facts) == [best.name] else best.name
    sentence = f"{name} is better than {baseline.name} {facts.charter.about}"
    if abs(found.difference) < LEAST:
        sentence = f"{name} is kept against {baseline.name}, though three digits do not show a difference"
    yield f"{sentence}: {effect_of(facts, found)}{_means(best)}{_parts(found)}."
    if earned := describe_earned(facts, found, name):
        yield earned
    if len(kept) > 1:
        yield f"Also kept: {join_names(arm.name for arm in kept[1:])}."
    if is_known(found.unseen_failures):
        yield _sentence(f"{unseen(found)}.")


def _of_single(facts: StudyFacts, baseline: ArmFacts, arm: ArmFacts) -> str:
    found = arm.comparison
    assert found is not None, "it is among those that were compared"
    if arm.disqualified:
        return f"No answer: {arm.name} was disqualified, and nothing else was compared with {baseline.name}."
    sentence = f"Whether {arm.name} is better than {baseline.name} {facts.charter.about} is not decided"
    if found.verdict is Verdict.WORSE and abs(found.difference) >= LEAST:
        sentence = f"{arm.name} is worse than {baseline.name} {facts.charter.about}"
    elif found.verdict is not Verdict.INCONCLUSIVE:
        least = facts.charter.rule.min_effect
        sentence = f"{arm.name} is not better than {baseline.name} {facts.charter.about} by {least:g} or more"
    return f"{sentence}: {effect_of(facts, found)}{_means(arm)}{_parts(found)}."


def effect_of(facts: StudyFacts, found: Comparison) -> str:
    """Return a difference with its interval and its p value; the table of comparisons says how it was corrected."""
    rule = facts.charter.rule
    is_corrected = is_known(found.p_adjusted) and (rule.correction != "none" or len(rule.shares) > 1)
    corrected = " corrected" if is_corrected else ""
    return (
        f"{format_difference(found.difference)} ({100 * facts.charter.confidence:g} % interval "
        f"{format_interval(found.ci_low, found.ci_high, signed=True)}, {describe_p(found.p_adjusted)}{corrected})"
    )


def difference_of(arm: ArmFacts) -> float | None:
    return None if arm.comparison is None else arm.comparison.difference


def unseen(found: Comparison) -> str:
    """Return the share of runs that may fail although so few did."""
    return f"with so few seeds, up to {100 * found.unseen_failures:.0f} % of its runs may fail or collapse unseen"


def _means(arm: ArmFacts) -> str:
    own, other = arm.compared_means
    return f", a mean of {format_score(own)} against {format_score(other)}" if is_known(own) else ""


def _parts(found: Comparison) -> str:
    """Return the two parts of the gain, if both are known."""
    agent, training = found.agent_gain.value, found.training_gain.value
    if not (is_known(agent) and is_known(training)):
        return ""
    of_it = ", of which" if abs(agent + training - found.difference) < LEAST else "; of runs scored before and after,"
    return (
        f"{of_it} {format_difference(agent)} by its agent on the base weights and {format_difference(training)} by "
        "training"
    )


_ANSWERS: Mapping[Outcome, str] = {
    Outcome.SUPPORTED: "{statement}",
    Outcome.REFUTED: "Not so: {statement}",
    Outcome.UNDECIDED: "Not decided: {statement}",
}
_ASKED = frozenset({Relation.MATTERS_MORE, Relation.INTERACTION, Relation.EQUIVALENT, Relation.NO_BETTER})
"""The relations of hypotheses besides better and best, which the first sentences of the answer cover."""


def _other_contrasts(facts: StudyFacts) -> Iterator[str]:
    statements = {item.key: item.statement for item in facts.hypotheses}
    last = {item.contrast: item for item in facts.contrasts}
    for item in last.values():
        if item.contrast.relation in _ASKED and not is_answered(facts, item.contrast.relation):
            sentence = _ANSWERS[item.outcome]
            if item.contrast.relation is Relation.MATTERS_MORE and item.outcome is Outcome.REFUTED:
                sentence = "It is the other way round than this: {statement}"
            statement = statements.get(item.key, "the hypothesis").rstrip(".")
            yield f"{sentence.format(statement=statement)}{_grounds(facts, item)}."


def _grounds(facts: StudyFacts, item: JudgedContrast) -> str:
    """Return the numbers behind a contrast, and their plan if the study has several."""
    plans = {each.key.split(".")[0] for each in facts.contrasts} | {f"h{each.iteration}" for each in facts.decisions}
    plan = item.key.split(".")[0].removeprefix("h")
    of_plan = f"plan {int(plan) + 1}: " if len(plans) > 1 and plan.isdigit() else ""
    return f" ({of_plan}{item.reason.rstrip('.')})"


def _spending(facts: StudyFacts) -> Iterator[str]:
    """Yield the warnings about the attempts of the arms that the answer names."""
    named = dict.fromkeys(arm.name for arm in (*facts.ranked[:1], *[arm for arm in facts.ranked if arm.is_kept][:1]))
    if len(facts.compared) == 1:
        named[facts.compared[0].name] = None
    for arm in facts.arms:
        if arm.name in named and arm.flags:
            yield f"Of {arm.name}: {'; '.join(arm.flags)}."
