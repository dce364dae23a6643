"""Training speed of the local trainer: seconds per step of the bundled model on a batch of short episodes.

Place in the flow: a benchmark. The learner runs in this process; sending a batch to the worker and publishing weights
is not part of the figure.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from bench.results import Result
from swarm.backends.local.learning.learner import Learner
from swarm.backends.local.model.loading import load_model
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.types import FinishedEpisode, Group, Sample, TrainBatch

BENCHMARK = "learner"
TASKS, REPEATS = 16, 8
PROMPT_TOKENS, SAMPLED_TOKENS = 17, 8
MIN_STEPS = 3
MAX_STEPS = 10_000
TINY_LR = 1e-6
"""The episodes are random, and learning from them must not drive the weights anywhere."""


def run(seconds: float) -> list[Result]:
    """Median seconds per step and tokens per second, over as many steps as fit into `seconds`, at least three."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        durations_s = _measure(seconds)
    finally:
        torch.set_num_threads(threads)
    case = f"{TASKS * REPEATS} episodes of {PROMPT_TOKENS + SAMPLED_TOKENS} tokens"
    tokens = TASKS * REPEATS * (PROMPT_TOKENS + SAMPLED_TOKENS)
    typical_s = float(np.median(durations_s))
    return [
        Result(BENCHMARK, case, "step_p50", typical_s, "s"),
        Result(BENCHMARK, case, "step_max", max(durations_s), "s"),
        Result(BENCHMARK, case, "tokens_per_second", tokens / typical_s, "tokens/s"),
    ]


def _measure(seconds: float) -> list[float]:
    model = load_model(BUNDLED_DIRECTORY, device="cpu", max_model_len=None)
    learner = Learner(model.module, TrainJob(batch_size=TASKS, num_repeat=REPEATS, lr=TINY_LR))
    learner.step(_build_batch(1, model.vocabulary))
    durations_s: list[float] = []
    deadline = time.perf_counter() + seconds
    for step in range(2, MAX_STEPS):
        batch = _build_batch(step, model.vocabulary)
        began = time.perf_counter()
        learner.step(batch)
        ended = time.perf_counter()
        durations_s.append(ended - began)
        if ended >= deadline and len(durations_s) >= MIN_STEPS:
            break
    return durations_s


def _build_batch(step: int, vocabulary: int) -> TrainBatch:
    """Random tokens and alternating rewards: what a step costs depends on neither."""
    random = np.random.default_rng(step)
    logprob = -float(np.log(vocabulary))
    groups: list[Group] = []
    for task in range(TASKS):
        ids = random.integers(0, vocabulary, (REPEATS, PROMPT_TOKENS + SAMPLED_TOKENS)).tolist()
        episodes = [
            _build_episode(f"{task}-{repeat}", f"task-{task}", ids[repeat], logprob, float(repeat % 2))
            for repeat in range(REPEATS)
        ]
        groups.append(Group(f"task-{task}", tuple(episodes)))
    return TrainBatch(batch_id=f"batch-{step}", step=step, groups=tuple(groups))


def _build_episode(name: str, task_id: str, ids: list[int], logprob: float, reward: float) -> FinishedEpisode:
    read, sampled = PROMPT_TOKENS, SAMPLED_TOKENS
    sample = Sample(
        episode_id=name,
        token_ids_T=tuple(ids),
        loss_mask_T=(False,) * read + (True,) * sampled,
        logprobs_T=(0.0,) * read + (logprob,) * sampled,
        weight_versions_T=(-1,) * read + (0,) * sampled,
        turn_indices_T=(-1,) * read + (0,) * sampled,
        temperatures_T=(1.0,) * (read + sampled),
    )
    return FinishedEpisode(name, task_id, "bench", reward, None, (sample,), 0.0)
