"""The wording of a question: titles of factors and environments, the question itself, and its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from researcher.charter import Asked, Charter, Factor, Level, Question, StudyKind
from researcher.program_parts import PROGRAM_PARTS
from researcher.question.factors import OPTION, PROGRAM, SPECS, TRAIN_ENV
from researcher.question.flags import value_as_text
from researcher.question.scopes import describe_scope
from researcher.scope import ArmPart

_TITLES: Mapping[str, str] = MappingProxyType({PROGRAM: "program", TRAIN_ENV: "training environment"})
_PARTS: Mapping[ArmPart, str] = MappingProxyType(
    {ArmPart.AGENT: "agent", ArmPart.REWARD: "reward", ArmPart.SCHEDULE: "order of tasks"}
)
_ENVIRONMENTS: Mapping[str, str] = MappingProxyType(
    {
        "reverse": "word reversal",
        "copy": "copying",
        "sort": "sorting letters",
        "add": "adding numbers",
        "count": "counting letters",
        "calc": "calculator use",
        "guess": "the guessing game",
        "chain": "running totals",
    }
)


def title_of(factor: str) -> str:
    """Return the common name of a factor: "learning rate" for lr."""
    if factor.startswith(OPTION):
        return f"{factor.removeprefix(OPTION)} of the training environment"
    return _TITLES.get(factor) or (SPECS[factor].title if factor in SPECS else factor)


def title_of_environment(name: str) -> str:
    """Return the common name of a bundled environment; any other environment keeps its name."""
    return _ENVIRONMENTS.get(name, name)


def state_question(question: Question, name: str) -> str:
    """Return the question of a charter as one sentence."""
    place = title_of_environment(name)
    if question.kind is StudyKind.OPTIMIZE:
        return _search(question, place)
    titles = [title_of(factor.name) for factor in question.factors]
    names, several = _listed(titles), len(titles) > 1
    match question.asked:
        case Asked.BEST:
            return f"Which {'setting of ' if several else ''}{names} is best for {place}?"
        case Asked.MATTERS_MORE if several:
            return f"Which matters more for {place}: {' or '.join(titles)}?"
        case Asked.INTERACTION if several:
            return f"Do {names} interact in {place}?"
        case Asked.BETTER | Asked.EQUAL if not several:
            return _of_levels(question, place)
        case Asked.NEEDED if not several:
            return f"Is {names} needed for {place}?"
        case Asked.DIVERGES if not several:
            return f"At which {names} does training on {place} diverge?"
        case Asked.SOONER:
            return f"Which {'setting of ' if several else ''}{names} learns {place} sooner?"
        case Asked.MORE_STABLE:
            return f"Which {'setting of ' if several else ''}{names} trains {place} with the least spread of runs?"
        case _:
            return _effect(names, place, several)


def _search(question: Question, place: str) -> str:
    """Return the question of a search: for parts of a program, for settings, or for both."""
    parts = [_PARTS[part] for part in PROGRAM_PARTS if question.scope.allows(part)]
    settings = [title_of(factor.name) for factor in question.factors if factor.name != PROGRAM]
    if parts and not question.scope.allows(ArmPart.SETTINGS):
        return f"Which {_listed(parts)} {'train' if len(parts) > 1 else 'trains'} {place} best?"
    space = f" of {_listed([*settings, *parts])}" if question.factors else ""
    return f"Which settings{space} train {place} best?"


def _of_levels(question: Question, place: str) -> str:
    """Return the question whether the levels of one factor are better than another one, or as good."""
    (factor,) = question.factors
    level = factor.compared_with
    others = [item.name for item in factor.levels if item.name != level]
    if level:
        relation = "better than" if question.asked is Asked.BETTER else "as good as"
        return f"Is {' or '.join(others)} {relation} {level} for {place}?"
    if question.asked is Asked.EQUAL:
        return f"Are {_listed(others)} equally good for {place}?"
    return _effect(title_of(factor.name), place, several=False)


def describe_question(charter: Charter) -> Iterator[str]:
    """Yield the question, line by line: the kind of study, its factors, fixed settings and equal amounts."""
    asks = charter.asks
    yield f"{asks.kind} on {title_of_environment(charter.environment_name)}: {charter.question}"
    for factor in asks.factors:
        source = "" if factor.explicit else " (usual values)"
        yield f"  {title_of(factor.name)}: {', '.join(_shown(factor))}{source}"
    if asks.fixed:
        fixed = (f"{title_of(name)} {value_as_text(value)}" for name, value in asks.fixed.items())
        yield f"  fixed: {', '.join(fixed)}"
    if charter.margin is not None:
        yield f"  equal means: they differ by less than {charter.margin:g}"
    yield f"  arms may differ in: {describe_scope(asks.scope)}"
    if asks.options or TRAIN_ENV in (factor.name for factor in asks.factors):
        yield f"  every arm is judged on {charter.environment}"
    if (rules := charter.search) is not None:
        rungs = ", ".join(f"{share:.0%}" for share in rules.rungs)
        yield f"  explores with {rules.runs:g} full runs by {rules.policy}, up to {rungs} of the training of an arm"
    design = f"; {asks.design}" if asks.design and charter.search is None else ""
    yield f"  baseline {charter.baseline}{design}; at equal {charter.compared_at or 'steps'}; by {charter.judged}"


def _shown(factor: Factor) -> Sequence[str]:
    """Return the levels of a factor; a level that sets several settings lists them."""
    if factor.name != "/".join(level.name for level in factor.levels):
        return [level.name.removeprefix(f"{factor.name}=") for level in factor.levels]
    return [f"{level.name} ({', '.join(_set_by(level))})" for level in factor.levels]


def _set_by(level: Level) -> Iterator[str]:
    yield from (f"{OPTION}{name}={value}" for name, value in level.options.items())
    yield from (f"{name}={value_as_text(value)}" for name, value in level.settings.items())


def _effect(names: str, place: str, several: bool) -> str:
    return f"How {'do' if several else 'does'} {names} change what is learned in {place}?"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
