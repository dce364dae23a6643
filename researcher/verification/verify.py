"""The verification of a study: its results against its runs, and its record against the one at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from experiments_db import ExperimentStore
from researcher.record.seal import Progress
from researcher.verification.files import check_checkpoints, check_files, check_sealed_files
from researcher.verification.ledgers import check_ledgers
from researcher.verification.record import (
    StudyRecord,
    check_charter,
    check_environments,
    check_jobs,
    check_plans,
    check_programs,
    check_rows,
    check_runs,
    check_test_split,
)
from researcher.verification.recorded import check_recorded_trainings
from researcher.verification.report_check import check_report
from researcher.verification.result import RecordCheck, Verification
from researcher.verification.scores import check_analyses, check_scores
from researcher.verification.signature import check_signature, sign_record
from researcher.verification.ssh_signature import read_private, read_public

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
        "all files": check_sealed_files,
        "ledgers": check_ledgers,
        "recorded trainings": check_recorded_trainings,
        "environments": check_environments,
        "scores": check_scores,
        "analyses": check_analyses,
        "test split": check_test_split,
        "report": check_report,
    }
)


def verify_study(
    store: ExperimentStore,
    study_id: str,
    home: Path,
    *,
    sign: Path | None = None,
    key: Path | None = None,
    on_progress: Progress = lambda line: None,
) -> Verification:
    """Carry out all checks on the rows and on the files below this home; both are only read.

    With the private key `sign`, a record without a mismatch gets a signature. With the public key `key`, its signature
    is checked. `on_progress` gets a line for each part of a large file.

    Raises StudyNotFound for a study without a charter, RecordNotFound for no study, KeyUnusable for a key, and
    ResearchError for a study that cannot be signed because it has not ended.
    """
    signer, public = sign and read_private(sign), key and read_public(key)
    record = StudyRecord(store, study_id, home, on_progress)
    found = [result for kind, check in CHECKS.items() for result in _carry_out(kind, check, record)]
    if public is not None:
        found += check_signature(record, public)
    ended = store.find_digest(study_id)
    result = Verification(study_id, None if ended is None else ended.sha256, tuple(found))
    return result if signer is None or result.mismatches else replace(result, signed=sign_record(record, signer))


def _carry_out(
    kind: str, check: Callable[[StudyRecord], Iterable[RecordCheck]], record: StudyRecord
) -> Iterator[RecordCheck]:
    """Run a check; a record that it cannot read is a mismatch, and the other checks go on."""
    try:
        yield from check(record)
    except Exception as error:  # noqa: BLE001 - the boundary: what cannot be recomputed is a result
        reason = " ".join(str(error).split())[:300]
        yield RecordCheck(kind, 1, [f"{kind} cannot be recomputed: {type(error).__name__}: {reason}"])
