"""The shared parts of one study that its nodes call, its position in the graph, and its runs in progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TypedDict

from experiments_db import Experiment, ExperimentStore
from researcher.charter import Charter, SearchRules
from researcher.evaluation.evaluator import Evaluator
from researcher.execution.background import BackgroundTasks
from researcher.execution.early_stopping import EarlyStopping, StoppingLimits, learn_limits
from researcher.execution.environments import StudyEnvironments
from researcher.execution.storage import DiskGuard
from researcher.planner.base import Planner
from researcher.program_trials.study_trials import ProgramTrials
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.record.runs import Diagnosis, engine_of, total_steps
from researcher.reviewer.build import Reviewer
from researcher.search.policies import ChooseMoves, build_policy
from researcher.servers.server_pool import ServerPool, Slot
from researcher.study.settings import KeptCheckpoints
from swarm.processes import Child
from swarm.sandbox import Sandbox


class Phase(StrEnum):
    """The work that this process does for a run in progress.

    PREPARING: boot the engine and score the base weights. TRAINING: train. ENDING: end the training before the job is
    done. TRAINED: wait to be measured. MEASURING: measure the trained weights.

    The database stores the status of a run, not its phase. A run that is taken up again is prepared or measured while
    its row already says that it trains or is evaluated. The store enforces the moves between statuses (`RUN_MOVES`), so
    no phase can cause a forbidden one.
    """

    PREPARING = "preparing"
    TRAINING = "training"
    ENDING = "ending"
    TRAINED = "trained"
    MEASURING = "measuring"


@dataclass(slots=True)
class ActiveRun:
    """A run that this process works on.

    Progress: `copied_step` is the last step whose metrics are in the database, and `copied_at` is when it was done.
    `trains_since` is when this process started the run's program, or when its server came back. Both times are in
    seconds since the epoch.

    Early end: `diagnosis` is set once the run is to end early. The run is scored or fails once its training has ended.

    Outages: `began` is when this process took up the run, and `away_since` when its server stopped answering, both in
    monotonic seconds. `was_away` is set if the server was away or restarted since the run's program began. `is_waiting`
    is set while the work waits to begin again once the server answers. `offline_since` is when its engine was
    first seen stopped since it last ran, in monotonic seconds.

    Counts: `outages` since the last progress, `incomplete` scores, and `kills` of the program since its last step.

    `dropped` tells background work that nobody waits for it any more.
    """

    run_id: str
    name: str
    experiment: Experiment
    steps: int
    slot: Slot
    early_stopping: EarlyStopping
    phase: Phase = Phase.PREPARING
    child: Child | None = None
    copied_step: int = 0
    copied_at: float = 0.0
    trains_since: float = 0.0
    diagnosis: Diagnosis | None = None
    began: float = field(default_factory=time.monotonic)
    dropped: threading.Event = field(default_factory=threading.Event)
    away_since: float | None = None
    was_away: bool = False
    server_started_at: float | None = None
    is_waiting: bool = False
    offline_since: float | None = None
    outages: int = 0
    kills: int = 0
    incomplete: int = 0

    @property
    def last_copied(self) -> int:
        """The step before the last one in the database.

        Asked for the steps after it, a server also tells when the last copied step was done.
        """
        return max(0, self.copied_step - 1)

    def is_worth_waiting_s(self, least_s: float) -> float:
        """Return for how many seconds to wait for a server before the run begins anew elsewhere.

        A wait as long as the work that would be lost costs at most twice as much as the best choice in hindsight.
        """
        return max(least_s, time.monotonic() - self.began if self.away_since is None else self.away_since - self.began)


class ActiveRuns:
    """The runs in progress, by id. Only the graph's thread uses it."""

    def __init__(self) -> None:
        self._runs: dict[str, ActiveRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[ActiveRun]:
        return iter(tuple(self._runs.values()))

    def add(self, run: ActiveRun) -> None:
        self._runs[run.run_id] = run

    def remove(self, run: ActiveRun) -> None:
        self._runs.pop(run.run_id, None)

    def in_phase(self, phase: Phase) -> list[ActiveRun]:
        return [run for run in self._runs.values() if run.phase is phase]


@dataclass(frozen=True, slots=True)
class Deps:
    """The parts of one study.

    `home` is its folder. `evaluator` is a method because it needs the charter. `disk` is None if free space is not
    watched. `is_afresh` is set if a question that was asked before is to be studied anew, and `goes_on_from_zero` if a
    model that solves nothing is to be trained all the same. `reviewer` looks at the arm
    that leads before it is confirmed; None if nobody does. `build_policy` returns the choice of the moves of a search.
    """

    log: StudyLog
    planner: Planner
    pool: ServerPool
    ledger: BudgetLedger
    home: Path
    background: BackgroundTasks = field(default_factory=lambda: BackgroundTasks(1))
    sandbox: Sandbox | None = None
    environments: StudyEnvironments = field(default_factory=StudyEnvironments)
    limits: StoppingLimits = field(default_factory=StoppingLimits)
    active_runs: ActiveRuns = field(default_factory=ActiveRuns)
    kept_checkpoints: KeptCheckpoints = KeptCheckpoints.BEST
    disk: DiskGuard | None = None
    is_afresh: bool = False
    goes_on_from_zero: bool = False
    reviewer: Reviewer | None = None
    build_policy: Callable[[Charter, SearchRules], ChooseMoves | None] = build_policy

    @property
    def store(self) -> ExperimentStore:
        return self.log.store

    @property
    def study_id(self) -> str:
        return self.log.study_id

    def charter(self) -> Charter:
        """Return the frozen charter with the present budget, for planning and decisions."""
        return replace(self.log.charter(), budget=self.ledger.budget)

    def evaluator(self, dropped: threading.Event | None = None) -> Evaluator:
        """Return an evaluator whose work ends early once the study is asked to stop, or once `dropped` is set."""
        return Evaluator(
            store=self.store,
            charter=self.log.charter(),
            home=self.home,
            sandbox=self.sandbox,
            environments=self.environments,
            connect=self.pool.connect,
            token_of=self.pool.token_of,
            is_stopped=lambda: self.background.stop.is_set() or (dropped is not None and dropped.is_set()),
        )

    def trials(self) -> ProgramTrials:
        """Return the trials of programs on this study's servers."""
        return ProgramTrials(
            store=self.store,
            log=self.log,
            pool=self.pool,
            background=self.background,
            environments=self.environments,
            sandbox=self.sandbox,
            home=self.home,
        )

    def early_stopping(self, experiment: Experiment) -> EarlyStopping:
        limits = learn_limits(self.store, self.study_id, self.limits)
        return EarlyStopping(limits, engine_of(experiment.job), total_steps(experiment.job))

    def arm_folder(self, experiment: Experiment) -> Path:
        return self.home / "arms" / experiment.id


class ResearchState(TypedDict):
    """The position of a study in the graph.

    `iteration` is the number of the present plan, from 0. `polls` counts rounds of monitoring. `is_budget_used_up` is
    set once the budget forbids another launch, `is_halted` once no further plan is to be made.
    """

    study_id: str
    iteration: int
    polls: int
    is_budget_used_up: bool
    is_halted: bool


def first_state(study_id: str) -> ResearchState:
    return ResearchState(study_id=study_id, iteration=0, polls=0, is_budget_used_up=False, is_halted=False)
