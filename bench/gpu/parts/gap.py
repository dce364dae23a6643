"""The gap between the logprobs that the sampler records and those of the trainer for the same weights and tokens."""

from __future__ import annotations

import asyncio

from bench.gpu.measurement import Measurement
from bench.gpu.models import shapes, to_sample, write_model
from bench.gpu.parts.sampling import local_engine, new_worker, random_prompts
from swarm.sampler import Sampler
from swarm.types import FinishedEpisode, Group, SamplingParams, TrainBatch

TASKS, REPEATS, COMPLETION_TOKENS = 4, 4, 64
METRICS = ("rollout_logprob_gap_mean", "rollout_logprob_gap_max", "rollout_probs_diff_max")
BUNDLED = "nano"
BUNDLED_VOCABULARY = 256
"""Ids below this are tokens of the bundled model."""


def measure(measurement: Measurement) -> None:
    """Add the gap of the bundled model and of a random one, for each number format of the device."""
    asyncio.run(_measure(measurement))


async def _measure(measurement: Measurement) -> None:
    shape, worker = shapes(measurement)[0], new_worker(measurement)
    models = [(BUNDLED, BUNDLED, BUNDLED_VOCABULARY), (shape.name, write_model(shape, measurement), shape.vocabulary)]
    try:
        for name, model, vocabulary in models:
            for dtype in ("float32", "bfloat16") if measurement.on_gpu else ("float32",):
                case = f"{name} {dtype}"
                with measurement.case(case):
                    async with local_engine(measurement, worker, model, dtype=dtype, lr=1e-6) as (sampler, trainer):
                        report = await trainer.train(await sampled_batch(sampler, vocabulary))
                    for metric in METRICS:
                        measurement.add(case, metric, report.metrics[f"training/{metric}"], "")
    finally:
        await worker.stop()


async def sampled_batch(sampler: Sampler, vocabulary: int) -> TrainBatch:
    """Return a batch of completions of random prompts, sampled at once, with alternating rewards."""
    prompts = random_prompts(vocabulary)
    drawn = [next(prompts) for _ in range(TASKS)]
    episodes = await asyncio.gather(
        *(_play(sampler, task, repeat, drawn[task]) for task in range(TASKS) for repeat in range(REPEATS))
    )
    groups = [Group(f"task-{task}", tuple(episodes[task * REPEATS : (task + 1) * REPEATS])) for task in range(TASKS)]
    return TrainBatch(batch_id="batch", step=1, groups=tuple(groups))


async def _play(sampler: Sampler, task: int, repeat: int, prompt: list[int]) -> FinishedEpisode:
    name = f"{task}-{repeat}"
    params = SamplingParams(max_tokens=COMPLETION_TOKENS, ignore_eos=True)
    deltas = [delta async for delta in sampler.generate(name, prompt, params)]
    tokens = tuple(token for delta in deltas for token in delta.token_ids_T)
    logprobs = tuple(value for delta in deltas for value in delta.logprobs_T)
    sample = to_sample(name, tuple(prompt), tokens, logprobs, deltas[-1].weight_versions_T[-1])
    return FinishedEpisode(name, f"task-{task}", "bench", float(repeat % 2), None, (sample,), 0.0)
