"""What is asked of several factors decides which combinations are run, and the question says it."""

from __future__ import annotations

import pytest

from researcher.planner.rules import RulesPlanner
from researcher.types import Charter, FrameRequest, History, Plan


def _begin(topic: str) -> tuple[Charter, Plan]:
    planner = RulesPlanner(gpus=0)
    charter = planner.frame(FrameRequest(topic))
    return charter, planner.plan(charter, History())


@pytest.mark.parametrize(
    ("topic", "arms", "question"),
    [
        (
            "What matters more on word reversal, the learning rate or the group size, and what is the best setting?",
            9,
            "On reverse, which of lr and num_repeat matters more, and which setting of lr and num_repeat is best?",
        ),
        ("Does lr interact with temperature on sorting?", 4, "On sort, do lr and temperature interact?"),
        ("Find the best lr, temperature and group size on sorting", 8, None),
        ("Which matters more on sorting, lr or temperature?", 5, "On sort, which of lr and temperature matters more?"),
        ("Find the lr where training on copying diverges", 5, "At which lr does training on copy diverge?"),
        ("Is PPO clipping needed for multi-turn tool use?", 2, "Is clip_ratio needed on calc?"),
        ("Which lr is best on sorting?", 3, "On sort, which lr is best?"),
        ("Does lr matter on sorting?", 3, "How does lr change what is learned on sort?"),
    ],
)
def test_question_decides_the_arms(topic: str, arms: int, question: str | None) -> None:
    charter, plan = _begin(topic)

    assert len(plan.arms) == arms
    assert question is None or charter.question == question


@pytest.mark.parametrize(
    ("topic", "baseline"),
    [
        ("Does raising the learning rate from 1e-4 to 1e-3 help on word reversal?", "lr=0.0001"),
        ("Is a learning rate of 1e-3 better than 1e-4 for word reversal?", "lr=0.0001"),
        ("Is a group size of 16 better than a group size of 4 on sorting?", "num_repeat=4"),
        ("Does lowering the temperature from 1.3 to 0.7 hurt copying?", "temperature=1.3"),
        ("Is GRPO better than RLOO on sorting?", "rloo"),
        ("Does GSPO instead of GRPO help on sorting?", "grpo"),
        ("lr 1e-4 or 1e-3 on word reversal", "lr=0.001"),
        ("Which lr is better on copying than the others: 1e-4 or 1e-3?", "lr=0.001"),
        ("lr from 1e-4 to 1e-2 and temperature 0.7 or 1.0 on copying", "lr=0.0001 temperature=1"),
    ],
)
def test_what_a_topic_compares_with_is_the_baseline(topic: str, baseline: str) -> None:
    charter, plan = _begin(topic)

    assert charter.baseline == baseline
    assert [arm.name for arm in plan.arms if arm.is_baseline] == [baseline]
