"""Runs: claimed before they are launched, moved along one table of legal moves, never counted twice."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypedDict, Unpack

from sqlalchemy import func, select

from experiments_db.errors import IllegalMove, StoreConflict
from experiments_db.kinds import RUN_MOVES, RunStatus
from experiments_db.records import JsonObject, Run
from experiments_db.stores.base import StoreBase, change, check_text, find, new_id, put, require
from experiments_db.tables import EXPERIMENTS, RUNS


class RunUpdate(TypedDict, total=False):
    """The fields of a run that change while it goes on; None leaves a field as it is."""

    server_url: str | None
    external_ids: JsonObject | None
    job: JsonObject | None
    environment: JsonObject | None
    base_weight_version: int | None
    final_weight_version: int | None
    pid: int | None
    log_path: str | None
    exit_reason: str | None
    diagnosis: JsonObject | None
    training_cost: JsonObject | None


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
        with self._write() as connection:
            experiment = require(connection, EXPERIMENTS, experiment_id)
            twin = find(connection, RUNS, **identity)
            if twin is not None and twin.idempotency_key != idempotency_key:
                raise StoreConflict(f"attempt {attempt} of seed {seed} of {experiment.name!r} is claimed as {twin.id}")
            values = identity | {
                "id": new_id("run", now),
                "study_id": experiment.study_id,
                "idempotency_key": idempotency_key,
                "status": RunStatus.PLANNED,
                "server_url": server_url,
                "external_ids": {},
                "job": job or {},
                "environment": {},
                "created_at": now,
                "updated_at": now,
            }
            run = put(connection, RUNS, values, key=("idempotency_key",))
            if (run.experiment_id, run.seed, run.rung, run.attempt) != (experiment_id, seed, rung, attempt):
                raise StoreConflict(f"idempotency key {idempotency_key!r} belongs to {run.id}, which is another run")
            return run

    def update_run(self, run_id: str, *, status: RunStatus | None = None, **update: Unpack[RunUpdate]) -> Run:
        """Change the fields that are given; None leaves a field as it is. The present status again is accepted.

        `started_at` is set on the first move to `running`, `finished_at` when the run is over. Raises IllegalMove,
        RecordNotFound.
        """
        changes: dict[str, Any] = {name: value for name, value in update.items() if value is not None}
        changes["updated_at"] = self._clock()
        with self._write() as connection:
            run = require(connection, RUNS, run_id, lock=True)
            if status is not None and status != run.status:
                changes |= _move(run, status, changes["updated_at"])
            return change(connection, RUNS, run_id, **changes)

    def get_run(self, run_id: str) -> Run:
        """Return one run. Raises RecordNotFound."""
        return self._get(RUNS, run_id)

    def find_run(self, idempotency_key: str) -> Run | None:
        return self._find(RUNS, idempotency_key=idempotency_key)

    def list_runs(
        self,
        *,
        study_id: str | None = None,
        experiment_id: str | None = None,
        seed: int | None = None,
        statuses: Collection[RunStatus] | None = None,
    ) -> list[Run]:
        """Return the runs that meet every condition given (None is none), oldest first."""
        of_status = () if statuses is None else (RUNS.c.status.in_(statuses),)
        order = RUNS.c.created_at, RUNS.c.id
        return self._list(RUNS, *of_status, order=order, study_id=study_id, experiment_id=experiment_id, seed=seed)

    def tally_runs(self) -> dict[str, dict[RunStatus, int]]:
        """Return, for each study id with runs, how many are in each status."""
        of = RUNS.c.study_id, RUNS.c.status
        tally: dict[str, dict[RunStatus, int]] = {}
        with self._read() as connection:
            for study_id, status, count in connection.execute(select(*of, func.count()).group_by(*of)):
                tally.setdefault(study_id, {})[status] = count
        return tally


def _move(run: Run, status: RunStatus, now: float) -> dict[str, Any]:
    """Return what changes of a run that gets another status. Raises IllegalMove."""
    if status not in RUN_MOVES[run.status]:
        legal = ", ".join(sorted(RUN_MOVES[run.status])) or "none, it is over"
        raise IllegalMove(f"run {run.id} is {run.status} and cannot become {status}; legal moves: {legal}")
    changes: dict[str, Any] = {"status": status}
    if status == RunStatus.RUNNING and run.started_at is None:
        changes["started_at"] = now
    if status.is_over:
        changes["finished_at"] = now
    return changes
