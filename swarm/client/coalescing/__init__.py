"""Calls that are made at the same time leave in one request: for threads in threads.py, for tasks in tasks.py."""

from swarm.client.coalescing.tasks import TaskCoalescer
from swarm.client.coalescing.threads import ThreadCoalescer

__all__ = ["TaskCoalescer", "ThreadCoalescer"]
