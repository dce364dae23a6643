"""Linear layers of a model on a processor, computed by oneDNN from copies of the weights in oneDNN's own order.

Place in the flow: forward.py packs the weights after each change of them and runs its passes inside `applied`. torch
itself brings weights into that order at each call, which for a few tokens takes longer than the multiplication: packed,
a decoding step in bfloat16 takes a third of the time, and float32 is faster as well. The copies cost as much memory as
the weights of the linear layers. Outside of `applied` the model is as it was, so that training knows nothing of this.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

LEAST_PRODUCTS = 2**19
"""Multiplications of a call below which calling oneDNN costs more than it saves."""

Forward = Callable[[Tensor], Tensor]


class PackedLinears:
    """The linear layers of one module, as they were when this was made. No copies where oneDNN cannot serve."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._forwards: list[tuple[torch.nn.Linear, Forward]] = [
            (layer, _packed_forward(layer)) for layer in module.modules() if _can_pack(layer)
        ]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module computes with the copies inside the block. For passes without gradients."""
        for layer, forward in self._forwards:
            # What `Module.__call__` finds before the method of the class.
            layer.__dict__["forward"] = forward
        try:
            yield
        finally:
            for layer, _ in self._forwards:
                del layer.__dict__["forward"]


def _can_pack(layer: torch.nn.Module) -> bool:
    # A subclass, or a layer that somebody else has changed, may compute something else.
    if type(layer) is not torch.nn.Linear or "forward" in layer.__dict__:
        return False
    if layer.weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if layer.weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return layer.weight.dtype == torch.float32


def _packed_forward(layer: torch.nn.Linear) -> Forward:
    onednn: Any = torch.ops.mkldnn
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    packed, out = onednn._reorder_linear_weight(weight), layer.out_features

    def forward(input: Tensor) -> Tensor:
        if input.numel() * out < LEAST_PRODUCTS:
            return linear(input, weight, bias)
        return onednn._linear_pointwise(input, packed, bias, "none", [], "")

    return forward
