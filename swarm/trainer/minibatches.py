"""Which rows of a batch make up each minibatch of a step.

Place in the flow: both trainers draw here, so that the same job splits the same batch the same way on either engine.
All randomness is derived from (job.seed, step). Knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from swarm.job import TrainJob


def draw_minibatches(rows: int, job: TrainJob, step: int) -> Iterator[list[int]]:
    """Row numbers of each minibatch of the step: every epoch shuffles anew and splits into `mini_batch_num` parts.

    Parts differ in size by at most one row; with fewer rows than parts, the empty ones are left out.
    """
    generator = step_generator(job, step)
    for _epoch in range(job.ppo_epochs):
        for part in np.array_split(generator.permutation(rows), min(job.mini_batch_num, rows)):
            yield [int(number) for number in part]


def step_generator(job: TrainJob, step: int) -> np.random.Generator:
    """The one source of randomness of a step."""
    return np.random.default_rng([job.seed, step])
