"""Where the checkpoints of one run lie, which of them may be loaded, and which are removed.

Place in the flow: the training loop asks where to save and prunes, recovery.py asks what to load from. It knows names
and directories only; whether a checkpoint is whole is found out by whoever loads it.
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
"""The newest may be the one that a crash cut off."""

_NAME = re.compile(r"step-(\d{6,})")
_ASKED = ".asked-"
"""Begins the name of an empty file beside a checkpoint that somebody asked for, which no setting of the job removes."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints of `save_freq` stay: the newest `last`, and of the older ones the `best` by `metric`.

    The lowest value is the best one if `lowest_is_best`.
    """

    last: int
    best: int
    metric: str
    lowest_is_best: bool

    @staticmethod
    def of(job: TrainJob) -> Retention | None:
        """None if all stay."""
        if job.keep_last is None:
            return None
        metric = job.keep_best_metric
        return Retention(job.keep_last, job.keep_best, metric.removeprefix("-"), metric.startswith("-"))

    def outdated(self, values: Mapping[int, float | None]) -> list[int]:
        """Steps whose checkpoints go, of those that have one. `values` has the metric of each, None where it has none.

        Of equally good ones the newer stays; one without a value is worse than any with one.
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
    """`checkpoints/` holds what was asked for and stays, `recovery/` what crash recovery starts from, `initial/` the
    model that a run began with, if it began from the weights of another run."""

    directory: Path

    @property
    def initial(self) -> Path:
        return self.directory / "initial"

    def place(self, step: int, *, kept: bool) -> Path:
        """Where the checkpoint of a step belongs."""
        return (self._kept if kept else self._recovery) / f"step-{step:06d}"

    def candidates(self, up_to_step: int) -> list[Path]:
        """Checkpoints of no later step, newest first."""
        return [path for path in self.newest_first() if _order(path) <= up_to_step]

    def newest_first(self) -> list[Path]:
        """Every checkpoint of the run; of two of one step, the one that stays comes first."""
        found = [path for path in self._all() if step_of(path) is not None]
        return sorted(found, key=_order, reverse=True)

    def mark_asked(self, step: int) -> None:
        """Note that somebody asked for the checkpoint of a step, which is about to be written. Raises OSError."""
        self._kept.mkdir(parents=True, exist_ok=True)
        self._mark(step).touch()

    def scheduled_steps(self) -> list[int]:
        """Steps with a checkpoint of `save_freq`, oldest first."""
        steps = sorted(_order(path) for path in _entries(self._kept) if step_of(path) is not None)
        return [step for step in steps if not self._mark(step).exists()]

    def remove_scheduled(self, step: int) -> None:
        """Remove the checkpoint of `save_freq` of a step, as far as that can be done now."""
        shutil.rmtree(self.place(step, kept=True), ignore_errors=True)

    def prune(self) -> None:
        """Remove all but the newest recovery checkpoints, and what writes cut off by a crash have left."""
        doomed = self._recovery_oldest_first()[:-RECOVERY_KEPT]
        doomed += [path for folder in (self._kept, self._recovery) for path in _entries(folder) if _is_leftover(path)]
        for path in doomed:
            # What cannot be removed now is tried again after the next checkpoint.
            shutil.rmtree(path, ignore_errors=True)

    def superfluous(self) -> list[Path]:
        """The recovery checkpoints of a run that is over: all, but for the newest checkpoint of the run if it is one.

        That one is what a server that is started again, or a job that gets more steps, goes on from.
        """
        newest = next(iter(self.newest_first()), None)
        return [path for path in self._recovery_oldest_first() if path != newest]

    def retire(self) -> None:
        """Remove the recovery checkpoints that a run that is over needs no more."""
        self.prune()
        for path in self.superfluous():
            shutil.rmtree(path, ignore_errors=True)
        if self._recovery.is_dir() and not any(self._recovery.iterdir()):
            shutil.rmtree(self._recovery, ignore_errors=True)

    def set_aside(self, after_step: int) -> None:
        """Take the checkpoints of later steps out of the way, because other weights will take those steps.

        Those that were asked for are renamed to `rewound-N-step-...`; recovery checkpoints are removed. Raises OSError.
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
    """The step of a checkpoint, by the name of its directory; None for any other directory."""
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
