"""What a planner knows of a study before it answers, and the forms of its answers and of a reviewer's objections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from experiments_db import NotebookEntry
from researcher.analysis import Analysis
from researcher.plan import Arm, Hypothesis, Plan, Stage
from researcher.tree import SearchTree


class Action(StrEnum):
    """The step that follows an analysis.

    REFINE makes another plan; in an exploring study it goes on exploring. CONFIRM ends the exploration: the best arm is
    compared with the baseline on fresh seeds. STOP ends the study.
    """

    REFINE = "refine"
    CONFIRM = "confirm"
    STOP = "stop"


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
    reasons. An arm stays disqualified: no later decision reverses it. `suspect` maps the arms that it does not trust to
    its reasons: they keep their verdicts, and are not recommended. `lessons` are what the planner wants to remember.
    `confirms` are the hypotheses about the arms to confirm once the exploration ends; the newest ones count.
    """

    action: Action
    reason: str
    author: str = ""
    is_budget_used_up: bool = False
    disqualified: Mapping[str, str] = field(default_factory=dict[str, str])
    suspect: Mapping[str, str] = field(default_factory=dict[str, str])
    lessons: tuple[str, ...] = ()
    confirms: tuple[Hypothesis, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """The information that a planner may use for its next plan.

    It has earlier plans and analyses of this study, and diagnoses of failed runs. `earlier_findings` are what earlier
    studies of the same environment found, one line each, most relevant first. `runs_used` counts the runs charged to
    the budget; None if there is no record. `notes` is the notebook, oldest entry first. `tree` has the arms that were
    explored, and `runs_left` says how many full runs exploration may still use; both are empty where nothing is
    explored. `attempts` says of each arm what an attempt takes in training and in evaluation. `base_score` is that of
    the weights before any training, in words; empty if it is not known.
    """

    plans: tuple[Plan, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    diagnoses: tuple[str, ...] = ()
    earlier_findings: tuple[str, ...] = ()
    runs_used: float | None = None
    notes: tuple[NotebookEntry, ...] = ()
    tree: SearchTree = field(default_factory=SearchTree)
    runs_left: float = 0.0
    attempts: tuple[str, ...] = ()
    base_score: str = ""

    @property
    def arms(self) -> dict[str, Arm]:
        """The arms of all plans by name, each as it was first planned."""
        return {arm.name: arm for plan in reversed(self.plans) for arm in plan.arms}

    @property
    def next_seed(self) -> int:
        """The first seed after those of all plans."""
        return max((seed for plan in self.plans for seed in plan.seeds), default=-1) + 1

    @property
    def claims(self) -> int:
        """The number of plans that have made a claim."""
        return sum(plan.stage is Stage.CLAIM for plan in self.plans)

    @property
    def planned_runs(self) -> int:
        """The number of distinct runs in all plans: an arm that later plans repeat counts once per seed."""
        return len({(arm.name, seed) for plan in self.plans for arm in plan.arms for seed in plan.seeds})
