"""The life of one episode: begun, ended alone or with episodes of other servers, revised or given up."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from swarm.errors import Conflict, EpisodeEnded, IdempotencyMismatch, LedgerError
from swarm.ledger import queries
from swarm.ledger.queries import IN_POOL
from swarm.ledger.rows import NO_USE, EndReceipt, EpisodeRow, ModelUse
from swarm.ledger.tables import EPISODES, RESULT_COLUMNS, checksum
from swarm.ledger.writes.events import count_acknowledged, count_closed, insert_event
from swarm.ledger.writes.turns import add_use
from swarm.schemas import EpisodeState

_INSERT_EPISODE = EPISODES.insert("checksum")
RESULT = ", ".join(RESULT_COLUMNS)
SET_RESULT = ", ".join(f"{name} = :{name}" for name in (*RESULT_COLUMNS, "checksum") if name != "episode_id")
"""The assignments, in SQL, of `ReportedResult.result_columns`."""

COMMIT_LIMIT_S = 300.0
"""How long after its preparation the deciding episode can be committed. Other servers wait longer, so that the deciding
server always has an answer for them."""

COMMIT_TIMEOUT = "commit_timeout"

_GIVEN_UP = frozenset({EpisodeState.ABORTED, EpisodeState.EXPIRED})


@dataclass(frozen=True, slots=True)
class ReportedResult:
    """The result that a client reported, with the use of the episode's calls that is not on record yet."""

    episode_id: str
    idempotency_key: str
    payload_digest: str
    task_id: str
    reward: float
    is_success: bool | None
    metadata: Mapping[str, Any]
    ended_at: float
    turn_rewards: Sequence[float] | None = None
    rewards: Mapping[str, float] | None = None
    unrecorded: ModelUse = NO_USE
    model_share: float | None = None

    def result_columns(self) -> dict[str, Any]:
        """Return the result as it is stored, with its checksum."""
        result = {name: getattr(self, name) for name in RESULT_COLUMNS}
        return with_checksum(EPISODES.encode_some(result))


def with_checksum(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a result with their checksum."""
    return {**result, "checksum": checksum([result[name] for name in RESULT_COLUMNS])}


def insert_episode(connection: sqlite3.Connection, row: EpisodeRow) -> None:
    """Record a RUNNING episode of the newest job. Raise LedgerError if no job is recorded or the id is taken."""
    job_id = connection.execute("SELECT max(job_id) FROM jobs").fetchone()[0]
    if job_id is None:
        raise LedgerError("no job is on record: record one before the first episode")
    begun = replace(row, job_id=job_id, state=EpisodeState.RUNNING, last_seen_at=row.begun_at)
    connection.execute(_INSERT_EPISODE, with_checksum(EPISODES.encode(begun)))


def end_episode(connection: sqlite3.Connection, ending: ReportedResult) -> EndReceipt:
    """Complete a running episode exactly once. The same key and digest again give the same answer.

    Raise NotFound, IdempotencyMismatch for another payload under the same key, or EpisodeEnded. EpisodeEnded tells
    whether the episode ended under another key, was aborted or expired.
    """
    add_use(connection, ending.episode_id, ending.unrecorded)
    ended = connection.execute(
        f"UPDATE episodes SET state = 'completed', ended_at = :ended_at, last_seen_at = :ended_at, {SET_RESULT},"
        " model_share = :model_share WHERE episode_id = :episode_id AND state = 'running'"
        " RETURNING *",
        {**ending.result_columns(), "ended_at": ending.ended_at, "model_share": ending.model_share},
    ).fetchone()
    if ended is None:
        return _replay(queries.episode(connection, ending.episode_id), ending)
    count_acknowledged(connection)
    return EndReceipt(EPISODES.decode(ended), replayed=False)


def revise_reward(
    connection: sqlite3.Connection,
    episode_id: str,
    *,
    reward: float,
    is_success: bool | None,
    turn_rewards: Sequence[float] | None,
    rewards: Mapping[str, float] | None = None,
    reason: str,
) -> EpisodeRow:
    """Give an episode that waits for a batch another result. The event keeps the former reward.

    Raise NotFound, or EpisodeEnded once its batch is closed or if it is in any other state.
    """
    former = queries.episode(connection, episode_id)
    stored = connection.execute(f"SELECT {RESULT} FROM episodes WHERE episode_id = ?", (episode_id,)).fetchone()
    revision = {"reward": reward, "is_success": is_success, "turn_rewards": turn_rewards, "rewards": rewards}
    result = with_checksum({**dict(stored), **EPISODES.encode_some(revision)})
    revised = connection.execute(
        f"UPDATE episodes SET {SET_RESULT} WHERE episode_id = :episode_id AND {IN_POOL}", result
    ).rowcount
    if not revised:
        how = "its batch is closed" if former.state is EpisodeState.COMPLETED else f"it is {former.state}"
        raise EpisodeEnded(f"the reward of episode {episode_id} is final: {how}")
    detail = {"episode_id": episode_id, "from": former.reward, "to": reward, "reason": reason}
    insert_event(connection, "reward.revised", detail)
    return queries.episode(connection, episode_id)


def close_episode(
    connection: sqlite3.Connection,
    episode_id: str,
    state: Literal[EpisodeState.ABORTED, EpisodeState.EXPIRED],
    reason: str,
    *,
    ended_at: float,
    last_seen_at: float | None = None,
    is_prepared: bool = False,
    unrecorded: ModelUse = NO_USE,
) -> bool:
    """Give a running episode up, or a prepared one if `is_prepared`. Return False if it was given up already.

    `unrecorded` is the use of its calls that is not on record yet. Raise NotFound or EpisodeEnded.
    """
    add_use(connection, episode_id, unrecorded)
    closed = connection.execute(
        "UPDATE episodes SET state = ?, outcome = ?, ended_at = ?, last_seen_at = coalesce(?, last_seen_at)"
        " WHERE episode_id = ? AND state = ?",
        (
            state, reason, ended_at, last_seen_at, episode_id,
            EpisodeState.PREPARED if is_prepared else EpisodeState.RUNNING,
        ),
    ).rowcount  # fmt: skip
    if closed:
        count_closed(connection, state, {reason: 1})
        return True
    present = queries.episode(connection, episode_id)
    if present.state is not state:
        raise EpisodeEnded(f"episode {episode_id} is over: it is {present.state}")
    return False


def episode_over(row: EpisodeRow) -> EpisodeEnded:
    why = f" ({row.outcome})" if row.outcome else ""
    return EpisodeEnded(f"episode {row.episode_id} is over: it is {row.state}{why}; begin another one")


def _replay(row: EpisodeRow, ending: ReportedResult) -> EndReceipt:
    if row.state is EpisodeState.PREPARED:
        raise Conflict(f"episode {row.episode_id} is prepared: commit its transaction")
    if row.ended_at is None or row.idempotency_key != ending.idempotency_key:
        raise episode_over(row)
    if row.payload_digest != ending.payload_digest:
        raise IdempotencyMismatch(
            f"episode {row.episode_id} was ended with another result under the same key; the first one stands"
        )
    return EndReceipt(row)


def prepare_episode(
    connection: sqlite3.Connection, ending: ReportedResult, *, transaction_sha256: str, inquiry_url: str | None
) -> EndReceipt:
    """Store the result of a running episode that counts only if its transaction commits.

    The same request again gives the same answer. Without an `inquiry_url`, the commit of this episode decides. Raise
    NotFound, IdempotencyMismatch for another result, Conflict for another transaction, or EpisodeEnded.
    """
    present = queries.episode(connection, ending.episode_id)
    if present.state is not EpisodeState.RUNNING:
        return _replay_prepared(present, ending, transaction_sha256)
    if inquiry_url is None and queries.transaction(connection, transaction_sha256) is not None:
        raise Conflict("another episode of this server decides this transaction: draw a new transaction_id")
    add_use(connection, ending.episode_id, ending.unrecorded)
    row = connection.execute(
        f"UPDATE episodes SET state = 'prepared', ended_at = :ended_at, last_seen_at = :ended_at, {SET_RESULT},"
        " transaction_sha256 = :transaction_sha256, inquiry_url = :inquiry_url, model_share = :model_share"
        " WHERE episode_id = :episode_id RETURNING *",
        {
            **ending.result_columns(),
            "ended_at": ending.ended_at,
            "model_share": ending.model_share,
            "transaction_sha256": transaction_sha256,
            "inquiry_url": inquiry_url,
        },
    ).fetchone()
    return EndReceipt(EPISODES.decode(row), replayed=False)


def commit_episode(
    connection: sqlite3.Connection, episode_id: str, *, transaction_sha256: str, ended_at: float
) -> EndReceipt:
    """Complete a prepared episode. The same request again gives the same answer.

    A commit that comes too late gives the deciding episode up instead. The receipt reports that, because an error would
    undo it. Raise NotFound, EpisodeEnded if the episode was given up before, or Conflict if it is not of this
    transaction.
    """
    present = queries.episode(connection, episode_id)
    if present.state is EpisodeState.RUNNING:
        raise Conflict(f"episode {episode_id} is running: prepare it first")
    _require_same(present, transaction_sha256)
    if present.state in _GIVEN_UP:
        raise episode_over(present)
    if present.state is not EpisodeState.PREPARED:
        return EndReceipt(present)
    if present.inquiry_url is None and ended_at > (present.ended_at or 0.0) + COMMIT_LIMIT_S:
        close_episode(connection, episode_id, EpisodeState.EXPIRED, COMMIT_TIMEOUT, ended_at=ended_at, is_prepared=True)
        return EndReceipt(queries.episode(connection, episode_id))
    connection.execute(
        "UPDATE episodes SET state = 'completed', ended_at = ? WHERE episode_id = ?", (ended_at, episode_id)
    )
    count_acknowledged(connection)
    completed = replace(present, state=EpisodeState.COMPLETED, ended_at=ended_at)
    return EndReceipt(completed, replayed=False)


def _replay_prepared(row: EpisodeRow, ending: ReportedResult, transaction_sha256: str) -> EndReceipt:
    if row.state in _GIVEN_UP:
        raise episode_over(row)
    _require_same(row, transaction_sha256)
    if row.payload_digest != ending.payload_digest:
        raise IdempotencyMismatch(
            f"episode {row.episode_id} was prepared with another result in this transaction; the first one stands"
        )
    return EndReceipt(row)


def _require_same(row: EpisodeRow, transaction_sha256: str) -> None:
    if row.transaction_sha256 != transaction_sha256:
        raise Conflict(f"episode {row.episode_id} is {row.state} outside of this transaction")
