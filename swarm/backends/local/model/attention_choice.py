"""The attention function that the layers of a model call, changed for a while.

Place in the flow: decoding and prefix sharing have attention functions of their own, and both switch a model to theirs
for single passes. transformers looks the function up by a name in the model's configurations. This module does not know
what such a function computes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

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
