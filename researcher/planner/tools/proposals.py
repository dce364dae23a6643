"""The tool `propose`: the next settings within the study's space, by its proposer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import Field

from experiments_db import Operator
from researcher.planner.tools.base import PlannerTool, ToolArguments, ToolRefused
from researcher.planner.tools.texts import settings_as_text

Propose = Callable[[Operator, tuple[str, ...]], Mapping[str, str] | None]
"""Return levels by factor for an arm derived from parents by an operator; None if the space is used up."""

PARENTS = {Operator.DRAFT: 0, Operator.COMBINE: 2}
"""The parents of an operator, where it is not one."""


class ProposeArguments(ToolArguments):
    operator: Operator = Field(description="draft: anywhere in the space; tune: near the parent; combine: two parents.")
    parents: tuple[str, ...] = Field(default=(), description="Names of arms.")


def propose_tool(propose: Propose) -> PlannerTool:
    """Return the tool."""

    def call(arguments: ProposeArguments) -> str:
        wanted = PARENTS.get(arguments.operator, 1)
        if len(arguments.parents) != wanted:
            raise ToolRefused(f"{arguments.operator} takes {wanted} parents, not {len(arguments.parents)}")
        levels = propose(arguments.operator, arguments.parents)
        return "the space has no further settings for this move" if levels is None else settings_as_text(levels)

    return PlannerTool(
        "propose",
        "Ask the study's proposer (a statistical method that knows all scores so far) for the next settings to try.",
        ProposeArguments,
        call,
    )
