"""The trainings that servers record, with their curves, scores, episodes, events and system readings.

Place in the flow: a part of ExperimentStore. The recorder of a server writes here, again and again while the server
runs, and may repeat a write after a crash. The explorer reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session, defer

from experiments_db.errors import InvalidRecord
from experiments_db.models import Base
from experiments_db.records import JsonObject, MetricSpan
from experiments_db.stores.base import StoreBase, find_by, get_by, insert_rows, new_id, require, to_record
from experiments_db.stores.curves import Steps, read_spans
from experiments_db.training_models import (
    ServerEventRow,
    SystemPointRow,
    TrainedEpisodeRow,
    TrainingPointRow,
    TrainingRow,
    TrainingScoreRow,
)
from experiments_db.trainings import (
    LONGEST_NOTE,
    LONGEST_TAG,
    MOST_TAGS,
    RecordedTraining,
    ServerEvent,
    SystemPoint,
    TrainedEpisode,
    TrainedEpisodeSummary,
    TrainingNews,
    TrainingScore,
)

_STEPPED: tuple[type[TrainingPointRow | TrainingScoreRow | TrainedEpisodeRow], ...] = (
    TrainingPointRow,
    TrainingScoreRow,
    TrainedEpisodeRow,
)
"""The tables whose rows belong to a step."""


class TrainingStore(StoreBase):
    def record_training(
        self,
        key: str,
        *,
        project: str,
        experiment: str,
        model: str,
        engine: str,
        settings: JsonObject,
        changes: JsonObject,
        home: str,
        launch_key: str | None,
        status: str,
        reason: str | None,
        step: int,
        begun_at: float,
    ) -> RecordedTraining:
        """Store a training, or its new state if the key is known."""
        now = self._clock()
        values: dict[str, Any] = {
            "key": key, "project": project, "experiment": experiment, "model": model, "engine": engine,
            "settings": dict(settings), "changes": dict(changes), "home": home, "launch_key": launch_key,
            "status": status, "reason": reason, "step": step, "begun_at": begun_at, "updated_at": now,
        }  # fmt: skip
        with self._write() as session:
            new: dict[str, Any] = {"id": new_id("training", now), "tags": [], "note": ""}
            insert_rows(session, TrainingRow, [values | new], key=("key",), replace=tuple(values))
            return to_record(RecordedTraining, get_by(session, TrainingRow, key=key))

    def label_training(self, training_id: str, *, tags: Sequence[str], note: str) -> RecordedTraining:
        """Give a training these tags and this note, in place of those that it has.

        Raises RecordNotFound, or InvalidRecord for a tag that is empty, too long or one of too many.
        """
        chosen = list(dict.fromkeys(tag.strip() for tag in tags))
        if len(chosen) > MOST_TAGS or any(not 0 < len(tag) <= LONGEST_TAG for tag in chosen):
            raise InvalidRecord(f"a training has at most {MOST_TAGS} tags, each of 1 to {LONGEST_TAG} characters")
        if len(note) > LONGEST_NOTE:
            raise InvalidRecord(f"a note has at most {LONGEST_NOTE:,} characters")
        with self._write() as session:
            row = require(session, TrainingRow, training_id, "training", lock=True)
            row.tags, row.note = chosen, note
            session.flush()
            return to_record(RecordedTraining, row)

    def add_to_training(self, training_id: str, news: TrainingNews) -> None:
        """Store what is new of a training, all or none. What is stored already is replaced. Raises RecordNotFound."""
        with self._write() as session:
            require(session, TrainingRow, training_id, "training", lock=True)
            if news.rewound_to is not None:
                _rewind(session, training_id, news.rewound_to)
            _insert(session, TrainingPointRow, news.points, ("training_id", "name", "step"))
            _insert(session, TrainingScoreRow, news.scores, ("training_id", "step"))
            _insert(session, ServerEventRow, news.events, ("training_id", "number"))
            _insert(session, SystemPointRow, news.system, ("training_id", "name", "recorded_at"))
            rows = [
                asdict(episode.summary) | {"messages": list(episode.messages), "samples": list(episode.samples)}
                for episode in news.episodes
            ]
            insert_rows(session, TrainedEpisodeRow, rows, key=("training_id", "episode_id"))

    def has_training(self, key: str) -> bool:
        """Return whether a training of this key is recorded."""
        with self._read() as session:
            return find_by(session, TrainingRow, key=key) is not None

    def list_trainings(self, *, limit: int | None = None, offset: int = 0) -> list[RecordedTraining]:
        """Return trainings, the newest first."""
        statement = select(TrainingRow).order_by(TrainingRow.begun_at.desc(), TrainingRow.id.desc())
        return self._list(statement.limit(limit).offset(offset), RecordedTraining)

    def get_training(self, training_id: str) -> RecordedTraining:
        """Return a training. Raises RecordNotFound."""
        with self._read() as session:
            return to_record(RecordedTraining, require(session, TrainingRow, training_id, "training"))

    def training_metric_names(self, training_ids: Collection[str]) -> list[str]:
        """Return the names of the curves that any of these trainings has, sorted."""
        statement = select(TrainingPointRow.name).where(TrainingPointRow.training_id.in_(training_ids)).distinct()
        with self._read() as session:
            return sorted(session.scalars(statement))

    def sample_training_metrics(
        self, training_ids: Collection[str], names: Collection[str], *, most: int, steps: Steps | None = None
    ) -> list[MetricSpan]:
        """Return these curves in spans, as `read_spans` does: all steps, or from the first to the last of `steps`."""
        point = TrainingPointRow
        with self._read() as session:
            return read_spans(session, point, point.training_id, training_ids, names, most=most, steps=steps)

    def latest_training_metrics(
        self, training_ids: Collection[str], names: Collection[str]
    ) -> Mapping[str, JsonObject]:
        """Return the values of these metrics at the last step that has them, by training and name."""
        point = TrainingPointRow
        last = (
            select(point.training_id, point.name, func.max(point.step).label("step"))
            .where(point.training_id.in_(training_ids), point.name.in_(names))
            .group_by(point.training_id, point.name)
            .subquery()
        )
        statement = select(point.training_id, point.name, point.value).join(
            last,
            (point.training_id == last.c.training_id) & (point.name == last.c.name) & (point.step == last.c.step),
        )
        found: dict[str, dict[str, Any]] = {}
        with self._read() as session:
            for training_id, name, value in session.execute(statement):
                found.setdefault(training_id, {})[name] = value
        return found

    def list_training_scores(self, training_ids: Collection[str]) -> list[TrainingScore]:
        """Return held-out scores by training and step."""
        statement = select(TrainingScoreRow).where(TrainingScoreRow.training_id.in_(training_ids))
        return self._list(statement.order_by(TrainingScoreRow.training_id, TrainingScoreRow.step), TrainingScore)

    def list_trained_episodes(
        self, training_id: str, *, limit: int | None = 100, offset: int = 0
    ) -> list[TrainedEpisodeSummary]:
        """Return the kept episodes without text and tokens, by step and id, the newest step first."""
        row = TrainedEpisodeRow
        statement = select(row).where(row.training_id == training_id).options(defer(row.messages), defer(row.samples))
        statement = statement.order_by(row.step.desc(), row.episode_id).limit(limit).offset(offset)
        return self._list(statement, TrainedEpisodeSummary)

    def get_trained_episode(self, training_id: str, episode_id: str) -> TrainedEpisode:
        """Return one kept episode with text and tokens. Raises RecordNotFound."""
        with self._read() as session:
            row = require(session, TrainedEpisodeRow, (training_id, episode_id), "episode")
            return TrainedEpisode(to_record(TrainedEpisodeSummary, row), tuple(row.messages), tuple(row.samples))

    def list_server_events(
        self, training_id: str, *, kind: str | None = None, limit: int | None = 100
    ) -> list[ServerEvent]:
        """Return the events of a training's server, all or those of a kind, the newest first."""
        row = ServerEventRow
        statement = select(row).where(row.training_id == training_id).order_by(row.number.desc())
        if kind is not None:
            statement = statement.where(row.kind == kind)
        return self._list(statement.limit(limit), ServerEvent)

    def list_system_points(self, training_id: str) -> list[SystemPoint]:
        """Return the readings of the server's machine, by name and time."""
        row = SystemPointRow
        statement = select(row).where(row.training_id == training_id).order_by(row.name, row.recorded_at)
        return self._list(statement, SystemPoint)


def _rewind(session: Session, training_id: str, step: int) -> None:
    for row in _STEPPED:
        session.execute(delete(row).where(row.training_id == training_id, row.step > step))


def _insert(session: Session, row: type[Base], records: Sequence[Any], key: tuple[str, ...]) -> None:
    rows = [asdict(record) for record in records]
    replaced = tuple(name for name in rows[0] if name not in key) if rows else ()
    insert_rows(session, row, rows, key=key, replace=replaced)
