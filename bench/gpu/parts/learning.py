"""Learning of the bundled model on the device beside that on the CPU, over several seeds."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from tokenizers import Tokenizer

from bench.gpu.measurement import Measurement
from bench.gpu.models import to_sample
from bench.gpu.parts.sampling import local_engine, new_worker
from swarm.backends.local.engine import LocalSampler
from swarm.backends.process.worker_process import WorkerProcess
from swarm.model_path import BUNDLED_DIRECTORY, read_tokenizer
from swarm.tasks import task_family
from swarm.types import FinishedEpisode, Group, SamplingParams, Task, TrainBatch

FAMILY = "reverse"
TASKS, REPEATS, STEPS = 8, 8, 8
LAST = 3
"""The score of a training is the share of solved attempts in so many last steps."""
MOST_SEEDS = 6
RESERVE = 1.3
"""A further round begins only if this many times the time of the last one is left."""


@dataclass(frozen=True, slots=True)
class TrainingWay:
    """One way to train: the settings of its job, and its first seed."""

    name: str
    settings: dict[str, Any]
    first_seed: int


def ways(measurement: Measurement) -> list[TrainingWay]:
    """Return the CPU in float32 first, and then the ways that are compared with it."""
    cpu = TrainingWay("cpu float32", {"n_gpu": 0, "dtype": "float32"}, 0)
    if not measurement.on_gpu:
        return [cpu, TrainingWay("cpu float32, other seeds", cpu.settings, 100)]
    return [cpu, *(TrainingWay(f"gpu {dtype}", {"n_gpu": 1, "dtype": dtype}, 0) for dtype in ("float32", "bfloat16"))]


def measure(measurement: Measurement) -> None:
    """Add the score of each way and seed, and whether the ways differ from the first."""
    compared = ways(measurement)
    scores = asyncio.run(_train_all(measurement, compared))
    for way in compared:
        if scores[way.name]:
            measurement.add(way.name, "solved_in_the_end", 100 * mean(scores[way.name]), "%")
            measurement.add(way.name, "seeds", float(len(scores[way.name])), "")
    for way in compared[1:]:
        measurement.add(way.name, "beside the CPU", compare(scores[compared[0].name], scores[way.name]))


async def _train_all(measurement: Measurement, compared: Sequence[TrainingWay]) -> dict[str, list[float]]:
    tokenizer, worker = read_tokenizer(BUNDLED_DIRECTORY), new_worker(measurement)
    scores: dict[str, list[float]] = {way.name: [] for way in compared}
    try:
        for number in range(MOST_SEEDS):
            began = time.monotonic()
            for way in compared:
                seed = way.first_seed + number
                with measurement.case(f"{way.name}, seed {seed}"):
                    scores[way.name].append(await _train(measurement, worker, way, seed, tokenizer))
            if measurement.left_s < RESERVE * (time.monotonic() - began):
                break
    finally:
        await worker.stop()
    return scores


def compare(first: Sequence[float], second: Sequence[float]) -> str:
    """Return in words whether two lists of scores differ by more than seeds do."""
    if min(len(first), len(second)) < 2:
        return "too few seeds to tell: give more minutes"
    difference = mean(second) - mean(first)
    error = math.sqrt(stdev(first) ** 2 / len(first) + stdev(second) ** 2 / len(second))
    is_noise = abs(difference) <= 2 * error
    outcome = "within the noise of seeds" if is_noise else "NOT within the noise of seeds"
    return f"{outcome}: {100 * difference:+.1f} points, standard error {100 * error:.1f}"


async def _train(
    measurement: Measurement, worker: WorkerProcess, way: TrainingWay, seed: int, tokenizer: Tokenizer
) -> float:
    solved: list[float] = []
    tasks = task_family(FAMILY).tasks("train", TASKS * STEPS, seed=seed)
    async with local_engine(measurement, worker, "nano", seed=seed, **way.settings) as (sampler, trainer):
        for step in range(1, STEPS + 1):
            batch = await _play_step(sampler, tokenizer, step, tasks[TASKS * (step - 1) : TASKS * step])
            solved.append(mean(episode.reward for episode in batch.episodes))
            await trainer.train(batch)
    score = mean(solved[-LAST:])
    curve = " ".join(f"{100 * share:.0f}" for share in solved)
    measurement.add(f"{way.name}, seed {seed}", "curve", f"solved in % by step: {curve}")
    return score


async def _play_step(sampler: LocalSampler, tokenizer: Tokenizer, step: int, tasks: Sequence[Task]) -> TrainBatch:
    async def play_group(task: Task) -> Group:
        episodes = await asyncio.gather(
            *(_play(sampler, tokenizer, f"{step}-{task.task_id}-{repeat}", task) for repeat in range(REPEATS))
        )
        return Group(task.task_id, tuple(episodes))

    groups = await asyncio.gather(*map(play_group, tasks))
    return TrainBatch(batch_id=f"batch-{step}", step=step, groups=tuple(groups))


async def _play(sampler: LocalSampler, tokenizer: Tokenizer, name: str, task: Task) -> FinishedEpisode:
    text = f"<|im_start|>user\n{task.main_query}<|im_end|>\n<|im_start|>assistant\n"
    prompt = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
    family = task_family(FAMILY)
    deltas = [delta async for delta in sampler.generate(name, prompt, SamplingParams(max_tokens=family.max_tokens))]
    tokens = tuple(token for delta in deltas for token in delta.token_ids_T)
    logprobs = tuple(value for delta in deltas for value in delta.logprobs_T)
    exchange = family.open(task)
    exchange.reply({"role": "assistant", "content": tokenizer.decode(list(tokens), skip_special_tokens=True)})
    sample = to_sample(name, prompt, tokens, logprobs, deltas[0].weight_versions_T[0])
    return FinishedEpisode(name, task.task_id, "bench", exchange.reward, None, (sample,), 0.0)
