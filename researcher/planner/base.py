"""The planner protocol: the functions that the research loop calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from researcher.analysis import Analysis
from researcher.charter import Charter, FrameRequest
from researcher.claims import Claim
from researcher.history import Decision, History, Objection, Response
from researcher.plan import Arm, ArmProgram, Plan, ProgramProblem
from researcher.tree import Move

T = TypeVar("T")


class Planner(Protocol):
    """The author of a study's plans.

    Every method raises PlannerError if the planner finds no valid answer within its own bounded retries.
    """

    @property
    def name(self) -> str:
        """`rules`, `external` or `llm:<model>`, as the charter records it."""
        ...

    def frame(self, request: FrameRequest) -> Charter:
        """Turn the topic into a charter.

        Raises TopicInvalid for an empty topic or a task that does not exist.
        """
        ...

    def plan(self, charter: Charter, history: History) -> Plan:
        """Return the next iteration; the first one has at least a baseline and one more arm."""
        ...

    def explore(self, charter: Charter, history: History, moves: Sequence[Move]) -> Plan:
        """Return the next round of exploration: new arms, and arms that are trained on to a higher rung.

        `moves` are those of the charter's policy, and the plan carries out each of them. Without moves the planner
        chooses by itself. A plan without arms ends the exploration.
        """
        ...

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        """Return the client program of an arm, as a change of its parent's program if there is one."""
        ...

    def repair_program(
        self, charter: Charter, arm: Arm, program: ArmProgram, problems: tuple[ProgramProblem, ...]
    ) -> ArmProgram:
        """Return a corrected program after `check` rejected one."""
        ...

    def interpret(self, charter: Charter, analysis: Analysis, history: History) -> tuple[Claim, ...]:
        """Return the meaning of the numbers as claims.

        Code checks each claim and words it. A claim that is not true is left out.
        """
        ...

    def respond(self, charter: Charter, arm: str, objections: Sequence[Objection], history: History) -> Response:
        """Return the answer to a reviewer's objections to the arm that is about to be confirmed."""
        ...

    def decide(self, charter: Charter, analysis: Analysis, history: History) -> Decision:
        """Return whether to refine with another plan or to stop."""
        ...


class Asker(Protocol):
    """Somebody who answers questions in text."""

    @property
    def name(self) -> str:
        """The name of who answers: `llm:MODEL`, or `external`."""
        ...

    def ask(self, node: str, question: str, parse: Callable[[str], T]) -> T:
        """Return the parsed answer to a question of the kind `node`.

        `parse` raises Unusable, with what to correct. Raises ResearchError where no usable answer comes.
        """
        ...
