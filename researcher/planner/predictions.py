"""The predictions of the `rules` planner, as statements with the contrasts that judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from researcher.charter import Asked, Charter
from researcher.plan import Arm, Contrast, Hypothesis, Relation
from researcher.question.factors import SPECS
from researcher.question.wording import title_of, title_of_environment


def predict(arms: tuple[Arm, ...], charter: Charter) -> tuple[Hypothesis, ...]:
    """Return the hypotheses that answer the charter's question, and no others: they share the probability of an error.

    Of two arms, the question for the best one becomes whether the other arm is better than the baseline.
    """
    baseline = next((arm for arm in arms if arm.is_baseline), arms[0])
    grouped = _by_change(arms, baseline)
    match charter.asks.asked:
        case Asked.MATTERS_MORE:
            return _matters_more(grouped)
        case Asked.INTERACTION:
            return _interactions(arms, baseline)
        case Asked.EQUAL:
            return (_is_equal(arms, baseline, charter),)
        case Asked.NEEDED:
            return (_is_needed(arms, charter),)
        case Asked.BEST | Asked.SOONER | Asked.MORE_STABLE if len(arms) > 2:
            return (_one_is_best(arms, charter),)
        case _:
            return tuple(_is_better(changed, names, baseline, charter) for changed, names in grouped.items())


def _by_change(arms: Sequence[Arm], baseline: Arm) -> dict[tuple[str, ...], list[str]]:
    """Return the names of the arms, grouped by the factors in which they differ from the baseline."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for arm in arms:
        if arm is not baseline:
            changed = tuple(name for name in arm.factors if arm.factors[name] != baseline.factors.get(name))
            grouped.setdefault(changed or (arm.name,), []).append(arm.name)
    return grouped


def _is_better(changed: tuple[str, ...], names: list[str], baseline: Arm, charter: Charter) -> Hypothesis:
    titles = " and ".join(map(title_of, changed))
    place = title_of_environment(charter.environment_name)
    return Hypothesis(
        statement=f"Another {titles} than that of {baseline.name} trains {place} better.",
        prediction=f"{' or '.join(names)} beats {baseline.name} on held-out episodes.",
        arms=tuple(names),
        contrast=Contrast(Relation.BETTER, tuple(names), (baseline.name,)),
    )


def _one_is_best(arms: Sequence[Arm], charter: Charter) -> Hypothesis:
    names = tuple(arm.name for arm in arms)
    return Hypothesis(
        statement=f"One of these settings is the best for {title_of_environment(charter.environment_name)}.",
        prediction="The arm that leads the ranking is clear of every other one.",
        arms=names,
        contrast=Contrast(Relation.BEST, names),
    )


def _is_equal(arms: Sequence[Arm], baseline: Arm, charter: Charter) -> Hypothesis:
    names = tuple(arm.name for arm in arms if arm is not baseline)
    place = title_of_environment(charter.environment_name)
    return Hypothesis(
        statement=f"{' and '.join(names)} and {baseline.name} are equally good for {place}.",
        prediction="No arm is further from the baseline than the smallest effect that matters.",
        arms=names,
        contrast=Contrast(Relation.EQUIVALENT, names, (baseline.name,)),
    )


def _is_needed(arms: Sequence[Arm], charter: Charter) -> Hypothesis:
    """Return the hypothesis that other arms are better than the one without the factor, or with the least of it."""
    (factor,) = charter.asks.factors
    off = SPECS[factor.name].off
    without = next((arm for arm in arms if arm.factors[factor.name] == off), None)
    if without is None:
        without = min(arms, key=lambda arm: arm.factors[factor.name])
    subject = title_of(factor.name) if without.factors[factor.name] == off else f"More than {without.name}"
    names = tuple(arm.name for arm in arms if arm is not without)
    return Hypothesis(
        statement=f"{subject} is needed for {title_of_environment(charter.environment_name)}.",
        prediction=f"{' or '.join(names)} beats {without.name} on held-out episodes.",
        arms=names,
        contrast=Contrast(Relation.BETTER, names, (without.name,)),
    )


def _matters_more(grouped: Mapping[tuple[str, ...], list[str]]) -> tuple[Hypothesis, ...]:
    """Return one hypothesis for each pair of factors, about the arms that change only one of them."""
    single = {changed[0]: names for changed, names in grouped.items() if len(changed) == 1}
    return tuple(
        Hypothesis(
            statement=f"{title_of(first)} matters more than {title_of(second)}.",
            prediction=f"Changing {title_of(first)} moves the score further, up or down, than {title_of(second)}.",
            arms=(*single[first], *single[second]),
            contrast=Contrast(Relation.MATTERS_MORE, tuple(single[first]), tuple(single[second])),
        )
        for first, second in combinations(single, 2)
    )


def _interactions(arms: Sequence[Arm], baseline: Arm) -> tuple[Hypothesis, ...]:
    """Return one hypothesis for each arm that changes two factors, with the two arms that change one of them each."""
    by_factors = {tuple(sorted(arm.factors.items(), key=str)): arm for arm in arms}
    found: list[Hypothesis] = []
    for both in arms:
        changed = [name for name in both.factors if both.factors[name] != baseline.factors.get(name)]
        if len(changed) != 2:
            continue
        alone = [{**baseline.factors, name: both.factors[name]} for name in changed]
        first, second = (by_factors.get(tuple(sorted(each.items(), key=str))) for each in alone)
        if first is not None and second is not None:
            names = (baseline.name, first.name, second.name, both.name)
            found.append(
                Hypothesis(
                    statement=f"{' and '.join(map(title_of, changed))} act on each other.",
                    prediction=f"{both.name} is not what {first.name} and {second.name} add up to.",
                    arms=names[1:],
                    contrast=Contrast(Relation.INTERACTION, names),
                )
            )
    return tuple(found)
