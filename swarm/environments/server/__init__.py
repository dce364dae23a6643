"""An environment in its own process: how to start it, serve it and call it."""

from swarm.environments.server.process import SOCKET_PREFIX, EnvironmentProcess, open_environment
from swarm.environments.server.remote import CallRecord, RemoteEnvironment

__all__ = ["SOCKET_PREFIX", "CallRecord", "EnvironmentProcess", "RemoteEnvironment", "open_environment"]
