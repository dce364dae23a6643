# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Gradient checkpointing: the layers of a model keep only their inputs, and run again in the backward pass.

Place in the flow: around the learner's forward passes, for jobs that ask for it. The switch in transformers works in
training mode alone. Here the module stays in evaluation mode, as for sampling, so dropout of any kind stays off. This
module knows nothing of batches or losses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from swarm.errors import EngineFailure


class LayerRecomputation:
    """The layers of one module, found once."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Find the layers. Raise EngineFailure for a model whose layers transformers does not mark."""
        self._layers: list[Any] = [each for each in module.modules() if isinstance(each, GradientCheckpointingLayer)]
        if not self._layers:
            raise EngineFailure(
                f"enable_gradient_checkpointing: {type(module).__name__} has no layers that can be computed again"
            )

    @contextmanager
    def around_forward(self, again: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Generator[None]:
        """Keep only the inputs of the layers of a forward pass inside. Values and gradients are unchanged.

        In the backward pass, each layer runs inside a context that `again` makes.
        """
        for layer in self._layers:
            layer.forward = partial(
                checkpoint,
                layer.forward,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=lambda: (nullcontext(), again()),
            )
        try:
            yield
        finally:
            for layer in self._layers:
                # This removes the override, so the method of the class applies again.
                del layer.forward
