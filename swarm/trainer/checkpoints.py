"""The checkpoints of one run: where they lie, which may be loaded, and which are removed.

Place in the flow: the training loop asks where to save, and prunes; recovery.py asks what to load. This module knows
names and directories only. The code that loads a checkpoint finds out whether it is complete.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swarm.job import TrainJob

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
        return [path for path in self.newest_first() if _order(path) <= up_to_step]

    def newest_first(self) -> list[Path]:
        """Return every checkpoint of the run, newest first.

        If a step has two, the permanent one comes first.
        """
        found = [path for path in self._all() if step_of(path) is not None]
        return sorted(found, key=_order, reverse=True)

    def mark_asked(self, step: int) -> None:
        """Record that a user asked for the checkpoint of a step, before it is written. Raise OSError."""
        self._kept.mkdir(parents=True, exist_ok=True)
        self._mark(step).touch()

    def scheduled_steps(self) -> list[int]:
        """Return the steps with a checkpoint of `save_freq`, oldest first."""
        steps = sorted(_order(path) for path in _entries(self._kept) if step_of(path) is not None)
        return [step for step in steps if not self._mark(step).exists()]

    def remove_scheduled(self, step: int) -> None:
        """Remove the `save_freq` checkpoint of a step, as far as that is possible now."""
        shutil.rmtree(self.place(step, kept=True), ignore_errors=True)

    def prune(self) -> None:
        """Remove all but the newest recovery checkpoints, and partial writes that a crash left behind."""
        doomed = self._recovery_oldest_first()[:-RECOVERY_KEPT]
        doomed += [path for folder in (self._kept, self._recovery) for path in _entries(folder) if _is_leftover(path)]
        for path in doomed:
            # A failed removal is tried again after the next checkpoint.
            shutil.rmtree(path, ignore_errors=True)

    def superfluous(self) -> list[Path]:
        """Return the recovery checkpoints that a finished run no longer needs.

        These are all of them, except the newest checkpoint of the run if that is a recovery checkpoint. A restarted
        server, or a job that gets more steps, continues from the newest.
        """
        newest = next(iter(self.newest_first()), None)
        return [path for path in self._recovery_oldest_first() if path != newest]

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
        for path in self._all():
            step = step_of(path)
            if step is None or step <= after_step:
                continue
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
        return self.directory / "recovery"

    def _mark(self, step: int) -> Path:
        return self._kept / f"{_ASKED}{self.place(step, kept=True).name}"

    def _recovery_oldest_first(self) -> list[Path]:
        return sorted((path for path in _entries(self._recovery) if step_of(path) is not None), key=_order)

    def _all(self) -> list[Path]:
        return [*_entries(self._kept), *_entries(self._recovery)]


def step_of(path: Path) -> int | None:
    """Return the step in the name of a checkpoint directory, or None for any other directory."""
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else None


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _order(path: Path) -> int:
    return step_of(path) or 0


def _is_leftover(path: Path) -> bool:
    return path.name.startswith(".step-")


def _unused(path: Path) -> Path:
    names = (path.with_name(f"rewound-{number}-{path.name}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())
