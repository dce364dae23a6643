"""The life of one episode: begun, ended, revised or given up."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Literal

from swarm.errors import Conflict, EpisodeEnded, IdempotencyMismatch, LedgerError
from swarm.ledger import queries
from swarm.ledger.integrity.checksums import RESULT_COLUMNS
from swarm.ledger.queries import IN_POOL
from swarm.ledger.rows import NO_USE, EndReceipt, EpisodeRow, ModelUse
from swarm.ledger.writes.counts import count_acknowledged, count_closed
from swarm.ledger.writes.encoding import to_json_or_null
from swarm.ledger.writes.events import insert_event
from swarm.ledger.writes.results import NO_RESULT, RESULT, SET_RESULT, ReportedResult, with_checksum
from swarm.ledger.writes.usage import add_use
from swarm.schemas import EpisodeState

_GIVEN_AT_BEGIN = (
    "episode_type", "client_id", "api_key_sha256", "begun_at", "idle_timeout_s", "deadline_at", "data_source",
    "lease_s", "is_greedy", "sampling_seed", "temperature", "max_calls", "max_tokens",
)  # fmt: skip
_AT_BEGIN = (*RESULT_COLUMNS, "checksum", *_GIVEN_AT_BEGIN, "last_seen_at")
_INSERT_EPISODE = (
    f"INSERT INTO episodes (job_id, state, {', '.join(_AT_BEGIN)})"
    f" SELECT job_id, 'running', {', '.join(f':{name}' for name in _AT_BEGIN)} FROM jobs ORDER BY job_id DESC LIMIT 1"
)


def insert_episode(connection: sqlite3.Connection, row: EpisodeRow) -> None:
    """Record a RUNNING episode of the newest job. Raise LedgerError if no job is recorded or the id is taken."""
    result = with_checksum({**NO_RESULT, "episode_id": row.episode_id, "task_id": row.task_id})
    settings = {name: getattr(row, name) for name in _GIVEN_AT_BEGIN}
    inserted = connection.execute(_INSERT_EPISODE, {**result, **settings, "last_seen_at": row.begun_at}).rowcount
    if not inserted:
        raise LedgerError("no job is on record: record one before the first episode")


def end_episode(connection: sqlite3.Connection, ending: ReportedResult) -> EndReceipt:
    """Complete a running episode exactly once. The same key and digest again give the same answer.

    Raise NotFound, IdempotencyMismatch for another payload under the same key, or EpisodeEnded. EpisodeEnded tells
    whether the episode ended under another key, was aborted or expired.
    """
    add_use(connection, ending.episode_id, ending.unrecorded)
    ended = connection.execute(
        f"UPDATE episodes SET state = 'completed', ended_at = :ended_at, last_seen_at = :ended_at, {SET_RESULT},"
        " model_share = :model_share WHERE episode_id = :episode_id AND state = 'running'"
        f" RETURNING weight_versions, begun_at, {queries.USE_COLUMNS}",
        {**ending.result_columns(), "ended_at": ending.ended_at, "model_share": ending.model_share},
    ).fetchone()
    if ended is None:
        return _replay(queries.episode(connection, ending.episode_id), ending)
    count_acknowledged(connection)
    versions = tuple(json.loads(ended["weight_versions"]))
    use, share = queries.to_use(ended), ending.model_share
    return EndReceipt(
        False, EpisodeState.COMPLETED, None, None, ending.ended_at, versions, ended["begun_at"], use, share
    )


def revise_reward(
    connection: sqlite3.Connection,
    at: float,
    episode_id: str,
    *,
    reward: float,
    is_success: bool | None,
    turn_rewards: Sequence[float] | None,
    rewards: Mapping[str, float] | None = None,
    reason: str,
) -> EpisodeRow:
    """Give an episode that waits for a batch another result. `reward_revisions` keeps the former one.

    Raise NotFound, or EpisodeEnded once its batch is closed or if it is in any other state.
    """
    former = queries.episode(connection, episode_id)
    stored = connection.execute(f"SELECT {RESULT} FROM episodes WHERE episode_id = ?", (episode_id,)).fetchone()
    result = with_checksum(
        {
            **dict(stored),
            "reward": float(reward),
            "is_success": None if is_success is None else int(is_success),
            "turn_rewards": to_json_or_null(turn_rewards),
            "rewards": to_json_or_null(rewards),
        }
    )
    revised = connection.execute(
        f"UPDATE episodes SET {SET_RESULT} WHERE episode_id = :episode_id AND {IN_POOL}", result
    ).rowcount
    if not revised:
        how = "its batch is closed" if former.state is EpisodeState.COMPLETED else f"it is {former.state}"
        raise EpisodeEnded(f"the reward of episode {episode_id} is final: {how}")
    connection.execute(
        "INSERT INTO reward_revisions (episode_id, reward, is_success, turn_rewards, rewards, reason, at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            episode_id,
            former.reward,
            former.is_success,
            to_json_or_null(former.turn_rewards),
            to_json_or_null(former.rewards),
            reason,
            at,
        ),
    )
    detail = {"episode_id": episode_id, "from": former.reward, "to": reward, "reason": reason}
    insert_event(connection, at, "reward.revised", detail)
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


def receipt_of(row: EpisodeRow, *, replayed: bool = True) -> EndReceipt:
    """Return the receipt of an episode that has a result."""
    assert row.ended_at is not None, "it has a result"
    return EndReceipt(
        replayed,
        row.state,
        row.outcome,
        row.batch_id,
        row.ended_at,
        row.weight_versions,
        row.begun_at,
        row.use,
        row.model_share,
    )


def _replay(row: EpisodeRow, ending: ReportedResult) -> EndReceipt:
    if row.state is EpisodeState.PREPARED:
        raise Conflict(f"episode {row.episode_id} is prepared: commit its transaction")
    if row.ended_at is None or row.idempotency_key != ending.idempotency_key:
        why = f" ({row.outcome})" if row.outcome else ""
        raise EpisodeEnded(f"episode {row.episode_id} is over: it is {row.state}{why}; begin another one")
    if row.payload_digest != ending.payload_digest:
        raise IdempotencyMismatch(
            f"episode {row.episode_id} was ended with another result under the same key; the first one stands"
        )
    return receipt_of(row)
