"""The command `swarm sft`, which trains a model on demonstrations alone."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from swarm.cli import options
from swarm.cli.failures import failures_in_one_line
from swarm.cli.own_server import server_at
from swarm.cli.train.training import (
    AllowOverlapOption,
    EvalEpisodesOption,
    FewTasksOption,
    FolderOption,
    FreshOption,
    Training,
    count_held_out_tasks,
    in_one_line,
    show_fault,
)
from swarm.cli.train.training_job import job_with
from swarm.errors import BadRequest
from swarm.models import MODEL_DESCRIPTION

if TYPE_CHECKING:
    from swarm.client import SwarmClient
    from swarm.job import TrainJob

EPOCHS = 3.0


def sft(
    data: Annotated[Path, typer.Argument(help="Demonstrations: JSON lines as OpenAI's, or Parquet.")],
    model: Annotated[
        str | None, typer.Option("--model", help=f"Model: {MODEL_DESCRIPTION} (default: the job's).")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the training.")] = None,
    epochs: Annotated[
        float | None,
        typer.Option(min=0.01, max=10_000, help=f"The same by passes over the data (default: {EPOCHS:g})."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Demonstrations of one step (default: the job's).")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate (default: the job's, or by model).")] = None,
    held_out: Annotated[
        float | None, typer.Option(min=0, max=0.5, help="Share that is not trained on, for the held-out loss.")
    ] = None,
    lora_rank: Annotated[
        int | None, typer.Option(min=0, help="Train an adapter of this rank; 0 trains the model.")
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", help="Also the held-out score on this environment, before and after.")
    ] = None,
    program: options.ProgramOption = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the training (default: the job's, or sft- and DATA's.)")
    ] = None,
    job: Annotated[Path | None, typer.Option(help="A job.yaml with further settings.")] = None,
    fresh: FreshOption = False,
    home: FolderOption = None,
    allow_overlap: AllowOverlapOption = False,
    workers: options.WorkersOption = 64,
    eval_episodes: EvalEpisodesOption = 200,
    few_tasks: FewTasksOption = False,
    no_record: options.NoRecordOption = False,
    log: options.LogOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Train a model on demonstrations: conversations whose replies it learns to give.

    Run again with the same arguments, it goes on where it was. docs/supervised.md describes the file.
    """
    with failures_in_one_line():
        if program is not None and env is None:
            raise BadRequest("a program plays only for a score: add --env", param="program")
        named = {
            "model": model, "sft_batch_size": batch_size, "sft_lr": lr, "sft_held_out": held_out,
            "lora_rank": lora_rank, "experiment_name": name,
        }  # fmt: skip
        wanted, count = _job_of(job, data, named, steps=steps, epochs=epochs)
        sinks = options.chosen_sinks(no_record, log)
        if env is None:
            figures = _Supervised(wanted, data, sinks).carry_out_in(home, fresh=fresh)
        else:
            figures = _scored(
                env, program, wanted, data, sinks, home, fresh=fresh, allow_overlap=allow_overlap, workers=workers,
                episodes=eval_episodes, few_tasks=few_tasks,
            )  # fmt: skip
        typer.echo(json.dumps({"demonstrations": count, **figures}) if as_json else _line_of(figures))
        typer.echo(_ways_on(figures["home"], env), err=True)


def _scored(
    env: str, program: Path | None, job: TrainJob, data: Path, sinks: list[str], home: Path | None, *, fresh: bool,
    allow_overlap: bool, workers: int, episodes: int, few_tasks: bool,
) -> dict[str, Any]:  # fmt: skip
    """Train with the held-out score of an environment before and after, and return the figures."""
    from swarm.cli.train.overlap import require_not_held_out
    from swarm.environments.server import open_environment

    with open_environment(env) as environment:
        require_not_held_out(environment, data, allowed=allow_overlap)
        tasks = count_held_out_tasks(environment, episodes, few_tasks=few_tasks)
        chosen = options.program_of(program, env)
        training = Training(
            env, environment, program, chosen, job, tasks, None, False, (), workers, sinks, data, None
        )  # fmt: skip
        return training.carry_out_in(home, None, fresh=fresh)


@dataclass(frozen=True, slots=True)
class _Supervised:
    """A training on demonstrations that no environment scores. A new server records it in `sinks`."""

    job: TrainJob
    data: Path
    sinks: list[str]

    def carry_out_in(self, home: Path | None, *, fresh: bool) -> dict[str, Any]:
        """Train from the present step to the end in a folder, and return the figures of the whole training."""
        from swarm.cli.train.expectation import show_step
        from swarm.cli.train.training_folder import new_record, open_named_folder
        from swarm.cli.train.training_run import start_run, take_up
        from swarm.client import SwarmClient
        from swarm.processes.child import own_name
        from swarm.program.gates import until_demonstrated
        from swarm.program.steps import watch_steps

        wanted = new_record(self.job)
        with open_named_folder(home, self.job.experiment_name, fresh=fresh) as folder:
            record = take_up(folder, wanted, has_own_server=True)
            with (
                server_at(None, folder.directory, self.job, sinks=self.sinks) as address,
                SwarmClient(address, token=options.token_of("commander"), client_id=own_name()) as client,
            ):
                client.add_demonstrations(self.data)
                status = start_run(client, folder, record, self.job, fresh=fresh)
                if status.step:
                    typer.echo(
                        f"going on with {folder.directory} at step {status.step} of {self.job.sft_steps}", err=True
                    )
                with watch_steps(client, show_step, show_fault):
                    done = until_demonstrated(client, self.job)
                losses = _losses(client)
                client.save_checkpoint()
            return {"steps": done.step, **losses, "home": str(folder.directory)}


def _losses(client: SwarmClient) -> dict[str, Any]:
    """Return the last loss, and the first and last loss of the held-out demonstrations. None where there is none."""
    from swarm.program.steps import HELD_OUT_LOSS, LOSS

    losses: list[float] = []
    held_out: list[float] = []
    step = 0
    while points := client.metrics(step):
        step = points[-1].step
        losses += [each.metrics[LOSS] for each in points if LOSS in each.metrics]
        held_out += [each.metrics[HELD_OUT_LOSS] for each in points if HELD_OUT_LOSS in each.metrics]
    return {
        "loss": losses[-1] if losses else None,
        "held_out_loss": {"first": held_out[0], "last": held_out[-1]} if held_out else None,
    }


def _job_of(
    path: Path | None, data: Path, named: Mapping[str, Any], *, steps: int | None, epochs: float | None
) -> tuple[TrainJob, int]:
    """Return a job that trains on demonstrations alone, and how many these are."""
    from swarm.client.server_calls import name_by_digest
    from swarm.demonstrations import parse_demonstrations, read_demonstration_file
    from swarm.job import read_job_settings
    from swarm.trainer.schedule import split_demonstrations

    if steps is not None and epochs is not None:
        raise BadRequest("--steps and --epochs both say how long to train: use one of them", param="steps")
    file: object = {} if path is None else read_job_settings(path)
    given = cast(dict[str, Any], file) if isinstance(file, dict) else {}
    if named["model"] is None and "model" not in given:
        raise BadRequest("name the model to train: --model, or model in the job", param="model")
    total = given.get("total_steps")
    named = {"experiment_name": given.get("experiment_name") or _name_of(data), **_given(named)}
    settings = {**named, "demonstrations": str(data), "total_steps": 1, "sft_steps": 1}
    job = job_with(path, {}, settings)
    count = len(parse_demonstrations(read_demonstration_file(data), source=str(data)))
    if steps is None and epochs is None:
        steps = given.get("sft_steps") or None
    if steps is None:
        trained, _ = split_demonstrations(count, job)
        steps = max(1, math.ceil((epochs or EPOCHS) * len(trained) / job.sft_batch_size))
    if total not in {None, steps}:
        raise BadRequest(
            f"{path}: total_steps {total} is not the {steps} steps of this training, which has no steps on rewards:"
            " take it out, or run `swarm train`",
            param="total_steps",
        )
    job, _ = name_by_digest(job_with(path, {}, {**settings, "total_steps": steps, "sft_steps": steps}))
    return job, count


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _name_of(data: Path) -> str:
    return "sft-" + re.sub(r"[^\w.-]+", "-", data.stem)


def _line_of(figures: Mapping[str, Any]) -> str:
    """Return the outcome in one line: the scores where an environment gave them, else the losses."""
    if "env" in figures:
        return in_one_line(figures)
    steps, held_out = figures["steps"], figures["held_out_loss"]
    if held_out is None:
        return f"loss {figures['loss']:.3f} after {steps} steps"
    return f"held-out loss {held_out['first']:.3f} -> {held_out['last']:.3f} in {steps} steps"


def _ways_on(home: str, env: str | None) -> str:
    """Return where the model is and what can be done with it."""
    folder, target = shlex.quote(home), shlex.quote(f"{home}-model")
    return (
        f"the model is in {home}. As a folder: swarm export --home {folder} {target}. Then by reward: swarm train --env"
        f" {shlex.quote(env or 'ENV')} --model {target}"
    )
