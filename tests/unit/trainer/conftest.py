"""Tiny real models and random episodes for the tests of the local learner."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_models import random_model

from swarm.types import FinishedEpisode, Group, Sample, TrainBatch

if TYPE_CHECKING:
    import torch

VOCABULARY = 61
Conversation = list[tuple[list[int], list[int]]]
"""Turns as (tokens that are read, tokens that were sampled)."""


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


def merged_sample(
    episode_id: str,
    turns: Conversation,
    first_turn: int,
    logprobs: Sequence[float],
    trained_turns: set[int],
    temperature: float,
) -> Sample:
    """One sample over the whole conversation that trains the turns numbered `trained_turns`."""
    ids: list[int] = []
    mask: list[bool] = []
    numbers: list[int] = []
    for number, (read, sampled) in enumerate(turns, start=first_turn):
        trained = number in trained_turns
        ids += read + sampled
        mask += [False] * len(read) + [trained] * len(sampled)
        numbers += [-1] * len(read) + [number if trained else -1] * len(sampled)
    return Sample(
        episode_id=episode_id,
        token_ids_T=tuple(ids),
        loss_mask_T=tuple(mask),
        logprobs_T=tuple(value if kept else 0.0 for value, kept in zip(logprobs, mask, strict=True)),
        weight_versions_T=tuple(0 if kept else -1 for kept in mask),
        turn_indices_T=tuple(numbers),
        temperatures_T=tuple(temperature if kept else 1.0 for kept in mask),
    )


class EpisodeMaker:
    """Random episodes of one or two conversations, whose samples are merged or one per turn."""

    def __init__(self, sampler: torch.nn.Module, seed: int, *, merged: bool, temperature: float, noise: float) -> None:
        self._sampler = sampler
        self._random = np.random.default_rng(seed)
        self._merged = merged
        self._temperature = temperature
        self._noise = noise

    def conversation(self) -> Conversation:
        return [
            (self._tokens(3 if turn == 0 else 1, 6), self._tokens(1, 7)) for turn in range(self._random.integers(1, 4))
        ]

    def episode(self, episode_id: str, task_id: str, reward: float) -> FinishedEpisode:
        samples: list[Sample] = []
        first_turn = 0
        for _ in range(self._random.integers(1, 3)):
            turns = self.conversation()
            samples += self._samples(episode_id, turns, first_turn)
            first_turn += len(turns)
        return FinishedEpisode(episode_id, task_id, "client", reward, None, tuple(samples), 0.0)

    def _tokens(self, low: int, high: int) -> list[int]:
        return self._random.integers(1, VOCABULARY, self._random.integers(low, high)).tolist()

    def _samples(self, episode_id: str, turns: Conversation, first_turn: int) -> list[Sample]:
        ids = list(itertools.chain.from_iterable(read + sampled for read, sampled in turns))
        exact = record(self._sampler, ids, self._temperature)
        noise = self._random.normal(scale=self._noise, size=len(ids))
        logprobs = [float(min(value + shift, -1e-4)) for value, shift in zip(exact, noise, strict=True)]
        if self._merged:
            every = set(range(first_turn, first_turn + len(turns)))
            return [merged_sample(episode_id, turns, first_turn, logprobs, every, self._temperature)]
        samples: list[Sample] = []
        for count in range(1, len(turns) + 1):
            length = sum(len(read) + len(sampled) for read, sampled in turns[:count])
            last = {first_turn + count - 1}
            samples.append(
                merged_sample(episode_id, turns[:count], first_turn, logprobs[:length], last, self._temperature)
            )
        return samples


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
