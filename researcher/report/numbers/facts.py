"""The facts of a report as numbers and records: everything that states a result reads these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import nan
from statistics import fmean

from experiments_db import (
    BudgetKind,
    Event,
    Experiment,
    ExperimentStatus,
    LLMUsage,
    Run,
    RunStatus,
    SearchArm,
    StoredDecision,
    StoredHypothesis,
    Study,
    Verdict,
)
from researcher.analysis import ArmSummary, Comparison, JudgedContrast
from researcher.charter import Charter
from researcher.judge.learning_curves import ScoredStep
from researcher.plan import Relation, SampleSize
from researcher.record.costs import ArmCost
from researcher.report.conversation import ShownConversation
from researcher.report.numbers.arms import SeedsNeeded, SeedsToDecide
from researcher.report.numbers.counts import RunCounts
from researcher.report.numbers.curves import Amounts
from researcher.report.numbers.planner_record import PlannerRecord
from researcher.report.numbers.search import ConfirmedSearch, Exploration

ENDED_WITHOUT_SCORE = (RunStatus.FAILED, RunStatus.STOPPED)
Curve = tuple[tuple[int, float], ...]
"""Pairs of step and value, in the order of steps, without values that are not finite."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One training of a run with the evaluator's scores; None if it was not measured.

    `counts` is whether its final score is in the study's means. `value` is the value of its run there, however the run
    ended; None if another training of the run counts. `with_plain` and `test_with_plain` are the final and the test
    score of its weights with the baseline's agent; None unless its arm has another agent.
    """

    run: Run
    arm: str
    base: float | None
    final: float | None
    test: float | None
    counts: bool
    config_hash: str
    value: float | None = None
    with_plain: float | None = None
    test_with_plain: float | None = None


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """The facts of one arm.

    `search` are its scores on the search split, and `base` are those before training. `test` are its scores on the
    test split; None unless the split was opened for this arm. `held_out` are the scores of its runs by step.
    `amounts` is what its runs trained with, and `counts` is how they ended. `curves` are the training rewards and
    `solved` the success rates of its batches, including those of runs that failed by their own doing.

    `comparison` with the baseline is that of the newest analysis. `compared_means` are the means of the arm and of the
    baseline over the compared runs; NaN if the values of those runs have changed since.

    `flags` are warnings about the arm's `cost`. `disqualified` is the reason for which the arm was ruled out; empty if
    it was not. `work_of_code` is what its code does of the model's work; empty if nothing. `is_accepted` is true if a
    person keeps it in all the same. `suspect` is why the planner does not trust it; empty if it does. `in_search` is
    the arm in the tree of experiments, with its manipulation check and a request of its agent.
    """

    experiment: Experiment
    search: ArmSummary
    base: ArmSummary
    test: ArmSummary | None
    runs: tuple[RunFacts, ...]
    curves: Mapping[str, Curve]
    held_out: Mapping[str, tuple[ScoredStep, ...]]
    amounts: Amounts
    solved: Mapping[str, Curve] = field(default_factory=dict[str, Curve])
    comparison: Comparison | None = None
    compared_means: tuple[float, float] = (nan, nan)
    counts: RunCounts = field(default_factory=RunCounts)
    cost: ArmCost = field(default_factory=ArmCost)
    flags: tuple[str, ...] = ()
    disqualified: str = ""
    work_of_code: str = ""
    is_accepted: bool = False
    suspect: str = ""
    in_search: SearchArm | None = None

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def verdict(self) -> str:
        """The verdict on the arm, in a word; empty if there is none."""
        if self.experiment.is_baseline:
            return "baseline"
        if self.disqualified:
            return "disqualified"
        return "" if self.comparison is None else self.comparison.verdict.value

    @property
    def is_kept(self) -> bool:
        return self.verdict == Verdict.KEEP

    @property
    def is_open(self) -> bool:
        """True if the arm was compared without a decision."""
        return self.verdict == Verdict.INCONCLUSIVE

    @property
    def has_rank(self) -> bool:
        """True if the arm has scores and nobody ruled it out."""
        return bool(self.search.scores) and not self.disqualified

    @property
    def final_mean(self) -> float:
        """The mean final score of its runs, whatever number they are judged by; NaN without scores."""
        finals = [item.final for item in self.runs if item.counts and item.final is not None]
        return fmean(finals) if finals else nan

    @property
    def mean_with_plain(self) -> float:
        """The mean final score of its weights with the baseline's agent, which may be its own; NaN without scores."""
        return _mean_of([(item.with_plain, item.final) for item in self.runs if item.counts])

    @property
    def test_mean_with_plain(self) -> float:
        """The mean score on the test split of its weights with the baseline's agent; NaN without scores."""
        return _mean_of([(item.test_with_plain, item.test) for item in self.runs if item.counts])

    @property
    def code_hash(self) -> str:
        return sha256(self.experiment.program_code.encode()).hexdigest()


def _mean_of(pairs: Sequence[tuple[float | None, float | None]]) -> float:
    """Return the mean of the first numbers, or of the second where no run has a first one; NaN without any."""
    firsts = [first for first, _ in pairs if first is not None]
    found = firsts or [second for _, second in pairs if second is not None]
    return fmean(found) if found else nan


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """The facts of a study.

    `arms` are those that the study makes claims about, ranked, best first, with unranked arms last. In an exploring
    study these are the arms of its confirmations; `exploration` has the others. `confirmation` is about the arm that
    exploration found, and `planner` is what planner and reviewers did and wrote.

    `contrasts` are the judged hypotheses. `needed` is the number of runs that would decide the open arms, and
    `to_decide` is that of the best of them by itself.
    `evaluators` are splits, each with the hash of how its scores were measured. `digest` is that of the rows; None
    before the end of the study.

    `test_purpose` is the reason for opening the test split. `test_comparisons` compares the arms with scores on that
    split with the baseline, and the two best with each other. `contradicted` names the best kept arm if the test
    split speaks against it.

    `conversation` shows one held-out task before and after training; None if no attempts at it were kept. `is_solving`
    means that every score is the share of the tasks that were solved.

    `is_of_exploration` means that the scores in these facts are exploring ones, as at the decision after a round.

    `at_decisions` maps each iteration to the facts at its decision, against which a planner's claims of that time are
    checked.
    """

    study: Study
    charter: Charter
    charter_hash: str
    frozen_at: float
    test_purpose: str | None
    arms: tuple[ArmFacts, ...]
    hypotheses: tuple[StoredHypothesis, ...]
    decisions: tuple[StoredDecision, ...]
    warnings: tuple[Event, ...]
    used: Mapping[BudgetKind, float]
    usage: LLMUsage
    evaluators: tuple[tuple[str, str], ...]
    environments: tuple[Mapping[str, str], ...]
    digest: str | None
    sample_size: SampleSize | None = None
    contrasts: tuple[JudgedContrast, ...] = ()
    test_comparisons: tuple[Comparison, ...] = ()
    needed: SeedsNeeded | None = None
    to_decide: SeedsToDecide | None = None
    contradicted: str | None = None
    exploration: Exploration | None = None
    confirmation: ConfirmedSearch | None = None
    planner: PlannerRecord = field(default_factory=PlannerRecord)
    is_of_exploration: bool = False
    conversation: ShownConversation | None = None
    is_solving: bool = False
    at_decisions: Mapping[int, StudyFacts] = field(default_factory=dict[int, "StudyFacts"])

    @property
    def baseline(self) -> ArmFacts | None:
        return next((arm for arm in self.arms if arm.name == self.charter.baseline), None)

    @property
    def ranked(self) -> tuple[ArmFacts, ...]:
        """The arms with scores that nobody ruled out, best first."""
        return tuple(arm for arm in self.arms if arm.has_rank)

    @property
    def candidates(self) -> tuple[ArmFacts, ...]:
        """The ranked arms that may be recommended: not those that only show what a part of the winner is worth."""
        ablated = {item.name for item in self.confirmation.ablations} if self.confirmation is not None else set[str]()
        return tuple(arm for arm in self.ranked if arm.name not in ablated)

    @property
    def has_other_agents(self) -> bool:
        """True if weights were also scored with the baseline's agent, because an arm has another one."""
        return any(item.with_plain is not None for item in self.runs)

    @property
    def winner(self) -> ArmFacts | None:
        """The arm that exploration found and that is to be confirmed."""
        name = None if self.confirmation is None else self.confirmation.winner
        return next((arm for arm in self.arms if arm.name == name), None)

    def ruled_out_gain(self, arm: str) -> float:
        """Return the gain that an arm does not reach if it is no better: the margin of its own hypothesis, if any."""
        others = () if self.confirmation is None else self.confirmation.others
        margins = [
            item.contrast.margin
            for item in self.contrasts
            if arm in others and item.contrast.rules_out_a_gain and item.contrast.arms == (arm,)
        ]
        return (margins[-1] if margins else 0.0) or self.charter.rule.min_effect

    @property
    def compared(self) -> tuple[ArmFacts, ...]:
        """The arms that were compared with the baseline, best first."""
        return tuple(arm for arm in self.arms if arm.comparison is not None)

    @property
    def runs(self) -> tuple[RunFacts, ...]:
        return tuple(run for arm in self.arms for run in arm.runs)

    @property
    def counts(self) -> RunCounts:
        return RunCounts(tuple(item for arm in self.arms for item in arm.counts.outcomes))

    @property
    def broken_trainings(self) -> tuple[RunFacts, ...]:
        """The trainings that ended without a score of their own."""
        return tuple(item for item in self.runs if item.run.status in ENDED_WITHOUT_SCORE)

    @property
    def rejected_arms(self) -> tuple[ArmFacts, ...]:
        return tuple(arm for arm in self.arms if arm.experiment.status is ExperimentStatus.INVALID)

    @property
    def is_best_asked(self) -> bool:
        """True if the question is for the best of several arms, and not whether one is better than another."""
        if self.exploration is not None:
            return False
        is_claimed = any(item.contrast.relation is Relation.BEST for item in self.contrasts)
        return is_claimed or len(self.arms) - len(self.rejected_arms) > 2
