"""A held-out score for people and for programs, and how many tasks it takes for one to say something.

Place in the flow: `swarm eval` and `swarm train` print it; `swarm train` keeps the one of the untrained weights on
record.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from swarm.client.intervals import interval, interval_on_record
from swarm.errors import BadRequest, EngineFailure

if TYPE_CHECKING:
    from swarm.client import Evaluation
    from swarm.environments import Environment
    from swarm.schemas import EvaluationView
    from swarm.tasks import Split

FEW_TASKS = 30
"""Of fewer the interval is so wide that hardly any training shows."""
TOO_FEW_TASKS = 10
"""Of fewer nothing can be said: the interval of 4 in 9 goes from 0.19 to 0.73."""


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """The mean of `n` rewards with its standard error and its 95 % interval, None where that cannot be known.
    `failures` are attempts that are not among the `n`; `broken` are those among them that the program broke."""

    mean: float | None
    stderr: float | None
    low: float | None
    high: float | None
    n: int
    failures: int
    broken: int = 0

    @property
    def text(self) -> str:
        """The score in one line; that there is none if nothing was scored."""
        if self.mean is None:
            return "no score"
        counted = f"n={self.n}" + (f", {self.broken} of them broken by the program" if self.broken else "")
        if self.low is None or self.high is None:
            return f"{self.mean:.3f} ({counted})"
        return f"{self.mean:.3f} (95 % from {self.low:.3f} to {self.high:.3f}, {counted})"

    def figures(self) -> dict[str, Any]:
        return asdict(self)


def score_of(evaluation: Evaluation) -> HeldOutScore:
    rewards = [reward for each in evaluation.rewards.values() for reward in each]
    ends = _known(interval(rewards))
    failures, broken = len(evaluation.failures), len(evaluation.broken)
    return HeldOutScore(evaluation.mean, evaluation.stderr, *ends, evaluation.n, failures, broken)


def score_on_record(view: EvaluationView) -> HeldOutScore:
    """What a server knows of a score that was brought to it."""
    if view.mean is None or view.scored is None:
        return HeldOutScore(None, None, None, None, view.scored or 0, view.failures or 0)
    ends = _known(interval_on_record(view.mean, view.stderr, view.successes or 0, view.scored))
    return HeldOutScore(view.mean, view.stderr, *ends, view.scored, view.failures or 0)


def mean_of(evaluation: Evaluation) -> float:
    """Raises EngineFailure if nothing was scored."""
    if evaluation.mean is None:
        raise EngineFailure(f"no episode was scored; the first failure: {evaluation.failures[0].error}")
    return evaluation.mean


def count_tasks(environment: Environment, split: Split, episodes: int) -> int:
    """How many tasks a score of so many episodes is of. Raises BadRequest where there is none to attempt."""
    found = sum(1 for _ in islice(environment.tasks(split), episodes))
    if not found:
        raise BadRequest(f"{environment.name} has no task in its split {split}: nothing can be scored", param="env")
    return found


def warning_of(tasks: int) -> str | None:
    """What has to be said of a score of so few tasks; None if there are enough."""
    if tasks >= FEW_TASKS:
        return None
    low, high = interval([1.0] * (tasks // 2) + [0.0] * (tasks - tasks // 2))
    return (
        f"only {tasks} held-out tasks: a score of {tasks // 2 / tasks:.2f} can be anything from {low:.2f} to {high:.2f}"
    )


def _known(ends: tuple[float, float]) -> tuple[float | None, float | None]:
    low, high = ends
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
