"""Faster attention and linear layers for decoding steps, with the results of the model's own."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

GROUPED_ATTENTION = "swarm_grouped"
"""The name in transformers' table of attention functions."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return attention as (b, t, heads, dim) for queries (b, heads, t, dim), with the signature transformers expects.

    Calls with more than one query per head, or with masks that differ between heads, go to transformers.
    """
    batch, heads, queries, _ = query.shape
    sharing = heads // key.shape[1]
    if queries != 1 or sharing == 1 or (attention_mask is not None and attention_mask.shape[1] != 1):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    grouped = query.reshape(batch, key.shape[1], sharing, -1)
    found = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return found.reshape(batch, 1, heads, -1), None


LEAST_PRODUCTS = 2**19
"""Multiplications of a call, below which the call of oneDNN costs more than it saves."""
FREE_PER_COPY = 4
"""Copies are made only if this many times their memory is free."""

Forward = Callable[[Tensor], Tensor]


class PackedLinears:
    """Packed copies of the linear layers of one module, as of the time of construction.

    No copies are made if oneDNN does not support the module or memory is scarce. Passes then run as usual.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        layers = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear) and _can_pack(layer)]
        needed = FREE_PER_COPY * sum(layer.weight.nbytes for layer in layers)
        is_scarce = psutil.virtual_memory().available < needed
        self._forwards: list[tuple[torch.nn.Linear, Forward]] = (
            [] if is_scarce else [(layer, _packed_forward(layer)) for layer in layers]
        )

    @contextmanager
    def applied(self) -> Generator[None]:
        """Compute with the copies inside the block. For passes without gradients."""
        for layer, forward in self._forwards:
            # `Module.__call__` finds this attribute before the method of the class.
            layer.__dict__["forward"] = forward
        try:
            yield
        finally:
            for layer, _ in self._forwards:
                del layer.__dict__["forward"]


def _can_pack(layer: torch.nn.Linear) -> bool:
    # A subclass, or a layer that other code has changed, may compute something else.
    if type(layer) is not torch.nn.Linear or "forward" in layer.__dict__:
        return False
    if layer.weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if layer.weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return layer.weight.dtype == torch.float32


def _packed_forward(layer: torch.nn.Linear) -> Forward:
    onednn: Any = torch.ops.mkldnn
    tensors = {name: tensor.detach() for name, tensor in layer.named_parameters(recurse=False)}
    weight, bias = tensors["weight"], tensors.get("bias")
    packed, out = onednn._reorder_linear_weight(weight), layer.out_features

    def forward(input: Tensor) -> Tensor:
        if input.numel() * out < LEAST_PRODUCTS:
            return linear(input, weight, bias)
        return onednn._linear_pointwise(input, packed, bias, "none", [], "")

    return forward
