"""The trials of programs in a running study: of an arm by the check node, and of a planner's draft by its tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments_db import Experiment, ExperimentStore, ProgramTrial
from researcher.errors import EnvironmentBroken, ResearchError, ServerProblem
from researcher.execution.arm_scope import find_parts_outside
from researcher.execution.background import BackgroundTasks
from researcher.execution.early_stopping import boot_timeout_s
from researcher.execution.environments import StudyEnvironments, trained_on
from researcher.execution.preflight import check_program, find_style_warnings
from researcher.plan import ArmProgram, ManipulationCheck, ProgramProblem
from researcher.planner.language_model.arms import find_baseline
from researcher.planner.tools.base import ToolRefused
from researcher.planner.tools.drafts import MAX_ATTEMPTS, describe_trial
from researcher.planner.tools.sources import Propose, ToolSources
from researcher.program_trials.trial import TrialRequest, TrialResult, digest_code, find_problems, run_trial
from researcher.record.log import StudyLog
from researcher.record.runs import PROJECT, plain_name
from researcher.servers.server_pool import ServerPool, Slot, is_outage
from swarm.errors import EngineFailure, EnvironmentFailure, EnvironmentInvalid, ProgramFailure, SwarmError
from swarm.sandbox import Sandbox

ARM_ATTEMPTS = 8
WAIT_S = 30.0
"""The time between two looks for a server; it ends as soon as one answers."""
SLOW_ATTEMPT_S = 30.0
"""Seconds of a trial for each of its attempts from which on the study warns: training will make thousands of them."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """The setting of a trial: a job, whose base weights answer, and the reference of an environment."""

    job: Mapping[str, Any]
    environment: str


@dataclass(frozen=True, slots=True)
class ProgramTrials:
    """The trials of one study. `home` is its folder."""

    store: ExperimentStore
    log: StudyLog
    pool: ServerPool
    background: BackgroundTasks
    environments: StudyEnvironments
    sandbox: Sandbox | None
    home: Path

    def check_arm(
        self, slot: Slot, experiment: Experiment, program: ArmProgram, check: ManipulationCheck | None
    ) -> tuple[ProgramProblem, ...]:
        """Return the problems that a trial of an arm's program shows, on a slot that the caller has taken.

        A program that was tried with the same model and the same check is not tried again. Raises EnvironmentBroken,
        ServerProblem and SandboxUnavailable.
        """
        trial = self._find(experiment, program.code)
        if trial is None:
            try:
                base = _Tried(experiment.job, trained_on(experiment, self.log.charter()))
                result = self._run(slot, base, program, ARM_ATTEMPTS, check)
            except (ProgramFailure, EnvironmentInvalid, EngineFailure) as error:
                return (ProgramProblem("trial", f"it cannot be tried with the model of its job: {error.message}"),)
            trial = result.store_in(self.store, self.log.study_id, program.code, experiment_id=experiment.id)
            self._note(experiment.name, trial)
            for named in _limits_in_words(result):
                self.log.warn("program.limits", f"{experiment.name}: {named}.")
        problems = find_problems(trial, program.code, check)
        if not problems:
            return ()
        first, *others = problems
        shown = f"{first.message}\n{describe_trial(trial, is_marked=False)}"
        return (ProgramProblem(first.stage, shown), *others)

    def try_draft(self, code: str, attempts: int, check: ManipulationCheck | None) -> str:
        """Return what a few attempts of a draft show, as text for a planner.

        Raises ToolRefused if it cannot be tried.
        """
        program = ArmProgram("draft", code, trusted=False)
        base = self._base()
        problems = check_program(
            program, base.job, workdir=self.home, sandbox=self.sandbox, preflight_url=None, environment=""
        )
        baseline = next((item for item in self.store.list_experiments(self.log.study_id) if item.is_baseline), None)
        if not problems and baseline is not None and baseline.program_code:
            problems = find_parts_outside(code, baseline.program_code, self.log.charter().asks.scope)
        if problems:
            return "It is not tried, because it has problems:\n" + "\n".join(
                f"- {each.stage}: {each.message}" for each in problems
            )
        slot = self._await_slot()
        if slot is None:
            raise ToolRefused("all servers of the study have runs: try it once one is free")
        try:
            result = self._run(slot, base, program, min(attempts, MAX_ATTEMPTS), check)
        except (ProgramFailure, EnvironmentInvalid, EngineFailure, ResearchError) as error:
            if isinstance(error, ServerProblem):
                self.pool.report_outage(slot, error)
            raise ToolRefused(f"it cannot be tried: {error}") from error
        finally:
            self.pool.give_back(slot)
        warned = [f"style, a warning: {each.message}" for each in find_style_warnings(code)]
        shown = describe_trial(result.store_in(self.store, self.log.study_id, code, experiment_id=None))
        return "\n".join([*warned, *_limits_in_words(result), shown])

    def tool_sources(self, *, notes: str | None, propose: Propose | None = None) -> ToolSources:
        """Return what the tools of this study's planner read from; `notes` is the setting of that name."""
        return ToolSources(
            store=self.store,
            study_id=self.log.study_id,
            open_environment=self.environments.open,
            notes=None if notes is None else Path(notes),
            try_program=self.try_draft,
            propose=propose,
        )

    def _run(
        self, slot: Slot, base: _Tried, program: ArmProgram, attempts: int, check: ManipulationCheck | None
    ) -> TrialResult:
        """Run a trial on a slot. Raises EnvironmentBroken and ServerProblem, and the errors of a program."""
        assert slot.url is not None, "a slot that was taken has a server"
        charter = self.log.charter()
        name = f"{self.log.study_id}/{plain_name(program.arm)}/trial"
        request = TrialRequest(
            code=program.code,
            job={**base.job, "project_name": PROJECT, "experiment_name": name, "seed": 0},
            environment=self.environments.open(base.environment),
            folder=self.home / "trials" / digest_code(program.code)[:16],
            sandbox=None if program.trusted else self.sandbox,
            attempts=attempts,
            check=check,
            attempt_calls=charter.attempt_calls,
            attempt_tokens=charter.attempt_tokens,
            boot_timeout_s=boot_timeout_s(base.job),
        )
        try:
            with self.pool.connect(slot.url) as client:
                return run_trial(client, request, self.background.check)
        except EnvironmentFailure as error:
            raise EnvironmentBroken(error.message) from error
        except SwarmError as error:
            if is_outage(error):
                raise ServerProblem(f"the server at {slot.url} went away in a trial: {error.message}") from error
            raise

    def _find(self, experiment: Experiment, code: str) -> ProgramTrial | None:
        """Return the trial of a program with the model and the check of an arm, if there is one."""
        arms = {each.id: each for each in self.store.list_experiments(self.log.study_id)}
        for trial in reversed(self.store.list_program_trials(self.log.study_id)):
            arm = arms.get(trial.experiment_id or "")
            if arm is not None and trial.code_digest == digest_code(code) and _is_alike(arm, experiment):
                return trial
        return None

    def _base(self) -> _Tried:
        """Return what a draft is tried with, as the charter has the baseline. Raises ToolRefused before the charter."""
        if self.store.find_charter(self.log.study_id) is None:
            raise ToolRefused("the study has no charter yet: answer the question of its frame, then try the program")
        charter = self.log.charter()
        baseline = find_baseline(charter)
        return _Tried(baseline.job, baseline.environment or charter.environment)

    def _await_slot(self) -> Slot | None:
        """Wait until a server answers, and return a free slot; None if all servers that answer have runs."""
        while (slot := self.pool.take()) is None and not self.pool.is_any_answering:
            self.background.wait(WAIT_S)
            self.background.check()
        return slot

    def _note(self, name: str, trial: ProgramTrial) -> None:
        per_attempt = trial.seconds / max(1, trial.attempts)
        self.log.note(
            "program.tried",
            f"{name}: {trial.attempts} attempts with the base weights took {trial.seconds:.1f} s; "
            f"{trial.broken} were broken.",
        )
        if per_attempt > SLOW_ATTEMPT_S:
            self.log.warn("program.slow", f"{name}: an attempt takes {per_attempt:.0f} s; training makes many of them.")


def _limits_in_words(result: TrialResult) -> list[str]:
    """Return what is to be known of the limits that a program puts on the model's replies."""
    return [f"its code limits the replies by the task: {', '.join(result.limits)}"] if result.limits else []


def _is_alike(arm: Experiment, other: Experiment) -> bool:
    """Return whether a trial of one arm says what a trial of the other would."""
    return (arm.job.get("model"), arm.manipulation, arm.train_environment) == (
        other.job.get("model"),
        other.manipulation,
        other.train_environment,
    )
