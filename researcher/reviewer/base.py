"""The reviewer protocol: a second look at the arm that leads, before it is confirmed.

Place in the flow: the plan node asks a reviewer about the arm that exploration found. Objections are stored, go to the
planner once, and stand in the report. A reviewer sees code and transcripts, and it decides nothing.
"""

from __future__ import annotations

from typing import Protocol

from researcher.charter import Charter
from researcher.history import Objection


class Reviewer(Protocol):
    """The author of objections."""

    @property
    def name(self) -> str:
        """`rules`, or `llm:<model>`."""
        ...

    def review(self, charter: Charter, arm: str) -> tuple[Objection, ...]:
        """Return the objections to an arm of the study; empty if there are none.

        Raises PlannerError if the reviewer gives no usable answer.
        """
        ...
