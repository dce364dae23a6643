"""The protocol of whoever answers a planner's questions: a language model, or an agent outside of the study.

Place in the flow: LLMPlanner asks through it. `Chat` (chat.py) is one, and `QuestionQueue`
(planner/external/question_queue.py) another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Asker(Protocol):
    """Somebody who answers questions in text."""

    @property
    def model(self) -> str:
        """The name of who answers."""
        ...

    def ask(self, node: str, question: str, parse: Callable[[str], T]) -> T:
        """Return the parsed answer to a question of the kind `node`.

        `parse` raises Unusable, with what to correct. Raises ResearchError where no usable answer comes.
        """
        ...
