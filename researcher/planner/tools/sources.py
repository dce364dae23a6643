"""What the tools of one study read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from experiments_db import Experiment, ExperimentStore, Operator, Run
from researcher.charter import Charter
from researcher.errors import ResearchError
from researcher.plan import ManipulationCheck
from researcher.planner.tools.base import PlannerTool, ToolRefused
from researcher.record.log import StudyLog
from swarm.environments import Environment
from swarm.errors import SwarmError

Propose = Callable[[Operator, tuple[str, ...]], Mapping[str, str] | None]
"""Return levels by factor for an arm derived from parents by an operator; None if the space is used up."""
TryProgram = Callable[[str, int, ManipulationCheck | None], str]
"""Return the text of a trial of a program's code: a number of attempts, and a check of their transcripts."""


@dataclass(frozen=True, slots=True)
class ToolSources:
    """The sources of one study's tools.

    `open_environment` returns an environment by its reference, for the evaluator: it knows solutions. `notes` is a
    folder of Markdown and text files. `try_program` returns the text of a trial, and `propose` the next settings of a
    proposer. Where one of the three is None, its tool does not exist.
    """

    store: ExperimentStore
    study_id: str
    open_environment: Callable[[str], Environment]
    notes: Path | None = None
    try_program: TryProgram | None = None
    propose: Propose | None = None

    def charter(self) -> Charter:
        """Return the frozen charter. Raises ToolRefused before there is one."""
        try:
            return StudyLog(self.store, self.study_id).charter()
        except ResearchError as error:
            raise ToolRefused("the study has no charter yet: answer the question of its frame first") from error

    def reference(self) -> str:
        """Return the reference of the environment that arms are judged on: before the charter, the one a person named.

        Raises ToolRefused if there is none yet.
        """
        if self.store.find_charter(self.study_id) is not None:
            return self.charter().environment
        settings = self.store.get_study(self.study_id).settings
        named = settings.get("env") or settings.get("family")
        if not named:
            raise ToolRefused("no environment is chosen yet: name one in the frame of the study")
        return str(named)

    def job(self) -> Mapping[str, Any]:
        """Return the settings that all arms share: before the charter, those that a person fixed."""
        if self.store.find_charter(self.study_id) is not None:
            return self.charter().job
        settings = self.store.get_study(self.study_id).settings
        model = settings.get("train_model")
        return {**settings.get("job", {}), **({"model": model} if model else {})}

    def environment(self, reference: str) -> Environment:
        """Return an environment by its reference. Raises ToolRefused if it cannot be used."""
        try:
            return self.open_environment(reference)
        except (ResearchError, SwarmError) as error:
            raise ToolRefused(f"the environment cannot be used: {error}") from error

    def arm(self, name: str) -> Experiment:
        """Return an arm by its name. Raises ToolRefused, which lists the arms, if there is none."""
        found = self.store.find_experiment(self.study_id, name)
        if found is None:
            names = ", ".join(item.name for item in self.store.list_experiments(self.study_id)) or "none yet"
            raise ToolRefused(f"there is no arm {name!r}; there are: {names}")
        return found

    def runs(self, arm: Experiment) -> list[Run]:
        """Return the runs of an arm by rung, seed and attempt."""
        return sorted(self.store.list_runs(experiment_id=arm.id), key=lambda run: (run.rung, run.seed, run.attempt))

    def open_splits(self) -> frozenset[str]:
        """Return the splits of which a planner may see what was measured."""
        return frozenset({self.charter().search_split, "train"})


def study_tool(
    name: str, description: str
) -> Callable[[Callable[[ToolSources, Any], str]], Callable[[ToolSources], PlannerTool]]:
    """Make a tool of a study's sources out of a function of these and of the arguments that its annotation names."""

    def make(call: Callable[[ToolSources, Any], str]) -> Callable[[ToolSources], PlannerTool]:
        arguments = get_type_hints(call)["arguments"]
        return lambda sources: PlannerTool(name, description, arguments, partial(call, sources))

    return make
