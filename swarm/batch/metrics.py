"""The metrics of a closed batch that the server computes itself, whatever the engine reports.

Place in the flow: the training loop adds them to those of a step. This module knows nothing of weights and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from swarm.batch.pool import ClosedBatch
from swarm.guard import AGREEMENT, GRADED_GROUPS, SUCCESS
from swarm.types import FinishedEpisode


def batch_metrics(closed: ClosedBatch, drain_s: float) -> dict[str, float]:
    """Return the metrics of a batch, and `timing/drain_s`, the seconds that its last episodes were waited for."""
    return {
        "batch/episodes": float(len(closed.batch.members)),
        "batch/groups": float(len(closed.batch.groups)),
        "batch/short_groups": float(closed.short_groups),
        "batch/missing_groups": float(closed.missing_groups),
        "batch/dropped_episodes": float(len(closed.dropped)),
        "batch/dropped_tokens": float(sum(drop.trained_tokens for drop in closed.dropped)),
        **_success_rate(closed.batch.episodes),
        **_agreement([group.episodes for group in closed.batch.groups]),
        "timing/drain_s": drain_s,
    }


def _success_rate(episodes: Sequence[FinishedEpisode]) -> dict[str, float]:
    """Return the share of successes among the episodes whose clients report success or failure, if there are any."""
    successes = [episode.is_success for episode in episodes if episode.is_success is not None]
    return {SUCCESS: fmean(successes)} if successes else {}


def _agreement(groups: Iterable[Sequence[FinishedEpisode]]) -> dict[str, float]:
    """Return the correlation of return and success within groups, and the number of groups that tell anything of it.

    Such a group has episodes of both outcomes and different returns. The correlation is Pearson's, of the deviations
    from the means of the groups. Both metrics are missing if no group tells anything.
    """
    pairs: list[tuple[float, float]] = []
    count = 0
    for group in groups:
        # An algorithm may learn from named rewards instead of from the reward.
        known = [
            (each.reward + sum(each.turn_rewards or ()), float(each.is_success))
            for each in group
            if each.is_success is not None and each.rewards is None
        ]
        if len({reward for reward, _ in known}) > 1 and len({success for _, success in known}) > 1:
            count += 1
            pairs += _deviations(known)
    rewards, successes = (math.sqrt(sum(pair[place] ** 2 for pair in pairs)) for place in (0, 1))
    if not rewards or not successes:
        return {}
    return {AGREEMENT: sum(a * b for a, b in pairs) / rewards / successes, GRADED_GROUPS: float(count)}


def _deviations(known: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    reward, success = fmean(each[0] for each in known), fmean(each[1] for each in known)
    return [(each[0] - reward, each[1] - success) for each in known]
