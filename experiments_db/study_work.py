"""True if a process works on a study, judged from its status and its lease in the same way for all readers.

A killed process leaves the status as it was, so the status alone is not enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments_db.kinds import StudyStatus
from experiments_db.records import Lease, Study

if TYPE_CHECKING:
    from experiments_db.store import ExperimentStore

BEGIN_WITHIN_S = 60.0
"""How long after it was set running a study may be without a lease: its process is only starting."""


@dataclass(frozen=True, slots=True)
class StudyWork:
    """True if a process works on a study.

    `silent_since` is set for a study that is to continue but that no process works on. It is the last sign of life of
    its process, in seconds since the epoch. It is None for any other study.
    """

    is_at_work: bool
    silent_since: float | None = None


def lease_name(study_id: str) -> str:
    """Return the resource of the lease that a process owns while it works on a study."""
    return f"study:{study_id}"


def judge_work(
    study: Study, lease: Lease | None, now: float, *, is_gone: Callable[[str], bool] = lambda owner: False
) -> StudyWork:
    """Judge whether a process works on the study.

    `is_gone` returns whether the process of a lease's owner is known to have ended.
    """
    if lease is not None and now < lease.heartbeat_at + lease.ttl_s and not is_gone(lease.owner):
        return StudyWork(is_at_work=True)
    if study.status is not StudyStatus.RUNNING:
        return StudyWork(is_at_work=False)
    if lease is None and now < study.updated_at + BEGIN_WITHIN_S:
        return StudyWork(is_at_work=True)
    return StudyWork(is_at_work=False, silent_since=study.updated_at if lease is None else lease.heartbeat_at)


def find_work(
    store: ExperimentStore, study: Study, *, is_gone: Callable[[str], bool] = lambda owner: False
) -> StudyWork:
    """Judge the work on a study that was just read from the store. Raises what the store raises."""
    return judge_work(study, store.find_lease(lease_name(study.id)), time.time(), is_gone=is_gone)
