"""TensorBoard as a sink: a folder of event files for each training, in `tensorboard` of the directory of runs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false, reportUnknownParameterType=false

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from swarm.sinks.base import TrainingDescription, TrainingUpdate
from swarm.sinks.rows import episode_rows, has_content, list_rows, run_name, settings_of

LIBRARY = "tensorboard"
FOLDER = "tensorboard"


class TensorboardSink:
    """The sink of the event files in a folder. Steps that were undone disappear there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, _TrainingFiles] = {}

    @property
    def place(self) -> str:
        return str(self._folder)

    def holds(self, key: str) -> bool:
        return any(self._folder.glob(f"**/*-{key}/events.*"))

    def write(self, update: TrainingUpdate) -> None:
        """Write an update and flush it. Raise OSError if the folder cannot be written."""
        training = update.training
        if training.key not in self._writers:
            if not has_content(update):
                return
            directory = self._folder / (training.project or "default") / run_name(training)
            self._close_all()
            self._writers[training.key] = _TrainingFiles(directory, training)
        self._writers[training.key].write(update)

    def close(self) -> None:
        self._close_all()

    def _close_all(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class _TrainingFiles:
    def __init__(self, directory: Path, training: TrainingDescription) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        is_new = not directory.exists()
        self._writer = EventFileWriter(str(directory))
        if is_new:
            settings = settings_of(training)
            lines = ["| setting | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in settings.items())]
            self._text("settings", "\n".join(lines), 0, training.begun_at)

    def write(self, update: TrainingUpdate) -> None:
        if update.rewound_to is not None:
            self._forget_after(update.rewound_to)
        for step, at, values in list_rows(update):
            self._scalars(values, step, at)
        for reading in update.system:
            # At seconds instead of steps, a later step would purge readings that have nothing to do with it.
            self._scalars(reading.values, update.training.step, reading.at)
        for episode, row in zip(update.episodes, episode_rows(update.episodes), strict=True):
            told = f"reward {episode.reward:g}, advantage {episode.advantage}\n\n~~~\n{row[-1]}\n~~~"
            self._text(f"episodes/{episode.chosen_as}", told, episode.step, episode.at)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _forget_after(self, step: int) -> None:
        """Make TensorBoard leave out what was written for later steps."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        restart = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=restart))

    def _scalars(self, values: Mapping[str, float], step: int, at: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=at, step=step, summary=Summary(value=points)))

    def _text(self, tag: str, text: str, step: int, at: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._writer.add_event(Event(wall_time=at, step=step, summary=text_pb(tag, text)))


def open_tensorboard(runs: str) -> TensorboardSink:
    """Open the sink of `tensorboard` in a directory of runs."""
    return TensorboardSink(Path(runs).resolve() / FOLDER)
