"""pass@k: the probability that at least one of k attempts at a task solves it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarm.errors import BadRequest
from swarm.intervals import wilson

MOST_ATTEMPTS = 256


@dataclass(frozen=True, slots=True)
class PassAtK:
    """The share of tasks that `k` attempts solve, from 0 to 1, with its 95 % interval over the `tasks`.

    The interval is Wilson's for a share of so many tasks. A task's probability varies no more than a task that is
    either solved or not, so the interval is wide enough.
    """

    k: int
    mean: float
    low: float
    high: float
    tasks: int

    @property
    def text(self) -> str:
        return f"pass@{self.k} {self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def unsolved(self) -> int:
        """The number of tasks that none of their attempts solved, if each had `k` attempts."""
        return round((1 - self.mean) * self.tasks)


def estimate(attempts: int, solved: int, k: int) -> float:
    """Return the unbiased estimate of pass@k of one task, of whose attempts so many solved it.

    It is 1 - C(attempts - solved, k) / C(attempts, k), by Chen et al. 2021, arXiv 2107.03374, equation 1.
    """
    if attempts < k:
        raise ValueError(f"{attempts} attempts cannot tell of {k}")
    return 1 - math.comb(attempts - solved, k) / math.comb(attempts, k)


def pass_at_k(solved: Mapping[str, Sequence[bool]], ks: Iterable[int]) -> tuple[PassAtK, ...]:
    """Return pass@k for each k, over the tasks that have as many attempts. A k that no task has is left out.

    `solved` tells of each attempt at each task whether it solved it.
    """
    found: list[PassAtK] = []
    for k in ks:
        values = [estimate(len(each), sum(each), k) for each in solved.values() if len(each) >= k]
        if values:
            # The mean of equal numbers may differ from them in the last bit.
            mean = min(1.0, math.fsum(values) / len(values))
            found.append(PassAtK(k, mean, *wilson(mean, len(values)), len(values)))
    return tuple(found)


def levels_of(attempts: int) -> tuple[int, ...]:
    """Return the numbers of attempts that a score of so many attempts tells of: the powers of two, and all of them."""
    return tuple(sorted({attempts, *(2**power for power in range(attempts.bit_length()))}))


def upper_bound(passes: Sequence[PassAtK], k: int) -> float:
    """Return the most that pass@k can be, with 95 % confidence, by the passes of one score.

    For more attempts than were made, it follows from pass@j of those j attempts. If j attempts fail a task with
    probability q, k attempts fail it with q ** (k / j). This is convex in q, so the mean gives a bound.
    """
    known = next((each for each in passes if each.k >= k), None)
    if known is not None:
        return known.high
    most = max(passes, key=lambda each: each.k, default=None)
    return 1.0 if most is None else 1 - (1 - most.high) ** (k / most.k)


def text_of(passes: Sequence[PassAtK]) -> str:
    """Return the passes of one score in one line, with the tasks that none of several attempts solved."""
    shown = ", ".join(each.text for each in passes)
    most = max(passes, key=lambda each: each.k)
    if most.k == 1:
        return f"{shown}, {most.tasks} tasks"
    return f"{shown}; {most.unsolved} of {most.tasks} tasks were solved by none of {most.k} attempts"


def read_ks(text: str) -> tuple[int, ...]:
    """Return the numbers of `1,4,16`, rising, each once. Raises BadRequest for anything else."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > MOST_ATTEMPTS:
        raise BadRequest(f"--k {text}: give numbers of attempts from 1 to {MOST_ATTEMPTS}, as in 1,4,16", param="k")
    return tuple(found)
