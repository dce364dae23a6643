"""The sequences that verl trains on, built from the rows of a batch: one per sample, as prompt and response."""

# Array suffixes: `_T` tokens of a sequence, `_P` of its response (from the first trained token on), `_K` its trained
# tokens, `_L` columns of a row, `_E` rows of the batch.

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from swarm.trainer.token_rows import Row, ScoredSample
from swarm.types import FinishedEpisode, TrainBatch

SEQUENCE_SHARED_MODES = frozenset({"seq-mean-token-mean"})
"""Aggregation modes in which the tokens of an episode share one weight, over all of its sequences."""

Fields = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class TrainedSequence:
    """One sequence. `episode` numbers its row in the batch; `fields` are verl's, each of one dimension or none."""

    episode: int
    tokens: int
    has_signal: bool
    fields: Fields

    @property
    def length(self) -> int:
        return len(self.fields["input_ids"])


@dataclass(frozen=True, slots=True)
class Sequences:
    """All sequences of a batch with a trained token, and the number of left-out tokens by reason."""

    trained: tuple[TrainedSequence, ...]
    temperature: float
    metrics: Mapping[str, float]


def without_grammars(batch: TrainBatch) -> tuple[TrainBatch, dict[str, frozenset[int]]]:
    """Return the batch without its grammars, and the constrained turns of each episode that has any.

    verl's engine cannot exclude the tokens that a grammar forbade, so the tokens of such a turn become context.
    """
    constrained: dict[str, frozenset[int]] = {}
    for episode in batch.episodes:
        turns = frozenset(turn.index for sample in episode.samples for turn in sample.constrained_turns)
        if turns:
            constrained[episode.episode_id] = turns
    if not constrained:
        return batch, constrained
    groups = tuple(replace(group, episodes=tuple(map(_unconstrained, group.episodes))) for group in batch.groups)
    return replace(batch, groups=groups), constrained


def build_sequences(
    rows: Sequence[Row],
    advantages_EL: torch.Tensor,
    constrained: Mapping[str, frozenset[int]],
    *,
    loss_agg_mode: str,
    per_token_temperature: bool,
) -> Sequences:
    """Return the sequences of every row, in the order of the rows.

    If the engine takes one temperature for the whole batch, tokens of any but the most common one are context, and
    counted. `temperature` is the temperature of all trained tokens. It is 1 if they differ and the sequences carry
    their own.
    """
    temperature, is_mixed = _common_temperature(rows)
    kept = [
        _kept_tokens(row, constrained.get(row.episode_id, frozenset()), None if per_token_temperature else temperature)
        for row in rows
    ]
    carries_temperatures = is_mixed and per_token_temperature
    trained: list[TrainedSequence] = []
    for number, row in enumerate(rows):
        total = int(kept[number].sum())
        for sample in row.samples:
            keep_K = kept[number][sample.columns_K]
            if not keep_K.any():
                continue
            advantages_K = advantages_EL[number, torch.from_numpy(sample.columns_K)]
            fields = _fields(row, sample, keep_K, advantages_K)
            if carries_temperatures:
                fields["token_temperatures"] = _shifted_temperatures(sample)
            share = int(keep_K.sum()) / total if loss_agg_mode in SEQUENCE_SHARED_MODES else 1.0
            fields["row_weight"] = torch.tensor(share)
            signal = bool(advantages_K[torch.from_numpy(keep_K)].any())
            trained.append(TrainedSequence(number, int(keep_K.sum()), signal, fields))
    return Sequences(tuple(trained), 1.0 if carries_temperatures else temperature, _left_out(rows, constrained, kept))


def padding_fields(like: Fields) -> Fields:
    """Return a sequence of two tokens that trains nothing, with the same fields."""
    two, one = torch.zeros(2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    whole: Fields = {"input_ids": two, "position_ids": torch.arange(2), "token_temperatures": torch.ones(2)}
    fields: Fields = {}
    for name, value in like.items():
        if name in whole:
            fields[name] = whole[name]
        elif value.dim() == 0:
            fields[name] = torch.zeros_like(value)
        else:
            fields[name] = one.to(value.dtype)
    return fields


def _unconstrained(episode: FinishedEpisode) -> FinishedEpisode:
    return replace(episode, samples=tuple(replace(sample, constrained_turns=()) for sample in episode.samples))


def _common_temperature(rows: Sequence[Row]) -> tuple[float, bool]:
    """Return the temperature of most trained tokens, and whether there are others."""
    all_N = np.concatenate([sample.temperatures_K for row in rows for sample in row.samples])
    values, counts = np.unique(all_N, return_counts=True)
    return float(values[counts.argmax()]), len(values) > 1


def _kept_tokens(row: Row, constrained: frozenset[int], only_temperature: float | None) -> np.ndarray:
    """Return whether the loss sees each column of the row."""
    keep_L = ~np.isin(row.turn_indices_L, list(constrained))
    if only_temperature is not None:
        for sample in row.samples:
            keep_L[sample.columns_K] &= sample.temperatures_K == np.float32(only_temperature)
    return keep_L


def _fields(row: Row, sample: ScoredSample, keep_K: np.ndarray, advantages_K: torch.Tensor) -> Fields:
    ids_T = torch.from_numpy(sample.token_ids_T)
    first = int(sample.positions_K[0])
    places_K = torch.from_numpy(sample.positions_K) - first
    length = len(ids_T) - first

    def response(values_K: torch.Tensor, otherwise: float = 0) -> torch.Tensor:
        spread_P = torch.full((length,), otherwise, dtype=values_K.dtype)
        spread_P[places_K] = values_K
        return spread_P

    mask_P = response(torch.from_numpy(keep_K.astype(np.int64)))
    return {
        "prompts": ids_T[:first],
        "responses": ids_T[first:],
        "input_ids": ids_T,
        "position_ids": torch.arange(len(ids_T)),
        "response_mask": mask_P,
        "loss_mask": mask_P,
        "rollout_log_probs": response(torch.from_numpy(row.rollout_logprobs_L[sample.columns_K])),
        "advantages": response(advantages_K),
        "weight_versions": response(torch.from_numpy(row.weight_versions_L[sample.columns_K]), -1),
        "rm_scores": response(torch.from_numpy(_rewards(row, sample, keep_K))),
    }


def _rewards(row: Row, sample: ScoredSample, keep_K: np.ndarray) -> np.ndarray:
    """Return the reward of each trained token of a sequence, for a critic.

    A turn's own reward is earned at its end. The last turn of the sequence earns the whole return of the episode from
    that turn on.
    """
    turns_K = row.turn_indices_L[sample.columns_K]
    kept = np.flatnonzero(keep_K)
    is_end = np.append(turns_K[kept][1:] != turns_K[kept][:-1], True)
    rewards_K = np.zeros(len(turns_K), dtype=np.float32)
    *earlier, last = kept[is_end].tolist()
    for place in earlier:
        rewards_K[place] = row.turn_rewards[int(turns_K[place])] if row.turn_rewards else 0.0
    rewards_K[last] = row.returns(int(turns_K.max()) + 1)[int(turns_K[last])]
    return rewards_K


def _shifted_temperatures(sample: ScoredSample) -> torch.Tensor:
    """Return, for each position, the temperature of the token after it."""
    temperatures_T = torch.ones(len(sample.token_ids_T))
    temperatures_T[torch.from_numpy(sample.positions_K) - 1] = torch.from_numpy(sample.temperatures_K)
    return temperatures_T


def _left_out(
    rows: Sequence[Row], constrained: Mapping[str, frozenset[int]], kept: Sequence[np.ndarray]
) -> dict[str, float]:
    by_grammar = sum(int(np.isin(row.turn_indices_L, list(constrained.get(row.episode_id, ()))).sum()) for row in rows)
    every = sum(len(keep_L) - int(keep_L.sum()) for keep_L in kept)
    metrics = {"rollout/tokens_left_out_temperature": float(every - by_grammar)}
    if constrained:
        metrics["grammar/turns_left_out"] = float(sum(map(len, constrained.values())))
        metrics["grammar/tokens_left_out"] = float(by_grammar)
    return metrics
