"""The status of a server, as far as the explorer shows it; unknown fields are ignored. Every text in it is foreign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ShownPool(_Answer):
    """The progress of the next batch, and the episodes under way."""

    episodes: int = 0
    episodes_target: int = 0
    tasks: int = 0
    tasks_target: int = 0
    running_train: int = 0
    running_eval: int = 0


class ShownClient(_Answer):
    """A client that called recently."""

    client_id: str
    last_seen_at: float
    running: int
    completed: int
    lost: int


class ShownWarning(_Answer):
    """A probable mistake of a client."""

    client_id: str
    message: str
    count: int = 1


class ShownGuard(_Answer):
    """The newest fault that the guard of the training found."""

    did: str
    step: int
    sentence: str
    advice: str = ""


class ShownLoss(_Answer):
    """Episodes that the server acknowledged and does not have."""

    sentence: str


class ShownScore(_Answer):
    """A held-out score."""

    mean: float | None = None


class ShownStatus(_Answer):
    """One snapshot of a server. `policy` says when a batch is complete; it is None while no engine runs."""

    state: str
    step: int
    weight_version: int
    server_version: str = ""
    reason: str | None = None
    project_name: str | None = None
    experiment_name: str | None = None
    model: str | None = None
    total_steps: int | None = None
    pool: ShownPool | None = None
    policy: dict[str, Any] | None = None
    clients: list[ShownClient] = Field(default_factory=list[ShownClient])
    warnings: list[ShownWarning] = Field(default_factory=list[ShownWarning])
    guard: ShownGuard | None = None
    lost: list[ShownLoss] = Field(default_factory=list[ShownLoss])
    last_evaluation: ShownScore | None = None
    last_metrics: dict[str, Any] = Field(default_factory=dict[str, Any])
    tokens_per_second: float = 0.0
    recoveries: int = 0
    revision: int = 0
    now: float = 0.0


def read_status(document: Mapping[str, Any]) -> ShownStatus | None:
    """Return the status in an answer; None if it is none."""
    try:
        return ShownStatus.model_validate(document)
    except ValidationError:
        return None
