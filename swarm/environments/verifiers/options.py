"""The options of `verifiers:ID?NAME=VALUE`: a few of our own, and all that the library has.

Place in the flow: environment.py reads them first. A name that is not ours is an option of the taskset, one that begins
with `env.` is what vf-eval calls by it. This module does not know which options the library has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swarm.environments.registry import option_error
from swarm.errors import EnvironmentInvalid
from swarm.tasks.base import Split

PYTHON_VARIABLE = "SWARM_VERIFIERS_PYTHON"
WHOLE = "env."


class AdapterOptions(BaseModel):
    """Options that are ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: Path | None = None
    """A Python that has verifiers and the package of the environment. Default: SWARM_VERIFIERS_PYTHON."""
    harness: str | None = None
    """The agent's program. Default: what the environment brings along, else `null`, which calls the model and its
    tools and runs nothing."""
    runtime: str | None = None
    """Where that program runs: subprocess, docker, podman, ... Default: what the environment says, else subprocess."""
    rollout_seconds: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Longest time of one rollout; what takes longer has failed."""
    max_tokens: int = Field(default=1024, ge=1)
    """Tokens of each answer of the model."""
    train: str | None = None
    """What the taskset's own option `split` is to be for the split train. Default: what it calls so, if it says which
    values there are; else all tasks are split by hash."""
    validation: str | None = None
    """The same for validation. A split that is not named takes its part of train, by hash."""
    test: str | None = None
    """The same for test."""

    def own_splits(self) -> dict[Split, str]:
        named = {Split.TRAIN: self.train, Split.VALIDATION: self.validation, Split.TEST: self.test}
        return {split: value for split, value in named.items() if value is not None}


def parse_options(given: Mapping[str, str], where: str) -> tuple[AdapterOptions, dict[str, Any]]:
    """Our own options, and the library's as its block `env`. Raises EnvironmentInvalid for what cannot be read."""
    ours = {name: value for name, value in given.items() if name in AdapterOptions.model_fields}
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in ours:
            path = name.removeprefix(WHOLE) if name.startswith(WHOLE) else f"taskset.{name}"
            _put(settings, path.replace("-", "_").split("."), _parsed(name, value))
    try:
        return AdapterOptions.model_validate(ours), settings
    except ValidationError as error:
        raise option_error(error, where) from error


def interpreter(options: AdapterOptions) -> Path:
    """Raises EnvironmentInvalid if none is named."""
    named = options.python or os.environ.get(PYTHON_VARIABLE)
    if not named:
        raise EnvironmentInvalid(
            f"which Python has verifiers? It cannot share ours: say ?python=PATH or set {PYTHON_VARIABLE}",
            param="python",
        )
    return Path(named)


def _put(settings: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        inner = settings.setdefault(name, {})
        if not isinstance(inner, dict):
            raise EnvironmentInvalid(f"the option {'.'.join(path)} is given beside {name} itself", param=name)
        settings = cast(dict[str, Any], inner)
    settings[path[-1]] = value


def _parsed(name: str, value: str) -> object:
    """As YAML reads it: numbers, booleans, lists."""
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise EnvironmentInvalid(f"the option {name} cannot be read: {error}", param=name) from error
