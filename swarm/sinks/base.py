"""The records of a training as a sink receives them, and the protocol of sinks. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

ChosenAs = Literal["best", "worst", "random", "no signal"]
CHOSEN_AS: tuple[ChosenAs, ...] = ("best", "worst", "random", "no signal")
"""The reasons why an episode of a step is kept, in the order in which they are considered."""


@dataclass(frozen=True, slots=True)
class TrainingDescription:
    """A training and its state.

    `key` is the same whoever reads the training: the id of its ledger and the number of its job. `settings` is the job
    with every default filled in. `changes` are the settings that changed while it ran, by the first step that they
    applied to. `launch_key` is the key that it was started under, if any. `step` is the last one trained. `status` is
    the state of the server's engine; once a later job has begun, it is COMPLETE or REPLACED.
    """

    key: str
    project: str
    experiment: str
    model: str
    engine: str
    settings: Mapping[str, Any]
    changes: Mapping[int, Mapping[str, Any]]
    home: str
    launch_key: str | None
    begun_at: float
    step: int
    status: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A trained step, with its metrics by name."""

    step: int
    weight_version: int
    at: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EvaluatedStep:
    """The held-out score of the weights after a step. `stderr` is the standard error between tasks."""

    step: int
    at: float
    mean: float
    stderr: float
    episodes: int
    successes: int


@dataclass(frozen=True, slots=True)
class ChosenEpisode:
    """A trained episode that is kept to be looked at.

    `group` numbers the groups of its batch. `messages` is the conversation in OpenAI's shape. Each of `samples` has
    aligned columns: token ids, token texts, loss mask, logprobs, weight versions, turn indices.
    """

    step: int
    episode_id: str
    chosen_as: ChosenAs
    task_id: str
    data_source: str
    group: int
    reward: float
    is_success: bool | None
    advantage: float | None
    weight_version: int | None
    at: float
    messages: tuple[Mapping[str, Any], ...]
    samples: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class TrainingEvent:
    """A noteworthy event of the server. `number` grows within a ledger."""

    number: int
    kind: str
    detail: Mapping[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class SystemReading:
    """The load of the server's machine at a time: values by name, such as `system/cpu_percent`."""

    at: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrainingUpdate:
    """Everything about a training that a sink has not seen yet.

    `rewound_to`: steps after it were undone, so their records are deleted before the others are stored. None: no step
    was undone. An update may repeat records that the sink has stored already, after a crash.
    """

    training: TrainingDescription
    rewound_to: int | None = None
    steps: tuple[FinishedStep, ...] = ()
    scores: tuple[EvaluatedStep, ...] = ()
    episodes: tuple[ChosenEpisode, ...] = ()
    events: tuple[TrainingEvent, ...] = ()
    system: tuple[SystemReading, ...] = ()


class Sink(Protocol):
    """A place that trainings are recorded in. It is used by one thread. Its methods raise whatever its library does."""

    @property
    def place(self) -> str:
        """The name of the place, such as the path of a file. How far it was recorded is kept for each place."""
        ...

    def holds(self, key: str) -> bool:
        """Return whether a training is recorded there. If one is lost, the ledger is recorded anew."""
        ...

    def write(self, update: TrainingUpdate) -> None:
        """Store an update, whole or not at all as far as the place can."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LedgerProgress:
    """The number of episodes that a ledger in a server's home has acknowledged, and the opening that it was read in."""

    ledger_id: str
    opening: str
    acknowledged: int
    home: str


@runtime_checkable
class ProgressSink(Protocol):
    """A sink that also keeps the progress of ledgers, one row for each. It raises whatever its library does."""

    def note_ledger(self, progress: LedgerProgress) -> None:
        """Store the progress of a ledger in place of what it was."""
        ...

    def ledger_progress(self, ledger_ids: Collection[str]) -> list[LedgerProgress]:
        """Return what is known of the ledgers with these ids."""
        ...


OpenSink = Callable[[str], Sink]
"""Function that opens a sink for the directory of runs, such as `runs`. It is what an entry point names."""
