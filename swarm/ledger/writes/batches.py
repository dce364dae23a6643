"""The life of one batch: closed, then trained or failed, and perhaps rewound."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.errors import Conflict
from swarm.ledger.queries import IN_POOL, NEWEST_JOB
from swarm.ledger.rows import BatchState, EvaluationState
from swarm.ledger.tables import to_json
from swarm.ledger.writes.events import count_closed, insert_event
from swarm.schemas import EpisodeState
from swarm.types import StepReport

SCORE = "critic/score/mean"
"""The metric that the event of a trained batch carries, in verl's name."""


def close_batch(
    connection: sqlite3.Connection,
    batch_id: str,
    step: int,
    groups: Sequence[Sequence[str]],
    dropped: Sequence[tuple[str, str]],
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Bind completed episodes to a batch, group by group, and drop others, given as (episode id, reason).

    `settings` are those the batch is trained with, where they differ from the job. Raise Conflict, with nothing
    changed, if a member is not a completed train episode outside any batch.
    """
    connection.execute(
        "INSERT INTO batches (batch_id, job_id, step, state, closed_at, settings)"
        f" VALUES (?, {NEWEST_JOB}, ?, ?, ?, ?)",
        (batch_id, step, BatchState.CLOSED, time.time(), to_json(dict(settings or {}))),
    )
    members = [(episode_id, number) for number, group in enumerate(groups) for episode_id in group]
    for episode_id, number in members:
        bound = connection.execute(
            "UPDATE episodes SET batch_id = ?, batch_group = ?"
            f" WHERE episode_id = ? AND job_id = {NEWEST_JOB} AND {IN_POOL}",
            (batch_id, number, episode_id),
        ).rowcount
        _require(bound, f"episode {episode_id} cannot join batch {batch_id}: it is not waiting for one")
    for episode_id, reason in dropped:
        moved = connection.execute(
            f"UPDATE episodes SET state = ?, outcome = ? WHERE episode_id = ? AND {IN_POOL}",
            (EpisodeState.DROPPED, reason, episode_id),
        ).rowcount
        _require(moved, f"episode {episode_id} cannot be dropped: it is not waiting for a batch")
    reasons = Counter(reason for _, reason in dropped)
    count_closed(connection, EpisodeState.DROPPED, reasons)
    detail = {"batch_id": batch_id, "step": step, "episodes": len(members), "dropped": dict(reasons)}
    insert_event(connection, "batch.closed", detail)


def finish_batch(connection: sqlite3.Connection, report: StepReport) -> None:
    """Record a finished step: its metrics, and its members as TRAINED with their advantages.

    Raise Conflict unless the batch that the report names is closed.
    """
    finished = connection.execute(
        "UPDATE batches SET state = ?, step = ?, finished_at = ?, weight_version = ?, metrics = ?"
        " WHERE batch_id = ? AND state = ?",
        (
            BatchState.TRAINED, report.step, time.time(), report.weight_version.version, to_json(dict(report.metrics)),
            report.batch_id, BatchState.CLOSED,
        ),
    ).rowcount  # fmt: skip
    _require(finished, f"batch {report.batch_id} cannot be finished: it is not closed")
    trained = connection.execute(
        "UPDATE episodes SET state = ? WHERE batch_id = ? AND state = ?",
        (EpisodeState.TRAINED, report.batch_id, EpisodeState.COMPLETED),
    ).rowcount
    count_closed(connection, EpisodeState.TRAINED, {"": trained})
    connection.execute(
        "INSERT INTO trained_groups (job_id, data_source, n)"
        " SELECT job_id, data_source, count(DISTINCT batch_group) FROM episodes WHERE batch_id = ?"
        " GROUP BY data_source"
        " ON CONFLICT DO UPDATE SET n = n + excluded.n",
        (report.batch_id,),
    )
    connection.executemany(
        "UPDATE episodes SET advantage = ? WHERE episode_id = ? AND batch_id = ?",
        [(advantage, episode_id, report.batch_id) for episode_id, advantage in report.advantages.items()],
    )
    detail = {"batch_id": report.batch_id, "step": report.step, "weight_version": report.weight_version.version}
    score = report.metrics.get(SCORE)
    insert_event(connection, "batch.trained", {**detail, "score": score})


def fail_batch(connection: sqlite3.Connection, batch_id: str, reason: str) -> None:
    """Give a closed batch up. Its members are completed and unbound again. Raise Conflict unless it is closed."""
    failed = connection.execute(
        "UPDATE batches SET state = ?, reason = ?, finished_at = ? WHERE batch_id = ? AND state = ?",
        (BatchState.FAILED, reason, time.time(), batch_id, BatchState.CLOSED),
    ).rowcount
    _require(failed, f"batch {batch_id} cannot be failed: it is not closed")
    connection.execute("UPDATE episodes SET batch_id = NULL, batch_group = NULL WHERE batch_id = ?", (batch_id,))
    insert_event(connection, "batch.failed", {"batch_id": batch_id, "reason": reason})


def fail_closed_batches(connection: sqlite3.Connection, reason: str) -> tuple[str, ...]:
    """Give every closed batch up, and return their ids."""
    closed = connection.execute("SELECT batch_id FROM batches WHERE state = ?", (BatchState.CLOSED,)).fetchall()
    for row in closed:
        fail_batch(connection, row["batch_id"], reason)
    return tuple(row["batch_id"] for row in closed)


def rewind(connection: sqlite3.Connection, step: int, reason: str) -> None:
    """Record that the weights are back at `step`. Later batches become REWOUND, and their metrics leave the history.

    Their episodes stay TRAINED, so that no episode is trained twice.
    """
    rewound = connection.execute(
        f"UPDATE batches SET state = ?, reason = ? WHERE job_id = {NEWEST_JOB} AND state = ? AND step > ?",
        (BatchState.REWOUND, reason, BatchState.TRAINED, step),
    ).rowcount
    connection.execute(
        f"UPDATE evaluations SET state = ?, ended_at = coalesce(ended_at, ?) WHERE job_id = {NEWEST_JOB} AND step > ?",
        (EvaluationState.REWOUND, time.time(), step),
    )
    insert_event(connection, "weights.rewound", {"step": step, "reason": reason, "batches": rewound})


def _require(changed: int, otherwise: str) -> None:
    """Raise Conflict if no row was changed."""
    if not changed:
        raise Conflict(otherwise)
