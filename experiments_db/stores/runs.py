"""Runs: claimed before they are launched, moved along one table of legal moves, never counted twice.

Place in the flow: a part of ExperimentStore; the researcher's launch and monitor nodes write here. What a run measures
is in measurements.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, func, select

from experiments_db.errors import IllegalMove, StoreConflict
from experiments_db.models import ExperimentRow, RunRow
from experiments_db.records import RUN_MOVES, JsonObject, Run, RunOrder, RunStatus
from experiments_db.stores.base import StoreBase, check_text, find_by, get_by, insert_rows, new_id, require, to_record
from experiments_db.stores.revisions import renumber


class RunStore(StoreBase):
    def claim_run(
        self,
        experiment_id: str,
        seed: int,
        idempotency_key: str,
        *,
        rung: int = 0,
        attempt: int = 1,
        server_url: str | None = None,
        job: JsonObject | None = None,
    ) -> Run:
        """Return the run of this key: a new one in status `planned`, or the stored one in its present state.

        Raises StoreConflict if the key belongs to another arm, seed, rung or attempt, or if these have a run under
        another key. Raises RecordNotFound for an unknown experiment.
        """
        check_text(idempotency_key=idempotency_key)
        now = self._clock()
        identity: dict[str, Any] = {
            "experiment_id": experiment_id,
            "seed": seed,
            "rung": rung,
            "attempt": attempt,
        }
        with self._write() as session:
            experiment = require(session, ExperimentRow, experiment_id, "experiment")
            twin = find_by(session, RunRow, **identity)
            if twin is not None and twin.idempotency_key != idempotency_key:
                raise StoreConflict(f"attempt {attempt} of seed {seed} of {experiment.name!r} is claimed as {twin.id}")
            values = identity | {
                "id": new_id("run", now),
                "study_id": experiment.study_id,
                "idempotency_key": idempotency_key,
                "status": RunStatus.PLANNED,
                "server_url": server_url,
                "external_ids": {},
                "job": dict(job or {}),
                "environment": {},
                "created_at": now,
                "updated_at": now,
            }
            insert_rows(session, RunRow, [values], key=("idempotency_key",))
            row = get_by(session, RunRow, idempotency_key=idempotency_key)
            if (row.experiment_id, row.seed, row.rung, row.attempt) != (experiment_id, seed, rung, attempt):
                raise StoreConflict(f"idempotency key {idempotency_key!r} belongs to {row.id}, which is another run")
            renumber(session, row)
            return to_record(Run, row)

    def update_run(
        self,
        run_id: str,
        *,
        status: RunStatus | None = None,
        server_url: str | None = None,
        external_ids: JsonObject | None = None,
        job: JsonObject | None = None,
        environment: JsonObject | None = None,
        base_weight_version: int | None = None,
        final_weight_version: int | None = None,
        pid: int | None = None,
        log_path: str | None = None,
        exit_reason: str | None = None,
        diagnosis: JsonObject | None = None,
        training_cost: JsonObject | None = None,
    ) -> Run:
        """Change the fields that are given; None leaves a field as it is. The present status again is accepted.

        `started_at` is set on the first move to `running`, `finished_at` when the run is over. Raises IllegalMove,
        RecordNotFound.
        """
        changes: dict[str, Any] = {
            "server_url": server_url,
            "external_ids": external_ids and dict(external_ids),
            "job": job and dict(job),
            "environment": environment and dict(environment),
            "base_weight_version": base_weight_version,
            "final_weight_version": final_weight_version,
            "pid": pid,
            "log_path": log_path,
            "exit_reason": exit_reason,
            "diagnosis": diagnosis and dict(diagnosis),
            "training_cost": training_cost and dict(training_cost),
        }
        with self._write() as session:
            row = require(session, RunRow, run_id, "run", lock=True)
            row.updated_at = self._clock()
            for name, value in changes.items():
                if value is not None:
                    setattr(row, name, value)
            if status is not None and status != row.status:
                _move(row, status)
            renumber(session, row)
            return to_record(Run, row)

    def get_run(self, run_id: str) -> Run:
        """Return one run. Raises RecordNotFound."""
        with self._read() as session:
            return to_record(Run, require(session, RunRow, run_id, "run"))

    def find_run(self, idempotency_key: str) -> Run | None:
        with self._read() as session:
            row = find_by(session, RunRow, idempotency_key=idempotency_key)
            return None if row is None else to_record(Run, row)

    def list_runs(
        self,
        *,
        study_id: str | None = None,
        experiment_id: str | None = None,
        seed: int | None = None,
        statuses: Collection[RunStatus] | None = None,
        order_by: RunOrder = RunOrder.CREATED_AT,
        descending: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Run]:
        """Return runs that meet every condition given (None is none). Those without the sorted time come last."""
        statement = _filtered(select(RunRow), study_id, experiment_id, statuses)
        if seed is not None:
            statement = statement.where(RunRow.seed == seed)
        column = RunRow.__table__.c[order_by.value]
        order = column.desc() if descending else column.asc()
        statement = statement.order_by(order.nulls_last(), RunRow.created_at, RunRow.id)
        return self._list(statement.limit(limit).offset(offset), Run)

    def tally_runs(self) -> dict[str, dict[RunStatus, int]]:
        """Return, for each study id with runs, how many are in each status."""
        statement = select(RunRow.study_id, RunRow.status, func.count()).group_by(RunRow.study_id, RunRow.status)
        tally: dict[str, dict[RunStatus, int]] = {}
        with self._read() as session:
            for study_id, status, count in session.execute(statement):
                tally.setdefault(study_id, {})[status] = count
        return tally


def _move(row: RunRow, status: RunStatus) -> None:
    if status not in RUN_MOVES[row.status]:
        legal = ", ".join(sorted(RUN_MOVES[row.status])) or "none, it is over"
        raise IllegalMove(f"run {row.id} is {row.status} and cannot become {status}; legal moves: {legal}")
    row.status = status
    if status == RunStatus.RUNNING and row.started_at is None:
        row.started_at = row.updated_at
    if status.is_over:
        row.finished_at = row.updated_at


def _filtered(
    statement: Select[Any],
    study_id: str | None,
    experiment_id: str | None,
    statuses: Collection[RunStatus] | None,
) -> Select[Any]:
    if study_id is not None:
        statement = statement.where(RunRow.study_id == study_id)
    if experiment_id is not None:
        statement = statement.where(RunRow.experiment_id == experiment_id)
    if statuses is not None:
        statement = statement.where(RunRow.status.in_(statuses))
    return statement
