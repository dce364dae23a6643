"""The contents of one study, kept up to date by reading only the rows that are new.

A long study has thousands of arms, runs and scores, so these are read only when they change. The rest is small and read
each time.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from experiments_db import Experiment, RunMean, RunSummary, lease_name, read_search_arms
from ui.contents import StudyContents

if TYPE_CHECKING:
    from experiments_db import ExperimentStore


class StudyReader:
    """A reader of one study, shared by the browser sessions of an explorer."""

    def __init__(self, store: ExperimentStore, study_id: str) -> None:
        self._store = store
        self._study_id = study_id
        self._lock = Lock()
        self._contents: StudyContents | None = None
        self._revision = 0
        self._arms: dict[str, Experiment] = {}
        self._runs: dict[str, RunSummary] = {}
        self._means: dict[str, list[RunMean]] = {}

    def read(self) -> StudyContents:
        """Return the study as it stands. Raises RecordNotFound for an unknown study, and other StoreErrors."""
        store, study_id = self._store, self._study_id
        # The version comes first: what is written meanwhile is then read again, never missed.
        version, lease = store.read_study_version(study_id), store.find_lease(lease_name(study_id))
        with self._lock:
            known = self._contents
        if known is not None and (known.version, known.lease) == (version, lease):
            return known
        study = store.get_study(study_id)
        with self._lock:
            self._take_in()
            experiments, runs = tuple(self._arms.values()), tuple(self._runs.values())
            evaluations = tuple(item for means in self._means.values() for item in means)
        charter = store.find_charter(study_id)
        plans = store.list_plans(study_id)
        exploring = {plan.iteration for plan in plans if plan.document.get("stage") == "explore"}
        analyses = [item for item in store.list_analyses(study_id) if item.iteration not in exploring]
        is_search = charter is not None and charter.document.get("search") is not None
        confirmed = [plan.document["primary"][0] for plan in plans if plan.document.get("primary")]
        is_checked = any(arm.manipulation is not None for arm in experiments)
        contents = StudyContents(
            study=study,
            charter=charter,
            hypotheses=tuple(store.list_hypotheses(study_id)),
            experiments=experiments,
            runs=runs,
            evaluations=evaluations,
            findings=tuple(store.list_findings(study_id=study_id)),
            decisions=tuple(store.list_decisions(study_id)),
            analysis=analyses[-1].document if analyses else {},
            used=store.sum_budget(study_id),
            usage=store.sum_llm_usage(study_id),
            version=version,
            lease=lease,
            search_arms=read_search_arms(store, study_id) if is_search or is_checked else (),
            confirmed=confirmed[-1] if confirmed else "",
            questions=tuple(store.list_questions(study_id)),
        )
        with self._lock:
            self._contents = contents
        return contents

    def _take_in(self) -> None:
        changes = self._store.list_run_changes(self._study_id, after=self._revision)
        self._arms.update((arm.id, arm) for arm in changes.experiments)
        self._runs.update((run.id, run) for run in changes.runs)
        self._means.update((run.id, []) for run in changes.runs)
        for item in changes.means:
            self._means.setdefault(item.run_id, []).append(item)
        self._revision = changes.revision
