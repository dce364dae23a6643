"""The closed sets of values that fields of records have: statuses, kinds, verdicts and orders."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class StudyStatus(StrEnum):
    """The status of a study. `running` and `paused` studies can go on; `resume` may reopen the other three."""

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        """True if nobody works on the study any more. The process of a stopped one may still be ending its runs."""
        return self in (StudyStatus.FINISHED, StudyStatus.FAILED)


class ExperimentStatus(StrEnum):
    """The status of an arm: `draft` until `check` has passed it (`ready`) or rejected it (`invalid`)."""

    DRAFT = "draft"
    READY = "ready"
    INVALID = "invalid"


class Author(StrEnum):
    """The writer of an arm's program: this package, or a language model, whose programs run in a sandbox only."""

    PACKAGE = "package"
    LANGUAGE_MODEL = "language_model"


class Operator(StrEnum):
    """The way in which an arm was derived from its parents.

    DRAFT is a new idea, and its parent is the baseline. IMPROVE changes its parent for a better score. DEBUG mends a
    parent that failed. COMBINE joins the changes of two parents. ABLATE takes one part of its parent away. TUNE changes
    settings of its parent alone. REPLICATE repeats an arm of another study.
    """

    DRAFT = "draft"
    IMPROVE = "improve"
    DEBUG = "debug"
    COMBINE = "combine"
    ABLATE = "ablate"
    TUNE = "tune"
    REPLICATE = "replicate"


class NoteKind(StrEnum):
    """The kind of an entry in the notebook of a study.

    HYPOTHESIS and OUTCOME are a prediction and what became of it. REASON is why a plan or a decision was made. READING
    is what the planner makes of results. LESSON is what it wants to remember. TRIED and FAILED are arms, with their
    scores or with why they have none. OBJECTION is what a reviewer says about an arm.
    """

    HYPOTHESIS = "hypothesis"
    OUTCOME = "outcome"
    REASON = "reason"
    READING = "reading"
    LESSON = "lesson"
    TRIED = "tried"
    FAILED = "failed"
    OBJECTION = "objection"


TOOL = "tool:"
"""What the node of a tool request begins with; such a row asks the planner nothing."""


class QuestionStatus(StrEnum):
    """The status of a question to an external planner.

    OPEN waits for an answer. ANSWERED has one that the study has not read yet. ACCEPTED was answered. EXPIRED got no
    answer in time, or its study asks no more. A refused answer makes a question OPEN again, with the objection.
    """

    OPEN = "open"
    ANSWERED = "answered"
    ACCEPTED = "accepted"
    EXPIRED = "expired"


class RunStatus(StrEnum):
    """The status of a run; `RUN_MOVES` holds the legal moves."""

    PLANNED = "planned"
    LAUNCHING = "launching"
    RUNNING = "running"
    EVALUATING = "evaluating"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        return not RUN_MOVES[self]


RUN_MOVES: Mapping[RunStatus, frozenset[RunStatus]] = {
    # A launch that a crash cut short before the server heard of it goes back to `planned`.
    RunStatus.PLANNED: frozenset({RunStatus.LAUNCHING, RunStatus.FAILED, RunStatus.STOPPED}),
    RunStatus.LAUNCHING: frozenset({RunStatus.PLANNED, RunStatus.RUNNING, RunStatus.FAILED, RunStatus.STOPPED}),
    RunStatus.RUNNING: frozenset({RunStatus.EVALUATING, RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED}),
    RunStatus.EVALUATING: frozenset({RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED}),
    RunStatus.FINISHED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.STOPPED: frozenset(),
}


IN_MEDIAN_PAIR = "in the median pair of runs"
"""What a verdict is about: a run of one arm beats a run of the other more often than not. The means may be equal."""


IN_MEAN = "in the mean"
"""What a verdict is about where runs are compared by their spread, or where the question is for equality."""


class Verdict(StrEnum):
    """The result of the charter's rule for one arm against the baseline.

    KEEP: the arm is better, by enough to matter. WORSE: the arm is worse. NO_BETTER: an improvement that matters is
    ruled out. INCONCLUSIVE: the data decide nothing. A planner never chooses a verdict.

    A question for equality has two verdicts of its own. EQUAL: a difference of the margin is ruled out. DIFFERENT: the
    difference is larger than the margin.

    A verdict is about the median pair of runs, and says so wherever it is a headline: `Finding.about`.
    """

    KEEP = "keep"
    WORSE = "worse"
    NO_BETTER = "no better"
    EQUAL = "equal"
    DIFFERENT = "different"
    INCONCLUSIVE = "inconclusive"

    @property
    def is_open(self) -> bool:
        """True if the verdict decides nothing."""
        return self is Verdict.INCONCLUSIVE

    def about(self, what: str) -> str:
        """Return the verdict in words with what it is about; one that decides nothing is about nothing."""
        return self.value if self is Verdict.INCONCLUSIVE else f"{self.value} ({what})"


class FindingKind(StrEnum):
    """The kind of a finding, in the order in which kinds are shown.

    COMPARISON is an arm against the baseline, judged: the verdict says whether it is an effect or a null. PREDICTION is
    a hypothesis beside what happened. SUSPECT is an arm that its planner does not trust, and DISQUALIFIED one that is
    out of the ranking, both with the reason. LESSON is what a planner wanted to remember. EXPLORED is an arm with short
    runs of few seeds, which nothing confirmed.
    """

    COMPARISON = "comparison"
    PREDICTION = "prediction"
    SUSPECT = "suspect"
    DISQUALIFIED = "disqualified"
    LESSON = "lesson"
    EXPLORED = "explored"


class Outcome(StrEnum):
    """The result for a hypothesis that states a contrast."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class BudgetKind(StrEnum):
    """A kind of budget; the value names its unit.

    MONEY is what machines and language model cost by the prices of a study, in their currency.
    """

    WALL_CLOCK_S = "wall_clock_s"
    WORKING_S = "working_s"
    GPU_HOURS = "gpu_hours"
    RUNS = "runs"
    LLM_TOKENS = "llm_tokens"
    COST_USD = "cost_usd"
    MONEY = "money"


class EpisodeOrder(StrEnum):
    """The order of the episodes that a search finds."""

    NEWEST = "newest step"
    OLDEST = "oldest step"
    HIGHEST = "highest reward"
    LOWEST = "lowest reward"
