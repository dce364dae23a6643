"""The base score: the mean reward of a model on an environment before training, and whether it can learn there."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from swarm.client import SwarmClient
from swarm.client.evaluation import interval
from swarm.environments import Environment
from swarm.environments.environment_check import CheckResult, CheckSeverity
from swarm.job import TrainJob
from swarm.pass_at_k import PassAtK, pass_at_k, text_of, upper_bound
from swarm.program.base import PLAIN, Program
from swarm.program.start import LEARNABLE_FROM, NEAR_ZERO, WAYS_ON
from swarm.program.training import measure
from swarm.tasks.base import Split

EPISODES = 64
GROUP: int = TrainJob.model_fields["num_repeat"].default
"""The attempts of a group in a job that does not say."""
LEARNED_FROM = 0.95
"""Above this success rate most groups of a batch have only successes, and so no gradient."""


@dataclass(frozen=True, slots=True)
class BaseScore:
    """The score of the served weights before any training.

    `rewards` are those of the scored attempts. `low` and `high` are the 95 % interval of their `mean`. In `broken` of
    them the program failed, which counts as 0. `failures` attempts could not be scored. `first_failure` is the first
    reason of either kind. `passes` are the shares of tasks that several attempts solve, if they were asked for.
    """

    rewards: tuple[float, ...]
    mean: float
    low: float
    high: float
    failures: int
    first_failure: str | None
    attempts_per_s: float
    broken: int = 0
    passes: tuple[PassAtK, ...] = ()

    def figures(self) -> dict[str, Any]:
        """Return the score as JSON values. An unknown end of the interval is None."""
        ends = {name: end if math.isfinite(end) else None for name, end in (("low", self.low), ("high", self.high))}
        rest = {"failures": self.failures, "broken": self.broken, "attempts_per_s": self.attempts_per_s}
        passes = [asdict(each) for each in self.passes]
        return {"mean": self.mean, **ends, "n": len(self.rewards), **rest, "pass_at_k": passes}


def measure_base_score(
    client: SwarmClient,
    environment: Environment,
    program: Program = PLAIN,
    *,
    episodes: int = EPISODES,
    ks: Sequence[int] = (),
    max_workers: int = 16,
) -> BaseScore:
    """Measure the score of the served weights on train tasks, in eval episodes.

    Each task is attempted as often as the largest of `ks` says, once without any.
    """
    began = time.monotonic()
    attempts = max(ks, default=1)
    result = measure(
        client, environment, program, split=Split.TRAIN, episodes=episodes, attempts=attempts, max_workers=max_workers
    )
    seconds = time.monotonic() - began
    rewards = tuple(reward for each in result.rewards.values() for reward in each)
    # Attempts at one task are not independent of each other.
    low, high = interval([statistics.fmean(each) for each in result.rewards.values()])
    return BaseScore(
        rewards,
        statistics.fmean(rewards) if rewards else 0.0,
        low,
        high,
        len(result.failures),
        next((failure.error for failure in (*result.broken, *result.failures)), None),
        (result.n + len(result.failures)) / seconds,
        len(result.broken),
        pass_at_k(result.solved, ks),
    )


def judge(score: BaseScore) -> CheckResult:
    """Return the check's result: whether there is something to learn, and else what to do."""
    return CheckResult("base score", *_finding(score))


def _finding(score: BaseScore) -> tuple[CheckSeverity, str]:
    if not score.rewards:
        return CheckSeverity.FAIL, f"no attempt could be scored; the first failure: {score.first_failure}"
    if score.broken == len(score.rewards):
        return CheckSeverity.FAIL, f"the program broke all {score.broken} attempts; the first: {score.first_failure}"
    message = (
        f"{score.mean:.3f}, 95 % from {score.low:.3f} to {score.high:.3f}, of {len(score.rewards)} attempts, "
        f"{score.attempts_per_s:.1f} a second"
    )
    if score.broken:
        message += f", {score.broken} of them broken by the program ({score.first_failure})"
    if score.passes:
        message += f", {text_of(score.passes)}"
    if score.failures:
        message += f", {score.failures} failed ({score.first_failure})"
    # With negative rewards, a mean near or below 0 does not show that no attempt earned anything.
    is_low = min(score.rewards) >= 0 and score.high < LEARNABLE_FROM
    if score.passes:
        is_low = is_low and upper_bound(score.passes, GROUP) < NEAR_ZERO
    if is_low or max(score.rewards) <= 0:
        message += f": {'hardly any' if max(score.rewards) > 0 else 'no'} attempt earned anything, so there is nothing "
        message += f"to learn from: {WAYS_ON}"
        return CheckSeverity.FAIL, message
    if score.low > LEARNED_FROM:
        return (
            CheckSeverity.WARN,
            f"{message}: nearly all earn everything, so there is little left to learn: take harder tasks",
        )
    is_whole = not score.failures and not score.broken
    return (CheckSeverity.OK if is_whole else CheckSeverity.WARN), message
