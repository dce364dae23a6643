"""The servers that trainings and runs show: where each lies, what it trains, and when it was seen last.

Place in the flow: a part of ExperimentStore; the explorer asks. There is no table of servers, so all this follows from
the records of trainings and runs. Whether a server still runs is not known here.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Integer, Select, Text, cast, exists, func, null, select, type_coerce

from experiments_db.models import RunRow
from experiments_db.searches.records import RecordedServer
from experiments_db.stores.base import StoreBase, to_record
from experiments_db.training_models import TrainingRow
from experiments_db.trainings import RecordedTraining


class ServerStore(StoreBase):
    def list_servers(self, *, limit: int = 200) -> list[RecordedServer]:
        """Return the servers that recorded trainings and those of studies, the one that was seen last first."""
        with self._read() as session:
            recording = [RecordedServer(*row) for row in session.execute(_recording(limit))]
            of_studies = [RecordedServer(*row) for row in session.execute(_of_studies(limit))]
        return sorted([*recording, *of_studies], key=lambda server: -server.last_seen_at)[:limit]

    def find_launched_training(self, launch_key: str) -> RecordedTraining | None:
        """Return the newest training that was launched under this key, such as a run's `idempotency_key`."""
        statement = select(TrainingRow).where(TrainingRow.launch_key == launch_key)
        with self._read() as session:
            row = session.scalars(statement.order_by(TrainingRow.begun_at.desc()).limit(1)).first()
            return None if row is None else to_record(RecordedTraining, row)


def _recording(limit: int) -> Select[*tuple[Any, ...]]:
    """Select the columns of a RecordedServer for each home."""
    row, home = TrainingRow, TrainingRow.home
    ranked = select(
        home, row.project, row.experiment, row.model, row.status,
        func.count().over(partition_by=home).label("trainings"),
        func.sum(row.step).over(partition_by=home).label("steps"),
        func.max(row.updated_at).over(partition_by=home).label("last_seen_at"),
        func.row_number().over(partition_by=home, order_by=(row.begun_at.desc(), row.id.desc())).label("place"),
    ).subquery()  # fmt: skip
    url = (
        select(RunRow.server_url)
        .join(row, row.launch_key == RunRow.idempotency_key)
        .where(home == ranked.c.home, RunRow.server_url.is_not(None))
        .order_by(RunRow.created_at.desc())
        .limit(1)
        .scalar_subquery()
    )
    server = ranked.c
    return (
        select(
            server.home, null(), url, server.project, server.experiment, server.model, server.status,
            server.trainings, cast(server.steps, Integer), server.last_seen_at,
        )
        .where(server.place == 1)
        .order_by(server.last_seen_at.desc())
        .limit(limit)
    )  # fmt: skip


def _of_studies(limit: int) -> Select[*tuple[Any, ...]]:
    """Select the columns of a RecordedServer for each address at which a study has runs that no server recorded."""
    row = RunRow
    own = (row.study_id, row.server_url)
    job = type_coerce(row.job, JSON)
    ranked = (
        select(
            row.study_id, row.server_url, cast(row.status, Text).label("status"),
            *(func.coalesce(job[name].as_string(), "").label(name) for name in _NAMES),
            func.count().over(partition_by=own).label("trainings"),
            func.sum(func.coalesce(row.final_weight_version, 0)).over(partition_by=own).label("steps"),
            func.max(row.updated_at).over(partition_by=own).label("last_seen_at"),
            func.row_number().over(partition_by=own, order_by=(row.created_at.desc(), row.id.desc())).label("place"),
        )
        .where(row.server_url.is_not(None), ~exists().where(TrainingRow.launch_key == row.idempotency_key))
        .subquery()
    )  # fmt: skip
    server = ranked.c
    return (
        select(
            null(), server.study_id, server.server_url, *(server[name] for name in _NAMES), server.status,
            server.trainings, cast(server.steps, Integer), server.last_seen_at,
        )
        .where(server.place == 1)
        .order_by(server.last_seen_at.desc())
        .limit(limit)
    )  # fmt: skip


_NAMES = ("project_name", "experiment_name", "model")
"""The settings of a job that say what it trains."""
