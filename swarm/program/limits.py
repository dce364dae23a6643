"""The most tokens of a reply: the smaller one of the limits of the environment and of the server's job."""

from __future__ import annotations

from swarm.client import SwarmClient
from swarm.environments import Environment
from swarm.job import TrainJob


def reply_limit(client: SwarmClient, environment: Environment) -> int:
    """Return the most tokens of a reply whose call names no limit of its own, by the job in force on the server."""
    view = client.job()
    own = (view.in_force or view.resolved or {}).get("max_response_length")
    return min(environment.max_tokens, own or environment.max_tokens)


def describe_limits(environment: Environment, job: TrainJob) -> str | None:
    """Return what `max_response_length` of the job means on the environment; None if the job leaves it out."""
    if job.max_response_length is None:
        return None
    if job.max_response_length >= environment.max_tokens:
        return (
            f"max_response_length {job.max_response_length} changes no reply: {environment.name} allows"
            f" {environment.max_tokens} tokens"
        )
    return (
        f"replies have at most {job.max_response_length} tokens, by max_response_length of the job:"
        f" {environment.name} allows {environment.max_tokens}"
    )
