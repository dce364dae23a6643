"""The planner of tests: it replays given answers, which the history of a study picks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from researcher.analysis import Analysis
from researcher.charter import Charter, FrameRequest
from researcher.claims import Claim
from researcher.errors import PlannerError
from researcher.history import Decision, History, Objection, Response
from researcher.plan import Arm, ArmProgram, Plan, ProgramProblem, Stage
from researcher.tree import Move

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Script:
    """The answers of a planner, in the order of the iterations.

    `rounds` are the rounds of an exploration. `programs` maps an arm to its program, and `repairs` maps an arm to its
    corrected programs. `responses` maps an arm to the answer to a review of it.
    """

    charter: Charter
    plans: Sequence[Plan]
    programs: Mapping[str, str]
    decisions: Sequence[Decision]
    interpretations: Sequence[tuple[Claim, ...]] = ()
    repairs: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    trusted: bool = False
    rounds: Sequence[Plan] = ()
    responses: Mapping[str, Response] = field(default_factory=dict[str, Response])


class ScriptedPlanner:
    """A planner that replays a script.

    Its methods raise PlannerError if the script has no answer.
    """

    name = "scripted"

    def __init__(self, script: Script) -> None:
        self._script = script

    def frame(self, request: FrameRequest) -> Charter:
        return self._script.charter

    def plan(self, charter: Charter, history: History) -> Plan:
        return _entry(self._script.plans, len(history.plans), "plan")

    def explore(self, charter: Charter, history: History, moves: Sequence[Move]) -> Plan:
        explored = sum(plan.stage is Stage.EXPLORE for plan in history.plans)
        return _entry(self._script.rounds, explored, "round")

    def respond(self, charter: Charter, arm: str, objections: Sequence[Objection], history: History) -> Response:
        if arm not in self._script.responses:
            raise PlannerError(f"the script has no answer to a review of {arm}")
        return self._script.responses[arm]

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        if arm.name not in self._script.programs:
            raise PlannerError(f"the script has no program for arm {arm.name}")
        return ArmProgram(arm.name, self._script.programs[arm.name], self._script.trusted)

    def repair_program(
        self, charter: Charter, arm: Arm, program: ArmProgram, problems: tuple[ProgramProblem, ...]
    ) -> ArmProgram:
        programs = [self._script.programs.get(arm.name), *self._script.repairs.get(arm.name, ())]
        position = programs.index(program.code) + 1 if program.code in programs else len(programs)
        code = _entry(programs, position, f"repair of arm {arm.name},")
        return ArmProgram(arm.name, str(code), self._script.trusted)

    def interpret(self, charter: Charter, analysis: Analysis, history: History) -> tuple[Claim, ...]:
        return _entry(self._script.interpretations, len(history.analyses) - 1, "interpretation")

    def decide(self, charter: Charter, analysis: Analysis, history: History) -> Decision:
        return _entry(self._script.decisions, len(history.analyses) - 1, "decision")


def _entry(entries: Sequence[T], position: int, what: str) -> T:
    if not 0 <= position < len(entries):
        raise PlannerError(f"the script has no {what} number {position + 1}")
    return entries[position]
