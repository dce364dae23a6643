"""JSON lines as a sink: one file for each training."""

from __future__ import annotations

import json
from pathlib import Path

from swarm.sinks.base import TrainingDescription, TrainingUpdate
from swarm.sinks.rows import RunSink, list_rows


class LinesSink(RunSink[Path]):
    """The sink of the files in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    @property
    def place(self) -> str:
        return str(self._folder)

    def holds(self, key: str) -> bool:
        return (self._folder / f"{key}.jsonl").exists()

    def _open(self, training: TrainingDescription) -> Path:
        return self._folder / f"{training.key}.jsonl"

    def _log(self, run: Path, update: TrainingUpdate) -> None:
        with run.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps([step, at, dict(values)]) + "\n" for step, at, values in list_rows(update))

    def _finish(self, run: Path) -> None:
        pass


def open_lines(runs: str) -> LinesSink:
    return LinesSink(Path(runs))
