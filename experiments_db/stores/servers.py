"""The servers that records of trainings and runs show: where each lies, what it trains, when it was seen last."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ColumnElement, Integer, Label, Select, Text, cast, exists, func, null, select, type_coerce

from experiments_db.stores.base import StoreBase
from experiments_db.tables import RUNS, TRAININGS
from experiments_db.trainings import RecordedServer

MOST_SERVERS = 200


class ServerStore(StoreBase):
    def list_servers(self) -> list[RecordedServer]:
        """Return the servers that recorded trainings and those of studies, the one that was seen last first."""
        with self._read() as connection:
            found = [
                RecordedServer(*row)
                for statement in (_recording(), _of_studies())
                for row in connection.execute(statement.limit(MOST_SERVERS))
            ]
        return sorted(found, key=lambda server: -server.last_seen_at)[:MOST_SERVERS]


def _recording() -> Select[*tuple[Any, ...]]:
    """Select the columns of a RecordedServer for each home."""
    row = TRAININGS.c
    ranked = select(
        row.home, row.project, row.experiment, row.model, row.status,
        *_sums((row.home,), row.step, row.updated_at, row.begun_at, row.id),
    ).subquery()  # fmt: skip
    server = ranked.c
    url = (
        select(RUNS.c.server_url)
        .join(TRAININGS.table, row.launch_key == RUNS.c.idempotency_key)
        .where(row.home == server.home, RUNS.c.server_url.is_not(None))
        .order_by(RUNS.c.created_at.desc())
        .limit(1)
        .scalar_subquery()
    )
    newest = select(
        server.home, null(), url, server.project, server.experiment, server.model, server.status,
        server.trainings, cast(server.steps, Integer), server.last_seen_at,
    )  # fmt: skip
    return newest.where(server.place == 1).order_by(server.last_seen_at.desc())


def _of_studies() -> Select[*tuple[Any, ...]]:
    """Select the columns of a RecordedServer for each address at which a study has runs that no server recorded."""
    row = RUNS.c
    job = type_coerce(row.job, JSON)
    names = [
        func.coalesce(job[name].as_string(), "").label(name) for name in ("project_name", "experiment_name", "model")
    ]
    ranked = (
        select(
            row.study_id, row.server_url, cast(row.status, Text).label("status"), *names,
            *_sums(
                (row.study_id, row.server_url), func.coalesce(row.final_weight_version, 0), row.updated_at,
                row.created_at, row.id,
            ),
        )
        .where(row.server_url.is_not(None), ~exists().where(TRAININGS.c.launch_key == row.idempotency_key))
        .subquery()
    )  # fmt: skip
    server = ranked.c
    newest = select(
        null(), server.study_id, server.server_url, *(server[name.name] for name in names), server.status,
        server.trainings, cast(server.steps, Integer), server.last_seen_at,
    )  # fmt: skip
    return newest.where(server.place == 1).order_by(server.last_seen_at.desc())


def _sums(
    of: tuple[ColumnElement[Any], ...],
    steps: ColumnElement[Any],
    seen_at: ColumnElement[Any],
    begun_at: ColumnElement[Any],
    id: ColumnElement[Any],
) -> tuple[Label[Any], ...]:
    """Return the sums over the trainings of one server, and each training's place by age, the newest first."""
    return (
        func.count().over(partition_by=of).label("trainings"),
        func.sum(steps).over(partition_by=of).label("steps"),
        func.max(seen_at).over(partition_by=of).label("last_seen_at"),
        func.row_number().over(partition_by=of, order_by=(begun_at.desc(), id.desc())).label("place"),
    )
