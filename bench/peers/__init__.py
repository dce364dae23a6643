"""The service beside TRL's GRPOTrainer: the same model, tasks and settings, one run of each after the other.

Place in the flow: a benchmark. `workload.py` and `report.py` are read by both sides and need the standard library
only; `trl_side.py` and `service_side.py` each train in a process of their own, `comparison.py` starts these and sums
up. This module imports nothing heavy, because TRL's interpreter imports it too, and that one lacks what the service
needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.results import Result

TRL_PYTHON = "SWARM_TRL_PYTHON"
"""The environment variable that names an interpreter with TRL."""


def run(seconds: float) -> list[Result]:
    """Return the figures of every case on both sides. Raises EngineFailure where TRL is missing or a side fails."""
    from bench.peers.comparison import compare

    return compare(seconds)
