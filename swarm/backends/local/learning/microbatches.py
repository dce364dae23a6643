"""The tensors of one forward and backward pass, built from rows.

Place in the flow: the learner splits the rows of a minibatch into microbatches and collates each into index tensors.
This module knows nothing of models, losses or optimizers.

Array suffixes: `_K` trained tokens of a sample, `_L` columns of a row, `_N` trained tokens of a microbatch, `_S`
samples of a microbatch, `_R` rows of a microbatch, `_E` rows of the whole batch.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from swarm.backends.local.learning.constraints import TokenMasks
from swarm.backends.local.learning.sharing.attention import lay_out_for
from swarm.backends.local.learning.sharing.layout import TreeLayout
from swarm.backends.local.learning.sharing.tree import build_tree
from swarm.backends.local.transfer import to_device
from swarm.trainer.token_rows import IntArray, Row, ScoredSample, TokenMask


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
