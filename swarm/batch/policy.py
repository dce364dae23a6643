"""When a batch is complete, how long it waits, and what it may hold: the settings that can change between batches.

Place in the flow: made of the job or of a live change, read by the pool. It knows nothing of episodes or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from swarm.job import GROUP_TIMEOUT_S, STALL_TIMEOUT_S, TrainJob
from swarm.schemas import GROUPED_RULES, StopRule


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """`drain_timeout_s` is how long a complete batch waits for episodes still running; `batch_timeout_s` how long,
    after its first episode, a batch waits at all. A group none of whose episodes runs or is asked for counts with what
    it has after `group_timeout_s`, a batch in which no train episode runs after `stall_timeout_s`. `max_staleness` is
    in weight versions. `mixture` maps data sources to shares that sum to 1. `reward_keys` are the named rewards that
    episodes are compared by, instead of their reward. With `has_greedy` one episode of each group is greedy, and the
    others are compared with it. One run has the same of both throughout.
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
        """Whether clients say when a batch is complete."""
        return self.stop_rule in {"any_client_agrees", "all_clients_agree"}

    @property
    def is_grouped(self) -> bool:
        """Whether a batch is so many groups of so many episodes each."""
        return self.stop_rule in GROUPED_RULES

    @property
    def needs_contrast(self) -> bool:
        """Whether a group whose rewards are all equal does not count."""
        return self.stop_rule == "enough_non_constant_tasks"

    @classmethod
    def of(cls, job: TrainJob) -> BatchPolicy:
        resolved = job.resolve()
        assert resolved.min_group is not None, "a resolved job has min_group"
        same = {each.name: getattr(resolved, each.name) for each in fields(cls) if each.name != "reward_keys"}
        return cls(**same, reward_keys=None if resolved.gdpo_reward_keys is None else tuple(resolved.gdpo_reward_keys))
