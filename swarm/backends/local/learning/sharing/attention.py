"""Attention over a token tree: each token attends to its ancestors and itself, whatever else is in the same pass.

Place in the flow: collating makes a `TreeLayout` of the tree of a microbatch, and a scorer runs the model inside
`attention_along`. Everything but attention works on the tree's tokens as one row without padding. In attention, the
tokens that a sample adds to the tree are queries, and the keys of the sample's whole path are gathered for them: that
does no more work than the tree has, in a few calls of torch's own kernels, where one dense mask over the row is
quadratic in its length (12 against 15 times as fast as without sharing on 128 episodes behind 200 tokens of tools, and
10 against 15 behind 600). Knows nothing of losses or of how rows were chosen.

Array suffixes: `_P` tokens of the tree, `_S` samples of a block, `_Q` tokens that a sample adds to the tree, `_K`
tokens of a path.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from swarm.backends.local.learning.sharing.tree import Path, TokenTree
from swarm.backends.local.model.attention_choice import attention_by, attention_configs
from swarm.errors import EngineFailure

TREE_ATTENTION = "swarm_token_tree"
"""The name in transformers' table of attention functions."""
SMALLEST_CLASS = 4
"""Lengths of up to 2 to this power are padded to one another: fewer calls outweigh the padding."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Samples of one block are of like size: lengths up to the same powers of two. `is_root` says that their paths
    begin in the block, so that plain causal attention does."""

    is_root: bool
    own: int
    path: int


@dataclass(frozen=True, slots=True)
class Block:
    """Samples whose attention is one call.

    `queries_SQ` and `keys_SK` are places in the tree, padded with 0; `first` is the first place if the queries are
    consecutive and without padding, which need not be looked up. `visible_SQK` says which keys a query attends to, and
    in the additive form that kernels take, once `attention_along` has made it, 0 or minus infinity. It is None in
    blocks of roots, as `keys_SK`.
    """

    shape: BlockShape
    queries_SQ: Tensor
    first: int | None
    keys_SK: Tensor | None
    visible_SQK: Tensor | None


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """What a model needs besides token ids to compute a tree as one row.

    The outputs of the blocks, one after another, hold that of token p at `outputs_P[p]`; None if that is p. `numbers`
    are those of one sample per block.
    """

    positions_P: Tensor
    blocks: tuple[Block, ...]
    outputs_P: Tensor | None
    numbers: tuple[int, ...]

    @property
    def shapes(self) -> frozenset[BlockShape]:
        return frozenset(block.shape for block in self.blocks)


def lay_out(tree: TokenTree, device: torch.device) -> TreeLayout:
    """The blocks of a tree. Samples that add no token need none."""
    chosen: dict[BlockShape, list[int]] = {}
    for number in tree.order:
        if (path := tree.paths[number]).own:
            chosen.setdefault(_shape(path), []).append(number)
    outputs_P = np.zeros(tree.tokens, dtype=np.int64)
    blocks: list[Block] = []
    begin = 0
    for shape, numbers in chosen.items():
        paths = [tree.paths[number] for number in numbers]
        block = _build_block(shape, paths, device)
        width = block.queries_SQ.shape[1]
        for line, path in enumerate(paths):
            outputs_P[path.places_T[path.start :]] = begin + line * width + np.arange(path.own)
        begin += len(paths) * width
        blocks.append(block)
    is_in_order = begin == tree.tokens and _is_consecutive(outputs_P, 0)
    return TreeLayout(
        positions_P=torch.from_numpy(tree.positions_P).to(device),
        blocks=tuple(blocks),
        outputs_P=None if is_in_order else torch.from_numpy(outputs_P).to(device),
        numbers=tuple(numbers[0] for numbers in chosen.values()),
    )


def _shape(path: Path) -> BlockShape:
    own = _class(path.own)
    return BlockShape(path.start == 0, own, own if path.start == 0 else _class(path.length))


def _class(length: int) -> int:
    return max(SMALLEST_CLASS, (length - 1).bit_length())


def _build_block(shape: BlockShape, paths: Sequence[Path], device: torch.device) -> Block:
    queries_SQ = _pad([path.places_T[path.start :] for path in paths])
    begin = int(queries_SQ[0, 0])
    first = begin if _is_consecutive(queries_SQ.ravel(), begin) else None
    if shape.is_root:
        return Block(shape, torch.from_numpy(queries_SQ).to(device), first, None, None)
    keys_SK = _pad([path.places_T for path in paths])
    starts_S = np.asarray([path.start for path in paths])
    depths_SQ = starts_S[:, None] + np.arange(queries_SQ.shape[1])
    visible_SQK = np.arange(keys_SK.shape[1]) <= depths_SQ[:, :, None]
    queries, keys, visible = (torch.from_numpy(array).to(device) for array in (queries_SQ, keys_SK, visible_SQK))
    return Block(shape, queries, first, keys, visible)


def _is_consecutive(places: np.ndarray, first: int) -> bool:
    return bool((places == np.arange(first, first + len(places))).all())


def _pad(lines: Sequence[np.ndarray]) -> np.ndarray:
    padded = np.zeros((len(lines), max(map(len, lines))), dtype=np.int64)
    for line, values in enumerate(lines):
        padded[line, : len(values)] = values
    return padded


@contextmanager
def attention_along(module: torch.nn.Module, layout: TreeLayout | None) -> Generator[dict[str, Any]]:
    """Inside, a call of the module with the arguments that this yields computes the tree as one row.

    Without a layout the module is as ever. A forward pass that checkpointing repeats must be repeated inside
    `tree_attention`.
    """
    if layout is None:
        yield {}
        return
    dtype = next(module.parameters()).dtype
    blocks = tuple(replace(block, visible_SQK=_additive(block.visible_SQK, dtype)) for block in layout.blocks)
    with tree_attention(module):
        yield {"position_ids": layout.positions_P[None], "token_tree": replace(layout, blocks=blocks)}


def _additive(visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if visible is None:
        return None
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


def tree_attention(module: torch.nn.Module) -> AbstractContextManager[None]:
    """The layers of the module call `attend` inside."""
    return attention_by(attention_configs(module), TREE_ATTENTION, attend)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    token_tree: TreeLayout | None = None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """(1, heads, P, dim) to (1, P, heads, dim), as transformers calls its attention functions.

    Raises EngineFailure for attention that is more than a masked softmax of scaled products.
    """
    asked = sorted(name for name, setting in others.items() if name not in HARMLESS and setting not in (None, 0, False))
    if token_tree is None or attention_mask is not None or asked:
        raise EngineFailure(f"attention along a token tree does not do {', '.join(asked) or 'masks of its own'}")
    queries_PH, keys_PH, values_PH = _flat(query), _flat(key), _flat(value)
    keys_and_values_PH = torch.cat([keys_PH, values_PH], dim=1)
    widths = [keys_PH.shape[1], values_PH.shape[1]]
    outputs: list[Tensor] = []
    for block in token_tree.blocks:
        queries = _look_up(queries_PH, block)
        if block.keys_SK is None:
            gathered = _look_up(keys_and_values_PH, block)
        else:
            gathered = embedding(block.keys_SK, keys_and_values_PH)
        keys_SKH, values_SKH = gathered.split(widths, dim=-1)
        mask = None if block.visible_SQK is None else block.visible_SQK[:, None]
        of_heads = _split(queries, query), _split(keys_SKH, key), _split(values_SKH, value)
        found, _ = sdpa_attention_forward(module, *of_heads, mask, scaling=scaling)
        outputs.append(found.flatten(2).flatten(0, 1))
    rows_PH = torch.cat(outputs)
    if token_tree.outputs_P is not None:
        rows_PH = embedding(token_tree.outputs_P, rows_PH)
    return rows_PH.view(1, query.shape[2], query.shape[1], -1), None


HARMLESS = frozenset({"position_ids", "use_cache", "cache_position", "is_causal"})
"""What models pass to attention besides, which changes nothing here."""


def _flat(states: Tensor) -> Tensor:
    return states[0].transpose(0, 1).flatten(1)


def _look_up(rows_PH: Tensor, block: Block) -> Tensor:
    """The rows of the block's queries, (S, Q, heads * dim). A lookup adds its gradients up in one order, always."""
    if block.first is None:
        return embedding(block.queries_SQ, rows_PH)
    count = block.queries_SQ.numel()
    return rows_PH[block.first : block.first + count].unflatten(0, block.queries_SQ.shape)


def _split(rows: Tensor, like: Tensor) -> Tensor:
    """(S, Q, heads * dim) to (S, heads, Q, dim), with the heads of `like`."""
    return rows.unflatten(-1, (like.shape[1], -1)).transpose(1, 2)
