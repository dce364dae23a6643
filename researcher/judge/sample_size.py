"""What is said of the number of runs and its power: before the first run, in a refusal, and in the report.

Place in the flow: the `design` node and the report take their words from here. This module computes nothing.
"""

from __future__ import annotations

from researcher.types import SampleSize, SampleSizeGoal


def describe(goal: SampleSizeGoal, size: SampleSize) -> str:
    """The number of runs with its power, in one or two sentences."""
    cost = "" if size.seconds is None else f", about {size.seconds / 60:.0f} min of training"
    said = (
        f"{size.seeds} runs per arm, {size.runs} in all{cost}: an arm that is better by {goal.target_effect:g} is "
        f"found with probability {size.power:.2f} among {size.comparisons} comparisons (variance from {size.basis})."
    )
    if size.power < goal.target_power:
        said += f" {size.wanted} runs per arm would be needed for {goal.target_power:g}."
        if size.noise_variance > size.seed_variance:
            said += " Most of the variance is evaluation noise: more --eval-episodes lower it."
    return said


def refuse(goal: SampleSizeGoal, size: SampleSize) -> str:
    """Why the study stops, and what would let it go on."""
    return (
        f"the study would find an arm that is better by {goal.target_effect:g} with probability {size.power:.2f} only "
        f"({size.seeds} runs per arm, variance from {size.basis}); {size.wanted} would be needed for "
        f"{goal.target_power:g}: start it anew with --seeds {size.wanted} and a budget for that, with more "
        "--eval-episodes, or with --underpowered"
    )
