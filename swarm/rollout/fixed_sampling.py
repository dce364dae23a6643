"""The sampling of an episode whose begin has fixed it, whatever its calls ask for."""

from __future__ import annotations

from dataclasses import replace

from swarm.sampling_limits import NEUTRAL
from swarm.types import SamplingParams

RESHAPING = (
    "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
    "min_tokens",
)  # fmt: skip
"""Sampling parameters that change the distribution in another way than a temperature."""


def fix_sampling(params: SamplingParams, temperature: float) -> SamplingParams:
    """Return the parameters with the model's own distribution at a temperature, and without a seed of the call."""
    return replace(params, temperature=temperature, seed=None, **{name: getattr(NEUTRAL, name) for name in RESHAPING})


def find_overruled(params: SamplingParams, temperature: float) -> dict[str, str]:
    """Return the settings of a call that have no effect under fixed sampling, by name, each as `name=value`.

    Of seeds and biases only the name is given, because their values say nothing.
    """
    fixed = fix_sampling(params, temperature)
    names = [name for name in ("temperature", "seed", *RESHAPING) if getattr(params, name) != getattr(fixed, name)]
    return {name: name if name in {"seed", "logit_bias"} else f"{name}={getattr(params, name):g}" for name in names}
