"""The decide node with a planner that has nothing to say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scripted_planner import Script, ScriptedPlanner
from store_samples import finish_run

from experiments_db import ExperimentStatus, ExperimentStore, Outcome, Severity, Verdict
from researcher.analysis import Analysis
from researcher.charter import Budget, Charter
from researcher.claims import Claim, ClaimKind
from researcher.history import Action, Decision, History
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.analyze import analyze, hypothesis_key
from researcher.loop.nodes.decide import decide
from researcher.plan import Contrast, Hypothesis, Plan, Relation
from researcher.planner.rules import RulesPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import AUTOMATIC, StudyLog, to_json
from researcher.record.scores import find_excluded
from researcher.report.claims import check_claims
from researcher.report.numbers.gather import gather
from researcher.servers.server import LeaseHolder
from researcher.servers.server_pool import ServerPool
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request
from researcher.verification.record import StudyRecord
from researcher.verification.scores import check_analyses


def deps_of(store: ExperimentStore, study: str, charter: Charter, home: Path, *decisions: Decision) -> Deps:
    script = Script(charter, plans=(), programs={}, decisions=decisions, interpretations=((), ()))
    return Deps(
        log=StudyLog(store, study),
        planner=ScriptedPlanner(script),
        pool=ServerPool(urls=(), local=1, home=home, holder=LeaseHolder("study")),
        ledger=BudgetLedger(store, study, Budget()),
        home=home,
    )


def compare_three(store: ExperimentStore) -> tuple[str, Charter, Plan, str, str]:
    """A study whose plan has been run: its id, charter and plan, the best arm and the second."""
    study, rules = store.create_study("t", planner="scripted").id, RulesPlanner()
    charter = rules.frame(read_request("batch size 2, 3 or 4 on reversal", StudySettings(seeds=3)))
    store.freeze_charter(study, to_json(charter))
    plan = replace(rules.plan(charter, History()), seeds=(0, 1, 2))
    names = [arm.name for arm in plan.arms]
    cheat, honest = [name for name in names if name != charter.baseline]
    means = {charter.baseline: 0.3, cheat: 0.95, honest: 0.7}
    for name in names:
        experiment = store.create_experiment(study, name, factors={}, job={"total_steps": 1}).id
        store.revise_experiment(experiment, status=ExperimentStatus.READY)
        for seed in plan.seeds:
            score, tasks = means[name] + 0.01 * seed, [str(number) for number in range(400)]
            details = {"tasks": tasks, "rewards": [score - 0.4, score + 0.4] * 200, "solved": [False] * 400}
            scores = {"base": 0.2, "final": score}
            finish_run(store, experiment, seed, scores, episodes=400, stderr=0.02, details=details)
    return study, charter, plan, cheat, honest


def test_arm_that_the_planner_disqualifies_is_out_at_once_and_for_good(store: ExperimentStore, tmp_path: Path) -> None:
    study, charter, plan, cheat, honest = compare_three(store)
    first = Decision(Action.REFINE, "go on", disqualified={cheat: "Python", charter.baseline: "no", "ghost": "no"})
    deps = deps_of(store, study, charter, tmp_path, first, Decision(Action.STOP, "enough"))
    deps.log.write_plan(plan, "plan")
    state = analyze(deps, first_state(study))
    before = deps.log.find_analysis(0)

    state = decide(deps, state)
    deps.log.write_plan(replace(plan, iteration=1, arms=plan.arms[:1], seeds=(3,)), "plan")
    decide(deps, analyze(deps, state))

    assert before is not None
    assert before.ranking == (cheat, honest, charter.baseline)
    at_once, later = deps.log.history().analyses
    for analysis in (at_once, later):
        verdicts = {item.arm: item.verdict for item in analysis.comparisons}
        assert (analysis.ranking[0], verdicts[cheat]) == (honest, Verdict.INCONCLUSIVE)
    assert {item.arm: item.verdict for item in at_once.comparisons}[honest] is Verdict.KEEP
    assert find_excluded(deps.store, deps.study_id) == {cheat: "Python"}
    experiments = {item.id: item.name for item in store.list_experiments(study)}
    assert cheat not in {experiments[item.experiment_id] for item in store.list_findings(verdict=Verdict.KEEP)}


def disqualify_later(store: ExperimentStore, home: Path) -> tuple[str, Charter, str, str]:
    """A study whose second decision rules out the arm that the first plan kept: its id and charter, that arm and the
    other one."""
    study, charter, plan, cheat, honest = compare_three(store)
    contrast = Contrast(Relation.BETTER, (cheat,), (charter.baseline,))
    plan = replace(plan, hypotheses=(Hypothesis("It is better.", "so", (cheat,), contrast),))
    store.create_hypothesis(study, hypothesis_key(0, 0), "It is better.", iteration=0)
    later = Decision(Action.STOP, "enough", disqualified={cheat: "Python"})
    deps = deps_of(store, study, charter, home, Decision(Action.REFINE, "go on"), later)
    deps.log.write_plan(plan, "plan")
    state = decide(deps, analyze(deps, first_state(study)))
    assert store.list_hypotheses(study)[0].verdict is Outcome.SUPPORTED
    deps.log.write_plan(replace(plan, iteration=1, arms=plan.arms[:1], seeds=(3,), hypotheses=()), "plan")
    decide(deps, analyze(deps, state))
    return study, charter, cheat, honest


def kept_in(store: ExperimentStore, study: str) -> set[str]:
    names = {item.id: item.name for item in store.list_experiments(study)}
    return {names[item.experiment_id] for item in store.list_findings(study_id=study, verdict=Verdict.KEEP)}


def test_arm_that_a_later_decision_disqualifies_keeps_no_verdict_of_before(
    store: ExperimentStore, tmp_path: Path
) -> None:
    study, _, cheat, honest = disqualify_later(store, tmp_path)

    assert kept_in(store, study) == {honest}
    (hypothesis,) = store.list_hypotheses(study)
    assert (hypothesis.verdict, hypothesis.verdict_reason) == (Outcome.UNDECIDED, f"{cheat} disqualified")
    assert [item.outcome for item in gather(store, study).contrasts] == [Outcome.UNDECIDED]
    assert [check.mismatches for check in check_analyses(StudyRecord(store, study, tmp_path))] == [[], [], []]


def test_what_a_planner_said_as_it_disqualified_an_arm_is_checked_against_what_it_had_seen(
    store: ExperimentStore, tmp_path: Path
) -> None:
    study, charter, plan, cheat, _ = compare_three(store)
    deps = deps_of(store, study, charter, tmp_path, Decision(Action.STOP, "enough", disqualified={cheat: "Python"}))
    deps.log.write_plan(plan, "plan")
    claims = [Claim(ClaimKind.BEST, cheat), Claim(ClaimKind.BETTER, cheat, charter.baseline, significant=True)]

    decide(deps, analyze(deps, first_state(study)))

    facts = gather(store, study)
    assert all(claim.sentence for claim in check_claims(claims, facts.at_decisions[0]))
    assert not any(claim.sentence for claim in check_claims(claims, facts))


def test_a_planner_without_an_answer_ends_the_study_and_why_is_on_record(
    store: ExperimentStore, tmp_path: Path
) -> None:
    study = store.create_study("t", planner="scripted")
    log, rules = StudyLog(store, study.id), RulesPlanner()
    charter = rules.frame(read_request("batch size 2 or 3 on reversal", StudySettings()))
    store.freeze_charter(study.id, to_json(charter))
    log.write_plan(rules.plan(charter, History()), "plan")
    log.write_analysis(0, Analysis(arms=(), comparisons=(), ranking=(), failed={}), "analysis")
    silent = ScriptedPlanner(Script(charter, plans=(), programs={}, decisions=()))
    deps = replace(deps_of(store, study.id, charter, tmp_path), planner=silent)

    assert decide(deps, first_state(study.id))["is_halted"]

    (decision,) = store.list_decisions(study.id)
    assert (decision.action, decision.reason) == ("stop", "The planner came to no decision.")
    assert decision.details["author"] == AUTOMATIC
    warnings = [event.message for event in store.list_events(study.id) if event.severity is Severity.WARNING]
    assert warnings == [
        "No interpretation: the script has no interpretation number 1",
        "No decision: the script has no decision number 1",
    ]
