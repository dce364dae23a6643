"""The reviewer that asks a language model about an arm: its program, its attempts and its trainings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from experiments_db import Experiment, ExperimentStore, read_search_arms
from prompts import load
from researcher.charter import Charter
from researcher.errors import PlannerError
from researcher.history import Objection, ObjectionKind
from researcher.phases import BASE, FINAL
from researcher.planner.base import Asker
from researcher.planner.language_model.answers import Answer, Line, parse_answer
from researcher.planner.texts import quote_data, quote_text, requests_as_text
from researcher.planner.tools.drafts import describe_trial
from researcher.planner.tools.record import describe_change
from researcher.record.costs import compare_attempts, gather_costs
from swarm.guard import REWARD, SUCCESS

NODE = "review"
SHOWN_POINTS = 8
MOST_OBJECTIONS = 8
MOST_OF_MESSAGE = 1_000
MOST_LINES = 120
"""The most lines of a difference between two programs."""


class ObjectionAnswer(Answer):
    kind: ObjectionKind
    sentence: Line
    is_grave: bool = False


class ReviewAnswer(Answer):
    objections: Annotated[list[ObjectionAnswer], Field(max_length=MOST_OBJECTIONS)]


@dataclass(frozen=True, slots=True)
class LLMReviewer:
    """A reviewer that asks a language model."""

    chat: Asker
    store: ExperimentStore
    study_id: str

    @property
    def name(self) -> str:
        return self.chat.name

    def review(self, charter: Charter, arm: str) -> tuple[Objection, ...]:
        """Return the model's objections to an arm. Raises PlannerError if the study has no such arm."""
        experiment = self.store.find_experiment(self.study_id, arm)
        if experiment is None:
            raise PlannerError(f"the reviewer was asked about {arm}, and study {self.study_id} has no such arm")
        answer = self.chat.ask(NODE, self._question(charter, experiment), lambda text: parse_answer(text, ReviewAnswer))
        return tuple(Objection(each.kind, each.sentence, each.is_grave) for each in answer.objections)

    def _question(self, charter: Charter, experiment: Experiment) -> str:
        trials = self.store.list_program_trials(self.study_id, experiment_id=experiment.id)
        claim = "" if experiment.manipulation is None else str(experiment.manipulation.get("statement", ""))
        return load(
            NODE,
            question=charter.question,
            arm=experiment.name,
            environment=charter.environment_name,
            metric=charter.judged,
            player="The agent of the arm" if charter.asks.scope.asks_agents else "The agent of the baseline",
            purpose=quote_data([experiment.purpose or experiment.note or "nothing"]),
            claim=f"It must be true of its attempts: {quote_data([claim])}" if claim else "",
            program=experiment.program_code,
            changes=self._changes(experiment),
            record=quote_text("\n".join(self._record(charter, experiment)) or "nothing"),
            attempts=quote_text(describe_trial(trials[-1], is_marked=False) if trials else "none was made"),
        )

    def _changes(self, experiment: Experiment) -> str:
        """Return the difference of the arm's program and settings from those of its parent."""
        arms = {item.id: item for item in self.store.list_experiments(self.study_id)}
        parent = arms.get(experiment.parent_id or "")
        if parent is None:
            return "It has no parent."
        settings, program = describe_change(parent, experiment)
        return quote_text(settings + "\n".join(program.splitlines()[:MOST_LINES]))

    def _record(self, charter: Charter, experiment: Experiment) -> Iterator[str]:
        """Yield what attempts take, a request of the agent, and the trainings: curves at a few steps, and scores."""
        costs = gather_costs(self.store, self.study_id, explores=True)
        yield from compare_attempts(
            {name: costs[name] for name in (charter.baseline, experiment.name) if name in costs}
        )
        arms = {item.name: item for item in read_search_arms(self.store, self.study_id)}
        if (requests := arms[experiment.name].requests) is not None:
            yield requests_as_text(requests, MOST_OF_MESSAGE)
        for run in self.store.list_runs(experiment_id=experiment.id):
            for name in (REWARD, SUCCESS):
                spans = self.store.sample_metrics([run.id], [name], most=SHOWN_POINTS)
                points = ", ".join(f"{span.mean:.3g}" for span in spans if span.mean is not None)
                if points:
                    yield f"run with seed {run.seed}, {name} over training: {points}"
            for phase in (BASE, FINAL):
                score = self.store.find_evaluation(run.id, phase, charter.search_split)
                if score is not None:
                    yield f"run with seed {run.seed}, {phase} held-out score: {score.mean:.3g} +- {score.stderr:.2g}"
