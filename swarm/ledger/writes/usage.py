"""The model use of an episode: calls, tokens and sampling settings."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from swarm.ledger import queries
from swarm.ledger.rows import MAX_SETTINGS, NO_USE, ModelUse, SamplingSettings
from swarm.ledger.writes.encoding import to_json


def add_use(connection: sqlite3.Connection, episode_id: str, use: ModelUse) -> None:
    """Add the use of a running episode's calls that is not on record yet."""
    if use == NO_USE:
        return
    known = connection.execute(
        "UPDATE episodes SET calls = calls + ?, prompt_tokens = prompt_tokens + ?, sampled_tokens = sampled_tokens + ?,"
        " is_limited = max(is_limited, ?), system_failures = system_failures + ?"
        " WHERE episode_id = ? AND state = 'running' RETURNING sampling",
        (use.calls, use.prompt_tokens, use.sampled_tokens, use.is_limited, use.system_failures, episode_id),
    ).fetchone()
    if known is not None:
        add_sampling(connection, episode_id, queries.to_sampling(known["sampling"]), use.sampling)


def add_sampling(
    connection: sqlite3.Connection,
    episode_id: str,
    known: Sequence[SamplingSettings],
    used: Sequence[SamplingSettings],
) -> None:
    """Add sampling settings to the known ones of an episode."""
    together = tuple(dict.fromkeys((*known, *used)))[:MAX_SETTINGS]
    if together != tuple(known):
        connection.execute(
            "UPDATE episodes SET sampling = ? WHERE episode_id = ?", (sampling_to_json(together), episode_id)
        )


def sampling_to_json(settings: Sequence[SamplingSettings]) -> str:
    """Return sampling settings as they are stored."""
    return to_json([(each.temperature, each.others) for each in settings])
