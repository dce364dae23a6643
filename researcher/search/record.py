"""The tree of a study's exploration, from the database, and the description of its rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from experiments_db import TRAINING_SECONDS, EvaluationSummary, Experiment, ExperimentStatus, ExperimentStore, Run
from researcher.analysis import Analysis, ArmSummary, Comparison
from researcher.charter import Charter, SearchRules
from researcher.phases import BASE, ENDED_AT, FINAL
from researcher.plan import Stage
from researcher.record.log import plan_from_json
from researcher.record.runs import Trial, TrialState, list_all_trials, shares_at, total_steps
from researcher.record.scores import find_excluded
from researcher.search.kinds import find_parts
from researcher.search.rounds import EXPLORING_SEED
from researcher.tree import RungScore, SearchNode, SearchTree

Measured = Mapping[tuple[str, str], EvaluationSummary]
"""Scores by run and phase."""


def read_tree(store: ExperimentStore, study_id: str, charter: Charter, until: int | None = None) -> SearchTree:
    """Return the arms that were explored, the baseline first; empty for a study that explores nothing.

    Arms and runs of all iterations count, or those up to one.
    """
    rules = charter.search
    if rules is None:
        return SearchTree()
    plans = [plan_from_json(item.document) for item in store.list_plans(study_id)]
    explored = [plan for plan in plans if plan.stage is Stage.EXPLORE and (until is None or plan.iteration <= until)]
    rungs = {(arm, rung) for plan in explored for arm, rung in plan.rungs.items()}
    experiments = {item.id: item for item in store.list_experiments(study_id)}
    names = {item.id: item.name for item in experiments.values()}
    by_arm: dict[str, list[Trial]] = defaultdict(list)
    for trial in list_all_trials(store, study_id):
        if (trial.experiment.name, trial.rung) in rungs:
            by_arm[trial.experiment.name].append(trial)
    seconds = store.sum_metric([run.id for run in store.list_runs(study_id=study_id)], TRAINING_SECONDS)
    measured, excluded = _measured(store, study_id, charter), find_excluded(store, study_id, until)
    reader = _Reader(charter, rules, measured, names, excluded, seconds)
    baseline = next((item for item in experiments.values() if item.is_baseline), None)
    known = [item for item in experiments.values() if item.name in {arm for arm, _ in rungs}]
    ordered = sorted(known, key=lambda item: (not item.is_baseline, item.iteration))
    nodes = tuple(reader.read(item, by_arm[item.name], baseline) for item in ordered)
    seed = int(sha256(study_id.encode()).hexdigest()[:8], 16)
    return SearchTree(nodes, charter.of_scores.sign, seed)


@dataclass(frozen=True, slots=True)
class _Reader:
    """The parts of the record that nodes are made of; `names` are those of arms, `seconds` are spent in training."""

    charter: Charter
    rules: SearchRules
    measured: Measured
    names: Mapping[str, str]
    excluded: Mapping[str, str]
    seconds: Mapping[str, float]

    def read(self, arm: Experiment, trials: Sequence[Trial], baseline: Experiment | None) -> SearchNode:
        scores = [score for trial in trials for score in self._scores_of(trial)]
        parents = (arm.parent_id, arm.second_parent_id)
        return SearchNode(
            name=arm.name,
            parents=tuple(self.names[parent] for parent in parents if parent is not None),
            operator=arm.operator,
            levels=_levels_of(self.charter, arm),
            scores=tuple(sorted(scores, key=lambda score: score.share)),
            failure=self._failure_of(arm, trials),
            parts=() if baseline is None else tuple(find_parts(arm, baseline)),
        )

    def _scores_of(self, trial: Trial) -> Iterable[RungScore]:
        """Yield the score of a finished trial, once for each rung that ends at its step."""
        run = trial.finished
        final = None if run is None else self.measured.get((run.id, FINAL))
        if run is None or final is None:
            return
        base = self.measured.get((run.id, BASE))
        for share in shares_at(self.rules.rungs, total_steps(trial.experiment.job), trial.rung):
            yield RungScore(
                share=share,
                steps=int(run.external_ids.get(ENDED_AT, trial.rung)),
                score=final.mean,
                stderr=final.stderr,
                base=None if base is None else base.mean,
                seconds=self.seconds.get(run.id),
            )

    def _failure_of(self, arm: Experiment, trials: Sequence[Trial]) -> str:
        if arm.status is ExperimentStatus.INVALID:
            return arm.note or "rejected by check"
        if arm.name in self.excluded:
            return self.excluded[arm.name]
        for trial in trials:
            if trial.state is TrialState.GIVEN_UP:
                return trial.failure
            if trial.own_failure:
                return f"its training ended early: {trial.own_failure}"
        return ""


def _measured(store: ExperimentStore, study_id: str, charter: Charter) -> Measured:
    found = store.list_evaluation_summaries(study_id=study_id, split=charter.search_split)
    return {(item.run_id, item.phase): item for item in found}


def _levels_of(charter: Charter, arm: Experiment) -> dict[str, str]:
    """Return the level of each factor of the question; empty for an arm that has none of some factor's levels."""
    levels = {
        factor.name: level.name
        for factor in charter.asks.factors
        for level in factor.levels
        if level.factors.items() <= arm.factors.items()
    }
    return levels if len(levels) == len(charter.asks.factors) else {}


def find_explored_runs(store: ExperimentStore, study_id: str, arm: Experiment) -> tuple[Run, ...]:
    """Return the finished exploring runs of an arm, by rising rung."""
    finished = (trial.finished for trial in list_all_trials(store, study_id) if trial.rung)
    runs = [run for run in finished if run is not None and run.experiment_id == arm.id]
    return tuple(sorted(runs, key=lambda run: run.rung))


def describe_round(
    charter: Charter, tree: SearchTree, earlier: Sequence[Comparison] = (), excluded: Mapping[str, str] | None = None
) -> Analysis:
    """Return the ranking of the explored arms, with their scores at the highest rungs.

    An interval covers evaluation noise alone. `earlier` are the comparisons of an earlier claim, which stay as they
    were judged, except for arms that were `excluded` since.
    """
    # Imported here, because the judge loads a library of statistics.
    from researcher.judge.judgement import rule_out

    return Analysis(
        arms=tuple(_summarize(charter, node, node.last) for node in tree.nodes if node.last is not None),
        comparisons=tuple(rule_out(item, excluded or {}) for item in earlier),
        ranking=tuple(node.name for node in tree.ranked()),
        failed={node.name: (node.failure,) for node in tree.nodes if node.failure},
        stage=Stage.EXPLORE,
        explored=tree.nodes,
    )


def _summarize(charter: Charter, node: SearchNode, last: RungScore) -> ArmSummary:
    from scipy import special

    from researcher.judge.samples import within

    half_width = float(special.ndtri(1 - charter.rule.alpha / 2)) * last.stderr if last.stderr else math.nan
    low, high = last.score - half_width, last.score + half_width
    if charter.metric_range is not None:
        low, high = within(charter.metric_range, (low, high))
    return ArmSummary(
        arm=node.name,
        scores={EXPLORING_SEED: last.score},
        base_scores={} if last.base is None else {EXPLORING_SEED: last.base},
        mean=last.score,
        ci_low=low,
        ci_high=high,
        run_ids=(),
        half_width=half_width,
    )
