"""How many cores this process may use, which is less than the machine has where an operator limits it.

Place in the flow: backends ask before they take threads, and a study before it starts several servers.
"""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """At least one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_physical_cores() -> int:
    """As `usable_cores`, with one for those that Linux names as threads of the same core."""
    if not hasattr(os, "sched_getaffinity"):
        return usable_cores()
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:
        return len({Path(topology.format(number)).read_text(encoding="ascii") for number in os.sched_getaffinity(0)})
    except OSError:
        return usable_cores()
