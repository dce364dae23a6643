"""Attention over a token tree: each token attends to its ancestors and itself, whatever else is in the same pass."""

# Array suffixes: `_P` tokens of the tree, `_H` heads, `_D` dimensions of a head, `_S` samples of a block, `_Q` and
# `_K` queries and keys of a sample. In `attend_by_blocks`, `_H` is heads times dimensions.

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from swarm.backends.local.learning.sharing.tree import LEAST_KEYS, Block, SharedKeys, TokenTree, TreeLayout, lay_out
from swarm.backends.local.model.computing import attention_by, attention_configs
from swarm.errors import EngineFailure


def attend_fused(query_PHD: Tensor, key_PHD: Tensor, value_PHD: Tensor, tree: TreeLayout, scaling: float) -> Tensor:
    """Return attention (P, heads, dim of values) of queries (P, heads, dim) along the tree.

    Several heads of queries may share one head of keys and values. Masks of the layout are in their additive form.
    """
    # The kernel needs one width for all. Zeros change no product, and the outputs of zeros are cut off again.
    widest = max(query_PHD.shape[-1], value_PHD.shape[-1])
    query_PHD, key_PHD, padded_PHD = (_widen(states, widest) for states in (query_PHD, key_PHD, value_PHD))
    found: Tensor = _TreeAttention.apply(query_PHD, key_PHD, padded_PHD, tree, scaling)
    return found[..., : value_PHD.shape[-1]]


def _widen(states_PHD: Tensor, width: int) -> Tensor:
    missing = width - states_PHD.shape[-1]
    return pad(states_PHD, (0, missing)) if missing else states_PHD


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_PHD: Tensor, key_PHD: Tensor, value_PHD: Tensor, tree: TreeLayout, scaling: float
    ) -> Tensor:
        states = query_PHD, key_PHD, value_PHD
        outputs: list[Tensor] = []
        sums: list[Tensor] = []
        for block in tree.blocks:
            found_SHQD, log_sum_SHQ = _flash(*_of_block(states, block), block, scaling)
            outputs.append(found_SHQD.transpose(1, 2).flatten(0, 1))
            sums.append(log_sum_SHQ.transpose(1, 2).flatten(0, 1))
        log_sum_PH = _in_order(sums, tree)
        output_PHD = _in_order(outputs, tree).to(log_sum_PH.dtype)
        for shared in tree.shared_keys:
            found_SHQD, log_sum_SHQ = _flash(*_of_shared(states, shared), None, scaling)
            own_HD, own_H = output_PHD[_queries(shared)], log_sum_PH[_queries(shared)]
            more_H = log_sum_SHQ[0].T
            own_HD.lerp_(found_SHQD[0].transpose(0, 1).to(own_HD.dtype), torch.sigmoid(more_H - own_H)[..., None])
            torch.logaddexp(own_H, more_H, out=own_H)
        output_PHD = output_PHD.to(query_PHD.dtype)
        ctx.save_for_backward(*states, output_PHD, log_sum_PH)
        ctx.tree, ctx.scaling = tree, scaling
        return output_PHD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query_PHD, key_PHD, value_PHD, output_PHD, log_sum_PH = ctx.saved_tensors
        tree: TreeLayout = ctx.tree
        states, outcome = (query_PHD, key_PHD, value_PHD), (gradients[0], output_PHD, log_sum_PH)
        of_queries: list[Tensor] = []
        of_keys: list[Tensor] = []
        of_values: list[Tensor] = []
        for block in tree.blocks:
            operands = _of_block(states, block)
            changes = _flash_backward(*operands, *_outcome_of_block(outcome, block), block, ctx.scaling)
            of_queries.append(changes[0].transpose(1, 2).flatten(0, 1))
            of_keys.append(_of_shared_heads(changes[1], key_PHD).flatten(0, 1))
            of_values.append(_of_shared_heads(changes[2], value_PHD).flatten(0, 1))
        exact = log_sum_PH.dtype
        query_change = _in_order(of_queries, tree).to(exact)
        key_change, value_change = _add_up(of_keys, tree, exact), _add_up(of_values, tree, exact)
        for shared in tree.shared_keys:
            operands = _of_shared(states, shared)
            gradient, output, log_sum = (rows_P[_queries(shared)].transpose(0, 1)[None] for rows_P in outcome)
            changes = _flash_backward(*operands, gradient, output, log_sum, None, ctx.scaling)
            query_change[_queries(shared)] += changes[0][0].transpose(0, 1)
            key_change[_keys(shared)] += _of_shared_heads(changes[1], key_PHD)[0]
            value_change[_keys(shared)] += _of_shared_heads(changes[2], value_PHD)[0]
        kind = query_PHD.dtype
        return query_change.to(kind), key_change.to(kind), value_change.to(kind), None, None


def _flash(query: Tensor, key: Tensor, value: Tensor, block: Block | None, scaling: float) -> tuple[Tensor, Tensor]:
    """Return outputs (S, heads, Q, dim), and logarithms of the sums of exponentials (S, heads, Q)."""
    kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, _is_causal(block), attn_mask=_mask(block), scale=scaling)


def _flash_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gradient: Tensor,
    output: Tensor,
    log_sum: Tensor,
    block: Block | None,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    given = gradient, query, key, value, output, log_sum
    return kernel(*given, 0.0, _is_causal(block), attn_mask=_mask(block), scale=scaling)


def _is_causal(block: Block | None) -> bool:
    return block is not None and block.visible_SQK is None


def _mask(block: Block | None) -> Tensor | None:
    return None if block is None or block.visible_SQK is None else block.visible_SQK[:, None]


def _of_block(states: tuple[Tensor, Tensor, Tensor], block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries, keys and values of a block, each (S, heads of queries, Q or K, dim)."""
    query, key, value = states
    queries = _look_up(query, block)
    if block.keys_SK is None:
        keys, values = _look_up(key, block), _look_up(value, block)
    else:
        keys, values = _gather(key, block.keys_SK), _gather(value, block.keys_SK)
    return queries, _repeat(keys, queries), _repeat(values, queries)


def _of_shared(states: tuple[Tensor, Tensor, Tensor], shared: SharedKeys) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = states
    queries = query[_queries(shared)].transpose(0, 1)[None]
    keys, values = (each[_keys(shared)].transpose(0, 1)[None] for each in (key, value))
    return queries, _repeat(keys, queries), _repeat(values, queries)


def _outcome_of_block(outcome: tuple[Tensor, Tensor, Tensor], block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient, output and logarithm of the sum for a block's queries.

    The keys of a padded query get no gradient: its sum is infinite, which makes all of its attention zero.
    """
    gradient, output, log_sum = (_look_up(each, block) for each in outcome)
    if block.padding_SQ is not None:
        log_sum = log_sum.masked_fill(block.padding_SQ[:, None], math.inf)
    return gradient, output, log_sum


def _look_up(rows_P: Tensor, block: Block) -> Tensor:
    """Return the rows of the block's queries, (S, heads, Q), and dim if the rows have it."""
    if block.first is None:
        return _gather(rows_P, block.queries_SQ)
    count = block.queries_SQ.numel()
    return rows_P[block.first : block.first + count].unflatten(0, block.queries_SQ.shape).transpose(1, 2)


def _gather(rows_P: Tensor, places: Tensor) -> Tensor:
    return rows_P.index_select(0, places.flatten()).unflatten(0, places.shape).transpose(1, 2)


def _repeat(keys: Tensor, like: Tensor) -> Tensor:
    """Repeat each head once for every head of queries that shares it."""
    sharing = like.shape[1] // keys.shape[1]
    return keys if sharing == 1 else keys.repeat_interleave(sharing, dim=1)


def _of_shared_heads(change: Tensor, states_PHD: Tensor) -> Tensor:
    """Reduce (S, heads of queries, K, dim) to (S, K, heads of keys, dim): sum over the heads that share keys."""
    heads = states_PHD.shape[1]
    if change.shape[1] != heads:
        change = change.unflatten(1, (heads, -1)).sum(2)
    return change.transpose(1, 2)


def _in_order(rows: list[Tensor], tree: TreeLayout) -> Tensor:
    """Return the blocks' results for their queries as rows of the tree."""
    joined = torch.cat(rows)
    return joined if tree.outputs_P is None else joined.index_select(0, tree.outputs_P)


def _add_up(changes: list[Tensor], tree: TreeLayout, dtype: torch.dtype) -> Tensor:
    """Return the sum of the blocks' results for their keys per token of the tree, always in the same order."""
    places = [block.queries_SQ if block.keys_SK is None else block.keys_SK for block in tree.blocks]
    joined = torch.cat(changes).to(dtype)
    add: Any = torch.ops.aten.embedding_dense_backward
    where = torch.cat([each.flatten() for each in places])
    added: Tensor = add(joined.flatten(1), where, len(tree.positions_P), -1, False)
    return added.view(-1, *joined.shape[1:])


def _queries(shared: SharedKeys) -> slice:
    return slice(shared.first_query, shared.last_query)


def _keys(shared: SharedKeys) -> slice:
    return slice(shared.first_key, shared.last_key)


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
        queries = _rows_of(queries_PH, block)
        if block.keys_SK is None:
            gathered = _rows_of(keys_and_values_PH, block)
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


def _rows_of(rows_PH: Tensor, block: Block) -> Tensor:
    """Return the rows of the block's queries, (S, Q, heads * dim). A lookup always adds gradients in one order."""
    if block.first is None:
        return embedding(block.queries_SQ, rows_PH)
    count = block.queries_SQ.numel()
    return rows_PH[block.first : block.first + count].unflatten(0, block.queries_SQ.shape)


def _split(rows: Tensor, like: Tensor) -> Tensor:
    """Reshape (S, Q, heads * dim) to (S, heads, Q, dim), with the heads of `like`."""
    return rows.unflatten(-1, (like.shape[1], -1)).transpose(1, 2)
