"""What follows of a step from its job and number alone: the learning rate, and the rows of each minibatch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from swarm.job import LRScheduler, TrainJob


def learning_rate(job: TrainJob, step: int) -> float:
    """Return the learning rate of a step of a resolved job; steps count from 1."""
    assert job.lr is not None, "a resolved job has a learning rate"
    return job.lr * rate_ratio(
        job.lr_scheduler_type,
        step,
        warmup_steps=job.lr_warmup_steps,
        total_steps=job.total_steps or 0,
        min_lr_ratio=job.min_lr_ratio,
    )


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
