"""The records of trainings as servers record them, whether or not a study asked for them: frozen, one class per table.

A run of a study is recorded here as well, by its server; `launch_key` is then the run's `idempotency_key`. All times
are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from experiments_db.records import JsonObject

TRAINING_SECONDS = "training/seconds"
"""Metric of a run's step: seconds from the end of the step before it, or from the start of the program, to its own end.

It includes the episodes and the update. It has no pauses and outages, and no score of the base weights.
"""
AWAY = frozenset({"OFFLINE", "BOOTING", "FAILED", "COMPLETE"})
"""The states of an engine in which nothing trains."""
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 20, 50, 10_000
"""The most tags of a training, and the most characters of a tag and of a note."""


@dataclass(frozen=True, slots=True)
class RecordedTraining:
    """A training on a server.

    `key` names it wherever it is recorded. `status` is the state of the server's engine, or "REPLACED" once another
    training has begun there. `step` is the last one trained. `changes` are the settings that changed while it ran, by
    the first step that they applied to. The last four fields are the store's: `tags` and `note` were given by people.
    """

    key: str
    project: str
    experiment: str
    model: str
    engine: str
    settings: JsonObject
    changes: JsonObject
    home: str
    launch_key: str | None
    status: str
    reason: str | None
    step: int
    begun_at: float
    id: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingScore:
    """The held-out score of the weights after a step. `stderr` is the standard error between tasks."""

    training_id: str
    step: int
    mean: float
    stderr: float
    episodes: int
    successes: int
    recorded_at: float


@dataclass(frozen=True, slots=True)
class TrainedEpisodeSummary:
    """A trained episode without its text and tokens. `chosen_as` is the reason why it was kept, such as "best"."""

    training_id: str
    episode_id: str
    step: int
    chosen_as: str
    task_id: str
    data_source: str
    group_number: int
    reward: float
    is_success: bool | None
    advantage: float | None
    weight_version: int | None
    recorded_at: float


@dataclass(frozen=True, slots=True)
class TrainedEpisode:
    """A trained episode with its conversation in OpenAI's shape and its samples, token by token."""

    summary: TrainedEpisodeSummary
    messages: tuple[JsonObject, ...]
    samples: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """A noteworthy event of the server while it trained. `number` grows within a training."""

    training_id: str
    number: int
    kind: str
    detail: JsonObject
    recorded_at: float


@dataclass(frozen=True, slots=True)
class TrainingPoint:
    """A metric of a step. `value` is None for a number that is not finite."""

    training_id: str
    name: str
    step: int
    value: float | None
    recorded_at: float


@dataclass(frozen=True, slots=True)
class SystemPoint:
    """A reading of the server's machine."""

    training_id: str
    name: str
    recorded_at: float
    value: float


@dataclass(frozen=True, slots=True)
class NotedLedger:
    """The newest that is known of a server's ledger: the episodes that it has acknowledged, and in which opening.

    A ledger that has fewer was restored from an older copy.
    """

    ledger_id: str
    opening: str
    acknowledged: int
    home: str


@dataclass(frozen=True, slots=True)
class TrainingNews:
    """News of a training since the recorder last wrote, to be stored in one transaction.

    `rewound_to`: everything after this step is deleted first, because its weights were undone.
    """

    rewound_to: int | None = None
    points: tuple[TrainingPoint, ...] = ()
    scores: tuple[TrainingScore, ...] = ()
    episodes: tuple[TrainedEpisode, ...] = ()
    events: tuple[ServerEvent, ...] = ()
    system: tuple[SystemPoint, ...] = ()


def sum_step_seconds(
    training: RecordedTraining, points: Iterable[TrainingPoint], states: Iterable[ServerEvent]
) -> float:
    """Return the seconds of the steps of a training, without the time in which its engine was away.

    `points` are those of a metric that every step has, and `states` the events of the engine's states.
    """
    moves = sorted(states, key=lambda event: event.number)
    returned = [
        after.recorded_at
        for before, after in pairwise(moves)
        if before.detail.get("state") in AWAY and after.detail.get("state") not in AWAY
    ]
    total, last = 0.0, training.begun_at
    for point in sorted(points, key=lambda point: point.step):
        # The clock may have been set back, and a step then takes no time.
        since = max((at for at in (last, *returned) if at <= point.recorded_at), default=point.recorded_at)
        total += point.recorded_at - since
        last = point.recorded_at
    return total
