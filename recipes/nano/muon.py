# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false, reportIncompatibleMethodOverride=false
"""Muon in single precision, the optimizer of the bundled models' hidden matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

# Quintic Newton-Schulz iteration and its coefficients: https://kellerjordan.github.io/posts/muon/
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """The optimizer Muon, whose update is the orthogonalized momentum.

    With it, circuits for copying and reversal form within a minute of training; with AdamW they do not. An update has
    the root mean square of a typical AdamW update (arXiv:2502.16982). The Muon of torch works in bfloat16, which is
    many times slower on CPUs without AMX.
    """

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
    """Return a matrix of the same shape and singular vectors, with singular values near 1."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
