"""The reviewer protocol: a second look at the arm that leads, before it is confirmed.

Place in the flow: the plan node asks a reviewer about the arm that exploration found. Objections are stored, go to the
planner once, and stand in the report. A reviewer sees code and transcripts, and it decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from researcher.charter import Charter


class ObjectionKind(StrEnum):
    """The kinds of fault that a reviewer looks for.

    SOLVED_IN_CODE: the program answers in the model's place. LEAK: the program knows answers that it should not know.
    GAMED_REWARD: the training reward rises and the grade does not. NOT_AS_CLAIMED: the transcripts do not show what
    the arm says it does. OTHER: anything else that makes the score mean something else.
    """

    SOLVED_IN_CODE = "solved_in_code"
    LEAK = "leak"
    GAMED_REWARD = "gamed_reward"
    NOT_AS_CLAIMED = "not_as_claimed"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Objection:
    """One objection to an arm; a grave one means that its score is not what the question asks about."""

    kind: ObjectionKind
    sentence: str
    is_grave: bool = False


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
