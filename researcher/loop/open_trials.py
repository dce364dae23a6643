"""The open trials of a plan, at a cost that does not grow with the study: each look reads only new rows.

Place in the flow: `launch` asks at every round of the loop. Every answer follows from the rows of the database and
equals that of `list_trials`, but unchanged rows are not read again. Of a trial that is over only this fact is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments_db import Experiment, ExperimentStatus, ExperimentStore, Run
from researcher.plan import Plan
from researcher.record.runs import Trial, TrialState

TrialKey = tuple[str, int, int]
"""The id of an arm, a seed, and a rung."""

_OVER = (TrialState.FINISHED, TrialState.GIVEN_UP)


class OpenTrials:
    """The open trials of one study. Only the graph's thread uses this."""

    def __init__(self, store: ExperimentStore, study_id: str) -> None:
        self._store = store
        self._study_id = study_id
        self._revision = 0
        self._arms: dict[str, Experiment] = {}
        self._runs: dict[TrialKey, dict[str, Run]] = {}
        self._over: set[TrialKey] = set()
        self._plan: tuple[object, ...] | None = None
        self._unfinished: list[tuple[Experiment, int, int]] = []

    def of_plan(self, plan: Plan) -> Iterator[Trial]:
        """Return the open trials in the order of `list_trials`, as the database has them now.

        Rows written meanwhile count from the next call on.
        """
        self._refresh()
        wanted = (plan.iteration, plan.seeds, tuple((arm.name, plan.rungs.get(arm.name, 0)) for arm in plan.arms))
        if wanted != self._plan:
            self._plan = wanted
            arms = [self._arms[arm.name] for arm in plan.arms if arm.name in self._arms]
            ready = [arm for arm in arms if arm.status is ExperimentStatus.READY]
            triples = ((arm, seed, plan.rungs.get(arm.name, 0)) for seed in plan.seeds for arm in ready)
            self._unfinished = [each for each in triples if (each[0].id, *each[1:]) not in self._over]
        return self._open()

    def _open(self) -> Iterator[Trial]:
        for arm, seed, rung in self._unfinished:
            trial = self._trial(arm, seed, rung)
            if trial.state is TrialState.OPEN:
                yield trial

    def _trial(self, arm: Experiment, seed: int, rung: int) -> Trial:
        runs = self._runs.get((arm.id, seed, rung), {}).values()
        return Trial(arm, seed, tuple(sorted(runs, key=lambda run: run.attempt)), rung)

    def _refresh(self) -> None:
        changes = self._store.list_changes(self._study_id, after=self._revision)
        self._revision = changes.revision
        for arm in changes.experiments:
            self._arms[arm.name] = arm
        touched: set[TrialKey] = set()
        for run in changes.runs:
            key = (run.experiment_id, run.seed, run.rung)
            touched.add(key)
            self._runs.setdefault(key, {})[run.id] = run
        names = {arm.id: arm for arm in self._arms.values()}
        reopened = [self._settle(names[key[0]], *key[1:]) for key in touched]
        if changes.experiments or any(reopened):
            self._plan = None
        elif touched & self._over:
            self._unfinished = [each for each in self._unfinished if (each[0].id, *each[1:]) not in self._over]

    def _settle(self, arm: Experiment, seed: int, rung: int) -> bool:
        """Sort a trial whose runs have changed; return whether it was over and is open again."""
        key = (arm.id, seed, rung)
        was_over = key in self._over
        if was_over:
            # The runs of a trial that is over are not kept, so they are read again.
            runs = self._store.list_runs(experiment_id=arm.id, seed=seed)
            self._runs[key] = {run.id: run for run in runs if run.rung == rung}
        if self._trial(arm, seed, rung).state in _OVER:
            self._over.add(key)
            del self._runs[key]
            return False
        self._over.discard(key)
        return was_over
