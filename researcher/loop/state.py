"""What the graph remembers between its nodes: a position, never results.

Place in the flow: LangGraph stores this after every node; everything else is in the database of studies, under ids that
can be found from here. Kept this small, because each step's checkpoint holds all of it.
"""

from __future__ import annotations

from typing import TypedDict


class ResearchState(TypedDict):
    """`iteration` is the plan being worked on. `polls` counts rounds of monitoring.

    `is_spent` is set once the budget forbids another launch, `is_halted` once no further plan is to be made.
    """

    study_id: str
    iteration: int
    polls: int
    is_spent: bool
    is_halted: bool


def first_state(study_id: str) -> ResearchState:
    return ResearchState(study_id=study_id, iteration=0, polls=0, is_spent=False, is_halted=False)
