"""Calls made at the same time leave in one request: for threads in sync_calls.py, for tasks in async_calls.py."""

from swarm.client.coalescing.async_calls import TaskCoalescer
from swarm.client.coalescing.sync_calls import ThreadCoalescer

__all__ = ["TaskCoalescer", "ThreadCoalescer"]
