"""`swarm env list | init | check`: environments from a terminal.

Place in the flow: a group of commands that commands.py takes in. Data goes to stdout, messages to stderr.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from swarm.cli.failures import failures_in_one_line

app = typer.Typer(help="Environments: what there is to learn, bundled or your own.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@app.command(name="list")
def list_environments(as_json: JsonOption = False) -> None:
    """The bundled environments, and how others are named."""
    from swarm.tasks.registry import TASK_FAMILIES

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
def init(directory: Annotated[Path, typer.Argument(help="New folder.", show_default=False)]) -> None:
    """Write a folder to begin with: environment.toml, tasks.jsonl and grade.py of a small task."""
    from swarm.environments.scaffold import write_scaffold

    with failures_in_one_line():
        for path in write_scaffold(directory):
            typer.echo(str(path))
        typer.echo(f"now: swarm env check {directory}", err=True)


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="Environment: a bundled one, a path, or LIBRARY:NAME.")],
    samples: Annotated[int, typer.Option(min=1, max=100_000, help="Tasks to look at in each split.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """Find what is wrong with an environment before anything is trained on it. Exit code 1 if a check fails."""
    from swarm.environments import load_environment
    from swarm.environments.check import CheckResult, Severity, check_environment

    with failures_in_one_line():
        results: list[CheckResult] = []
        with closing(load_environment(name)) as environment:
            for result in check_environment(environment, samples):
                results.append(result)
                if not as_json:
                    typer.echo(f"{result.severity:5}{result.check:17}{result.message}")
        if as_json:
            checks = [{"check": each.check, "severity": each.severity, "message": each.message} for each in results]
            typer.echo(json.dumps({"name": environment.name, "digest": environment.digest, "checks": checks}))
        raise typer.Exit(1 if any(each.severity is Severity.FAIL for each in results) else 0)
