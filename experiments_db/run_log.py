"""The record of a run of any program: its settings, curves and files, beside the trainings of servers."""

from __future__ import annotations

import math
import mimetypes
import os
import shutil
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments_db.errors import InvalidRecord, StoreUnavailable
from experiments_db.opening import open_store
from experiments_db.records import JsonObject
from experiments_db.trainings import RecordedTraining, ServerEvent, TrainingNews, TrainingPoint

if TYPE_CHECKING:
    from experiments_db.store import ExperimentStore

FILE_LOGGED = "file.logged"
"""The kind of the event of a file."""

FOLDER = "files"
"""The folder of logged files, beside the database."""


class RunLog:
    """The record of one run while it goes on. `record_run` makes it. `id` is that of its page in the explorer."""

    def __init__(self, store: ExperimentStore, state: RecordedTraining, folder: Path | None) -> None:
        self._store = store
        self._state = state
        self._folder = folder
        self._events = 0

    @property
    def id(self) -> str:
        return self._state.id

    @property
    def step(self) -> int:
        """The highest step that was logged."""
        return self._state.step

    def log(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Store the values of metrics at a step, by default the one after the last.

        A name that the explorer knows, such as `eval/mean` for a held-out score, is shown under that meaning. A value
        that is not finite is stored as missing. Raises InvalidRecord for a step below 0 or a value that is no number.
        """
        at = self.step + 1 if step is None else step
        wrong = [name for name, value in values.items() if not _is_number(value)]
        if at < 0 or wrong:
            raise InvalidRecord(f"{wrong[0]!r} has a value that is no number" if wrong else f"there is no step {at}")
        now = time.time()
        points = tuple(
            TrainingPoint(self.id, name, at, float(value) if math.isfinite(value) else None, now)
            for name, value in values.items()
        )
        self._store.add_to_training(self.id, TrainingNews(points=points))
        self._state = self._store.record_training(replace(self._state, step=max(self.step, at)))

    def log_file(self, path: str | Path, *, step: int | None = None) -> Path:
        """Copy a file beside the database, list it with the run, and return the copy.

        The explorer shows images (PNG, JPEG, GIF, WebP), audio, video, and tables as CSV or Parquet. Raises
        InvalidRecord if the database is not a file or the path is no plain file, StoreUnavailable if copying fails.
        """
        source = Path(path)
        if self._folder is None:
            raise InvalidRecord("files are kept beside a database file, and this database is a server's")
        if not source.is_file():
            raise InvalidRecord(f"{source} is no file")
        self._events += 1
        target = self._folder / f"{self._events:04d}" / source.name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        except OSError as error:
            raise StoreUnavailable(f"cannot copy {source} to {target}: {error.strerror or error}") from error
        media = mimetypes.guess_type(source.name)[0] or "application/octet-stream"
        detail: JsonObject = {"path": str(target), "step": self.step if step is None else step, "media_type": media}
        event = ServerEvent(self.id, self._events, FILE_LOGGED, detail, time.time())
        self._store.add_to_training(self.id, TrainingNews(events=(event,)))
        return target


@contextmanager
def record_run(
    name: str,
    settings: JsonObject | None = None,
    *,
    project: str = "runs",
    model: str = "",
    tags: Sequence[str] = (),
    note: str = "",
    database: str | Path | None = None,
) -> Generator[RunLog]:
    """Record what the block does as one run. It is complete at the end of the block, or failed with the error's text.

    `database` is a path or a postgresql:// URL; by default SWARM_RESEARCH_DB, or research.db under SWARM_HOME (./runs).
    A setting `total_steps` gives the explorer's progress bar its end. Raises StoreError.
    """
    location = str(database or os.environ.get("SWARM_RESEARCH_DB") or _usual_file())
    beside = None if "://" in location else Path(location).expanduser().absolute().parent
    if beside is not None:
        try:
            beside.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"cannot make {beside}: {error.strerror or error}") from error
    with open_store(location) as store:
        state = store.record_training(
            RecordedTraining(
                f"run-{uuid.uuid4().hex}", project=project, experiment=name, model=model, engine="none",
                settings=settings or {}, changes={}, home=str(Path.cwd()), launch_key=None, status="ROLLING",
                reason=None, step=0, begun_at=time.time(),
            )
        )  # fmt: skip
        if tags or note:
            store.label_training(state.id, tags=tags, note=note)
        run = RunLog(store, state, None if beside is None else beside / FOLDER / state.id)
        try:
            yield run
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"[:500]
            store.record_training(replace(state, step=run.step, status="FAILED", reason=reason))
            raise
        store.record_training(replace(state, step=run.step, status="COMPLETE"))


def _usual_file() -> Path:
    return Path(os.environ.get("SWARM_HOME") or "runs") / "research.db"


def _is_number(value: object) -> bool:
    """Return whether a value is a number; one of numpy or a tensor with one element is."""
    if isinstance(value, bool | str | bytes):
        return False
    try:
        float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        return False
    return True
