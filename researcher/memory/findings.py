"""The findings on arms and the verdicts on hypotheses, stored for people and for later studies.

Place in the flow: the analyze node stores them once the judge has decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments_db import Experiment, ExperimentStore, Outcome
from researcher.analysis import Analysis, Comparison
from researcher.charter import Charter
from researcher.judge.contrasts import rule_out_contrast
from researcher.judge.judgement import rule_out
from researcher.memory.recipe import make_recipe, recipe_to_json
from researcher.plan import Stage
from researcher.record.log import finite

METHOD = "Welch's t over seeds with the variance of equal arms, Holm-corrected"
EVALUATION_ALONE = "evaluation noise alone, one run per arm"


def record_verdicts(
    store: ExperimentStore,
    study_id: str,
    charter: Charter,
    analyses: Sequence[Analysis],
    iteration: int,
    ruled_out: Mapping[str, str],
) -> None:
    """Store the findings and verdicts of the last analysis, which is that of `iteration`.

    Earlier ones stay as they are, except those on arms in `ruled_out`, which gives the reasons by arm. The hypotheses
    of an exploring plan stay open.
    """
    arms = {item.name: item for item in store.list_experiments(study_id)}
    for comparison in {(item.arm, item.iteration): item for each in analyses for item in each.comparisons}.values():
        if comparison.iteration == iteration or comparison.arm in ruled_out:
            _record(store, charter, rule_out(comparison, ruled_out), arms)
    contrasts = {item.key: item for each in analyses for item in each.contrasts}
    for hypothesis in store.list_hypotheses(study_id):
        found = contrasts.get(hypothesis.key)
        judged = None if found is None else rule_out_contrast(found, ruled_out)
        if judged is None and analyses[-1].stage is Stage.EXPLORE:
            continue
        if hypothesis.iteration != iteration and judged is found:
            continue
        if judged is None:
            store.judge_hypothesis(hypothesis.id, Outcome.UNDECIDED, "it states no contrast that can be judged")
        else:
            store.judge_hypothesis(hypothesis.id, judged.outcome, judged.reason)


def _record(store: ExperimentStore, charter: Charter, comparison: Comparison, arms: Mapping[str, Experiment]) -> None:
    arm = arms[comparison.arm]
    baseline = arms.get(comparison.baseline)
    store.record_finding(
        arm.study_id,
        iteration=comparison.iteration,
        experiment_id=arm.id,
        baseline_id=baseline.id if baseline else None,
        hypothesis_id=arm.hypothesis_id,
        metric=charter.judged,
        split=charter.search_split,
        effect=finite(comparison.difference),
        ci_low=finite(comparison.ci_low),
        ci_high=finite(comparison.ci_high),
        confidence=1 - charter.rule.alpha,
        p_value=finite(comparison.p),
        p_adjusted=finite(comparison.p_adjusted),
        verdict=comparison.verdict,
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
        recipe=recipe_to_json(make_recipe(charter, arm, baseline, len(comparison.seeds))) if baseline else {},
    )


def _summarize(charter: Charter, comparison: Comparison) -> str:
    if math.isnan(comparison.difference):
        return f"{comparison.arm} could not be compared with {comparison.baseline} on {charter.environment_name}."
    note = f" ({comparison.note})" if comparison.note else ""
    return (
        f"{comparison.arm} against {comparison.baseline} on {charter.environment_name}: {comparison.difference:+.3f} "
        f"held-out reward over {len(comparison.seeds)} seeds, {comparison.verdict.value}{note}."
    )
