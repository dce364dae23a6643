"""From a sealed batch to what the loss sees: one row per episode, one column per sampled token.

Place in the flow: the learner builds the rows of a batch once, orders them into microbatches, and collates each into
index tensors. verl calls a row a sequence; here a row is an *episode*, whatever samples its tokens came in. A token's
column is its rank in (turn, position), so the same episode gives the same row whether its turns were merged into one
sample or stored one by one, and every sequence-level loss and aggregation comes out the same.

Array suffixes: `_T` tokens of a sample, `_K` trained tokens of a sample, `_L` columns of a row, `_N` trained tokens of
a microbatch, `_S` samples of a microbatch, `_R` rows of a microbatch.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from swarm.errors import EngineFailure
from swarm.trainer.local.constraints import TokenMask, TokenMasks, TurnMasks
from swarm.types import FinishedEpisode, Sample, TrainBatch

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ScoredSample:
    """One sample, cut after its last trained token. Token `positions_K[k]` belongs in column `columns_K[k]`.

    `masks_K` says what else could have been sampled: None is anything. Empty if no token was constrained.
    """

    token_ids_T: IntArray
    positions_K: IntArray
    columns_K: IntArray
    temperatures_K: FloatArray
    masks_K: Sequence[TokenMask | None] = ()

    @property
    def inputs(self) -> int:
        """Tokens to run: the last trained token is only predicted, never read."""
        return len(self.token_ids_T) - 1


@dataclass(frozen=True, slots=True)
class Row:
    """One episode. `group` numbers its group within the batch; the `_L` arrays are as recorded at sampling.

    `turn_indices_L` ascends. `turn_rewards`, where the client gave any, has one entry per recorded turn.
    """

    episode_id: str
    group: int
    reward: float
    turn_rewards: tuple[float, ...] | None
    samples: tuple[ScoredSample, ...]
    rollout_logprobs_L: FloatArray
    turn_indices_L: IntArray
    weight_versions_L: IntArray

    @property
    def tokens(self) -> int:
        return len(self.rollout_logprobs_L)

    @property
    def turns(self) -> int:
        """How many turns have a token to train."""
        return len(np.unique(self.turn_indices_L))

    @property
    def longest(self) -> int:
        return max(sample.inputs for sample in self.samples)

    def returns(self, turns: int) -> list[float]:
        """Of each of the first `turns` turns: `reward` plus the turn rewards from there on."""
        given = self.turn_rewards or ()
        total, returns = self.reward, [self.reward] * max(turns, len(given))
        for turn in reversed(range(len(given))):
            total += given[turn]
            returns[turn] = total
        return returns[:turns]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of one forward and backward pass.

    `input_ids_ST` is right-padded with 0. Trained token n has id `targets_N[n]`; it is predicted at flat index
    `sources_N[n]` of the [S, T] inputs, was sampled at `temperatures_N[n]`, and belongs at flat index `cells_N[n]` of
    the [R, L] rows. `rollout_logprobs_RL` and `weight_versions_RL` were recorded at sampling. `masks` is None if all
    tokens were sampled without a grammar.
    """

    input_ids_ST: torch.Tensor
    sources_N: torch.Tensor
    targets_N: torch.Tensor
    temperatures_N: torch.Tensor
    cells_N: torch.Tensor
    mask_RL: torch.Tensor
    rollout_logprobs_RL: torch.Tensor
    weight_versions_RL: torch.Tensor
    advantages_RL: torch.Tensor
    masks: TokenMasks | None

    def spread(self, values_N: torch.Tensor) -> torch.Tensor:
        """Values of trained tokens as an [R, L] matrix, 0 elsewhere. Differentiable."""
        flat = values_N.new_zeros(self.mask_RL.numel())
        return flat.index_copy(0, self.cells_N, values_N).view(self.mask_RL.shape)


def build_rows(batch: TrainBatch, masks: TurnMasks | None = None) -> list[Row]:
    """One row per episode, in the order of `batch.episodes`.

    `masks` are those of every constrained turn. Raises EngineFailure for tokens that cannot be trained.
    """
    return [
        _build_row(episode, number, masks or {})
        for number, group in enumerate(batch.groups)
        for episode in group.episodes
    ]


def plan_microbatches(rows: Sequence[Row], chosen: Sequence[int], max_tokens: int | None) -> list[list[int]]:
    """Split the rows numbered `chosen` into lists of similar length with at most `max_tokens` padded tokens each.

    Rows are never split: one that is longer than the limit makes a microbatch of its own. None means no limit.
    """
    plans: list[list[int]] = []
    current: list[int] = []
    samples = 0
    for number in sorted(chosen, key=lambda number: (rows[number].longest, number)):
        row = rows[number]
        if current and max_tokens is not None and (samples + len(row.samples)) * row.longest > max_tokens:
            plans.append(current)
            current, samples = [], 0
        current.append(number)
        samples += len(row.samples)
    return [*plans, current] if current else plans


def collate(
    rows: Sequence[Row], chosen: Sequence[int], advantages_EL: torch.Tensor, device: torch.device
) -> MicroBatch:
    """The microbatch of the rows numbered `chosen`; `advantages_EL` has one line per row of the whole batch."""
    picked = [rows[number] for number in chosen]
    width = max(row.longest for row in picked)
    columns = max(row.tokens for row in picked)
    samples = [sample for row in picked for sample in row.samples]
    input_ids_ST = np.zeros((len(samples), width), dtype=np.int64)
    for line, sample in enumerate(samples):
        input_ids_ST[line, : sample.inputs] = sample.token_ids_T[:-1]
    sources_N = np.concatenate([line * width + sample.positions_K - 1 for line, sample in enumerate(samples)])
    targets_N = np.concatenate([sample.token_ids_T[sample.positions_K] for sample in samples])
    temperatures_N = np.concatenate([sample.temperatures_K for sample in samples])
    cells_N = np.concatenate(
        [line * columns + sample.columns_K for line, row in enumerate(picked) for sample in row.samples]
    )
    mask_RL = np.zeros((len(picked), columns), dtype=np.bool_)
    logprobs_RL = np.zeros((len(picked), columns), dtype=np.float32)
    versions_RL = np.full((len(picked), columns), -1, dtype=np.int64)
    for line, row in enumerate(picked):
        mask_RL[line, : row.tokens] = True
        logprobs_RL[line, : row.tokens] = row.rollout_logprobs_L
        versions_RL[line, : row.tokens] = row.weight_versions_L
    return MicroBatch(
        input_ids_ST=torch.from_numpy(input_ids_ST).to(device),
        sources_N=torch.from_numpy(sources_N).to(device),
        targets_N=torch.from_numpy(targets_N).to(device),
        temperatures_N=torch.from_numpy(temperatures_N).to(device),
        cells_N=torch.from_numpy(cells_N).to(device),
        mask_RL=torch.from_numpy(mask_RL).to(device),
        rollout_logprobs_RL=torch.from_numpy(logprobs_RL).to(device),
        weight_versions_RL=torch.from_numpy(versions_RL).to(device),
        advantages_RL=advantages_EL[list(chosen), :columns].to(device),
        masks=_collate_masks(samples, device),
    )


def _collate_masks(samples: Sequence[ScoredSample], device: torch.device) -> TokenMasks | None:
    if not any(sample.masks_K for sample in samples):
        return None
    free: list[TokenMask | None] = [None]
    masks = [sample.masks_K or free * len(sample.positions_K) for sample in samples]
    return TokenMasks.collect(list(chain.from_iterable(masks)), device)


def _build_row(episode: FinishedEpisode, group: int, masks: TurnMasks) -> Row:
    trained = [sample for sample in episode.samples if any(sample.loss_mask_T)]
    if not trained:
        raise EngineFailure(f"episode {episode.episode_id} has no sampled token to train on")
    positions = [_trained_positions(sample) for sample in trained]
    turns_N = np.concatenate([_trained(s.turn_indices_T, p) for s, p in zip(trained, positions, strict=True)])
    # Stable: within a turn, which never spans two samples, the order of the sequence is kept.
    order_L = np.argsort(turns_N, kind="stable")
    ranks_N = np.empty_like(turns_N)
    ranks_N[order_L] = np.arange(len(turns_N))
    logprobs_N = [np.asarray(s.logprobs_T, dtype=np.float32)[p] for s, p in zip(trained, positions, strict=True)]
    versions_N = [_trained(s.weight_versions_T, p) for s, p in zip(trained, positions, strict=True)]
    samples: list[ScoredSample] = []
    start = 0
    for sample, positions_K in zip(trained, positions, strict=True):
        columns_K = ranks_N[start : start + len(positions_K)]
        start += len(positions_K)
        token_ids_T = np.asarray(sample.token_ids_T[: positions_K[-1] + 1], dtype=np.int64)
        temperatures_K = np.asarray(sample.temperatures_T, dtype=np.float32)[positions_K]
        masks_K = _find_masks(sample, positions_K, masks)
        samples.append(ScoredSample(token_ids_T, positions_K, columns_K, temperatures_K, masks_K))
    return Row(
        episode_id=episode.episode_id,
        group=group,
        reward=episode.reward,
        turn_rewards=episode.turn_rewards,
        samples=tuple(samples),
        rollout_logprobs_L=np.concatenate(logprobs_N)[order_L],
        turn_indices_L=turns_N[order_L],
        weight_versions_L=np.concatenate(versions_N)[order_L],
    )


def _find_masks(sample: Sample, positions_K: IntArray, masks: TurnMasks) -> list[TokenMask | None]:
    if not sample.constrained_turns:
        return []
    found: list[TokenMask | None] = [None] * len(positions_K)
    turns_K = _trained(sample.turn_indices_T, positions_K)
    for turn in sample.constrained_turns:
        of_turn = masks.get((sample.episode_id, turn.index), ())
        places = np.flatnonzero(turns_K == turn.index).tolist()
        if len(of_turn) != len(places):
            raise EngineFailure(
                f"turn {turn.index} of episode {sample.episode_id} was sampled under a grammar that was not followed"
            )
        for place, mask in zip(places, of_turn, strict=True):
            found[place] = mask
    return found


def _trained(values_T: Sequence[int], positions_K: IntArray) -> IntArray:
    return np.asarray(values_T, dtype=np.int64)[positions_K]


def _trained_positions(sample: Sample) -> IntArray:
    positions_K = np.flatnonzero(np.asarray(sample.loss_mask_T, dtype=np.bool_)).astype(np.int64)
    if positions_K[0] == 0:
        raise EngineFailure(f"episode {sample.episode_id}: the first token of a sample has no context to predict it")
    return positions_K
