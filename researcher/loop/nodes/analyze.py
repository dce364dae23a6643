"""Analyze: the judge compares the scores of a plan with a claim; an exploring plan is only described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from researcher.analysis import Analysis
from researcher.charter import Charter
from researcher.judge import Family, judge
from researcher.loop.deps import Deps, ResearchState
from researcher.memory.settlement import record_verdicts, settle
from researcher.plan import Plan, Stage
from researcher.record.log import OUT, Notebook, describe_out
from researcher.record.scores import StudyScores, choose_for_plan, find_excluded, read_scores
from researcher.search.record import describe_round, read_tree


def analyze(deps: Deps, state: ResearchState) -> ResearchState:
    charter, iteration = deps.log.charter(), state["iteration"]
    excluded = find_excluded(deps.store, deps.study_id, until=iteration)
    planned = deps.log.find_plan(iteration)
    assert planned is not None, "the plan node has written it"
    if planned.stage is Stage.EXPLORE:
        analysis = _describe(deps, charter, iteration)
    else:
        analysis = judge_study(deps, charter, iteration)
    _note_excluded(deps, excluded)
    analyses = (*deps.log.history().analyses, analysis)
    record_verdicts(deps.store, deps.study_id, charter, analyses, iteration, excluded)
    Notebook(deps.store, deps.study_id).note_results(charter, planned, analysis)
    deps.log.write_analysis(iteration, analysis, _headline(analysis))
    settle(deps.log, iteration)
    return state


def _note_excluded(deps: Deps, excluded: Mapping[str, str]) -> None:
    """Log each arm that is out once: planners and people see the events of a study."""
    known = {event.message for event in deps.store.list_events(deps.study_id, kind=OUT, limit=None)}
    for arm, reason in excluded.items():
        if (message := describe_out(arm, reason)) not in known:
            deps.log.warn(OUT, message)


def _describe(deps: Deps, charter: Charter, iteration: int) -> Analysis:
    """Return the scores of the explored arms; comparisons are those of an earlier claim."""
    tree = read_tree(deps.store, deps.study_id, charter, until=iteration)
    earlier = deps.log.find_analysis(iteration - 1)
    excluded = find_excluded(deps.store, deps.study_id, until=iteration)
    return describe_round(charter, tree, () if earlier is None else earlier.comparisons, excluded)


def judge_study(deps: Deps, charter: Charter, iteration: int) -> Analysis:
    """Return the comparisons of the plan of this iteration; those of other arms come from earlier analyses."""
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
        find_excluded(deps.store, deps.study_id, until=iteration),
    )


def family_of(plans: Sequence[Plan], scores: StudyScores, charter: Charter) -> Family:
    """Return the family of comparisons of the last plan, which stays fixed whatever happens to its arms."""
    *before, plan = plans
    earlier = [each for each in before if each.stage is Stage.CLAIM]
    names = {arm.name for arm in plan.arms}
    related = [each for each in earlier if plan.pools_runs and names & _compared(each, charter)]
    return Family(
        iteration=plan.iteration,
        runs=choose_for_plan(plan, earlier, scores.runs),
        size=max(len(_compared(each, charter)) for each in (*related, plan)),
        claim=plan.claim,
        primary=plan.primary,
        contrasts={
            hypothesis_key(plan.iteration, index): item.contrast
            for index, item in enumerate(plan.hypotheses)
            if item.contrast is not None
        },
        missing=choose_for_plan(plan, earlier, scores.missing),
    )


def hypothesis_key(iteration: int, index: int) -> str:
    """Return the name of a plan's hypothesis in the database."""
    return f"h{iteration}.{index}"


def _compared(plan: Plan, charter: Charter) -> set[str]:
    return {arm.name for arm in plan.arms} - {charter.baseline}


def _headline(analysis: Analysis) -> str:
    means = {item.arm: item.mean for item in analysis.arms}
    ranked = ", ".join(f"{arm} {means[arm]:.3f}" for arm in analysis.ranking)
    what = "Explored so far" if analysis.stage is Stage.EXPLORE else "Ranking"
    return f"{what}: {ranked or 'no arm has a score'}."
