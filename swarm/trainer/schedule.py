"""The learning rate of a step: warm-up, then constant, or down to a floor in a straight line or along half a cosine.

Place in the flow: asked by the local learner before every step, and by verl's workers for the schedules that verl has.
Pure functions of numbers, so that a step that is trained once more has the rate that it had.

After the warm-up the rates are those of `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup` of
transformers, with a floor as verl's `min_lr_ratio` puts one below its cosine. In the warm-up they are one step ahead of
both, whose first step has the rate 0: a batch costs rollouts.
"""

from __future__ import annotations

import math

from swarm.job import LRScheduler, TrainJob


def learning_rate(job: TrainJob, step: int) -> float:
    """The rate of a resolved job's step, which counts from 1."""
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
    """What the peak rate is multiplied by at `step`, which counts from 1.

    With w warm-up steps of T: step / w up to step w; then, with p = (step - 1 - w) / (T - w), at most 1, the share of
    the decay that is over, min + (1 - min) (1 - p) or min + (1 - min) (1 + cos(pi p)) / 2. `total_steps` matters only
    where the rate goes down.
    """
    if step <= warmup_steps:
        return step / warmup_steps
    if scheduler == "constant":
        return 1.0
    progress = min(1.0, (step - 1 - warmup_steps) / max(1, total_steps - warmup_steps))
    left = 1.0 - progress if scheduler == "linear" else (1.0 + math.cos(math.pi * progress)) / 2
    return min_lr_ratio + (1.0 - min_lr_ratio) * left
