"""The savings in a training step from merging turns into samples and computing common prefixes once."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from bench.results import Result
from swarm.backends.local.learning.learner import Learner
from swarm.backends.local.model.loading import load_model
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.tracker.merge import merge
from swarm.types import FinishedEpisode, FinishReason, ForkReason, Group, SamplingParams, TrainBatch, Turn

BENCHMARK = "merging"
READ_TOKENS, SAMPLED_TOKENS = 16, 16
PREFIX_TOKENS = 168
MIN_ROUNDS, MAX_ROUNDS = 2, 200
TINY_LR = 1e-6
"""The episodes are random, and learning from them must not drive the weights anywhere."""


@dataclass(frozen=True, slots=True)
class MergingCase:
    """A batch, described by the tokens that its episodes read and sample.

    All episodes begin with the same `tools` tokens. The `prompt` behind them is that of the task or, unless
    `is_prompt_shared`, of the episode alone. `turns` follow one another, and `branches` go on from the last of them.
    """

    name: str
    tasks: int
    repeats: int
    prompt: int
    turns: int
    branches: int = 0
    tools: int = 0
    is_prompt_shared: bool = True


@dataclass(frozen=True, slots=True)
class Way:
    """One way to train a case: a learner of its own, and its batch."""

    learner: Learner
    batch: TrainBatch

    def step(self) -> tuple[float, Mapping[str, float]]:
        """Return the seconds of this process's processor time, and the metrics, of one step."""
        began = time.process_time()
        metrics = self.learner.step(self.batch).metrics
        return time.process_time() - began, metrics


def run(seconds: float) -> list[Result]:
    """Measure time, tokens and memory of each case and way, and the gain of each way over unmerged samples."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = load_model(BUNDLED_DIRECTORY, device="cpu", max_model_len=None)
        found = [_measure(case, model.module, model.vocabulary, seconds) for case in _cases()]
    finally:
        torch.set_num_threads(threads)
    return [result for results in found for result in results]


def _cases() -> list[MergingCase]:
    few: dict[str, Any] = {"repeats": 2, "is_prompt_shared": False}
    linear = [
        MergingCase(f"linear, {turns} turns", tasks=1, prompt=READ_TOKENS, turns=turns, **few)
        for turns in (4, 8, 16, 32)
    ]
    before = PREFIX_TOKENS - SAMPLED_TOKENS
    branches = [
        MergingCase(f"{count} branches", tasks=2, prompt=before, turns=1, branches=count, **few) for count in (2, 4, 8)
    ]
    prompts = [
        MergingCase(f"prompt of {length} x 8, {batch}", tasks, repeats=8, prompt=length, turns=1)
        for tasks, batch in ((1, "1 task"), (16, "16 tasks"))
        for length in (32, 128, 512)
    ]
    tools = MergingCase("tools of 224 x 128", tasks=16, repeats=8, prompt=24, turns=2, tools=224)
    return [*linear, *branches, *prompts, tools]


def _measure(case: MergingCase, module: torch.nn.Module, vocabulary: int, seconds: float) -> list[Result]:
    ways = {
        name: Way(_learner(module, share_prefixes), _build_batch(case, vocabulary, is_merged=is_merged))
        for name, is_merged, share_prefixes in (
            ("unmerged", False, "off"), ("merged", True, "off"), ("shared", True, "auto"),
        )
    }  # fmt: skip
    kept = {name: _kept_bytes(way) for name, way in ways.items()}
    best: dict[str, float] = dict.fromkeys(ways, float("inf"))
    metrics: dict[str, Mapping[str, float]] = {}
    deadline = time.perf_counter() + seconds
    for done in range(MAX_ROUNDS):
        if done >= MIN_ROUNDS and time.perf_counter() >= deadline:
            break
        for name, way in ways.items():
            duration_s, metrics[name] = way.step()
            best[name] = min(best[name], duration_s)
    tokens = {
        "unmerged": metrics["shared"]["merge/tokens_unmerged"],
        "merged": metrics["shared"]["sharing/tokens_unshared"],
        "shared": metrics["shared"]["sharing/tokens"],
    }
    results = [Result(BENCHMARK, case.name, f"step_{name}", best[name], "s") for name in ways]
    results += [Result(BENCHMARK, case.name, f"tokens_{name}", tokens[name], "tokens") for name in ways]
    results += [Result(BENCHMARK, case.name, f"kept_{name}", size / 2**20, "MiB") for name, size in kept.items()]
    for fast, slow in (("merged", "unmerged"), ("shared", "merged"), ("shared", "unmerged")):
        results.append(Result(BENCHMARK, case.name, f"time_{slow}_over_{fast}", best[slow] / best[fast], "x"))
        results.append(Result(BENCHMARK, case.name, f"tokens_{slow}_over_{fast}", tokens[slow] / tokens[fast], "x"))
    return results


def _learner(module: torch.nn.Module, share_prefixes: str) -> Learner:
    job = TrainJob.model_validate({"lr": TINY_LR, "share_prefixes": share_prefixes})
    return Learner(copy.deepcopy(module), job)


def _kept_bytes(way: Way) -> int:
    """Return the most bytes that a microbatch of a step keeps for its backward pass, weights included.

    Each storage counts once.
    """
    sizes: dict[int, int] = {}
    largest = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def end_microbatch() -> None:
        nonlocal largest
        largest = max(largest, sum(sizes.values()))
        sizes.clear()

    body: Any = way.learner._module.base_model
    with (
        body.register_forward_pre_hook(lambda *_: end_microbatch()),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        way.learner.step(way.batch)
    end_microbatch()
    return largest


def _build_batch(case: MergingCase, vocabulary: int, *, is_merged: bool) -> TrainBatch:
    """Return random tokens and alternating rewards, the same batch for the same case.

    The cost of a step depends on neither.
    """
    random = np.random.default_rng(len(case.name))

    def draw(count: int) -> tuple[int, ...]:
        return tuple(random.integers(0, vocabulary, count).tolist())

    tools = draw(case.tools)
    groups: list[Group] = []
    for task in range(case.tasks):
        prompt = tools + draw(case.prompt)
        episodes: list[FinishedEpisode] = []
        for repeat in range(case.repeats):
            if not case.is_prompt_shared:
                prompt = tools + draw(case.prompt)
            turns = _build_turns(case, f"{task}-{repeat}", prompt, draw, -float(np.log(vocabulary)))
            samples = (
                merge(turns) if is_merged else [one for turn in turns for one in merge([replace(turn, parent=None)])]
            )
            name, reward = f"{task}-{repeat}", float(repeat % 2)
            episodes.append(FinishedEpisode(name, f"task-{task}", "bench", reward, None, tuple(samples), 0.0))
        groups.append(Group(f"task-{task}", tuple(episodes)))
    return TrainBatch(batch_id="batch", step=1, groups=tuple(groups))


def _build_turns(
    case: MergingCase, episode_id: str, prompt: tuple[int, ...], draw: Callable[[int], tuple[int, ...]], logprob: float
) -> list[Turn]:
    turns: list[Turn] = []
    for index in range(case.turns + case.branches):
        parent = None if index == 0 else turns[min(index, case.turns) - 1]
        before = prompt if parent is None else parent.prompt_ids + parent.output_ids_T + draw(READ_TOKENS)
        turns.append(
            Turn(
                episode_id=episode_id,
                index=index,
                prompt_ids=before,
                output_ids_T=draw(SAMPLED_TOKENS),
                logprobs_T=(logprob,) * SAMPLED_TOKENS,
                weight_versions_T=(0,) * SAMPLED_TOKENS,
                finish_reason=FinishReason.STOP,
                params=SamplingParams(max_tokens=SAMPLED_TOKENS),
                messages=(),
                reply={},
                tools=(),
                parent=None if parent is None else parent.index,
                fork_reason=ForkReason.NEW_CONVERSATION if parent is None else None,
                started_at=0.0,
                ended_at=1.0,
            )
        )
    return turns
