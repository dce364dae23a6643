"""The checks of every number: scores from raw rewards, then analyses, findings and verdicts from those scores.

The analyze node of the loop does its work again on a store with recomputed scores, once for each iteration, with the
runs that had ended by then. The checks compare its results with the stored ones, so they stay right if the judge
changes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments_db import (
    DetailedEvaluation,
    Event,
    Experiment,
    ExperimentStore,
    Finding,
    FindingKind,
    IterationDocument,
    JsonObject,
    NotebookEntry,
    NoteKind,
    Outcome,
    Run,
    Severity,
    StoredHypothesis,
)
from researcher.charter import Charter
from researcher.execution.background import BackgroundTasks
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.analyze import analyze
from researcher.memory.closing import list_closing
from researcher.planner.rules import RulesPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.servers.server import LeaseHolder
from researcher.servers.server_pool import ServerPool
from researcher.study.ending import is_over
from researcher.verification.record import StudyRecord
from researcher.verification.result import RecordCheck, differences

NOT_COMPARED = frozenset({"id", "study_id", "created_at"})
TOLD_LATER = NOT_COMPARED | {"retracted_at", "retraction", "retracted_by"}


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


def check_scores(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check that mean, error and successes of each score follow from the rewards of its episodes."""
    check = RecordCheck("scores", len(record.evaluations))
    for item in record.evaluations:
        where = f"{item.run_id}: {item.phase} score"
        episodes = [len(item.details.get(name, ())) for name in ("rewards", "tasks", "solved")]
        if not episodes[0] or len(set(episodes)) > 1:
            check.mismatches.append(f"{where}: its lists of episodes have the lengths {', '.join(map(str, episodes))}")
            continue
        found = recompute(item)
        for name in ("episodes", "successes", "mean", "stderr"):
            check.mismatches += differences(getattr(item, name), getattr(found, name), f"{where}: {name}")
    yield check


def check_analyses(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check that the conclusions of each iteration follow from its runs."""
    store, study_id = record.store, record.id
    results = [(item, _analyze_again(store, study_id, record.charter, item)) for item in store.list_analyses(study_id)]
    yield _compare_analyses(results)
    yield _compare_findings(store.list_findings(study_id=study_id), results)
    if is_over(store, store.get_study(study_id)):
        yield _compare_closing(store, study_id)
    if results:
        yield _compare_hypotheses(store.list_hypotheses(study_id), [written for _, written in results])


def _analyze_again(store: ExperimentStore, study_id: str, charter: Charter, stored: IterationDocument) -> Written:
    view = store.seen_as(RecomputedStore)
    view.moment = Moment(stored.iteration, stored.created_at)
    background = BackgroundTasks(1)
    nowhere = Path()
    deps = Deps(
        log=StudyLog(view, study_id),
        planner=RulesPlanner(),
        pool=ServerPool(home=nowhere, holder=LeaseHolder(study_id)),
        background=background,
        ledger=BudgetLedger(view, study_id, charter.budget),
        home=nowhere,
    )
    try:
        analyze(deps, {**first_state(study_id), "iteration": stored.iteration})
    finally:
        background.join()
    return view.written


def _compare_analyses(results: list[tuple[IterationDocument, Written]]) -> RecordCheck:
    mismatches: list[str] = []
    for stored, written in results:
        mismatches += differences(stored.document, written.analysis, f"analysis {stored.iteration + 1}")
    return RecordCheck("analyses", len(results), mismatches)


def _compare_findings(findings: list[Finding], results: list[tuple[IterationDocument, Written]]) -> RecordCheck:
    mismatches: list[str] = []
    # A later analysis replaces the findings of an earlier one about a disqualified arm.
    newest = {key: values for _, written in results for key, values in written.findings.items()}
    for finding in findings:
        again = newest.get((finding.iteration, finding.experiment_id or ""))
        if again is None:
            mismatches.append(f"{finding.id} compares what no analysis compared")
        else:
            stored = {name: getattr(finding, name) for name in again if name not in NOT_COMPARED}
            mismatches += differences(_plain(stored), _plain(again), finding.id)
    stored_keys = {(finding.iteration, finding.experiment_id) for finding in findings}
    lost = [key for key in newest if key not in stored_keys]
    mismatches += [f"analysis {number + 1}: the finding on {arm} is not on record" for number, arm in lost]
    return RecordCheck("findings", len(findings), mismatches)


def _compare_closing(store: ExperimentStore, study_id: str) -> RecordCheck:
    """Compare what the study left beside its comparisons with what follows from its record."""
    kinds = [kind for kind in FindingKind if kind is not FindingKind.COMPARISON]
    stored = {item.key: item for item in store.list_findings(study_id=study_id, kinds=kinds)}
    again = {item.key: item for item in list_closing(store.seen_as(RecomputedStore), study_id)}
    mismatches = [f"{key} is not on record" for key in again.keys() - stored.keys()]
    mismatches += [f"{item.id} follows from nothing on record" for key, item in stored.items() if key not in again]
    for key in sorted(stored.keys() & again.keys()):
        of_record, found = (_told(each[key]) for each in (stored, again))
        mismatches += differences(of_record, found, stored[key].id)
    return RecordCheck("other findings", len(stored), mismatches)


def _told(finding: Finding) -> dict[str, Any]:
    """Return what a finding says, without what a retraction adds."""
    return _plain({name: value for name, value in asdict(finding).items() if name not in TOLD_LATER})


def _compare_hypotheses(stored: Sequence[StoredHypothesis], results: Sequence[Written]) -> RecordCheck:
    """Compare the verdicts of hypotheses.

    Each analysis judges its own plan, and revokes verdicts on disqualified arms.
    """
    judged = {name: verdict for written in results for name, verdict in written.hypotheses.items()}
    mismatches: list[str] = []
    for item in stored:
        if (again := judged.get(item.id)) is None:
            if item.verdict is not None:
                mismatches.append(f"hypothesis {item.key} has the verdict {item.verdict}, which no run gives it")
            continue
        mismatches += differences(item.verdict, again[0], f"hypothesis {item.key}: verdict")
        mismatches += differences(item.verdict_reason, again[1], f"hypothesis {item.key}: reason")
    return RecordCheck("hypotheses", len(stored), mismatches)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values as in JSON: no NaN, no tuples."""
    return {
        name: None
        if isinstance(value, float) and not math.isfinite(value)
        else list(value)
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }
