"""The verification of a study: its results against its runs, and its record against the one at its end.

Place in the flow: the command `researcher verify` calls `verify_study` on a store that is open for reading. Nothing is
changed. Each kind of record has its check in this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from experiments_db import ExperimentStore
from researcher.errors import StudyNotFound
from researcher.record.log import charter_from_json
from researcher.verification.file_checks import (
    check_checkpoints,
    check_environments,
    check_files,
    check_jobs,
    check_programs,
)
from researcher.verification.record import (
    check_charter,
    check_decisions,
    check_plans,
    check_rows,
    check_runs,
    check_test_split,
)
from researcher.verification.report_check import check_report
from researcher.verification.result import RecordCheck, Verification
from researcher.verification.score_checks import check_analyses, check_scores


def verify_study(store: ExperimentStore, study_id: str) -> Verification:
    """Carry out all checks.

    Raises StudyNotFound for a study without a charter, RecordNotFound for no study.
    """
    study = store.get_study(study_id)
    stored = store.find_charter(study_id)
    if stored is None:
        raise StudyNotFound(f"study {study_id} has no charter yet, so there is nothing to verify")
    charter = charter_from_json(stored.document)
    checks: dict[str, Callable[[], Iterable[RecordCheck]]] = {
        "rows": lambda: check_rows(store, study),
        "charter": lambda: [check_charter(stored)],
        "planned arms": lambda: [check_plans(store, study_id)],
        "runs": lambda: [check_runs(store, study_id, stored)],
        "programs": lambda: [check_programs(store, study_id)],
        "jobs": lambda: [check_jobs(store, study_id)],
        "files": lambda: [check_files(store, study_id)],
        "checkpoints": lambda: [check_checkpoints(store, study_id)],
        "environments": lambda: check_environments(store, study_id, charter),
        "scores": lambda: [check_scores(store, study_id)],
        "analyses": lambda: check_analyses(store, study_id, charter),
        "decisions": lambda: [check_decisions(store, study_id)],
        "test split": lambda: [check_test_split(store, study_id, stored)],
        "report": lambda: [check_report(store, study_id)],
    }
    found = tuple(result for kind, run in checks.items() for result in _carry_out(kind, run))
    ended = store.find_digest(study_id)
    return Verification(study_id, None if ended is None else ended.sha256, found)


def _carry_out(kind: str, check: Callable[[], Iterable[RecordCheck]]) -> Iterator[RecordCheck]:
    """Run a check; a record that it cannot read is a mismatch, and the other checks go on."""
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001 - the boundary: what cannot be recomputed is a result
        reason = " ".join(str(error).split())[:300]
        yield RecordCheck(kind, 1, (f"{kind} cannot be recomputed: {type(error).__name__}: {reason}",))
