"""What is new in a ledger since a position, as updates of trainings."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swarm.ledger import queries
from swarm.ledger.database import open_for_reading, open_unchanged
from swarm.ledger.integrity.openings import LedgerHistory, read_history
from swarm.live_settings import JobChange
from swarm.recorder.episodes import choose_episodes
from swarm.sinks import EvaluatedStep, FinishedStep, TrainingDescription, TrainingEvent, TrainingUpdate

STEPS_AT_ONCE = 200
"""The most steps of one update, so that a long ledger is read in pieces."""
EVENTS_AT_ONCE = 2000
REWOUND, STARTED = "weights.rewound", "job.started"


@dataclass(frozen=True, slots=True)
class Position:
    """The place in a ledger up to which it was recorded: the job that was read last, its last step, score and event.

    `key` is the training that was read last, or empty before the first. `scored_at` is the end of the last evaluation
    that was read, in seconds since the epoch. `closed` is the last job that was read to its end after a later one had
    begun. `event_at` is the time of the event, by which another history of the same ledger is told.
    """

    job_id: int = 0
    closed: int = 0
    step: int = 0
    scored_at: float = 0.0
    event: int = 0
    event_at: float = 0.0
    key: str = ""


class LedgerReader:
    """A reader of one ledger. It opens the file anew for each look, so that it keeps no file of a server open."""

    def __init__(self, ledger: Path) -> None:
        self._path = ledger

    def read(self, position: Position, *, is_served: bool = True) -> tuple[TrainingUpdate, Position] | None:
        """Return the next update and the position after it, or None if nothing is new.

        A ledger that is not served is read without leaving files beside it. Raise sqlite3.Error if it cannot be read
        just now.
        """
        if not self._path.exists():
            return None
        with closing(open_for_reading(self._path) if is_served else open_unchanged(self._path)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")
            return self._next(connection, position)

    def progress(self, *, is_served: bool = True) -> tuple[LedgerHistory, int] | None:
        """Return the openings of the ledger and its acknowledged episodes, or None if no server has opened it.

        Raise sqlite3.Error if it cannot be read just now.
        """
        if not self._path.exists():
            return None
        with closing(open_for_reading(self._path) if is_served else open_unchanged(self._path)) as connection:
            connection.execute("BEGIN")
            history = read_history(connection)
            acknowledged = connection.execute("SELECT acknowledged FROM marks").fetchone()[0]
        return (history, acknowledged) if history.openings else None

    def _next(self, connection: sqlite3.Connection, position: Position) -> tuple[TrainingUpdate, Position] | None:
        if not _is_of(connection, position):
            position = Position()
        job_ids = [row[0] for row in connection.execute("SELECT job_id FROM jobs ORDER BY job_id")]
        for job_id in job_ids:
            if job_id < position.job_id:
                continue
            is_last = job_id == job_ids[-1]
            begun = replace(position, job_id=job_id, step=0, scored_at=0.0)
            start = position if job_id == position.job_id else begun
            update, after = self._update(connection, job_id, start, is_last=is_last)
            if after == start and not is_last:
                # All of it was read: its state goes to the sink once more, as it is replaced.
                after = replace(after, closed=job_id)
            if after != position:
                return update, after
        return None

    def _update(
        self, connection: sqlite3.Connection, job_id: int, start: Position, *, is_last: bool
    ) -> tuple[TrainingUpdate, Position]:
        events = list(_events(connection, job_id, start.event))
        rewinds = [int(event.detail["step"]) for event in events if event.kind == REWOUND]
        if start.step == 0:
            # A sink may have the training of a history that was lost with the ledger's newest part.
            rewinds.append(0)
        rewound_to = min(rewinds, default=None)
        after = start.step if rewound_to is None else min(start.step, rewound_to)
        steps = list(_steps(connection, job_id, after))
        # The sink deletes the scores beyond a rewind, also newer ones if the event is read late.
        scores = list(_scores(connection, job_id, start.scored_at if rewound_to is None else 0.0))
        training = describe(connection, job_id, is_last=is_last)
        episodes = tuple(each for step in steps for each in choose_episodes(connection, training, job_id, step.step))
        update = TrainingUpdate(training, rewound_to, tuple(steps), tuple(scores), episodes, tuple(events))
        last_step = steps[-1].step if steps else after
        scored_at = max((score.at for score in scores), default=start.scored_at)
        event, event_at = (events[-1].number, events[-1].at) if events else (start.event, start.event_at)
        return update, Position(job_id, start.closed, last_step, scored_at, event, event_at, training.key)


def _is_of(connection: sqlite3.Connection, position: Position) -> bool:
    """Return whether this ledger was read up to a position.

    Another ledger was not. Nor was an older copy of the same one, even if it has gone on since and has more events.
    """
    ledger_id = connection.execute("SELECT ledger_id FROM marks").fetchone()[0]
    event = connection.execute("SELECT at FROM events WHERE event_id = ?", (position.event,)).fetchone()
    is_known = event is None if position.event == 0 else event is not None and event[0] == position.event_at
    return position.key.startswith(f"{ledger_id}-") and is_known


def describe(connection: sqlite3.Connection, job_id: int, *, is_last: bool) -> TrainingDescription:
    """Return a training and its present state."""
    job = queries.job(connection, job_id)
    ledger_id = connection.execute("SELECT ledger_id FROM marks").fetchone()[0]
    launch = connection.execute("SELECT key FROM launches WHERE job_id = ?", (job_id,)).fetchone()
    newest = next(iter(queries.states(connection, 1)), None) if is_last else None
    resolved, changes = job.resolved, queries.job_changes(connection, job_id)
    step = queries.last_trained_step(connection, job_id)
    status = _status(None if newest is None else newest.state, step, _total_steps(resolved, changes, step))
    home = Path(connection.execute("SELECT file FROM pragma_database_list WHERE name = 'main'").fetchone()[0]).parent
    return TrainingDescription(
        key=f"{ledger_id}-{job_id}",
        project=str(resolved["project_name"]),
        experiment=str(resolved["experiment_name"]),
        model=str(resolved["model"]),
        engine=str(resolved["engine"]),
        settings=resolved,
        changes={change.at_step: change.settings for change in changes},
        home=str(home),
        launch_key=None if launch is None else launch[0],
        begun_at=job.created_at,
        step=step,
        status=status,
        # The reason is that of the server's state, which has ended since the training was complete.
        reason=newest.reason if newest is not None and newest.state == status else None,
    )


def _total_steps(resolved: Mapping[str, Any], changes: Sequence[JobChange], step: int) -> int | None:
    """Return the steps that the job wants in all, after the changes that apply to the next step."""
    wanted = [resolved, *(change.settings for change in changes if change.at_step <= step + 1)]
    return next((settings["total_steps"] for settings in reversed(wanted) if "total_steps" in settings), None)


def _status(state: str | None, step: int, total: int | None) -> str:
    """Return the state of a training from that of its server, which is None once a later training has begun there.

    A training that has done all its steps is complete, also after its server has ended.
    """
    if state in {None, "OFFLINE"} and total is not None and step >= total:
        return "COMPLETE"
    return state or "REPLACED"


def _steps(connection: sqlite3.Connection, job_id: int, after: int) -> Iterator[FinishedStep]:
    rows = connection.execute(
        "SELECT step, weight_version, finished_at, metrics FROM batches"
        " WHERE job_id = ? AND state = 'trained' AND step > ? ORDER BY step LIMIT ?",
        (job_id, after, STEPS_AT_ONCE),
    )
    for row in rows:
        yield FinishedStep(row["step"], row["weight_version"], row["finished_at"], json.loads(row["metrics"]))


def _scores(connection: sqlite3.Connection, job_id: int, after: float) -> Iterator[EvaluatedStep]:
    rows = connection.execute(
        "SELECT step, ended_at, mean, stderr, scored, successes FROM evaluations WHERE job_id = ? AND state = 'done'"
        " AND mean IS NOT NULL AND ended_at > ? ORDER BY ended_at",
        (job_id, after),
    )
    for row in rows:
        yield EvaluatedStep(
            row["step"], row["ended_at"], row["mean"], row["stderr"] or 0.0, row["scored"], row["successes"] or 0
        )


def _events(connection: sqlite3.Connection, job_id: int, after: int) -> Iterator[TrainingEvent]:
    """Return the events from this job's start to the next job's, beyond a number."""
    ends = [
        (row["event_id"], json.loads(row["detail"]))
        for row in connection.execute("SELECT event_id, detail FROM events WHERE kind = ?", (STARTED,))
    ]
    end = min((number for number, detail in ends if detail["job_id"] > job_id), default=None)
    for row in queries.events(connection, after, EVENTS_AT_ONCE):
        if end is not None and row.event_id >= end:
            return
        detail: dict[str, Any] = dict(row.detail)
        yield TrainingEvent(row.event_id, row.kind, detail, row.at)
