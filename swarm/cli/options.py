"""What several commands read from their options: a split, a program, a home, a server that serves a model.

Place in the flow: beside the commands, which ask here before they begin anything.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.errors import BadRequest, EngineNotReady

if TYPE_CHECKING:
    from swarm.client import SwarmClient
    from swarm.program import Program
    from swarm.tasks import Split


DEFAULT_URL = "http://127.0.0.1:10086"
"""The address of a server that was started on this machine without a port of its own."""


def split_named(name: str) -> Split:
    """Raises BadRequest for a split that there is not."""
    from swarm.tasks import Split

    if name not in set(Split):
        raise BadRequest(f"unknown split {name!r}: use {', '.join(Split)}", param="split")
    return Split(name)


def program_of(path: Path | None, environment: str) -> Program:
    """The program of a file; without one, that of the environment's folder, or else the plain one. Raises
    EnvironmentInvalid for a file that is none."""
    from swarm.program import load_program
    from swarm.program.base import PLAIN

    chosen = program_file(path, environment)
    return PLAIN if chosen is None else load_program(chosen)


def program_file(path: Path | None, environment: str) -> Path | None:
    """The file that was named, or else that of the environment's folder; None for the plain program."""
    from swarm.environments.registry import agent_of

    return path or agent_of(environment)


def home_named(home: Path | None) -> Path:
    """The directory of a server: the option, else $SWARM_HOME/swarm, else runs/swarm."""
    from swarm.config import ServerConfig, home_from_environment

    return home or home_from_environment() or ServerConfig().home


def training_folder(name: str) -> Path:
    """The directory of a training: in $SWARM_HOME/train, else in runs/train, under its name."""
    folder = re.sub(r"[^\w.-]+", "-", name).strip(".")
    if not folder:
        raise BadRequest(f"--name {name}: a training is named by letters or digits", param="name")
    return home_named(None).with_name("train") / folder


def require_model(client: SwarmClient) -> None:
    """Raises EngineNotReady if the server serves no model and nothing is under way to change that."""
    status = client.status()
    if status.state in {"OFFLINE", "FAILED"}:
        reason = f": {status.reason}" if status.reason else ""
        raise EngineNotReady(f"the server at {client.url} serves no model, it is {status.state}{reason}")
