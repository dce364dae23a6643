"""Coalescing: calls made at the same time share one request. sync_calls.py is for threads, async_calls.py for tasks."""

from swarm.client.coalescing.async_calls import TaskCoalescer
from swarm.client.coalescing.sync_calls import ThreadCoalescer

__all__ = ["TaskCoalescer", "ThreadCoalescer"]
