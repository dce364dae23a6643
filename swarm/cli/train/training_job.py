"""The job of `swarm train`: the job file, the options, and what the environment and the origin decide."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
    settings: Mapping[str, Any],
) -> TrainJob:
    """Return the job of the file with options and `settings`. The environment decides what none of them sets.

    Raise BadRequest if the options say twice where the training begins.
    """
    from swarm.environments.registry import is_bundled
    from swarm.job import MODEL_OF_OWN_TASKS, build_job
    from swarm.model_path import lr_by_size

    given = job_with(path, settings, {"experiment_name": name, "model": model, "seed": seed})
    names_model = model is not None or "model" in settings
    if origin.changes and (names_model or given.resume_from is not None):
        twice = "--model" if names_model else "resume_from of the job"
        raise BadRequest(f"--from and {twice} both say where the training begins: leave one of them out", param="from")
    given = build_job({**origin.settings, **given.model_dump(mode="json", exclude_unset=True)})
    total_steps = given.total_steps or origin.step + STEPS
    changes: dict[str, Any] = {"total_steps": total_steps, "guard": _guard_of(given, program)}
    if "experiment_name" not in given.model_fields_set:
        changes["experiment_name"] = re.sub(r"[^\w.-]+", "-", environment)
    if "model" not in given.model_fields_set and not is_bundled(env):
        changes["model"] = MODEL_OF_OWN_TASKS
    changes |= origin.changes
    job = build_job({**given.model_dump(mode="json", exclude_unset=True), **changes})
    if (lr := lr_by_size(job)) is None:
        return job
    typer.echo(f"lr {lr:g} suits the size of {job.model}: set lr in a job for another one", err=True)
    return job.model_copy(update={"lr": lr})


def job_with(path: Path | None, settings: Mapping[str, Any], options: Mapping[str, Any]) -> TrainJob:
    """Return the job of a file, without one the default job, with these settings and the options that are not None.

    Raise BadRequest for a setting that is given in two ways.
    """
    from swarm.job import build_job, read_job_settings

    named = {name: value for name, value in options.items() if value is not None}
    if twice := sorted(named.keys() & settings.keys()):
        raise BadRequest(f"{twice[0]} is given by an option and by --set: leave one of them out", param="set")
    given: object = {} if path is None else read_job_settings(path)
    # Anything but a mapping is refused by name.
    data = {**cast(dict[str, Any], given), **settings, **named} if isinstance(given, dict) else given
    return build_job(data, source="job" if path is None else str(path))


def _guard_of(job: TrainJob, program: Program) -> GuardMode:
    """Return the mode of the guard: what the job says, or else the most that the engine can do.

    A curriculum makes tasks harder on purpose, so a fall of the success rate is no fault there.
    """
    if "guard" in job.model_fields_set:
        return job.guard
    if program.schedule is not None or job.has_fixed_end:
        return "warn"
    return "stop" if job.chosen_engine == "verl" else "rollback"
