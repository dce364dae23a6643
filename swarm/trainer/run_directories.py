"""The directories of runs in a server's home, `<project>/<experiment>/run-NNNN`, and the lookup of a checkpoint.

Place in the flow: the server places each run by this module. Commands that work on a home without a server find runs by
it. It knows names and directories only, and nothing of what is in a checkpoint.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from swarm.config import LEDGER
from swarm.errors import BadRequest, NotFound
from swarm.trainer.checkpoints import RunCheckpoints, step_of
from swarm.trainer.manifest import MANIFEST

_RUN = re.compile(r"run-(\d{4,})")
RUNS_SHOWN = 10


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


def find_checkpoint(home: Path, named: str | None = None, step: int | None = None) -> Path:
    """Return the checkpoint that a caller names.

    `named` is the directory of a checkpoint, the directory of a run, or `project/experiment` in the home. For a run
    this returns its newest checkpoint, or the one of `step`. For an experiment it uses the newest run that has a
    checkpoint, and without a name the newest such run of the home. Raise NotFound, or BadRequest for a `step` together
    with the directory of a checkpoint.
    """
    if named is not None and (Path(named).expanduser() / MANIFEST).is_file():
        if step is not None:
            raise BadRequest(f"{named} is one checkpoint already: --step chooses among those of a run", param="step")
        return Path(named).expanduser()
    runs = _runs_meant(home, named)
    for run in reversed(runs):
        if found := run.checkpoints.newest_first():
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
