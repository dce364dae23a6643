"""The records of an update as trackers take them: rows of metrics by step, and chosen episodes as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from swarm.sinks.base import ChosenEpisode, TrainingDescription, TrainingUpdate

EPISODE_COLUMNS = (
    "step", "chosen as", "task", "group", "reward", "advantage", "success", "weight version", "conversation",
)  # fmt: skip


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


def has_content(update: TrainingUpdate) -> bool:
    """Return whether an update is worth a new run in a tracker. A job that only scores a model trains nothing."""
    return bool(update.steps or update.scores or update.episodes)


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
