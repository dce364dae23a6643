"""The stored result of an episode: the report of its client, with a checksum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.ledger.integrity.checksums import RESULT_COLUMNS, checksum
from swarm.ledger.rows import NO_USE, ModelUse
from swarm.ledger.writes.encoding import to_json, to_json_or_null

RESULT = ", ".join(RESULT_COLUMNS)
SET_RESULT = ", ".join(f"{name} = :{name}" for name in (*RESULT_COLUMNS, "checksum") if name != "episode_id")
"""The assignments, in SQL, of `ReportedResult.result_columns`."""
NO_RESULT = {**dict.fromkeys(RESULT_COLUMNS), "metadata": "{}"}


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
        return with_checksum(
            {
                "episode_id": self.episode_id,
                "task_id": self.task_id,
                "idempotency_key": self.idempotency_key,
                "payload_digest": self.payload_digest,
                "reward": float(self.reward),
                "is_success": None if self.is_success is None else int(self.is_success),
                "metadata": to_json(self.metadata),
                "turn_rewards": to_json_or_null(self.turn_rewards),
                "rewards": to_json_or_null(self.rewards),
            }
        )


def with_checksum(result: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a result with their checksum."""
    return {**result, "checksum": checksum([result[name] for name in RESULT_COLUMNS])}
