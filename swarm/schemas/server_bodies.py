"""Bodies about the server as a whole: its job, engine, status, metrics, events and audit log."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from swarm.schemas.base import Body, EngineState, EpisodeState
from swarm.schemas.batch_bodies import BatchPolicyView
from swarm.schemas.evaluation_bodies import EvaluationView
from swarm.schemas.study_bodies import LeaseView
from swarm.types import EpisodeType


class SyncJobRequest(Body):
    """The request of PUT job. `job` has the fields of TrainJob.

    Any job is accepted while the engine is OFFLINE or FAILED. Otherwise the job must equal the present one, except that
    `total_steps` may be larger. PATCH job changes other settings of a running job.
    """

    job: dict[str, Any]


Resume = bool | Literal["weights"]
"""Whether a start continues an earlier run.

True and "weights" continue the run of the same job. For another job, "weights" begins a new run from the weights of the
run before, and True begins one from the job's model. False always begins a new run from the job's model.
"""


class StartEngineRequest(Body):
    """The request of POST engine/start.

    With `resume` (the default) the same job continues where it stopped. With "weights" another job begins a new run
    from the weights of the run before, instead of from its model.
    """

    resume: Resume = True


class AddDemonstrationsRequest(Body):
    """The request of POST demonstrations: conversations to train on, as JSON lines.

    Each line has `messages`, and may have `tools`.
    """

    lines: str = Field(min_length=1)


class DemonstrationsView(Body):
    """The answer to POST demonstrations: the digest by which a job names them, and their number."""

    digest: str
    demonstrations: int


class CheckpointResponse(Body):
    """The answer to POST engine/checkpoint: the directory on the server, and the weights in it."""

    path: str
    step: int
    weight_version: int


class ChangeJobRequest(Body):
    """The request of PATCH job: new settings of the running job, from step `at_step` on.

    The default is the first step that can have them. With `expected_revision`, the change is refused unless the job is
    at that revision, which shows that nobody else has changed it.
    """

    settings: dict[str, Any]
    at_step: int | None = Field(default=None, ge=1)
    expected_revision: int | None = Field(default=None, ge=0)


class JobChangeView(Body):
    """One change of a running job: `settings` take effect at step `at_step`."""

    revision: int
    at_step: int
    settings: dict[str, Any]


class JobView(Body):
    """The answer to GET job: the job as given, and with every default resolved. Both are null without a job.

    While an engine runs, `filling` is the step whose batch is being collected, and `in_force` is the resolved job of
    that step. `initial_step` is the step that the run began at: 0, or that of `resume_from`. `revision` counts the
    changes of the job, and `changes` lists them.
    """

    job: dict[str, Any] | None
    resolved: dict[str, Any] | None
    in_force: dict[str, Any] | None = None
    filling: int | None = None
    initial_step: int | None = None
    revision: int = 0
    changes: list[JobChangeView] = Field(default_factory=list[JobChangeView])


class LoadRequest(Body):
    """The request of POST engine/load: go back to an earlier step of this run for good. Later batches are rewound."""

    step: int = Field(ge=0)
    end: bool = False
    """Whether the job ends with this step. Otherwise episodes that wait in the pool may be trained at once."""

    @model_validator(mode="after")
    def _has_steps(self) -> Self:
        if self.end and not self.step:
            raise ValueError("a job cannot end at step 0: leave end out, or stop the engine")
        return self


class SourceView(Body):
    """One data source of the present batch. `tasks_target` is its quota, null without a mixture."""

    episodes: int
    tasks: int
    tasks_target: int | None
    running: int


class PoolView(Body):
    """The progress of the present batch, counted by its stop rule.

    `agreed` lists the clients that agree to close it. `waiting_begins` counts the calls that wait to begin an episode.
    """

    stop_rule: str
    episodes: int
    episodes_target: int
    tasks: int
    tasks_target: int
    running_train: int
    running_eval: int
    waiting_begins: int = 0
    sources: dict[str, SourceView]
    agreed: list[str]


class ClientView(Body):
    """One client that called recently. `lost` counts its episodes that expired or were aborted."""

    client_id: str
    last_seen_at: float
    running: int
    completed: int
    lost: int


class RunningEpisodeView(Body):
    """One running episode. `idle_s` is the time since its last model call or heartbeat."""

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
    """A warning about a probable mistake of a client. `count` is the number of times it was seen."""

    code: str
    client_id: str
    message: str
    count: int
    last_at: float


class DiskView(Body):
    """The disk usage of the server's directory in bytes, at most half a minute old.

    `recovery_bytes` is the part of `checkpoints_bytes` that crash recovery starts from. `free_bytes` is the free space
    of the disk.
    """

    ledger_bytes: int
    checkpoints_bytes: int
    recovery_bytes: int
    free_bytes: int


class GuardView(Body):
    """The last fault that the guard of the run found, and its answer.

    `fault` is the kind of the fault that showed at `step`. `good_step` is the newest step whose weights were good
    before it, or null if they never were. `back_to` is the step at which the training went on or ended, or null if it
    stayed where it was. `lr` is the learning rate after a rollback.
    """

    did: Literal["warned", "stopped", "rolled_back"]
    step: int
    fault: str
    sentence: str
    advice: str
    good_step: int | None
    back_to: int | None
    lr: float | None = None


class LostEpisodesView(Body):
    """Episodes that the server acknowledged and does not have: its ledger was restored from an older copy.

    `missing` of them came after the first `after` episodes. That was noticed at `noticed_at`, by a receipt that a
    client brought back or by the experiments database.
    """

    after: int
    missing: int
    noticed_at: float
    sentence: str


class Status(Body):
    """The answer to GET status: one snapshot of the server.

    `has_diverged` says that the engine failed because trained weights give no finite numbers. `failures` counts
    untrained episodes by reason. `calls_in_flight` counts the completions under way, which share the
    `tokens_per_second`. `running` lists the running episodes that were silent longest, at
    most 50. `recoveries` counts how often the engine recovered from a crash of its worker or of the server. `calls`
    counts model calls that were joined, replayed, orphaned or withheld. `ignored_fields` counts the fields of model
    calls without effect, by name. `lease` names the study that uses the server. `disk` is the disk usage of the
    server's directory. `revision` counts the changes of the job, and `changes_ahead` lists those of steps that are not
    trained yet. `evaluation` is the one that is due or running, `last_evaluation` the newest one with a score.
    `guard` is the newest fault of this run that the guard found. `lost` lists episodes that were acknowledged and are
    not on record. `ledger_fault` says why the ledger cannot be used just now; `failures` is then empty.
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
    failures: dict[str, int] = Field(default_factory=dict[str, int])
    calls: dict[str, int]
    ignored_fields: dict[str, int]
    tokens_per_second: float
    calls_in_flight: int = 0
    last_metrics: dict[str, float]
    has_diverged: bool = False
    ledger_fault: str | None = None
    lease: LeaseView | None = None
    disk: DiskView | None = None
    revision: int = 0
    changes_ahead: list[JobChangeView] = Field(default_factory=list[JobChangeView])
    evaluation: EvaluationView | None = None
    last_evaluation: EvaluationView | None = None
    guard: GuardView | None = None
    lost: list[LostEpisodesView] = Field(default_factory=list[LostEpisodesView])
    started_at: float
    now: float


class MetricPointView(Body):
    """The metrics of one finished step. Values that are not finite are "NaN", "Infinity" or "-Infinity"."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    step: int
    at: float
    metrics: dict[str, float]


class MetricsHistory(Body):
    """The answer to GET metrics: one entry per finished step, oldest first."""

    points: list[MetricPointView]


class EventView(Body):
    """One event, such as a change of state, a closed or trained batch, a policy change or a recovery."""

    event_id: int
    kind: str
    detail: dict[str, Any]
    at: float


class EventPage(Body):
    """The answer to GET events, oldest first. Callers that accept text/event-stream get a stream instead."""

    events: list[EventView]


class AuditView(Body):
    """One entry of the audit log: a control call with its answer's status. `caller` is the role, never the token."""

    audit_id: int
    at: float
    caller: str
    address: str
    method: str
    path: str
    status: int
    request_id: str


class AuditPage(Body):
    """The answer to GET audit: entries of the audit log, oldest first."""

    entries: list[AuditView]


class Ready(Body):
    """The answer to GET /ready. `reason` says why the engine has failed."""

    ready: bool
    state: EngineState
    reason: str | None


class Acknowledged(Body):
    """The answer to a command, with the state of the engine after it."""

    ok: bool = True
    state: EngineState
