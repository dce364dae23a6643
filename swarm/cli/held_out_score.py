"""The held-out score: its text, its figures, and the number of tasks that it needs to be meaningful."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from swarm.errors import BadRequest, EngineFailure
from swarm.intervals import wilson
from swarm.pass_at_k import PassAtK, pass_at_k

if TYPE_CHECKING:
    from swarm.client import Evaluation
    from swarm.environments import Environment
    from swarm.schemas import EvaluationView
    from swarm.tasks import Split

FEW_TASKS = 30
"""With fewer tasks, the confidence interval is too wide to show the effect of most trainings."""
TOO_FEW_TASKS = 10
"""With fewer tasks, a score is meaningless: the 95 % interval of 4 successes in 9 is 0.19 to 0.73."""


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """The mean of `n` rewards with its standard error and its 95 % interval. Unknown values are None.

    `failures` counts attempts without a reward, which are not among the `n`. `broken` counts the attempts among the `n`
    that failed by a fault of the program. Each task had `attempts` attempts, which `pass_at_k` tells of.
    """

    mean: float | None
    stderr: float | None
    low: float | None
    high: float | None
    n: int
    failures: int
    broken: int = 0
    attempts: int = 1
    pass_at_k: tuple[PassAtK, ...] = ()

    @property
    def text(self) -> str:
        """The score in one line."""
        if self.mean is None:
            return "no score"
        each = f", {self.attempts} at each task" if self.attempts > 1 else ""
        counted = f"n={self.n}{each}" + (f", {self.broken} of them broken by the program" if self.broken else "")
        if self.low is None or self.high is None:
            return f"{self.mean:.3f} ({counted})"
        return f"{self.mean:.3f} (95 % from {self.low:.3f} to {self.high:.3f}, {counted})"

    @property
    def tasks(self) -> int:
        """The number of tasks that were attempted."""
        return math.ceil((self.n + self.failures) / self.attempts)

    def figures(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class HeldOutStep:
    """The held-out score of the weights after `step` steps. The step is None if they changed while it was measured."""

    step: int | None
    score: HeldOutScore
    measured_at: datetime


def score_of(evaluation: Evaluation, ks: Sequence[int] = (1,)) -> HeldOutScore:
    """Return the score of an evaluation, in which each task had as many attempts as the largest of `ks`."""
    from swarm.client.evaluation import interval

    # Attempts at one task are not independent of each other.
    ends = _known(interval([statistics.fmean(each) for each in evaluation.rewards.values()]))
    failures, broken = len(evaluation.failures), len(evaluation.broken)
    passes = pass_at_k(evaluation.solved, ks)
    return HeldOutScore(
        evaluation.mean, evaluation.stderr, *ends, evaluation.n, failures, broken, max(ks, default=1), passes
    )


def score_on_record(view: EvaluationView) -> HeldOutScore:
    """Return the score that an evaluator reported to a server."""
    from swarm.client.evaluation import interval_on_record

    if view.mean is None or not view.scored:
        return HeldOutScore(None, None, None, None, view.scored or 0, view.failures or 0)
    share = (view.successes or 0) / view.scored
    passes = view.pass_at_k or (PassAtK(1, share, *wilson(share, view.scored), view.scored),)
    return HeldOutScore(
        view.mean, view.stderr, *_known(interval_on_record(view)), view.scored, view.failures or 0,
        attempts=view.attempts, pass_at_k=passes,
    )  # fmt: skip


def mean_of(evaluation: Evaluation) -> float:
    """Return the mean reward of an evaluation. Raise EngineFailure if no episode was scored."""
    if evaluation.mean is None:
        raise EngineFailure(f"no episode was scored; the first failure: {evaluation.failures[0].error}")
    return evaluation.mean


def count_tasks(environment: Environment, split: Split, episodes: int) -> int:
    """Return how many tasks the split has, at most `episodes`. Raise BadRequest if it has none."""
    found = sum(1 for _ in islice(environment.tasks(split), episodes))
    if not found:
        raise BadRequest(f"{environment.name} has no task in its split {split}: nothing can be scored", param="env")
    return found


def warning_of(tasks: int) -> str | None:
    """Return a warning about a score from too few tasks, or None if there are enough."""
    from swarm.client.evaluation import interval

    if tasks >= FEW_TASKS:
        return None
    low, high = interval([1.0] * (tasks // 2) + [0.0] * (tasks - tasks // 2))
    return (
        f"only {tasks} held-out tasks: a score of {tasks // 2 / tasks:.2f} can be anything from {low:.2f} to {high:.2f}"
    )


def _known(ends: tuple[float, float]) -> tuple[float | None, float | None]:
    low, high = ends
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
