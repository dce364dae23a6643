"""The settings that can change between batches: when a batch is complete, how long it waits, and what it may contain.

Place in the flow: made from the job or from a live change, read by the pool. It knows nothing of episodes or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from swarm.job import GROUP_TIMEOUT_S, STALL_TIMEOUT_S, TrainJob
from swarm.schemas import GROUPED_RULES, StopRule


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
    def is_by_agreement(self) -> bool:
        """True if clients decide when a batch is complete."""
        return self.stop_rule in {"any_client_agrees", "all_clients_agree"}

    @property
    def is_grouped(self) -> bool:
        """True if a batch is a fixed number of groups of a fixed number of episodes."""
        return self.stop_rule in GROUPED_RULES

    @property
    def needs_contrast(self) -> bool:
        """True if a group whose rewards are all equal does not count."""
        return self.stop_rule == "enough_non_constant_tasks"

    @classmethod
    def of(cls, job: TrainJob) -> BatchPolicy:
        resolved = job.resolve()
        assert resolved.min_group is not None, "a resolved job has min_group"
        same = {each.name: getattr(resolved, each.name) for each in fields(cls) if each.name != "reward_keys"}
        return cls(**same, reward_keys=None if resolved.gdpo_reward_keys is None else tuple(resolved.gdpo_reward_keys))
