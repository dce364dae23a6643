"""The reading of a study's facts from its database; runs of exploration are in none of an arm's numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from experiments_db import (
    ArmFailure,
    EvaluationSummary,
    ExperimentStore,
    RunStatus,
    SearchArm,
    Severity,
    hash_json,
    read_search_arms,
)
from researcher.analysis import Analysis
from researcher.charter import Charter
from researcher.errors import StudyNotFound
from researcher.judge import Runs, summarize_arm
from researcher.judge.contrasts import rule_out_contrast
from researcher.judge.learning_curves import ScoredStep, curve_of
from researcher.phases import BASE, FINAL, PLAIN_AGENT, TEST
from researcher.plan import Plan, Stage
from researcher.record.costs import ArmCost, cost_flags, gather_costs
from researcher.record.log import StudyLog, analysis_from_json, charter_from_json
from researcher.record.scores import (
    find_excluded,
    find_limits,
    find_suspects,
    find_work_of_code,
    read_scores,
    read_test_scores,
)
from researcher.report.conversation import ShownConversation, find_conversation
from researcher.report.numbers.arms import (
    SeedsToDecide,
    compare_tested_arms,
    estimate_seeds,
    facts_at_decisions,
    find_contradicted,
    find_seeds_to_decide,
    judge_arms,
    summarize_base,
)
from researcher.report.numbers.counts import RunCounts, list_outcomes
from researcher.report.numbers.curves import gather_amounts, with_curves
from researcher.report.numbers.facts import ArmFacts, Curve, RunFacts, StudyFacts
from researcher.report.numbers.planner_record import gather_planner_record
from researcher.report.numbers.search import gather_confirmation, gather_exploration
from swarm.guard import REWARD, SUCCESS

MAX_EVENTS = 10_000
ROUNDING = 1e-6


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
    ruled_out = find_excluded(store, study_id)
    tree = {arm.name: _without_excluded(arm, ruled_out) for arm in read_search_arms(store, study_id)}
    everything = tuple(_gather_arms(store, study_id, charter, runs, search, tree))
    analyses = {item.iteration: analysis_from_json(item.document) for item in store.list_analyses(study_id)}
    confirmation = gather_confirmation(charter, history.plans, analyses, search)
    claimed = _claimed(charter, everything, history.plans)
    arms = judge_arms(claimed, charter, _last_claim(history.plans, analyses), ruled_out)
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
                (item.split, item.evaluator_hash) for item in store.list_evaluation_summaries(study_id=study_id)
            )
        ),
        environments=_environments(store, study_id),
        digest=None if ended is None else ended.sha256,
        sample_size=next((plan.sample_size for plan in history.plans if plan.sample_size is not None), None),
        contrasts=tuple(
            rule_out_contrast(item, ruled_out) for analysis in analyses.values() for item in analysis.contrasts
        ),
        needed=estimate_seeds(charter, search, [arm.name for arm in arms if arm.is_open]),
        confirmation=confirmation,
        planner=gather_planner_record(store, study_id),
    )
    tested = compare_tested_arms(store, study_id, charter, arms)
    facts = replace(
        facts,
        test_comparisons=tested,
        contradicted=find_contradicted(charter, facts.candidates, tested),
        exploration=gather_exploration(
            charter,
            tuple(tree.values()),
            history.plans,
            facts.decisions,
            gather_costs(store, study_id, explores=True),
        ),
        conversation=_find_conversation(store, facts),
        is_solving=_is_solving(store, study_id),
    )
    facts = replace(facts, to_decide=_find_seeds_to_decide(store, facts, search))
    return replace(facts, at_decisions=facts_at_decisions(store, facts, everything, analyses, history.plans, search))


def _without_excluded(arm: SearchArm, ruled_out: Mapping[str, str]) -> SearchArm:
    """Return an arm that is out as a failed one, so that it leads nothing that was explored."""
    if arm.name not in ruled_out or arm.failure is not None:
        return arm
    return replace(arm, failure=ArmFailure.DISQUALIFIED, reason=ruled_out[arm.name])


def _find_seeds_to_decide(
    store: ExperimentStore, facts: StudyFacts, search: Mapping[str, Runs]
) -> SeedsToDecide | None:
    """Return what would decide about the best open arm."""
    wanted = [arm for arm in facts.candidates if arm.is_open]
    found = next((arm.comparison for arm in wanted if arm.comparison and isfinite(arm.comparison.difference)), None)
    if found is None:
        return None
    ids = {arm.name: arm.experiment.id for arm in wanted}
    findings = store.list_findings(study_id=facts.study.id, iteration=found.iteration)
    finding = next((item.id for item in findings if item.experiment_id == ids[found.arm]), "")
    return find_seeds_to_decide(facts.charter, search, found, finding) if finding else None


def _find_conversation(store: ExperimentStore, facts: StudyFacts) -> ShownConversation | None:
    """Return a conversation of the best arm, or else of the next one with kept attempts."""
    best = [] if facts.winner is None else [facts.winner]
    runs = [
        (arm.name, item.run)
        for arm in {arm.name: arm for arm in (*best, *facts.candidates)}.values()
        for item in sorted(arm.runs, key=lambda item: item.run.seed)
        if item.counts
    ]
    return find_conversation(store, runs, facts.charter.search_split, sign=facts.charter.of_scores.sign)


def _is_solving(store: ExperimentStore, study_id: str) -> bool:
    """Return whether each score is the share of its tasks that were solved."""
    scores = store.list_evaluation_summaries(study_id=study_id)
    return bool(scores) and all(abs(item.mean * item.episodes - item.successes) < ROUNDING for item in scores)


def _claimed(charter: Charter, arms: Iterable[ArmFacts], plans: Iterable[Plan]) -> tuple[ArmFacts, ...]:
    """Return the arms that the study makes claims about: those of its plans but for plans of exploration."""
    named = {arm.name for plan in plans if plan.stage is Stage.CLAIM for arm in plan.arms}
    return tuple(arm for arm in arms if charter.search is None or arm.name in named)


def _last_claim(plans: Sequence[Plan], analyses: Mapping[int, Analysis]) -> Analysis | None:
    """Return the newest analysis of a plan that makes claims."""
    claiming = analyses.keys() - {plan.iteration for plan in plans if plan.stage is Stage.EXPLORE}
    return analyses[max(claiming)] if claiming else None


def _gather_runs(
    store: ExperimentStore, study_id: str, charter: Charter, search: Mapping[str, Runs]
) -> dict[str, list[RunFacts]]:
    """Return the claiming runs by experiment id, in the order of seeds and attempts."""
    splits = {BASE: charter.search_split, FINAL: charter.search_split, TEST: charter.test_split}
    splits |= {PLAIN_AGENT[phase]: splits[phase] for phase in PLAIN_AGENT}
    scores = {
        (item.run_id, item.phase): item.mean
        for item in store.list_evaluation_summaries(study_id=study_id)
        if splits.get(item.phase) == item.split
    }
    names = {experiment.id: experiment.name for experiment in store.list_experiments(study_id)}
    values = {run.run_id: run.score for runs in search.values() for run in runs.values()}
    grouped: dict[str, list[RunFacts]] = defaultdict(list)
    claiming = [run for run in store.list_runs(study_id=study_id) if not run.rung]
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
                with_plain=scores.get((run.id, PLAIN_AGENT[FINAL])),
                test_with_plain=scores.get((run.id, PLAIN_AGENT[TEST])),
            )
        )
    return grouped


def _gather_arms(
    store: ExperimentStore,
    study_id: str,
    charter: Charter,
    runs: Mapping[str, list[RunFacts]],
    search: Mapping[str, Runs],
    tree: Mapping[str, SearchArm],
) -> Iterator[ArmFacts]:
    test = read_test_scores(store, study_id, charter)
    costs = gather_costs(store, study_id)
    accepted = store.get_study(study_id).settings.get("accept", ())
    suspects = find_suspects(store, study_id)
    for experiment in store.list_experiments(study_id):
        name, of_arm = experiment.name, runs.get(experiment.id, [])
        counted, drawn = [item.run.id for item in of_arm if item.counts], with_curves(of_arm)
        cost = costs.get(name, ArmCost())
        yield ArmFacts(
            experiment=experiment,
            search=summarize_arm(name, search[name], charter),
            base=summarize_base(name, search[name], charter),
            test=summarize_arm(name, test[name], charter.of_scores) if name in test else None,
            runs=tuple(of_arm),
            curves=_gather_curves(store, drawn, REWARD),
            held_out=_gather_held_out(store, counted, charter),
            amounts=gather_amounts(store, counted),
            solved=_gather_curves(store, drawn, SUCCESS),
            counts=RunCounts(list_outcomes(experiment, [item.run for item in of_arm], search[name])),
            cost=cost,
            flags=(*cost_flags(cost, costs.get(charter.baseline, ArmCost())), *find_limits(store, counted)),
            suspect=suspects.get(name, ""),
            work_of_code=find_work_of_code(store, counted),
            is_accepted=name in accepted,
            in_search=tree[name],
        )


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


def _environments(store: ExperimentStore, study_id: str) -> tuple[Mapping[str, str], ...]:
    """Return the distinct software versions of all runs, exploring ones included."""
    used = [run.environment for run in store.list_runs(study_id=study_id) if run.environment]
    distinct = {hash_json(versions): versions for versions in used}
    return tuple({str(name): str(value) for name, value in found.items()} for found in distinct.values())
