"""Child processes: how to start them, wait for their announcements, and end them and whatever they leave."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.processes.announcement import NoAnnouncement, await_announcement
    from swarm.processes.child import (
        KILLED,
        Child,
        StaleProcess,
        end_stale,
        is_dead,
        own_name,
        server_environment,
        tail,
    )
    from swarm.processes.cores import usable_cores
    from swarm.processes.imports import collector_paused
    from swarm.processes.running_servers import RunningServer, announced_server, list_running_servers

__all__ = [
    "KILLED",
    "Child",
    "NoAnnouncement",
    "RunningServer",
    "StaleProcess",
    "announced_server",
    "await_announcement",
    "collector_paused",
    "end_stale",
    "is_dead",
    "list_running_servers",
    "own_name",
    "server_environment",
    "tail",
    "usable_cores",
]

_MODULE_BY_NAME = {
    **dict.fromkeys(("NoAnnouncement", "await_announcement"), "swarm.processes.announcement"),
    **dict.fromkeys(
        ("KILLED", "Child", "StaleProcess", "end_stale", "is_dead", "own_name", "server_environment", "tail"),
        "swarm.processes.child",
    ),
    "usable_cores": "swarm.processes.cores",
    "collector_paused": "swarm.processes.imports",
    **dict.fromkeys(("RunningServer", "announced_server", "list_running_servers"), "swarm.processes.running_servers"),
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'swarm.processes' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
