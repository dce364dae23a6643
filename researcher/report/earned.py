"""The part of an arm that earned its gain, in words: its agent, its training, or the part without which it is gone."""

from __future__ import annotations

from dataclasses import dataclass

from experiments_db import Outcome
from researcher.analysis import Comparison, GainPart
from researcher.report.formats import LEAST, format_difference, format_interval, is_known, join_names
from researcher.report.numbers.facts import ArmFacts, StudyFacts


def is_better_trained(facts: StudyFacts, found: Comparison) -> bool:
    """Return whether an arm's training is shown to be better.

    For an arm with an agent of its own, the baseline's agent must do better with its weights.
    """
    return _is_shown(facts, found.weights_gain if is_known(found.weights_gain.value) else found.training_gain)


def _is_shown(facts: StudyFacts, part: GainPart) -> bool:
    return is_known(part.p) and part.p < facts.charter.rule.alpha and facts.charter.sign * part.value >= LEAST


def describe_earned(facts: StudyFacts, found: Comparison, name: str) -> str:
    """Return one sentence on what a kept arm has of its gain: a better agent, better training or both.

    Empty where an arm has no agent of its own and is better trained, or where nothing is known.
    """
    agent, weights, training = found.agent_gain, found.weights_gain, found.training_gain
    if not is_known(weights.value):
        if is_better_trained(facts, found) or not is_known(training.value):
            return ""
        return f"{name} is not shown to be better trained: training added {_with_interval(training)}."
    is_agent, is_trained = _is_shown(facts, agent), is_better_trained(facts, found)
    if is_agent and is_trained:
        said = f"{name} has a better agent and is better trained"
    elif is_agent:
        said = f"{name} has a better agent and is not shown to be better trained"
    elif is_trained:
        said = f"{name} is better trained, and its agent is not shown to be better"
    else:
        said = f"Whether {name} has a better agent or is better trained is not told apart"
    return (
        f"{said}: its agent gains {_with_interval(agent)} on the base weights, and its weights gain "
        f"{_with_interval(weights)} with the agent of {found.baseline}."
    )


def _with_interval(part: GainPart) -> str:
    if not is_known(part.value):
        return "an unknown amount"
    return f"{format_difference(part.value)} ({format_interval(part.ci_low, part.ci_high, signed=True)})"


@dataclass(frozen=True, slots=True)
class EarningPart:
    """The arm that has of the winner only what earned the gain.

    `needed` are the ablations to which the winner is better, and `unneeded` are the others. `arm` lacks a part that the
    gain does not need.
    """

    arm: ArmFacts
    needed: tuple[str, ...]
    unneeded: tuple[str, ...]

    @property
    def reason(self) -> str:
        return (
            f"the gain needs what {join_names(self.needed)} lacks, and is not shown to need what "
            f"{join_names(self.unneeded)} lacks"
        )


def find_earning_part(facts: StudyFacts, winner: ArmFacts) -> EarningPart | None:
    """Return the arm without the parts of a mixed winner that earned nothing; None if no ablation decides that.

    Such an arm must be kept itself, and another part of the winner must be shown to be needed.
    """
    scope = facts.charter.asks.scope
    if facts.confirmation is None or facts.confirmation.winner != winner.name:
        return None
    if not scope.asks_agents or len(scope.parts) < 2:
        return None
    needed = [item.name for item in facts.confirmation.ablations if item.outcome is Outcome.SUPPORTED]
    others = {item.name for item in facts.confirmation.ablations} - {*needed}
    kept = [arm for arm in facts.ranked if arm.name in others and arm.is_kept and not arm.suspect]
    if not needed or not kept or len(others) > 1:
        return None
    return EarningPart(kept[0], tuple(needed), tuple(sorted(others)))
