"""Turns, each written together with its model use, and the model use of calls without a turn."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.ledger.rows import MAX_SETTINGS, NO_USE, ModelUse, SamplingSettings
from swarm.ledger.tables import TURNS, Stored, checksum, to_json, to_sampling
from swarm.types import Turn

_INSERT = TURNS.insert("checksum")


@dataclass(frozen=True, slots=True)
class EncodedTurn:
    """A turn as it is stored. The caller's thread makes it, so that the writer only writes."""

    turn: Turn
    columns: dict[str, Stored]
    weight_versions: tuple[int, ...]
    sampling: tuple[SamplingSettings, ...]

    @classmethod
    def of(cls, turn: Turn) -> EncodedTurn:
        """Return a turn as it is stored. Raise LedgerError for a value that JSON cannot express."""
        columns = TURNS.encode(turn)
        return cls(
            turn,
            {**columns, "checksum": checksum(columns.values())},
            tuple(sorted(set(turn.weight_versions_T))),
            (SamplingSettings.of(turn.params),),
        )


def insert_turns(connection: sqlite3.Connection, turns: Sequence[EncodedTurn]) -> None:
    """Record the turns of one model call."""
    for turn in turns:
        insert_turn(connection, turn)


def insert_turn(connection: sqlite3.Connection, encoded: EncodedTurn) -> None:
    """Record a turn, and add its model use to its episode."""
    connection.execute(_INSERT, encoded.columns)
    turn, own, sampling = encoded.turn, to_json(encoded.weight_versions), to_json(encoded.sampling)
    known, known_sampling = connection.execute(
        "UPDATE episodes SET turns = turns + 1, calls = calls + 1, prompt_tokens = prompt_tokens + ?,"
        " sampled_tokens = sampled_tokens + ?, weight_versions = iif(weight_versions = '[]', ?, weight_versions),"
        " sampling = iif(sampling = '[]', ?, sampling)"
        " WHERE episode_id = ? RETURNING weight_versions, sampling",
        (len(turn.prompt_ids), len(turn.output_ids_T), own, sampling, turn.episode_id),
    ).fetchone()
    if known != own:
        versions = sorted({*encoded.weight_versions, *json.loads(known)})
        connection.execute(
            "UPDATE episodes SET weight_versions = ? WHERE episode_id = ?", (to_json(versions), turn.episode_id)
        )
    if known_sampling != sampling:
        add_sampling(connection, turn.episode_id, to_sampling(known_sampling), encoded.sampling)


def add_use(connection: sqlite3.Connection, episode_id: str, use: ModelUse) -> None:
    """Add the use of a running episode's calls that is not on record yet."""
    if use == NO_USE:
        return
    known = connection.execute(
        "UPDATE episodes SET calls = calls + ?, prompt_tokens = prompt_tokens + ?, sampled_tokens = sampled_tokens + ?,"
        " is_limited = max(is_limited, ?), system_failures = system_failures + ?, overruled = overruled + ?,"
        " asked = iif(asked = '[]', ?, asked)"
        " WHERE episode_id = ? AND state = 'running' RETURNING sampling",
        (
            *(use.calls, use.prompt_tokens, use.sampled_tokens, use.is_limited, use.system_failures, use.overruled),
            *(to_json(use.asked), episode_id),
        ),
    ).fetchone()
    if known is not None:
        add_sampling(connection, episode_id, to_sampling(known["sampling"]), use.sampling)


def add_sampling(
    connection: sqlite3.Connection,
    episode_id: str,
    known: Sequence[SamplingSettings],
    used: Sequence[SamplingSettings],
) -> None:
    """Add sampling settings to the known ones of an episode."""
    together = tuple(dict.fromkeys((*known, *used)))[:MAX_SETTINGS]
    if together != tuple(known):
        connection.execute("UPDATE episodes SET sampling = ? WHERE episode_id = ?", (to_json(together), episode_id))
