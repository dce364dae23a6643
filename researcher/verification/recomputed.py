"""A study's store whose scores are recomputed from raw rewards, as the study was after one iteration.

Place in the flow: the loop's own analyze node and the report read from it instead of the real store. It keeps what
analyze writes, so that this can be compared with what is stored. It refuses any other write, because `verify` opens the
database for reading.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from experiments_db import (
    DetailedEvaluation,
    Event,
    Experiment,
    ExperimentStore,
    Finding,
    IterationDocument,
    JsonObject,
    NotebookEntry,
    NoteKind,
    Outcome,
    Run,
    Severity,
    StoredHypothesis,
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a study: after which iteration, and when its analysis was stored."""

    iteration: int
    at: float


@dataclass(slots=True)
class Written:
    """The results that analyze would have stored.

    Findings are keyed by iteration and the arm's id. A hypothesis has its verdict and the reason.
    """

    analysis: JsonObject | None = None
    findings: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict[tuple[int, str], dict[str, Any]])
    hypotheses: dict[str, tuple[Outcome, str]] = field(default_factory=dict[str, tuple[Outcome, str]])


class RecomputedStore(ExperimentStore):
    """A store with recomputed scores, made by `ExperimentStore.seen_as`.

    A `moment` of None stands for the present.
    """

    moment: Moment | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.written = Written()

    def list_evaluations(self, **conditions: Any) -> list[DetailedEvaluation]:
        found = super().list_evaluations(**conditions)
        return [recompute(item) for item in found if self.moment is None or item.created_at <= self.moment.at]

    def list_runs(self, **conditions: Any) -> list[Run]:
        found = super().list_runs(**conditions)
        if self.moment is None:
            return found
        return [run for run in found if run.finished_at is not None and run.finished_at <= self.moment.at]

    def list_experiments(self, study_id: str, **conditions: Any) -> list[Experiment]:
        return [item for item in super().list_experiments(study_id, **conditions) if self._is_by_then(item.iteration)]

    def list_hypotheses(self, study_id: str) -> list[StoredHypothesis]:
        return [item for item in super().list_hypotheses(study_id) if self._is_by_then(item.iteration)]

    def list_plans(self, study_id: str) -> list[IterationDocument]:
        return [item for item in super().list_plans(study_id) if self._is_by_then(item.iteration)]

    def list_analyses(self, study_id: str) -> list[IterationDocument]:
        found = super().list_analyses(study_id)
        return [item for item in found if self.moment is None or item.iteration < self.moment.iteration]

    def list_findings(self, **conditions: Any) -> list[Finding]:
        found = super().list_findings(**conditions)
        return [item for item in found if self.moment is None or item.iteration < self.moment.iteration]

    def record_finding(self, study_id: str, **values: Any) -> Finding:
        self.written.findings[values["iteration"], values["experiment_id"]] = values
        known = {"hypothesis_id": None, "details": {}, "recipe": {}, **values, "run_ids": tuple(values["run_ids"])}
        return Finding(id="", study_id=study_id, created_at=0.0, **known)

    def record_analysis(self, study_id: str, iteration: int, document: JsonObject) -> None:
        self.written.analysis = document

    def judge_hypothesis(self, hypothesis_id: str, verdict: Outcome, reason: str) -> StoredHypothesis:
        self.written.hypotheses[hypothesis_id] = (verdict, reason)
        found = next(item for item in self._hypotheses() if item.id == hypothesis_id)
        return replace(found, verdict=verdict, verdict_reason=reason)

    def write_note(
        self, study_id: str, key: str, kind: NoteKind, text: str, *, iteration: int, author: str
    ) -> NotebookEntry:
        # The notebook only repeats what the analysis says, which is compared itself.
        return NotebookEntry(0, study_id, key, iteration, kind, author, text, 0.0)

    def append_event(self, study_id: str, kind: str, message: str, **values: Any) -> Event:
        severity = values.get("severity", Severity.INFO)
        return Event(0, study_id, values.get("run_id"), severity, kind, message, values.get("payload") or {}, 0.0)

    def _hypotheses(self) -> Collection[StoredHypothesis]:
        return [
            item for study in self.list_studies() for item in super(RecomputedStore, self).list_hypotheses(study.id)
        ]

    def _is_by_then(self, iteration: int) -> bool:
        return self.moment is None or iteration <= self.moment.iteration


def recompute(evaluation: DetailedEvaluation) -> DetailedEvaluation:
    """Return the score with mean, error, successes and episodes from its rewards."""
    rewards: list[float] = evaluation.details["rewards"]
    by_task: dict[str, list[float]] = {}
    for task, reward in zip(evaluation.details["tasks"], rewards, strict=True):
        by_task.setdefault(task, []).append(reward)
    means = [statistics.fmean(values) for values in by_task.values()]
    return replace(
        evaluation,
        mean=statistics.fmean(rewards),
        # The client computes it like this too, because attempts at one task are not independent.
        stderr=statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0,
        episodes=len(rewards),
        successes=sum(evaluation.details["solved"]),
    )
