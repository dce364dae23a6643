# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false, reportIncompatibleMethodOverride=false
"""Muon in single precision, the optimizer of nano's hidden matrices.

Place in the flow: used by warmup.py. Copying and reversal circuits form with it within a minute of training, and do not
with AdamW. torch's own Muon orthogonalizes in bfloat16, which CPUs without AMX do many times slower.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

# Quintic Newton-Schulz iteration and its coefficients: https://kellerjordan.github.io/posts/muon/
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized; each update has the root mean square of a typical AdamW update (arXiv:2502.16982)."""

    def __init__(
        self, matrices: Iterable[torch.Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for matrix in group["params"]:
                buffer = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                buffer.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonalize(matrix.grad.lerp(buffer, group["momentum"]))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * 0.2 * max(matrix.shape) ** 0.5)


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix of the same shape with the same singular vectors and singular values near 1."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
