"""AdamW over a model's trainable weights: clipping, master copies, snapshots and a portable state."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch

from swarm.errors import CheckpointError
from swarm.job import TrainJob


@dataclass(frozen=True, slots=True)
class OptimizerSnapshot:
    """Copies of weights and AdamW state at one moment."""

    weights: tuple[torch.Tensor, ...]
    state: dict[str, Any]


class PolicyOptimizer:
    """Optimizer of the parameters of `module` that require gradients, which it updates in place.

    Weights below 32 bits get a float32 master copy, and AdamW updates this copy. At RL learning rates an update is
    smaller than the spacing of bfloat16 numbers, and rounding would lose it.
    """

    def __init__(self, module: torch.nn.Module, job: TrainJob) -> None:
        assert job.lr is not None, "a resolved job has a learning rate"
        named = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
        self._names = [name for name, _ in named]
        self._weights = [weight for _, weight in named]
        self._masters = [
            weight if weight.dtype == torch.float32 else weight.detach().float().requires_grad_()
            for weight in self._weights
        ]
        self._grad_clip = job.grad_clip
        self._adamw = torch.optim.AdamW(
            self._masters, lr=job.lr, betas=job.betas, weight_decay=job.weight_decay, fused=True
        )

    def adopt(self, job: TrainJob) -> None:
        """Apply the settings of `job` from now on; weights and moments stay."""
        self._grad_clip = job.grad_clip
        for group in self._adamw.param_groups:
            group["betas"], group["weight_decay"] = job.betas, job.weight_decay

    def update(self, lr: float) -> float | None:
        """Make one clipped AdamW step with the accumulated gradients, and clear them.

        Return the gradient norm before clipping. If the norm is not finite, return None and leave the weights
        unchanged.
        """
        for weight, master in self._split_precision():
            master.grad = None if weight.grad is None else weight.grad.float()
            weight.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self._masters, self._grad_clip).item()
        if math.isfinite(norm):
            for group in self._adamw.param_groups:
                group["lr"] = lr
            self._adamw.step()
            self._publish()
        self.discard()
        return norm if math.isfinite(norm) else None

    def discard(self) -> None:
        """Discard the accumulated gradients."""
        for weight in (*self._weights, *self._masters):
            weight.grad = None

    def forget(self) -> None:
        """Begin with new moments, as for a first update."""
        self._adamw.state.clear()

    def snapshot(self) -> OptimizerSnapshot:
        weights = tuple(master.detach().clone() for master in self._masters)
        return OptimizerSnapshot(weights, copy.deepcopy(self._adamw.state_dict()))

    def restore(self, snapshot: OptimizerSnapshot) -> None:
        """Restore weights and state bit for bit, and discard the accumulated gradients."""
        with torch.no_grad():
            for master, weight in zip(self._masters, snapshot.weights, strict=True):
                master.copy_(weight)
        self._adamw.load_state_dict(snapshot.state)
        self._publish()
        self.discard()

    def state(self) -> dict[str, Any]:
        """Return everything but the weights, in types that `torch.load(weights_only=True)` accepts."""
        return {
            "names": self._names,
            "masters": {
                name: master.detach()
                for name, weight, master in zip(self._names, self._weights, self._masters, strict=True)
                if master is not weight
            },
            "adamw": self._adamw.state_dict()["state"],
        }

    def check(self, state: dict[str, Any]) -> None:
        """Raise CheckpointError if `state` does not belong to these parameters."""
        low_precision = {name for name, weight in zip(self._names, self._weights, strict=True) if _is_low(weight)}
        if state["names"] != self._names or set(state["masters"]) != low_precision:
            raise CheckpointError("the optimizer state is of another model or precision")

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`, after the module's own weights were loaded.

        Learning rate, betas and weight decay stay those of the current job.
        """
        self.check(state)
        masters = dict(zip(self._names, self._masters, strict=True))
        with torch.no_grad():
            for name, saved in state["masters"].items():
                masters[name].copy_(saved)
        self._adamw.load_state_dict({"state": state["adamw"], "param_groups": self._adamw.state_dict()["param_groups"]})
        self.discard()

    def _publish(self) -> None:
        with torch.no_grad():
            for weight, master in self._split_precision():
                weight.copy_(master)

    def _split_precision(self) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
        return [
            (weight, master)
            for weight, master in zip(self._weights, self._masters, strict=True)
            if master is not weight
        ]


def _is_low(weight: torch.Tensor) -> bool:
    return weight.dtype != torch.float32
