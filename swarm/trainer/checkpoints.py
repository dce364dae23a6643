"""The runs of a server's home and their checkpoints: where they are, which may be loaded, and which are removed."""

from __future__ import annotations

import itertools
import logging
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swarm.config import LEDGER
from swarm.errors import BadRequest, NotFound
from swarm.job import TrainJob
from swarm.trainer.checkpoint_files import MANIFEST

logger = logging.getLogger(__name__)

RECOVERY_KEPT = 2
"""Two, because a crash may have cut off the newest."""

_NAME = re.compile(r"step-(\d{6,})")
_ASKED = ".asked-"
"""Beginning of the name of an empty file beside a checkpoint that a user asked for; no setting of the job removes
it."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Rule for the checkpoints of `save_freq`: keep the newest `last`, and of the older ones the `best` by `metric`.

    The lowest value is the best one if `lowest_is_best`.
    """

    last: int
    best: int
    metric: str
    lowest_is_best: bool

    @staticmethod
    def of(job: TrainJob) -> Retention | None:
        """Return the rule of a job, or None if the job keeps all checkpoints."""
        if job.keep_last is None:
            return None
        metric = job.keep_best_metric
        return Retention(job.keep_last, job.keep_best, metric.removeprefix("-"), metric.startswith("-"))

    def outdated(self, values: Mapping[int, float | None]) -> list[int]:
        """Return the steps whose checkpoints are to be removed.

        `values` maps each step with a checkpoint to its metric, or to None if it has none. Of equally good checkpoints
        the newer stays. A step without a value counts as worse than any step with one.
        """
        newest_first = sorted(values, reverse=True)
        older = newest_first[self.last :]

        def badness(step: int) -> float:
            value = values[step]
            if value is None or math.isnan(value):
                return math.inf
            return value if self.lowest_is_best else -value

        return sorted(older, key=badness)[self.best :]


@dataclass(frozen=True, slots=True)
class RunCheckpoints:
    """Checkpoints of one run, in three directories.

    `checkpoints/` holds those that were asked for, which stay. `recovery/` holds those for crash recovery. `initial/`
    holds the first model of a run that began with the weights of another run.
    """

    directory: Path

    @property
    def initial(self) -> Path:
        return self.directory / "initial"

    def place(self, step: int, *, kept: bool) -> Path:
        """Return the directory for the checkpoint of a step."""
        return (self._kept if kept else self._recovery) / f"step-{step:06d}"

    def candidates(self, up_to_step: int) -> list[Path]:
        """Return the checkpoints of this step and of earlier ones, newest first."""
        return [path for path in self.newest_first() if (step_of(path) or 0) <= up_to_step]

    def newest_first(self) -> list[Path]:
        """Return every checkpoint of the run, newest first.

        If a step has two, the permanent one comes first.
        """
        return sorted(
            [*_steps_in(self._kept), *_steps_in(self._recovery)], key=lambda path: step_of(path) or 0, reverse=True
        )

    def mark_asked(self, step: int) -> None:
        """Record that a user asked for the checkpoint of a step, before it is written. Raise OSError."""
        self._kept.mkdir(parents=True, exist_ok=True)
        self._mark(step).touch()

    def scheduled_steps(self) -> list[int]:
        """Return the steps with a checkpoint of `save_freq`, oldest first."""
        return [step for path in _steps_in(self._kept) if not self._mark(step := step_of(path) or 0).exists()]

    def remove_scheduled(self, step: int) -> None:
        """Remove the `save_freq` checkpoint of a step, as far as that is possible now."""
        shutil.rmtree(self.place(step, kept=True), ignore_errors=True)

    def prune(self) -> None:
        """Remove all but the newest recovery checkpoints, and partial writes that a crash left behind."""
        leftovers = [path for folder in (self._kept, self._recovery) for path in folder.glob(".step-*")]
        for path in [*_steps_in(self._recovery)[:-RECOVERY_KEPT], *leftovers]:
            # A failed removal is tried again after the next checkpoint.
            shutil.rmtree(path, ignore_errors=True)

    def superfluous(self) -> list[Path]:
        """Return the recovery checkpoints that a finished run no longer needs.

        These are all of them, except the newest checkpoint of the run if that is a recovery checkpoint. A restarted
        server, or a job that gets more steps, continues from the newest.
        """
        newest = next(iter(self.newest_first()), None)
        return [path for path in _steps_in(self._recovery) if path != newest]

    def retire(self) -> None:
        """Remove the recovery checkpoints that a finished run no longer needs."""
        self.prune()
        for path in self.superfluous():
            shutil.rmtree(path, ignore_errors=True)
        if self._recovery.is_dir() and not any(self._recovery.iterdir()):
            shutil.rmtree(self._recovery, ignore_errors=True)

    def set_aside(self, after_step: int) -> None:
        """Move the checkpoints of later steps out of the way, because other weights will take those steps.

        Checkpoints that were asked for are renamed to `rewound-N-step-...`; recovery checkpoints are removed. Raise
        OSError.
        """
        for path in self.newest_first():
            if (step := step_of(path) or 0) <= after_step:
                break
            if path.parent == self._recovery:
                shutil.rmtree(path)
            else:
                path.rename(_unused(path))
                self._mark(step).unlink(missing_ok=True)
            logger.info("checkpoint %s belongs to a past that was left", path)

    @property
    def _kept(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def _recovery(self) -> Path:
        return self.directory / RECOVERY

    def _mark(self, step: int) -> Path:
        return self._kept / f"{_ASKED}{self.place(step, kept=True).name}"


def step_of(path: Path) -> int | None:
    """Return the step in the name of a checkpoint directory, or None for any other directory."""
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else None


def _steps_in(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the oldest first."""
    found = [path for path in folder.glob("step-*") if path.is_dir() and step_of(path) is not None]
    return sorted(found, key=lambda path: (step_of(path) or 0, path))


def _unused(path: Path) -> Path:
    names = (path.with_name(f"rewound-{number}-{path.name}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


_RUN = re.compile(r"run-(\d{4,})")
RUNS_SHOWN = 10
RECOVERY = "recovery"
"""The folder of a run with its copies for crash recovery."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Directory of one run of a job.

    `number` is the number of the job in the ledger. A later run of the same home has a higher number.
    """

    path: Path
    number: int

    @property
    def name(self) -> str:
        """`project/experiment`, as in the run's directory."""
        return f"{self.path.parent.parent.name}/{self.path.parent.name}"

    @property
    def checkpoints(self) -> RunCheckpoints:
        return RunCheckpoints(self.path)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Disk space that a home takes, and the free space on its disk, in bytes.

    `recovery` counts the files of crash recovery alone.
    """

    ledger: int
    checkpoints: int
    recovery: int
    free: int

    @staticmethod
    def of(home: Path) -> DiskUse:
        """Return the disk use of a home. Raise OSError if the home cannot be read."""
        runs = runs_of(home)
        return DiskUse(
            ledger=sum(_size(path) for path in home.glob(f"{LEDGER}*")),
            checkpoints=sum(_size_below(run.path / "checkpoints") for run in runs),
            recovery=sum(_size_below(run.path / "recovery") for run in runs),
            free=shutil.disk_usage(home).free,
        )


def run_directory(home: Path, project_name: str, experiment_name: str, number: int) -> Path:
    """Return the directory of a run, whatever characters the names have."""
    return _experiment_directory(home, project_name, experiment_name) / f"run-{number:04d}"


def runs_of(home: Path) -> list[RunDirectory]:
    """Return every run that has left files in a home, the newest last."""
    found = [_as_run(path) for path in home.glob("*/*/run-*")]
    return sorted((run for run in found if run is not None), key=lambda run: run.number)


def find_checkpoint(home: Path, named: str | None = None, step: int | None = None, *, is_lasting: bool = False) -> Path:
    """Return the checkpoint that a caller names.

    `named` is the directory of a checkpoint, the directory of a run, or `project/experiment` in the home. For a run
    this returns its newest checkpoint, or the one of `step`. For an experiment it uses the newest run that has a
    checkpoint, and without a name the newest such run of the home. With `is_lasting`, the copies for crash recovery,
    which their server removes, do not count. Raise NotFound, or BadRequest for a `step` together
    with the directory of a checkpoint.
    """
    if named is not None and (Path(named).expanduser() / MANIFEST).is_file():
        if step is not None:
            raise BadRequest(f"{named} is one checkpoint already: --step chooses among those of a run", param="step")
        return Path(named).expanduser()
    runs = _runs_meant(home, named)
    for run in reversed(runs):
        found = run.checkpoints.newest_first()
        if found := [path for path in found if not is_lasting or path.parent.name != RECOVERY]:
            return _of_step(found, run, step)
    where = f"{home} holds no run" if not runs else f"{runs[-1].path} holds no checkpoint"
    raise NotFound(f"{where}: set save_freq in the job, or save one on its server")


def _runs_meant(home: Path, named: str | None) -> list[RunDirectory]:
    """Return the runs that a name stands for. Raise NotFound if no run has that name."""
    if named is None:
        return runs_of(home)
    if (run := _as_run(Path(named).expanduser())) is not None:
        return [run]
    # Names may contain slashes; the names of their directories have none.
    parts = named.split("/")
    for cut in range(1, len(parts)):
        directory = _experiment_directory(home, "/".join(parts[:cut]), "/".join(parts[cut:]))
        if runs := [run for run in runs_of(home) if run.path.parent == directory]:
            return runs
    known = list(dict.fromkeys(run.name for run in reversed(runs_of(home))))[:RUNS_SHOWN]
    shown = f"; its runs are {', '.join(known)}" if known else ", which holds no run"
    raise NotFound(f"{named} is neither a checkpoint nor a run of {home}{shown}")


def _of_step(found: list[Path], run: RunDirectory, step: int | None) -> Path:
    if step is None:
        return found[0]
    for path in found:
        if step_of(path) == step:
            return path
    steps = ", ".join(str(known) for known in sorted({step_of(path) or 0 for path in found}))
    raise NotFound(f"{run.path} holds no checkpoint of step {step}: it holds those of {steps}", param="step")


def _as_run(path: Path) -> RunDirectory | None:
    match = _RUN.fullmatch(path.name)
    return RunDirectory(path, int(match.group(1))) if match and path.is_dir() else None


def _size_below(directory: Path) -> int:
    return sum(_size(path) for path in directory.rglob("*")) if directory.is_dir() else 0


def _size(path: Path) -> int:
    # A checkpoint may be removed while this function reads it.
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _experiment_directory(home: Path, project_name: str, experiment_name: str) -> Path:
    return home / _file_name(project_name) / _file_name(experiment_name)


def _file_name(name: str) -> str:
    """Return a caller-chosen name as one path component: no separators, no leading dot."""
    return name.replace("/", "_").replace(":", "_").lstrip(".") or "_"
