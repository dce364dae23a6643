"""An environment in a process of its own, and how others use it: start it, serve it, call it."""

from swarm.environments.server.process import open_environment
from swarm.environments.server.remote import RemoteEnvironment

__all__ = ["RemoteEnvironment", "open_environment"]
