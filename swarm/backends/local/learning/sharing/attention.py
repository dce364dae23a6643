"""Attention over a token tree: each token attends to its ancestors and itself, whatever else is in the same pass.

Place in the flow: a scorer runs the model inside `attention_along` with the layout of a microbatch's tree. Everything
but attention treats the tree's tokens as one row without padding. One dense mask over that row would be quadratic in
its length. The calls of a layout do no more work than the tree requires. On the CPU they are one operation,
fused_attention.py. On other devices each block is one call of the attention that torch chooses there. This module knows
nothing of losses or the choice of rows.

Array suffixes: `_P` tokens of the tree, `_H` heads times dimensions, `_S` samples of a block, `_Q` tokens that a sample
adds to the tree, `_K` keys of a sample.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from swarm.backends.local.learning.sharing.fused_attention import attend_fused
from swarm.backends.local.learning.sharing.layout import LEAST_KEYS, Block, TreeLayout, lay_out
from swarm.backends.local.learning.sharing.tree import TokenTree
from swarm.backends.local.model.attention_choice import attention_by, attention_configs
from swarm.errors import EngineFailure

TREE_ATTENTION = "swarm_token_tree"
"""The name in transformers' table of attention functions."""


def lay_out_for(tree: TokenTree, device: torch.device) -> TreeLayout:
    """Return the layout for attention on this device."""
    return lay_out(tree, device, least_keys=LEAST_KEYS if device.type == "cpu" else None)


@contextmanager
def attention_along(module: torch.nn.Module, layout: TreeLayout | None) -> Generator[dict[str, Any]]:
    """Yield the arguments with which a call of the module computes the tree as one row.

    Without a layout the module is unchanged. A forward pass that checkpointing repeats must be repeated inside
    `tree_attention`.
    """
    if layout is None:
        yield {}
        return
    dtype = next(module.parameters()).dtype
    with tree_attention(module):
        yield {"position_ids": layout.positions_P[None], "token_tree": layout.with_additive_masks(dtype)}


def tree_attention(module: torch.nn.Module) -> AbstractContextManager[None]:
    """Make the layers of the module call `attend` inside the context."""
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
    """Return attention (1, P, heads, dim) of queries (1, heads, P, dim), with the signature transformers expects.

    Raise EngineFailure for attention that is more than a masked softmax of scaled products.
    """
    asked = sorted(name for name, setting in others.items() if name not in HARMLESS and setting not in (None, 0, False))
    if token_tree is None or attention_mask is not None or asked:
        raise EngineFailure(f"attention along a token tree does not do {', '.join(asked) or 'masks of its own'}")
    if query.device.type == "cpu":
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        query_PHD, key_PHD, value_PHD = (states[0].transpose(0, 1) for states in (query, key, value))
        return attend_fused(query_PHD, key_PHD, value_PHD, token_tree, scale)[None], None
    return attend_by_blocks(module, (query, key, value), token_tree, scaling), None


def attend_by_blocks(
    module: torch.nn.Module, states: tuple[Tensor, Tensor, Tensor], token_tree: TreeLayout, scaling: float | None
) -> Tensor:
    """Return the attention of `attend` by one call of torch's attention per block.

    The layout has no shared keys. `states` are those of `attend`.
    """
    query, key, value = states
    queries_PH, keys_PH, values_PH = (_flat(each) for each in states)
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
    return rows_PH.view(1, query.shape[2], query.shape[1], -1)


HARMLESS = frozenset({"position_ids", "use_cache", "cache_position", "is_causal"})
"""Further arguments that models pass to attention, which change nothing here."""


def _flat(states: Tensor) -> Tensor:
    return states[0].transpose(0, 1).flatten(1)


def _look_up(rows_PH: Tensor, block: Block) -> Tensor:
    """Return the rows of the block's queries, (S, Q, heads * dim). A lookup always adds gradients in one order."""
    if block.first is None:
        return embedding(block.queries_SQ, rows_PH)
    count = block.queries_SQ.numel()
    return rows_PH[block.first : block.first + count].unflatten(0, block.queries_SQ.shape)


def _split(rows: Tensor, like: Tensor) -> Tensor:
    """Reshape (S, Q, heads * dim) to (S, heads, Q, dim), with the heads of `like`."""
    return rows.unflatten(-1, (like.shape[1], -1)).transpose(1, 2)
