"""Evaluations on record: which weights are due to be scored, who scores them, and the result."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarm.errors import BadRequest, Conflict, NotFound
from swarm.ledger.queries import NEWEST_JOB
from swarm.ledger.rows import EvaluationRow, EvaluationState
from swarm.ledger.tables import EVALUATIONS, encode_passes, to_json
from swarm.ledger.writes.events import insert_event
from swarm.pass_at_k import PassAtK, levels_of, pass_at_k

_OPEN = "state IN ('due', 'running')"


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """The final report of an evaluator: the episodes that it scored, and how many attempts brought no reward."""

    evaluator: str
    episode_ids: tuple[str, ...]
    failures: int
    reason: str | None

    def digest(self) -> str:
        """Return a digest of the whole report."""
        content = [self.evaluator, sorted(self.episode_ids), self.failures, self.reason]
        return hashlib.sha256(to_json(content).encode()).hexdigest()


def evaluations(connection: sqlite3.Connection, after_step: int = -1, limit: int = 1000) -> list[EvaluationRow]:
    """Return evaluations of the newest job, ordered by step and age.

    The result has `limit` evaluations, and the rest of the last step.
    """
    beyond = f"FROM evaluations WHERE job_id = {NEWEST_JOB} AND step > ?1"
    rows = connection.execute(
        f"SELECT * {beyond} AND step <= coalesce((SELECT step {beyond} ORDER BY step LIMIT 1 OFFSET ?2 - 1), step)"
        " ORDER BY step, evaluation_id",
        (after_step, limit),
    )
    return [EVALUATIONS.decode(row) for row in rows]


def newest_evaluation(connection: sqlite3.Connection, state: EvaluationState | None = None) -> EvaluationRow | None:
    """Return the newest evaluation of the newest job, in a given state or in any. Return None if there is none."""
    row = connection.execute(
        f"SELECT * FROM evaluations WHERE job_id = {NEWEST_JOB} AND state = coalesce(?, state)"
        " ORDER BY evaluation_id DESC LIMIT 1",
        (state,),
    ).fetchone()
    return None if row is None else EVALUATIONS.decode(row)


def evaluation_of(connection: sqlite3.Connection, step: int) -> EvaluationRow:
    """Return the evaluation of the present weights of a step. Raise NotFound."""
    return EVALUATIONS.decode(_existing(connection, step))


def insert_evaluation(connection: sqlite3.Connection, step: int, weight_version: int, episodes: int) -> EvaluationRow:
    """Record that the present weights are due to be scored, unless that is on record, and return their evaluation.

    An open evaluation of other weights becomes REWOUND.
    """
    connection.execute(
        f"UPDATE evaluations SET state = 'rewound', ended_at = ? WHERE job_id = {NEWEST_JOB} AND {_OPEN}"
        " AND (step <> ? OR weight_version <> ?)",
        (time.time(), step, weight_version),
    )
    inserted = connection.execute(
        "INSERT OR IGNORE INTO evaluations (job_id, step, weight_version, state, episodes, due_at)"
        " SELECT job_id, ?, ?, 'due', ?, ? FROM jobs ORDER BY job_id DESC LIMIT 1",
        (step, weight_version, episodes, time.time()),
    ).rowcount
    if inserted:
        _record_event(connection, "evaluation.due", step, weight_version=weight_version)
    return evaluation_of(connection, step)


def claim_evaluation(connection: sqlite3.Connection, step: int, evaluator: str) -> EvaluationRow:
    """Give a due evaluation to an evaluator. Raise Conflict unless it is due."""
    _move(connection, step, "state = 'due'", "is not due", state="running", evaluator=evaluator, claimed_at=time.time())
    _record_event(connection, "evaluation.claimed", step, evaluator=evaluator)
    return evaluation_of(connection, step)


def return_evaluation(connection: sqlite3.Connection, step: int, reason: str) -> EvaluationRow:
    """Make a running evaluation due again, because its evaluator is gone. Raise Conflict unless it is running."""
    _move(connection, step, "state = 'running'", "does not run", state="due", evaluator=None, claimed_at=None)
    _record_event(connection, "evaluation.due", step, reason=reason)
    return evaluation_of(connection, step)


def abandon_evaluation(connection: sqlite3.Connection, step: int, reason: str) -> EvaluationRow:
    """Close an evaluation without a score. Raise Conflict unless it is open."""
    _move(connection, step, _OPEN, "is over", state="abandoned", reason=reason, ended_at=time.time())
    _record_event(connection, "evaluation.abandoned", step, reason=reason)
    return evaluation_of(connection, step)


def _move(connection: sqlite3.Connection, step: int, condition: str, otherwise: str, **columns: object) -> None:
    """Set columns of the evaluation of a step. Raise Conflict, which says `otherwise`, if it is in another state.

    `condition` is SQL.
    """
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    moved = connection.execute(
        f"UPDATE evaluations SET {assignments} WHERE job_id = {NEWEST_JOB} AND step = :step AND {condition}",
        {**columns, "step": step},
    ).rowcount
    if not moved:
        raise Conflict(f"the evaluation of step {step} {otherwise}")


def record_evaluation(
    connection: sqlite3.Connection, step: int, weight_version: int, report: EvaluationReport
) -> EvaluationRow:
    """Record a score of the present weights that was not asked for, exactly once.

    The same report again gives the same answer. Raise Conflict if the weights have an evaluation, or BadRequest for an
    episode that cannot score them.
    """
    row = _find(connection, step)
    if row is None:
        begun_at = connection.execute(
            "SELECT coalesce(min(begun_at), ?) FROM episodes WHERE episode_id IN (SELECT value FROM json_each(?))",
            (time.time(), to_json(list(report.episode_ids))),
        ).fetchone()[0]
        connection.execute(
            "INSERT INTO evaluations (job_id, step, weight_version, state, episodes, due_at, evaluator, claimed_at)"
            " SELECT job_id, ?, ?, 'running', ?, ?, ?, ? FROM jobs ORDER BY job_id DESC LIMIT 1",
            (step, weight_version, len(report.episode_ids), begun_at, report.evaluator, begun_at),
        )
    elif row["payload_digest"] != report.digest():
        raise Conflict(f"the weights of step {step} have an evaluation already: it is {row['state']}")
    return end_evaluation(connection, step, report)


def end_evaluation(connection: sqlite3.Connection, step: int, report: EvaluationReport) -> EvaluationRow:
    """Score the weights of a step, exactly once. The same report again gives the same answer.

    A report without episodes abandons the evaluation. Raise NotFound, Conflict if another evaluator runs the evaluation
    or it is over, or BadRequest for an episode that cannot score these weights.
    """
    row = _existing(connection, step)
    digest = report.digest()
    if row["payload_digest"] == digest:
        return EVALUATIONS.decode(row)
    if row["state"] != EvaluationState.RUNNING or row["evaluator"] != report.evaluator:
        whose = f" by {row['evaluator']}" if row["evaluator"] else ""
        raise Conflict(f"the evaluation of step {step} is not yours to end: it is {row['state']}{whose}")
    scores = _scores_of(connection, row, report.episode_ids)
    if not scores.rewards:
        connection.execute(
            "UPDATE evaluations SET failures = ?, payload_digest = ? WHERE evaluation_id = ?",
            (report.failures, digest, row["evaluation_id"]),
        )
        return abandon_evaluation(connection, step, report.reason or "no_score")
    mean, stderr = scores.mean, scores.stderr
    connection.execute(
        "UPDATE evaluations SET state = 'done', ended_at = ?, scored = ?, successes = ?, failures = ?, mean = ?,"
        " stderr = ?, pass_at_k = ?, reason = ?, payload_digest = ? WHERE evaluation_id = ?",
        (
            time.time(), len(scores.rewards), scores.successes, report.failures, mean, stderr,
            encode_passes(scores.passes), report.reason, digest, row["evaluation_id"],
        ),
    )  # fmt: skip
    done = evaluation_of(connection, step)
    _add_to_metrics(connection, done)
    _record_event(connection, "evaluation.done", step, weight_version=done.weight_version, mean=mean, stderr=stderr)
    return done


@dataclass(frozen=True, slots=True)
class _Scores:
    rewards: Mapping[str, tuple[str, float]]
    """Task and reward of each episode."""
    solved: Mapping[str, Sequence[bool]]
    """Whether each episode at a task solved it, by task."""

    @property
    def successes(self) -> int:
        return sum(map(sum, self.solved.values()))

    @property
    def passes(self) -> tuple[PassAtK, ...]:
        """Return pass@k, or nothing where no task had several attempts."""
        attempts = max(map(len, self.solved.values()), default=0)
        return pass_at_k(self.solved, levels_of(attempts)) if attempts > 1 else ()

    @property
    def mean(self) -> float:
        return statistics.fmean(reward for _, reward in self.rewards.values())

    @property
    def stderr(self) -> float | None:
        """Return the standard error between tasks, or None for a single task.

        It is between tasks because attempts at one task are not independent.
        """
        by_task: dict[str, list[float]] = defaultdict(list)
        for task_id, reward in self.rewards.values():
            by_task[task_id].append(reward)
        means = [statistics.fmean(rewards) for rewards in by_task.values()]
        return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None


def _scores_of(connection: sqlite3.Connection, evaluation: sqlite3.Row, episode_ids: Sequence[str]) -> _Scores:
    """Return the scores of the reported episodes.

    Raise BadRequest unless each is an ended eval episode of this job, begun since then and sampled by these weights.
    """
    rows = connection.execute(
        f"SELECT given.value AS given, e.*, e.job_id = {NEWEST_JOB} AS is_own FROM json_each(?) AS given"
        " LEFT JOIN episodes AS e ON e.episode_id = given.value",
        (to_json(list(episode_ids)),),
    )
    rewards: dict[str, tuple[str, float]] = {}
    solved: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        is_ended = row["is_own"] and row["episode_type"] == "eval" and row["state"] == "completed"
        if not is_ended or row["begun_at"] < evaluation["due_at"]:
            raise _no_score(row["given"], evaluation["step"], "it is no ended eval episode that was begun since then")
        versions = json.loads(row["weight_versions"])
        if set(versions) - {evaluation["weight_version"]}:
            raise _no_score(row["given"], evaluation["step"], f"versions {versions} sampled it")
        if row["given"] in rewards:
            # An episode that is reported twice is one attempt.
            continue
        rewards[row["given"]] = row["task_id"], row["reward"]
        solved[row["task_id"]].append(bool(row["is_success"]))
    return _Scores(rewards, solved)


def _no_score(episode_id: str, step: int, why: str) -> BadRequest:
    return BadRequest(f"episode {episode_id!r} is no score of the weights of step {step}: {why}", param="episode_ids")


def _add_to_metrics(connection: sqlite3.Connection, done: EvaluationRow) -> None:
    """Add a score to the metrics of its step. Step 0 has no metrics."""
    found = connection.execute(
        f"SELECT batch_id, metrics FROM batches WHERE job_id = {NEWEST_JOB} AND step = ? AND state = 'trained'",
        (done.step,),
    ).fetchone()
    if found is not None:
        metrics = {**json.loads(found["metrics"]), **done.metrics}
        connection.execute("UPDATE batches SET metrics = ? WHERE batch_id = ?", (to_json(metrics), found["batch_id"]))


def _record_event(connection: sqlite3.Connection, kind: str, step: int, **detail: object) -> None:
    insert_event(connection, kind, {"step": step, **detail})


def _find(connection: sqlite3.Connection, step: int) -> sqlite3.Row | None:
    return connection.execute(
        f"SELECT * FROM evaluations WHERE job_id = {NEWEST_JOB} AND step = ? AND state <> 'rewound'", (step,)
    ).fetchone()


def _existing(connection: sqlite3.Connection, step: int) -> sqlite3.Row:
    row = _find(connection, step)
    if row is None:
        raise NotFound(f"no evaluation of step {step} is on record", param="step")
    return row
