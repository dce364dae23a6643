"""The answer to the relation that a study asks about, in one sentence: matters, interacts, is needed, and so on.

Place in the flow: headline.py begins the answer with this sentence. It answers questions for the best or a better arm
itself. The words are those of the question, and the outcome is the judge's. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from experiments_db import Outcome, Verdict
from researcher.analysis import JudgedContrast
from researcher.charter import Asked
from researcher.plan import Relation
from researcher.question.factors import SPECS
from researcher.question.wording import title_of, title_of_environment
from researcher.report.formats import join_names
from researcher.report.numbers.facts import ArmFacts, StudyFacts

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
    """Yield the sentence that answers the question, or nothing if headline.py answers it."""
    asked = facts.charter.asks.asked
    if not facts.charter.asks.factors or not facts.compared:
        return
    if asked is Asked.EFFECT:
        yield from _of_effects(facts)
    elif asked is Asked.DIVERGES:
        yield _of_divergence(facts)
    elif asked in _RELATIONS:
        relation = _RELATIONS[asked]
        for item in facts.contrasts:
            if item.contrast.relation is relation:
                words = _ANSWERS[asked](facts, item).of(_outcome(facts, item))
                yield f"{words} ({item.reason.rstrip('.')})."


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
            yield _sentence(f"{title_of(factor.name)} matters for {place}.")
        elif verdicts == {Verdict.NO_BETTER}:
            yield f"No other {title_of(factor.name)} is better for {place}."
        else:
            yield f"Whether the {title_of(factor.name)} matters for {place} is not decided."


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


@dataclass(frozen=True, slots=True)
class _Words:
    """The sentence about a relation for each outcome of its hypothesis, without its full stop."""

    supported: str
    refuted: str
    undecided: str

    def of(self, outcome: Outcome) -> str:
        return str(getattr(self, outcome.value))


def _of_importance(facts: StudyFacts, item: JudgedContrast) -> _Words:
    first, second = (_changed_by(facts, arms) for arms in (item.contrast.arms, item.contrast.against))
    place = title_of_environment(facts.charter.environment_name)
    return _Words(
        supported=_sentence(f"{first} matters more for {place} than {second}"),
        refuted=_sentence(f"{second} matters more for {place} than {first}"),
        undecided=f"Whether {first} or {second} matters more for {place} is not decided",
    )


def _of_interaction(facts: StudyFacts, item: JudgedContrast) -> _Words:
    neither, first, second, _ = item.contrast.arms
    names = join_names(_changed_by(facts, (arm,), neither) for arm in (first, second))
    place = title_of_environment(facts.charter.environment_name)
    return _Words(
        supported=_sentence(f"{names} interact in {place}"),
        refuted=_sentence(f"{names} do not interact in {place} by {facts.charter.rule.min_effect:g} or more"),
        undecided=f"Whether {names} interact in {place} is not decided",
    )


def _of_equality(facts: StudyFacts, item: JudgedContrast) -> _Words:
    names = join_names((*item.contrast.arms, *item.contrast.against))
    margin = item.contrast.margin or facts.charter.rule.min_effect
    return _Words(
        supported=f"{names} are equally good within {margin:g}",
        refuted=f"{names} differ by more than {margin:g}",
        undecided=f"Whether {names} are equally good within {margin:g} is not decided",
    )


def _of_need(facts: StudyFacts, item: JudgedContrast) -> _Words:
    factor, place = facts.charter.asks.factors[0].name, title_of_environment(facts.charter.environment_name)
    (least,) = item.contrast.against
    arm = next(each for each in facts.arms if each.name == least)
    if arm.experiment.factors[factor] != SPECS[factor].off:
        return _Words(
            supported=f"{least} is not enough for {place}",
            refuted=f"{least} is enough for {place}",
            undecided=f"Whether {least} is enough for {place} is not decided",
        )
    title = title_of(factor)
    return _Words(
        supported=_sentence(f"{title} is needed for {place}"),
        refuted=_sentence(f"{title} is not needed for {place}"),
        undecided=f"Whether {title} is needed for {place} is not decided",
    )


_ANSWERS: Mapping[Asked, Callable[[StudyFacts, JudgedContrast], _Words]] = MappingProxyType(
    {
        Asked.MATTERS_MORE: _of_importance,
        Asked.INTERACTION: _of_interaction,
        Asked.EQUAL: _of_equality,
        Asked.NEEDED: _of_need,
    }
)


def _changed_by(facts: StudyFacts, arms: tuple[str, ...], against: str | None = None) -> str:
    """Return the titles of the factors in which arms differ from another arm, or from the baseline."""
    found = {arm.name: arm for arm in facts.arms}
    base = found[against or facts.charter.baseline]
    names = dict.fromkeys(name for arm in arms for name in sorted(changed_factors(found[arm], base)))
    return join_names(map(title_of, names))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
