"""The state that the graph keeps between its nodes: a position, never results.

Place in the flow: LangGraph stores it after every node. Everything else is in the database of studies, under ids that
can be derived from this state. The state is small because each checkpoint of the graph holds all of it.
"""

from __future__ import annotations

from typing import TypedDict


class ResearchState(TypedDict):
    """The position of a study in the graph.

    `iteration` is the number of the present plan, from 0. `polls` counts rounds of monitoring. `is_budget_used_up` is
    set once the budget forbids another launch, `is_halted` once no further plan is to be made.
    """

    study_id: str
    iteration: int
    polls: int
    is_budget_used_up: bool
    is_halted: bool


def first_state(study_id: str) -> ResearchState:
    return ResearchState(study_id=study_id, iteration=0, polls=0, is_budget_used_up=False, is_halted=False)
