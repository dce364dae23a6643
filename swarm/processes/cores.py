"""How many cores this process may use, which is less than the machine has where an operator limits it.

Place in the flow: the local engine asks before it takes threads, and a study before it starts several servers.
"""

from __future__ import annotations

import os


def usable_cores() -> int:
    """At least one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
