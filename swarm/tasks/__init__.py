"""Task families with verifiable rewards, seeded splits and a reference agent: client side, no model, no server."""

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
