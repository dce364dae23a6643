"""The inference costs of attempts, by score, training and arm, from the ledgers of the servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from pydantic import TypeAdapter

from experiments_db import ExperimentStore, Run
from researcher.phases import COST, FINAL
from researcher.record.runs import list_all_trials
from swarm import SwarmClient, errors
from swarm.schemas import EpisodeUsage
from swarm.types import EpisodeType

NOT_FROM_MODEL_BELOW = 0.5
"""The share of the characters of its replies that the model must have written, or they are not the model's."""

MORE_CALLS = 1.2
MORE_TOKENS = 1.5
"""An arm with so many times the calls or tokens of the baseline has a higher cost."""
OTHER_PROFILE = 1.5
"""Training and evaluation differ if an attempt of one has so many times the calls or tokens of the other."""
PROFILE = (("calls", "calls"), ("prompt_tokens", "prompt tokens"), ("sampled_tokens", "sampled tokens"))
"""The amounts of an attempt that are compared, each with its name for people."""
FEW_ATTEMPTS = 20
"""Below this number of attempts, mean lengths vary more by chance, so twice the ratio is needed."""

_CLIENT_ERROR = "client_error:"
_SILENT = frozenset({"idle_timeout", "deadline", "no_result"})
_INTERRUPTIONS = frozenset({"KeyboardInterrupt", "SystemExit", "GeneratorExit", "CancelledError"})


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """The inference cost of one arm, per attempt.

    The numbers come from the ledgers of the arm's servers, never from its program. `calls`, `prompt_tokens`,
    `sampled_tokens` and `seconds` are means over `attempts`. `temperatures` are the distinct sampling temperatures in
    rising order. `other_sampling` are further settings that restrict sampling, such as `top_k=1`. `model_share` is the
    mean share, from 0 to 1, of the characters of the graded replies that the model wrote; None if it was not measured.
    `broken` counts attempts that the program broke. `repeated` counts attempts that the system broke and that were made
    again. `bounded` counts attempts that met a limit on calls or tokens. `overruled` counts calls that asked for other
    sampling than a score has, and `asked_sampling` names what they asked for.
    """

    attempts: int
    calls: float
    prompt_tokens: float
    sampled_tokens: float
    seconds: float
    temperatures: tuple[float, ...] = ()
    other_sampling: tuple[str, ...] = ()
    model_share: float | None = None
    broken: int = 0
    repeated: int = 0
    bounded: int = 0
    overruled: int = 0
    asked_sampling: tuple[str, ...] = ()


_ADAPTER = TypeAdapter(AttemptCost)


class AttemptUse(Protocol):
    """The use of the model by an ended episode, and the share of its replies that the model wrote."""

    @property
    def usage(self) -> EpisodeUsage: ...

    @property
    def model_share(self) -> float | None: ...


def cost_of_attempts(receipts: Iterable[AttemptUse], *, broken: int = 0, repeated: int = 0) -> AttemptCost | None:
    """Return the cost of the attempts that ended with these receipts; None without any.

    `broken` attempts were broken by the program. `repeated` attempts were broken by the system and made again.
    """
    ended = tuple(receipts)
    if not ended:
        return None
    count = len(ended)
    usages = [receipt.usage for receipt in ended]
    shares = [receipt.model_share for receipt in ended if receipt.model_share is not None]
    return AttemptCost(
        attempts=count,
        calls=sum(usage.calls for usage in usages) / count,
        prompt_tokens=sum(usage.prompt_tokens for usage in usages) / count,
        sampled_tokens=sum(usage.sampled_tokens for usage in usages) / count,
        seconds=sum(usage.seconds or 0.0 for usage in usages) / count,
        temperatures=tuple(sorted({value for usage in usages for value in usage.temperatures})),
        other_sampling=_others(
            (value for usage in usages for value in usage.top_p),
            (value for usage in usages for value in usage.top_k),
            (name for usage in usages for name in usage.other_sampling),
        ),
        model_share=sum(shares) / len(shares) if shares else None,
        broken=broken,
        repeated=repeated,
        bounded=sum(usage.limited for usage in usages),
        overruled=sum(usage.overruled for usage in usages),
        asked_sampling=tuple(sorted({name for usage in usages for name in usage.asked_sampling})),
    )


def read_training_cost(client: SwarmClient, run: Run) -> AttemptCost | None:
    """Return the cost of a run's train episodes from its server; None without any, or if it runs another job.

    An attempt counts as broken by the program in two cases: its client gave it up, or the server did because its agent
    was silent. Neither counts if a call of the attempt had failed by a fault of the server.
    """
    resolved = client.job().resolved or {}
    if resolved.get("experiment_name") != run.job.get("experiment_name"):
        return None
    usage = client.usage(EpisodeType.TRAIN)
    if not usage.episodes:
        return None
    return AttemptCost(
        attempts=usage.episodes,
        calls=usage.calls / usage.episodes,
        prompt_tokens=usage.prompt_tokens / usage.episodes,
        sampled_tokens=usage.sampled_tokens / usage.episodes,
        seconds=usage.seconds / usage.episodes,
        temperatures=tuple(usage.temperatures),
        other_sampling=_others(usage.top_p, usage.top_k, usage.other_sampling),
        model_share=usage.model_share,
        broken=sum(count for outcome, count in usage.unrewarded.items() if is_of_program(outcome)),
        repeated=usage.faulty,
        bounded=usage.limited,
    )


def cost_to_json(cost: AttemptCost) -> dict[str, Any]:
    """Return the form in which a cost is stored."""
    return _ADAPTER.dump_python(cost, mode="json")


def cost_from_json(stored: Mapping[str, Any]) -> AttemptCost:
    return _ADAPTER.validate_python(stored)


def _others(top_p: Iterable[float], top_k: Iterable[int], named: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*(f"top_p={p:g}" for p in top_p), *(f"top_k={k}" for k in top_k), *named}))


def error_of_program(outcome: str | None) -> str | None:
    """Return the class name of the program's error in an attempt that its client gave up.

    None for errors of the server, the environment or the network, and for interruptions.
    """
    if outcome is None or not outcome.startswith(_CLIENT_ERROR):
        return None
    name = outcome.removeprefix(_CLIENT_ERROR)
    is_of_system = hasattr(errors, name) or hasattr(httpx, name) or name in _INTERRUPTIONS
    return None if is_of_system and name != errors.ProgramFailure.__name__ else name


def is_of_program(outcome: str) -> bool:
    """Return whether the agent caused the end of an attempt without a reward."""
    return outcome in _SILENT or error_of_program(outcome) is not None


@dataclass(frozen=True, slots=True)
class ArmCost:
    """The cost of one arm's attempts in training and in final evaluation; None if it is not on record."""

    training: AttemptCost | None = None
    evaluation: AttemptCost | None = None


def gather_costs(store: ExperimentStore, study_id: str, *, explores: bool = False) -> Mapping[str, ArmCost]:
    """Return the cost of each arm by name, from the finished run of each seed, else from its last run.

    Exploring runs are left out unless `explores` is set.
    """
    counted = {
        run.id: (trial.experiment.name, run)
        for trial in list_all_trials(store, study_id)
        if explores or not trial.rung
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


def compare_attempts(costs: Mapping[str, ArmCost]) -> tuple[str, ...]:
    """Return one line for each arm with scores: what an attempt takes in training and what it takes in evaluation."""
    return tuple(
        f"{name}: training {_describe(cost.training)}; evaluation {_describe(cost.evaluation)}"
        for name, cost in costs.items()
        if cost.evaluation is not None
    )


def _describe(cost: AttemptCost | None) -> str:
    if cost is None:
        return "not on record"
    settings = [*([_temperatures(cost)] if cost.temperatures else []), *cost.other_sampling]
    asked = f", asked in vain for {', '.join(cost.asked_sampling)} in {cost.overruled} calls" if cost.overruled else ""
    return (
        f"{cost.calls:.1f} calls, {cost.prompt_tokens:.1f} prompt tokens and {cost.sampled_tokens:.1f} sampled tokens "
        f"an attempt, {', '.join(settings) or 'no sampling on record'}{asked}"
    )


def mean_cost(costs: Iterable[ArmCost]) -> ArmCost:
    """Return the mean cost over all attempts of several runs."""
    known = tuple(costs)
    return ArmCost(
        _mean([each.training for each in known if each.training is not None]),
        _mean([each.evaluation for each in known if each.evaluation is not None]),
    )


def why_not_as_trained(cost: ArmCost, baseline: ArmCost, *, has_same_tasks: bool, longer_replies: float = 1.0) -> str:
    """Return what the agent of an arm does in evaluation and not in training; empty if there is nothing.

    Tasks, and what training teaches, change the length of attempts too. An arm differs only if evaluation takes more
    than training, by a larger factor than it does for the baseline. Numbers of tokens tell nothing if the arm trains on
    other tasks (`has_same_tasks` is false), and may grow as the replies have grown in training (`longer_replies`).
    """
    if cost.training is None or cost.evaluation is None:
        return ""
    if alone := _asked_alone(cost.training, cost.evaluation):
        return f"its agent asks for {', '.join(alone)} in evaluation and not in training"
    for name, said in PROFILE if has_same_tasks else PROFILE[:1]:
        usual = 1.0
        if baseline.training is not None and baseline.evaluation is not None:
            usual = max(usual, _growth(name, baseline.training, baseline.evaluation))
        if name != "calls":
            usual *= max(1.0, longer_replies)
        chance = _for_chance(name, cost.evaluation, cost.training)
        if _growth(name, cost.training, cost.evaluation) > OTHER_PROFILE * chance * usual:
            here, there = getattr(cost.evaluation, name), getattr(cost.training, name)
            return f"its agent takes {here:.1f} {said} an attempt in evaluation and {there:.1f} in training"
    return ""


def _growth(name: str, training: AttemptCost, evaluation: AttemptCost) -> float:
    here, there = getattr(evaluation, name), getattr(training, name)
    return here / there if there else 1.0


def _asked_alone(training: AttemptCost, evaluation: AttemptCost) -> list[str]:
    """Return the sampling settings that calls asked for in evaluation alone; the record of training has no seeds."""
    given = {f"temperature={value:g}" for value in training.temperatures}
    asked = {*evaluation.asked_sampling, *evaluation.other_sampling} - {"seed"}
    return sorted(asked - given - {*training.other_sampling})


def cost_flags(cost: ArmCost, baseline: ArmCost) -> tuple[str, ...]:
    """Return warnings about an arm's cost for comparisons with the baseline: one clause each."""
    flags: list[str] = []
    if cost.evaluation is not None and baseline.evaluation is not None:
        flags += _spends_more(cost.evaluation, baseline.evaluation)
    if cost.evaluation is not None:
        share = cost.evaluation.model_share
        if share is not None and share < NOT_FROM_MODEL_BELOW:
            flags.append(f"its replies do not come from the model: {_percent(share)} of their characters")
        flags += _overruled(cost.evaluation)
        if cost.training is not None:
            flags += _profile(cost.training, cost.evaluation)
    return tuple(flags)


def _overruled(evaluation: AttemptCost) -> list[str]:
    if not evaluation.overruled:
        return []
    asked = ", ".join(evaluation.asked_sampling)
    return [f"{evaluation.overruled} calls of its scores asked for {asked} and were sampled as those of all arms"]


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
        overruled=sum(cost.overruled for cost in costs),
        asked_sampling=tuple(sorted({name for cost in costs for name in cost.asked_sampling})),
    )


def _spends_more(own: AttemptCost, other: AttemptCost) -> list[str]:
    """Return warnings where an attempt costs more than one of the baseline."""
    flags: list[str] = []
    for name, said in PROFILE:
        least = MORE_CALLS if name == "calls" else MORE_TOKENS
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
    if alone := sorted({*_asked_alone(training, evaluation)} - {*evaluation.other_sampling}):
        flags.append(f"asks for {', '.join(alone)} in evaluation alone")
    for name, said in PROFILE:
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
