"""Closed batches of the bundled model, with the logprobs that it would record, for the tests of the verl trainer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from swarm.model_path import BUNDLED_DIRECTORY
from swarm.types import FinishedEpisode, Group, Sample, TrainBatch

if TYPE_CHECKING:
    import torch

Turn = tuple[list[int], list[int]]
"""Tokens that are read, then tokens that were sampled."""


@cache
def bundled_model() -> torch.nn.Module:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        BUNDLED_DIRECTORY, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()


def recorded(ids: Sequence[int], temperatures: Sequence[float]) -> list[float]:
    """Logprob of each token by the base model, at the temperature of its sampling; 0.0 for the first."""
    import torch

    with torch.no_grad():
        logits = bundled_model()(input_ids=torch.tensor([ids])).logits[0].float()
    logprobs = torch.log_softmax(logits[:-1] / torch.tensor(temperatures)[1:, None], -1)
    return [0.0, *logprobs.gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist()]


def make_sample(
    episode_id: str, turns: Sequence[Turn], first_turn: int = 0, temperatures: Sequence[float] | None = None
) -> Sample:
    """One conversation whose every turn is trained; `temperatures` has one entry per turn."""
    ids: list[int] = []
    numbers: list[int] = []
    heats: list[float] = []
    for place, (read, sampled) in enumerate(turns):
        ids += read + sampled
        numbers += [-1] * len(read) + [first_turn + place] * len(sampled)
        heat = 1.0 if temperatures is None else temperatures[place]
        heats += [1.0] * len(read) + [heat] * len(sampled)
    mask = tuple(number >= 0 for number in numbers)
    logprobs = recorded(ids, heats)
    return Sample(
        episode_id=episode_id,
        token_ids_T=tuple(ids),
        loss_mask_T=mask,
        logprobs_T=tuple(value if kept else 0.0 for value, kept in zip(logprobs, mask, strict=True)),
        weight_versions_T=tuple(0 if kept else -1 for kept in mask),
        turn_indices_T=tuple(numbers),
        temperatures_T=tuple(heats),
    )


def make_batch(
    rewards: Sequence[Sequence[float]] = ((1, 0, 0, 1), (0, 0, 1, 0)),
    *,
    step: int = 1,
    seed: int = 0,
    forked: bool = True,
    temperatures: Sequence[float] = (1.0,),
    turn_rewards: bool = False,
) -> TrainBatch:
    """A group per entry of `rewards`, an episode per reward: two or three turns with read tokens between them.

    Every third episode is `forked` into two conversations. Turns take their temperatures in turn.
    """
    random = np.random.default_rng([seed, step])

    def tokens(low: int, high: int) -> list[int]:
        return random.integers(5, 380, random.integers(low, high)).tolist()

    def conversation(count: int) -> list[Turn]:
        return [(tokens(4, 9) if turn == 0 else tokens(1, 5), tokens(2, 9)) for turn in range(count)]

    groups: list[Group] = []
    number = 0
    for task, of_group in enumerate(rewards):
        episodes: list[FinishedEpisode] = []
        for repeat, reward in enumerate(of_group):
            episode_id = f"s{step}-e{task}-{repeat}"
            counts = (2, 1) if forked and number % 3 == 2 else (int(random.integers(2, 4)),)
            samples, first = [], 0
            for count in counts:
                heats = [temperatures[(first + turn) % len(temperatures)] for turn in range(count)]
                samples.append(make_sample(episode_id, conversation(count), first, heats))
                first += count
            extra: dict[str, Any] = {"turn_rewards": tuple(0.1 * turn for turn in range(first))} if turn_rewards else {}
            episodes.append(
                FinishedEpisode(episode_id, f"task-{task}", "client", float(reward), None, tuple(samples), 0.0, **extra)
            )
            number += 1
        groups.append(Group(f"task-{task}", tuple(episodes)))
    return TrainBatch(f"batch-{step}", step, tuple(groups))
