"""Trackio as a sink: a run for each training, in the project of its job. Chosen episodes are Trackio's traces."""

# pyright: reportUnknownMemberType=false, reportPrivateImportUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swarm.sinks.base import ChosenEpisode, TrainingDescription, TrainingUpdate
from swarm.sinks.rows import RunSink, list_rows, run_name, settings_of

if TYPE_CHECKING:
    from trackio import Run

LIBRARY = "trackio"


class TrackioSink(RunSink["Run"]):
    """The sink of Trackio's projects, in TRACKIO_DIR or the cache of Hugging Face.

    Trackio deletes no values, so undone steps stay in its curves beside those that took their place.
    """

    @property
    def place(self) -> str:
        from trackio import TRACKIO_DIR

        return str(TRACKIO_DIR)

    def holds(self, key: str) -> bool:
        from trackio import Api
        from trackio.sqlite_storage import SQLiteStorage

        projects = SQLiteStorage.get_projects()
        return any(run.name.endswith(f"-{key}") for project in projects for run in Api().runs(project))

    def _open(self, training: TrainingDescription) -> Run:
        import trackio

        return trackio.init(
            training.project or "default",
            run_name(training),
            config=settings_of(training),
            resume="allow",
            embed=False,
            # The machine is that of the recorder; its readings come with the updates.
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def _log(self, run: Run, update: TrainingUpdate) -> None:
        from trackio import Trace

        for step, _, values in list_rows(update):
            run.log(dict(values), step=step)
        for episode in update.episodes:
            trace = Trace([dict(message) for message in episode.messages], _metadata(episode))
            run.log({f"episodes/{episode.chosen_as}": trace}, step=episode.step)
        for reading in update.system:
            run.log_system(dict(reading.values))

    def _finish(self, run: Run) -> None:
        run.finish()


def _metadata(episode: ChosenEpisode) -> dict[str, Any]:
    return {
        "episode_id": episode.episode_id, "chosen_as": episode.chosen_as, "task_id": episode.task_id,
        "group": episode.group, "reward": episode.reward, "advantage": episode.advantage,
        "is_success": episode.is_success, "weight_version": episode.weight_version,
    }  # fmt: skip


def open_trackio(runs: str) -> TrackioSink:
    """Open the sink of Trackio's folder on this machine."""
    return TrackioSink()
