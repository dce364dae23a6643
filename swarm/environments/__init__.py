"""Environments: tasks in three disjoint splits, and a grader for attempts at them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from swarm.environments.base import DrivenEnvironment, Environment, EnvironmentTask, Grade, Session, Transcript

if TYPE_CHECKING:
    from swarm.environments.environment_check import transcript_of
    from swarm.environments.registry import (
        LIBRARIES,
        agent_of,
        has_own_worker,
        is_bundled,
        load_environment,
        options_of,
        with_options,
    )

__all__ = [
    "LIBRARIES",
    "DrivenEnvironment",
    "Environment",
    "EnvironmentTask",
    "Grade",
    "Session",
    "Transcript",
    "agent_of",
    "has_own_worker",
    "is_bundled",
    "load_environment",
    "options_of",
    "transcript_of",
    "with_options",
]

_MODULE_BY_NAME = {
    "transcript_of": "swarm.environments.environment_check",
    **dict.fromkeys(
        ("LIBRARIES", "agent_of", "has_own_worker", "is_bundled", "load_environment", "options_of", "with_options"),
        "swarm.environments.registry",
    ),
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'swarm.environments' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
