"""Versions of the database and of a study, by which a reader knows whether anything was written."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import BigInteger, bindparam, cast, func, select

from experiments_db.errors import RecordNotFound
from experiments_db.records import RunMean, StudyRuns
from experiments_db.stores.base import StoreBase, read
from experiments_db.tables import CHARGES, EVALUATIONS, EXPERIMENTS, RUN_SUMMARIES, RUNS, STUDIES


class RevisionStore(StoreBase):
    """The reading of versions. Each write of a record counts the revision of its study."""

    def read_version(self) -> str:
        """Return a text that differs from the one before if another process or store has changed anything since.

        Nothing of any table is read, so a reader may ask again and again.
        """
        return self._database.read_version()

    def read_study_version(self, study_id: str) -> tuple[Any, ...]:
        """Return values that differ from the ones before if anything of the study was written since.

        Episodes of its runs are not looked at, nor its lease, nor charges of less than a minute in all. Raises
        RecordNotFound.
        """
        with self._read() as connection:
            found = connection.execute(_STUDY_VERSION, {"of_study": study_id}).one_or_none()
        if found is None:
            raise RecordNotFound(f"there is no study {study_id!r}")
        return tuple(found)

    def list_all_runs(self, study_ids: Collection[str]) -> StudyRuns:
        """Return the arms, the runs in short and the mean scores of several studies, the newest study first.

        Nothing of a run that is long is read.
        """
        arms = EXPERIMENTS.select(EXPERIMENTS.c.study_id.in_(study_ids))
        runs = RUN_SUMMARIES.select(RUNS.c.study_id.in_(study_ids))
        score = EVALUATIONS.c
        means = (
            select(score.run_id, score.phase, score.split, score.mean)
            .join(RUNS.table, RUNS.c.id == score.run_id)
            .where(RUNS.c.study_id.in_(study_ids))
            .order_by(score.id)
        )
        with self._read() as connection:
            return StudyRuns(
                read(connection, EXPERIMENTS, arms.order_by(EXPERIMENTS.c.created_at, EXPERIMENTS.c.id)),
                read(connection, RUN_SUMMARIES, runs.order_by(RUNS.c.study_id.desc(), RUNS.c.created_at, RUNS.c.id)),
                tuple(RunMean(*mean) for mean in connection.execute(means)),
            )


# Times are charged with every heartbeat.
_CHARGED = select(cast(func.sum(CHARGES.c.amount) / 60, BigInteger)).where(CHARGES.c.study_id == STUDIES.c.id)
_STUDY_VERSION = select(STUDIES.c.revision, STUDIES.c.updated_at, _CHARGED.scalar_subquery()).where(
    STUDIES.c.id == bindparam("of_study")
)
