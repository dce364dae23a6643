"""The learning rates that jobs have if they give none, and that suit a model by its size.

Place in the flow: a job that is resolved takes its default from here. This module reads no files: it is told how many
parameters a model has.

Sources. The rates of the bundled models are measured (recipes/defaults). 1e-6 for full parameters is the default of
verl and of TRL's GRPO, from 0.5 billion parameters on. An adapter takes ten times the rate of full parameters: "LoRA
Without Regret" (Schulman et al., 2025), https://thinkingmachines.ai/blog/lora/.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BUNDLED_MODEL = "nano"
"""The default model of a job."""
LR_OF_BUNDLED_MODELS: Mapping[str, float] = MappingProxyType({BUNDLED_MODEL: 1.75e-3, "micro": 1e-3})
"""Default learning rates of the bundled models, by model name."""
LR_DEFAULT = 1e-6
"""Default learning rate of all other models, if their full parameters are trained."""
CRITIC_LR_DEFAULT = 1e-5
"""Default learning rate of a critic, which is verl's."""
ADAPTER_FACTOR = 10
"""How many times the learning rate of full parameters suits an adapter."""
LARGE = 500_000_000
"""Number of parameters from which the published rates hold."""
EXPONENT = 1.1
"""Slope of the line, on logarithmic axes, from `LARGE` at `LR_DEFAULT` to the bundled models.

For their 0.48 and 1.01 million parameters the line gives 2.1e-3 and 0.92e-3."""


def default_lr(model: str, *, has_adapter: bool) -> float:
    """Return the learning rate of a job that gives none. The name of a model does not tell its size."""
    return _of_trained_part(LR_OF_BUNDLED_MODELS.get(model, LR_DEFAULT), has_adapter=has_adapter)


def usual_lr(parameters: int, *, has_adapter: bool) -> float:
    """Return the learning rate that suits a model with so many parameters, as a number of one digit."""
    full = LR_DEFAULT * max(1.0, LARGE / max(1, parameters)) ** EXPONENT
    return float(f"{_of_trained_part(full, has_adapter=has_adapter):.0e}")


def _of_trained_part(full: float, *, has_adapter: bool) -> float:
    # Rounded, because ten times 1e-6 is 9.999999999999999e-06 in binary.
    return float(f"{full * ADAPTER_FACTOR:.6g}") if has_adapter else full
