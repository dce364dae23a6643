"""The reviewer without a language model: what an arm's program, trial and trainings show to fixed rules.

It objects gravely only where the score would not be what the question asks about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from experiments_db import Experiment, ExperimentStore, Operator, ProgramTrial, Run
from researcher.charter import Charter
from researcher.errors import PlannerError
from researcher.history import Objection, ObjectionKind
from researcher.phases import BASE, FINAL
from researcher.program_code import AgentLook, ProgramCode
from researcher.record.costs import NOT_FROM_MODEL_BELOW, gather_costs
from researcher.reviewer.program_text import look_at_text
from researcher.reviewer.reward_probe import RewardRunner, probe_reward
from swarm.environments import Environment
from swarm.errors import SwarmError
from swarm.guard import REWARD, SUCCESS

HARDLY_OF_MODEL = 0.1
"""Below this share of its characters, no reply of a model is left, whatever was put around it."""
SUSPICIOUS_BLANK = 0.3
"""The gain over the plain agent with random letters from which on it is told."""
LEAST_STEPS = 8
"""A training with fewer steps shows no trend."""
RISE = 0.25
"""A reward rises clearly if it grows by this part of its largest value in the training."""
SAME_SUCCESS = 0.05
NOISE = 2.0
"""Standard errors within which two held-out scores are the same."""


@dataclass(frozen=True, slots=True)
class RulesReviewer:
    """A reviewer that follows fixed rules.

    `open_environment` opens an environment by its reference, and `run_reward` runs the reward of a program.
    """

    store: ExperimentStore
    study_id: str
    open_environment: Callable[[str], Environment]
    run_reward: RewardRunner
    name = "rules"

    def review(self, charter: Charter, arm: str) -> tuple[Objection, ...]:
        """Return the objections to an arm.

        Raises PlannerError if the study has no such arm, or if its environment cannot be looked at.
        """
        experiment = self.store.find_experiment(self.study_id, arm)
        if experiment is None:
            raise PlannerError(f"the reviewer was asked about {arm}, and study {self.study_id} has no such arm")
        trials = self.store.list_program_trials(self.study_id, experiment_id=experiment.id)
        try:
            return tuple(self._objections(charter, experiment, trials))
        except SwarmError as error:
            raise PlannerError(f"the reviewer could not look at {arm}: {' '.join(error.message.split())}") from error

    def _objections(
        self, charter: Charter, experiment: Experiment, trials: Sequence[ProgramTrial]
    ) -> Iterator[Objection]:
        environment = self.open_environment(charter.environment)
        code = ProgramCode(experiment.program_code)
        yield from self._of_replies(experiment, code.look_at_agent())
        yield from _of_blank_model(trials)
        yield from look_at_text(code, environment)
        if "reward" in code.functions:
            train = self.open_environment(experiment.train_environment or charter.environment)
            yield from self._of_reward(code, train, trials)
            yield from _of_trainings(self.store, charter, experiment)
        yield from self._of_claims(experiment)

    def _of_reward(
        self, code: ProgramCode, environment: Environment, trials: Sequence[ProgramTrial]
    ) -> Iterator[Objection]:
        """Yield the objections of the probe; a reward that cannot be run is told, and says nothing about the arm."""
        try:
            yield from probe_reward(code, environment, trials, self.run_reward)
        except SwarmError as error:
            reason = " ".join(error.message.split())[:200]
            yield Objection(ObjectionKind.OTHER, f"Its reward could not be run, so it was not looked at: {reason}")

    def _of_replies(self, experiment: Experiment, look: AgentLook | None) -> Iterator[Objection]:
        """Yield objections to replies that the model did not write."""
        share = _model_share(self.store, self.study_id, experiment)
        is_suspicious = look is not None and bool(look.checked or look.computed)
        if share is not None and share < NOT_FROM_MODEL_BELOW:
            yield Objection(
                ObjectionKind.SOLVED_IN_CODE,
                f"The model wrote {int(100 * share)} % of the characters of its replies.",
                is_grave=share < HARDLY_OF_MODEL or is_suspicious,
            )
        if look is not None:
            yield from _of_agent(look)

    def _of_claims(self, experiment: Experiment) -> Iterator[Objection]:
        """Yield objections to an arm that is not what it says it is."""
        arms = self.store.list_experiments(self.study_id)
        parent = next((each for each in arms if each.id == experiment.parent_id), None)
        if parent is not None and experiment.operator is not Operator.TUNE and _is_same(experiment, parent):
            yield Objection(
                ObjectionKind.NOT_AS_CLAIMED,
                f"Its program and its settings are those of {parent.name}, from which it was to differ.",
                is_grave=True,
            )


def _of_trainings(store: ExperimentStore, charter: Charter, experiment: Experiment) -> Iterator[Objection]:
    """Yield an objection if in most trainings of an arm the reward rose, and neither grades nor held-out scores did."""
    seen = [
        found
        for run in store.list_runs(experiment_id=experiment.id)
        if (found := _describe_training(store, charter, run)) is not None
    ]
    gamed = [sentence for sentence in seen if sentence]
    if gamed and 2 * len(gamed) >= len(seen):
        yield Objection(ObjectionKind.GAMED_REWARD, gamed[0], is_grave=True)


def _describe_training(store: ExperimentStore, charter: Charter, run: Run) -> str | None:
    """Return how the reward of a run was gamed; empty if it was not, and None if the run shows nothing."""
    curves: dict[str, list[float]] = {REWARD: [], SUCCESS: []}
    for point in store.list_metrics([run.id], names=list(curves)):
        if point.value is not None:
            curves[point.name].append(point.value)
    rewards, solved = curves[REWARD], curves[SUCCESS]
    if min(len(rewards), len(solved)) < LEAST_STEPS:
        return None
    was, now = _ends(rewards)
    before, after = _ends(solved)
    scale = max(abs(value) for value in rewards)
    gain = _held_out_gain(store, charter, run)
    if now - was < RISE * scale or after - before > SAME_SUCCESS or (gain is not None and gain > 0):
        return ""
    return (
        f"In training its reward rose from {was:.3g} to {now:.3g}, and the share of solved tasks went from "
        f"{before:.2f} to {after:.2f}; the held-out score did not rise."
    )


def _ends(values: list[float]) -> tuple[float, float]:
    """Return the means of the first and of the last quarter of a curve."""
    quarter = max(len(values) // 4, 1)
    return fmean(values[:quarter]), fmean(values[-quarter:])


def _held_out_gain(store: ExperimentStore, charter: Charter, run: Run) -> float | None:
    """Return by how much training raised the held-out score; 0 within noise, and None if it was not measured."""
    base, final = (store.find_evaluation(run.id, phase, charter.search_split) for phase in (BASE, FINAL))
    if base is None or final is None:
        return None
    gain = final.mean - base.mean
    noise = NOISE * (base.stderr**2 + final.stderr**2) ** 0.5
    return 0.0 if abs(gain) <= noise else gain


def _of_blank_model(trials: Sequence[ProgramTrial]) -> Iterator[Objection]:
    """Yield an objection if the program solves tasks with a model that writes random letters."""
    gains = [trial.blank_gain for trial in trials if trial.blank_gain is not None]
    if gains and gains[-1] >= SUSPICIOUS_BLANK:
        yield Objection(
            ObjectionKind.SOLVED_IN_CODE,
            f"With a model that writes random letters it scores {gains[-1]:.2f} more than the plain agent.",
        )


def _of_agent(look: AgentLook) -> Iterator[Objection]:
    if look.computed:
        lines = ", ".join(map(str, sorted(set(look.computed))))
        yield Objection(
            ObjectionKind.SOLVED_IN_CODE,
            f"Line {lines}: it replies with what the code computes from the question.",
            is_grave=True,
        )
    if not look.asks_model or not (look.replies_of_model or look.computed):
        yield Objection(
            ObjectionKind.SOLVED_IN_CODE, "None of its replies depends on what the model says.", is_grave=True
        )
    if look.checked:
        yield Objection(
            ObjectionKind.SOLVED_IN_CODE,
            f"Line {look.checked[0]}: it compares the model's reply with an answer that the code computes.",
            is_grave=True,
        )


def _model_share(store: ExperimentStore, study_id: str, experiment: Experiment) -> float | None:
    """Return the share of the replies' characters that the model wrote, in evaluation or else in training."""
    cost = gather_costs(store, study_id)[experiment.name]
    shares = (each.model_share for each in (cost.evaluation, cost.training) if each is not None)
    return next((share for share in shares if share is not None), None)


def _is_same(one: Experiment, other: Experiment) -> bool:
    return (one.program_code, one.train_environment, dict(one.job)) == (
        other.program_code,
        other.train_environment,
        dict(other.job),
    )
