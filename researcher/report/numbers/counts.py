"""The ends of a study's runs, and the only place where they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from experiments_db import Experiment, Run, RunStatus
from researcher.judge import Runs
from researcher.record.failure_reason import in_one_line
from researcher.record.runs import Trial, TrialState


class RunEnd(StrEnum):
    """The way in which a run ended; a run is one arm with one seed, however often it was trained.

    A run counts if it finished, if it ended early and is scored with what it had learned, or if it failed by its own
    doing without a score; the charter sets the value of the last kind. A run that the system or the budget ended has no
    score. A run has failed if it ended by its own doing, early or without a score.
    """

    FINISHED = "finished"
    EARLY = "ended early"
    FAILED = "failed without a score"
    MISSING = "no score"
    BUDGET = "stopped by the budget"
    OPEN = "not ended"


COUNTING = frozenset({RunEnd.FINISHED, RunEnd.EARLY, RunEnd.FAILED})
"""The ends of runs that have a value in the means."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The end of one run.

    `failure` says how it failed by its own doing; empty if it did not. `reason` is why it ended early or has no score.
    `retries` are the reasons of earlier trainings that the system broke.
    """

    arm: str
    seed: int
    end: RunEnd
    failure: str = ""
    reason: str = ""
    retries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The counts of an arm's or a study's runs that were begun."""

    outcomes: tuple[RunOutcome, ...] = ()

    @property
    def begun(self) -> int:
        return len(self.outcomes)

    @property
    def seeds(self) -> int:
        return len({item.seed for item in self.outcomes})

    @property
    def counting(self) -> int:
        """The number of runs that have a value in the means."""
        return sum(item.end in COUNTING for item in self.outcomes)

    @property
    def failures(self) -> Mapping[str, int]:
        """The number of runs that failed by their own doing, by kind."""
        return Counter(item.failure for item in self.outcomes if item.failure)

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def failed_without_score(self) -> Mapping[str, int]:
        return Counter(item.failure for item in self.outcomes if item.end is RunEnd.FAILED)

    @property
    def early(self) -> Mapping[str, int]:
        """The number of runs that ended early and are scored, by kind."""
        return Counter(item.reason for item in self.outcomes if item.end is RunEnd.EARLY)

    @property
    def without_score(self) -> tuple[RunOutcome, ...]:
        """The runs that the system or the budget ended: the missing seeds."""
        return tuple(item for item in self.outcomes if item.end in (RunEnd.MISSING, RunEnd.BUDGET))

    @property
    def retried(self) -> tuple[RunOutcome, ...]:
        return tuple(item for item in self.outcomes if item.retries)

    @property
    def finished(self) -> int:
        return self.ended(RunEnd.FINISHED)

    def ended(self, end: RunEnd) -> int:
        return sum(item.end is end for item in self.outcomes)


def list_outcomes(experiment: Experiment, runs: Iterable[Run], scored: Runs) -> tuple[RunOutcome, ...]:
    """Return the outcome of each seed of an arm that was begun, by seed.

    `scored` has the values of the runs that count.
    """
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        if run.status is not RunStatus.PLANNED or run.server_url:
            by_seed.setdefault(run.seed, []).append(run)
    return tuple(
        _outcome_of(Trial(experiment, seed, tuple(sorted(tried, key=lambda run: run.attempt))), scored)
        for seed, tried in sorted(by_seed.items())
    )


def _outcome_of(trial: Trial, scored: Runs) -> RunOutcome:
    arm, seed = trial.experiment.name, trial.seed
    run = scored.get(seed)
    if run is not None and trial.finished is not None:
        kind = str((trial.finished.diagnosis or {}).get("kind", ""))
        end = RunEnd.EARLY if kind else RunEnd.FINISHED
        return RunOutcome(arm, seed, end, run.failure, kind, run.retries)
    if run is not None:
        return RunOutcome(arm, seed, RunEnd.FAILED, run.failure, run.failure, run.retries)
    if trial.budget_stop:
        return RunOutcome(arm, seed, RunEnd.BUDGET, reason=in_one_line(trial.budget_stop))
    if trial.state is TrialState.GIVEN_UP:
        return RunOutcome(arm, seed, RunEnd.MISSING, reason=in_one_line(trial.failure))
    return RunOutcome(arm, seed, RunEnd.OPEN)
