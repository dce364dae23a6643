"""The task families by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from swarm.errors import NotFound
from swarm.tasks.base import TaskFamily
from swarm.tasks.calc import Calc
from swarm.tasks.multi_turn import Chain, Guess
from swarm.tasks.single import Add, Copy, Count, Reverse, Sort

TASK_FAMILIES: Mapping[str, TaskFamily] = MappingProxyType(
    {family.name: family for family in (Reverse(), Copy(), Sort(), Add(), Count(), Calc(), Guess(), Chain())}
)


def task_family(name: str) -> TaskFamily:
    """Return the family called `name`.

    Raises NotFound for an unknown name, and lists the known ones.
    """
    try:
        return TASK_FAMILIES[name]
    except KeyError:
        names = ", ".join(TASK_FAMILIES)
        raise NotFound(f"unknown task family {name!r}; choose one of: {names}", param="task") from None
