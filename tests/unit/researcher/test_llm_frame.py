"""A question that a language model frames: as data, as a person's flags say it, and what later plans are held to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from researcher.charter import Charter, ComparedAt, Design, FrameRequest, JudgedBy, StudyKind
from researcher.errors import TopicInvalid
from researcher.history import History
from researcher.plan import Plan
from researcher.planner.language_model.answers import Unusable
from researcher.planner.language_model.framing import check_request, parse_frame
from researcher.planner.language_model.plans import parse_plan
from researcher.planner.rules import RulesPlanner
from researcher.question.wording import describe_question
from researcher.record.log import charter_from_json, to_json
from researcher.study.settings import StudySettings, read_settings

TOPIC = "Does it help?"
LR = ["lr=1e-3,3e-3"]
PROGRAMS = ["plain", "second try"]


def ask(**flags: Any) -> FrameRequest:
    return read_settings({"planner": "llm", "engine": "fake", **flags}).request(TOPIC)


def frame(request: FrameRequest | None = None, **answer: Any) -> Charter:
    text = json.dumps({"question": "Does it help?", "family": "reverse", **answer})
    charter = parse_frame(text, request or ask(), "llm:any")
    assert isinstance(charter, Charter)
    # As a study does: frozen, stored and read again.
    return charter_from_json(to_json(charter))


def arm(name: str, program: str = "", **settings: Any) -> dict[str, Any]:
    return {"name": name, "settings": settings, "program": program, "purpose": "r"}


def plan(charter: Charter, *arms: dict[str, Any], history: History | None = None) -> Plan:
    return parse_plan(json.dumps({"rationale": "r", "arms": list(arms), "seeds": 3}), charter, history or History())


def test_an_answer_is_the_question_that_the_same_flags_ask() -> None:
    said: dict[str, Any] = {"vary": [*LR, "num_repeat=4,8"], "fix": ["batch_size=8"], "baseline": ["num_repeat=4"]}
    by_model = frame(None, **said, ask="matters_more")
    by_flags = RulesPlanner().frame(
        read_settings({"engine": "fake", "family": "reverse", "asked": "matters_more", **said}).request(TOPIC)
    )

    assert (by_model.asks, by_model.job) == (by_flags.asks, by_flags.job)
    assert by_model.asks.design is Design.FACTORIAL and by_model.baseline == by_flags.baseline
    assert [*describe_question(by_model)][1:] == [*describe_question(by_flags)][1:]


def test_arms_of_a_framed_question_are_its_levels_and_the_baseline_is_added() -> None:
    charter = frame(vary=LR, programs=PROGRAMS, baseline=["plain"])
    planned = plan(charter, arm("try", "second try"), arm("fast", lr=3e-3), arm("both", "second try", lr=3e-3))

    assert [item.factors for item in planned.arms] == [
        {"program": "plain", "lr": 0.001},
        {"program": "second try", "lr": 0.001},
        {"program": "plain", "lr": 0.003},
        {"program": "second try", "lr": 0.003},
    ]
    assert planned.arms[0].is_baseline and planned.arms[0].name == "plain lr=0.001" == charter.baseline
    # A program is written once: the other arms that have it name the first one.
    assert [item.parent for item in planned.arms] == [None, *[charter.baseline] * 3]
    assert [item.program_of for item in planned.arms] == [None, None, charter.baseline, "try"]


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ([arm("try", "second try"), arm("fast", lr=3e-3)], "asks for second try lr=0.003 as well"),
        ([arm("try", "third try")], "arm try: program has one of the levels plain, second try"),
        ([arm("fast", lr=1e-2)], "arm fast: lr has one of the levels lr=0.001, lr=0.003"),
        ([arm("small", batch_size=4)], "arm small: batch_size cannot be set; choose from lr"),
    ],
)
def test_plan_that_leaves_the_framed_question_is_refused(arms: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        plan(frame(vary=LR, programs=PROGRAMS), *arms)
    with pytest.raises(Unusable, match="the question compares no programs"):
        plan(frame(vary=LR), arm("fast", "second try", lr=3e-3))


def test_later_plan_of_a_comparison_may_repeat_a_part_of_its_arms() -> None:
    charter = frame(vary=["lr=1e-3,3e-3,1e-2"])
    first = plan(charter, arm("lr=0.003", lr=3e-3), arm("lr=0.01", lr=1e-2))
    later = plan(charter, arm("lr=0.01", lr=1e-2), history=History(plans=(first,)))

    assert [item.name for item in later.arms] == ["lr=0.001", "lr=0.01"]


def test_search_is_free_within_the_space_that_was_framed() -> None:
    closed = frame(kind="optimize", vary=["lr=1e-3,3e-3,1e-2"], programs=PROGRAMS)
    free = frame(kind="optimize")

    assert len(plan(closed, arm("fast", "second try", lr=1e-2)).arms) == 2
    with pytest.raises(Unusable, match="lr has one of the levels"):
        plan(closed, arm("faster", lr=1.0))
    tried = plan(free, arm("faster", "asks itself again", lr=1.0)).arms
    assert [item.factors for item in tried] == [
        {"lr": 0.001, "program": "plain"},
        {"lr": 1.0, "program": "asks itself again"},
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, "nothing is compared"),
        ({"programs": ["plain"]}, "programs: name two or more"),
        ({"vary": ["lr=1e-3"]}, "--vary: lr has one level"),
        ({"vary": ["learning_rate=1,2"]}, "did you mean 'lr'"),
        ({"vary": LR, "baseline": ["lr=1"]}, "there is no level 'lr=1': choose from lr=0.001, lr=0.003"),
        ({"vary": LR, "ask": "interaction"}, "--ask interaction is about two factors"),
        ({"vary": LR, "ask": "sooner"}, "judged_by: area needs scores in mid-training: give eval_every"),
        ({"vary": LR, "fix": ["lr=1"]}, "--fix fixes"),
        ({"vary": LR, "fix": ["num_repeat=1000"]}, "batch_size .* is above 2048"),
        ({"vary": ["model=nano,/etc"]}, "a person alone may ask for model"),
        ({"vary": LR, "fix": ["total_steps=9000"]}, "a person alone may ask for total_steps"),
        ({"vary": ["a: lr=1e-3; b: lr=1e-3"]}, "a and b are the same arm at equal episodes"),
        ({"vary": ["lr=1,2,3,4", "batch_size=1,2,3,4"], "design": "factorial"}, "16 arms, and a plan .* at most 12"),
        ({"kind": "optimize", "design": "factorial"}, "design: a search chooses its arms"),
        ({"vary": LR, "factors": ["lr"]}, "factors: there is no such field"),
        ({"vary": LR, "family": "chess"}, "there is no task family 'chess'"),
    ],
)
def test_answer_that_is_no_question_is_refused_by_name(answer: dict[str, Any], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        frame(**answer)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"vary": ["batch_size=8,16"], "programs": PROGRAMS},
        {"kind": "optimize", "ask": "equal"},
        {"vary": ["lr=1e-3,3e-3,1e-2"], "fix": ["num_repeat=4", "temperature=1"], "baseline": ["lr=0.001"]},
        {"question": "Is a batch of 16 better?", "compared_at": "episodes"},
    ],
)
def test_what_a_person_said_stands_whatever_the_answer_says_of_it(answer: dict[str, Any]) -> None:
    request = ask(vary=LR, fix=["num_repeat=8"], asked="best", baseline=["lr=0.003"], equal="steps")
    charter = frame(request, **answer)

    assert charter.asks == request.question and charter.baseline == "lr=0.003"
    assert charter.compared_at == ComparedAt.STEPS
    assert charter.question == "Which learning rate is best for word reversal?"


def test_an_answer_chooses_what_a_person_left_open() -> None:
    charter = frame(ask(vary=LR, equal="steps"), baseline=["lr=0.003"], ask="better")

    assert charter.baseline == "lr=0.003" and charter.asks.asked == "better"
    equal = frame(ask(asked="equal", margin=0.05), vary=LR)
    assert (equal.asks.asked, equal.margin) == ("equal", 0.05)
    with pytest.raises(Unusable, match="--ask interaction is about two factors"):
        frame(ask(vary=LR), ask="interaction")
    search = frame(ask(kind="optimize", fix=["num_repeat=8"]), kind="compare", vary=LR, fix=["num_repeat=4"])
    assert (search.asks.kind, search.job["num_repeat"]) == (StudyKind.OPTIMIZE, 8)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"vary": ["lr=1,2,3,4", "batch_size=1,2,3,4"], "design": "factorial"}, "at most 12"),
        ({"vary": ["total_steps=2,3"], "equal": "episodes"}, "are the same arm at equal episodes"),
        ({"vary": ["min_group=2,100"]}, "arm min_group=100"),
    ],
)
def test_factors_of_a_person_that_no_plan_could_hold_cost_no_call(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(TopicInvalid, match=message):
        check_request(ask(**flags))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"design": "factorial"}, "--design: it is about several factors"),
        ({"baseline": ("lr=1",)}, "--baseline: there is no level 'lr=1': name a factor with --vary"),
        ({"fix": ("lr=a",)}, "--fix: lr cannot be 'a'"),
    ],
)
def test_flags_without_factors_are_honoured_or_refused_with_a_language_model(
    flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(TopicInvalid, match=message):
        StudySettings(planner="llm", **flags).request(TOPIC)


MEASURED: dict[str, Any] = {
    "judged_by": "area", "eval_every": 5, "eval_episodes": 100, "steps": 20, "attempt_calls": 3, "attempt_tokens": 900,
}  # fmt: skip


def test_model_chooses_how_runs_are_measured_where_the_person_left_it_open() -> None:
    charter = frame(vary=LR, **MEASURED)

    assert {name: getattr(charter, name) for name in MEASURED if name != "steps"} == {
        name: value for name, value in MEASURED.items() if name != "steps"
    }
    assert charter.job["total_steps"] == 20
    by_tokens = frame(vary=LR, compared_at="tokens", amount=5000)
    assert (by_tokens.compared_at, by_tokens.amount) == ("tokens", 5000)
    counted = frame(vary=LR, judged_by="steps-to", judged_level=0.5, eval_every=5, compared_at="steps")
    assert (counted.judged_by, counted.judged_level) == (JudgedBy.STEPS_TO, 0.5)
    assert frame(vary=LR, ask="sooner", eval_every=5).judged_by is JudgedBy.AREA


def test_measurement_that_a_person_fixed_stays() -> None:
    request = ask(metric="final", steps=10, eval_episodes=50, eval_every=2, attempt_calls=4, attempt_tokens=80)

    assert frame(request, vary=LR, **{**MEASURED, "judged_by": "spread"}) == frame(request, vary=LR)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"judged_by": "area"}, "judged_by: area needs scores in mid-training"),
        ({"judged_by": "best"}, "judged_by: Input should be"),
        ({"judged_by": "steps-to", "eval_every": 5}, "judged_level: it is the score"),
        ({"judged_level": 0.5}, "judged_level: it is the score"),
        ({"judged_by": "steps-to", "judged_level": 0.5, "eval_every": 5}, "say compared_at steps"),
        ({"judged_by": "spread", "ask": "sooner", "eval_every": 5}, "ask: sooner is judged by area or steps-to"),
        ({"eval_every": 99}, "eval_every: a run has 30 steps"),
        ({"eval_every": 5, "compared_at": "time"}, "eval_every: compared_at time ends runs at unknown steps"),
        ({"amount": 100}, "amount: it is a number of tokens or seconds"),
        ({"steps": 301}, "steps: at most 300, got 301: only a person may ask for more"),
        ({"seeds": 3}, "seeds: there is no such field"),
        ({"alpha": 0.5}, "alpha: there is no such field"),
    ],
)
def test_measurement_that_cannot_be_is_refused_by_name(answer: dict[str, Any], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        frame(vary=LR, **answer)
