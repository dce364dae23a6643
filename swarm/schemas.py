"""The HTTP contract: bodies of the control API, the states, and the legal moves between them.

Place in the flow: the edge. The gateway parses and renders these, the client sends and receives them; inside the
service the frozen dataclasses of types.py flow instead. Chat bodies belong to the gateway's dialects, not here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from swarm.spelling import with_hints
from swarm.types import DEFAULT_DATA_SOURCE, EpisodeType

API_PREFIX = "/v1/swarm"

Identifier = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w.:/@+-]+$")]
"""A caller-chosen name: letters, digits and `_ . : / @ + -`."""


MAX_REWARD = 1e6
"""Rewards are compared in 32-bit floats; beyond this, differences between them are lost."""


Reward = Annotated[FiniteFloat, Field(ge=-MAX_REWARD, le=MAX_REWARD)]

StopRule = Literal[
    "enough_episodes", "enough_tasks", "enough_non_constant_tasks", "any_client_agrees", "all_clients_agree"
]
"""When a batch is complete: so many episodes; so many tasks with a full group; so many whose rewards differ (dynamic
sampling, the others are dropped); as soon as one client says so; as soon as every client that is alive says so."""


class EngineState(StrEnum):
    """What the server is doing. OFFLINE has no job; FAILED carries a reason and is left by start or stop.

    A running engine goes back to BOOTING when its worker died and another one takes over. COMPLETE has done the
    `total_steps` of its job: it serves the model and eval episodes, and takes no train episodes.
    """

    OFFLINE = "OFFLINE"
    BOOTING = "BOOTING"
    ROLLING = "ROLLING"
    DRAINING = "DRAINING"
    TRAINING = "TRAINING"
    EXPORTING = "EXPORTING"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"


LEGAL_ENGINE_MOVES: dict[EngineState, frozenset[EngineState]] = {
    EngineState.OFFLINE: frozenset({EngineState.BOOTING}),
    EngineState.BOOTING: frozenset(
        {EngineState.ROLLING, EngineState.COMPLETE, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.ROLLING: frozenset(
        {EngineState.DRAINING, EngineState.EXPORTING, EngineState.BOOTING, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.DRAINING: frozenset(
        {EngineState.TRAINING, EngineState.ROLLING, EngineState.BOOTING, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.TRAINING: frozenset(
        {
            EngineState.ROLLING,
            EngineState.EXPORTING,
            EngineState.COMPLETE,
            EngineState.BOOTING,
            EngineState.FAILED,
            EngineState.OFFLINE,
        }
    ),
    EngineState.EXPORTING: frozenset(
        {EngineState.ROLLING, EngineState.COMPLETE, EngineState.BOOTING, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.COMPLETE: frozenset(
        {EngineState.ROLLING, EngineState.EXPORTING, EngineState.BOOTING, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.FAILED: frozenset({EngineState.BOOTING, EngineState.OFFLINE}),
}


class EpisodeState(StrEnum):
    """RUNNING until it ends, is aborted or expires; an ended train episode is TRAINED or DROPPED with its batch.

    PREPARED episodes have their result and wait for the transaction that ends them together with those of other
    servers.
    """

    RUNNING = "running"
    PREPARED = "prepared"
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    TRAINED = "trained"
    DROPPED = "dropped"


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


Secret = Annotated[str, Field(min_length=22, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]
"""At least 128 bits that the client draws, URL-safe: 22 characters of base64 hold 132."""


class BeginEpisodeRequest(Body):
    """POST episodes/begin. Held while a batch is training; 503 with Retry-After once `wait_s` is over.

    `idle_timeout_s` is the longest silence (no model call, no heartbeat of this episode) before it is given up.
    With `lease_s` the client promises a sign of life (any call of this episode, or POST heartbeat that lists it) within
    every such span; a client that died then loses the episode after that span already.

    With a `begin_secret`, drawn anew for each episode, the same request again is the same episode, with the same key:
    what a client sends whose first call got no answer.
    """

    begin_secret: Secret | None = None
    episode_type: EpisodeType = EpisodeType.TRAIN
    client_id: Identifier = "anonymous"
    task_id: str | None = Field(default=None, min_length=1, max_length=500)
    data_source: Identifier = DEFAULT_DATA_SOURCE
    lease_s: float | None = Field(default=None, ge=1, le=3600, allow_inf_nan=False)
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
    lease_s: float | None = None


class EndEpisodeRequest(Body):
    """POST episodes/{id}/end. Exactly once by `idempotency_key` (default: the episode id).

    `turn_rewards`, if given, has one entry per recorded turn.
    """

    task_id: str = Field(min_length=1, max_length=500)
    reward: Reward
    is_success: bool | None = None
    turn_rewards: list[Reward] | None = Field(default=None, max_length=10_000)
    metadata: dict[str, Any] = Field(default_factory=dict)
    client_id: Identifier = "anonymous"
    idempotency_key: str | None = Field(default=None, max_length=200)


class PrepareEpisodeRequest(EndEpisodeRequest):
    """POST episodes/{id}/prepare: the result of an episode that counts only together with those of other servers.

    `coordinator` is the base URL of the server whose commit decides, null on that server itself, which is prepared
    first.
    """

    transaction_id: Secret
    coordinator: str | None = Field(default=None, min_length=8, max_length=500)


class CommitEpisodeRequest(Body):
    """POST episodes/{id}/commit: on the coordinator this decides the transaction, elsewhere it carries that out."""

    transaction_id: Secret


class TransactionState(StrEnum):
    """What became of a transaction, as its coordinator knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    PENDING = "pending"


class TransactionView(Body):
    """GET transactions/{id}. A transaction that is not on record is aborted."""

    state: TransactionState


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
    """POST episodes/{id}/abort. A system error, never a reward: counted under `reason` and not trained.

    `final` says that no other attempt will be made in its place: its group is then complete without it. It may be said
    of an episode that is over as well, until its batch is sealed.
    """

    reason: str = Field(default="client_abort", max_length=200)
    final: bool = False


class ReviseRewardRequest(Body):
    """POST episodes/{id}/reward: another reward for an ended episode, until its batch is sealed.

    Fields left out keep what was reported; `reason` goes on record.
    """

    reward: Reward
    is_success: bool | None = None
    turn_rewards: list[Reward] | None = Field(default=None, max_length=10_000)
    reason: str = Field(min_length=1, max_length=500)


class HeartbeatRequest(Body):
    """POST heartbeat: one sign of life for all running episodes of a client."""

    client_id: Identifier
    episode_ids: list[str] = Field(max_length=20_000)


class HeartbeatResponse(Body):
    """`ended` maps those of the listed episodes that do not run to why; their agents may stop."""

    ended: dict[str, str]


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


class EpisodeView(Body):
    """One episode as the server knows it. Times are seconds since the epoch; `outcome` says why it was dropped."""

    episode_id: str
    episode_type: EpisodeType
    state: EpisodeState
    client_id: str
    task_id: str | None
    data_source: str
    reward: float | None
    is_success: bool | None
    turn_rewards: list[float] | None
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
    """One recorded completion, token by token. The choices of one call share a `call_id`; `attempt` is how often the
    client had sent the call before; `withheld` says why a finished turn is not trained."""

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
    call_id: str
    choice: int
    attempt: int
    withheld: str | None


class SampleView(Body):
    """One training sequence of an episode. All lists have one entry per token."""

    token_ids: list[int]
    tokens: list[str]
    loss_mask: list[bool]
    logprobs: list[float]
    weight_versions: list[int]
    turn_indices: list[int]


class EpisodeDetail(Body):
    """GET episodes/{id}: the episode, its turns and the samples they merge to; `advantage` once it was trained.

    A rollout token gets no turns and no samples.
    """

    episode: EpisodeView
    turns: list[TurnView]
    samples: list[SampleView]
    advantage: float | None


class EpisodeSamples(Body):
    """GET episodes/{id}/samples: the training sequences of one episode, with the batch that took them, if any."""

    episode_id: str
    batch_id: str | None
    advantage: float | None
    samples: list[SampleView]


class BatchView(Body):
    """One batch: `state` is sealed, trained, failed, or rewound if older weights were loaded after it was trained.

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


class SyncJobRequest(Body):
    """PUT job. `job` is checked by TrainJob; accepted while OFFLINE or FAILED, if equal to the present job, or if it is
    the present job with more `total_steps`."""

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


class LoadRequest(Body):
    """POST engine/load: go back to an earlier step of this run, for good; later batches count as rewound."""

    step: int = Field(ge=0)


class SourceView(Body):
    """One data source of the batch being filled. `tasks_target` is its quota; None without a mixture."""

    episodes: int
    tasks: int
    tasks_target: int | None
    running: int


class PoolView(Body):
    """How full the next batch is, counted by the stop rule in force. `agreed` are the clients that want it sealed."""

    stop_rule: str
    episodes: int
    episodes_target: int
    tasks: int
    tasks_target: int
    running_train: int
    running_eval: int
    sources: dict[str, SourceView]
    agreed: list[str]


class ClientView(Body):
    """`lost` counts its episodes that expired or were aborted."""

    client_id: str
    last_seen_at: float
    running: int
    completed: int
    lost: int


class RunningEpisodeView(Body):
    """`idle_s` is the time since the last model call or heartbeat of the episode."""

    episode_id: str
    episode_type: EpisodeType
    client_id: str
    task_id: str | None
    data_source: str
    turns: int
    calls_in_flight: int
    age_s: float
    idle_s: float
    state: EpisodeState = EpisodeState.RUNNING


class WarningView(Body):
    """A client that probably does not do what its author meant. `count` is how often it was seen."""

    code: str
    client_id: str
    message: str
    count: int
    last_at: float


class Status(Body):
    """GET status: one snapshot. `failures` counts episodes that were not trained, by reason.

    `running` lists the running episodes that were silent longest, at most 50. `recoveries` counts how often the engine
    of this job came back after a crash, of its worker or of the server. `calls` counts model calls that were joined,
    replayed, orphaned or withheld, `ignored_fields` the fields of their bodies that had no effect, by name.
    """

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
    policy: BatchPolicyView | None
    clients: list[ClientView]
    running: list[RunningEpisodeView]
    warnings: list[WarningView]
    recoveries: int
    failures: dict[str, int]
    calls: dict[str, int]
    ignored_fields: dict[str, int]
    tokens_per_second: float
    last_metrics: dict[str, float]
    started_at: float
    now: float


class MetricPointView(Body):
    """Metrics of one finished step; those that are no finite number come as "NaN", "Infinity" or "-Infinity"."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    step: int
    at: float
    metrics: dict[str, float]


class MetricsHistory(Body):
    """GET metrics?after_step=N: one entry per finished step, oldest first."""

    points: list[MetricPointView]


class EventView(Body):
    """One event: a change of state, a batch sealed or trained, a policy change, a recovery."""

    event_id: int
    kind: str
    detail: dict[str, Any]
    at: float


class EventPage(Body):
    """GET events?after_id=N: oldest first. The same route streams them to callers that accept text/event-stream."""

    events: list[EventView]


class AuditView(Body):
    """One control call: who asked for what, and how it was answered. `caller` names the role, never the token."""

    audit_id: int
    at: float
    caller: str
    address: str
    method: str
    path: str
    status: int
    request_id: str


class AuditPage(Body):
    """GET audit?after_id=N: oldest first."""

    entries: list[AuditView]


class Ready(Body):
    ready: bool
    state: EngineState
    reason: str | None


class Acknowledged(Body):
    ok: bool = True
    state: EngineState
