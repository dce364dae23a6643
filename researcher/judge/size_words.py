"""The sentences about a number of runs and its power."""

from __future__ import annotations

from researcher.charter import SampleSizeGoal
from researcher.plan import SampleSize


def describe_target(effect: float, *, is_worse: bool, margin: float | None = None) -> str:
    """Return what a study is to find, as the first half of "... with probability 0.8".

    `margin` is that of a question for equality.
    """
    if margin is not None:
        return f"an arm as good as the baseline is called equal within {margin:g}"
    if is_worse:
        return f"an arm that is worse by {effect:g} (none can be better by so much) is found"
    return f"an arm that is better by {effect:g} is found"


def describe_size(goal: SampleSizeGoal, size: SampleSize, need: str = "") -> str:
    """Return the number of runs with its power, in one or two sentences; `need` says what the goal takes."""
    cost = "" if size.seconds is None else f", about {size.seconds / 60:.0f} min of training"
    sentence = (
        f"{size.seeds} runs per arm, {size.runs} in all{cost}: {_target_of(goal, size)} with probability "
        f"{size.power:.2f} among {size.comparisons} comparisons (variance from {size.basis})."
    )
    if size.power >= goal.target_power:
        return sentence
    if need:
        return f"{sentence} A probability of {goal.target_power:g} takes {need}."
    sentence += f" {size.wanted} runs per arm would be needed for {goal.target_power:g}."
    if size.noise_variance > size.seed_variance:
        sentence += " Most of the variance is evaluation noise: more --eval-episodes lower it."
    return sentence


def refuse_size(goal: SampleSizeGoal, size: SampleSize, need: str = "") -> str:
    """Return why the study stops, and what would let it go on."""
    found = (
        f"{_target_of(goal, size)} with probability {size.power:.2f} only ({size.seeds} runs per arm, variance from "
        f"{size.basis})"
    )
    if need:
        return f"{found}; {goal.target_power:g} takes {need}. Start the study anew so, or with --underpowered"
    return (
        f"{found}; {size.wanted} would be needed for {goal.target_power:g}: start it anew with --seeds {size.wanted} "
        "and a budget for that, with more --eval-episodes, or with --underpowered"
    )


def _target_of(goal: SampleSizeGoal, size: SampleSize) -> str:
    return describe_target(goal.target_effect, is_worse=size.finds_worse, margin=size.margin)
