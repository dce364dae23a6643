"""The question of a person, built from flags and a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any

from researcher.charter import Asked, Design, Factor, JudgedBy, Level, Question, StudyKind
from researcher.errors import TopicInvalid
from researcher.question.factors import OPTION, PROGRAM, RESPONSE_LENGTH, SPECS, TRAIN_ENV
from researcher.question.flags import make_factor, make_level, read_factors, read_fixed, value_as_text
from researcher.question.needs import check_effect
from researcher.question.reader import Reading
from researcher.question.scopes import choose_scope
from researcher.scope import ArmPart, Scope
from swarm.tasks import TASK_FAMILIES

LARGEST_FACTORIAL = 12
"""The largest number of arms of a factorial design by default: what a laptop trains in an hour.

A larger one needs --design factorial."""
_FLAGS_OF_SETTINGS: Mapping[str, str] = MappingProxyType(
    {"total_steps": "--steps", "model": "--train-model", "n_gpu": "--n-gpu", "engine": "--engine"}
)
OF_TWO = (Asked.MATTERS_MORE, Asked.INTERACTION)
"""The questions about two or more factors."""
_OF_SEARCH = (Asked.EFFECT, Asked.BEST, Asked.SOONER, Asked.MORE_STABLE)
"""The questions that a search answers: all of them are for the best arm, by one metric or another."""
METRICS_OF: Mapping[Asked, tuple[JudgedBy, ...]] = MappingProxyType(
    {Asked.SOONER: (JudgedBy.AREA, JudgedBy.STEPS_TO), Asked.MORE_STABLE: (JudgedBy.SPREAD, JudgedBy.WORST)}
)
"""The metrics for a relation that final scores cannot answer; the first is the default."""
MID_TRAINING_SCORES = 5
"""The number of steps between scores for a topic that asks which arm learns sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFlags:
    """The flags of a question, as a person wrote them.

    `programs` and `train_envs` are names, if there are several. `env` is the environment that judges, if a flag names
    one. `margin` belongs to a question for equality. `scope` is what a person said of it, and `program_parts` are the
    parts in which the programs differ.
    """

    kind: StudyKind = StudyKind.COMPARE
    asked: Asked = Asked.EFFECT
    margin: float | None = None
    vary: Sequence[str] = ()
    fix: Sequence[str] = ()
    design: Design | None = None
    baseline: Sequence[str] = ()
    programs: Sequence[str] = ()
    train_envs: Sequence[str] = ()
    env: str | None = None
    job: Mapping[str, Any] = field(default_factory=dict[str, Any])
    scope: Scope | None = None
    program_parts: Sequence[ArmPart] = ()

    @property
    def name_factors(self) -> bool:
        """True if the flags name the factors, so that the topic is only a title."""
        return bool(self.vary) or len(self.programs) > 1 or len(self.train_envs) > 1


def build_question(flags: QuestionFlags, *, needs_factors: bool = True) -> Question:
    """Return the question that flags ask.

    With `needs_factors` False, a planner may name the factors later. Raises TopicInvalid, which names the flag that is
    wrong.
    """
    named = {PROGRAM: flags.programs, TRAIN_ENV: flags.train_envs}
    factors = tuple(
        Factor(factor, tuple(Level(name, {factor: name}, {}) for name in names))
        for factor, names in named.items()
        if len(names) > 1
    )
    factors = (*factors, *read_factors(flags.vary))
    _check_options(factors, flags)
    fixed = read_fixed(flags.fix)
    if twice := fixed.keys() & flags.job.keys():
        raise TopicInvalid(f"--fix: {', '.join(sorted(twice))} is set by another flag as well: leave one of them out")
    fixed = {**flags.job, **fixed}
    for factor in factors:
        for name in sorted({*factor.varied} & fixed.keys()):
            flag = "--fix" if name in read_fixed(flags.fix) else _FLAGS_OF_SETTINGS.get(name, "--job")
            raise TopicInvalid(f"--vary: {factor.name} varies {name}, which {flag} fixes: leave one of both out")
    check_effect(fixed, factors, _FLAGS_OF_SETTINGS)
    factors = _with_baseline(factors, flags.baseline)
    if flags.kind is StudyKind.COMPARE and not factors and needs_factors:
        raise TopicInvalid("nothing is compared: name a setting with its values, as in --vary lr=1e-3,3e-3")
    if factors or needs_factors:
        check_asked(flags.asked, factors)
    if flags.margin is not None and flags.asked is not Asked.EQUAL:
        raise TopicInvalid(f"--margin is that of --ask equal, and --ask is {flags.asked}: leave one of both out")
    if flags.kind is StudyKind.OPTIMIZE and flags.asked not in _OF_SEARCH:
        raise TopicInvalid(f"--ask {flags.asked} is about given arms: leave --kind {flags.kind} or --ask out")
    return Question(
        kind=flags.kind,
        asked=flags.asked,
        factors=factors,
        fixed=fixed,
        design=_choose_design(factors, flags),
        margin=flags.margin,
        scope=choose_scope(flags.scope, factors, flags.program_parts),
    )


def check_asked(asked: Asked, factors: Sequence[Factor]) -> None:
    """Raise TopicInvalid unless the relation can be asked of the factors.

    What is needed is one factor with a level that is off, or with numbers of which the least may be enough.
    """
    if asked in OF_TWO and len(factors) < 2:
        raise TopicInvalid(f"--ask {asked} is about two factors: add another --vary, or leave --ask out")
    if asked is not Asked.NEEDED:
        return
    spec = SPECS.get(factors[0].name) if len(factors) == 1 else None
    if spec is None or not (
        spec.is_numeric or any(level.factors[spec.name] == spec.off for level in factors[0].levels)
    ):
        raise TopicInvalid(
            "--ask needed compares one setting with its being off or with its least number, as in "
            "--vary use_kl_loss=false,true: vary such a setting alone, or leave --ask out"
        )


def _check_options(factors: Sequence[Factor], flags: QuestionFlags) -> None:
    """Raise TopicInvalid if options are varied, unless flags name exactly one environment for them."""
    if not (named := [name for factor in factors for name in factor.options]):
        return
    option = f"{OPTION}{named[0]}"
    if flags.env is None:
        raise TopicInvalid(
            f"--vary: {option} is an option of the environment, which no flag names: add --env, "
            "as in --env reasoning_gym:chain_sum"
        )
    if len(flags.train_envs) > 1:
        raise TopicInvalid(f"--vary: {option} is set on one environment, and --train-env names several: give one")


def flags_of(reading: Reading) -> dict[str, Any]:
    """Return a topic as the equivalent flags, by the names of the settings of a study."""
    factors = tuple(_fit_to_replies(factor, reading.environment) for factor in reading.factors)
    vary = [f"{factor.name}={','.join(values_of_factor(factor))}" for factor in factors]
    flags: dict[str, Any] = {
        "kind": reading.kind,
        "asked": reading.asked,
        "vary": vary,
        "fix": [f"{name}={value_as_text(value)}" for name, value in reading.fixed.items()],
        "baseline": [factor.compared_with for factor in factors if factor.compared_with],
        "equal": reading.compared_at,
        "margin": reading.margin,
        "scope": ",".join(reading.sought),
        **{name: _count(name, value) for name, value in reading.counts.items()},
    }
    if reading.environment in TASK_FAMILIES:
        flags["family"] = reading.environment
    elif reading.environment is not None:
        flags["env"] = reading.environment
    if reading.asked is Asked.SOONER:
        flags["eval_every"] = MID_TRAINING_SCORES
    if len(vary) > 1 and not any(factor.explicit for factor in reading.factors) and reading.asked is Asked.MATTERS_MORE:
        flags["design"] = Design.ONE_AT_A_TIME
    return {name: value for name, value in flags.items() if value not in (None, "", [], {})}


def _fit_to_replies(factor: Factor, family: str | None) -> Factor:
    """Return the factor with limits on a reply that suit the environment, if the topic gives none.

    The limits are half of what the environment allows, that, and twice that.
    """
    if factor.name != RESPONSE_LENGTH or factor.explicit or family is None or family not in TASK_FAMILIES:
        return factor
    usual = TASK_FAMILIES[family].max_tokens
    spec = SPECS[RESPONSE_LENGTH]
    fitted = make_factor(spec, [max(1, usual // 2), usual, 2 * usual], explicit=False)
    return replace(fitted, compared_with=make_level(spec, usual).name)


def values_of_factor(factor: Factor) -> list[str]:
    """Return the levels of a factor of one setting, as people write them."""
    return [value_as_text(level.factors[factor.name]) for level in factor.levels]


def _count(name: str, value: float) -> float | int:
    return value if name == "max_hours" else int(value)


def _with_baseline(factors: tuple[Factor, ...], names: Sequence[str]) -> tuple[Factor, ...]:
    """Return the factors with the baseline levels that a person named.

    Raises TopicInvalid if there is no such level.
    """
    left = dict.fromkeys(names)
    found: list[Factor] = []
    for factor in factors:
        level = next((item.name for item in factor.levels if item.name in left), factor.compared_with)
        if level is not None:
            left.pop(level, None)
        found.append(replace(factor, compared_with=level))
    if left:
        known = ", ".join(level.name for factor in factors for level in factor.levels)
        choice = f"choose from {known}" if known else "name a factor with --vary, or leave --baseline out"
        raise TopicInvalid(f"--baseline: there is no level {next(iter(left))!r}: {choice}")
    return tuple(found)


def _choose_design(factors: Sequence[Factor], flags: QuestionFlags) -> Design | None:
    if flags.design is not None and not factors:
        raise TopicInvalid("--design: it is about several factors: name them with --vary, or leave it out")
    if len(factors) < 2:
        return None
    if flags.kind is StudyKind.OPTIMIZE:
        return flags.design or Design.ONE_AT_A_TIME
    if flags.asked is Asked.INTERACTION and flags.design is Design.ONE_AT_A_TIME:
        raise TopicInvalid("--design: one-at-a-time shows no interaction: leave it out")
    arms = prod(len(factor.levels) for factor in factors)
    if flags.design is None and flags.asked is Asked.INTERACTION and arms > LARGEST_FACTORIAL:
        raise TopicInvalid(
            f"an interaction takes all {arms} combinations: give fewer values, or say --design factorial"
        )
    return flags.design or (Design.FACTORIAL if arms <= LARGEST_FACTORIAL else Design.ONE_AT_A_TIME)
