"""The sentences about the number of runs and its power, for the plan, a refusal and the report.

Place in the flow: the `design` node and the report take these sentences. This module computes nothing.
"""

from __future__ import annotations

from researcher.charter import SampleSizeGoal
from researcher.plan import SampleSize


def describe_target(effect: float, *, is_worse: bool) -> str:
    """Return the difference that a study looks for, in words."""
    if is_worse:
        return f"an arm that is worse by {effect:g} (none can be better by so much)"
    return f"an arm that is better by {effect:g}"


def describe(goal: SampleSizeGoal, size: SampleSize) -> str:
    """Return the number of runs with its power, in one or two sentences."""
    cost = "" if size.seconds is None else f", about {size.seconds / 60:.0f} min of training"
    target = describe_target(goal.target_effect, is_worse=size.finds_worse)
    sentence = (
        f"{size.seeds} runs per arm, {size.runs} in all{cost}: {target} is "
        f"found with probability {size.power:.2f} among {size.comparisons} comparisons (variance from {size.basis})."
    )
    if size.power < goal.target_power:
        sentence += f" {size.wanted} runs per arm would be needed for {goal.target_power:g}."
        if size.noise_variance > size.seed_variance:
            sentence += " Most of the variance is evaluation noise: more --eval-episodes lower it."
    return sentence


def refuse(goal: SampleSizeGoal, size: SampleSize) -> str:
    """Return why the study stops, and what would let it go on."""
    target = describe_target(goal.target_effect, is_worse=size.finds_worse)
    return (
        f"the study would find {target} with probability {size.power:.2f} only "
        f"({size.seeds} runs per arm, variance from {size.basis}); {size.wanted} would be needed for "
        f"{goal.target_power:g}: start it anew with --seeds {size.wanted} and a budget for that, with more "
        "--eval-episodes, or with --underpowered"
    )
