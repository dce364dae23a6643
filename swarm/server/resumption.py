"""The check of the checkpoint that a new run is to begin at, `resume_from` of its job.

Place in the flow: commands.py asks before it records a new run, and build.py tells recovery where the checkpoint is.
Recovery loads it while the run has no usable checkpoint of its own. The engine compares the shapes of tensors when it
loads. This module knows no tensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from swarm.errors import CheckpointError, JobInvalid
from swarm.job import TrainJob
from swarm.trainer.manifest import verify_checkpoint

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
