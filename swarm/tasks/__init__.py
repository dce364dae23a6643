"""Task families with verifiable rewards, seeded splits and a reference agent, for clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.processes.imports import lazy_names

if TYPE_CHECKING:
    from swarm.tasks.agent import converse as converse
    from swarm.tasks.agent import run_agent as run_agent
    from swarm.tasks.base import Split as Split
    from swarm.tasks.base import TaskFamily as TaskFamily
    from swarm.tasks.base import split_of as split_of
    from swarm.tasks.families import CALCULATOR as CALCULATOR
    from swarm.tasks.families import TASK_FAMILIES as TASK_FAMILIES
    from swarm.tasks.families import calculate as calculate
    from swarm.tasks.families import task_family as task_family

# The families are not visible in the sandbox of a program.
__getattr__, __dir__ = lazy_names(__name__)
