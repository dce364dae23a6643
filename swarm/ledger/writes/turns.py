"""Turns: one completion each, encoded by its caller's thread and written together with its model use."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from swarm.ledger import queries
from swarm.ledger.blobs import pack_floats, pack_integers
from swarm.ledger.integrity.checksums import TURN_COLUMNS, checksum
from swarm.ledger.rows import SamplingSettings
from swarm.ledger.writes.encoding import to_json
from swarm.ledger.writes.usage import add_sampling, sampling_to_json
from swarm.types import SamplingParams, Turn

_DEFAULTS = {parameter.name: parameter.default for parameter in fields(SamplingParams)}
_PLACES = ", ".join("?" * (len(TURN_COLUMNS) + 1))
_COLUMNS = ", ".join((*TURN_COLUMNS, "checksum"))


@dataclass(frozen=True, slots=True)
class EncodedTurn:
    """A turn as it is stored. The caller's thread makes it, so that the writer only writes."""

    episode_id: str
    columns: tuple[Any, ...]
    weight_versions: tuple[int, ...]
    prompt_tokens: int
    sampled_tokens: int
    sampling: tuple[SamplingSettings, ...]

    @classmethod
    def of(cls, turn: Turn) -> EncodedTurn:
        """Return a turn as it is stored. Raise LedgerError for a value that JSON cannot express."""
        columns = (
            turn.episode_id,
            turn.index,
            pack_integers(turn.prompt_ids),
            pack_integers(turn.output_ids_T),
            pack_floats(turn.logprobs_T),
            pack_integers(turn.weight_versions_T),
            turn.finish_reason.value,
            _params_to_json(turn.params),
            to_json(turn.messages),
            to_json(turn.reply),
            to_json(turn.tools),
            turn.parent,
            None if turn.fork_reason is None else turn.fork_reason.value,
            float(turn.started_at),
            float(turn.ended_at),
            turn.call_id,
            turn.choice,
            turn.request_sha256,
            turn.attempt,
            turn.withheld,
        )
        return cls(
            turn.episode_id,
            (*columns, checksum(columns)),
            tuple(sorted(set(turn.weight_versions_T))),
            len(turn.prompt_ids),
            len(turn.output_ids_T),
            (SamplingSettings.of(turn.params),),
        )


def insert_turns(connection: sqlite3.Connection, turns: Sequence[EncodedTurn]) -> None:
    """Record the turns of one model call."""
    for turn in turns:
        insert_turn(connection, turn)


def insert_turn(connection: sqlite3.Connection, turn: EncodedTurn) -> None:
    """Record a turn, and add its model use to its episode."""
    connection.execute(f"INSERT INTO turns ({_COLUMNS}) VALUES ({_PLACES})", turn.columns)
    own, sampling = to_json(turn.weight_versions), sampling_to_json(turn.sampling)
    known, known_sampling = connection.execute(
        "UPDATE episodes SET turns = turns + 1, calls = calls + 1, prompt_tokens = prompt_tokens + ?,"
        " sampled_tokens = sampled_tokens + ?, weight_versions = iif(weight_versions = '[]', ?, weight_versions),"
        " sampling = iif(sampling = '[]', ?, sampling)"
        " WHERE episode_id = ? RETURNING weight_versions, sampling",
        (turn.prompt_tokens, turn.sampled_tokens, own, sampling, turn.episode_id),
    ).fetchone()
    if known != own:
        versions = sorted({*turn.weight_versions, *json.loads(known)})
        connection.execute(
            "UPDATE episodes SET weight_versions = ? WHERE episode_id = ?", (to_json(versions), turn.episode_id)
        )
    if known_sampling != sampling:
        add_sampling(connection, turn.episode_id, queries.to_sampling(known_sampling), turn.sampling)


def _params_to_json(params: SamplingParams) -> str:
    """Return the parameters that differ from the defaults, which are few."""
    given = {name: value for name in _DEFAULTS if (value := getattr(params, name)) != _DEFAULTS[name]}
    if params.grammar is not None:
        given["grammar"] = asdict(params.grammar)
    return to_json(given)
