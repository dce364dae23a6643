"""An environment in its own process: how to start it, serve it and call it."""

from swarm.environments.server.process import open_environment
from swarm.environments.server.remote import RemoteEnvironment

__all__ = ["RemoteEnvironment", "open_environment"]
