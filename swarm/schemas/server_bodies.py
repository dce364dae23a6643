"""Bodies about the server as a whole: its job, its engine, its status, metrics, events and audit log.

Place in the flow: the gateway's control routes, and the client's calls of them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from swarm.schemas.base import Body, EngineState, EpisodeState
from swarm.schemas.batch_bodies import BatchPolicyView
from swarm.schemas.evaluation_bodies import EvaluationView
from swarm.schemas.study_bodies import LeaseView
from swarm.types import EpisodeType


class SyncJobRequest(Body):
    """PUT job. `job` is checked by TrainJob; accepted while OFFLINE or FAILED, if equal to the present job, or if it is
    the present job with more `total_steps`. Other settings of a running job are PATCHed."""

    job: dict[str, Any]


Resume = bool | Literal["weights"]
"""Whether a start goes on with an earlier run: true with that of the same job, "weights" also from the weights of one
of another job, false with none."""


class StartEngineRequest(Body):
    """POST engine/start. With `resume` (the default) the same job goes on where it was. With "weights" another job
    begins a new run from the weights that the run before has, instead of from its model."""

    resume: Resume = True


class CheckpointResponse(Body):
    path: str
    step: int
    weight_version: int


class ChangeJobRequest(Body):
    """PATCH job: other settings of the job that runs, from step `at_step` on; by default from the first step that can
    have them. With `expected_revision`, only if nobody else has changed the job since it was at that revision."""

    settings: dict[str, Any]
    at_step: int | None = Field(default=None, ge=1)
    expected_revision: int | None = Field(default=None, ge=0)


class JobChangeView(Body):
    """One change of a running job: `settings` hold from step `at_step` on."""

    revision: int
    at_step: int
    settings: dict[str, Any]


class JobView(Body):
    """GET job: as given, and with every default resolved. Both are null while no job is known.

    While an engine runs, `in_force` is the resolved job of step `filling`, whose batch is being collected, `revision`
    counts the changes that were made to the job, and `changes` are these.
    """

    job: dict[str, Any] | None
    resolved: dict[str, Any] | None
    in_force: dict[str, Any] | None = None
    filling: int | None = None
    revision: int = 0
    changes: list[JobChangeView] = Field(default_factory=list[JobChangeView])


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
    """How full the next batch is, counted by the stop rule in force. `agreed` are the clients that want it sealed,
    `held_begins` is how many calls to begin an episode wait until one may."""

    stop_rule: str
    episodes: int
    episodes_target: int
    tasks: int
    tasks_target: int
    running_train: int
    running_eval: int
    held_begins: int = 0
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


class DiskView(Body):
    """What the server's directory takes, in bytes, looked at within the last half minute. `recovery_bytes` is the part
    of the checkpoints that crash recovery starts from, `free_bytes` what is left on that disk."""

    ledger_bytes: int
    checkpoints_bytes: int
    recovery_bytes: int
    free_bytes: int


class Status(Body):
    """GET status: one snapshot. `failures` counts episodes that were not trained, by reason.

    `running` lists the running episodes that were silent longest, at most 50. `recoveries` counts how often the engine
    of this job came back after a crash, of its worker or of the server. `calls` counts model calls that were joined,
    replayed, orphaned or withheld, `ignored_fields` the fields of their bodies that had no effect, by name.
    `lease` names the study that uses the server, `disk` says what the server's directory takes. `revision` counts the
    changes of the job, `changes_ahead` are those of steps that are not trained yet. `evaluation` is the score that is
    due or being measured, `last_evaluation` the newest one that was.
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
    lease: LeaseView | None = None
    disk: DiskView | None = None
    revision: int = 0
    changes_ahead: list[JobChangeView] = Field(default_factory=list[JobChangeView])
    evaluation: EvaluationView | None = None
    last_evaluation: EvaluationView | None = None
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
