"""Bodies about episodes: begin, end, abort, heartbeat, transactions, and what the record tells of each.

Place in the flow: the gateway's routes of episodes, and the client's calls of them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, SkipValidation

from swarm.schemas.base import Body, EpisodeState, ErrorDetail, Identifier, NamedRewards, Reward
from swarm.types import DEFAULT_DATA_SOURCE, EpisodeType

Secret = Annotated[str, Field(min_length=22, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]
"""At least 128 bits that the client draws, URL-safe: 22 characters of base64 hold 132."""


class BeginEpisodeRequest(Body):
    """POST episodes/begin. Held while a batch is training; 503 with Retry-After once `wait_s` is over.

    `idle_timeout_s` is the longest silence (no model call, no heartbeat of this episode) before it is given up.
    With `lease_s` the client promises a sign of life (any call of this episode, or POST heartbeat that lists it) within
    every such span; a client that died then loses the episode after that span already.

    With a `begin_secret`, drawn anew for each episode, the same request again is the same episode, with the same key:
    what a client sends whose first call got no answer.

    A call of the episode that names no `seed` is sampled with one that `sampling_seed` and the number of the call give,
    and one that names no temperature at `temperature`, the job's by default. `max_calls` and `max_tokens` bound the
    completions and the sampled tokens of the whole episode.
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
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    max_calls: int | None = Field(default=None, ge=1, lt=2**31)
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)


class BeginEpisodeResponse(Body):
    """`base_url` ends in /v1 and carries the host the caller used; `api_key` works for this episode only.

    All calls of an episode that `is_greedy` are sampled at temperature 0, whatever they ask for: algorithm remax
    compares the other episodes of the task with it.
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
"""Characters of the replies that are looked at. What is beyond counts as not written by the model."""


class EndEpisodeRequest(Body):
    """POST episodes/{id}/end. Exactly once by `idempotency_key` (default: the episode id).

    `turn_rewards`, if given, has one entry per recorded turn. `rewards` are by name; a job of algorithm gdpo learns
    from those that it names, and refuses an episode that lacks one. `replies` are the texts of the assistant messages
    that were graded, tool-call arguments included: the answer says what share of them the model wrote.
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


MAX_TOGETHER = 256
"""Episodes in one request. What they write is committed to the ledger in one group, which this keeps short."""


class BeginManyRequest(Body):
    """POST episodes/begin_many. Each entry is checked, held and answered by itself, as a POST episodes/begin."""

    episodes: list[SkipValidation[BeginEpisodeRequest]] = Field(min_length=1, max_length=MAX_TOGETHER)


class EndOfMany(EndEpisodeRequest):
    """An entry of POST episodes/end_many: the episode, and what its own end would say."""

    episode_id: str = Field(max_length=200)


class EndManyRequest(Body):
    """POST episodes/end_many. Each entry is checked, recorded and answered by itself, as a POST episodes/{id}/end."""

    episodes: list[SkipValidation[EndOfMany]] = Field(min_length=1, max_length=MAX_TOGETHER)


class AnswerOfMany(Body):
    """One line of the answer to begin_many or end_many.

    `index` counts the entries of the request from 0; `status` is that of the entry's own request, and so is either the
    `answer` or the `error`. `retry_after_s` comes with an error that is one for now.
    """

    index: int
    status: int
    answer: dict[str, Any] | None = None
    error: ErrorDetail | None = None
    retry_after_s: int | None = None


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


class EpisodeUsage(Body):
    """The inference of one episode, as the server sampled it.

    `calls` counts completions: a call for n choices is n. Calls that the end cut off count with what had been sampled
    by then. `temperatures`, `top_p` and `top_k` are the distinct values in rising order, the last two without those
    that do nothing; `other_sampling` names further settings that changed the distribution, as in `min_p=0.5`.
    `seconds` are those from begin to end, null before. `limited` says whether a call was refused or cut short by a
    limit of the episode. `system_failures` counts model calls that failed by the server's own fault, and the times that
    it was started again meanwhile.
    """

    calls: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    temperatures: list[float] = Field(default_factory=list[float])
    top_p: list[float] = Field(default_factory=list[float])
    top_k: list[int] = Field(default_factory=list[int])
    other_sampling: list[str] = Field(default_factory=list[str])
    seconds: float | None = None
    limited: bool = False
    system_failures: int = 0


class JobUsage(Body):
    """GET usage: what the episodes of one kind of the present job have spent in all, as the server sampled it.

    Counted are episodes that are over and have a reward or called the model. The fields are the sums of those of
    EpisodeUsage; `limited` counts episodes that met a limit, `faulty` those with a failure of the system, `unrewarded`
    those without a reward by outcome. `model_share` is the mean of the episodes that have one.
    """

    episode_type: EpisodeType
    episodes: int
    calls: int
    prompt_tokens: int
    sampled_tokens: int
    temperatures: list[float]
    top_p: list[float]
    top_k: list[int]
    other_sampling: list[str]
    seconds: float
    limited: int
    system_failures: int
    faulty: int
    unrewarded: dict[str, int]
    model_share: float | None


class EndEpisodeResponse(Body):
    """What became of the episode. `replayed` is true if an earlier call with the same key had ended it already.

    `weight_versions` are all that sampled one of its tokens. `model_share` is the share of the reported `replies` that
    the model wrote in this episode, from 0 to 1; null without replies, or where they hold no text.
    """

    episode_id: str
    state: EpisodeState
    outcome: str | None
    batch_id: str | None
    replayed: bool
    weight_versions: list[int] = Field(default_factory=list[int])
    usage: EpisodeUsage = Field(default_factory=EpisodeUsage)
    model_share: float | None = None


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
    rewards: NamedRewards | None = None
    reason: str = Field(min_length=1, max_length=500)


class HeartbeatRequest(Body):
    """POST heartbeat: one sign of life for all running episodes of a client."""

    client_id: Identifier
    episode_ids: list[str] = Field(max_length=20_000)


class HeartbeatResponse(Body):
    """`ended` maps those of the listed episodes that do not run to why; their agents may stop. `warnings` say what
    looks wrong about the client, by code."""

    ended: dict[str, str]
    warnings: dict[str, str] = Field(default_factory=dict[str, str])


class EpisodeView(Body):
    """One episode as the server knows it. Times are seconds since the epoch; `outcome` says why it was dropped.
    `job_id` is the job that it was begun under, as in the event `job.started`. `sampling_seed`, `temperature` and the
    limits are as it was begun with, `usage` and `model_share` as in the answer to its end."""

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
    usage: EpisodeUsage = Field(default_factory=EpisodeUsage)
    model_share: float | None = None


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
