"""The commands `swarm env list | init | check | play`, which work on environments from a terminal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from swarm.cli import playing
from swarm.cli.failures import failures_in_one_line
from swarm.cli.options import (
    EnvArgument,
    JsonOption,
    KOption,
    ProgramOption,
    WorkersOption,
    ks_of,
    program_of,
    require_model,
    token_of,
)
from swarm.cli.own_server import server_at
from swarm.errors import BadRequest
from swarm.models import MODEL_DESCRIPTION

if TYPE_CHECKING:
    from swarm.client import SwarmClient

NOT_MEASURED = (
    "the base score was not measured: --url plays with the model of a running server, --train-model MODEL with a "
    "server of its own"
)

app = typer.Typer(help="Environments: what there is to learn, bundled or your own.", no_args_is_help=True)
app.command()(playing.play)


@app.command(name="list")
def list_environments(as_json: JsonOption = False) -> None:
    """List the bundled environments, and how others are named."""
    from swarm.tasks.families import TASK_FAMILIES

    if as_json:
        typer.echo(json.dumps({name: family.description for name, family in TASK_FAMILIES.items()}))
        return
    for name, family in TASK_FAMILIES.items():
        typer.echo(f"{name:10} {family.description}")
    typer.echo(
        "others: a folder with an environment.toml, tasks.jsonl?grader=number, tasks.parquet, reasoning_gym:chain_sum, "
        "verifiers:ID",
        err=True,
    )


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="New folder.", show_default=False)], as_json: JsonOption = False
) -> None:
    """Write a folder to begin with: environment.toml, tasks.jsonl and grade.py of a small task."""
    from swarm.environments.scaffold import write_scaffold

    with failures_in_one_line():
        files = [str(path) for path in write_scaffold(directory)]
        typer.echo(json.dumps({"files": files}) if as_json else "\n".join(files))
        typer.echo(f"now: swarm env check {shlex.quote(str(directory))}", err=True)


@app.command()
def check(
    name: EnvArgument,
    samples: Annotated[int, typer.Option(min=1, max=100_000, help="Tasks to look at in each split.")] = 200,
    url: Annotated[str | None, typer.Option(help="A server whose model plays for the base score.")] = None,
    train_model: Annotated[
        str | None,
        typer.Option(
            "--train-model", "--model", help=f"The same with a server of its own and this model: {MODEL_DESCRIPTION}."
        ),
    ] = None,
    program: ProgramOption = None,
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=1, max=100_000, help="Train tasks that are played.")
    ] = 64,
    k: KOption = None,
    workers: WorkersOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Find what is wrong with an environment before anything is trained on it. Exit code 1 if a check fails.

    With a model, also the base score: how much of it that model does already.
    """
    from swarm.environments.environment_check import CheckResult, CheckSeverity, check_environment
    from swarm.environments.server import open_environment
    from swarm.program.base_score import judge, measure_base_score
    from swarm.tasks import Split

    with failures_in_one_line():
        _refuse_contradictions(url, train_model, program)
        chosen, ks = program_of(program, name), ks_of(k)
        results: list[CheckResult] = []

        def tell(result: CheckResult) -> None:
            results.append(result)
            if not as_json:
                typer.echo(f"{result.severity:5}{result.check:17}{result.message}")

        base = None
        with open_environment(name) as environment:
            for result in check_environment(environment, samples):
                tell(result)
            if url is None and train_model is None:
                typer.echo(NOT_MEASURED, err=True)
            # Without any train task, the checks have failed already and there is nothing to play.
            elif next(environment.tasks(Split.TRAIN), None) is not None:
                with _model(url, train_model) as client:
                    base = measure_base_score(
                        client, environment, chosen, episodes=episodes, ks=ks, max_workers=workers
                    )
                tell(judge(base))
        if as_json:
            checks = [{"check": each.check, "severity": each.severity, "message": each.message} for each in results]
            figures = {"checks": checks, "base_score": None if base is None else base.figures()}
            typer.echo(json.dumps({"name": environment.name, "digest": environment.digest, **figures}))
        raise typer.Exit(1 if any(each.severity is CheckSeverity.FAIL for each in results) else 0)


def _refuse_contradictions(url: str | None, train_model: str | None, program: Path | None) -> None:
    if url is not None and train_model is not None:
        raise BadRequest("--url names a server with its model, --train-model a model: use one of them")
    if program is not None and url is None and train_model is None:
        raise BadRequest("a program plays only with a model: add --url or --train-model", param="program")


@contextmanager
def _model(url: str | None, train_model: str | None) -> Generator[SwarmClient]:
    """Yield a client of the server at `url`, or of a new server that serves `train_model` until the context ends."""
    from swarm.client import SwarmClient
    from swarm.job import TrainJob

    roles = ("rollout", "commander") if train_model is None else ("commander",)
    job = None if train_model is None else TrainJob(model=train_model, experiment_name="check")
    with (
        TemporaryDirectory(prefix="swarm-check-") as home,
        server_at(url, Path(home), job) as address,
        SwarmClient(address, token=token_of(*roles), client_id="swarm-check") as client,
    ):
        if job is not None:
            client.auto_sync_train_config_and_start_engine(job)
        require_model(client)
        yield client
