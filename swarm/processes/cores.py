"""The number of cores that this process may use, which an operator may limit."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Return the number of usable cores, at least one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_physical_cores() -> int:
    """Return the number of usable cores, where the hardware threads of one core count once.

    Linux alone tells which threads share a core. Elsewhere this equals `usable_cores`.
    """
    if not hasattr(os, "sched_getaffinity"):
        return usable_cores()
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:
        return len({Path(topology.format(number)).read_text(encoding="ascii") for number in os.sched_getaffinity(0)})
    except OSError:
        return usable_cores()
