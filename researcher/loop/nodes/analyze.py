"""Analyze: the scores of the plan go to the judge; what it says becomes findings and verdicts on hypotheses."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from experiments_db import Experiment, Verdict
from researcher.judge.contrasts import rule_out_contrast
from researcher.judge.judgement import Family, judge, rule_out
from researcher.loop.deps import Deps
from researcher.loop.state import ResearchState
from researcher.study.log import finite
from researcher.study.scores import StudyScores, choose_for_plan, read_scores
from researcher.types import Analysis, Charter, Comparison, Plan

METHOD = "Welch's t over seeds with the variance of equal arms, Holm-corrected"
EVALUATION_ALONE = "evaluation noise alone, one run per arm"


def analyze(deps: Deps, state: ResearchState) -> ResearchState:
    charter, iteration = deps.log.charter(), state["iteration"]
    analysis = judge_study(deps, charter, iteration)
    analyses, out = (*deps.log.history().analyses, analysis), deps.log.disqualified(until=iteration)
    experiments = {item.name: item for item in deps.store.list_experiments(deps.study_id)}
    for comparison in {(item.arm, item.iteration): item for each in analyses for item in each.comparisons}.values():
        # The others stand as an earlier plan left them.
        if comparison.iteration == iteration or comparison.arm in out:
            _record(deps, charter, rule_out(comparison, out), experiments)
    _judge_hypotheses(deps, analyses, iteration, out)
    deps.log.write_analysis(iteration, analysis, _headline(analysis))
    return state


def judge_study(deps: Deps, charter: Charter, iteration: int) -> Analysis:
    """The comparisons of the plan of this iteration; those of other arms are taken from the analyses before it."""
    history = deps.log.history()
    plans = [plan for plan in history.plans if plan.iteration <= iteration]
    scores = read_scores(deps.store, deps.study_id, charter)
    earlier = deps.log.find_analysis(iteration - 1)
    return judge(
        charter,
        scores.runs,
        family_of(plans, scores, charter),
        () if earlier is None else earlier.comparisons,
        scores.reasons,
        deps.log.disqualified(until=iteration),
    )


def family_of(plans: Sequence[Plan], scores: StudyScores, charter: Charter) -> Family:
    """The comparisons of the last of the plans, fixed by it whatever has become of its arms."""
    *earlier, plan = plans
    names = {arm.name for arm in plan.arms}
    related = [each for each in earlier if plan.pools_runs and names & _compared(each, charter)]
    return Family(
        iteration=plan.iteration,
        runs=choose_for_plan(plan, earlier, scores.runs),
        size=max(len(_compared(each, charter)) for each in (*related, plan)),
        contrasts={
            hypothesis_key(plan.iteration, index): item.contrast
            for index, item in enumerate(plan.hypotheses)
            if item.contrast is not None
        },
        missing=choose_for_plan(plan, earlier, scores.missing),
    )


def hypothesis_key(iteration: int, index: int) -> str:
    """The name of a plan's hypothesis in the database."""
    return f"h{iteration}.{index}"


def _compared(plan: Plan, charter: Charter) -> set[str]:
    return {arm.name for arm in plan.arms} - {charter.baseline}


def _record(deps: Deps, charter: Charter, comparison: Comparison, experiments: dict[str, Experiment]) -> None:
    arm = experiments[comparison.arm]
    baseline = experiments.get(comparison.baseline)
    deps.store.record_finding(
        deps.study_id,
        iteration=comparison.iteration,
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
        method=EVALUATION_ALONE if comparison.basis == "evaluation" else METHOD,
        run_ids=comparison.run_ids,
        summary=_summarize(charter, comparison),
        details={
            "seeds": list(comparison.seeds),
            "note": comparison.note,
            "failures": comparison.failures,
            "baseline_failures": comparison.baseline_failures,
            "missing": len(comparison.missing),
            "retries": len(comparison.retries),
            "correlation": finite(comparison.correlation),
        },
    )


def _summarize(charter: Charter, comparison: Comparison) -> str:
    if math.isnan(comparison.difference):
        return f"{comparison.arm} could not be compared with {comparison.baseline} on {charter.task}."
    note = f" ({comparison.note})" if comparison.note else ""
    return (
        f"{comparison.arm} against {comparison.baseline} on {charter.task}: {comparison.difference:+.3f} "
        f"held-out reward over {len(comparison.seeds)} seeds, {comparison.verdict.value}{note}."
    )


def _judge_hypotheses(deps: Deps, analyses: Sequence[Analysis], iteration: int, out: Collection[str]) -> None:
    """By the contrast that each states; one that states none is not decided, whatever became of its arms. Those of
    earlier plans stand, but for what they say of arms that are out."""
    judged = {item.key: item for analysis in analyses for item in analysis.contrasts}
    for hypothesis in deps.store.list_hypotheses(deps.study_id):
        found = judged.get(hypothesis.key)
        outcome = None if found is None else rule_out_contrast(found, out)
        if hypothesis.iteration != iteration and outcome is found:
            continue
        if outcome is None:
            deps.store.judge_hypothesis(hypothesis.id, Verdict.UNDECIDED, "it states no contrast that can be judged")
        else:
            deps.store.judge_hypothesis(hypothesis.id, Verdict(outcome.outcome.value), outcome.reason)


def _headline(analysis: Analysis) -> str:
    means = {item.arm: item.mean for item in analysis.arms}
    ranked = ", ".join(f"{arm} {means[arm]:.3f}" for arm in analysis.ranking)
    return f"Ranking: {ranked or 'no arm has a score'}."
