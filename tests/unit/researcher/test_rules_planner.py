"""The rules planner: arms of named topics, the rounds of a search, and what it decides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from experiments_db import Operator, Verdict
from researcher.analysis import Analysis, ArmSummary, Comparison
from researcher.charter import Asked, Charter, FrameRequest, PolicyName, ProposerName, StudiedEnvironment
from researcher.claims import ClaimKind
from researcher.errors import PlannerError, TopicInvalid
from researcher.history import Action, History, Objection, ObjectionKind
from researcher.judge.contrasts import is_complete
from researcher.judge.judgement import rule_out
from researcher.plan import Plan, ProgramProblem, Relation, Stage
from researcher.planner.designs import repeat_inconclusive
from researcher.planner.rules import RulesPlanner
from researcher.search.rounds import check_round
from researcher.study.settings import read_settings
from researcher.study.topics import read_request
from researcher.tree import Expand, Promote, RungScore, SearchNode, SearchTree
from swarm.program import is_program


def _request(topic: str, **flags: object) -> FrameRequest:
    return read_request(topic, read_settings(flags))


def _begin(topic: str, **flags: object) -> tuple[RulesPlanner, Charter, Plan]:
    planner = RulesPlanner()
    charter = planner.frame(_request(topic, **flags))
    return planner, charter, planner.plan(charter, History())


def _analysis(charter: Charter, gains: dict[str, tuple[float, Verdict]]) -> Analysis:
    """An analysis in which each arm gains what is given over a baseline of 0.5."""
    names = {charter.baseline: 0.5} | {arm: 0.5 + gain for arm, (gain, _) in gains.items()}
    return Analysis(
        arms=tuple(
            ArmSummary(arm, {0: mean, 1: mean, 2: mean}, {0: 0.2}, mean, mean, mean, ()) for arm, mean in names.items()
        ),
        comparisons=tuple(
            Comparison(arm, charter.baseline, gain, math.nan, math.nan, 0.01, 0.01, (0, 1, 2), verdict, ())
            for arm, (gain, verdict) in gains.items()
        ),
        ranking=tuple(sorted(names, key=lambda arm: -names[arm])),
        failed={},
    )


def test_two_factors_without_values_are_varied_one_at_a_time() -> None:
    _, charter, plan = _begin("Which matters more for sorting, minibatches or epochs?")

    assert len(plan.arms) == 5
    baseline = next(arm for arm in plan.arms if arm.name == charter.baseline)
    for arm in plan.arms:
        assert sum(arm.factors[name] != baseline.factors[name] for name in baseline.factors) <= 1


RATES_OF_MICRO = "lr=3e-4,1e-3,2e-3"


@pytest.mark.parametrize(
    ("flags", "baseline"),
    [
        ({"fix": ["model=micro"]}, "lr=0.001"),
        ({"fix": ["model=micro"], "baseline": ["lr=0.002"]}, "lr=0.002"),
        ({"fix": ["model=micro", "lora_rank=8"]}, "lr=0.0003"),
        ({}, "lr=0.001"),
    ],
)
def test_the_baseline_has_the_usual_rate_of_the_studied_model_unless_a_person_names_another(
    flags: dict[str, object], baseline: str
) -> None:
    charter = RulesPlanner().frame(_request("Rates", vary=[RATES_OF_MICRO], env="reverse", **flags))
    assert charter.baseline == baseline


SEARCH = "Find the best recipe"


def test_search_without_factors_has_a_default_space_and_rules_of_its_exploration() -> None:
    charter = RulesPlanner().frame(_request(SEARCH, max_runs=20))

    assert (charter.asks.kind, charter.environment_name, charter.baseline) == ("optimize", "reverse", "baseline")
    assert {"lr", "num_repeat"} <= {factor.name for factor in charter.asks.factors}
    assert charter.search is not None and charter.search.runs == 10
    assert (charter.search.policy, charter.search.proposer) == (PolicyName.HALVING, ProposerName.OPTUNA)
    program = next(factor for factor in charter.asks.factors if factor.name == "program")
    assert "best-of-n" in {level.name for level in program.levels}
    assert any("No environment is named" in assumption for assumption in charter.assumptions)


@pytest.mark.parametrize(
    ("topic", "setting"),
    [("learning rate -0.1 or 0.1", "lr"), ("group size 2.5 or 3", "num_repeat"), ("temperature 20", "temperature")],
)
def test_value_out_of_range_is_refused_by_name(topic: str, setting: str) -> None:
    with pytest.raises(TopicInvalid, match=setting):
        _begin(topic)


def test_flags_win_over_the_topic() -> None:
    _, charter, plan = _begin(
        "temperature 0.5 vs 1.0 with 5 seeds and 20 steps",
        family="sort",
        seeds=2,
        steps=7,
        eval_episodes=11,
    )

    assert (charter.environment_name, charter.eval_episodes, plan.seeds) == ("sort", 11, (0, 1))
    assert {arm.job["total_steps"] for arm in plan.arms} == {7}


def test_unknown_environment_lists_the_known_ones() -> None:
    with pytest.raises(TopicInvalid, match=r"juggle.*reverse.*guess"):
        _begin("x", vary=["lr=1,2"], family="juggle")


def _search(**flags: object) -> tuple[RulesPlanner, Charter]:
    planner = RulesPlanner()
    return planner, planner.frame(_request("A title", kind="optimize", proposer="grid", steps=8, **flags))


BASELINE_LEVELS = {"lr": "lr=0.001", "num_repeat": "num_repeat=8"}


def _explored(charter: Charter, *others: SearchNode) -> SearchTree:
    return SearchTree((SearchNode("baseline", levels=BASELINE_LEVELS), *others))


def test_first_round_has_the_baseline_and_an_arm_for_each_move_at_the_first_rung() -> None:
    planner, charter = _search(vary=["lr=1e-3,3e-3", "num_repeat=8,16"])
    history = History(tree=_explored(charter), runs_left=9)
    moves = (Promote("baseline", 0.25), Expand(("baseline",), Operator.DRAFT), Expand(("baseline",), Operator.DRAFT))

    plan = planner.explore(charter, history, moves)

    assert [arm.name for arm in plan.arms] == ["baseline", "num_repeat=16", "lr=0.003"]
    assert plan.rungs == {"baseline": 2, "num_repeat=16": 1, "lr=0.003": 2}, "as many episodes take half the steps"
    assert {(arm.parent, arm.operator) for arm in plan.arms[1:]} == {("baseline", Operator.DRAFT)}
    assert check_round(charter, history, moves, plan).stage is Stage.EXPLORE


def test_promotion_trains_a_known_arm_on_and_a_used_up_space_adds_none() -> None:
    planner, charter = _search(vary=["lr=1e-3,3e-3"])
    tree = SearchTree((SearchNode("baseline", levels={"lr": "lr=0.001"}),))
    moves = (Expand(("baseline",), Operator.DRAFT), Expand(("baseline",), Operator.DRAFT))
    first = planner.explore(charter, History(tree=tree, runs_left=9), moves)
    score = RungScore(0.25, 2, 0.5, 0.05)
    tree = SearchTree(
        (
            SearchNode("baseline", levels={"lr": "lr=0.001"}, scores=(score,)),
            SearchNode("lr=0.003", ("baseline",), Operator.DRAFT, {"lr": "lr=0.003"}, (score,)),
        )
    )

    plan = planner.explore(charter, History((first,), tree=tree, runs_left=9), (Promote("lr=0.003", 0.5), *moves))

    assert [arm.name for arm in first.arms] == ["baseline", "lr=0.003"]
    assert ([arm.name for arm in plan.arms], plan.rungs) == (["lr=0.003"], {"lr=0.003": 4})


def test_arm_of_a_search_trains_with_the_option_of_its_environment() -> None:
    reference = "tasks.jsonl?max_tokens=9"
    asked = {"kind": "optimize", "proposer": "grid", "vary": ["env.max_tokens=9,30", "lr=1e-3,3e-3"], "env": reference}
    environment = StudiedEnvironment(reference, "tasks", "Questions.", "digest")
    settings = read_settings(asked)
    planner = RulesPlanner()
    request = FrameRequest("A title", environment=environment, question=settings.question(), search=settings.search())
    charter = planner.frame(request)
    levels = {factor.name: factor.levels[0].name for factor in charter.asks.factors}
    history = History(tree=SearchTree((SearchNode("baseline", levels=levels),)), runs_left=9)

    plan = planner.explore(charter, history, (Expand(("baseline",), Operator.DRAFT),) * 3)

    trained = {arm.name: (arm.job["lr"], arm.environment) for arm in plan.arms}
    assert trained == {
        "baseline": (1e-3, reference),
        "lr=0.003": (3e-3, reference),
        "env.max_tokens=30": (1e-3, "tasks.jsonl?max_tokens=30"),
        "env.max_tokens=30 lr=0.003": (3e-3, "tasks.jsonl?max_tokens=30"),
    }


def test_exploration_goes_on_until_code_ends_it_and_a_confirmation_ends_the_study() -> None:
    planner, charter = _search(vary=["lr=1e-3,3e-3"])
    explored = planner.explore(charter, History(tree=_explored(charter), runs_left=9), (Promote("baseline", 0.25),))
    claim = replace(explored, stage=Stage.CLAIM, primary=("lr=0.003",))
    kept = _analysis(charter, {"lr=0.003": (0.2, Verdict.KEEP)})
    lost = _analysis(charter, {"lr=0.003": (0.0, Verdict.NO_BETTER)})

    assert planner.decide(charter, kept, History((explored,), (kept,))).action is Action.REFINE
    confirmed = planner.decide(charter, kept, History((explored, claim), (kept, kept)))
    assert (confirmed.action, "was confirmed" in confirmed.reason) == (Action.STOP, True)
    assert "was not confirmed" in planner.decide(charter, lost, History((explored, claim), (kept, lost))).reason
    with pytest.raises(PlannerError, match="in rounds"):
        planner.plan(charter, History())


@pytest.mark.parametrize("is_grave", [False, True])
def test_arm_is_withdrawn_for_a_grave_objection_alone(is_grave: bool) -> None:
    planner, charter = _search(vary=["lr=1e-3,3e-3"])
    objection = Objection(ObjectionKind.LEAK, "It knows the answers.", is_grave)

    assert planner.respond(charter, "lr=0.003", (objection,), History()).is_withdrawn is is_grave


def test_arm_that_is_out_is_neither_called_undecided_nor_given_more_seeds() -> None:
    planner, charter, first = _begin("KL or no KL for tool use?", max_runs=100)
    judged = _analysis(charter, {"use_kl_loss=true": (0.05, Verdict.INCONCLUSIVE)})
    out = replace(judged, comparisons=tuple(rule_out(item, {item.arm: "it cheats"}) for item in judged.comparisons))

    decision = planner.decide(charter, out, History((first,), (out,)))
    assert decision.action is Action.STOP and "use_kl_loss" not in decision.reason
    assert repeat_inconclusive(History((first,), (out,))) == first.arms[:1]


@pytest.mark.parametrize(("max_runs", "action"), [(None, Action.STOP), (11, Action.STOP), (12, Action.REFINE)])
def test_open_comparison_gets_more_seeds_only_if_the_budget_has_room(max_runs: int | None, action: Action) -> None:
    planner, charter, first = _begin("KL or no KL for tool use?", max_runs=max_runs)
    open_result = _analysis(charter, {"use_kl_loss=true": (0.05, Verdict.INCONCLUSIVE)})
    history = History((first,), (open_result,))

    decision = planner.decide(charter, open_result, history)
    assert decision.action is action
    assert ("leaves no room" in decision.reason, "with --max-runs 12" in decision.reason) == (
        max_runs == 11,
        max_runs is None,
    )
    again = planner.plan(charter, history)
    assert (again.seeds, again.pools_runs) == ((3, 4, 5), True)
    assert planner.decide(charter, open_result, History((first, again), (open_result,) * 2)).action is Action.STOP


def test_alpha_is_shared_among_the_plans_that_there_may_be() -> None:
    shares = {
        topic: RulesPlanner().frame(_request(topic, max_runs=most)).rule.shares
        for topic, most in (("KL or no KL?", None), ("KL or no KL for sorting?", 20), (SEARCH, 20))
    }

    assert list(shares.values()) == [(1.0,), (0.5, 0.5), (0.75, 0.25)]


def test_number_of_runs_is_left_to_the_design_unless_a_person_says_it() -> None:
    _, free, plan = _begin("KL or no KL for sorting?")
    _, fixed, _ = _begin("KL or no KL for sorting?", seeds=5)
    _, said, _ = _begin("KL or no KL for sorting with 4 seeds?")

    assert free.sample_size is not None and free.sample_size.seeds is None
    assert len(plan.seeds) == free.sample_size.pilot_seeds
    assert [charter.sample_size and charter.sample_size.seeds for charter in (fixed, said)] == [5, 4]


@pytest.mark.parametrize(
    ("asked", "levels", "relations"),
    [
        (Asked.EFFECT, ("lr=1e-4,1e-3", "use_kl_loss=false,true"), [Relation.BETTER] * 3),
        (Asked.BEST, ("lr=1e-4,1e-3", "use_kl_loss=false,true"), [Relation.BEST]),
        (Asked.BEST, ("lr=1e-4,1e-3",), [Relation.BETTER]),
        (Asked.MATTERS_MORE, ("lr=1e-4,1e-3", "use_kl_loss=false,true"), [Relation.MATTERS_MORE]),
        (Asked.INTERACTION, ("lr=1e-4,1e-3,3e-3", "use_kl_loss=false,true"), [Relation.INTERACTION] * 2),
        (Asked.EQUAL, ("lr=1e-4,1e-3",), [Relation.EQUIVALENT]),
        (Asked.NEEDED, ("use_kl_loss=false,true",), [Relation.BETTER]),
    ],
)
def test_predictions_are_of_the_relation_that_is_asked_and_of_no_other(
    asked: Asked, levels: tuple[str, ...], relations: list[Relation]
) -> None:
    _, _, plan = _begin("A title", asked=asked, vary=levels)

    contrasts = [item.contrast for item in plan.hypotheses if item.contrast]
    assert [contrast.relation for contrast in contrasts] == relations
    assert all(is_complete(contrast) for contrast in contrasts)
    jobs = {arm.name: (arm.job["lr"], arm.job.get("use_kl_loss")) for arm in plan.arms}
    for contrast in contrasts if asked is Asked.INTERACTION else ():
        neither, one, other, both = (jobs[arm] for arm in contrast.arms)
        assert sum(a != b for a, b in zip(neither, both, strict=True)) == 2
        assert {one, other} == {(neither[0], both[1]), (both[0], neither[1])}


def test_interpretation_claims_the_best_arm_and_each_difference() -> None:
    planner, charter, first = _begin("learning rate 1e-4, 1e-3 or 1e-2 for reversal")
    result = _analysis(charter, {"lr=0.0001": (-0.2, Verdict.WORSE), "lr=0.01": (0.1, Verdict.KEEP)})

    best, worse, better = planner.interpret(charter, result, History((first,), (result,)))

    assert (best.kind, best.arm) == (ClaimKind.BEST, "lr=0.01")
    assert (worse.kind, worse.arm, worse.other, worse.number) == (ClaimKind.WORSE, "lr=0.0001", "lr=0.001", 0.2)
    assert (better.kind, better.arm, better.other, better.number) == (ClaimKind.BETTER, "lr=0.01", "lr=0.001", 0.1)


def test_program_is_the_plain_one_unless_others_are_named() -> None:
    planner, charter, plan = _begin("KL or no KL for tool use?")

    program = planner.write_program(charter, plan.arms[0], None)

    assert program.trusted and is_program(program.code)
    compile(program.code, "program.py", "exec")
    with pytest.raises(PlannerError, match="rejected"):
        planner.repair_program(charter, plan.arms[0], program, (ProgramProblem("lint", "x is undefined"),))
