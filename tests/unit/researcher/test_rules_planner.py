"""The rules planner: arms of named topics, the default design and its three iterations, what it decides."""

from __future__ import annotations

import math

import pytest

from experiments_db import Verdict
from researcher.analysis import Analysis, ArmSummary, Comparison
from researcher.charter import Asked, Charter, FrameRequest, StudiedEnvironment
from researcher.errors import PlannerError, TopicInvalid
from researcher.judge.contrasts import is_complete
from researcher.plan import Plan, ProgramProblem, Relation
from researcher.planner.base import Action, History
from researcher.planner.claims import ClaimKind
from researcher.planner.rules import RulesPlanner
from researcher.study.settings import read_settings
from researcher.study.topic import read_request
from swarm import TrainJob
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


def test_named_values_become_exactly_those_arms() -> None:
    _, charter, plan = _begin("Which learning rate trains word reversal best, 1e-4, 1e-3 or 1e-2?")

    assert [arm.job["lr"] for arm in plan.arms] == [1e-4, 1e-3, 1e-2]
    assert (charter.environment_name, charter.baseline) == ("reverse", "lr=0.001")
    assert [arm.name for arm in plan.arms if arm.is_baseline] == ["lr=0.001"]
    assert plan.seeds == (0, 1, 2)


def test_group_sizes_are_compared_at_equal_episodes() -> None:
    _, charter, plan = _begin("Does group size matter for the guessing game?")

    assert [arm.job["num_repeat"] for arm in plan.arms] == [4, 8, 16]
    assert len({arm.job["num_repeat"] * arm.job["batch_size"] * arm.job["total_steps"] for arm in plan.arms}) == 1
    assert charter.baseline == "num_repeat=8"


def test_or_no_gives_two_arms() -> None:
    _, charter, plan = _begin("KL or no KL for tool use?")

    assert [arm.job["use_kl_loss"] for arm in plan.arms] == [False, True]
    assert (charter.environment_name, charter.baseline) == ("calc", "use_kl_loss=false")


def test_two_named_factors_are_crossed() -> None:
    _, _, plan = _begin("learning rate 1e-4 or 1e-3 with KL or no KL for copying")

    assert {(arm.job["lr"], arm.job["use_kl_loss"]) for arm in plan.arms} == {
        (1e-4, False),
        (1e-4, True),
        (1e-3, False),
        (1e-3, True),
    }


def test_two_factors_without_values_are_varied_one_at_a_time() -> None:
    _, charter, plan = _begin("Which matters more for sorting, minibatches or epochs?")

    assert len(plan.arms) == 5
    baseline = next(arm for arm in plan.arms if arm.name == charter.baseline)
    for arm in plan.arms:
        assert sum(arm.factors[name] != baseline.factors[name] for name in baseline.factors) <= 1


SEARCH = "Which settings train agents best?"


def test_search_without_factors_goes_through_the_default_space() -> None:
    _, charter, plan = _begin(SEARCH)

    assert (charter.asks.kind, charter.environment_name) == ("optimize", "reverse")
    assert plan.arms[0].name == charter.baseline == "baseline"
    assert {"lr=0.003", "num_repeat=16", "use_kl_loss=true", "best-of-n"} < {arm.name for arm in plan.arms}
    assert any("No environment is named" in assumption for assumption in charter.assumptions)


@pytest.mark.parametrize(
    "topic",
    [
        "Which learning rate trains word reversal best, 1e-4, 1e-3 or 1e-2?",
        "Does group size matter for the guessing game?",
        "GRPO, Dr.GRPO, RLOO, reinforce++, GSPO, CISPO, OPO, GPG, DAPO, SAPO or DPPO on addition?",
        SEARCH,
        "loss aggregation for tool use",
        "KL estimator k1, k2 or k3",
    ],
)
def test_every_arm_is_a_job_that_the_service_accepts(topic: str) -> None:
    _, _, plan = _begin(topic)

    for arm in plan.arms:
        TrainJob.model_validate(dict(arm.job))
        assert {"seed", "experiment_name"}.isdisjoint(arm.job)


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


def test_default_design_combines_what_was_kept_then_confirms_the_best() -> None:
    planner, charter, first = _begin(SEARCH)
    kept = _analysis(
        charter,
        {
            "lr=0.003": (0.2, Verdict.KEEP),
            "lr=0.0003": (-0.1, Verdict.WORSE),
            "num_repeat=16": (0.1, Verdict.KEEP),
            "use_kl_loss=true": (0.0, Verdict.INCONCLUSIVE),
        },
    )
    history = History(plans=(first,), analyses=(kept,))

    assert planner.decide(charter, kept, history).action is Action.REFINE
    second = planner.plan(charter, history)
    assert [arm.name for arm in second.arms] == ["baseline", "lr=0.003+num_repeat=16"]
    assert second.arms[1].job["lr"] == 0.003 and second.arms[1].job["num_repeat"] == 16

    best = _analysis(charter, {"lr=0.003+num_repeat=16": (0.3, Verdict.KEEP)})
    history = History(plans=(first, second), analyses=(kept, best))
    assert planner.decide(charter, best, history).action is Action.REFINE
    third = planner.plan(charter, history)
    assert [arm.name for arm in third.arms] == ["baseline", "lr=0.003+num_repeat=16"]
    assert (second.seeds, third.seeds, third.pools_runs) == ((3, 4, 5), (6, 7, 8), False)

    history = History(plans=(first, second, third), analyses=(kept, best, best))
    decision = planner.decide(charter, best, history)
    assert (decision.action, "was confirmed" in decision.reason) == (Action.STOP, True)
    lost = _analysis(charter, {"lr=0.003+num_repeat=16": (0.0, Verdict.NO_BETTER)})
    assert "was not confirmed" in planner.decide(charter, lost, History(history.plans, (kept, best, lost))).reason


def test_a_kept_option_of_the_environment_is_combined_with_a_kept_setting() -> None:
    planner, reference = RulesPlanner(), "tasks.jsonl?max_tokens=9"
    asked = {"kind": "optimize", "vary": ["env.max_tokens=9,30", "lr=1e-3,3e-3"], "env": reference}
    environment = StudiedEnvironment(reference, "tasks", "Questions.", "digest")
    question = read_settings(asked).question()
    charter = planner.frame(FrameRequest("A title", environment=environment, question=question))
    first = planner.plan(charter, History())
    kept = _analysis(charter, {"env.max_tokens=30": (0.2, Verdict.KEEP), "lr=0.003": (0.1, Verdict.KEEP)})

    second = planner.plan(charter, History((first,), (kept,)))

    trained = {arm.name: (arm.job["lr"], arm.environment) for arm in (*first.arms, *second.arms)}
    assert trained == {
        "baseline": (1e-3, reference),
        "env.max_tokens=30": (1e-3, "tasks.jsonl?max_tokens=30"),
        "lr=0.003": (3e-3, reference),
        "env.max_tokens=30+lr=0.003": (3e-3, "tasks.jsonl?max_tokens=30"),
    }


def test_default_design_skips_combining_a_single_kept_change() -> None:
    planner, charter, first = _begin(SEARCH)
    kept = _analysis(charter, {"lr=0.003": (0.2, Verdict.KEEP), "use_kl_loss=true": (0.0, Verdict.WORSE)})
    history = History(plans=(first,), analyses=(kept,))

    assert planner.decide(charter, kept, history).action is Action.REFINE
    second = planner.plan(charter, history)

    assert [arm.name for arm in second.arms] == ["baseline", "lr=0.003"]
    assert second.seeds == (3, 4, 5)
    confirmed = planner.decide(charter, kept, History((first, second), (kept, kept)))
    assert (confirmed.action, confirmed.reason) == (Action.STOP, "lr=0.003 was confirmed on fresh seeds.")


def test_default_design_stops_where_nothing_was_kept() -> None:
    planner, charter, first = _begin(SEARCH)
    nothing = _analysis(charter, {"use_kl_loss=true": (0.0, Verdict.WORSE)})

    assert planner.decide(charter, nothing, History((first,), (nothing,))).action is Action.STOP


@pytest.mark.parametrize(("max_runs", "action"), [(None, Action.STOP), (11, Action.STOP), (12, Action.REFINE)])
def test_open_comparison_gets_more_seeds_only_if_the_budget_has_room(max_runs: int | None, action: Action) -> None:
    planner, charter, first = _begin("KL or no KL for tool use?", max_runs=max_runs)
    open_result = _analysis(charter, {"use_kl_loss=true": (0.05, Verdict.INCONCLUSIVE)})
    history = History((first,), (open_result,))

    assert planner.decide(charter, open_result, history).action is action
    again = planner.plan(charter, history)
    assert (again.seeds, again.pools_runs) == ((3, 4, 5), True)
    assert planner.decide(charter, open_result, History((first, again), (open_result,) * 2)).action is Action.STOP


def test_alpha_is_shared_among_the_plans_that_there_may_be() -> None:
    shares = {
        topic: _begin(topic, max_runs=most)[1].rule.shares
        for topic, most in (("KL or no KL?", None), ("KL or no KL for sorting?", 20), (SEARCH, 20))
    }

    assert list(shares.values()) == [(1.0,), (0.5, 0.5), (0.5, 0.25, 0.25)]


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


def test_interaction_is_of_arms_without_with_one_and_with_both_changes() -> None:
    _, _, plan = _begin("A title", asked=Asked.INTERACTION, vary=("lr=1e-4,1e-3", "use_kl_loss=false,true"))

    (contrast,) = (item.contrast for item in plan.hypotheses)
    assert contrast is not None
    jobs = {arm.name: (arm.job["lr"], arm.job["use_kl_loss"]) for arm in plan.arms}
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
