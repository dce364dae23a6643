"""The learning rates that jobs have if they give none, and that suit a model by its size."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BUNDLED_MODEL = "nano"
"""The default model of a job. It knows the bundled tasks alone, in one wording each."""
MODEL_OF_OWN_TASKS = "micro"
"""The model that other tasks are trained with unless somebody names one. It reads ordinary sentences."""
LR_OF_BUNDLED_MODELS: Mapping[str, float] = MappingProxyType({BUNDLED_MODEL: 1.75e-3, MODEL_OF_OWN_TASKS: 1e-3})
"""Default learning rates of the bundled models, by model name, if their full parameters are trained.

They are measured (docs/models.md)."""
ADAPTER_LR_OF_BUNDLED_MODELS: Mapping[str, float] = MappingProxyType({BUNDLED_MODEL: 5e-3, MODEL_OF_OWN_TASKS: 3e-3})
"""The same for an adapter of these models. The rate of micro is on the line below."""
LR_DEFAULT = 1e-6
"""Default learning rate of all other models, if their full parameters are trained.

It is the default of verl and of TRL's GRPO, from 0.5 billion parameters on."""
CRITIC_LR_DEFAULT = 1e-5
"""Default learning rate of a critic, which is verl's."""
ADAPTER_LR_DEFAULT = 1e-5
"""Default learning rate of an adapter of all other models: ten times that of full parameters.

Source: "LoRA Without Regret" (Schulman et al., 2025), https://thinkingmachines.ai/blog/lora/."""
SFT_LR_DEFAULT = 2e-5
"""Default learning rate of supervised steps of all other models, which is TRL's. That of an adapter is ten times it."""
SMALL, LARGE = 475_904, 500_000_000
"""Numbers of parameters: of nano, below which no rate was measured, and from which the published rates hold."""
EXPONENT, ADAPTER_EXPONENT = 1.1, 0.9
"""Slopes of the lines, on logarithmic axes, from `LARGE` at the published rate to the bundled models.

For their 0.48 and 1.01 million parameters the lines give 2.1e-3 and 0.92e-3, and for an adapter 5.2e-3 and 2.7e-3."""


def default_lr(model: str, *, has_adapter: bool) -> float:
    """Return the learning rate of a job that gives none. The name of a model does not tell its size."""
    if has_adapter:
        return ADAPTER_LR_OF_BUNDLED_MODELS.get(model, ADAPTER_LR_DEFAULT)
    return LR_OF_BUNDLED_MODELS.get(model, LR_DEFAULT)


def default_sft_lr(model: str, *, has_adapter: bool) -> float:
    """Return the learning rate of supervised steps of a job that gives none."""
    if model in LR_OF_BUNDLED_MODELS:
        return default_lr(model, has_adapter=has_adapter)
    return SFT_LR_DEFAULT * (10 if has_adapter else 1)


def usual_lr(parameters: int, *, has_adapter: bool) -> float:
    """Return the learning rate that suits a model with so many parameters, rounded to one digit.

    A model smaller than nano has the rate of nano's size.
    """
    published, exponent = (ADAPTER_LR_DEFAULT, ADAPTER_EXPONENT) if has_adapter else (LR_DEFAULT, EXPONENT)
    return float(f"{published * (LARGE / min(LARGE, max(SMALL, parameters))) ** exponent:.0e}")
