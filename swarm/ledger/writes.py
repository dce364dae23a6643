"""Writes: one function per fact to record, each run inside a transaction of the writer.

Place in the flow: the ledger binds arguments, among them the time `at` of the call where an event is left behind, and
the writer supplies the connection. What may follow what is decided here
by conditions of the statements themselves, so that no caller can end an episode twice or train it twice. Knows nothing
of threads.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from swarm.errors import Conflict, EpisodeEnded, IdempotencyMismatch, LedgerError
from swarm.ledger import queries
from swarm.ledger.blobs import pack_floats, pack_integers
from swarm.ledger.integrity.checksums import RESULT_COLUMNS, TURN_COLUMNS, checksum
from swarm.ledger.queries import NEWEST_JOB
from swarm.ledger.rows import (
    MAX_SETTINGS,
    NO_USE,
    AuditRow,
    BatchState,
    EndReceipt,
    EpisodeRow,
    EvaluationState,
    JobRow,
    ModelUse,
    OpenWork,
    SamplingSettings,
)
from swarm.live_settings import JobChange
from swarm.schemas import EngineState, EpisodeState
from swarm.types import SamplingParams, StepReport, Turn

JOB_REPLACED = "job_replaced"
SCORE = "critic/score/mean"
"""The metric that the event of a trained batch carries, in verl's name."""

_IN_POOL = "state = 'completed' AND episode_type = 'train' AND batch_id IS NULL"

# json.dumps makes a new encoder at each call that asks for other separators.
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DEFAULTS = {parameter.name: parameter.default for parameter in fields(SamplingParams)}


def to_json(value: object) -> str:
    """Raises LedgerError for a value that JSON cannot express."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"cannot be stored as JSON: {error}") from error


_PLACES = ", ".join("?" * (len(TURN_COLUMNS) + 1))
_COLUMNS = ", ".join((*TURN_COLUMNS, "checksum"))
_RESULT = ", ".join(RESULT_COLUMNS)
SET_RESULT = ", ".join(f"{name} = :{name}" for name in (*RESULT_COLUMNS, "checksum") if name != "episode_id")
"""The assignments, in SQL, of `Ending.result_columns`."""

_NO_RESULT = {**dict.fromkeys(RESULT_COLUMNS), "metadata": "{}"}
_GIVEN_AT_BEGIN = (
    "episode_type", "client_id", "api_key_sha256", "begun_at", "idle_timeout_s", "deadline_at", "data_source",
    "lease_s", "is_greedy", "sampling_seed", "temperature", "max_calls", "max_tokens",
)  # fmt: skip
_AT_BEGIN = (*RESULT_COLUMNS, "checksum", *_GIVEN_AT_BEGIN, "last_seen_at")
_INSERT_EPISODE = (
    f"INSERT INTO episodes (job_id, state, {', '.join(_AT_BEGIN)})"
    f" SELECT job_id, 'running', {', '.join(f':{name}' for name in _AT_BEGIN)} FROM jobs ORDER BY job_id DESC LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class EncodedTurn:
    """A turn as it is stored. Made by the caller's thread, so that the writer only writes."""

    episode_id: str
    columns: tuple[Any, ...]
    weight_versions: tuple[int, ...]
    prompt_tokens: int
    sampled_tokens: int
    sampling: tuple[SamplingSettings, ...]

    @classmethod
    def of(cls, turn: Turn) -> EncodedTurn:
        columns = (
            turn.episode_id,
            turn.index,
            pack_integers(turn.prompt_ids),
            pack_integers(turn.output_ids_T),
            pack_floats(turn.logprobs_T),
            pack_integers(turn.weight_versions_T),
            turn.finish_reason.value,
            _params_to_json(turn.params),
            to_json(turn.messages),
            to_json(turn.reply),
            to_json(turn.tools),
            turn.parent,
            None if turn.fork_reason is None else turn.fork_reason.value,
            float(turn.started_at),
            float(turn.ended_at),
            turn.call_id,
            turn.choice,
            turn.request_sha256,
            turn.attempt,
            turn.withheld,
        )
        return cls(
            turn.episode_id,
            (*columns, checksum(columns)),
            tuple(sorted(set(turn.weight_versions_T))),
            len(turn.prompt_ids),
            len(turn.output_ids_T),
            (SamplingSettings.of(turn.params),),
        )


@dataclass(frozen=True, slots=True)
class Ending:
    """What a client reported at the end of an episode, with what is not on record yet of its calls."""

    episode_id: str
    idempotency_key: str
    payload_digest: str
    task_id: str
    reward: float
    is_success: bool | None
    metadata: Mapping[str, Any]
    ended_at: float
    turn_rewards: Sequence[float] | None = None
    rewards: Mapping[str, float] | None = None
    unrecorded: ModelUse = NO_USE
    model_share: float | None = None

    def result_columns(self) -> dict[str, Any]:
        """The result as it is stored, with its checksum."""
        return _with_checksum(
            {
                "episode_id": self.episode_id,
                "task_id": self.task_id,
                "idempotency_key": self.idempotency_key,
                "payload_digest": self.payload_digest,
                "reward": float(self.reward),
                "is_success": None if self.is_success is None else int(self.is_success),
                "metadata": to_json(self.metadata),
                "turn_rewards": to_json_or_null(self.turn_rewards),
                "rewards": to_json_or_null(self.rewards),
            }
        )


def _with_checksum(result: dict[str, Any]) -> dict[str, Any]:
    return {**result, "checksum": checksum([result[name] for name in RESULT_COLUMNS])}


def insert_job(
    connection: sqlite3.Connection,
    at: float,
    job: Mapping[str, Any],
    resolved: Mapping[str, Any],
    *,
    from_weights: bool = False,
    key: str | None = None,
) -> JobRow:
    """Start a new run: from here on steps count from 0 and the pool is empty.

    With `from_weights` it begins from those of the run before, if there is one. What that left open is closed with
    the reason `job_replaced`.
    """
    _close_books(connection, at)
    earlier = queries.latest_job(connection) if from_weights else None
    origin = None if earlier is None else (earlier.job_id, queries.last_trained_step(connection, earlier.job_id))
    row = connection.execute(
        "INSERT INTO jobs (job, resolved, created_at, origin_job_id, origin_step) VALUES (?, ?, ?, ?, ?) RETURNING *",
        (to_json(job), to_json(resolved), at, *(origin or (None, None))),
    ).fetchone()
    started = queries.to_job(row)
    names = {name: started.resolved.get(name) for name in ("project_name", "experiment_name")}
    named = {} if key is None else {"key": key}
    weights = {} if origin is None else {"weights_of": {"job_id": origin[0], "step": origin[1]}}
    insert_event(connection, at, "job.started", {"job_id": started.job_id, **names, **named, **weights})
    return started


def extend_job(
    connection: sqlite3.Connection, at: float, job: Mapping[str, Any], resolved: Mapping[str, Any]
) -> JobRow:
    """Give the newest run its job anew, with another end: steps and pool stay."""
    before = queries.latest_job(connection)
    row = connection.execute(
        f"UPDATE jobs SET job = ?, resolved = ? WHERE job_id = {NEWEST_JOB} RETURNING *",
        (to_json(job), to_json(resolved)),
    ).fetchone()
    if before is None or row is None:
        raise LedgerError("no job is on record: there is none to extend")
    extended = queries.to_job(row)
    steps = {"from": before.resolved.get("total_steps"), "to": extended.resolved.get("total_steps")}
    insert_event(connection, at, "job.extended", {"job_id": extended.job_id, **steps})
    return extended


def insert_state(connection: sqlite3.Connection, at: float, state: EngineState, reason: str | None = None) -> None:
    connection.execute("INSERT INTO states (state, reason, at) VALUES (?, ?, ?)", (state, reason, at))
    insert_event(connection, at, "engine.state", {"state": state, "reason": reason})


def insert_event(connection: sqlite3.Connection, at: float, kind: str, detail: Mapping[str, Any]) -> None:
    connection.execute("INSERT INTO events (kind, detail, at) VALUES (?, ?, ?)", (kind, to_json(detail), at))


def insert_audit(connection: sqlite3.Connection, entry: AuditRow) -> None:
    connection.execute(
        "INSERT INTO audit (at, caller, address, method, path, status, request_id) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (entry.at, entry.caller, entry.address, entry.method, entry.path, entry.status, entry.request_id),
    )


def insert_change(connection: sqlite3.Connection, at: float, change: JobChange) -> None:
    """Other settings of the newest job from a step on. Raises Conflict unless it is the next revision."""
    job = queries.latest_job(connection)
    if job is None:
        raise LedgerError("no job is on record: there is none to change")
    last = queries.job_revision(connection, job.job_id)
    _require(change.revision == last + 1, f"the job is at revision {last}: the next one is not {change.revision}")
    connection.execute(
        "INSERT INTO job_changes (job_id, revision, at_step, settings, at) VALUES (?, ?, ?, ?, ?)",
        (job.job_id, change.revision, change.at_step, to_json(dict(change.settings)), at),
    )
    detail = {"revision": change.revision, "at_step": change.at_step, "settings": dict(change.settings)}
    insert_event(connection, at, "job.changed", {"job_id": job.job_id, **detail})


def insert_episode(connection: sqlite3.Connection, row: EpisodeRow) -> None:
    """Record a RUNNING episode of the newest job. Raises LedgerError if no job is recorded or the id is taken."""
    result = _with_checksum({**_NO_RESULT, "episode_id": row.episode_id, "task_id": row.task_id})
    settings = {name: getattr(row, name) for name in _GIVEN_AT_BEGIN}
    inserted = connection.execute(_INSERT_EPISODE, {**result, **settings, "last_seen_at": row.begun_at}).rowcount
    if not inserted:
        raise LedgerError("no job is on record: record one before the first episode")


def insert_turn(connection: sqlite3.Connection, turn: EncodedTurn) -> None:
    connection.execute(f"INSERT INTO turns ({_COLUMNS}) VALUES ({_PLACES})", turn.columns)
    own, sampling = to_json(turn.weight_versions), _sampling_to_json(turn.sampling)
    known, known_sampling = connection.execute(
        "UPDATE episodes SET turns = turns + 1, calls = calls + 1, prompt_tokens = prompt_tokens + ?,"
        " sampled_tokens = sampled_tokens + ?, weight_versions = iif(weight_versions = '[]', ?, weight_versions),"
        " sampling = iif(sampling = '[]', ?, sampling)"
        " WHERE episode_id = ? RETURNING weight_versions, sampling",
        (turn.prompt_tokens, turn.sampled_tokens, own, sampling, turn.episode_id),
    ).fetchone()
    if known != own:
        versions = sorted({*turn.weight_versions, *json.loads(known)})
        connection.execute(
            "UPDATE episodes SET weight_versions = ? WHERE episode_id = ?", (to_json(versions), turn.episode_id)
        )
    if known_sampling != sampling:
        _add_sampling(connection, turn.episode_id, queries.to_sampling(known_sampling), turn.sampling)


def insert_turns(connection: sqlite3.Connection, turns: Sequence[EncodedTurn]) -> None:
    for turn in turns:
        insert_turn(connection, turn)


def end_episode(connection: sqlite3.Connection, ending: Ending) -> EndReceipt:
    """Complete a running episode exactly once; the same key and digest again give the same answer.

    Raises NotFound, IdempotencyMismatch (same key, other payload) or EpisodeEnded (it ended under another key,
    was aborted or expired; the message says which).
    """
    add_use(connection, ending.episode_id, ending.unrecorded)
    ended = connection.execute(
        f"UPDATE episodes SET state = 'completed', ended_at = :ended_at, last_seen_at = :ended_at, {SET_RESULT},"
        " model_share = :model_share WHERE episode_id = :episode_id AND state = 'running'"
        f" RETURNING weight_versions, begun_at, {queries.USE_COLUMNS}",
        {**ending.result_columns(), "ended_at": ending.ended_at, "model_share": ending.model_share},
    ).fetchone()
    if ended is None:
        return _replay(queries.episode(connection, ending.episode_id), ending)
    count_acknowledged(connection)
    versions = tuple(json.loads(ended["weight_versions"]))
    use, share = queries.to_use(ended), ending.model_share
    return EndReceipt(
        False, EpisodeState.COMPLETED, None, None, ending.ended_at, versions, ended["begun_at"], use, share
    )


def receipt_of(row: EpisodeRow, *, replayed: bool = True) -> EndReceipt:
    """What a row says of an episode that has a result."""
    assert row.ended_at is not None, "it has a result"
    return EndReceipt(
        replayed,
        row.state,
        row.outcome,
        row.batch_id,
        row.ended_at,
        row.weight_versions,
        row.begun_at,
        row.use,
        row.model_share,
    )


def add_use(connection: sqlite3.Connection, episode_id: str, use: ModelUse) -> None:
    """Put what is not on record yet of a running episode's calls there."""
    if use == NO_USE:
        return
    known = connection.execute(
        "UPDATE episodes SET calls = calls + ?, prompt_tokens = prompt_tokens + ?, sampled_tokens = sampled_tokens + ?,"
        " is_limited = max(is_limited, ?), system_failures = system_failures + ?"
        " WHERE episode_id = ? AND state = 'running' RETURNING sampling",
        (use.calls, use.prompt_tokens, use.sampled_tokens, use.is_limited, use.system_failures, episode_id),
    ).fetchone()
    if known is not None:
        _add_sampling(connection, episode_id, queries.to_sampling(known["sampling"]), use.sampling)


def _add_sampling(
    connection: sqlite3.Connection,
    episode_id: str,
    known: Sequence[SamplingSettings],
    used: Sequence[SamplingSettings],
) -> None:
    together = tuple(dict.fromkeys((*known, *used)))[:MAX_SETTINGS]
    if together != tuple(known):
        connection.execute(
            "UPDATE episodes SET sampling = ? WHERE episode_id = ?", (_sampling_to_json(together), episode_id)
        )


def _sampling_to_json(settings: Sequence[SamplingSettings]) -> str:
    return to_json([(each.temperature, each.others) for each in settings])


def count_acknowledged(connection: sqlite3.Connection) -> None:
    """Count an episode whose client is about to be told that its result is stored."""
    connection.execute("UPDATE marks SET acknowledged = acknowledged + 1")


def _replay(row: EpisodeRow, ending: Ending) -> EndReceipt:
    if row.state is EpisodeState.PREPARED:
        raise Conflict(f"episode {row.episode_id} is prepared: commit its transaction")
    if row.ended_at is None or row.idempotency_key != ending.idempotency_key:
        why = f" ({row.outcome})" if row.outcome else ""
        raise EpisodeEnded(f"episode {row.episode_id} is over: it is {row.state}{why}; begin another one")
    if row.payload_digest != ending.payload_digest:
        raise IdempotencyMismatch(
            f"episode {row.episode_id} was ended with another result under the same key; the first one stands"
        )
    return receipt_of(row)


def revise_reward(
    connection: sqlite3.Connection,
    at: float,
    episode_id: str,
    *,
    reward: float,
    is_success: bool | None,
    turn_rewards: Sequence[float] | None,
    rewards: Mapping[str, float] | None = None,
    reason: str,
) -> EpisodeRow:
    """Another result for an episode that waits for a batch; the former one is kept in `reward_revisions`. Raises
    NotFound, or EpisodeEnded once its batch is sealed or if it is in any other state."""
    former = queries.episode(connection, episode_id)
    stored = connection.execute(f"SELECT {_RESULT} FROM episodes WHERE episode_id = ?", (episode_id,)).fetchone()
    result = _with_checksum(
        {
            **dict(stored),
            "reward": float(reward),
            "is_success": None if is_success is None else int(is_success),
            "turn_rewards": to_json_or_null(turn_rewards),
            "rewards": to_json_or_null(rewards),
        }
    )
    revised = connection.execute(
        f"UPDATE episodes SET {SET_RESULT} WHERE episode_id = :episode_id AND {_IN_POOL}", result
    ).rowcount
    if not revised:
        how = "its batch is sealed" if former.state is EpisodeState.COMPLETED else f"it is {former.state}"
        raise EpisodeEnded(f"the reward of episode {episode_id} is final: {how}")
    connection.execute(
        "INSERT INTO reward_revisions (episode_id, reward, is_success, turn_rewards, rewards, reason, at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            episode_id,
            former.reward,
            former.is_success,
            to_json_or_null(former.turn_rewards),
            to_json_or_null(former.rewards),
            reason,
            at,
        ),
    )
    detail = {"episode_id": episode_id, "from": former.reward, "to": reward, "reason": reason}
    insert_event(connection, at, "reward.revised", detail)
    return queries.episode(connection, episode_id)


def close_episode(
    connection: sqlite3.Connection,
    episode_id: str,
    state: Literal[EpisodeState.ABORTED, EpisodeState.EXPIRED],
    reason: str,
    *,
    ended_at: float,
    last_seen_at: float | None = None,
    is_prepared: bool = False,
    unrecorded: ModelUse = NO_USE,
) -> bool:
    """Give a running episode up, or a prepared one if that is said. False if it was in that state already.

    `unrecorded` is what is not on record yet of its calls. Raises NotFound or EpisodeEnded.
    """
    add_use(connection, episode_id, unrecorded)
    closed = connection.execute(
        "UPDATE episodes SET state = ?, outcome = ?, ended_at = ?, last_seen_at = coalesce(?, last_seen_at)"
        " WHERE episode_id = ? AND state = ?",
        (
            state, reason, ended_at, last_seen_at, episode_id,
            EpisodeState.PREPARED if is_prepared else EpisodeState.RUNNING,
        ),
    ).rowcount  # fmt: skip
    if closed:
        _count_closed(connection, state, {reason: 1})
        return True
    present = queries.episode(connection, episode_id)
    if present.state is not state:
        raise EpisodeEnded(f"episode {episode_id} is over: it is {present.state}")
    return False


def seal_batch(
    connection: sqlite3.Connection,
    at: float,
    batch_id: str,
    step: int,
    groups: Sequence[Sequence[str]],
    dropped: Sequence[tuple[str, str]],
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Bind completed episodes to a batch by their groups and drop others, given as (episode id, reason).

    `settings` is what the batch is trained with where that differs from the job. Raises Conflict, with nothing
    changed, if a member is not a completed train episode outside any batch.
    """
    connection.execute(
        "INSERT INTO batches (batch_id, job_id, step, state, sealed_at, settings)"
        f" VALUES (?, {NEWEST_JOB}, ?, ?, ?, ?)",
        (batch_id, step, BatchState.SEALED, at, to_json(dict(settings or {}))),
    )
    members = [(episode_id, number) for number, group in enumerate(groups) for episode_id in group]
    for episode_id, number in members:
        bound = connection.execute(
            "UPDATE episodes SET batch_id = ?, batch_group = ?"
            f" WHERE episode_id = ? AND job_id = {NEWEST_JOB} AND {_IN_POOL}",
            (batch_id, number, episode_id),
        ).rowcount
        _require(bound, f"episode {episode_id} cannot join batch {batch_id}: it is not waiting for one")
    for episode_id, reason in dropped:
        moved = connection.execute(
            f"UPDATE episodes SET state = ?, outcome = ? WHERE episode_id = ? AND {_IN_POOL}",
            (EpisodeState.DROPPED, reason, episode_id),
        ).rowcount
        _require(moved, f"episode {episode_id} cannot be dropped: it is not waiting for a batch")
    reasons = Counter(reason for _, reason in dropped)
    _count_closed(connection, EpisodeState.DROPPED, reasons)
    detail = {"batch_id": batch_id, "step": step, "episodes": len(members), "dropped": dict(reasons)}
    insert_event(connection, at, "batch.sealed", detail)


def finish_batch(connection: sqlite3.Connection, at: float, report: StepReport) -> None:
    finished = connection.execute(
        "UPDATE batches SET state = ?, step = ?, finished_at = ?, weight_version = ?, metrics = ?"
        " WHERE batch_id = ? AND state = ?",
        (
            BatchState.TRAINED, report.step, at, report.weight_version.version, to_json(dict(report.metrics)),
            report.batch_id, BatchState.SEALED,
        ),
    ).rowcount  # fmt: skip
    _require(finished, f"batch {report.batch_id} cannot be finished: it is not sealed")
    trained = connection.execute(
        "UPDATE episodes SET state = ? WHERE batch_id = ? AND state = ?",
        (EpisodeState.TRAINED, report.batch_id, EpisodeState.COMPLETED),
    ).rowcount
    _count_closed(connection, EpisodeState.TRAINED, {"": trained})
    connection.execute(
        "INSERT INTO trained_groups (job_id, data_source, n)"
        " SELECT job_id, data_source, count(DISTINCT batch_group) FROM episodes WHERE batch_id = ?"
        " GROUP BY data_source"
        " ON CONFLICT DO UPDATE SET n = n + excluded.n",
        (report.batch_id,),
    )
    connection.executemany(
        "UPDATE episodes SET advantage = ? WHERE episode_id = ? AND batch_id = ?",
        [(advantage, episode_id, report.batch_id) for episode_id, advantage in report.advantages.items()],
    )
    detail = {"batch_id": report.batch_id, "step": report.step, "weight_version": report.weight_version.version}
    score = report.metrics.get(SCORE)
    insert_event(connection, at, "batch.trained", {**detail, "score": score})


def fail_batch(connection: sqlite3.Connection, at: float, batch_id: str, reason: str) -> None:
    """Give a sealed batch up: its members are completed and unbound again. Raises Conflict unless it is sealed."""
    failed = connection.execute(
        "UPDATE batches SET state = ?, reason = ?, finished_at = ? WHERE batch_id = ? AND state = ?",
        (BatchState.FAILED, reason, at, batch_id, BatchState.SEALED),
    ).rowcount
    _require(failed, f"batch {batch_id} cannot be failed: it is not sealed")
    connection.execute("UPDATE episodes SET batch_id = NULL, batch_group = NULL WHERE batch_id = ?", (batch_id,))
    insert_event(connection, at, "batch.failed", {"batch_id": batch_id, "reason": reason})


def rewind(connection: sqlite3.Connection, at: float, step: int, reason: str) -> None:
    """Declare that the weights are back at `step`: later batches become REWOUND, their metrics leave the history.

    Their episodes stay TRAINED, so that no episode is trained twice.
    """
    rewound = connection.execute(
        f"UPDATE batches SET state = ?, reason = ? WHERE job_id = {NEWEST_JOB} AND state = ? AND step > ?",
        (BatchState.REWOUND, reason, BatchState.TRAINED, step),
    ).rowcount
    connection.execute(
        f"UPDATE evaluations SET state = ?, ended_at = coalesce(ended_at, ?) WHERE job_id = {NEWEST_JOB} AND step > ?",
        (EvaluationState.REWOUND, at, step),
    )
    insert_event(connection, at, "weights.rewound", {"step": step, "reason": reason, "batches": rewound})


def recover(connection: sqlite3.Connection, at: float, reason: str = "server_restarted") -> OpenWork:
    """What to go on with after a crash. Batches sealed and never finished fail with `reason`; running episodes go
    on running, with one failure of the system more."""
    returned = _fail_sealed(connection, at, reason)
    last = connection.execute(
        f"SELECT step, weight_version FROM batches WHERE job_id = {NEWEST_JOB} AND state = 'trained'"
        " ORDER BY step DESC LIMIT 1"
    ).fetchone()
    # Its agent may have had a call under way, or have found nobody to ask.
    connection.execute(
        f"UPDATE episodes SET system_failures = system_failures + 1 WHERE job_id = {NEWEST_JOB} AND state = 'running'"
    )
    waiting = queries.episodes_with_turns(connection, _IN_POOL, "ended_at, number")
    running = queries.episodes_with_turns(connection, "state IN ('running', 'prepared')", "number")
    return OpenWork(
        job=queries.latest_job(connection),
        step=0 if last is None else last["step"],
        weight_version=0 if last is None else last["weight_version"],
        running=running,
        returned=returned,
        completed=waiting,
    )


def _fail_sealed(connection: sqlite3.Connection, at: float, reason: str) -> tuple[str, ...]:
    sealed = connection.execute("SELECT batch_id FROM batches WHERE state = ?", (BatchState.SEALED,)).fetchall()
    for row in sealed:
        fail_batch(connection, at, row["batch_id"], reason)
    return tuple(row["batch_id"] for row in sealed)


def _close_books(connection: sqlite3.Connection, at: float) -> None:
    """End whatever belongs to the job before: nothing of it can be trained by the next."""
    _fail_sealed(connection, at, JOB_REPLACED)
    expired = connection.execute(
        "UPDATE episodes SET state = ?, outcome = ?, ended_at = ? WHERE state IN ('running', 'prepared')",
        (EpisodeState.EXPIRED, JOB_REPLACED, at),
    ).rowcount
    _count_closed(connection, EpisodeState.EXPIRED, {JOB_REPLACED: expired})
    dropped = connection.execute(
        f"UPDATE episodes SET state = ?, outcome = ? WHERE {_IN_POOL}", (EpisodeState.DROPPED, JOB_REPLACED)
    ).rowcount
    _count_closed(connection, EpisodeState.DROPPED, {JOB_REPLACED: dropped})
    connection.execute(
        "UPDATE evaluations SET state = ?, reason = ?, ended_at = ? WHERE state IN ('due', 'running')",
        (EvaluationState.ABANDONED, JOB_REPLACED, at),
    )


def _count_closed(connection: sqlite3.Connection, state: EpisodeState, by_outcome: Mapping[str, int]) -> None:
    """Keep the count of final states; to count the episodes themselves takes seconds once there are millions."""
    connection.executemany(
        f"INSERT INTO episode_counts (job_id, state, outcome, n) VALUES ({NEWEST_JOB}, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET n = n + excluded.n",
        [(state.value, outcome, n) for outcome, n in by_outcome.items() if n],
    )


def _params_to_json(params: SamplingParams) -> str:
    """What differs from the defaults, which is little."""
    given = {name: value for name in _DEFAULTS if (value := getattr(params, name)) != _DEFAULTS[name]}
    if params.grammar is not None:
        given["grammar"] = asdict(params.grammar)
    return to_json(given)


def to_json_or_null(values: Sequence[float] | Mapping[str, float] | None) -> str | None:
    """Rewards of turns, or by name."""
    if values is None:
        return None
    return to_json(dict(values) if isinstance(values, Mapping) else list(values))


def _require(changed: int, otherwise: str) -> None:
    if not changed:
        raise Conflict(otherwise)
