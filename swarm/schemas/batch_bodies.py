"""Bodies about batches: batch policy, closed and trained batches, agreement of clients, and episodes per task."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from swarm.schemas.base import Body, Identifier, StopRule
from swarm.spelling import with_hints


class AgreeRequest(Body):
    """The request of POST batch/agree: this client has no more episodes for the present batch."""

    client_id: Identifier


class AgreeResponse(Body):
    """The clients that have agreed so far. `will_close` is true if the batch is complete and goes to training."""

    agreed: list[str]
    will_close: bool


class BatchPolicyView(Body):
    """The policy of a batch: when it is complete and what it may contain.

    `mixture` maps data sources to shares that sum to 1. A complete batch waits up to `drain_timeout_s` for running
    episodes. An incomplete batch is closed with what it has `batch_timeout_s` after its first episode, or if no train
    episode runs for `stall_timeout_s`. An incomplete group counts with what it has if none of its episodes runs or
    waits to begin for `group_timeout_s`. `max_staleness` is in weight versions, per token.
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
    """The answer to GET batch/policy: the policy of the present batch, and that of the next one if it differs."""

    active: BatchPolicyView
    next: BatchPolicyView | None


class UpdateBatchPolicyRequest(Body):
    """The request of PATCH batch/policy: settings from the next batch on.

    A setting that is left out stays as it is. The mixture {} switches the mixture off.
    """

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
    """One batch.

    `state` is `closed` (complete, not yet trained), `trained`, `failed`, or `rewound` if older weights were loaded
    after its training. `settings` has the settings of its training that differ from the job as given. Until the batch
    is trained, `metrics` is empty, and `finished_at` and `weight_version` are null. Times are seconds since the epoch.
    """

    batch_id: str
    step: int
    state: str
    reason: str | None
    closed_at: float
    finished_at: float | None
    weight_version: int | None
    metrics: dict[str, float]
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])


class BatchPage(Body):
    """The answer to GET batches: batches of the present job, newest first."""

    batches: list[BatchView]


class TaskCount(Body):
    """The groups and episodes of one task in the present job.

    `groups` counts the task's groups in trained batches and batches that wait for training. `waiting` counts ended
    episodes that are in no batch yet.
    """

    task_id: str
    data_source: str
    groups: int
    waiting: int


class TaskCounts(Body):
    """The answer to GET tasks: the tasks in order of their id."""

    tasks: list[TaskCount]
