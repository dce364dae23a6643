"""The predictions of the `rules` planner, as statements with the contrasts that judge them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
            return tuple(_interactions(arms, baseline))
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
        f"Another {titles} than that of {baseline.name} trains {place} better.",
        f"{' or '.join(names)} beats {baseline.name} on held-out episodes.",
        tuple(names),
        Contrast(Relation.BETTER, tuple(names), (baseline.name,)),
    )


def _one_is_best(arms: Sequence[Arm], charter: Charter) -> Hypothesis:
    names = tuple(arm.name for arm in arms)
    return Hypothesis(
        f"One of these settings is the best for {title_of_environment(charter.environment_name)}.",
        "The arm that leads the ranking is clear of every other one.",
        names,
        Contrast(Relation.BEST, names),
    )


def _is_equal(arms: Sequence[Arm], baseline: Arm, charter: Charter) -> Hypothesis:
    names = tuple(arm.name for arm in arms if arm is not baseline)
    place, margin = title_of_environment(charter.environment_name), charter.margin or charter.rule.min_effect
    return Hypothesis(
        f"{' and '.join(names)} and {baseline.name} are equally good for {place}.",
        f"No arm is further from {baseline.name} than {margin:g}.",
        names,
        Contrast(Relation.EQUIVALENT, names, (baseline.name,), margin),
    )


def _is_needed(arms: Sequence[Arm], charter: Charter) -> Hypothesis:
    """Return the hypothesis that other arms are better than the one without the factor, or with the least of it."""
    (factor,) = charter.asks.factors
    off = SPECS[factor.name].off
    without = next((arm for arm in arms if arm.factors[factor.name] == off), None)
    without = without or min(arms, key=lambda arm: arm.factors[factor.name])
    subject = title_of(factor.name) if without.factors[factor.name] == off else f"More than {without.name}"
    names = tuple(arm.name for arm in arms if arm is not without)
    return Hypothesis(
        f"{subject} is needed for {title_of_environment(charter.environment_name)}.",
        f"{' or '.join(names)} beats {without.name} on held-out episodes.",
        names,
        Contrast(Relation.BETTER, names, (without.name,)),
    )


def _matters_more(grouped: Mapping[tuple[str, ...], list[str]]) -> tuple[Hypothesis, ...]:
    """Return one hypothesis for each pair of factors, about the arms that change only one of them."""
    single = {changed[0]: tuple(names) for changed, names in grouped.items() if len(changed) == 1}
    return tuple(
        Hypothesis(
            f"{title_of(first)} matters more than {title_of(second)}.",
            f"Changing {title_of(first)} moves the score further, up or down, than {title_of(second)}.",
            (*single[first], *single[second]),
            Contrast(Relation.MATTERS_MORE, single[first], single[second]),
        )
        for first, second in combinations(single, 2)
    )


def _interactions(arms: Sequence[Arm], baseline: Arm) -> Iterator[Hypothesis]:
    """Yield one hypothesis for each arm that changes two factors, with the two arms that change one of them each."""
    for both in arms:
        changed = [name for name in both.factors if both.factors[name] != baseline.factors.get(name)]
        wanted = [{**baseline.factors, name: both.factors[name]} for name in changed]
        alone = [arm.name for factors in wanted for arm in arms if arm.factors == factors]
        if len(changed) == len(alone) == 2:
            names = (baseline.name, *alone, both.name)
            yield Hypothesis(
                f"{' and '.join(map(title_of, changed))} act on each other.",
                f"{both.name} is not what {alone[0]} and {alone[1]} add up to.",
                names[1:],
                Contrast(Relation.INTERACTION, names),
            )
