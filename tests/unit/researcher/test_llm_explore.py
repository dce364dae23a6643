"""Rounds of exploration that a language model answers: arms of any parent, promotions, moves of the policy, the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from recorded_answers import FIRST_ROUND, RecordedAnswers, arm, explored, framed_search

from experiments_db import Operator
from researcher.analysis import Analysis
from researcher.charter import Charter, PolicyName
from researcher.errors import LanguageModelUnavailable
from researcher.history import Action, History, Objection, ObjectionKind
from researcher.plan import Contrast, ManipulationCheck, Plan, Relation, Speaker, Stage
from researcher.planner.fallback import FallbackPlanner
from researcher.planner.language_model.answers import Unusable
from researcher.planner.language_model.plans import parse_round
from researcher.planner.llm import LLMPlanner
from researcher.record.log import plan_from_json, to_json
from researcher.tree import Expand, Move, Promote


@pytest.fixture
def charter() -> Charter:
    return framed_search(baseline=(), steps=40)


@pytest.fixture
def history(charter: Charter) -> History:
    return explored(charter, {charter.baseline: 0.3, "fast": 0.4, "twice": "it raised KeyError: 'content'"})


def explore(charter: Charter, history: History, moves: Sequence[Move] = (), **answer: Any) -> Plan:
    return parse_round(json.dumps({"rationale": "r", **answer}), charter, history, moves)


def test_first_round_has_the_baseline_and_new_arms_at_the_first_rung(charter: Charter) -> None:
    answers = RecordedAnswers(explore=[{**FIRST_ROUND, "lessons": ["Short runs are noisy."]}])
    plan = LLMPlanner(answers).explore(charter, History(runs_left=12.0), ())

    assert plan == plan_from_json(to_json(plan))
    assert plan.stage is Stage.EXPLORE and plan.seeds == (0,)
    assert [item.name for item in plan.arms] == [charter.baseline, "fast", "twice"]
    # At equal episodes, half a batch has twice the steps.
    assert plan.rungs == {charter.baseline: 10, "fast": 10, "twice": 20}
    fast, twice = plan.arms[1:]
    assert (fast.operator, fast.program_of) == (Operator.TUNE, charter.baseline)
    assert (twice.operator, twice.program_of, twice.factors["program"]) == (Operator.DRAFT, None, "asks twice")
    assert fast.rationale == "what fast is for" and plan.lessons == ("Short runs are noisy.",)


def test_settings_of_an_arm_are_changes_of_its_parent(charter: Charter, history: History) -> None:
    plan = explore(
        charter,
        history,
        arms=[
            arm("fast, large groups", "tune", parent="fast", settings={"num_repeat": 16}),
            arm("both", "combine", parent="fast", second_parent="fast, large groups", program="asks twice"),
            arm("slower", "ablate", parent="fast, large groups", settings={"lr": 0.001}),
        ],
    )
    large, both, slower = plan.arms

    assert (large.job["lr"], large.job["num_repeat"], large.parent) == (0.003, 16, "fast")
    assert large.job["total_steps"] == 20 and plan.rungs["fast, large groups"] == 5
    assert (both.second_parent, both.program_of, both.job["lr"]) == ("fast, large groups", "twice", 0.003)
    assert (slower.job["lr"], slower.job["num_repeat"]) == (0.001, 16)
    assert plan.seeds == history.plans[0].seeds and plan.iteration == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (arm("a", "improve", parent="nobody"), "there is no arm 'nobody' to derive from: choose from"),
        (arm("a", None, settings={"lr": 1.0}), "arm a: operator: say how"),
        (arm("a", "draft", parent="fast", program="new"), "a draft derives from the baseline"),
        (arm("a", "debug", parent="fast", program="new"), "fast has not failed"),
        (arm("a", "improve", parent="twice", program="new"), "twice is out .*KeyError.*only debug derives from it"),
        (arm("a", "combine", parent="fast", program="new"), "it takes two different arms"),
        (arm("a", "tune", parent="fast", program="new"), "it changes settings alone"),
        (arm("a", "tune", parent="fast"), "it changes settings alone"),
        (arm("a", "ablate", parent="fast", settings={"lr": 0.01}), "lr does not return to the baseline's value"),
        (arm("a", "ablate", parent="fast"), "nothing is taken away"),
        (arm("a", "replicate", parent="fast", settings={"lr": 1.0}), "an arm of another study"),
        (arm("a", "improve", second_parent="fast", settings={"lr": 1.0}), "only combine has a second parent"),
        (arm("fast", "tune", settings={"lr": 0.01}), "fast: an arm that has been planned goes on by promote"),
        (arm("a", "tune", settings={"lr": 0.003}), "'fast' and 'a' have the same settings and the same program"),
        (arm("lr=1", "tune", settings={"lr": 2.0}), "its name says lr=1"),
        (arm("a", "tune", settings={"total_steps": 99}), "total_steps cannot be set"),
        (arm("a", "improve", setings={"lr": 2.0}), "arms.0.setings: there is no such field"),
        (arm("a", program="p", manipulation={"statement": "s", "pattern": "("}), "arms.0.manipulation: "),
        (arm("a", program="p", manipulation={"statement": "s", "code": "x = 1"}), r"no function check\(transcript\)"),
    ],
)
def test_arm_that_is_not_what_it_says_is_refused_by_name(
    charter: Charter, history: History, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(Unusable, match=message):
        explore(charter, history, arms=[given])


def test_failed_arm_is_mended_by_a_program_with_another_name(charter: Charter, history: History) -> None:
    (mended,) = explore(
        charter, history, arms=[arm("mended", "debug", parent="twice", program="asks twice, mended")]
    ).arms
    assert (mended.parent, mended.operator, mended.program_of) == ("twice", Operator.DEBUG, None)


def test_manipulation_check_of_an_arm_is_kept(charter: Charter, history: History) -> None:
    check = {"statement": "It asks twice.", "speaker": "model", "at_least": 2, "at_most": 2, "share": 0.9}
    (checked,) = explore(charter, history, arms=[arm("a", program="asks two times", manipulation=check)]).arms
    assert checked.manipulation == ManipulationCheck("It asks twice.", "", Speaker.MODEL, 2, 2, "", 0.9)


def test_promoted_arm_takes_the_baseline_along(charter: Charter, history: History) -> None:
    plan = explore(charter, history, promote=[{"arm": "fast", "share": 0.5}])

    assert plan.rungs == {charter.baseline: 20, "fast": 20}
    assert plan.arms[1] == history.plans[0].arms[1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            {"promote": [{"arm": "fast", "share": 0.6}]},
            r"fast cannot end at step 24: its rungs are 0.25 \(step 10\), 0.5 ",
        ),
        ({"promote": [{"arm": "fast", "share": 0.25}]}, "fast has come to step 10 already"),
        ({"promote": [{"arm": "twice", "share": 0.5}]}, "twice is out"),
        ({"promote": [{"arm": "none", "share": 0.5}]}, "there is no arm none: choose from"),
        ({}, "the round does nothing"),
        ({"done": True, "promote": [{"arm": "fast", "share": 0.5}]}, "done: true ends the exploration"),
        ({"rungs": [1]}, "rungs: there is no such field"),
    ],
)
def test_round_that_cannot_be_is_refused_by_name(
    charter: Charter, history: History, answer: dict[str, Any], message: str
) -> None:
    with pytest.raises(Unusable, match=message):
        explore(charter, history, **answer)


def test_round_that_costs_more_than_is_left_is_refused_with_the_numbers(charter: Charter, history: History) -> None:
    poor = replace(history, runs_left=1.0)
    with pytest.raises(Unusable, match=r"costs 1\.5 full runs, and exploration has 1 left"):
        explore(charter, poor, promote=[{"arm": "fast", "share": 1.0}])
    assert explore(charter, poor, promote=[{"arm": "fast", "share": 0.5}]).rungs
    assert explore(charter, poor, done=True).arms == ()


def test_moves_of_the_policy_are_all_carried_out_and_no_others(charter: Charter, history: History) -> None:
    moves = (Expand(("fast",), Operator.TUNE), Expand((), Operator.DRAFT), Promote("fast", 0.5))
    tuned = arm("tuned", "tune", parent="fast", settings={"num_repeat": 16})
    new = arm("new", "draft", program="thinks first")

    plan = explore(charter, history, moves, arms=[new, tuned])
    assert plan.rungs == {charter.baseline: 20, "new": 10, "tuned": 5, "fast": 20}
    for arms, message in (
        ([new], "the policy asks for 2 new arms, and the round has 1"),
        ([new, tuned, arm("more", "tune", settings={"lr": 0.01})], "no move adds an arm like more"),
    ):
        with pytest.raises(Unusable, match=message):
            explore(charter, history, moves, arms=arms)
    with pytest.raises(Unusable, match="fast is to be trained to step 20, not to 40"):
        explore(charter, history, moves, arms=[new, tuned], promote=[{"arm": "fast", "share": 1.0}])
    with pytest.raises(Unusable, match="the policy has chosen moves"):
        explore(charter, history, moves, done=True)


def test_moves_that_leave_nothing_to_choose_cost_no_question(charter: Charter, history: History) -> None:
    answers = RecordedAnswers()
    plan = LLMPlanner(answers).explore(charter, history, (Promote("fast", 0.5), Promote(charter.baseline, 0.5)))

    assert plan.rungs == {charter.baseline: 20, "fast": 20} and answers.asked == []


def test_search_of_a_closed_space_stays_in_it() -> None:
    charter = framed_search({"vary": ["lr=1e-3,3e-3", "num_repeat=4,8"]})
    plan = explore(charter, History(runs_left=9.0), arms=[arm("a", "tune", settings={"lr": 0.003})])

    assert plan.arms[1].factors == {"lr": 0.003, "num_repeat": 8}
    with pytest.raises(Unusable, match="lr has one of the levels"):
        explore(charter, History(runs_left=9.0), arms=[arm("a", "tune", settings={"lr": 0.01})])
    with pytest.raises(Unusable, match="the question compares no programs"):
        explore(charter, History(runs_left=9.0), arms=[arm("a", "draft", program="new", settings={"lr": 0.003})])


def test_hypothesis_about_another_metric_is_described_and_says_so(charter: Charter, history: History) -> None:
    words = {"statement": "It keeps its entropy.", "prediction": "It stays above 1.", "arms": ["fast"]}
    plan = explore(
        charter,
        history,
        promote=[{"arm": "fast", "share": 0.5}],
        hypotheses=[{**words, "relation": "better", "metric": "actor/entropy"}, {**words, "relation": "better"}],
    )
    described, judged = plan.hypotheses
    assert described.contrast is None and "actor/entropy, which is described and not judged" in described.prediction
    assert judged.contrast is not None and judged.contrast.against == (charter.baseline,)


def test_objections_are_answered_or_the_arm_is_withdrawn(charter: Charter, history: History) -> None:
    answers = RecordedAnswers(respond=[{"withdraw": True, "answer": "It copies the answer."}])
    objections = [Objection(ObjectionKind.LEAK, "The program has a table of answers.", is_grave=True)]

    response = LLMPlanner(answers).respond(charter, "fast", objections, history)

    assert (response.is_withdrawn, response.text) == (True, "It copies the answer.")
    assert "leak, grave: The program has a table of answers." in answers.last


def test_only_a_study_that_explores_can_go_on_to_confirm(charter: Charter, history: History) -> None:
    confirm = {"action": "confirm", "reason": "fast leads", "lessons": ["A higher rate helps."]}
    answers = RecordedAnswers(decide=[confirm, confirm])
    analysis = Analysis(arms=(), comparisons=(), ranking=(), failed={})

    decision = LLMPlanner(answers).decide(charter, analysis, history)
    assert decision.action is Action.CONFIRM and decision.lessons == ("A higher rate helps.",)
    with pytest.raises(Unusable, match="there is nothing to confirm"):
        LLMPlanner(answers).decide(replace(charter, search=None), analysis, History())


NULL = {"statement": "fast gains little", "prediction": "so", "arms": ["fast"], "relation": "no_better", "margin": 0.05}


def test_arms_to_confirm_are_named_in_a_decision_or_with_the_end_of_the_exploration(
    charter: Charter, history: History
) -> None:
    analysis = Analysis(arms=(), comparisons=(), ranking=(), failed={})
    decided = {"action": "refine", "reason": "go on", "confirm": [NULL]}
    (named,) = LLMPlanner(RecordedAnswers(decide=[decided])).decide(charter, analysis, history).confirms
    assert named.contrast == Contrast(Relation.NO_BETTER, ("fast",), (charter.baseline,), 0.05)
    assert explore(charter, history, done=True, hypotheses=[NULL]).hypotheses == (named,)

    for wrong, message in (
        ({**NULL, "arms": ["nobody"]}, "there is no arm nobody"),
        ({**NULL, "arms": [charter.baseline]}, "confirm: .* cannot be confirmed"),
        ({**NULL, "relation": None}, "confirm: .* one of the relations"),
    ):
        answers = RecordedAnswers(decide=[{**decided, "confirm": [wrong]}])
        with pytest.raises(Unusable, match=message):
            LLMPlanner(answers).decide(charter, analysis, history)
        with pytest.raises(Unusable, match=message):
            explore(charter, history, done=True, hypotheses=[wrong])
    with pytest.raises(Unusable, match="there is nothing to confirm"):
        answers = RecordedAnswers(decide=[decided])
        LLMPlanner(answers).decide(replace(charter, search=None), analysis, History())


def test_rules_explore_and_respond_while_the_model_is_away(charter: Charter, history: History) -> None:
    events: list[tuple[str, str]] = []
    tuned = {"rationale": "r", "arms": [arm("fast", "tune", settings={"lr": 0.003})]}
    ready = RecordedAnswers(explore=[tuned], respond=[{"withdraw": False, "answer": "It is sound."}])
    planner = FallbackPlanner(
        LLMPlanner(RecordedAnswers()),
        LLMPlanner(ready),
        lambda topic: pytest.fail("no topic is read"),
        failures=(LanguageModelUnavailable,),
        plain="plain",
        report=lambda kind, line: events.append((kind, line)),
    )

    assert planner.explore(charter, History(runs_left=12.0), ()).author == "llm:recorded"
    assert planner.respond(charter, "fast", [], history).text == "It is sound."
    assert [kind for kind, _ in events] == ["rules.answered"] * 2


def test_rules_of_exploration_are_chosen_by_the_model_where_a_person_left_them_open() -> None:
    chosen = framed_search({"policy": "population", "rungs": [0.1, 1.0]}, max_runs=40).search
    assert chosen is not None
    assert (chosen.policy, chosen.rungs, chosen.runs) == (PolicyName.POPULATION, (0.1, 1.0), 20.0)
    usual = framed_search().search
    assert usual is not None and usual.policy is PolicyName.PLANNER
    for answer, message in (
        ({"rungs": [1.0, 0.5]}, "rungs: they rise"),
        ({"rungs": [0.5]}, "rungs: they rise"),
        ({"policy": "random"}, "policy: Input should be"),
    ):
        with pytest.raises(Unusable, match=message):
            framed_search(answer)
    with pytest.raises(Unusable, match="policy: only a study of the kind optimize explores"):
        framed_search({"kind": "compare", "vary": ["lr=1,2"], "policy": "population"}, kind="compare")
