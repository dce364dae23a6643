"""The HTTP contract: bodies of the control API, the states, and the legal moves between them.

Place in the flow: the edge. The gateway parses and renders these, the client sends and receives them; inside the
service the frozen dataclasses of types.py flow instead. Chat bodies belong to the gateway's dialects, not here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from swarm.types import EpisodeType

API_PREFIX = "/v1/swarm"

Identifier = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w.:/@+-]+$")]
"""A caller-chosen name: letters, digits and `_ . : / @ + -`."""


MAX_REWARD = 1e6
"""Rewards are compared in 32-bit floats; beyond this, differences between them are lost."""


class EngineState(StrEnum):
    """What the server is doing. OFFLINE has no job; FAILED carries a reason and is left by start or stop."""

    OFFLINE = "OFFLINE"
    BOOTING = "BOOTING"
    ROLLING = "ROLLING"
    DRAINING = "DRAINING"
    TRAINING = "TRAINING"
    EXPORTING = "EXPORTING"
    FAILED = "FAILED"


LEGAL_ENGINE_MOVES: dict[EngineState, frozenset[EngineState]] = {
    EngineState.OFFLINE: frozenset({EngineState.BOOTING}),
    EngineState.BOOTING: frozenset({EngineState.ROLLING, EngineState.FAILED, EngineState.OFFLINE}),
    EngineState.ROLLING: frozenset(
        {EngineState.DRAINING, EngineState.EXPORTING, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.DRAINING: frozenset(
        {EngineState.TRAINING, EngineState.ROLLING, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.TRAINING: frozenset(
        {EngineState.ROLLING, EngineState.EXPORTING, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.EXPORTING: frozenset({EngineState.ROLLING, EngineState.FAILED, EngineState.OFFLINE}),
    EngineState.FAILED: frozenset({EngineState.BOOTING, EngineState.OFFLINE}),
}


class EpisodeState(StrEnum):
    """RUNNING until it ends, is aborted or expires; an ended train episode is TRAINED or DROPPED with its batch."""

    RUNNING = "running"
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    TRAINED = "trained"
    DROPPED = "dropped"


LEGAL_EPISODE_MOVES: dict[EpisodeState, frozenset[EpisodeState]] = {
    EpisodeState.RUNNING: frozenset({EpisodeState.COMPLETED, EpisodeState.ABORTED, EpisodeState.EXPIRED}),
    EpisodeState.COMPLETED: frozenset({EpisodeState.TRAINED, EpisodeState.DROPPED}),
    EpisodeState.ABORTED: frozenset(),
    EpisodeState.EXPIRED: frozenset(),
    EpisodeState.TRAINED: frozenset(),
    EpisodeState.DROPPED: frozenset(),
}


class Body(BaseModel):
    """Base of all bodies: unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str


class ErrorBody(BaseModel):
    """The body of every error response, in the OpenAI shape."""

    error: ErrorDetail


class BeginEpisodeRequest(Body):
    """POST episodes/begin. Held while a batch is training; 503 with Retry-After once `wait_s` is over.

    `idle_timeout_s` is the longest silence (no model call, no heartbeat) before the episode is given up.
    """

    episode_type: EpisodeType = EpisodeType.TRAIN
    client_id: Identifier = "anonymous"
    task_id: str | None = Field(default=None, max_length=500)
    idle_timeout_s: float = Field(default=240.0, gt=0, le=86_400, allow_inf_nan=False)
    wait_s: float = Field(default=25.0, ge=0, le=60, allow_inf_nan=False)


class BeginEpisodeResponse(Body):
    """`base_url` ends in /v1 and carries the host the caller used; `api_key` works for this episode only."""

    episode_id: str
    base_url: str
    api_key: str
    model: str
    weight_version: int
    deadline_s: float


class EndEpisodeRequest(Body):
    """POST episodes/{id}/end. Exactly once by `idempotency_key` (default: the episode id)."""

    task_id: str = Field(min_length=1, max_length=500)
    reward: Annotated[FiniteFloat, Field(ge=-MAX_REWARD, le=MAX_REWARD)]
    is_success: bool | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    client_id: Identifier = "anonymous"
    idempotency_key: str | None = Field(default=None, max_length=200)


class EndEpisodeResponse(Body):
    """What became of the episode. `replayed` is true if an earlier call with the same key had ended it already.

    `weight_versions` are all that sampled one of its tokens.
    """

    episode_id: str
    state: EpisodeState
    outcome: str | None
    batch_id: str | None
    replayed: bool
    weight_versions: list[int] = Field(default_factory=list[int])


class AbortEpisodeRequest(Body):
    """POST episodes/{id}/abort. A system error, never a reward: counted under `reason` and not trained."""

    reason: str = Field(default="client_abort", max_length=200)


class EpisodeView(Body):
    """One episode as the server knows it. Times are seconds since the epoch; `outcome` says why it was dropped."""

    episode_id: str
    episode_type: EpisodeType
    state: EpisodeState
    client_id: str
    task_id: str | None
    reward: float | None
    is_success: bool | None
    outcome: str | None
    turns: int
    begun_at: float
    last_seen_at: float
    ended_at: float | None
    weight_versions: list[int]
    batch_id: str | None


class EpisodePage(Body):
    episodes: list[EpisodeView]
    next_cursor: str | None


class TurnView(Body):
    """One recorded model call, token by token."""

    index: int
    parent: int | None
    fork_reason: str | None
    messages: list[dict[str, Any]]
    reply: dict[str, Any]
    tools: list[dict[str, Any]]
    prompt_ids: list[int]
    output_ids: list[int]
    output_tokens: list[str]
    logprobs: list[float]
    weight_versions: list[int]
    finish_reason: str
    params: dict[str, Any]


class SampleView(Body):
    """One training sequence of an episode. All lists have one entry per token."""

    token_ids: list[int]
    tokens: list[str]
    loss_mask: list[bool]
    logprobs: list[float]
    weight_versions: list[int]
    turn_indices: list[int]


class EpisodeDetail(Body):
    """GET episodes/{id}: the episode, its turns and the samples they merge to; `advantage` once it was trained."""

    episode: EpisodeView
    turns: list[TurnView]
    samples: list[SampleView]
    advantage: float | None


class SyncJobRequest(Body):
    """PUT job. `job` is checked by TrainJob; accepted while OFFLINE or FAILED, or if equal to the present job."""

    job: dict[str, Any]


class StartEngineRequest(Body):
    """POST engine/start. `resume` continues from the newest checkpoint of the experiment, if there is one."""

    resume: bool = True


class CheckpointResponse(Body):
    path: str
    step: int
    weight_version: int


class JobView(Body):
    """GET job: as given, and with every default resolved. Both are null while no job is known."""

    job: dict[str, Any] | None
    resolved: dict[str, Any] | None


class PoolView(Body):
    """How full the next batch is, counted by the stop rule in force."""

    stop_rule: str
    episodes: int
    episodes_target: int
    tasks: int
    tasks_target: int
    running_train: int
    running_eval: int


class ClientView(Body):
    client_id: str
    last_seen_at: float
    running: int
    completed: int


class Status(Body):
    """GET status: one snapshot. `failures` counts episodes and tokens that were not trained, by reason."""

    server_version: str
    state: EngineState
    reason: str | None
    project_name: str | None
    experiment_name: str | None
    model: str | None
    step: int
    total_steps: int | None
    weight_version: int
    pool: PoolView | None
    clients: list[ClientView]
    failures: dict[str, int]
    tokens_per_second: float
    last_metrics: dict[str, float]
    started_at: float
    now: float


class MetricPointView(Body):
    step: int
    at: float
    metrics: dict[str, float]


class MetricsHistory(Body):
    """GET metrics?after_step=N: one entry per finished step, oldest first."""

    points: list[MetricPointView]


class Ready(Body):
    ready: bool
    state: EngineState
    reason: str | None


class Acknowledged(Body):
    ok: bool = True
    state: EngineState
