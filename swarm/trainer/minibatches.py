"""The rows of a batch that make up each minibatch of a step.

Place in the flow: both trainers draw their minibatches here, so either splits the same batch of a job in the same way.
All randomness is derived from (job.seed, step). This module knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from swarm.job import TrainJob


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
