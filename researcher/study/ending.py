"""The ending of a study, finished or failed, with its reason in words for status and report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments_db import (
    Experiment,
    ExperimentStatus,
    ExperimentStore,
    Outcome,
    Run,
    RunStatus,
    Severity,
    Study,
    StudyStatus,
)
from researcher.phases import FINAL
from researcher.plan import Stage
from researcher.record.failure_reason import in_one_line
from researcher.record.log import BUDGET_USED_UP, StudyLog
from researcher.record.runs import BUDGET, ENVIRONMENT, OWN_DOING, SERVER_LOST
from researcher.record.seal import compare_files
from researcher.search.record import read_tree

REPORTED, WORKING = "report.written", "study.working"
ROWS_CHANGED, FILES_CHANGED = "rows.changed", "files.changed"
MOST_NAMED = 20
"""The most files that a resumed study names as changed."""

_WORDS = {
    ENVIRONMENT: "by the environment",
    SERVER_LOST: "with their server",
    BUDGET: "by the budget",
    "": "interrupted",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """The status of a study at its end, and the reason in one line."""

    status: StudyStatus
    reason: str


def judge_ending(store: ExperimentStore, study_id: str, *, is_budget_used_up: bool) -> Ending:
    """Return whether a study is finished or has failed, with the reason.

    It is finished if arms were compared, or if its only arm has a score. A search is finished too if nothing that it
    explored was worth a comparison. Without a measured final score there is no result, whatever score the charter gives
    to failed runs.
    """
    arms, runs = store.list_experiments(study_id), store.list_runs(study_id=study_id)
    scored = _scored(store, study_id, runs)
    names = {arm.id: arm.name for arm in arms}
    having = sorted({names[run.experiment_id] for run in scored})
    cause = "the budget is spent; " if is_budget_used_up else ""
    why = cause + _why_not(arms, [run for run in runs if names[run.experiment_id] not in having])
    if not scored:
        return Ending(StudyStatus.FAILED, f"no arm has a score: {why}")
    if (outcome := _end_of_exploration(store, study_id)) and not is_budget_used_up:
        return Ending(StudyStatus.FINISHED, f"{outcome}; the report is written")
    if len(arms) > 1 and not _is_anything_compared(store, study_id):
        return Ending(StudyStatus.FAILED, f"nothing could be compared: only {', '.join(having)} has scores; {why}")
    return Ending(
        StudyStatus.FINISHED,
        "the budget is spent, the report is written" if is_budget_used_up else "the report is written",
    )


def headline(study: Study) -> str:
    """Return the first sentence of the report on a study that failed; empty for any other."""
    if study.status is not StudyStatus.FAILED:
        return ""
    return f"The study failed: {(study.status_reason or 'no reason is on record').rstrip('.')}."


def is_over(store: ExperimentStore, study: Study) -> bool:
    """Return whether a study has come to its end so that nothing is left to do.

    A study that failed before its end can go on, and so can one that the budget ended.
    """
    if study.status is StudyStatus.FINISHED:
        return True
    if study.status is not StudyStatus.FAILED or is_cut_short(store, study.id):
        return False
    return _newest(store, study.id, REPORTED) > _newest(store, study.id, WORKING)


def is_cut_short(store: ExperimentStore, study_id: str) -> bool:
    """Return whether the budget ended a study before its test split was opened.

    With a raised budget such a study goes on from its checkpoints.
    """
    charter = store.find_charter(study_id)
    is_opened = charter is not None and charter.test_opened_at is not None
    return not is_opened and any(item.details.get(BUDGET_USED_UP) for item in store.list_decisions(study_id))


def reopen(store: ExperimentStore, study_id: str, folder: Path) -> Study:
    """Set a study running, and record which of its rows and files changed since it ended.

    The next digests include them. Rows and files that belong to different times are recorded too, such as a copy of
    the database beside newer files.
    """
    if (ended := store.find_digest(study_id)) is not None:
        for table, what in ended.compare(store.compute_digest(study_id)).items():
            store.append_event(study_id, ROWS_CHANGED, f"{table}: {what}", severity=Severity.WARNING)
    changed = compare_files(store, study_id, folder)
    if len(changed) > MOST_NAMED:
        changed[MOST_NAMED:] = [f"{len(changed) - MOST_NAMED} more files differ: `researcher verify` names them"]
    for what in changed:
        store.append_event(study_id, FILES_CHANGED, what, severity=Severity.WARNING)
    return store.set_study_status(study_id, StudyStatus.RUNNING)


def _newest(store: ExperimentStore, study_id: str, kind: str) -> int:
    """Return the id of the newest event of a kind; 0 without one."""
    return max((event.id for event in store.list_events(study_id, kind=kind, newest_first=True, limit=1)), default=0)


def _scored(store: ExperimentStore, study_id: str, runs: Iterable[Run]) -> list[Run]:
    measured = {item.run_id for item in store.list_evaluation_summaries(study_id=study_id) if item.phase == FINAL}
    return [run for run in runs if run.status is RunStatus.FINISHED and run.id in measured]


def _end_of_exploration(store: ExperimentStore, study_id: str) -> str:
    """Describe the end of a search that explored several arms and confirmed none. Return "" for any other study."""
    log = StudyLog(store, study_id)
    plans = log.history().plans
    charter = log.charter()
    if charter.search is None or not plans or any(plan.stage is Stage.CLAIM for plan in plans):
        return ""
    explored = read_tree(store, study_id, charter).ranked()
    return f"{len(explored)} arms were explored and none was confirmed" if len(explored) > 1 else ""


def _is_anything_compared(store: ExperimentStore, study_id: str) -> bool:
    if any(finding.effect is not None for finding in store.list_findings(study_id=study_id)):
        return True
    analyses = StudyLog(store, study_id).history().analyses
    return any(item.outcome is not Outcome.UNDECIDED for analysis in analyses for item in analysis.contrasts)


def _why_not(arms: Sequence[Experiment], runs: Sequence[Run]) -> str:
    """Return how many runs and arms have no score by cause, and the most common reason on record."""
    ended = [run for run in runs if run.status in (RunStatus.FAILED, RunStatus.STOPPED)]
    causes = Counter(_cause(run) for run in ended)
    rejected = [arm for arm in arms if arm.status is ExperimentStatus.INVALID]
    counted = [f"{number} of {len(ended)} trainings ended {cause}" for cause, number in causes.most_common()]
    if rejected:
        counted.append(f"{len(rejected)} of {len(arms)} arms were rejected by check")
    reasons = Counter(
        [run.exit_reason for run in ended if run.exit_reason] or [arm.note for arm in rejected if arm.note]
    )
    first = [f"the most common reason: {in_one_line(reason)}" for reason, _ in reasons.most_common(1)]
    return "; ".join([", ".join(counted) or "no other run was made", *first])


def _cause(run: Run) -> str:
    kind = str((run.diagnosis or {}).get("kind", ""))
    return "by their own doing" if kind in OWN_DOING else _WORDS.get(kind, "by a fault of the system")
