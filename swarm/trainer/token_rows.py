"""The rows that a loss sees, built from a complete batch: one row per episode, one column per sampled token."""

# Array suffixes: `_T` tokens of a sample, `_K` trained tokens of a sample, `_L` columns of a row, `_N` trained tokens
# of an episode.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swarm.errors import EngineFailure
from swarm.types import FinishedEpisode, Sample, TrainBatch

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]

TokenMask = bytes
"""One bit per token id, lowest bit first: 1 if the token was allowed."""

TurnMasks = Mapping[tuple[str, int], Sequence[TokenMask]]
"""By episode id and turn index: a mask for each of the turn's tokens."""


@dataclass(frozen=True, slots=True)
class ScoredSample:
    """One sample, cut after its last trained token. Token `positions_K[k]` belongs in column `columns_K[k]`.

    `masks_K` holds the tokens that could have been sampled instead; None means any token. It is empty if no token was
    constrained.
    """

    token_ids_T: IntArray
    positions_K: IntArray
    columns_K: IntArray
    temperatures_K: FloatArray
    masks_K: Sequence[TokenMask | None] = ()

    @property
    def inputs(self) -> int:
        """Number of tokens to run through the model: the last trained token is only predicted, never read."""
        return len(self.token_ids_T) - 1


@dataclass(frozen=True, slots=True)
class Row:
    """One episode. `group` numbers its group within the batch; the `_L` arrays were recorded at sampling.

    `baseline` is the return of the group's greedy episode, None without one. `turn_indices_L` ascends. `turn_rewards`
    has one entry per recorded turn if the client gave any. `rewards` maps names to values.
    """

    episode_id: str
    group: int
    reward: float
    turn_rewards: tuple[float, ...] | None
    samples: tuple[ScoredSample, ...]
    rollout_logprobs_L: FloatArray
    turn_indices_L: IntArray
    weight_versions_L: IntArray
    rewards: Mapping[str, float] | None = None
    baseline: float | None = None

    @property
    def tokens(self) -> int:
        return len(self.rollout_logprobs_L)

    @property
    def turns(self) -> int:
        """Number of turns with at least one trained token."""
        return len(np.unique(self.turn_indices_L))

    @property
    def longest(self) -> int:
        return max(sample.inputs for sample in self.samples)

    def returns(self, turns: int) -> list[float]:
        """Return the returns of the first `turns` turns: `reward` plus the turn rewards from each turn on."""
        given = self.turn_rewards or ()
        total, returns = self.reward, [self.reward] * max(turns, len(given))
        for turn in reversed(range(len(given))):
            total += given[turn]
            returns[turn] = total
        return returns[:turns]

    def token_rewards(self) -> FloatArray:
        """Return the reward of each trained token; these sum to the return of the first trained turn.

        The last token of a turn earns the return from that turn on minus the return from the next trained turn on.
        Every other token earns 0.
        """
        ends = np.flatnonzero(np.append(np.diff(self.turn_indices_L) != 0, True))
        returns = self.returns(int(self.turn_indices_L[-1]) + 1)
        of_turns = [returns[int(turn)] for turn in self.turn_indices_L[ends]]
        rewards_L = np.zeros(self.tokens, dtype=np.float32)
        rewards_L[ends] = [now - later for now, later in zip(of_turns, [*of_turns[1:], 0.0], strict=True)]
        return rewards_L


def build_rows(batch: TrainBatch, masks: TurnMasks | None = None) -> list[Row]:
    """Return one row per trained episode, in the order of `batch.episodes`.

    `masks` are the masks of every constrained turn. Raise EngineFailure for tokens that cannot be trained.
    """
    return [
        _build_row(episode, number, None if group.greedy is None else _return(group.greedy), masks or {})
        for number, group in enumerate(batch.groups)
        for episode in group.episodes
    ]


def build_demonstration_rows(demonstrations: Sequence[FinishedEpisode]) -> list[Row]:
    """Return one row per demonstration, each in a group of its own. Raise EngineFailure for tokens without context."""
    return [_build_row(each, number, None, {}) for number, each in enumerate(demonstrations)]


def _return(episode: FinishedEpisode) -> float:
    return episode.reward + sum(episode.turn_rewards or ())


def _build_row(episode: FinishedEpisode, group: int, baseline: float | None, masks: TurnMasks) -> Row:
    trained = [sample for sample in episode.samples if any(sample.loss_mask_T)]
    if not trained:
        raise EngineFailure(f"episode {episode.episode_id} has no sampled token to train on")
    positions = [_trained_positions(sample) for sample in trained]
    turns_N = np.concatenate([_trained(s.turn_indices_T, p) for s, p in zip(trained, positions, strict=True)])
    # A stable sort keeps the order of the sequence within a turn, which never spans two samples.
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
        rewards=episode.rewards,
        baseline=baseline,
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
