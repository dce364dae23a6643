"""Environments: tasks in three splits that never overlap, and a grader for attempts at them."""

from swarm.environments.base import DrivenEnvironment, Environment, EnvironmentTask, Grade, Session, Transcript
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
