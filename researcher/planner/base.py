"""The planner protocol: the functions that the research loop calls.

Place in the flow: nodes call a planner and store what it returns. The loop is code; a planner never runs anything
itself. The implementations are `rules` (no language model), `llm` (any OpenAI-compatible model) and `scripted`
(replays, for tests). A planner sees no server and no database, and it cannot change the verdict rule. Scores reach it
only through `Analysis`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from experiments_db import NotebookEntry
from researcher.analysis import Analysis
from researcher.charter import Charter, FrameRequest
from researcher.plan import Arm, ArmProgram, Plan, ProgramProblem
from researcher.planner.claims import Claim
from researcher.reviewer.base import Objection
from researcher.search.tree import Move, SearchTree


class Action(StrEnum):
    """The step that follows an analysis.

    REFINE makes another plan; in an exploring study it goes on exploring. CONFIRM ends the exploration: the best arm is
    compared with the baseline on fresh seeds. STOP ends the study.
    """

    REFINE = "refine"
    CONFIRM = "confirm"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Response:
    """The answer of a planner to a reviewer's objections; the arm is out for good if it `is_withdrawn`."""

    text: str
    is_withdrawn: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """The next action of a study, with the reason that people see.

    `author` is who decided, if it is not the study's planner. `is_budget_used_up` means that nothing was left to
    choose, so a raised budget reopens the matter. `disqualified` maps the arms that the planner rules out to its
    reasons. An arm stays disqualified: no later decision reverses it. `lessons` are what the planner wants to remember.
    """

    action: Action
    reason: str
    author: str = ""
    is_budget_used_up: bool = False
    disqualified: Mapping[str, str] = field(default_factory=dict[str, str])
    lessons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """The information that a planner may use for its next plan.

    It has earlier plans and analyses of this study, and diagnoses of failed runs. `earlier_findings` are findings of
    earlier studies in the same environment, negative ones included. `runs_used` counts the runs charged to the budget;
    None if there is no record. `notes` is the notebook, oldest entry first. `tree` has the arms that were explored, and
    `runs_left` says how many full runs exploration may still use; both are empty where nothing is explored.
    """

    plans: tuple[Plan, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    diagnoses: tuple[str, ...] = ()
    earlier_findings: tuple[str, ...] = ()
    runs_used: float | None = None
    notes: tuple[NotebookEntry, ...] = ()
    tree: SearchTree = field(default_factory=SearchTree)
    runs_left: float = 0.0

    @property
    def planned_runs(self) -> int:
        """The number of distinct runs in all plans: an arm that later plans repeat counts once per seed."""
        return len({(arm.name, seed) for plan in self.plans for arm in plan.arms for seed in plan.seeds})


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
