"""Child processes: how to start them, wait for their announcements, and end them and whatever they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.processes.imports import lazy_names

if TYPE_CHECKING:
    from swarm.processes.child import KILLED as KILLED
    from swarm.processes.child import Child as Child
    from swarm.processes.child import NoAnnouncement as NoAnnouncement
    from swarm.processes.child import StaleProcess as StaleProcess
    from swarm.processes.child import await_announcement as await_announcement
    from swarm.processes.child import end_stale as end_stale
    from swarm.processes.child import is_dead as is_dead
    from swarm.processes.child import own_name as own_name
    from swarm.processes.child import python_module as python_module
    from swarm.processes.child import server_environment as server_environment
    from swarm.processes.child import tail as tail
    from swarm.processes.cores import usable_cores as usable_cores
    from swarm.processes.imports import collector_paused as collector_paused
    from swarm.processes.running_servers import RunningServer as RunningServer
    from swarm.processes.running_servers import announced_server as announced_server
    from swarm.processes.running_servers import list_running_servers as list_running_servers

# The sandbox of a program shows only some of the modules.
__getattr__, __dir__ = lazy_names(__name__)
