"""The base score: what a model earns on an environment before it is trained, and whether that leaves it room to learn.

Place in the flow: `swarm env check` measures it after the checks that need no model
(swarm.environments.environment_check). This module knows nothing of where the server comes from.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

from swarm.client import SwarmClient
from swarm.client.intervals import interval
from swarm.environments import Environment
from swarm.environments.environment_check import CheckResult, Severity
from swarm.program.base import PLAIN, Program
from swarm.program.training import measure
from swarm.tasks.base import Split

EPISODES = 64
LEARNABLE_FROM = 0.03
"""Below this success rate most groups of a batch hold no success at all, and teach nothing."""
LEARNED_FROM = 0.95
"""Above this one most groups hold nothing else, and teach nothing either."""


@dataclass(frozen=True, slots=True)
class BaseScore:
    """The score of the served weights before any training.

    `rewards` are those of the attempts that were scored, `low` and `high` the 95 % interval of their `mean`. `broken`
    of them were broken by the program and count as 0; `failures` attempts could not be scored. `first_failure` is the
    first reason of either.
    """

    rewards: tuple[float, ...]
    mean: float
    low: float
    high: float
    failures: int
    first_failure: str | None
    attempts_per_s: float
    broken: int = 0

    def figures(self) -> dict[str, Any]:
        """As JSON values; an end of the interval that is not known is None."""
        ends = {name: end if math.isfinite(end) else None for name, end in (("low", self.low), ("high", self.high))}
        rest = {"failures": self.failures, "broken": self.broken, "attempts_per_s": self.attempts_per_s}
        return {"mean": self.mean, **ends, "n": len(self.rewards), **rest}


def measure_base_score(
    client: SwarmClient,
    environment: Environment,
    program: Program = PLAIN,
    *,
    episodes: int = EPISODES,
    max_workers: int = 16,
) -> BaseScore:
    """Play train tasks with the served weights, as eval episodes."""
    began = time.monotonic()
    result = measure(client, environment, program, split=Split.TRAIN, episodes=episodes, max_workers=max_workers)
    seconds = time.monotonic() - began
    rewards = tuple(reward for each in result.rewards.values() for reward in each)
    low, high = interval(rewards)
    return BaseScore(
        rewards,
        statistics.fmean(rewards) if rewards else 0.0,
        low,
        high,
        len(result.failures),
        next((failure.error for failure in (*result.broken, *result.failures)), None),
        (result.n + len(result.failures)) / seconds,
        len(result.broken),
    )


def judge(score: BaseScore) -> CheckResult:
    """Whether there is something to learn, and what to do where there is not."""
    if not score.rewards:
        return CheckResult(
            "base score", Severity.FAIL, f"no attempt could be scored; the first failure: {score.first_failure}"
        )
    if score.broken == len(score.rewards):
        return CheckResult(
            "base score",
            Severity.FAIL,
            f"the program broke all {score.broken} attempts; the first: {score.first_failure}",
        )
    message = (
        f"{score.mean:.3f}, 95 % from {score.low:.3f} to {score.high:.3f}, of {len(score.rewards)} attempts, "
        f"{score.attempts_per_s:.1f} a second"
    )
    if score.broken:
        message += f", {score.broken} of them broken by the program ({score.first_failure})"
    if score.failures:
        message += f", {score.failures} failed ({score.first_failure})"
    # Where attempts can lose, a mean near or below 0 does not say that nothing is earned.
    is_low = min(score.rewards) >= 0 and score.high < LEARNABLE_FROM
    if is_low or max(score.rewards) <= 0:
        message += f": {'hardly any' if max(score.rewards) > 0 else 'no'} attempt earned anything, so there is nothing "
        message += "to learn from: take easier tasks, give partial credit, or try another model"
        return CheckResult("base score", Severity.FAIL, message)
    if score.low > LEARNED_FROM:
        return CheckResult(
            "base score",
            Severity.WARN,
            f"{message}: nearly all earn everything, so there is little left to learn: take harder tasks",
        )
    is_whole = not score.failures and not score.broken
    return CheckResult("base score", Severity.OK if is_whole else Severity.WARN, message)
