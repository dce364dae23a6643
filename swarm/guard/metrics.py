"""The metrics of a training step that the rules read, by their names.

Place in the flow: limits.py and rules.py read them. This module knows nothing of limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

REWARD, SPREAD = "critic/score/mean", "critic/score/std"
SUCCESS = "batch/success_rate"
"""Share of the batch's episodes that the environment counts as solved, whatever their reward in training."""
AGREEMENT, GRADED_GROUPS = "batch/reward_success_correlation", "batch/graded_groups"
"""The correlation of return and success within groups, and the number of groups in which both differ."""
ENTROPY, KL = "actor/entropy", "actor/ppo_kl"
GROUPS, SILENT_GROUPS = "rollout/groups", "rollout/groups_zero_advantage"
"""The number of groups in a batch, and of those whose advantages are all zero, which teach nothing."""
BATCH_GROUPS = "batch/groups"
"""The number of groups as the server counts them, whatever the engine reports."""
UPDATES, SKIPPED_UPDATES = "actor/updates", "actor/updates_not_finite"
"""The number of a step's optimizer updates, and of those that were skipped because a gradient was not finite."""
WATCHED = (REWARD, SPREAD, SUCCESS, AGREEMENT, GRADED_GROUPS, ENTROPY, KL, GROUPS, SILENT_GROUPS, BATCH_GROUPS)

StepMetrics = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class StepRow:
    """The metrics of one step. Its rewards were earned with the weights of the step before."""

    step: int
    metrics: StepMetrics


def mean(rows: Sequence[StepRow], name: str) -> float | None:
    """Return the mean of a metric over the rows that have it, or None if none has."""
    values = [value for row in rows if (value := row.metrics.get(name)) is not None]
    return fmean(values) if values else None


def groups_of(rows: Sequence[StepRow]) -> float | None:
    """Return the mean number of groups of these steps, or None if it is unknown."""
    return mean(rows, GROUPS) or mean(rows, BATCH_GROUPS)


def silent_share(metrics: StepMetrics) -> float | None:
    """Return the share of groups that taught nothing."""
    groups, silent = metrics.get(GROUPS), metrics.get(SILENT_GROUPS)
    return silent / groups if groups and silent is not None else None
