"""The initial weights of a run that starts from the weights of an earlier run, or at a checkpoint."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swarm.backends.base import Backend, Backends
from swarm.config import ServerConfig
from swarm.errors import CheckpointError, EngineFailure, JobInvalid
from swarm.job import TrainJob, build_job
from swarm.ledger import JobRow, Ledger
from swarm.trainer.checkpoint_files import verify_checkpoint
from swarm.trainer.checkpoints import RunCheckpoints
from swarm.trainer.recovery import ReadBatch, Recovery

logger = logging.getLogger(__name__)

NOT_OF_A_MODEL = frozenset({"manifest.json", "trainer_state.pt"})
"""Files of a checkpoint that are not part of a model. Only the run itself resumes from them.

Directories in a checkpoint hold shards of such files.
"""
_SAME: Final = ("engine", "model")
_SAME_WITH_LORA: Final = ("lora_alpha", "lora_target_modules")


def resumed_checkpoint(job: TrainJob) -> Path | None:
    """Return the directory that `resume_from` names, or None without one."""
    return None if job.resume_from is None else Path(job.resume_from).expanduser().resolve()


def require_resumable(job: TrainJob) -> int:
    """Return the step that a new run of the job begins at: 0, or that of `resume_from`.

    Raise JobInvalid unless `resume_from` is a whole checkpoint of the same model, before the end of the job.
    """
    directory = resumed_checkpoint(job)
    if directory is None:
        return 0
    if not directory.is_dir():
        raise _refusal(f"no directory {directory}: give that of a checkpoint, which this server can read")
    try:
        manifest = verify_checkpoint(directory)
    except CheckpointError as error:
        raise _refusal(error.message) from error
    except OSError as error:
        raise _refusal(f"checkpoint {directory} cannot be read: {error.strerror}") from error
    _compare(directory, manifest.get("job") or {}, job.resolve().model_dump(mode="json"))
    step: int = manifest["step"]
    if job.total_steps is not None and step >= job.total_steps:
        raise _refusal(f"checkpoint {directory} is of step {step}, and the job ends with total_steps {job.total_steps}")
    return step


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """The weights that runs begin with.

    `checkpoints_of` returns the checkpoints of a run, and `reader_of` returns what reads its batches.
    """

    config: ServerConfig
    ledger: Ledger
    backends: Backends
    reader_of: Callable[[TrainJob, Backend], Awaitable[ReadBatch]]
    checkpoints_of: Callable[[TrainJob, JobRow], RunCheckpoints]

    async def job_for_engine(self, job: TrainJob, row: JobRow) -> TrainJob:
        """Return the resolved job for the engine.

        If the job starts from an earlier run, the returned model is the directory with the weights of that run. Raise
        EngineFailure if the earlier run's weights cannot be recomputed, CheckpointError if they cannot be written.
        """
        resolved = job.resolve()
        if row.origin_job_id is None or row.origin_step is None or resolved.engine == "fake":
            return resolved
        place = self.checkpoints_of(job, row).initial
        if not place.is_dir():
            await self._make(place, await self.ledger.job(row.origin_job_id), row.origin_step)
        return resolved.model_copy(update={"model": str(place.resolve())})

    async def _make(self, place: Path, row: JobRow, step: int) -> None:
        earlier = build_job(dict(row.job), source="the earlier run")
        backend = self.backends.build(await self.job_for_engine(earlier, row), is_fresh=False)
        logger.info("making the weights of step %d of run %d again", step, row.job_id)
        try:
            await backend.start(self.config.boot_limit_s(earlier.chosen_engine))
            recovery = Recovery(
                self.ledger,
                backend.trainer,
                self.checkpoints_of(earlier, row),
                await self.reader_of(earlier, backend),
                self.config.train_timeout_s,
                row.job_id,
                resume_from=resumed_checkpoint(earlier),
                initial_step=row.initial_step,
            )
            reached = (await recovery.reach(step)).weights.step
            if reached < step:
                raise EngineFailure(
                    f"the weights of step {step} of the previous run cannot be rebuilt, only those of step {reached}:"
                    " see the log, and sync a job whose model is the directory of a checkpoint"
                )
            draft = place.with_name(f".{place.name}.draft")
            await backend.trainer.save(draft)
            await asyncio.to_thread(_keep_model, draft, place)
        finally:
            await backend.stop()


def _compare(directory: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise JobInvalid if engine, model or adapter of the job are not those of the checkpoint."""
    with_lora = _SAME_WITH_LORA if wanted["lora_rank"] else ()
    for name in (*_SAME, "lora_rank", *with_lora):
        if stored.get(name) != wanted[name]:
            raise _refusal(
                f"checkpoint {directory} was written with {name} {stored.get(name)}, and the job has {wanted[name]}"
            )


def _refusal(reason: str) -> JobInvalid:
    return JobInvalid(f"resume_from: {reason}", param="resume_from")


def _keep_model(draft: Path, place: Path) -> None:
    """Reduce the checkpoint `draft` to a model, and rename it to `place` in one step. Raise CheckpointError."""
    try:
        for path in draft.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name in NOT_OF_A_MODEL:
                path.unlink()
        draft.rename(place)
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be written: {error.strerror}") from error
