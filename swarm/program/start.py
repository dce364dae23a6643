"""Whether reward alone can start: whether enough groups of attempts hold a success to learn from."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.pass_at_k import PassAtK, text_of, upper_bound

LEARNABLE_FROM = 0.03
"""Below this mean of the grades, partial credit is as rare as success."""
NEAR_ZERO = 0.2
"""Where pass@k of a group is below this with 95 % confidence, four groups in five hold no success to learn from."""
WAYS_ON = (
    "demonstrations first (swarm sft, or sft_steps of a job), partial credit for what is half right, easier tasks"
    " first, or another model"
)
"""The ways on where no attempt earns anything, so that reward alone teaches nothing."""


def describe_start(passes: Sequence[PassAtK], group: int) -> str:
    """Return pass@k of a base score in one line, also for a group of so many attempts."""
    known = text_of(passes)
    if max(each.k for each in passes) >= group:
        return known
    return f"{known}; pass@{group}, that of a group, is at most {upper_bound(passes, group):.3f}"


def find_obstacle(
    passes: Sequence[PassAtK], group: int, *, mean: float, high: float | None, stderr: float | None
) -> str | None:
    """Return why reward alone can hardly start and the ways on, or None if it may.

    `mean`, `high` and `stderr` are those of the grades: partial credit gives reward something to learn from.
    """
    bound = upper_bound(passes, group)
    # Grades below 0 do not show by their mean that no attempt earned anything, unless they are all equal.
    is_flat = not stderr and not any(each.mean for each in passes)
    is_low = is_flat or (mean >= 0 and high is not None and high < LEARNABLE_FROM)
    if is_low and bound < NEAR_ZERO:
        return (
            f"reward alone has hardly anything to learn from: at most {bound:.1%} of groups of {group} attempts hold a"
            f" success. Ways on: {WAYS_ON}"
        )
    if is_flat:
        return (
            f"no attempt solved its task, and they are too few to tell whether reward alone can start: up to"
            f" {bound:.0%} of groups of {group} attempts may hold a success. More tasks (--eval-episodes) or attempts"
            f" (--k {2 * group}) tell. Ways on if it cannot: {WAYS_ON}"
        )
    return None
