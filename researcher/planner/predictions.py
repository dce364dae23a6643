"""What the `rules` planner predicts of its arms, as statements with the contrasts that judge them.

Place in the flow: rules.py calls this for every plan. This module knows nothing of how arms were laid out, of scores or
of statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

from researcher.question.wording import title_of, title_of_environment
from researcher.types import Arm, Charter, Contrast, Hypothesis, Relation


def predict(arms: tuple[Arm, ...], charter: Charter) -> tuple[Hypothesis, ...]:
    """That another level of each factor is better; that one arm is best of three or more; of two factors which matters
    more, and whether they act on each other."""
    baseline = next((arm for arm in arms if arm.is_baseline), arms[0])
    grouped = _by_change(arms, baseline)
    found = [_is_better(changed, names, baseline, charter) for changed, names in grouped.items()]
    if len(arms) > 2:
        found.append(_one_is_best(arms, charter))
    single = [(names, group) for names, group in grouped.items() if len(names) == 1]
    if len(single) == 2:
        found += _of_two_factors(single, grouped, baseline)
    return tuple(found)


def _by_change(arms: Sequence[Arm], baseline: Arm) -> dict[tuple[str, ...], list[str]]:
    """The arms by the factors in which they differ from the baseline."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for arm in arms:
        if arm is not baseline:
            changed = tuple(name for name in arm.factors if arm.factors[name] != baseline.factors.get(name))
            grouped.setdefault(changed or (arm.name,), []).append(arm.name)
    return grouped


def _is_better(changed: tuple[str, ...], names: list[str], baseline: Arm, charter: Charter) -> Hypothesis:
    titles = " and ".join(map(title_of, changed))
    return Hypothesis(
        statement=f"Another {titles} than that of {baseline.name} trains {title_of_environment(charter.task)} better.",
        prediction=f"{' or '.join(names)} beats {baseline.name} on held-out episodes.",
        arms=tuple(names),
        contrast=Contrast(Relation.BETTER, tuple(names), (baseline.name,)),
    )


def _one_is_best(arms: Sequence[Arm], charter: Charter) -> Hypothesis:
    names = tuple(arm.name for arm in arms)
    return Hypothesis(
        statement=f"One of these settings is the best for {title_of_environment(charter.task)}.",
        prediction="The arm that leads the ranking is clear of every other one.",
        arms=names,
        contrast=Contrast(Relation.BEST, names),
    )


def _of_two_factors(
    single: list[tuple[tuple[str, ...], list[str]]], grouped: dict[tuple[str, ...], list[str]], baseline: Arm
) -> list[Hypothesis]:
    ((one_name,), one), ((other_name,), other) = single
    first, second = title_of(one_name), title_of(other_name)
    found = [
        Hypothesis(
            statement=f"{first} matters more than {second}.",
            prediction=f"Changing {first} moves the score further, up or down, than changing {second}.",
            arms=(*one, *other),
            contrast=Contrast(Relation.MATTERS_MORE, tuple(one), tuple(other)),
        )
    ]
    both = grouped.get((one_name, other_name)) or grouped.get((other_name, one_name)) or []
    if len(one) == len(other) == len(both) == 1:
        found.append(
            Hypothesis(
                statement=f"{first} and {second} act on each other.",
                prediction=f"{both[0]} is not what {one[0]} and {other[0]} add up to.",
                arms=(one[0], other[0], both[0]),
                contrast=Contrast(Relation.INTERACTION, (baseline.name, one[0], other[0], both[0])),
            )
        )
    return found
