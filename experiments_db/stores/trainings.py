"""The trainings that servers record, with their curves, scores, episodes, events and system readings.

The recorder of a server writes here, again and again while the server runs, and may repeat a write after a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete

from experiments_db.errors import InvalidRecord
from experiments_db.records import JsonObject
from experiments_db.stores.base import StoreBase, change, insert_rows, new_id, put, require
from experiments_db.stores.curves import select_curves, select_last
from experiments_db.tables import (
    NOTED_LEDGERS,
    SERVER_EVENTS,
    SYSTEM_POINTS,
    TRAINED_EPISODES,
    TRAINING_POINTS,
    TRAINING_SCORES,
    TRAININGS,
    Rows,
)
from experiments_db.trainings import (
    LONGEST_NOTE,
    LONGEST_TAG,
    MOST_TAGS,
    NotedLedger,
    RecordedTraining,
    ServerEvent,
    SystemPoint,
    TrainedEpisode,
    TrainingNews,
    TrainingPoint,
    TrainingScore,
)

STEPPED = (TRAINING_POINTS, TRAINING_SCORES, TRAINED_EPISODES)
"""The tables whose rows belong to a step."""


class TrainingStore(StoreBase):
    def record_training(self, training: RecordedTraining) -> RecordedTraining:
        """Store a training, or its new state if its key is known. Its id, tags and note stay as they are stored."""
        now = self._clock()
        new: dict[str, Any] = {"id": new_id("training", now), "tags": (), "note": ""}
        values = asdict(training) | new | {"updated_at": now}
        with self._write() as connection:
            return put(connection, TRAININGS, values, key=("key",), replace=tuple(values.keys() - new.keys()))

    def label_training(self, training_id: str, *, tags: Sequence[str], note: str) -> RecordedTraining:
        """Give a training these tags and this note, in place of those that it has.

        Raises RecordNotFound, or InvalidRecord for a tag that is empty, too long or one of too many.
        """
        chosen = list(dict.fromkeys(tag.strip() for tag in tags))
        if len(chosen) > MOST_TAGS or any(not 0 < len(tag) <= LONGEST_TAG for tag in chosen):
            raise InvalidRecord(f"a training has at most {MOST_TAGS} tags, each of 1 to {LONGEST_TAG} characters")
        if len(note) > LONGEST_NOTE:
            raise InvalidRecord(f"a note has at most {LONGEST_NOTE:,} characters")
        with self._write() as connection:
            return change(connection, TRAININGS, training_id, tags=chosen, note=note)

    def add_to_training(self, training_id: str, news: TrainingNews) -> None:
        """Store what is new of a training, all or none. What is stored already is replaced. Raises RecordNotFound."""
        with self._write() as connection:
            require(connection, TRAININGS, training_id, lock=True)
            if news.rewound_to is not None:
                for rows in STEPPED:
                    undone = rows.c.training_id == training_id, rows.c.step > news.rewound_to
                    connection.execute(delete(rows.table).where(*undone))
            _replace(connection, TRAINING_POINTS, news.points)
            _replace(connection, TRAINING_SCORES, news.scores)
            _replace(connection, SERVER_EVENTS, news.events)
            _replace(connection, SYSTEM_POINTS, news.system)
            episodes = [
                asdict(episode.summary) | {"messages": episode.messages, "samples": episode.samples}
                for episode in news.episodes
            ]
            insert_rows(connection, TRAINED_EPISODES, episodes, key=("training_id", "episode_id"))

    def has_training(self, key: str) -> bool:
        """Return whether a training of this key is recorded."""
        return self._find(TRAININGS, key=key) is not None

    def note_ledger(self, ledger: NotedLedger) -> None:
        """Store the newest that is known of a ledger, in place of what was known."""
        with self._write() as connection:
            _replace(connection, NOTED_LEDGERS, [ledger])

    def list_noted_ledgers(self, ledger_ids: Collection[str]) -> list[NotedLedger]:
        """Return what is known of the ledgers with these ids."""
        return self._list(NOTED_LEDGERS, NOTED_LEDGERS.c.ledger_id.in_(ledger_ids))

    def list_trainings(self, *, limit: int | None = None) -> list[RecordedTraining]:
        """Return trainings, the newest first."""
        return self._list(TRAININGS, order=(TRAININGS.c.begun_at.desc(), TRAININGS.c.id.desc()), limit=limit)

    def get_training(self, training_id: str) -> RecordedTraining:
        """Return a training. Raises RecordNotFound."""
        return self._get(TRAININGS, training_id)

    def find_launched_training(self, launch_key: str) -> RecordedTraining | None:
        """Return the newest training that was launched under this key, such as a run's `idempotency_key`."""
        found = self._list(TRAININGS, order=(TRAININGS.c.begun_at.desc(),), limit=1, launch_key=launch_key)
        return found[0] if found else None

    def latest_training_metrics(
        self, training_ids: Collection[str], names: Collection[str]
    ) -> Mapping[str, JsonObject]:
        """Return the values of these metrics at the last step that has them, by training and name."""
        curves = select_curves(TRAINING_POINTS).subquery()
        statement = select_last(TRAINING_POINTS, curves).where(curves.c.name.in_(names))
        found: dict[str, dict[str, Any]] = {}
        with self._read() as connection:
            for point in connection.execute(statement, {"owner_ids": list(training_ids)}):
                found.setdefault(point.training_id, {})[point.name] = point.value
        return found

    def list_training_points(self, training_id: str, *, name: str | None = None) -> list[TrainingPoint]:
        """Return the points of a training's curves, or of one of them, by name and step."""
        return self._list(TRAINING_POINTS, training_id=training_id, name=name)

    def list_training_scores(self, training_ids: Collection[str]) -> list[TrainingScore]:
        """Return held-out scores by training and step."""
        return self._list(TRAINING_SCORES, TRAINING_SCORES.c.training_id.in_(training_ids))

    def get_trained_episode(self, training_id: str, episode_id: str) -> TrainedEpisode:
        """Return one kept episode with text and tokens. Raises RecordNotFound."""
        return TrainedEpisode(*self._get_with_text(TRAINED_EPISODES, (training_id, episode_id)))

    def list_server_events(
        self, training_id: str, *, kind: str | None = None, limit: int | None = 100
    ) -> list[ServerEvent]:
        """Return the events of a training's server, all or those of a kind, the newest first."""
        newest = SERVER_EVENTS.c.number.desc()
        return self._list(SERVER_EVENTS, order=(newest,), limit=limit, training_id=training_id, kind=kind)

    def list_system_points(self, training_id: str) -> list[SystemPoint]:
        """Return the readings of the server's machine, by name and time."""
        return self._list(SYSTEM_POINTS, training_id=training_id)


def _replace(connection: Connection, rows: Rows[Any], records: Sequence[Any]) -> None:
    key = rows.table.primary_key.columns.keys()
    others = [column.name for column in rows.columns if column.name not in key]
    insert_rows(connection, rows, [asdict(record) for record in records], key=key, replace=others)
