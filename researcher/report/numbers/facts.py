"""The facts of a report as numbers and records, read only from the database.

Place in the flow: everything that states a result reads these facts: the report with its figures and tables, the answer
on the terminal, the check of a planner's claims. counts.py counts the runs. This module formats nothing and decides
nothing: verdicts and intervals come from the judge's newest analysis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import nan
from statistics import fmean

from experiments_db import (
    BudgetKind,
    EvaluationSummary,
    Event,
    Experiment,
    ExperimentStatus,
    ExperimentStore,
    LLMUsage,
    Run,
    RunStatus,
    Severity,
    StoredDecision,
    StoredHypothesis,
    Study,
    Verdict,
    hash_json,
)
from researcher.analysis import Analysis, ArmSummary, Comparison, JudgedContrast
from researcher.base_scores import MEASURED_ON
from researcher.charter import Charter
from researcher.errors import StudyNotFound
from researcher.evaluator import BASE, FINAL, TEST
from researcher.execution.early_stopping import REWARD, SUCCESS
from researcher.judge import Runs, summarize_arm
from researcher.judge.contrasts import rule_out_contrast
from researcher.judge.learning_curves import ScoredStep, curve_of
from researcher.plan import Relation, SampleSize
from researcher.report.numbers.amounts import Amounts, gather_amounts
from researcher.report.numbers.counts import RunCounts, list_outcomes
from researcher.report.numbers.judged_arms import (
    compare_tested_arms,
    find_contradicted,
    judge_arms,
)
from researcher.report.numbers.mean_curves import with_curves
from researcher.report.numbers.seeds_needed import SeedsNeeded, estimate_seeds
from researcher.study.costs.arms import ArmCost, cost_flags, gather_costs
from researcher.study.exclusions import find_excluded
from researcher.study.log import JUDGED, StudyLog, analysis_from_json, charter_from_json
from researcher.study.scores import read_scores, read_test_scores

MAX_EVENTS = 10_000

Curve = tuple[tuple[int, float], ...]
"""Pairs of step and value, in the order of steps, without values that are not finite."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One training of a run with the evaluator's scores; None if it was not measured.

    `counts` is whether its final score is in the study's means. `value` is the value of its run there, however the run
    ended; None if another training of the run counts.
    """

    run: Run
    arm: str
    base: float | None
    final: float | None
    test: float | None
    counts: bool
    config_hash: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """The facts of one arm.

    `search` are its scores on the search split, and `base` are those before training. `test` are its scores on the
    test split; None unless the split was opened for this arm. `held_out` are the scores of its runs by step.
    `amounts` is what its runs trained with, and `counts` is how they ended. `curves` are the training rewards and
    `solved` the success rates of its batches, including those of runs that failed by their own doing.

    `comparison` with the baseline is that of the newest analysis. `compared_means` are the means of the arm and of the
    baseline over the compared runs; NaN if the values of those runs have changed since.

    `flags` are warnings about the arm's `cost`. `disqualified` is the reason for which a planner ruled the arm out;
    empty if none did.
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
    def code_hash(self) -> str:
        return sha256(self.experiment.program_code.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """The facts of a study.

    `arms` are ranked, best first, with unranked arms last. `contrasts` are the judged hypotheses. `needed` is the
    number of runs that would decide the open arms. `base_measured` has the number of measured scores before training,
    and the number of runs that use them. `evaluators` are the hashes of how scores were measured. `digest` is that of
    the rows; None before the end of the study.

    `test_purpose` is the reason for opening the test split. `test_comparisons` compares the arms with scores on that
    split with the baseline, and the two best with each other. `contradicted` names the best kept arm if the test
    split speaks against it.

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
    evaluators: tuple[str, ...]
    environments: tuple[Mapping[str, str], ...]
    digest: str | None
    sample_size: SampleSize | None = None
    contrasts: tuple[JudgedContrast, ...] = ()
    test_comparisons: tuple[Comparison, ...] = ()
    needed: SeedsNeeded | None = None
    base_measured: tuple[int, int] = (0, 0)
    contradicted: str | None = None
    at_decisions: Mapping[int, StudyFacts] = field(default_factory=dict[int, "StudyFacts"])

    @property
    def baseline(self) -> ArmFacts | None:
        return next((arm for arm in self.arms if arm.name == self.charter.baseline), None)

    @property
    def ranked(self) -> tuple[ArmFacts, ...]:
        """The arms with scores that nobody ruled out, best first."""
        return tuple(arm for arm in self.arms if arm.has_rank)

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
        return tuple(item for item in self.runs if item.run.status in (RunStatus.FAILED, RunStatus.STOPPED))

    @property
    def rejected_arms(self) -> tuple[ArmFacts, ...]:
        return tuple(arm for arm in self.arms if arm.experiment.status is ExperimentStatus.INVALID)

    @property
    def is_best_asked(self) -> bool:
        """True if the question is for the best of several arms, and not whether one is better than another."""
        is_claimed = any(item.contrast.relation is Relation.BEST for item in self.contrasts)
        return is_claimed or len(self.arms) - len(self.rejected_arms) > 2


def gather(store: ExperimentStore, study_id: str) -> StudyFacts:
    """Return the facts of a study.

    Raises StudyNotFound for a study without a charter and RecordNotFound for no study.
    """
    study = store.get_study(study_id)
    stored = store.find_charter(study_id)
    if stored is None:
        raise StudyNotFound(f"study {study_id} has no charter yet, so there is nothing to report")
    charter = charter_from_json(stored.document)
    log = StudyLog(store, study_id)
    history = log.history()
    search = read_scores(store, study_id, charter).runs
    runs = _gather_runs(store, study_id, charter, search)
    arms = _gather_arms(store, study_id, charter, runs, search)
    ruled_out = find_excluded(store, study_id)
    arms = judge_arms(arms, charter, history.analyses[-1] if history.analyses else None, ruled_out)
    bases = store.list_evaluations(study_id=study_id, phase=BASE, split=charter.search_split)
    test_comparisons = compare_tested_arms(store, study_id, charter, arms)
    ended = store.find_digest(study_id)
    facts = StudyFacts(
        study=study,
        charter=charter,
        charter_hash=stored.content_hash,
        frozen_at=stored.created_at,
        test_purpose=stored.test_opened_for,
        arms=arms,
        hypotheses=tuple(store.list_hypotheses(study_id)),
        decisions=tuple(store.list_decisions(study_id)),
        warnings=tuple(store.list_events(study_id, min_severity=Severity.WARNING, limit=MAX_EVENTS)),
        used=store.sum_budget(study_id),
        usage=store.sum_llm_usage(study_id),
        evaluators=tuple(
            dict.fromkeys(
                f"{item.split}: {item.evaluator_hash}" for item in store.list_evaluation_summaries(study_id=study_id)
            )
        ),
        environments=_environments(runs),
        digest=None if ended is None else ended.sha256,
        sample_size=next((plan.sample_size for plan in history.plans if plan.sample_size is not None), None),
        contrasts=tuple(
            rule_out_contrast(item, ruled_out) for analysis in history.analyses for item in analysis.contrasts
        ),
        test_comparisons=test_comparisons,
        needed=estimate_seeds(charter, search, [arm.name for arm in arms if arm.is_open]),
        base_measured=(sum(MEASURED_ON not in item.details for item in bases), len(bases)),
        contradicted=find_contradicted(charter, arms, test_comparisons),
    )
    earlier: dict[int, StudyFacts] = {}
    for decision in facts.decisions:
        judged = decision.details.get(JUDGED)
        analysis = log.find_analysis(decision.iteration) if judged is None else analysis_from_json(judged)
        if analysis is not None:
            out = find_excluded(store, study_id, until=decision.iteration - 1)
            earlier[decision.iteration] = _at_decision(facts, decision, analysis, search, out)
    return replace(facts, at_decisions=earlier)


def _at_decision(
    facts: StudyFacts,
    decision: StoredDecision,
    analysis: Analysis,
    scored: Mapping[str, Runs],
    ruled_out: Mapping[str, str],
) -> StudyFacts:
    """Return the facts at a decision, before the test split was opened."""
    seeds = {item.arm: item.scores.keys() for item in analysis.arms}
    arms: list[ArmFacts] = []
    for arm in facts.arms:
        if arm.experiment.iteration > decision.iteration:
            continue
        search = {seed: run for seed, run in scored[arm.name].items() if seed in seeds.get(arm.name, ())}
        runs = tuple(item for item in arm.runs if item.run.created_at <= decision.created_at)
        arms.append(
            replace(
                arm,
                search=summarize_arm(arm.name, search, facts.charter),
                base=_summarize_base(arm.name, search, facts.charter),
                test=None,
                runs=runs,
                counts=RunCounts(list_outcomes(arm.experiment, [item.run for item in runs], search)),
            )
        )
    return replace(
        facts, arms=judge_arms(arms, facts.charter, analysis, ruled_out), test_comparisons=(), contradicted=None
    )


def _gather_runs(
    store: ExperimentStore, study_id: str, charter: Charter, search: Mapping[str, Runs]
) -> dict[str, list[RunFacts]]:
    """Return the runs that claims rest on by experiment id, in the order of seeds and attempts."""
    splits = {BASE: charter.search_split, FINAL: charter.search_split, TEST: charter.test_split}
    scores = {
        (item.run_id, item.phase): item.mean
        for item in store.list_evaluation_summaries(study_id=study_id)
        if splits.get(item.phase) == item.split
    }
    names = {experiment.id: experiment.name for experiment in store.list_experiments(study_id)}
    values = {run.run_id: run.score for runs in search.values() for run in runs.values()}
    grouped: dict[str, list[RunFacts]] = defaultdict(list)
    claiming = (run for run in store.list_runs(study_id=study_id) if not run.rung)
    for run in sorted(claiming, key=lambda run: (run.seed, run.attempt)):
        final = scores.get((run.id, FINAL))
        earlier = [item.run.seed for item in grouped[run.experiment_id] if item.counts]
        grouped[run.experiment_id].append(
            RunFacts(
                run=run,
                arm=names[run.experiment_id],
                base=scores.get((run.id, BASE)),
                final=final,
                test=scores.get((run.id, TEST)),
                counts=run.status is RunStatus.FINISHED and final is not None and run.seed not in earlier,
                config_hash=hash_json(run.job),
                value=values.get(run.id),
            )
        )
    return grouped


def _gather_arms(
    store: ExperimentStore,
    study_id: str,
    charter: Charter,
    runs: Mapping[str, list[RunFacts]],
    search: Mapping[str, Runs],
) -> tuple[ArmFacts, ...]:
    test = read_test_scores(store, study_id, charter)
    costs = gather_costs(store, study_id)
    against = costs.get(charter.baseline, ArmCost())
    return tuple(
        _gather_arm(
            store,
            charter,
            experiment,
            tuple(runs.get(experiment.id, ())),
            search[experiment.name],
            test.get(experiment.name),
            costs.get(experiment.name, ArmCost()),
            against,
        )
        for experiment in store.list_experiments(study_id)
    )


def _gather_arm(
    store: ExperimentStore,
    charter: Charter,
    experiment: Experiment,
    runs: tuple[RunFacts, ...],
    search: Runs,
    test: Runs | None,
    cost: ArmCost,
    cost_of_baseline: ArmCost,
) -> ArmFacts:
    counted = [item.run.id for item in runs if item.counts]
    drawn = with_curves(runs)
    return ArmFacts(
        experiment=experiment,
        search=summarize_arm(experiment.name, search, charter),
        base=_summarize_base(experiment.name, search, charter),
        test=None if test is None else summarize_arm(experiment.name, test, charter.of_scores),
        runs=runs,
        curves=_gather_curves(store, drawn, REWARD),
        held_out=_gather_held_out(store, counted, charter),
        amounts=gather_amounts(store, counted),
        solved=_gather_curves(store, drawn, SUCCESS),
        counts=RunCounts(list_outcomes(experiment, [item.run for item in runs], search)),
        cost=cost,
        flags=cost_flags(cost, cost_of_baseline),
    )


def _summarize_base(arm: str, search: Runs, charter: Charter) -> ArmSummary:
    """Return the summary of the arm's scores before training."""
    untrained = {seed: replace(run, score=run.base, failure="") for seed, run in search.items() if run.base is not None}
    return summarize_arm(arm, untrained, charter.of_scores)


def _gather_held_out(store: ExperimentStore, run_ids: list[str], charter: Charter) -> dict[str, tuple[ScoredStep, ...]]:
    scored: dict[str, list[EvaluationSummary]] = defaultdict(list)
    for item in store.list_evaluation_summaries(run_ids=run_ids, split=charter.search_split) if run_ids else ():
        scored[item.run_id].append(item)
    return {run_id: curve_of(items, charter.search_split, charter.metric_range) for run_id, items in scored.items()}


def _gather_curves(store: ExperimentStore, run_ids: list[str], name: str) -> dict[str, Curve]:
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for point in store.list_metrics(run_ids, names=[name]):
        if point.value is not None:
            points[point.run_id].append((point.step, point.value))
    return {run_id: tuple(curve) for run_id, curve in points.items()}


def _environments(runs: Mapping[str, list[RunFacts]]) -> tuple[Mapping[str, str], ...]:
    distinct = {
        hash_json(item.run.environment): item.run.environment
        for items in runs.values()
        for item in items
        if item.run.environment
    }
    return tuple({str(name): str(value) for name, value in found.items()} for found in distinct.values())
