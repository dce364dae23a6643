"""What follows of a step from its job and number alone: the learning rate, and the rows of each minibatch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from swarm.job import LRScheduler, TrainJob

PASS, SPLIT = 2**32 + 1, 2**32 + 2
"""Numbers no step has, so that orders of demonstrations are drawn apart from the steps' own numbers."""
TIMES_MEASURED = 10


def learning_rate(job: TrainJob, step: int) -> float:
    """Return the learning rate of a step of a resolved job; steps count from 1.

    Supervised steps have a rate of their own, and warm-up and decay begin after them.
    """
    if job.is_supervised(step):
        assert job.sft_lr is not None, "a resolved job with demonstrations has a learning rate for them"
        return job.sft_lr
    assert job.lr is not None, "a resolved job has a learning rate"
    return job.lr * rate_ratio(
        job.lr_scheduler_type,
        step - job.sft_steps,
        warmup_steps=job.lr_warmup_steps,
        total_steps=(job.total_steps or 0) - job.sft_steps,
        min_lr_ratio=job.min_lr_ratio,
    )


def draw_demonstrations(count: int, job: TrainJob, step: int) -> list[int]:
    """Return the numbers of the demonstrations that a step trains, of `count`.

    Steps go through one order after another, each a new shuffle of all. A step may have the end of one and the
    beginning of the next.
    """
    first = (step - 1) * job.sft_batch_size
    passes = {place // count for place in range(first, first + job.sft_batch_size)}
    orders = {number: np.random.default_rng([job.seed, PASS, number]).permutation(count) for number in passes}
    return [int(orders[place // count][place % count]) for place in range(first, first + job.sft_batch_size)]


def split_demonstrations(count: int, job: TrainJob) -> tuple[list[int], list[int]]:
    """Return the numbers of the demonstrations to train on and of those to hold out, both in ascending order."""
    held_out = min(round(count * job.sft_held_out), count - 1)
    order = np.random.default_rng([job.seed, SPLIT]).permutation(count)
    return sorted(map(int, order[held_out:])), sorted(map(int, order[:held_out]))


def measures_held_out(job: TrainJob, step: int) -> bool:
    """Return whether the loss of held-out demonstrations is measured after a step: some ten times."""
    if not job.is_supervised(step):
        return False
    return step in {1, job.sft_steps} or step % max(1, job.sft_steps // TIMES_MEASURED) == 0


def rate_ratio(
    scheduler: LRScheduler | str, step: int, *, warmup_steps: int, total_steps: int, min_lr_ratio: float
) -> float:
    """Return the factor on the peak rate at `step`, which counts from 1.

    With w warm-up steps of T, the factor is step / w up to step w. After that, p = (step - 1 - w) / (T - w), at most 1,
    is the finished share of the decay. The factor is then min + (1 - min) (1 - p), or min + (1 - min) (1 + cos(pi p)) /
    2. `total_steps` matters only if the rate decays.
    """
    if step <= warmup_steps:
        return step / warmup_steps
    if scheduler == "constant":
        return 1.0
    progress = min(1.0, (step - 1 - warmup_steps) / max(1, total_steps - warmup_steps))
    left = 1.0 - progress if scheduler == "linear" else (1.0 + math.cos(math.pi * progress)) / 2
    return min_lr_ratio + (1.0 - min_lr_ratio) * left


def draw_minibatches(rows: int, job: TrainJob, step: int) -> Iterator[list[int]]:
    """Yield the row numbers of each minibatch of the step.

    Every epoch shuffles anew and splits into `mini_batch_num` parts. Parts differ in size by at most one row. With
    fewer rows than parts, the empty parts are left out.
    """
    generator = step_generator(job, step)
    for _epoch in range(job.ppo_epochs):
        for part in np.array_split(generator.permutation(rows), min(job.mini_batch_num, rows)):
            yield [int(number) for number in part]


def step_generator(job: TrainJob, step: int) -> np.random.Generator:
    """Return the only random generator of a step."""
    return np.random.default_rng([job.seed, step])
