"""What a planner must do: five functions called by the loop. The loop is code; a planner never runs anything itself.

Place in the flow: nodes call a planner and store what it returns. Implemented by `rules` (no language model), `llm`
(any OpenAI-compatible model) and `scripted` (replays, for tests). A planner sees no server, no database and no verdict
rule it could change; scores reach it only through `Analysis`.
"""

from __future__ import annotations

from typing import Protocol

from researcher.types import Analysis, Arm, ArmProgram, Charter, Claim, Decision, FrameRequest, History, Plan, Problem


class Planner(Protocol):
    """Every method may raise PlannerError when no valid answer could be had within its own bounded retries."""

    @property
    def name(self) -> str:
        """`rules`, `scripted`, or `llm:<model>`; recorded in the charter."""
        ...

    def frame(self, request: FrameRequest) -> Charter:
        """Turn the topic into a charter. Raises TopicInvalid for an empty topic or a task that does not exist."""
        ...

    def plan(self, charter: Charter, history: History) -> Plan:
        """The next iteration: at least a baseline and one more arm in the first one."""
        ...

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        """The client program of an arm, as a change of its parent's if there is one."""
        ...

    def repair_program(
        self, charter: Charter, arm: Arm, program: ArmProgram, problems: tuple[Problem, ...]
    ) -> ArmProgram:
        """A corrected program after `check` rejected one."""
        ...

    def interpret(self, charter: Charter, analysis: Analysis, history: History) -> tuple[Claim, ...]:
        """What the numbers mean, claim by claim. Code checks each one and words it; what is not true is left out."""
        ...

    def decide(self, charter: Charter, analysis: Analysis, history: History) -> Decision:
        """Refine with another plan, or stop."""
        ...
