"""The removal of unneeded data from a server's home: tokens of old episodes, and checkpoints for crash recovery."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import CheckpointError, NotFound
from swarm.ledger.compaction import Compacted, NewestRun, compact, estimate_compaction, newest_run
from swarm.ledger.database import hold_lock
from swarm.server.home import ledger_of
from swarm.trainer.checkpoint_files import verify_checkpoint
from swarm.trainer.checkpoints import run_directory, runs_of, step_of

logger = logging.getLogger(__name__)

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The effect of a cleanup. `removed` are the directories of recovery checkpoints.

    `kept_after_step` is the step of the checkpoint that a server resumes from. The tokens of later steps stay.
    """

    ledger: Compacted
    kept_after_step: int
    removed: tuple[Path, ...]
    removed_bytes: int
    is_dry_run: bool


def clean(home: Path, *, keep_days: float, is_dry_run: bool = False) -> Cleaned:
    """Drop the tokens of old episodes that no recovery needs, and superfluous recovery checkpoints.

    An episode is old if it ended more than `keep_days` days ago. A dry run changes nothing, and works while a server
    runs. Raise NotFound without a ledger, LedgerInUse while a server runs, and LedgerError.
    """
    path = ledger_of(home)
    if not path.is_file():
        raise NotFound(f"{home} holds no ledger: give the --home of a server")
    ended_before = time.time() - keep_days * DAY_S
    with nullcontext() if is_dry_run else closing(hold_lock(path)):
        run = newest_run(path)
        step = 0 if run is None else _recovery_step(home, run)
        do = estimate_compaction if is_dry_run else compact
        ledger = do(path, after_step=step, ended_before=ended_before)
        doomed = _superfluous(home, run)
        size = sum(file.stat().st_size for folder in doomed for file in folder.rglob("*") if file.is_file())
        if not is_dry_run:
            for folder in doomed:
                shutil.rmtree(folder, ignore_errors=True)
    return Cleaned(ledger, step, tuple(doomed), size, is_dry_run)


def _recovery_step(home: Path, run: NewestRun) -> int:
    """Return the step of the newest valid checkpoint of the run, or the one that it began at if there is none.

    Without a valid checkpoint, recovery starts at the first step of the run and needs every token.
    """
    names = run.job.resolved
    directory = run_directory(home, names["project_name"], names["experiment_name"], run.job.job_id)
    for found in runs_of(home):
        if found.path != directory:
            continue
        for checkpoint in found.checkpoints.candidates(run.step):
            try:
                verify_checkpoint(checkpoint)
            except CheckpointError as error:
                logger.warning("not counted on: %s", error.message)
                continue
            return step_of(checkpoint) or 0
    return run.job.initial_step


def _superfluous(home: Path, run: NewestRun | None) -> list[Path]:
    """Return the recovery checkpoints of earlier runs, and of the newest run if it has done all its steps."""
    total = None if run is None else run.job.resolved.get("total_steps")
    is_done = run is not None and total is not None and run.step >= total
    return [
        path
        for found in runs_of(home)
        if run is not None and (found.number < run.job.job_id or (found.number == run.job.job_id and is_done))
        for path in found.checkpoints.superfluous()
    ]
