"""Analyze: the scores of all arms so far go to the judge; what it says becomes findings."""

from __future__ import annotations

from experiments_db import Evaluation, Experiment, ExperimentStatus, Verdict
from researcher.execution.runs import TrialState, list_all_trials
from researcher.judge import judge
from researcher.learning_curves import curve_of, judged_score
from researcher.loop.deps import Deps
from researcher.loop.state import ResearchState
from researcher.study.log import finite
from researcher.types import Analysis, Charter, Comparison

METHOD = "paired t interval over seeds, Holm-corrected"


def analyze(deps: Deps, state: ResearchState) -> ResearchState:
    charter = deps.log.charter()
    analysis = judge_study(deps, charter)
    experiments = {item.name: item for item in deps.store.list_experiments(deps.study_id)}
    for comparison in analysis.comparisons:
        _record(deps, charter, comparison, experiments, state["iteration"])
    _judge_hypotheses(deps, analysis, experiments)
    deps.log.write_analysis(state["iteration"], analysis, _headline(analysis))
    return state


def judge_study(deps: Deps, charter: Charter) -> Analysis:
    """Over every arm of the study, whichever plan it came from: the correction is over all comparisons."""
    experiments = deps.store.list_experiments(deps.study_id)
    scores: dict[str, dict[int, float]] = {item.name: {} for item in experiments}
    base: dict[str, dict[int, float]] = {item.name: {} for item in experiments}
    runs: dict[str, dict[int, str]] = {item.name: {} for item in experiments}
    failed: dict[str, tuple[str, ...]] = {
        item.name: (item.note or "rejected by check",)
        for item in experiments
        if item.status is ExperimentStatus.INVALID
    }
    measured: dict[str, list[Evaluation]] = {}
    for item in deps.store.list_evaluations(study_id=deps.study_id, split=charter.search_split):
        measured.setdefault(item.run_id, []).append(item)
    for trial in list_all_trials(deps.store, deps.study_id):
        arm = trial.experiment.name
        if trial.finished is not None:
            curve = curve_of(measured[trial.finished.id], charter.search_split)
            scores[arm][trial.seed] = judged_score(curve, charter.judged_by)
            base[arm][trial.seed] = curve[0].mean
            runs[arm][trial.seed] = trial.finished.id
        elif trial.state is TrialState.GIVEN_UP:
            failed[arm] = (*failed.get(arm, ()), f"seed {trial.seed}: {trial.failure}")
    return judge(charter, scores, base, runs, failed)


def _record(
    deps: Deps, charter: Charter, comparison: Comparison, experiments: dict[str, Experiment], iteration: int
) -> None:
    arm = experiments[comparison.arm]
    baseline = experiments.get(comparison.baseline)
    deps.store.record_finding(
        deps.study_id,
        iteration=iteration,
        experiment_id=arm.id,
        baseline_id=baseline.id if baseline else None,
        hypothesis_id=arm.hypothesis_id,
        metric=charter.metric,
        split=charter.search_split,
        effect=finite(comparison.difference),
        ci_low=finite(comparison.ci_low),
        ci_high=finite(comparison.ci_high),
        confidence=1 - charter.rule.alpha,
        p_value=finite(comparison.p),
        p_adjusted=finite(comparison.p_adjusted),
        verdict=Verdict(comparison.verdict.value),
        method=METHOD,
        run_ids=comparison.run_ids,
        summary=_summarize(charter, comparison),
        details={"seeds": list(comparison.seeds)},
    )


def _summarize(charter: Charter, comparison: Comparison) -> str:
    if finite(comparison.difference) is None:
        return f"{comparison.arm} could not be compared with {comparison.baseline} on {charter.task}."
    return (
        f"{comparison.arm} against {comparison.baseline} on {charter.task}: {comparison.difference:+.3f} "
        f"held-out reward over {len(comparison.seeds)} seeds, {comparison.verdict.value}."
    )


def _judge_hypotheses(deps: Deps, analysis: Analysis, experiments: dict[str, Experiment]) -> None:
    """A hypothesis is kept with its best arm, rejected once all its arms are, and open in between."""
    by_hypothesis: dict[str, list[Comparison]] = {}
    for comparison in analysis.comparisons:
        hypothesis = experiments[comparison.arm].hypothesis_id
        if hypothesis is not None:
            by_hypothesis.setdefault(hypothesis, []).append(comparison)
    for hypothesis, comparisons in by_hypothesis.items():
        found = {comparison.verdict.value for comparison in comparisons}
        order = (Verdict.KEEP, Verdict.INCONCLUSIVE, Verdict.REJECT)
        verdict = next(candidate for candidate in order if candidate.value in found)
        arms = ", ".join(f"{item.arm}: {item.verdict.value}" for item in comparisons)
        deps.store.judge_hypothesis(hypothesis, verdict, arms)


def _headline(analysis: Analysis) -> str:
    means = {item.arm: item.mean for item in analysis.arms}
    ranked = ", ".join(f"{arm} {means[arm]:.3f}" for arm in analysis.ranking)
    return f"Ranking: {ranked or 'no arm has a score'}."
