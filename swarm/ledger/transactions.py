"""Writes and reads of episodes that end together with episodes of other servers, or not at all.

Place in the flow: as operations.py, whose statements these complete. A prepared episode has its result on record and
waits for one word; which word, rollout/transactions/two_phase.py finds out. An episode without `inquiry_url` is the one
whose commit decides.
"""

from __future__ import annotations

import json
import sqlite3

from swarm.errors import Conflict, EpisodeEnded, IdempotencyMismatch
from swarm.ledger import queries
from swarm.ledger.rows import EndReceipt, EpisodeRow
from swarm.ledger.writes import SET_RESULT, Ending, close_episode, count_acknowledged
from swarm.schemas import EpisodeState

COMMIT_LIMIT_S = 300.0
"""How long after its preparation the deciding episode can be committed. Others hold out longer, so that a server that
answers them has always made up its mind."""

COMMIT_TIMEOUT = "commit_timeout"

_GIVEN_UP = frozenset({EpisodeState.ABORTED, EpisodeState.EXPIRED})


def prepare_episode(
    connection: sqlite3.Connection, ending: Ending, *, transaction_sha256: str, inquiry_url: str | None
) -> EndReceipt:
    """Store the result of a running episode that is to count only if its transaction does; the same again gives
    the same answer. `inquiry_url` None: its own commit decides.

    Raises NotFound, IdempotencyMismatch for another result, Conflict for another transaction, or EpisodeEnded.
    """
    present = queries.episode(connection, ending.episode_id)
    if present.state is not EpisodeState.RUNNING:
        return _replay(present, ending, transaction_sha256)
    if inquiry_url is None and transaction(connection, transaction_sha256) is not None:
        raise Conflict("another episode of this server decides this transaction: draw a new transaction_id")
    versions = connection.execute(
        f"UPDATE episodes SET state = 'prepared', ended_at = :ended_at, last_seen_at = :ended_at, {SET_RESULT},"
        " transaction_sha256 = :transaction_sha256, inquiry_url = :inquiry_url"
        " WHERE episode_id = :episode_id RETURNING weight_versions",
        {
            **ending.result_columns(),
            "ended_at": ending.ended_at,
            "transaction_sha256": transaction_sha256,
            "inquiry_url": inquiry_url,
        },
    ).fetchone()[0]
    return EndReceipt(False, EpisodeState.PREPARED, None, None, ending.ended_at, tuple(json.loads(versions)))


def commit_episode(
    connection: sqlite3.Connection, episode_id: str, *, transaction_sha256: str, ended_at: float
) -> EndReceipt:
    """Complete a prepared episode; again gives the same answer.

    Too late a commit gives the deciding episode up instead, which the receipt says: an error would undo that. Raises
    NotFound, EpisodeEnded if it was given up before, Conflict if it is not of this transaction.
    """
    present = queries.episode(connection, episode_id)
    if present.state is EpisodeState.RUNNING:
        raise Conflict(f"episode {episode_id} is running: prepare it first")
    _require_same(present, transaction_sha256)
    if present.state in _GIVEN_UP:
        raise _over(present)
    if present.state is not EpisodeState.PREPARED:
        return _receipt(present)
    if present.inquiry_url is None and ended_at > (present.ended_at or 0.0) + COMMIT_LIMIT_S:
        close_episode(connection, episode_id, EpisodeState.EXPIRED, COMMIT_TIMEOUT, ended_at=ended_at, is_prepared=True)
        return _receipt(queries.episode(connection, episode_id))
    connection.execute(
        "UPDATE episodes SET state = 'completed', ended_at = ? WHERE episode_id = ?", (ended_at, episode_id)
    )
    count_acknowledged(connection)
    return EndReceipt(False, EpisodeState.COMPLETED, None, None, ended_at, present.weight_versions)


def transaction(connection: sqlite3.Connection, transaction_sha256: str) -> EpisodeRow | None:
    """The episode whose commit decides it; None if it is not decided here.

    Found by a digest, so that the time this takes tells nothing of any secret.
    """
    row = connection.execute(
        "SELECT * FROM episodes WHERE transaction_sha256 = ? AND inquiry_url IS NULL", (transaction_sha256,)
    ).fetchone()
    return None if row is None else queries.to_episode(row)


def _replay(row: EpisodeRow, ending: Ending, transaction_sha256: str) -> EndReceipt:
    if row.state in _GIVEN_UP:
        raise _over(row)
    _require_same(row, transaction_sha256)
    if row.payload_digest != ending.payload_digest:
        raise IdempotencyMismatch(
            f"episode {row.episode_id} was prepared with another result in this transaction; the first one stands"
        )
    return _receipt(row)


def _require_same(row: EpisodeRow, transaction_sha256: str) -> None:
    if row.transaction_sha256 != transaction_sha256:
        raise Conflict(f"episode {row.episode_id} is {row.state} outside of this transaction")


def _receipt(row: EpisodeRow) -> EndReceipt:
    assert row.ended_at is not None, "it has a result"
    return EndReceipt(True, row.state, row.outcome, row.batch_id, row.ended_at, row.weight_versions)


def _over(row: EpisodeRow) -> EpisodeEnded:
    why = f" ({row.outcome})" if row.outcome else ""
    return EpisodeEnded(f"episode {row.episode_id} is over: it is {row.state}{why}; begin another one")
