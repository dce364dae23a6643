"""The recipe of a finding: everything that another study needs to ask the same question again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter

from experiments_db import Experiment, hash_json
from researcher.charter import Charter, JudgedBy
from researcher.record.log import to_json
from swarm import TrainJob
from swarm.errors import JobInvalid
from swarm.job import build_job

NOT_COMPARED = frozenset({"seed", "experiment_name", "project_name", "save_freq", "resume_from"})
"""Settings of a job that name a run or keep its files, and change nothing that is learned."""


@dataclass(frozen=True, slots=True)
class ArmRecipe:
    """One arm of a finding.

    `settings` is its whole job without NOT_COMPARED. `program` is the SHA-256 of its program. `train_environment` opens
    the environment that it trains on, if that is not the one that judges it.
    """

    name: str
    factors: Mapping[str, Any]
    settings: Mapping[str, Any]
    program: str
    train_environment: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """The subject of a finding: an arm and its baseline, and how they were measured.

    `metric` is the number of a run in words, and `sign` is 1 if a larger one is better, else -1. `amount` ends a run
    where arms are compared at equal tokens or time; else it is 0. `runs` is the number of runs of the arm.
    """

    environment_name: str
    environment_digest: str
    environment: str
    model: str
    metric: str
    judged_by: JudgedBy
    sign: float
    min_effect: float
    min_seeds: int
    compared_at: str
    amount: float
    eval_episodes: int
    attempt_calls: int | None
    attempt_tokens: int | None
    runs: int
    planner: str
    arm: ArmRecipe
    baseline: ArmRecipe

    @property
    def question(self) -> str:
        """The SHA-256 of what is compared, equal for findings on the same question.

        It covers how runs are measured, and of both arms the complete settings, the program and the environment to
        train on. What the arms are called and how many runs there were is no part of it.
        """
        names = (
            *(
                "environment_digest",
                "model",
                "metric",
                "judged_by",
                "sign",
                "amount",
                "attempt_calls",
                "attempt_tokens",
            ),
        )
        measured = {name: getattr(self, name) for name in names}
        return hash_json({**measured, "arm": _trained(self.arm), "baseline": _trained(self.baseline)})

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """The settings in which the arm differs from the baseline: the value of the baseline, then that of the arm.

        A setting that one of them leaves out has its usual value there.
        """
        ours, theirs = self.arm.settings, self.baseline.settings
        pairs = {name: (_value(theirs, name), _value(ours, name)) for name in sorted({*ours, *theirs})}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors in which the two arms differ."""
        ours, theirs = self.arm.factors, self.baseline.factors
        return tuple(name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name))


_RECIPE = TypeAdapter(Recipe)


def make_recipe(charter: Charter, arm: Experiment, baseline: Experiment, runs: int) -> Recipe:
    """Return the recipe of a comparison of two arms of a study; `runs` is the number of runs of the arm."""
    return Recipe(
        environment_name=charter.environment_name,
        environment_digest=charter.environment_digest,
        environment=charter.environment,
        model=str(baseline.job.get("model", TrainJob.model_fields["model"].default)),
        metric=charter.judged,
        judged_by=charter.judged_by,
        sign=charter.sign,
        min_effect=charter.rule.min_effect,
        min_seeds=charter.rule.min_seeds,
        compared_at=charter.compared_at,
        amount=charter.amount,
        eval_episodes=charter.eval_episodes,
        attempt_calls=charter.attempt_calls,
        attempt_tokens=charter.attempt_tokens,
        runs=runs,
        planner=charter.planner,
        arm=_arm_recipe(arm),
        baseline=_arm_recipe(baseline),
    )


def recipe_to_json(recipe: Recipe) -> dict[str, Any]:
    return to_json(recipe)


def recipe_from_json(document: Mapping[str, Any]) -> Recipe:
    return _RECIPE.validate_python(document)


def digest_of_program(code: str) -> str:
    return sha256(code.encode()).hexdigest()


def _arm_recipe(experiment: Experiment) -> ArmRecipe:
    return ArmRecipe(
        name=experiment.name,
        factors=dict(experiment.factors),
        settings={name: value for name, value in experiment.job.items() if name not in NOT_COMPARED},
        program=digest_of_program(experiment.program_code),
        train_environment=experiment.train_environment,
    )


def _trained(arm: ArmRecipe) -> dict[str, Any]:
    return {
        "settings": _complete(arm.settings),
        "program": arm.program,
        "train_environment": arm.train_environment,
    }


def _complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the usual values of all others; as they are if they are no valid job any more."""
    try:
        complete = build_job(dict(settings)).model_dump(mode="json")
    except JobInvalid:
        return dict(settings)
    return {name: value for name, value in complete.items() if name not in NOT_COMPARED}


def _value(settings: Mapping[str, Any], name: str) -> Any:
    field = TrainJob.model_fields.get(name)
    return settings[name] if name in settings else None if field is None else field.get_default()
