"""Where the checkpoints of one run lie, which of them may be loaded, and which are removed.

Place in the flow: the training loop asks where to save and prunes, recovery.py asks what to load from. It knows names
and directories only; whether a checkpoint is whole is found out by whoever loads it.
"""

from __future__ import annotations

import itertools
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

RECOVERY_KEPT = 2
"""The newest may be the one that a crash cut off."""

_NAME = re.compile(r"step-(\d{6,})")


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
        found = [(step, path) for path in self._all() if (step := _step_of(path)) is not None and step <= up_to_step]
        return [path for _, path in sorted(found, key=lambda pair: pair[0], reverse=True)]

    def prune(self) -> None:
        """Remove all but the newest recovery checkpoints, and what writes cut off by a crash have left."""
        recovery = sorted((path for path in _entries(self._recovery) if _step_of(path) is not None), key=_order)
        doomed = recovery[:-RECOVERY_KEPT]
        doomed += [path for folder in (self._kept, self._recovery) for path in _entries(folder) if _is_leftover(path)]
        for path in doomed:
            # What cannot be removed now is tried again after the next checkpoint.
            shutil.rmtree(path, ignore_errors=True)

    def set_aside(self, after_step: int) -> None:
        """Take the checkpoints of later steps out of the way, because other weights will take those steps.

        Those that were asked for are renamed to `rewound-N-step-...`; recovery checkpoints are removed. Raises OSError.
        """
        for path in self._all():
            step = _step_of(path)
            if step is None or step <= after_step:
                continue
            if path.parent == self._recovery:
                shutil.rmtree(path)
            else:
                path.rename(_unused(path))
            logger.info("checkpoint %s belongs to a past that was left", path)

    @property
    def _kept(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def _recovery(self) -> Path:
        return self.directory / "recovery"

    def _all(self) -> list[Path]:
        return [*_entries(self._kept), *_entries(self._recovery)]


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _step_of(path: Path) -> int | None:
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else None


def _order(path: Path) -> int:
    return _step_of(path) or 0


def _is_leftover(path: Path) -> bool:
    return path.name.startswith(".step-")


def _unused(path: Path) -> Path:
    names = (path.with_name(f"rewound-{number}-{path.name}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())
