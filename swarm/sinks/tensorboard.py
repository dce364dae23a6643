"""TensorBoard as a sink: a folder of event files for each training, in `tensorboard` of the directory of runs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false, reportUnknownParameterType=false

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.sinks.base import TrainingDescription, TrainingUpdate
from swarm.sinks.rows import RunSink, episode_rows, list_rows, run_name, settings_of

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

LIBRARY = "tensorboard"
FOLDER = "tensorboard"


class TensorboardSink(RunSink["EventFileWriter"]):
    """The sink of the event files in a folder. Steps that were undone disappear there."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    @property
    def place(self) -> str:
        return str(self._folder)

    def holds(self, key: str) -> bool:
        return any(self._folder.glob(f"**/*-{key}/events.*"))

    def _open(self, training: TrainingDescription) -> EventFileWriter:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        directory = self._folder / (training.project or "default") / run_name(training)
        is_new = not directory.exists()
        run = EventFileWriter(str(directory))
        if is_new:
            settings = settings_of(training)
            lines = ["| setting | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in settings.items())]
            _write_text(run, "settings", "\n".join(lines), 0, training.begun_at)
        return run

    def _log(self, run: EventFileWriter, update: TrainingUpdate) -> None:
        if update.rewound_to is not None:
            _forget_after(run, update.rewound_to)
        for step, at, values in list_rows(update):
            _write_scalars(run, values, step, at)
        for reading in update.system:
            # At seconds instead of steps, a later step would purge readings that have nothing to do with it.
            _write_scalars(run, reading.values, update.training.step, reading.at)
        for episode, row in zip(update.episodes, episode_rows(update.episodes), strict=True):
            told = f"reward {episode.reward:g}, advantage {episode.advantage}\n\n~~~\n{row[-1]}\n~~~"
            _write_text(run, f"episodes/{episode.chosen_as}", told, episode.step, episode.at)
        run.flush()

    def _finish(self, run: EventFileWriter) -> None:
        run.close()


def _forget_after(run: EventFileWriter, step: int) -> None:
    """Make TensorBoard leave out what was written for later steps."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    run.add_event(Event(wall_time=time.time(), step=step + 1, session_log=SessionLog(status=SessionLog.START)))


def _write_scalars(run: EventFileWriter, values: Mapping[str, float], step: int, at: float) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    run.add_event(Event(wall_time=at, step=step, summary=Summary(value=points)))


def _write_text(run: EventFileWriter, tag: str, text: str, step: int, at: float) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.text.summary_v2 import text_pb

    run.add_event(Event(wall_time=at, step=step, summary=text_pb(tag, text)))


def open_tensorboard(runs: str) -> TensorboardSink:
    """Open the sink of `tensorboard` in a directory of runs."""
    return TensorboardSink(Path(runs).resolve() / FOLDER)
