"""The learning rate of a step: warm-up, then constant, linear decay or half-cosine decay down to a floor.

Place in the flow: the local learner asks before every step, and verl's workers ask for the schedules that verl has.
These are pure functions of numbers, so a step that is trained again has the same rate as before.

After the warm-up the rates are those of `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup` of
transformers, above a floor like verl's `min_lr_ratio`. In the warm-up the rates are one step ahead of both. Their first
step has the rate 0, which would waste the rollouts of a batch.
"""

from __future__ import annotations

import math

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
