"""The tokens that a grammar allowed at each step of a turn, recomputed by following the grammar along the turn.

Place in the flow: the learner follows the grammars of a batch before it builds rows. Collating turns the result into
`TokenMasks`, and scoring excludes the forbidden tokens. The allowed tokens depend on the earlier tokens and not on the
weights, so one pass serves every policy and every epoch of a step. This module knows nothing of models, rewards or
losses.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch

from swarm.backends.grammar.compiler import GrammarCompiler
from swarm.errors import BadRequest, SwarmError
from swarm.trainer.token_rows import TokenMask, TurnMasks
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
