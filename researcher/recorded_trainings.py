"""The experiments database as a sink: every training of every server, also outside of studies."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import asdict, fields
from pathlib import Path

from experiments_db import (
    ExperimentStore,
    NotedLedger,
    RecordedTraining,
    ServerEvent,
    SystemPoint,
    TrainedEpisode,
    TrainedEpisodeSummary,
    TrainingNews,
    TrainingPoint,
    TrainingScore,
    open_store,
)
from researcher.home import DATABASE
from swarm.sinks import EvaluatedStep, FinishedStep, LedgerProgress, TrainingUpdate


class DatabaseSink:
    """The sink of the experiments database in a directory of runs."""

    def __init__(self, store: ExperimentStore) -> None:
        self._store = store

    @property
    def place(self) -> str:
        return self._store.location

    def holds(self, key: str) -> bool:
        """Return whether the database has a training. Raises what the store raises."""
        return self._store.has_training(key)

    def write(self, update: TrainingUpdate) -> None:
        """Store an update. Raises what the store raises."""
        described = {field.name: getattr(update.training, field.name) for field in fields(update.training)}
        described["changes"] = {str(step): dict(settings) for step, settings in update.training.changes.items()}
        training_id = self._store.record_training(RecordedTraining(**described)).id
        self._store.add_to_training(training_id, _news(training_id, update))

    def note_ledger(self, progress: LedgerProgress) -> None:
        """Store the progress of a ledger. Raises what the store raises."""
        self._store.note_ledger(NotedLedger(**asdict(progress)))

    def ledger_progress(self, ledger_ids: Collection[str]) -> list[LedgerProgress]:
        """Return what is known of these ledgers. Raises what the store raises."""
        return [LedgerProgress(**asdict(noted)) for noted in self._store.list_noted_ledgers(ledger_ids)]

    def close(self) -> None:
        self._store.close()


def open_database_sink(runs: str) -> DatabaseSink:
    """Open the sink of the database in a directory of runs. Raises what `open_store` raises."""
    directory = Path(runs)
    directory.mkdir(parents=True, exist_ok=True)
    return DatabaseSink(open_store(directory.resolve() / DATABASE))


def _news(training_id: str, update: TrainingUpdate) -> TrainingNews:
    return TrainingNews(
        rewound_to=update.rewound_to,
        points=(*_points(training_id, update.steps), *_score_points(training_id, update.scores)),
        scores=tuple(
            TrainingScore(
                training_id, score.step, score.mean, score.stderr, score.episodes, score.successes, score.at
            )
            for score in update.scores
        ),
        episodes=tuple(
            TrainedEpisode(
                TrainedEpisodeSummary(
                    training_id, episode.episode_id, episode.step, episode.chosen_as, episode.task_id,
                    episode.data_source, episode.group, episode.reward, episode.is_success, episode.advantage,
                    episode.weight_version, episode.at,
                ),
                episode.messages,
                episode.samples,
            )
            for episode in update.episodes
        ),
        events=tuple(
            ServerEvent(training_id, event.number, event.kind, event.detail, event.at) for event in update.events
        ),
        system=tuple(
            SystemPoint(training_id, name, reading.at, value)
            for reading in update.system
            for name, value in reading.values.items()
        ),
    )  # fmt: skip


def _points(training_id: str, steps: Iterable[FinishedStep]) -> Iterable[TrainingPoint]:
    for step in steps:
        for name, value in step.metrics.items():
            yield TrainingPoint(training_id, name, step.step, value if math.isfinite(value) else None, step.at)


def _score_points(training_id: str, scores: Iterable[EvaluatedStep]) -> Iterable[TrainingPoint]:
    """Yield the scores as a curve beside those of the metrics."""
    for score in scores:
        yield TrainingPoint(training_id, "eval/mean", score.step, score.mean, score.at)
