"""Tiny real models and random episodes for the tests of the local learner."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_models import random_model
from turns import plain_turn

from swarm.tracker.merge import merge
from swarm.types import FinishedEpisode, Group, SamplingParams, TrainBatch, Turn

if TYPE_CHECKING:
    import torch

VOCABULARY = 61


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., torch.nn.Module]:
    """A random model of two heads that share their keys."""
    fields = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True, "eos_token_id": 0}
    return lambda seed=0, **others: random_model(seed=seed, **{**fields, **others})


@pytest.fixture(scope="session")
def sampler(make_model: Callable[..., torch.nn.Module]) -> torch.nn.Module:
    """The model whose logprobs the episodes record."""
    return make_model()


def record(sampler: torch.nn.Module, ids: Sequence[int], temperature: float) -> list[float]:
    """Logprob of each token under the plainest forward pass; 0.0 for the first."""
    import torch

    with torch.no_grad():
        logits = sampler(input_ids=torch.tensor([ids])).logits[0].float() / temperature
    logprobs = torch.log_softmax(logits, -1)
    return [0.0, *(logprobs[position - 1, ids[position]].item() for position in range(1, len(ids)))]


class EpisodeMaker:
    """Random episodes of one or two conversations, whose samples are merged or one per turn."""

    def __init__(self, sampler: torch.nn.Module, seed: int, *, merged: bool, temperature: float, noise: float) -> None:
        self._sampler = sampler
        self._random = np.random.default_rng(seed)
        self._merged = merged
        self._temperature = temperature
        self._noise = noise

    def episode(self, episode_id: str, task_id: str, reward: float) -> FinishedEpisode:
        turns: list[Turn] = []
        for _ in range(self._random.integers(1, 3)):
            turns += self._conversation(episode_id, len(turns))
        apart = (sample for turn in turns for sample in merge([replace(turn, parent=None)]))
        samples = merge(turns) if self._merged else tuple(apart)
        return FinishedEpisode(episode_id, task_id, "client", reward, None, samples, 0.0)

    def _tokens(self, low: int, high: int) -> list[int]:
        return self._random.integers(1, VOCABULARY, self._random.integers(low, high)).tolist()

    def _conversation(self, episode_id: str, first: int) -> list[Turn]:
        parts = [
            (self._tokens(3 if turn == 0 else 1, 6), self._tokens(1, 7)) for turn in range(self._random.integers(1, 4))
        ]
        ids = list(itertools.chain.from_iterable(read + sampled for read, sampled in parts))
        noise = self._random.normal(scale=self._noise, size=len(ids))
        exact = record(self._sampler, ids, self._temperature)
        logprobs = [float(min(value + shift, -1e-4)) for value, shift in zip(exact, noise, strict=True)]
        turns: list[Turn] = []
        end = 0
        for number, (read, sampled) in enumerate(parts, start=first):
            begin, end = end + len(read), end + len(read) + len(sampled)
            turns.append(
                plain_turn(
                    number,
                    ids[:begin],
                    sampled,
                    episode_id=episode_id,
                    logprobs_T=tuple(logprobs[begin:end]),
                    params=SamplingParams(max_tokens=8, temperature=self._temperature),
                    parent=number - 1 if turns else None,
                )
            )
        return turns


@pytest.fixture(scope="session")
def make_batch(sampler: torch.nn.Module) -> Callable[..., TrainBatch]:
    """A batch of random multi-turn episodes with forks; same seed, same episodes, merged or not.

    `rewards` lists the rewards of each group. `noise` is the spread of recorded logprobs around the exact ones, so
    that ratios differ from 1 and some are clipped.
    """

    @functools.cache
    def make_groups(
        rewards: tuple[tuple[float, ...], ...], seed: int, *, merged: bool, temperature: float, noise: float
    ) -> tuple[Group, ...]:
        """Cached apart from the batches: the episodes of every step are the same."""
        maker = EpisodeMaker(sampler, seed, merged=merged, temperature=temperature, noise=noise)
        return tuple(
            Group(f"task-{g}", tuple(maker.episode(f"e{g}-{n}", f"task-{g}", r) for n, r in enumerate(group)))
            for g, group in enumerate(rewards)
        )

    def make(
        rewards: tuple[tuple[float, ...], ...] = ((1, 0, 0.5), (0, 1), (1, 1, 1), (0.25, 0, 0, 1)),
        *,
        seed: int = 0,
        step: int = 1,
        merged: bool = True,
        temperature: float = 1.0,
        noise: float = 0.2,
    ) -> TrainBatch:
        groups = make_groups(rewards, seed, merged=merged, temperature=temperature, noise=noise)
        return TrainBatch(batch_id=f"batch-{step}", step=step, groups=groups)

    return make
