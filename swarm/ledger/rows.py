"""The rows that the ledger returns: frozen, one class per table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from swarm.pass_at_k import PassAtK
from swarm.schemas import EpisodeState
from swarm.types import DEFAULT_DATA_SOURCE, EpisodeType, SamplingParams, Turn


class BatchState(StrEnum):
    """The states of a batch.

    A closed batch is complete and waits to be trained; it ends trained or failed. A trained one is rewound when the
    server resumes from older weights.
    """

    CLOSED = "closed"
    TRAINED = "trained"
    FAILED = "failed"
    REWOUND = "rewound"


@dataclass(frozen=True, slots=True)
class JobRow:
    """One run of a job. `job` is as given, `resolved` has every default filled in.

    `origin_job_id` and `origin_step` name the run and the step whose weights this run began from. Both are None if it
    began from the model or from a checkpoint. `initial_step` is the step of the checkpoint that it began at, else 0.
    """

    job_id: int
    job: Mapping[str, Any]
    resolved: Mapping[str, Any]
    created_at: float
    origin_job_id: int | None = None
    origin_step: int | None = None
    initial_step: int = 0


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One run that was started under a key. `step` is the last one it has finished.

    `is_newest` is False once a later run has begun.
    """

    key: str
    job: JobRow
    at: float
    step: int
    is_newest: bool


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """The use of the server by one study, since a time. `fence` grows with every lease of this ledger."""

    fence: int
    study_id: str
    holder: str
    host: str
    pid: int
    database: str
    ttl_s: float
    since: float


@dataclass(frozen=True, slots=True)
class StateRow:
    """One change of the engine state. `reason` is None where none was given."""

    state: str
    reason: str | None
    at: float


MAX_SETTINGS = 256
"""The most distinct sampling settings that are recorded per episode."""


class SamplingSettings(NamedTuple):
    """The settings that the distribution of a completion depended on.

    `others` are further settings by name, without those at the value at which they do nothing. Of a logit bias they
    only record that there was one.
    """

    temperature: float
    others: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, params: SamplingParams) -> SamplingSettings:
        """Return the settings of these parameters."""
        values = ((name, float(getattr(params, name)), neutral) for name, neutral in _RESHAPING)
        bias = (("logit_bias", 1.0),) if params.logit_bias else ()
        others = tuple((name, value) for name, value, neutral in values if value != neutral)
        return cls(float(params.temperature), others + bias)


_RESHAPING = (
    ("top_p", 1.0),
    ("top_k", 0),
    ("min_p", 0.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
    ("repetition_penalty", 1.0),
)


@dataclass(frozen=True, slots=True)
class ModelUse:
    """The inference of an episode, or of a part of it.

    `calls` are completions, `sampling` their distinct settings. `overruled` counts completions whose call asked for
    other sampling than the begin of the episode had fixed, and `asked` are those settings.
    """

    calls: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    sampling: tuple[SamplingSettings, ...] = ()
    is_limited: bool = False
    system_failures: int = 0
    overruled: int = 0
    asked: tuple[str, ...] = ()

    @classmethod
    def of(cls, params: SamplingParams, prompt_tokens: int, sampled_tokens: int) -> ModelUse:
        """Return the use of one completion."""
        return cls(1, prompt_tokens, sampled_tokens, (SamplingSettings.of(params),))

    def __add__(self, other: ModelUse) -> ModelUse:
        return ModelUse(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.sampled_tokens + other.sampled_tokens,
            tuple(dict.fromkeys((*self.sampling, *other.sampling)))[:MAX_SETTINGS],
            self.is_limited or other.is_limited,
            self.system_failures + other.system_failures,
            self.overruled + other.overruled,
            tuple(dict.fromkeys((*self.asked, *other.asked)))[:MAX_SETTINGS],
        )


NO_USE = ModelUse()


@dataclass(frozen=True, slots=True)
class JobUse:
    """The model use of all episodes of one type in a job.

    It counts episodes that are over and that have a reward or called the model. `episodes` is their number, `seconds`
    their total time from begin to end. `limited` counts those that met a limit, `faulty` those with a system failure.
    `unrewarded` counts those without a reward by outcome. `model_share` is the mean over those that have one.
    """

    episodes: int
    use: ModelUse
    seconds: float
    limited: int
    faulty: int
    unrewarded: Mapping[str, int]
    model_share: float | None


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One episode. Fields after `deadline_at` are filled in as it proceeds; None means that this has not happened.

    `job_id` is the job that it was begun under, which the ledger adds. `api_key_sha256` is the hex digest of the
    episode's key, never the key. `outcome` is the reason why it was aborted, expired or dropped. `turns` counts
    recorded model calls, and `weight_versions` are all that sampled one of its tokens.

    `batch_group` tells the groups of its batch apart. An episode that `is_greedy` is sampled at temperature 0.

    Its calls are sampled with `sampling_seed` and `temperature`, within the limits `max_calls` and `max_tokens`. With
    `fixed_sampling` they cannot ask for other sampling. `use` is the recorded use of the model by its calls.
    `model_share` is the share of its graded replies that the model wrote.

    `transaction_sha256` is the hex digest of the transaction that ends it together with episodes of other servers.
    `inquiry_url` is where to ask for the decision on that transaction, its secret included. It is None if this episode
    decides.
    """

    episode_id: str
    episode_type: EpisodeType
    client_id: str
    api_key_sha256: str
    begun_at: float
    idle_timeout_s: float
    deadline_at: float
    state: EpisodeState = EpisodeState.RUNNING
    task_id: str | None = None
    idempotency_key: str | None = None
    payload_digest: str | None = None
    reward: float | None = None
    is_success: bool | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outcome: str | None = None
    last_seen_at: float | None = None
    ended_at: float | None = None
    batch_id: str | None = None
    advantage: float | None = None
    turns: int = 0
    weight_versions: tuple[int, ...] = ()
    data_source: str = DEFAULT_DATA_SOURCE
    lease_s: float | None = None
    turn_rewards: tuple[float, ...] | None = None
    rewards: Mapping[str, float] | None = None
    transaction_sha256: str | None = None
    inquiry_url: str | None = field(default=None, repr=False)
    batch_group: int | None = None
    is_greedy: bool = False
    sampling_seed: int | None = None
    temperature: float | None = None
    max_calls: int | None = None
    max_tokens: int | None = None
    fixed_sampling: bool = False
    use: ModelUse = NO_USE
    model_share: float | None = None
    job_id: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ClosedEpisode:
    """An episode that runs no more, with the reason: its outcome, or else its state."""

    episode_id: str
    api_key_sha256: str
    reason: str


@dataclass(frozen=True, slots=True)
class EpisodeSlice:
    """A page of episodes, newest first. `next_cursor` is None on the last page."""

    episodes: tuple[EpisodeRow, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class EndReceipt:
    """The answer to the end of an episode. `replayed` is True if an earlier call with the same key ended it."""

    episode: EpisodeRow
    replayed: bool = True


@dataclass(frozen=True, slots=True)
class TaskRow:
    """The progress of one task in the newest job.

    `groups` counts those in batches that are complete or trained, without rewound ones. `waiting` counts completed
    episodes that are in no batch yet.
    """

    task_id: str
    data_source: str
    groups: int
    waiting: int


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch. Until it was trained, `metrics` is empty and `finished_at` and `weight_version` are None.

    `settings` are those it is trained with, where they differ from the job of its run.
    """

    batch_id: str
    step: int
    state: BatchState
    reason: str | None
    closed_at: float
    finished_at: float | None
    weight_version: int | None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


class EvaluationState(StrEnum):
    """The states of an evaluation.

    It is DUE until an evaluator claims it. Then it is RUNNING until that evaluator ends it or the lease expires. An
    ended one is DONE, or ABANDONED without a score. It is REWOUND when its weights are no part of the run any more.
    """

    DUE = "due"
    RUNNING = "running"
    DONE = "done"
    ABANDONED = "abandoned"
    REWOUND = "rewound"


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """The held-out score of the weights after one step.

    `episodes` is how many are wanted, `scored` how many there are, of which `successes` solved their task. `failures`
    are attempts without a reward. Fields after `due_at` are filled in as it proceeds. `mean` is of the rewards,
    `stderr` is between tasks. `pass_at_k` is known where tasks had several attempts.
    """

    evaluation_id: int
    step: int
    weight_version: int
    state: EvaluationState
    episodes: int
    due_at: float
    evaluator: str | None = None
    claimed_at: float | None = None
    ended_at: float | None = None
    reason: str | None = None
    scored: int | None = None
    successes: int | None = None
    failures: int | None = None
    mean: float | None = None
    stderr: float | None = None
    pass_at_k: tuple[PassAtK, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.state in {EvaluationState.DUE, EvaluationState.RUNNING}

    @property
    def metrics(self) -> dict[str, float]:
        """Return the figures of the score, by their names among the metrics of the step."""
        figures = {"eval/mean": self.mean, "eval/stderr": self.stderr, "eval/episodes": self.scored}
        return {name: float(value) for name, value in figures.items() if value is not None}


@dataclass(frozen=True, slots=True)
class EventRow:
    """One noteworthy event, such as a change of state. `detail` is JSON."""

    event_id: int
    kind: str
    detail: Mapping[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One control call, allowed or refused. `caller` names the role, never the token. The ledger assigns `audit_id`."""

    audit_id: int
    at: float
    caller: str
    address: str
    method: str
    path: str
    status: int
    request_id: str


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode with every turn that is on record."""

    row: EpisodeRow
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class OpenWork:
    """The work that a restarted server continues.

    `step` and `weight_version` are those of the last finished batch, or those that the run began at. `running` are the
    episodes that have not ended, or were only prepared to end, oldest first. `returned` are the ids of batches that
    were closed and never finished. Their episodes are among `completed`, which wait for a batch, oldest end first.
    """

    job: JobRow | None
    step: int
    weight_version: int
    running: tuple[RecordedEpisode, ...]
    returned: tuple[str, ...]
    completed: tuple[RecordedEpisode, ...]
