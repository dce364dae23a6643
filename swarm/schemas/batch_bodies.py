"""Bodies about batches: their policy, what was sealed and trained, who agrees, and which tasks are held.

Place in the flow: the gateway's routes of batches, and the client's calls of them.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from swarm.schemas.base import Body, Identifier, StopRule
from swarm.spelling import with_hints


class AgreeRequest(Body):
    """POST batch/agree: this client has sent what it has for the present batch."""

    client_id: Identifier


class AgreeResponse(Body):
    """Who has agreed so far. `will_seal` is true once the batch goes to training."""

    agreed: list[str]
    will_seal: bool


class BatchPolicyView(Body):
    """When a batch is complete and what it may hold. `mixture` maps data sources to shares that sum to 1.

    `drain_timeout_s` is how long a complete batch waits for episodes still running; `batch_timeout_s` how long, after
    its first episode, a batch waits at all. A group none of whose episodes runs or is asked for counts with what it has
    after `group_timeout_s`, a batch in which no train episode runs after `stall_timeout_s`. `max_staleness` is in
    weight versions, per token.
    """

    stop_rule: StopRule
    batch_size: int
    num_repeat: int
    min_group: int
    drain_timeout_s: float
    batch_timeout_s: float | None
    group_timeout_s: float
    stall_timeout_s: float
    max_staleness: int
    mixture: dict[str, float] | None


class BatchPolicies(Body):
    """GET batch/policy: the policy of the batch being filled, and the one that the next batch starts with, if it
    differs."""

    active: BatchPolicyView
    next: BatchPolicyView | None


class UpdateBatchPolicyRequest(Body):
    """PATCH batch/policy: settings of the next batch; what is left out stays. `mixture` {} ends a mixture."""

    stop_rule: StopRule | None = None
    batch_size: int | None = Field(default=None, ge=1, le=100_000)
    num_repeat: int | None = Field(default=None, ge=1, le=10_000)
    min_group: int | None = Field(default=None, ge=1)
    drain_timeout_s: float | None = Field(default=None, gt=0, le=86_400, allow_inf_nan=False)
    batch_timeout_s: float | None = Field(default=None, gt=0, le=86_400, allow_inf_nan=False)
    group_timeout_s: float | None = Field(default=None, gt=0, le=86_400, allow_inf_nan=False)
    stall_timeout_s: float | None = Field(default=None, gt=0, le=86_400, allow_inf_nan=False)
    max_staleness: int | None = Field(default=None, ge=0, le=1000)
    mixture: dict[Identifier, float] | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _hint_at_known_settings(cls, data: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return check(data)
        except ValidationError as error:
            raise with_hints(error, cls) from None


class BatchView(Body):
    """One batch: `state` is sealed, trained, failed, or rewound if older weights were loaded after it was trained.

    `settings` is what it is trained with where that differs from the job as it was given.

    `metrics` is empty, `finished_at` and `weight_version` are None until it was trained. Times are seconds since the
    epoch.
    """

    batch_id: str
    step: int
    state: str
    reason: str | None
    sealed_at: float
    finished_at: float | None
    weight_version: int | None
    metrics: dict[str, float]
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])


class BatchPage(Body):
    """GET batches: of the present job, newest first."""

    batches: list[BatchView]


class HeldTask(Body):
    """What the present job has of one task: `groups` that a batch holds, trained or about to be, and `waiting` episodes
    that have ended and are in no batch yet."""

    task_id: str
    data_source: str
    groups: int
    waiting: int


class HeldTasks(Body):
    """GET tasks: by task id."""

    tasks: list[HeldTask]
