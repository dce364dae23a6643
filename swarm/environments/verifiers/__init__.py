"""Environments of the library verifiers, which runs its own agents in an interpreter of its own."""

from swarm.environments.verifiers.environment import VerifiersEnvironment

__all__ = ["VerifiersEnvironment"]
