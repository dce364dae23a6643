"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm.errors import BadRequest, EngineNotReady

if TYPE_CHECKING:
    from swarm.client import SwarmClient
    from swarm.job import TrainJob
    from swarm.prices import Prices
    from swarm.program import Program
    from swarm.tasks import Split


DEFAULT_URL = "http://127.0.0.1:10086"
"""The address of a server that was started on this machine with the default host and port."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON on stdout.")]
HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Directory of ledger, checkpoints and logs (default: $SWARM_HOME/swarm, runs/swarm)."),
]
EnvOption = Annotated[str, typer.Option("--env", help="Environment: a bundled one, a path, or LIBRARY:NAME.")]
EnvArgument = Annotated[str, typer.Argument(help="Environment: a bundled one, a path, or LIBRARY:NAME.")]
ProgramOption = Annotated[Path | None, typer.Option("--program", help="A Python file with the agent.")]
WorkersOption = Annotated[
    int, typer.Option("--workers", min=1, max=256, help="The most episodes at the same time; fewer on a slow server.")
]
KOption = Annotated[
    str | None,
    typer.Option(
        "--k",
        help="Also pass@k, as in 1,4,16: the share of tasks that so many attempts solve.",
    ),
]
SplitOption = Annotated[str, typer.Option("--split", help="train, validation or test.")]
RecordOption = Annotated[
    Path | None,
    typer.Option(
        "--record",
        envvar="SWARM_RECORD",
        help="Directory of the database that trainings are recorded in (default: $SWARM_HOME, else runs).",
    ),
]
NoRecordOption = Annotated[
    bool, typer.Option("--no-record", envvar="SWARM_NO_RECORD", help="Do not record trainings in that database.")
]
LogOption = Annotated[
    list[str] | None,
    typer.Option("--log", help="Also record trainings in this tracker, such as mlflow or wandb; repeatable."),
]
PricesOption = Annotated[
    Path | None,
    typer.Option("--prices", help="A YAML file with cpu_hour and gpu_hour, so that money is counted as well."),
]
DATABASE_SINK = "database"
"""The sink that every server records into."""


def ks_of(text: str | None) -> tuple[int, ...]:
    """Return the numbers of --k, none without it. Raise BadRequest for anything else than numbers."""
    from swarm.pass_at_k import read_ks

    return () if text is None else read_ks(text)


def prices_of(path: Path | None, job: TrainJob) -> Prices | None:
    """Return the prices of a file, None without one. Raise BadRequest if they lack one that the job needs."""
    from swarm.prices import read_prices

    if path is None:
        return None
    prices = read_prices(path)
    prices.require_machines(job.n_gpu)
    return prices


def token_of(*roles: str) -> str | None:
    """Return the token of the first of these roles that has one, or None.

    Tokens come from environment variables, which other users of the machine cannot read. A command uses the token with
    the fewest rights that is enough for it.
    """
    variables = {"commander": "SWARM_TOKEN", "rollout": "SWARM_ROLLOUT_TOKEN", "observer": "SWARM_OBSERVER_TOKEN"}
    return next((token for role in roles if (token := os.environ.get(variables[role]))), None)


def chosen_sinks(no_record: bool, log: list[str] | None) -> list[str]:
    """Return the names of the sinks that these options ask for. Raise BadRequest for a tracker that cannot be used."""
    from swarm.sinks import check_sinks

    trackers = [name for name in dict.fromkeys(log or ()) if name != DATABASE_SINK]
    check_sinks(trackers)
    return trackers if no_record else [DATABASE_SINK, *trackers]


def runs_directory(record: Path | None) -> Path:
    """Return the directory of runs: the option, else $SWARM_HOME, else runs."""
    return (record or home_named(None).parent).absolute()


def split_named(name: str) -> Split:
    """Return the split of this name. Raise BadRequest for an unknown name."""
    from swarm.tasks import Split

    if name not in set(Split):
        raise BadRequest(f"unknown split {name!r}: use {', '.join(Split)}", param="split")
    return Split(name)


def program_of(path: Path | None, environment: str) -> Program:
    """Return the program of a file, else the program of the environment's folder, else the plain program.

    Raise EnvironmentInvalid for a file that is not a program.
    """
    from swarm.program import load_program
    from swarm.program.base import PLAIN

    chosen = program_file(path, environment)
    return PLAIN if chosen is None else load_program(chosen)


def program_file(path: Path | None, environment: str) -> Path | None:
    """Return the given path, else the program of the environment's folder, else None for the plain program."""
    from swarm.environments.registry import agent_of

    return path or agent_of(environment)


def home_named(home: Path | None) -> Path:
    """Return the home of a server: the option, else $SWARM_HOME/swarm, else runs/swarm."""
    from swarm.config import ServerConfig, home_from_environment

    return home or home_from_environment() or ServerConfig().home


def training_folder(name: str) -> Path:
    """Return the folder of a training: $SWARM_HOME/train/NAME, else runs/train/NAME.

    Raise BadRequest for a name without letters and digits.
    """
    folder = re.sub(r"[^\w.-]+", "-", name).strip(".")
    if not folder:
        raise BadRequest(f"--name {name}: a training is named by letters or digits", param="name")
    return home_named(None).with_name("train") / folder


def require_model(client: SwarmClient) -> None:
    """Raise EngineNotReady if the server serves no model and is not about to."""
    status = client.status()
    if status.state in {"OFFLINE", "FAILED"}:
        reason = f": {status.reason}" if status.reason else ""
        raise EngineNotReady(f"the server at {client.url} serves no model: it is {status.state}{reason}")
