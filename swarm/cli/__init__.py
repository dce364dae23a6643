"""The command `swarm`."""

from swarm.cli.commands import app, main

__all__ = ["app", "main"]
