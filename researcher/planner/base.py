"""The planner protocol: the six functions that the research loop calls.

Place in the flow: nodes call a planner and store what it returns. The loop is code; a planner never runs anything
itself. The implementations are `rules` (no language model), `llm` (any OpenAI-compatible model) and `scripted`
(replays, for tests). A planner sees no server and no database, and it cannot change the verdict rule. Scores reach it
only through `Analysis`.
"""

from __future__ import annotations

from typing import Protocol

from researcher.types import (
    Analysis,
    Arm,
    ArmProgram,
    Charter,
    Claim,
    Decision,
    FrameRequest,
    History,
    Plan,
    ProgramProblem,
)


class Planner(Protocol):
    """The author of a study's plans.

    Every method raises PlannerError if the planner finds no valid answer within its own bounded retries.
    """

    @property
    def name(self) -> str:
        """`rules`, `scripted`, or `llm:<model>`, as the charter records it."""
        ...

    def frame(self, request: FrameRequest) -> Charter:
        """Turn the topic into a charter.

        Raises TopicInvalid for an empty topic or a task that does not exist.
        """
        ...

    def plan(self, charter: Charter, history: History) -> Plan:
        """Return the next iteration; the first one has at least a baseline and one more arm."""
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

    def decide(self, charter: Charter, analysis: Analysis, history: History) -> Decision:
        """Return whether to refine with another plan or to stop."""
        ...
