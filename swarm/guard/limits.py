"""The limits of the rules, and how they widen where healthy trainings came close to them.

Place in the flow: rules.py compares the metrics of a training with them. This module knows nothing of what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from swarm.guard.metrics import KL, REWARD, StepMetrics, silent_share

MARGIN = 2
"""A limit is at least so many times the largest value in trainings that went well."""


@dataclass(frozen=True, slots=True)
class MetricLimits:
    """The limits beyond which a training is not worth going on.

    collapse_*: over one of the `windows`, in steps, the mean fell below `fraction` of the best such window, which was
    at least `floor`. The fall is larger than `deviations` standard errors, with every group counted as one episode.
    So a few groups need a long window, and many groups a short one. `reward_fraction` is the fraction for the training
    reward of a program whose success rate is known, because a program may change its reward on the way.
    dead_steps: steps in a row without any reward. At 128 episodes a step, no skill that rare can be learned.
    kl_limit: the largest absolute KL divergence of one step.
    silent_*: over so many steps the rewards were equal in at least this share of all groups, while at most `solved` of
    the episodes are successes. Nothing is learned any more, and the task is not learned yet.
    evidence_groups: the least number of groups behind `dead_steps` and `silent_steps`. With small batches, more steps
    are needed.
    entropy_fraction: over `silent_steps` the entropy stayed below this fraction of its mean in the first `window`,
    with the task likewise unsolved. The policy has settled on one answer.
    gap_*: from the first to the last `window` steps the training reward rose by at least `rise` standard
    deviations of an episode's reward, while the success rate fell by at least `fall`. The program's reward is then
    learned at the cost of the task.
    contrary_*: in the newest `steps` or more, with at least `groups` graded groups, the correlation of reward and
    success is at most `correlation`. The reward then teaches to fail.
    """

    windows: tuple[int, ...] = (3, 5, 10, 20)
    collapse_fraction: float = 1 / 3
    collapse_reward_fraction: float = 0.1
    collapse_floor: float = 0.1
    collapse_deviations: float = 4.0
    dead_steps: int = 12
    window: int = 5
    kl_limit: float = 10.0
    silent_steps: int = 12
    silent_share: float = 0.98
    solved: float = 0.9
    evidence_groups: int = 100
    entropy_fraction: float = 0.01
    gap_rise: float = 1.0
    gap_fall: float = 0.1
    contrary_steps: int = 3
    contrary_groups: int = 12
    contrary_correlation: float = -0.5

    def learned_from(self, healthy: Iterable[Sequence[StepMetrics]]) -> Self:
        """Return limits that are wider where healthy runs came close to these; each run is given as its steps in order.

        The baseline shows how late the first reward may come and for how long steps may teach nothing. It also shows
        how far one step may move the policy.
        """
        limits = self
        for steps in healthy:
            moved = [abs(value) for step in steps if (value := step.get(KL)) is not None]
            limits = replace(
                limits,
                dead_steps=max(limits.dead_steps, MARGIN * _longest(steps, lambda step: step.get(REWARD) == 0)),
                silent_steps=max(
                    limits.silent_steps,
                    MARGIN * _longest(steps, lambda step: (silent_share(step) or 0.0) >= self.silent_share),
                ),
                kl_limit=max(limits.kl_limit, MARGIN * max(moved, default=0.0)),
            )
        return limits


def _longest(steps: Iterable[StepMetrics], is_so: Callable[[StepMetrics], bool]) -> int:
    """Return the length of the longest run of consecutive steps for which `is_so` holds."""
    longest = present = 0
    for step in steps:
        present = present + 1 if is_so(step) else 0
        longest = max(longest, present)
    return longest
