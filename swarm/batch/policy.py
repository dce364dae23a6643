"""The rules of a batch: its changeable settings, which episodes it may contain, and its tasks per data source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from swarm.job import GROUP_TIMEOUT_S, STALL_TIMEOUT_S, TrainJob
from swarm.schemas import STOP_RULES, StopRule, StopRuleTraits
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


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The rules for one batch.

    `drain_timeout_s` is how long a complete batch waits for running episodes. `batch_timeout_s` is how long a batch
    waits at all, after its first episode. After `group_timeout_s`, a group counts with the episodes it has if none of
    its episodes runs or waits to begin. After `stall_timeout_s`, so does a batch without running train episodes.

    `max_staleness` is in weight versions. `mixture` maps data sources to shares that sum to 1. `reward_keys` are the
    named rewards by which episodes are compared, instead of their reward. With `has_greedy` one episode of each group
    is greedy, and the others are compared with it. `reward_keys` and `has_greedy` never change within a run.
    """

    stop_rule: StopRule
    batch_size: int
    num_repeat: int
    min_group: int
    drain_timeout_s: float
    batch_timeout_s: float | None
    max_staleness: int
    mixture: Mapping[str, float] | None
    group_timeout_s: float = GROUP_TIMEOUT_S
    stall_timeout_s: float = STALL_TIMEOUT_S
    reward_keys: tuple[str, ...] | None = None
    has_greedy: bool = False

    @property
    def rule(self) -> StopRuleTraits:
        return STOP_RULES[self.stop_rule]

    @property
    def is_grouped(self) -> bool:
        """True if a batch is a fixed number of groups of a fixed number of episodes."""
        return self.rule.is_grouped

    @classmethod
    def of(cls, job: TrainJob) -> BatchPolicy:
        resolved = job.resolve()
        assert resolved.min_group is not None, "a resolved job has min_group"
        same = {each.name: getattr(resolved, each.name) for each in fields(cls) if each.name != "reward_keys"}
        return cls(**same, reward_keys=None if resolved.gdpo_reward_keys is None else tuple(resolved.gdpo_reward_keys))


MAX_CARRY = 1.0
"""The largest carry, so that a source that was silent for long does not crowd the others out when it returns. Full
batches never reach it."""


def share_out(mixture: Mapping[str, float], batch_size: int, carry: Mapping[str, float]) -> dict[str, int]:
    """Return the tasks per data source of the next batch, summing to `batch_size`.

    One task after another goes to the source that must have one soonest among those that are due one (R. Tijdeman, "The
    chairman assignment problem", 1980). So no source is ever a whole task away from its share, however many batches
    follow one another. Rounding each batch by largest remainder cannot promise that with many small shares.
    """
    shares = _normalized(mixture)
    margin = 1 / (2 * len(shares) - 2) if len(shares) > 1 else 0.0
    behind = {source: carry.get(source, 0.0) for source in shares}
    quotas = dict.fromkeys(shares, 0)
    for _ in range(batch_size):
        for source, share in shares.items():
            behind[source] += share
        due = [source for source in shares if behind[source] >= margin - 1e-9]
        if due:
            chosen = min(due, key=lambda source: (_slack(behind[source], margin, shares[source]), source))
        else:
            chosen = max(shares, key=lambda source: (behind[source], source))
        behind[chosen] -= 1
        quotas[chosen] += 1
    return quotas


def carry_over(
    mixture: Mapping[str, float], carry: Mapping[str, float], trained: Mapping[str, int]
) -> dict[str, float]:
    """Return the carry after so many more tasks of each data source were `trained`.

    Sources outside the mixture are left out. A carry is at most one task either way.
    """
    shares = _normalized(mixture)
    total = sum(trained.get(source, 0) for source in shares)
    exact = {
        source: carry.get(source, 0.0) + share * total - trained.get(source, 0) for source, share in shares.items()
    }
    return {source: max(-MAX_CARRY, min(MAX_CARRY, behind)) for source, behind in exact.items()}


def _slack(behind: float, margin: float, share: float) -> float:
    """Return in how many tasks from now the source would be a task behind, less the margin.

    The result is rounded so that equal sources stay equal.
    """
    return round((1 - margin - behind) / share, 6)


def _normalized(mixture: Mapping[str, float]) -> dict[str, float]:
    """Return shares that sum to 1 exactly, since shares such as 0.333 do so only nearly."""
    total = sum(mixture.values())
    return {source: mixture[source] / total for source in sorted(mixture)}
