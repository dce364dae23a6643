"""Bodies about episodes: begin, end, abort, heartbeat and transactions, and the records of episodes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from swarm.sampling_limits import Temperature
from swarm.schemas.base import Body, EpisodeState, Identifier, NamedRewards, Reward
from swarm.types import DEFAULT_DATA_SOURCE, EpisodeType

Secret = Annotated[str, Field(min_length=22, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]
"""A URL-safe secret of at least 128 random bits, which the client draws: 22 characters of base64 have 132 bits."""


class BeginEpisodeRequest(Body):
    """The request of POST episodes/begin. It waits while a batch is training, up to `wait_s`, then gets 503.

    The episode expires after `idle_timeout_s` without a model call or a heartbeat of its own. With `lease_s`, the
    client promises a call within every such span: any call of this episode, or a POST heartbeat that lists it. If the
    client dies, the episode then expires after that shorter span.

    `begin_secret` makes a retry safe: the same request with the same secret returns the same episode and key. The
    client draws a new secret for each episode.

    A model call without a `seed` gets one from `sampling_seed` and the number of the call. A call without a temperature
    is sampled at `temperature`, by default that of the job. `max_calls` and `max_tokens` limit the completions and the
    sampled tokens of the whole episode. With `fixed_sampling`, calls of an eval episode are all sampled alike: a
    temperature, a seed or anything else that changes the distribution has no effect and is counted.
    """

    begin_secret: Secret | None = None
    episode_type: EpisodeType = EpisodeType.TRAIN
    client_id: Identifier = "anonymous"
    task_id: str | None = Field(default=None, min_length=1, max_length=500)
    data_source: Identifier = DEFAULT_DATA_SOURCE
    lease_s: float | None = Field(default=None, ge=1, le=3600, allow_inf_nan=False)
    idle_timeout_s: float = Field(default=240.0, gt=0, le=86_400, allow_inf_nan=False)
    wait_s: float = Field(default=25.0, ge=0, le=60, allow_inf_nan=False)
    sampling_seed: int | None = Field(default=None, ge=0, lt=2**63)
    temperature: Temperature | None = Field(default=None, ge=0, le=2)
    max_calls: int | None = Field(default=None, ge=1, lt=2**31)
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    fixed_sampling: bool = False

    @model_validator(mode="after")
    def _fixes_no_training(self) -> Self:
        if self.fixed_sampling and self.episode_type is EpisodeType.TRAIN:
            raise ValueError("fixed_sampling is for eval episodes: a train episode trains on what its agent asked for")
        return self


class BeginEpisodeResponse(Body):
    """The new episode with the credentials of its model routes.

    `base_url` ends in /v1 and has the host that the caller used. `api_key` works for this episode only. If `is_greedy`,
    all calls of the episode are sampled at temperature 0, whatever they ask for, and its
    reward is the baseline of the task's other episodes.
    """

    episode_id: str
    base_url: str
    api_key: str
    model: str
    weight_version: int
    deadline_s: float
    lease_s: float | None = None
    is_greedy: bool = False


MAX_REPLY_TEXTS = 10_000
"""The most replies of one episode."""
MAX_REPLIES = 200_000
"""The most characters of all replies that the server compares. Later text counts as not written by the model."""


class EndEpisodeRequest(Body):
    """The request of POST episodes/{id}/end. It ends the episode exactly once.

    The call is identified by `idempotency_key`, by default the episode id. `turn_rewards`, if given, has one entry per
    recorded turn. `rewards` are by name: a job with the algorithm gdpo names the rewards that it learns from, and
    refuses an episode that lacks one. `replies` has the texts of the graded assistant messages, including tool-call
    arguments: the answer gives the share of them that the model wrote.
    """

    task_id: str = Field(min_length=1, max_length=500)
    reward: Reward
    is_success: bool | None = None
    turn_rewards: list[Reward] | None = Field(default=None, max_length=10_000)
    rewards: NamedRewards | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    replies: list[str] | None = Field(default=None, max_length=MAX_REPLY_TEXTS)
    client_id: Identifier = "anonymous"
    idempotency_key: str | None = Field(default=None, max_length=200)


class PrepareEpisodeRequest(EndEpisodeRequest):
    """The request of POST episodes/{id}/prepare: the result of an episode in a transaction over several servers.

    `coordinator` is the base URL of the server whose commit decides the transaction. It is null on the coordinator
    itself, which is prepared first.
    """

    transaction_id: Secret
    coordinator: str | None = Field(default=None, min_length=8, max_length=500)


class CommitEpisodeRequest(Body):
    """The request of POST episodes/{id}/commit. It decides the transaction on the coordinator and ends the episode."""

    transaction_id: Secret


class TransactionState(StrEnum):
    """The outcome of a transaction, as its coordinator knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    PENDING = "pending"


class TransactionView(Body):
    """The answer to GET transactions/{id}. A transaction that is not on record is aborted."""

    state: TransactionState


class _Usage(Body):
    calls: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    temperatures: list[float] = Field(default_factory=list[float])
    top_p: list[float] = Field(default_factory=list[float])
    top_k: list[int] = Field(default_factory=list[int])
    other_sampling: list[str] = Field(default_factory=list[str])
    system_failures: int = 0
    overruled: int = 0
    asked_sampling: list[str] = Field(default_factory=list[str])


class EpisodeUsage(_Usage):
    """The model calls of one episode, as the server sampled them.

    `calls` counts completions: a call for n choices counts n times. A call that the end of the episode cut off counts
    with the tokens sampled until then. `temperatures`, `top_p` and `top_k` are the distinct values in rising order, the
    last two without neutral values. `other_sampling` names other settings that changed the distribution, such as
    `min_p=0.5`. `seconds` is the time from begin to end, null before the end. `limited` is true if a limit of the
    episode refused or shortened a call. `system_failures` counts model calls that failed through the server's own
    fault or slowness, and restarts of the server during the episode. `overruled` counts completions whose call asked
    for other sampling than the begin of the episode had fixed, and `asked_sampling` names what they asked for.
    """

    seconds: float | None = None
    limited: bool = False


class JobUsage(_Usage):
    """The answer to GET usage: the total usage of the present job's episodes of one type.

    Only episodes that are over count, if they have a reward or called the model. Fields of EpisodeUsage are summed.
    `limited` counts episodes that met a limit, `faulty` episodes with a system failure, and `unrewarded` episodes
    without a reward, by outcome. `model_share` is the mean over the episodes that have one.
    """

    episode_type: EpisodeType
    episodes: int
    seconds: float
    limited: int
    faulty: int
    unrewarded: dict[str, int]
    model_share: float | None


class EndEpisodeResponse(Body):
    """The outcome of an ended episode. `replayed` is true if an earlier call with the same key ended it.

    `weight_versions` has every version that sampled a token of the episode. `model_share` is the share of the reported
    `replies` that the model wrote in this episode, from 0 to 1. It is null without replies, or if they have no text.
    `receipt` shows how many episodes the server has acknowledged. A client sends its newest one in the header
    `x-swarm-receipt` of later calls, by which the server notices that its ledger was restored from an older copy.
    """

    episode_id: str
    state: EpisodeState
    outcome: str | None
    batch_id: str | None
    replayed: bool
    weight_versions: list[int] = Field(default_factory=list[int])
    usage: EpisodeUsage = Field(default_factory=EpisodeUsage)
    model_share: float | None = None
    receipt: str | None = None


class AbortEpisodeRequest(Body):
    """The request of POST episodes/{id}/abort. The episode is counted under `reason` and not trained.

    `final` means that the client will not begin another episode in its place, so its group is complete without it. It
    can also be sent for an episode that is over, until its batch is closed.
    """

    reason: str = Field(default="client_abort", max_length=200)
    final: bool = False


class ReviseRewardRequest(Body):
    """The request of POST episodes/{id}/reward: a new reward of an ended episode, until its batch is closed.

    Fields that are left out stay as they were reported. `reason` is recorded.
    """

    reward: Reward
    is_success: bool | None = None
    turn_rewards: list[Reward] | None = Field(default=None, max_length=10_000)
    rewards: NamedRewards | None = None
    reason: str = Field(min_length=1, max_length=500)


class HeartbeatRequest(Body):
    """The request of POST heartbeat, which keeps all listed episodes of a client alive."""

    client_id: Identifier
    episode_ids: list[str] = Field(max_length=20_000)


class HeartbeatResponse(Body):
    """The answer to POST heartbeat.

    `ended` maps each listed episode that is not running to its reason; its agent may stop. `warnings` maps codes to
    texts about probable mistakes of the client.
    """

    ended: dict[str, str]
    warnings: dict[str, str] = Field(default_factory=dict[str, str])


class EpisodeView(Body):
    """One episode as the server knows it. Times are seconds since the epoch.

    `outcome` is the reason why it was dropped. `job_id` identifies the job under which it was begun, as in the event
    `job.started`. `sampling_seed`, `temperature`, `fixed_sampling` and the limits are those of its begin. `usage` and
    `model_share` are those of the answer to its end.
    """

    episode_id: str
    episode_type: EpisodeType
    state: EpisodeState
    client_id: str
    task_id: str | None
    data_source: str
    reward: float | None
    is_success: bool | None
    turn_rewards: list[float] | None
    rewards: dict[str, float] | None = None
    outcome: str | None
    turns: int
    begun_at: float
    last_seen_at: float
    ended_at: float | None
    weight_versions: list[int]
    batch_id: str | None
    job_id: int | None = None
    is_greedy: bool = False
    sampling_seed: int | None = None
    temperature: float | None = None
    max_calls: int | None = None
    max_tokens: int | None = None
    fixed_sampling: bool = False
    usage: EpisodeUsage = Field(default_factory=EpisodeUsage)
    model_share: float | None = None


class EpisodePage(Body):
    """The answer to GET episodes. `next_cursor` is null on the last page."""

    episodes: list[EpisodeView]
    next_cursor: str | None


class TurnView(Body):
    """One recorded completion, token by token.

    The choices of one call share a `call_id`. `attempt` counts earlier attempts of the call by the client. `withheld`
    is the reason why a finished turn is not trained. `template_options` are what the request gave to the chat template.
    """

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
    template_options: dict[str, Any] = Field(default_factory=dict)


class SampleView(Body):
    """One training sequence of an episode. All lists have one entry per token."""

    token_ids: list[int]
    tokens: list[str]
    loss_mask: list[bool]
    logprobs: list[float]
    weight_versions: list[int]
    turn_indices: list[int]


class EpisodeDetail(Body):
    """The answer to GET episodes/{id}: the episode, its turns and the samples they merge to.

    `advantage` is null until the episode is trained. A token of the role rollout gets no turns and no samples.
    """

    episode: EpisodeView
    turns: list[TurnView]
    samples: list[SampleView]
    advantage: float | None
