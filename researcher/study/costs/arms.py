"""The costs of a study by arm, and warnings about them for comparisons of an arm with the baseline.

Place in the flow: the report, the decisions and the explorer ask here; the evaluator stored the costs before. This
module judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments_db import ExperimentStore
from researcher.execution.runs import list_all_trials
from researcher.phases import COST, FINAL
from researcher.study.costs.attempts import AttemptCost, cost_from_json

NOT_FROM_MODEL_BELOW = 0.5
"""The share of the characters of its replies that the model must have written, or they are not the model's."""

MORE_CALLS = 1.2
MORE_TOKENS = 1.5
"""An arm with so many times the calls or tokens of the baseline has a higher cost."""
OTHER_PROFILE = 1.5
"""Training and evaluation differ if an attempt of one has so many times the calls or tokens of the other."""
FEW_ATTEMPTS = 20
"""Below this number of attempts, mean lengths vary more by chance, so twice the ratio is needed."""


@dataclass(frozen=True, slots=True)
class ArmCost:
    """The cost of one arm's attempts in training and in final evaluation; None if it is not on record."""

    training: AttemptCost | None = None
    evaluation: AttemptCost | None = None


def gather_costs(store: ExperimentStore, study_id: str) -> Mapping[str, ArmCost]:
    """Return the cost of each arm by name, from the finished run of each seed, else from its last run.

    Exploring runs are left out.
    """
    counted = {
        run.id: (trial.experiment.name, run)
        for trial in list_all_trials(store, study_id)
        if not trial.rung
        if (run := trial.finished or next(iter(trial.runs[-1:]), None)) is not None
    }
    training: dict[str, list[AttemptCost]] = {}
    evaluation: dict[str, list[AttemptCost]] = {}
    for name, run in counted.values():
        if run.training_cost is not None:
            training.setdefault(name, []).append(cost_from_json(run.training_cost))
    for score in store.list_evaluations(study_id=study_id, phase=FINAL):
        stored = score.details.get(COST)
        if stored is not None and score.run_id in counted:
            evaluation.setdefault(counted[score.run_id][0], []).append(cost_from_json(stored))
    return {
        item.name: ArmCost(_mean(training.get(item.name, ())), _mean(evaluation.get(item.name, ())))
        for item in store.list_experiments(study_id)
    }


def cost_flags(cost: ArmCost, baseline: ArmCost) -> tuple[str, ...]:
    """Return warnings about an arm's cost for comparisons with the baseline: one clause each."""
    flags: list[str] = []
    if cost.evaluation is not None and baseline.evaluation is not None:
        flags += _spends_more(cost.evaluation, baseline.evaluation)
    if cost.evaluation is not None:
        share = cost.evaluation.model_share
        if share is not None and share < NOT_FROM_MODEL_BELOW:
            flags.append(f"its replies do not come from the model: {_percent(share)} of their characters")
        if cost.training is not None:
            flags += _profile(cost.training, cost.evaluation)
    return tuple(flags)


def _mean(costs: Sequence[AttemptCost]) -> AttemptCost | None:
    """Return the mean cost over all attempts; None without any."""
    attempts = sum(cost.attempts for cost in costs)
    if not attempts:
        return None

    def weighted(name: str) -> float:
        return sum(getattr(cost, name) * cost.attempts for cost in costs) / attempts

    shares = [(cost.model_share, cost.attempts) for cost in costs if cost.model_share is not None]
    measured = sum(count for _, count in shares)
    return AttemptCost(
        attempts=attempts,
        calls=weighted("calls"),
        prompt_tokens=weighted("prompt_tokens"),
        sampled_tokens=weighted("sampled_tokens"),
        seconds=weighted("seconds"),
        temperatures=tuple(sorted({value for cost in costs for value in cost.temperatures})),
        other_sampling=tuple(sorted({value for cost in costs for value in cost.other_sampling})),
        model_share=sum(share * count for share, count in shares) / measured if measured else None,
        broken=sum(cost.broken for cost in costs),
        repeated=sum(cost.repeated for cost in costs),
        bounded=sum(cost.bounded for cost in costs),
    )


def _spends_more(own: AttemptCost, other: AttemptCost) -> list[str]:
    """Return warnings where an attempt costs more than one of the baseline."""
    flags: list[str] = []
    for name, least, said in (
        ("calls", MORE_CALLS, "calls"),
        ("prompt_tokens", MORE_TOKENS, "prompt tokens"),
        ("sampled_tokens", MORE_TOKENS, "sampled tokens"),
    ):
        mine, theirs = getattr(own, name), getattr(other, name)
        least *= _for_chance(name, own, other)
        if mine and not theirs:
            flags.append(f"with {mine:.1f} {said} an attempt, and the baseline has none")
        elif mine >= least * theirs > 0:
            flags.append(f"at {mine / theirs:.1f} times the {said} of the baseline")
    return flags


def _profile(training: AttemptCost, evaluation: AttemptCost) -> list[str]:
    """Return warnings where attempts in evaluation differ from those in training."""
    flags: list[str] = []
    if training.temperatures != evaluation.temperatures and training.temperatures and evaluation.temperatures:
        there, here = _temperatures(training), _temperatures(evaluation)
        flags.append(f"samples at {here} in evaluation and at {there} in training")
    if alone := sorted({*evaluation.other_sampling} - {*training.other_sampling}):
        flags.append(f"samples with {', '.join(alone)} in evaluation alone")
    for name, said in (("calls", "calls"), ("prompt_tokens", "prompt tokens"), ("sampled_tokens", "sampled tokens")):
        here, there = getattr(evaluation, name), getattr(training, name)
        if max(here, there) > OTHER_PROFILE * _for_chance(name, evaluation, training) * min(here, there):
            flags.append(f"{here:.1f} {said} an attempt in evaluation and {there:.1f} in training")
    return flags


def _for_chance(name: str, own: AttemptCost, other: AttemptCost) -> float:
    """Return the factor that chance alone may add to a ratio: reply lengths vary, numbers of calls hardly do."""
    return 2.0 if name == "sampled_tokens" and min(own.attempts, other.attempts) < FEW_ATTEMPTS else 1.0


def _temperatures(cost: AttemptCost) -> str:
    values = [f"{value:g}" for value in cost.temperatures]
    return f"temperature{'s' if len(values) > 1 else ''} {' and '.join(values)}"


def _percent(share: float) -> str:
    """Return a share in percent, rounded down, so that a value below a bound is never shown as the bound."""
    return f"{int(100 * share + 1e-9)} %"
