"""Task families with verifiable rewards, seeded splits and a reference agent, for clients."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.tasks.agent import converse, run_agent, run_agent_async
    from swarm.tasks.base import Exchange, Problem, Split, TaskFamily, split_of
    from swarm.tasks.calc import CALCULATOR, calculate
    from swarm.tasks.registry import TASK_FAMILIES, task_family

__all__ = [
    "CALCULATOR",
    "TASK_FAMILIES",
    "Exchange",
    "Problem",
    "Split",
    "TaskFamily",
    "calculate",
    "converse",
    "run_agent",
    "run_agent_async",
    "split_of",
    "task_family",
]

_MODULE_BY_NAME = {
    **dict.fromkeys(("converse", "run_agent", "run_agent_async"), "swarm.tasks.agent"),
    **dict.fromkeys(("Exchange", "Problem", "Split", "TaskFamily", "split_of"), "swarm.tasks.base"),
    **dict.fromkeys(("CALCULATOR", "calculate"), "swarm.tasks.calc"),
    **dict.fromkeys(("TASK_FAMILIES", "task_family"), "swarm.tasks.registry"),
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'swarm.tasks' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
