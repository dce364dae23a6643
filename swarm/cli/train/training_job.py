"""The job of `swarm train`: the job file, the options, and what the environment and the origin decide."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from swarm.cli.train.origin import Origin
from swarm.errors import BadRequest

if TYPE_CHECKING:
    from swarm.job import GuardMode, TrainJob
    from swarm.program import Program

STEPS = 60


def job_of(
    path: Path | None,
    env: str,
    environment: str,
    program: Program,
    origin: Origin,
    *,
    model: str | None,
    name: str | None,
    seed: int | None,
) -> TrainJob:
    """Return the job of the file with the options applied. The environment decides what neither of them sets.

    Raise BadRequest if the options say twice where the training begins.
    """
    from swarm.environments.registry import is_bundled
    from swarm.job import MODEL_OF_OWN_TASKS, TrainJob, build_job
    from swarm.model_path import lr_by_size

    given = TrainJob() if path is None else TrainJob.build_job_from_yaml(path)
    if origin.changes and (model is not None or given.resume_from is not None):
        twice = "--model" if model is not None else "resume_from of the job"
        raise BadRequest(f"--from and {twice} both say where the training begins: leave one of them out", param="from")
    given = build_job({**origin.settings, **given.model_dump(mode="json", exclude_unset=True)})
    total_steps = given.total_steps or origin.step + STEPS
    changes: dict[str, Any] = {"total_steps": total_steps, "guard": _guard_of(given, program)}
    if "experiment_name" not in given.model_fields_set:
        changes["experiment_name"] = re.sub(r"[^\w.-]+", "-", environment)
    if "model" not in given.model_fields_set and not is_bundled(env):
        changes["model"] = MODEL_OF_OWN_TASKS
    changes |= origin.changes
    named = {"experiment_name": name, "model": model, "seed": seed}
    changes |= {field: value for field, value in named.items() if value is not None}
    job = build_job({**given.model_dump(mode="json", exclude_unset=True), **changes})
    if (lr := lr_by_size(job)) is None:
        return job
    typer.echo(f"lr {lr:g} suits the size of {job.model}: set lr in a job for another one", err=True)
    return job.model_copy(update={"lr": lr})


def _guard_of(job: TrainJob, program: Program) -> GuardMode:
    """Return the mode of the guard: what the job says, or else the most that the engine can do.

    A curriculum makes tasks harder on purpose, so a fall of the success rate is no fault there.
    """
    if "guard" in job.model_fields_set:
        return job.guard
    if program.schedule is not None or job.has_fixed_end:
        return "warn"
    return "stop" if job.chosen_engine == "verl" else "rollback"
