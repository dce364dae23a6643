"""Environments: tasks in three disjoint splits, and a grader for attempts at them.

`load_environment` is imported on first use, because its module is not visible in the sandbox of a program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.environments.base import DrivenEnvironment, Environment, EnvironmentTask, Grade, Session, Transcript

if TYPE_CHECKING:
    from swarm.environments.registry import load_environment

__all__ = [
    "DrivenEnvironment",
    "Environment",
    "EnvironmentTask",
    "Grade",
    "Session",
    "Transcript",
    "load_environment",
]


def __getattr__(name: str) -> object:
    if name != "load_environment":
        raise AttributeError(f"module 'swarm.environments' has no attribute {name!r}")
    from swarm.environments.registry import load_environment

    return load_environment
