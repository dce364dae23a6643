"""The verification of a study: its results against its runs, and its record against the one at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from experiments_db import ExperimentStore
from researcher.verification.record import (
    StudyRecord,
    check_charter,
    check_checkpoints,
    check_environments,
    check_files,
    check_jobs,
    check_plans,
    check_programs,
    check_rows,
    check_runs,
    check_test_split,
)
from researcher.verification.report_check import check_report
from researcher.verification.result import RecordCheck, Verification
from researcher.verification.scores import check_analyses, check_scores

CHECKS: Mapping[str, Callable[[StudyRecord], Iterable[RecordCheck]]] = MappingProxyType(
    {
        "rows": check_rows,
        "charter": check_charter,
        "planned arms": check_plans,
        "runs": check_runs,
        "programs": check_programs,
        "jobs": check_jobs,
        "files": check_files,
        "checkpoints": check_checkpoints,
        "environments": check_environments,
        "scores": check_scores,
        "analyses": check_analyses,
        "test split": check_test_split,
        "report": check_report,
    }
)


def verify_study(store: ExperimentStore, study_id: str) -> Verification:
    """Carry out all checks; the store is only read.

    Raises StudyNotFound for a study without a charter, RecordNotFound for no study.
    """
    record = StudyRecord(store, study_id)
    found = tuple(result for kind, check in CHECKS.items() for result in _carry_out(kind, check, record))
    ended = store.find_digest(study_id)
    return Verification(study_id, None if ended is None else ended.sha256, found)


def _carry_out(
    kind: str, check: Callable[[StudyRecord], Iterable[RecordCheck]], record: StudyRecord
) -> Iterator[RecordCheck]:
    """Run a check; a record that it cannot read is a mismatch, and the other checks go on."""
    try:
        yield from check(record)
    except Exception as error:  # noqa: BLE001 - the boundary: what cannot be recomputed is a result
        reason = " ".join(str(error).split())[:300]
        yield RecordCheck(kind, 1, [f"{kind} cannot be recomputed: {type(error).__name__}: {reason}"])
