"""The tensors of one forward and backward pass, built from rows, with the tokens that grammars allowed."""

# Array suffixes: `_K` trained tokens of a sample, `_L` columns of a row, `_N` trained tokens of a microbatch, `_S`
# its samples, `_R` its rows, `_E` rows of the whole batch, `_U` distinct masks, `_B` bytes of 8 tokens.

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import numpy as np
import torch

from swarm.backends.grammar import GrammarCompiler
from swarm.backends.local.learning.sharing.attention import lay_out_for
from swarm.backends.local.learning.sharing.tree import TreeLayout, build_tree
from swarm.backends.local.model.computing import to_device
from swarm.errors import BadRequest, SwarmError
from swarm.trainer.token_rows import IntArray, Row, ScoredSample, TokenMask, TurnMasks
from swarm.types import ConstrainedTurn, FinishedEpisode, Sample, TrainBatch

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

FORBIDDEN_LOGIT = -1e30
"""Gives probability 0 after softmax, yet is finite: in an entropy, 0 times minus infinity would not be 0."""


@dataclass(frozen=True, slots=True)
class FollowedBatch:
    """The batch without the turns whose grammar could not be followed; the other turns have their `masks`."""

    batch: TrainBatch
    masks: TurnMasks = field(default_factory=dict[tuple[str, int], Sequence[TokenMask]])
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


class GrammarFollower:
    """Follower of grammars with the compiler that the sampler uses. Equal masks are stored once per batch."""

    def __init__(self, compiler: GrammarCompiler, end_ids: Collection[int]) -> None:
        """Set the compiler. `end_ids` are the model's own end tokens."""
        self._compiler = compiler
        self._end_ids = frozenset(end_ids)

    def follow(self, batch: TrainBatch) -> FollowedBatch:
        """Return the masks of every constrained turn of a batch.

        A turn with a token that its grammar forbids is left out, logged and counted. An episode or group that has no
        other tokens to train is left out with it.
        """
        found: dict[tuple[str, int], list[TokenMask]] = {}
        lost: dict[tuple[str, int], int] = {}
        known: dict[TokenMask, TokenMask] = {}
        for sample in (sample for episode in batch.episodes for sample in episode.samples):
            for turn in sample.constrained_turns:
                places = np.flatnonzero(np.asarray(sample.turn_indices_T) == turn.index)
                token_ids = [sample.token_ids_T[place] for place in places.tolist()]
                key = sample.episode_id, turn.index
                try:
                    found[key] = self._walk(turn, token_ids, known)
                except SwarmError as error:
                    logger.warning("turn %d of episode %s is not trained: %s", turn.index, sample.episode_id, error)
                    lost[key] = len(token_ids)
        if not found and not lost:
            return FollowedBatch(batch)
        metrics = {
            "grammar/turns": float(len(found)),
            "grammar/tokens": float(sum(map(len, found.values()))),
            "grammar/turns_left_out": float(len(lost)),
            "grammar/tokens_left_out": float(sum(lost.values())),
        }
        return FollowedBatch(_without(batch, lost) if lost else batch, found, metrics)

    def _walk(
        self, turn: ConstrainedTurn, token_ids: Sequence[int], known: dict[TokenMask, TokenMask]
    ) -> list[TokenMask]:
        constraint = self._compiler.start(turn.grammar, self._end_ids.union(turn.stop_token_ids))
        masks: list[TokenMask] = []
        for place, token_id in enumerate(token_ids):
            if place:
                constraint.take(token_ids[place - 1])
            if (allowed := constraint.allowed()) is None:
                raise constraint.error or BadRequest("the grammar cannot be followed any further")
            mask = allowed.tobytes()
            if not mask[token_id // 8] >> token_id % 8 & 1:
                raise BadRequest(f"the grammar does not allow its token {place}, id {token_id}")
            masks.append(known.setdefault(mask, mask))
        return masks


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Masks of the trained tokens of a microbatch: token n has the mask in line `numbers_N[n]` of `allowed_UB`.

    Line 0 allows everything. `_U` counts distinct masks, `_B` bytes of 8 tokens.
    """

    numbers_N: torch.Tensor
    allowed_UB: torch.Tensor

    @staticmethod
    def collect(masks_N: Sequence[TokenMask | None], device: torch.device) -> TokenMasks:
        """Return the masks of tokens, at least one of which has a mask; None marks an unconstrained token."""
        numbers: dict[TokenMask | None, int] = {None: 0}
        numbers_N = [numbers.setdefault(mask, len(numbers)) for mask in masks_N]
        lines = [mask for mask in numbers if mask is not None]
        everything = b"\xff" * len(lines[0])
        allowed_UB = np.frombuffer(bytearray().join([everything, *lines]), dtype=np.uint8).reshape(len(numbers), -1)
        return TokenMasks(torch.tensor(numbers_N, device=device), torch.from_numpy(allowed_UB).to(device))

    @torch.no_grad()
    def apply(self, logits_NV: torch.Tensor) -> None:
        """Change `logits_NV` in place, so that forbidden tokens get probability 0.

        Autograd does not see this change, and need not: the gradient of a softmax is 0 at probability 0.
        """
        bits = torch.arange(8, device=logits_NV.device, dtype=torch.uint8)
        forbidden_UV = (((self.allowed_UB[:, :, None] >> bits) & 1) == 0).flatten(1)[:, : logits_NV.shape[1]]
        logits_NV.masked_fill_(forbidden_UV.index_select(0, self.numbers_N), FORBIDDEN_LOGIT)


def _without(batch: TrainBatch, lost: Collection[tuple[str, int]]) -> TrainBatch:
    groups = [
        replace(group, episodes=tuple(left for each in group.episodes if (left := _cleared(each, lost)).trained_tokens))
        for group in batch.groups
    ]
    return replace(batch, groups=tuple(group for group in groups if group.episodes))


def _cleared(episode: FinishedEpisode, lost: Collection[tuple[str, int]]) -> FinishedEpisode:
    turns = {index for episode_id, index in lost if episode_id == episode.episode_id}
    return replace(episode, samples=tuple(_clear(each, turns) for each in episode.samples)) if turns else episode


def _clear(sample: Sample, turns: Collection[int]) -> Sample:
    """Return the same tokens, with the given turns as context."""
    kept = [turn not in turns for turn in sample.turn_indices_T]
    return Sample(
        episode_id=sample.episode_id,
        token_ids_T=sample.token_ids_T,
        loss_mask_T=_where(kept, sample.loss_mask_T, False),
        logprobs_T=_where(kept, sample.logprobs_T, 0.0),
        weight_versions_T=_where(kept, sample.weight_versions_T, -1),
        turn_indices_T=_where(kept, sample.turn_indices_T, -1),
        temperatures_T=_where(kept, sample.temperatures_T, 1.0),
        constrained_turns=tuple(turn for turn in sample.constrained_turns if turn.index not in turns),
    )


def _where(kept: Sequence[bool], values: Sequence[Value], otherwise: Value) -> tuple[Value, ...]:
    return tuple(value if keep else otherwise for keep, value in zip(kept, values, strict=True))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of one forward and backward pass.

    `input_ids_ST` is right-padded with 0. With a `tree` it is one line: the tokens of the samples' tree, each prefix
    once. Trained token n has id `targets_N[n]` and is predicted at flat index `sources_N[n]` of the [S, T] inputs. It
    was sampled at `temperatures_N[n]`, and belongs at flat index `cells_N[n]` of the [R, L] rows. `rollout_logprobs_RL`
    and `weight_versions_RL` were recorded at sampling. `masks` is None if all tokens were sampled without a grammar.
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
    tree: TreeLayout | None = None

    def spread(self, values_N: torch.Tensor) -> torch.Tensor:
        """Return values of trained tokens as an [R, L] matrix, 0 elsewhere. Differentiable."""
        flat = values_N.new_zeros(self.mask_RL.numel())
        return flat.index_copy(0, self.cells_N, values_N).view(self.mask_RL.shape)


def plan_microbatches(rows: Sequence[Row], chosen: Sequence[int], max_tokens: int | None) -> list[list[int]]:
    """Split the rows numbered `chosen` into lists of similar length with at most `max_tokens` padded tokens each.

    Rows are never split: a row longer than the limit is a microbatch of its own. None means no limit.
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
    rows: Sequence[Row],
    chosen: Sequence[int],
    advantages_EL: torch.Tensor,
    device: torch.device,
    *,
    shared: bool = False,
) -> MicroBatch:
    """Return the microbatch of the rows numbered `chosen`; `advantages_EL` has one line per row of the batch.

    With `shared`, common prefixes of the samples are in it once.
    """
    picked = [rows[number] for number in chosen]
    columns = max(row.tokens for row in picked)
    samples = [sample for row in picked for sample in row.samples]
    inputs = _collate_tree(samples, device) if shared else _collate_lines(samples)
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
        input_ids_ST=to_device(inputs.token_ids_ST, device),
        sources_N=to_device(inputs.sources_N, device),
        targets_N=to_device(targets_N, device),
        temperatures_N=to_device(temperatures_N, device),
        cells_N=to_device(cells_N, device),
        mask_RL=to_device(mask_RL, device),
        rollout_logprobs_RL=to_device(logprobs_RL, device),
        weight_versions_RL=to_device(versions_RL, device),
        advantages_RL=to_device(advantages_EL[list(chosen), :columns].numpy(), device),
        masks=_collate_masks(samples, device),
        tree=inputs.tree,
    )


@dataclass(frozen=True, slots=True)
class _Inputs:
    token_ids_ST: IntArray
    sources_N: IntArray
    tree: TreeLayout | None


def _collate_lines(samples: Sequence[ScoredSample]) -> _Inputs:
    width = max(sample.inputs for sample in samples)
    token_ids_ST = np.zeros((len(samples), width), dtype=np.int64)
    for line, sample in enumerate(samples):
        token_ids_ST[line, : sample.inputs] = sample.token_ids_T[:-1]
    sources_N = np.concatenate([line * width + sample.positions_K - 1 for line, sample in enumerate(samples)])
    return _Inputs(token_ids_ST, sources_N, None)


def _collate_tree(samples: Sequence[ScoredSample], device: torch.device) -> _Inputs:
    tree = build_tree([sample.token_ids_T[:-1] for sample in samples])
    sources = [path.places_T[sample.positions_K - 1] for path, sample in zip(tree.paths, samples, strict=True)]
    return _Inputs(tree.token_ids_P[None], np.concatenate(sources), lay_out_for(tree, device))


def _collate_masks(samples: Sequence[ScoredSample], device: torch.device) -> TokenMasks | None:
    if not any(sample.masks_K for sample in samples):
        return None
    free: list[TokenMask | None] = [None]
    masks = [sample.masks_K or free * len(sample.positions_K) for sample in samples]
    return TokenMasks.collect(list(chain.from_iterable(masks)), device)
