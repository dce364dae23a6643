"""Environments of the library verifiers, which runs its own agents in a separate interpreter."""

from swarm.environments.verifiers.environment import VerifiersEnvironment

__all__ = ["VerifiersEnvironment"]
