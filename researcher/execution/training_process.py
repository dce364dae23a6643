"""The process that trains a run: its folder, its command, its log, and the quota that ends it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from experiments_db import TRAINING_SECONDS, Experiment, ExperimentStore, Run
from prompts import load
from researcher.charter import Charter, ComparedAt
from researcher.record.runs import cost_of
from swarm.processes import Child, python_module
from swarm.sandbox import plain_command


def bound_options(charter: Charter) -> tuple[str, ...]:
    """Return the charter's limits on each attempt as options of the program's command."""
    limits = {"--attempt-calls": charter.attempt_calls, "--attempt-tokens": charter.attempt_tokens}
    return tuple(word for name, limit in limits.items() if limit is not None for word in (name, str(limit)))


def start_training(
    folder: Path,
    code: str,
    job: Mapping[str, Any],
    *,
    run_id: str,
    environment: str,
    url: str,
    token: str | None,
    is_sandboxed: bool,
    until: tuple[str, ...] = (),
    bounds: tuple[str, ...] = (),
) -> Child:
    """Start the process that trains `code` by a job on the server at `url`, and return it.

    `folder` is an absolute path of the run's own, and `environment` is a reference. The program's functions run in the
    sandbox if `is_sandboxed`. `until` are options that end the training before the job's last step (training_quota.py).
    `bounds` are options that limit each attempt.
    """
    # The program may write where it runs, so the log and the recorded files lie outside. Otherwise a link planted in
    # their place would make the researcher read or overwrite any file.
    work = folder / "work"
    if work.exists():
        shutil.rmtree(work)
    work.mkdir(parents=True)
    for place in (folder, work):
        (place / "program.py").write_text(code, encoding="utf-8")
        (place / "job.yaml").write_text(yaml.safe_dump(dict(job), sort_keys=False), encoding="utf-8")
    # Only the program's own functions run in the sandbox. The process that drives them is trusted and holds the tokens.
    arguments = ["program.py", "--server", url, "--job", "job.yaml", "--seed", str(job["seed"])]
    arguments += ["--env", environment, "--run", run_id, *until, *bounds]
    # The plain agent, which the evaluator plays itself, needs no process of its own.
    hosted = [] if code == load("program") else ["--hosted"]
    arguments += ["--sandbox"] if is_sandboxed else hosted
    command = plain_command(python_module("swarm.program", *arguments), server_url=url, token=token)
    log = folder / "train.log"
    return Child(command.argv, env=command.env, cwd=work, out=log, errors=log, on_stop=command.cleanup)


def ends_at_a_quota(charter: Charter, run: Run) -> bool:
    """Return whether a run ends by itself, with the step that reaches its training quota."""
    return bool(run.rung) or charter.compared_at in (ComparedAt.TOKENS, ComparedAt.TIME)


def quota_options(charter: Charter, store: ExperimentStore, run: Run, experiment: Experiment) -> tuple[str, ...]:
    """Return the options of `python -m swarm.program` that end a run at its training quota.

    Training before an interruption counts: the server knows the tokens, and the database has the seconds.
    """
    steps = ("--until-steps", str(run.rung)) if run.rung else ()
    amount = charter.amount * cost_of(run, experiment)
    if charter.compared_at == ComparedAt.TOKENS:
        return (*steps, "--until-tokens", str(amount))
    if charter.compared_at == ComparedAt.TIME:
        points = store.list_metrics([run.id], names=[TRAINING_SECONDS])
        return (*steps, "--until-seconds", str(amount - sum(point.value or 0.0 for point in points)))
    return steps
