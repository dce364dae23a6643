"""At what arms are equal: steps by episodes, shares of tokens and seconds, and what a whole number of steps leaves."""

from __future__ import annotations

import pytest

from researcher.charter import Charter
from researcher.equal_amounts import count_episodes
from researcher.errors import TopicInvalid
from researcher.history import History
from researcher.loop.settings_check import check_study
from researcher.plan import Plan
from researcher.planner.rules import RulesPlanner
from researcher.study.settings import read_settings
from researcher.study.topics import read_request


def _begin(topic: str, **flags: object) -> tuple[Charter, Plan]:
    planner = RulesPlanner()
    charter = planner.frame(read_request(topic, read_settings(flags)))
    return charter, planner.plan(charter, History())


@pytest.mark.parametrize(
    "topic",
    [
        "batch size 8, 16 or 32 on sorting",
        "group size 2, 4 or 8 on sorting",
        "group size 4 or 8 and batch size 8 or 32 on sorting",
        "minibatches on sorting",
        "GRPO or RLOO on sorting",
    ],
)
def test_arms_train_on_the_same_number_of_episodes(topic: str) -> None:
    charter, plan = _begin(topic, steps=40)

    assert charter.compared_at == "episodes"
    for arm in plan.arms:
        assert {name: arm.job.get(name) for name in arm.factors.keys() & {"num_repeat", "batch_size"}} == {
            name: value for name, value in arm.factors.items() if name in ("num_repeat", "batch_size")
        }
    assert len({count_episodes(arm.job) for arm in plan.arms}) == 1


@pytest.mark.parametrize(
    ("topic", "flags", "compared_at", "amount", "steps"),
    [
        ("batch size 8 or 32 on sorting at equal steps", {"steps": 40}, "steps", 0, {40}),
        ("20 or 40 steps on sorting", {}, "steps", 0, {20, 40}),
        ("nano or micro on copying", {"equal": "tokens=9000"}, "tokens", 9000, None),
        ("nano or micro on copying", {"equal": "time=180"}, "time", 180, None),
    ],
)
def test_what_is_equal_is_as_the_topic_or_a_flag_says(
    topic: str, flags: dict[str, object], compared_at: str, amount: float, steps: set[int] | None
) -> None:
    charter, plan = _begin(topic, **flags)

    assert (charter.compared_at, charter.amount) == (compared_at, amount)
    assert steps in (None, {arm.job["total_steps"] for arm in plan.arms})


def test_limits_on_a_reply_are_those_of_the_environment() -> None:
    charter, plan = _begin("Does the reply length matter for tool use?")

    assert [arm.factors["max_response_length"] for arm in plan.arms] == [24, 48, 96]
    assert charter.baseline == "max_response_length=48"


@pytest.mark.parametrize(
    ("topic", "compared_at", "amount"),
    [
        ("nano or micro on copying at the same number of tokens", "tokens", 10 * 128 * 12 / 2),
        ("nano or micro on copying at equal time", "time", 20),
    ],
)
def test_training_quota_is_in_the_charter_and_its_steps_cannot_end_it_first(
    topic: str, compared_at: str, amount: float
) -> None:
    charter, plan = _begin(topic, steps=10)

    assert (charter.compared_at, charter.amount) == (compared_at, amount)
    assert any("Every run ends with the step that reaches" in said for said in charter.assumptions)
    # An episode has at least one token.
    assert all(compared_at == "time" or count_episodes(arm.job) >= amount for arm in plan.arms)
    assert [arm.factors["model"] for arm in plan.arms] == ["nano", "micro"]


def test_whole_steps_that_leave_a_difference_are_said() -> None:
    charter, _ = _begin("batch size 2 or 3 on sorting", steps=2)

    assert any("batch_size=3 trains on 24 episodes and batch_size=2 on 32" in said for said in charter.assumptions)


def test_scores_at_steps_and_a_share_contradict_each_other() -> None:
    with pytest.raises(TopicInvalid, match="--eval-every"):
        check_study("nano or micro", read_settings({"vary": ["model=nano,micro"], "equal": "time", "eval_every": 5}))
