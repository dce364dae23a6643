"""Metrics of a step under flat names: the description of a batch, and the collector of what its updates measure."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from swarm.trainer.token_rows import Row
from swarm.types import TrainBatch


def describe_batch(
    batch: TrainBatch, rows: Sequence[Row], advantages_EL: torch.Tensor, weight_version: int | None
) -> dict[str, float]:
    """Return scores, advantages, lengths, staleness and merging savings of a batch with at least one row.

    Returns of whole episodes are present if turn rewards were given, and named rewards if every episode has them.
    Staleness is present if `weight_version` is known.
    """
    rewards = torch.tensor([row.reward for row in rows], dtype=torch.float64)
    lengths = torch.tensor([float(row.tokens) for row in rows])
    mask_EL = torch.arange(advantages_EL.shape[1])[None] < lengths[:, None]
    informative = {row.group for row, advantages_L in zip(rows, advantages_EL, strict=True) if advantages_L.any()}
    samples = [sample for episode in batch.episodes for sample in episode.samples]
    return {
        **_spread("critic/score", rewards),
        "critic/score/std": rewards.std(correction=0).item(),
        **_describe_returns(rows),
        **_describe_rewards(rows),
        **_describe_baselines(batch),
        **_spread("critic/advantages", advantages_EL[mask_EL]),
        **_describe_staleness(rows, weight_version),
        **_spread("response_length", lengths),
        "num_turns/mean": sum(row.turns for row in rows) / len(rows),
        "rollout/episodes": float(len(rows)),
        "rollout/groups": float(len(batch.groups)),
        "rollout/groups_zero_advantage": float(len(batch.groups) - len(informative)),
        "rollout/turns": float(sum(row.turns for row in rows)),
        "rollout/trained_tokens": lengths.sum().item(),
        "merge/samples": float(len(samples)),
        "merge/tokens": float(sum(len(sample.token_ids_T) for sample in samples)),
        "merge/tokens_unmerged": float(sum(_unmerged_tokens(sample.turn_indices_T) for sample in samples)),
    }


def mean_advantages(rows: Sequence[Row], advantages_EL: torch.Tensor) -> dict[str, float]:
    """Return a map from episode id to the mean advantage of the episode's tokens."""
    return {
        row.episode_id: advantages_L[: row.tokens].mean().item()
        for row, advantages_L in zip(rows, advantages_EL, strict=True)
    }


def describe_values(
    values: torch.Tensor, advantages: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor
) -> dict[str, float]:
    """Return verl's metrics of a critic, over the trained tokens."""
    found, wanted = values[mask], returns[mask]
    spread = wanted.var(correction=0)
    return {
        **_spread("critic/values", found),
        "critic/returns/mean": wanted.mean().item(),
        "critic/vf_explained_var": (1.0 - (wanted - found).var(correction=0) / (spread + 1e-5)).item(),
        **_spread("critic/advantages", advantages[mask]),
    }


def _describe_returns(rows: Sequence[Row]) -> dict[str, float]:
    if all(row.turn_rewards is None for row in rows):
        return {}
    return _spread("critic/return", torch.tensor([row.returns(1)[0] for row in rows], dtype=torch.float64))


def _describe_baselines(batch: TrainBatch) -> dict[str, float]:
    greedy = [group.greedy.reward for group in batch.groups if group.greedy is not None]
    return {"critic/greedy_score/mean": sum(greedy) / len(greedy)} if greedy else {}


def _describe_rewards(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean and deviation of each named reward that all episodes have, under verl's names."""
    named = [dict(row.rewards or {}) for row in rows]
    measured: dict[str, float] = {}
    for name in sorted(name for name in named[0] if all(name in rewards for rewards in named)):
        values = np.array([rewards[name] for rewards in named])
        measured |= {f"gdpo/{name}/mean": float(values.mean()), f"gdpo/{name}/std": float(values.std())}
    return measured


def _describe_staleness(rows: Sequence[Row], weight_version: int | None) -> dict[str, float]:
    """Return the staleness of the trained tokens, in weight versions."""
    if weight_version is None:
        return {}
    staleness_N = weight_version - np.concatenate([row.weight_versions_L for row in rows])
    return {"staleness/mean": float(staleness_N.mean()), "staleness/max": float(staleness_N.max())}


def _spread(name: str, values: torch.Tensor) -> dict[str, float]:
    return {
        f"{name}/mean": values.mean().item(),
        f"{name}/max": values.max().item(),
        f"{name}/min": values.min().item(),
    }


def _unmerged_tokens(turn_indices_T: Sequence[int]) -> int:
    """Return the total length of this sample's turns if each turn were a sample with its whole prefix."""
    ends: dict[int, int] = {}
    for position, turn in enumerate(turn_indices_T):
        if turn >= 0:
            ends[turn] = position + 1
    return sum(ends.values())


def describe_demonstrations(rows: Sequence[Row]) -> dict[str, float]:
    """Return the number of demonstrations that a step trains, and of the tokens of their replies."""
    tokens = float(sum(row.tokens for row in rows))
    return {"sft/demonstrations": float(len(rows)), "sft/trained_tokens": tokens}


class Meter:
    """Sums, weighted means, maxima and counts under one flat set of names."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._weights: defaultdict[str, float] = defaultdict(float)
        self._maxima: dict[str, float] = {}

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._sums[name] += value

    def count(self, name: str) -> None:
        self._sums[name] += 1.0

    def average(self, values: Mapping[str, float], weight: float = 1.0) -> None:
        for name, value in values.items():
            self._totals[name] += weight * value
            self._weights[name] += weight

    def maximum(self, name: str, value: float) -> None:
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def add_from(self, part: Meter) -> None:
        """Add the numbers of another part of the same update."""
        self.add(part._sums)
        self._join(part)

    def include(self, update: Meter) -> None:
        """Add the numbers of one update: its sums are averaged over updates, its means keep their weights."""
        self.average(update._sums)
        self._join(update)

    def _join(self, other: Meter) -> None:
        for name, total in other._totals.items():
            self._totals[name] += total
            self._weights[name] += other._weights[name]
        for name, value in other._maxima.items():
            self.maximum(name, value)

    def read(self) -> dict[str, float]:
        means = {name: total / self._weights[name] for name, total in self._totals.items()}
        return {**self._sums, **means, **self._maxima}
