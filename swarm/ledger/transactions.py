"""Episodes that end together with episodes of other servers, or not at all: their writes and reads."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from swarm.errors import Conflict, IdempotencyMismatch
from swarm.ledger import queries
from swarm.ledger.rows import EndReceipt, EpisodeRow
from swarm.ledger.tables import EPISODES
from swarm.ledger.writes.episodes import SET_RESULT, ReportedResult, close_episode, episode_over
from swarm.ledger.writes.events import count_acknowledged
from swarm.ledger.writes.turns import add_use
from swarm.schemas import EpisodeState

COMMIT_LIMIT_S = 300.0
"""How long after its preparation the deciding episode can be committed. Other servers wait longer, so that the deciding
server always has an answer for them."""

COMMIT_TIMEOUT = "commit_timeout"

_GIVEN_UP = frozenset({EpisodeState.ABORTED, EpisodeState.EXPIRED})


def prepare_episode(
    connection: sqlite3.Connection, ending: ReportedResult, *, transaction_sha256: str, inquiry_url: str | None
) -> EndReceipt:
    """Store the result of a running episode that counts only if its transaction commits.

    The same request again gives the same answer. Without an `inquiry_url`, the commit of this episode decides. Raise
    NotFound, IdempotencyMismatch for another result, Conflict for another transaction, or EpisodeEnded.
    """
    present = queries.episode(connection, ending.episode_id)
    if present.state is not EpisodeState.RUNNING:
        return _replay(present, ending, transaction_sha256)
    if inquiry_url is None and transaction(connection, transaction_sha256) is not None:
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


def transaction(connection: sqlite3.Connection, transaction_sha256: str) -> EpisodeRow | None:
    """Return the episode whose commit decides, or None if the transaction is not decided here.

    The search uses a digest, so that its duration reveals nothing about any secret.
    """
    row = connection.execute(
        "SELECT * FROM episodes WHERE transaction_sha256 = ? AND inquiry_url IS NULL", (transaction_sha256,)
    ).fetchone()
    return None if row is None else queries.to_episode(row)


def _replay(row: EpisodeRow, ending: ReportedResult, transaction_sha256: str) -> EndReceipt:
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
