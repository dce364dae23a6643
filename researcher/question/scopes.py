"""The scope of a question: what a person says of it, and what the factors say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from researcher.charter import Factor
from researcher.errors import TopicInvalid
from researcher.question.factors import PROGRAM, SPECS, TRAIN_ENV, why_no_factor
from researcher.scope import ArmPart, Scope
from swarm.spelling import did_you_mean

OPEN = (ArmPart.SETTINGS, ArmPart.REWARD, ArmPart.SCHEDULE, ArmPart.AGENT)
"""The parts that a planner may choose; a person names models and training environments."""
_FLAGS_OF_PARTS = {
    ArmPart.MODEL: "--vary model=nano,micro",
    ArmPart.TRAIN_ENVIRONMENT: "--train-env once for each, or --vary env.NAME=VALUE,VALUE",
}


def read_scope(text: str) -> Scope:
    """Return the scope that words between commas name: parts of an arm, or settings.

    Raises TopicInvalid for a word that is neither.
    """
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if not words:
        raise TopicInvalid(f"--scope names nothing: choose from {', '.join(ArmPart)}, or settings such as lr")
    parts = [ArmPart(word) for word in words if word in [*ArmPart]]
    settings = [word for word in words if word not in [*ArmPart]]
    for word in settings:
        if word == PROGRAM:
            raise TopicInvalid("--scope: a program has an agent, a reward and a schedule: name those that may differ")
        if reason := why_no_factor(word):
            raise TopicInvalid(f"--scope: {word} is no factor: {reason}")
        if word not in SPECS:
            meant = did_you_mean(word, [*map(str, ArmPart), *SPECS])
            known = f"choose from {', '.join(ArmPart)}, or settings such as lr"
            raise TopicInvalid(f"--scope: no part of an arm is called {word!r}{meant or ': '}{meant and ' '}{known}")
    if settings and ArmPart.SETTINGS in parts:
        raise TopicInvalid(f"--scope: settings are all of them, {', '.join(settings)} as well: leave one of both out")
    return Scope.of([*parts, *([ArmPart.SETTINGS] if settings else [])], settings)


def scope_of_factors(factors: Iterable[Factor], program_parts: Sequence[ArmPart]) -> Scope:
    """Return the scope in which the levels of factors differ.

    `program_parts` are the parts in which the compared programs differ.
    """
    parts: list[ArmPart] = []
    settings: list[str] = []
    for factor in factors:
        parts += _parts_of(factor, program_parts)
        settings += [factor.name] if factor.name in SPECS else factor.varied
    return Scope.of(parts, [name for name in settings if name != ArmPart.MODEL])


def _parts_of(factor: Factor, program_parts: Sequence[ArmPart]) -> Iterator[ArmPart]:
    if factor.name == PROGRAM:
        yield from program_parts
    if factor.name == TRAIN_ENV or factor.options:
        yield ArmPart.TRAIN_ENVIRONMENT
    for name in factor.varied:
        yield ArmPart.MODEL if name == ArmPart.MODEL else ArmPart.SETTINGS


def choose_scope(said: Scope | None, factors: Sequence[Factor], program_parts: Sequence[ArmPart]) -> Scope:
    """Return the scope of a question: that of its factors, else what a person said, else all that a planner may choose.

    Raises TopicInvalid if what was said is not that of the factors, or needs factors that nobody named.
    """
    if factors:
        found = scope_of_factors(factors, program_parts)
        if said is not None:
            _check_against_factors(said, found)
        return found
    for part, flag in _FLAGS_OF_PARTS.items():
        if said is not None and said.allows(part):
            raise TopicInvalid(f"--scope: no planner chooses the {part}: name them with {flag}")
    return said or Scope.of(OPEN)


def _check_against_factors(said: Scope, found: Scope) -> None:
    """Raise TopicInvalid unless a person's scope has the parts in which the factors differ, and no others."""
    if beyond := describe_excess(found, said):
        raise TopicInvalid(
            f"--scope says {describe_scope(said)}, and the arms of the flags differ in {beyond} as well: leave that "
            "out of the arms, or add it to --scope"
        )
    idle = [part for part in said.parts if not found.allows(part)]
    idle += [name for name in said.settings if found.settings and name not in found.settings]
    if idle:
        raise TopicInvalid(
            f"--scope says {', '.join(idle)}, in which no arm of the flags differs: leave it out of --scope, or give "
            "arms that differ in it"
        )


def describe_excess(scope: Scope, within: Scope) -> str:
    """Return what a scope has beyond another one, in words; empty if there is nothing."""
    parts = [part for part in scope.parts if not within.allows(part)]
    settings = [name for name in scope.settings if within.settings and name not in within.settings]
    if scope.allows(ArmPart.SETTINGS) and within.allows(ArmPart.SETTINGS) and within.settings and not scope.settings:
        settings = ["all settings"]
    return ", ".join([*parts, *settings])


def describe_scope(scope: Scope) -> str:
    """Return a scope in words: reward, schedule; or settings (lr)."""
    named = f" ({', '.join(scope.settings)})" if scope.settings else ""
    return ", ".join(f"{part}{named if part is ArmPart.SETTINGS else ''}" for part in scope.parts)
