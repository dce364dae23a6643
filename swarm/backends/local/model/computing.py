"""How a model computes: number format, threads, copies to its device, attention function, gradient checkpointing."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from swarm.errors import EngineFailure
from swarm.model_path import stored_dtype

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Number formats by the names of transformers and vLLM."""

_MULTIPLY_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
"""torch's names of the CPU instructions, x86 and ARM, that multiply bfloat16 numbers natively."""


def choose_dtype(directory: Path, *, wanted: str, device: str) -> torch.dtype:
    """Return the format for the model in `directory` under the job's `dtype`.

    Raise CheckpointError for a damaged file.
    """
    if wanted != "auto":
        return DTYPES[wanted]
    if device != "cpu":
        return torch.bfloat16
    is_worth_it = multiplies_bfloat16() and stored_dtype(directory) == "bfloat16"
    return torch.bfloat16 if is_worth_it else torch.float32


def multiplies_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 natively.

    Other CPUs convert each number, which takes longer than float32.
    """
    capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in _MULTIPLY_BFLOAT16)


@contextmanager
def computing_with(threads: int) -> Generator[None]:
    """Compute with this many torch threads inside the block, and with the former number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def to_device(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Return the array as a tensor on the device. On a CPU both share memory."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


PLAIN_ATTENTION = "sdpa"
"""A masked softmax of scaled products by torch's own kernels, and nothing else."""


def attention_configs(module: torch.nn.Module) -> list[Any]:
    """Return every configuration in which a layer may look up its attention, each once."""
    found = {id(config): config for each in module.modules() if (config := vars(each).get("config")) is not None}
    return [config for config in found.values() if hasattr(config, "_attn_implementation")]


@contextmanager
def attention_by(configs: Sequence[Any], name: str, function: Callable[..., Any]) -> Generator[None]:
    """Make layers with these configurations call `function` inside; it is registered under `name`."""
    ALL_ATTENTION_FUNCTIONS.register(name, function)
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = name
        yield
    finally:
        for config, plain in zip(configs, before, strict=True):
            config._attn_implementation = plain


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
