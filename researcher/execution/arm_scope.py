"""The parts of an arm that lie outside the scope of its study."""

from __future__ import annotations

from experiments_db import Experiment
from researcher.charter import Question
from researcher.equal_amounts import setting_of
from researcher.plan import ProgramProblem
from researcher.program_parts import find_differing_parts
from researcher.question.scopes import describe_scope
from researcher.scope import ArmPart, Scope

SCOPE = "scope"
"""The stage of a problem with what an arm changes."""
FOLLOWING = frozenset({"total_steps", "save_freq"})
"""The settings that code computes from the others, or that change nothing that is learned."""
_REMEDIES = {
    ArmPart.AGENT: "leave the function agent out, or take over that of the baseline with all that it uses",
    ArmPart.REWARD: "leave the function reward out, or take over that of the baseline",
    ArmPart.SCHEDULE: "leave the function schedule out, or take over that of the baseline",
}


def find_parts_outside(code: str, baseline: str, scope: Scope) -> tuple[ProgramProblem, ...]:
    """Return one problem for each part in which a program differs from the baseline's and may not."""
    parts = [part for part in find_differing_parts(code, baseline) if not scope.allows(part)]
    return tuple(
        ProgramProblem(
            SCOPE,
            f"its {part} is not the baseline's, and arms of this study may differ in {describe_scope(scope)} alone: "
            f"{_REMEDIES[part]}",
        )
        for part in parts
    )


def find_settings_outside(arm: Experiment, baseline: Experiment, asks: Question) -> tuple[ProgramProblem, ...]:
    """Return a problem if an arm has other settings or another training environment than its study lets differ."""
    allowed = {*asks.varied, *(name for factor in asks.factors for name in factor.needs), *FOLLOWING}
    found = [
        name
        for name, value in arm.job.items()
        if value != setting_of(baseline.job, name) and name not in allowed and not asks.scope.allows_setting(name)
    ]
    if arm.train_environment != baseline.train_environment and not asks.scope.allows(ArmPart.TRAIN_ENVIRONMENT):
        found.append("the training environment")
    if not found:
        return ()
    message = (
        f"its {', '.join(found)} differ from the baseline's, and arms of this study may differ in "
        f"{describe_scope(asks.scope)} alone: leave what is no part of that as it is"
    )
    return (ProgramProblem(SCOPE, message),)
