"""The limits of runs, widened by the healthy runs of a study's own baseline.

Place in the flow: `launch` asks for them whenever a run begins. execution/early_stopping.py explains them.
"""

from __future__ import annotations

from experiments_db import ExperimentStore, Run, RunStatus
from researcher.execution.early_stopping import StoppingLimits
from swarm.guard import WATCHED


class LearnedLimits:
    """The limits of one study, computed from the rows of the database.

    A finished run never changes, so it is read once. Only the graph's thread uses this.
    """

    def __init__(self, store: ExperimentStore, study_id: str, limits: StoppingLimits) -> None:
        self._store = store
        self._study_id = study_id
        self._limits = limits
        self._revision = 0
        self._baseline: set[str] = set()
        self._learned: set[str] = set()

    def now(self) -> StoppingLimits:
        """Return the limits, widened by the finished runs of the baseline so far.

        A run that was ended early teaches nothing.
        """
        changes = self._store.list_changes(self._study_id, after=self._revision)
        self._revision = changes.revision
        self._baseline.update(arm.id for arm in changes.experiments if arm.is_baseline)
        for run in changes.runs:
            is_healthy = run.status is RunStatus.FINISHED and run.diagnosis is None
            if is_healthy and run.experiment_id in self._baseline and run.id not in self._learned:
                self._learn(run)
        return self._limits

    def _learn(self, run: Run) -> None:
        self._learned.add(run.id)
        steps: dict[int, dict[str, float | None]] = {}
        for point in self._store.list_metrics([run.id], names=WATCHED):
            steps.setdefault(point.step, {})[point.name] = point.value
        self._limits = self._limits.learned_from([[steps[step] for step in sorted(steps)]])
