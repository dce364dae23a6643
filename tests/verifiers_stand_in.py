"""Environments whose worker is the stand-in of tests/stand_ins/verifiers: no verifiers is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from swarm.environments import DrivenEnvironment, load_environment

STAND_IN = Path(__file__).parent / "stand_ins" / "verifiers" / "worker.py"


def interpreter(folder: Path, script: Path = STAND_IN, **variables: object) -> Path:
    """A program that is given a script, as an interpreter would be, and runs the stand-in instead."""
    path = folder / "python-with-verifiers"
    settings = "".join(f"export {name}={value}\n" for name, value in variables.items())
    path.write_text(f'#!/bin/sh\n{settings}exec {sys.executable} {script} "$@"\n')
    path.chmod(0o755)
    return path


def name_of(python: Path, **options: object) -> str:
    return "verifiers:numbers?" + urlencode({"python": str(python), **options})


@contextmanager
def opened(folder: Path, **options: Any) -> Iterator[DrivenEnvironment]:
    environment = load_environment(name_of(interpreter(folder), **options))
    assert isinstance(environment, DrivenEnvironment)
    try:
        yield environment
    finally:
        environment.close()
