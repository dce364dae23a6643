"""The options of `verifiers:ID?NAME=VALUE`: those of the adapter and those of the library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swarm.environments.source import option_error
from swarm.errors import EnvironmentInvalid
from swarm.tasks.base import Split

PYTHON_VARIABLE = "SWARM_VERIFIERS_PYTHON"
WHOLE = "env."


class AdapterOptions(BaseModel):
    """The options of the adapter itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: Path | None = None
    """Python with verifiers and the package of the environment. Default: SWARM_VERIFIERS_PYTHON."""
    harness: str | None = None
    """Program of the agent. Default: the environment's own, else `null`, which calls the model and its tools and runs
    nothing."""
    runtime: str | None = None
    """Where that program runs: subprocess, docker, podman, ... Default: the environment's own, else subprocess."""
    rollout_seconds: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Time limit of one rollout in seconds; a rollout that takes longer has failed."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens in each answer of the model."""
    train: str | None = None
    """Value of the taskset's own option `split` for the split train. Default: the value of that name, if the taskset
    lists its values; else all tasks are split by hash."""
    validation: str | None = None
    """The same for validation. A split that is not named takes a part of train, by hash."""
    test: str | None = None
    """The same for test."""

    def own_splits(self) -> dict[Split, str]:
        named = {Split.TRAIN: self.train, Split.VALIDATION: self.validation, Split.TEST: self.test}
        return {split: value for split, value in named.items() if value is not None}


def parse_options(given: Mapping[str, str], where: str) -> tuple[AdapterOptions, dict[str, Any]]:
    """Return the adapter's options, and the library's as its block `env`.

    Raises EnvironmentInvalid for options that cannot be read.
    """
    ours = {name: value for name, value in given.items() if name in AdapterOptions.model_fields}
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in ours:
            path = name.removeprefix(WHOLE) if name.startswith(WHOLE) else f"taskset.{name}"
            _put(settings, path.replace("-", "_").split("."), _parsed(name, value))
    try:
        return AdapterOptions.model_validate(ours), settings
    except ValidationError as error:
        raise option_error(error, where, AdapterOptions) from error


def interpreter(options: AdapterOptions) -> Path:
    """Return the Python that has verifiers.

    Raises EnvironmentInvalid if none is named.
    """
    named = options.python or os.environ.get(PYTHON_VARIABLE)
    if not named:
        raise EnvironmentInvalid(
            f"verifiers needs a Python of its own: name it with ?python=PATH or {PYTHON_VARIABLE}",
            param="python",
        )
    return Path(named)


def _put(settings: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        inner = settings.setdefault(name, {})
        if not isinstance(inner, dict):
            raise EnvironmentInvalid(
                f"the options {'.'.join(path)} and {name} exclude each other: keep one", param=name
            )
        settings = cast(dict[str, Any], inner)
    settings[path[-1]] = value


def _parsed(name: str, value: str) -> object:
    """Return a value as YAML reads it: a number, a boolean, a list."""
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise EnvironmentInvalid(f"the option {name} cannot be read: {error}", param=name) from error
