"""The test of which finished episodes may be trained, and the reason why another one may not.

Place in the flow: the pool asks here about each episode and each group, when it counts them and when it closes a batch.
Pure functions of the episode; this module knows nothing of time, storage or training.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from swarm.types import FinishedEpisode


class DropReason(StrEnum):
    """The reason why an episode was not trained. Every episode that leaves a pool untrained carries exactly one.

    `no_tokens`: nothing was sampled. `stale`: a token was sampled with weights too old, or with weights that no longer
    exist. `group_too_small`: fewer than `min_group` episodes of its task were left. `constant_reward`: all rewards of
    its group were equal, and the stop rule asks for different ones. `group_closed`: its group was trained without it.

    `no_baseline`: the algorithm compares the episodes of a group with a greedy one, and its group had no greedy episode
    or no others. `over_quota`: the batch, or its data source in a mixture, had enough without it, and the next
    batch cannot use it.
    """

    NO_TOKENS = "no_tokens"
    STALE = "stale"
    GROUP_TOO_SMALL = "group_too_small"
    NO_BASELINE = "no_baseline"
    CONSTANT_REWARD = "constant_reward"
    OVER_QUOTA = "over_quota"
    GROUP_CLOSED = "group_closed"


@dataclass(frozen=True, slots=True)
class DroppedEpisode:
    """An episode that leaves the pool untrained. `trained_tokens` counts the sampled tokens lost with it."""

    episode_id: str
    reason: DropReason
    trained_tokens: int


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """The oldest and newest weight version among an episode's sampled tokens."""

    oldest: int
    newest: int


def version_span(episode: FinishedEpisode) -> VersionSpan | None:
    """Return the span of versions, or None if nothing was sampled. Prompt tokens have no version and do not count."""
    versions = {
        version
        for sample in episode.samples
        for version, trained in zip(sample.weight_versions_T, sample.loss_mask_T, strict=True)
        if trained
    }
    return VersionSpan(min(versions), max(versions)) if versions else None


def refuse(span: VersionSpan | None, *, weight_version: int, max_staleness: int) -> DropReason | None:
    """Return why an episode with this span cannot be trained on top of `weight_version`; None if it can.

    The staleness of a token is `weight_version` minus the version it was sampled with; it must lie in [0,
    `max_staleness`]. It is negative when the server went back to an older checkpoint. Those weights are gone, so the
    token is off-policy by an unknown amount.
    """
    if span is None:
        return DropReason.NO_TOKENS
    if span.newest > weight_version or span.oldest < weight_version - max_staleness:
        return DropReason.STALE
    return None
