"""What trackers have in common: one open run at a time, rows of metrics by step, and chosen episodes as a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from swarm.sinks.base import ChosenEpisode, TrainingDescription, TrainingUpdate

EPISODE_COLUMNS = (
    "step", "chosen as", "task", "group", "reward", "advantage", "success", "weight version", "conversation",
)  # fmt: skip


R = TypeVar("R")


class RunSink(ABC, Generic[R]):
    """A sink of a tracker in which each training is a run. One run is open at a time.

    A run is opened with the first update that has content: a job that only scores a model trains nothing.
    """

    def __init__(self) -> None:
        self._run: R | None = None
        self._key: str | None = None

    def write(self, update: TrainingUpdate) -> None:
        """Store an update. Raise what the library of the tracker raises."""
        if self._run is None or self._key != update.training.key:
            if not (update.steps or update.scores or update.episodes):
                return
            self.close()
            self._run, self._key = self._open(update.training), update.training.key
        self._log(self._run, update)

    def close(self) -> None:
        if self._run is not None:
            self._finish(self._run)
        self._run = None

    @abstractmethod
    def _open(self, training: TrainingDescription) -> R:
        """Open the run of a training, or go on with the one that it has."""

    @abstractmethod
    def _log(self, run: R, update: TrainingUpdate) -> None: ...

    @abstractmethod
    def _finish(self, run: R) -> None: ...


def list_rows(update: TrainingUpdate) -> list[tuple[int, float, dict[str, float]]]:
    """Return each new step or held-out score as (step, seconds since the epoch, values by name), in order of steps."""
    # A score may be among the metrics of its step already; it is told once.
    rows: list[tuple[int, float, dict[str, float]]] = [
        (
            step.step,
            step.at,
            {name: value for name, value in step.metrics.items() if not name.startswith("eval/")}
            | {"weight_version": step.weight_version},
        )
        for step in update.steps
    ]
    rows += [
        (score.step, score.at, {"eval/mean": score.mean, "eval/stderr": score.stderr, "eval/episodes": score.episodes})
        for score in update.scores
    ]
    return sorted(rows, key=lambda row: row[0])


def episode_rows(episodes: Iterable[ChosenEpisode]) -> list[list[Any]]:
    """Return one row with the EPISODE_COLUMNS for each episode."""
    return [
        [
            each.step, each.chosen_as, each.task_id, each.group, each.reward, each.advantage, each.is_success,
            each.weight_version, "\n\n".join(_told(message) for message in each.messages),
        ]
        for each in episodes
    ]  # fmt: skip


def run_name(training: TrainingDescription) -> str:
    """Return a name that no other training of the project has."""
    return f"{training.experiment}-{training.key}"


def settings_of(training: TrainingDescription) -> dict[str, Any]:
    """Return the settings of the job, with the model and the engine, for a tracker's list of settings."""
    return {**training.settings, "model": training.model, "engine": training.engine, "server_home": training.home}


def _told(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    calls = "".join(f"\n{call}" for call in message.get("tool_calls") or ())
    return f"[{message.get('role')}] {content}{calls}"
