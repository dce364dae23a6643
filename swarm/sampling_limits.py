"""The sampling parameters that every engine can honour: one table of limits, for jobs, episodes and requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from swarm.errors import UnknownParameter
from swarm.types import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingLimit:
    """The values of one parameter: from `low` to `high`, and 0 if `has_zero`."""

    low: float
    high: float
    has_zero: bool = False

    def allows(self, value: float) -> bool:
        return self.low <= value <= self.high or (self.has_zero and value == 0)

    def __str__(self) -> str:
        return f"{'0, or ' if self.has_zero else ''}a number from {self.low:g} to {self.high:g}"


SAMPLING_LIMITS: Final[Mapping[str, SamplingLimit]] = MappingProxyType(
    {
        # vLLM raises lower temperatures to this one. Logits divided by much less are no float32 any more.
        "temperature": SamplingLimit(0.01, 10, has_zero=True),
        "top_p": SamplingLimit(0, 1),
        "min_p": SamplingLimit(0, 1),
        "presence_penalty": SamplingLimit(-2, 2),
        "frequency_penalty": SamplingLimit(-2, 2),
        # It divides logits, as a temperature does.
        "repetition_penalty": SamplingLimit(0.01, 10),
        # vLLM reduces larger biases to this one.
        "logit_bias": SamplingLimit(-100, 100),
        "top_logprobs": SamplingLimit(0, 20),
    }
)
"""The limits of all engines. Within them, logits that are finite stay finite in float32."""
NEUTRAL: Final = SamplingParams(max_tokens=1)
"""The parameters that leave the model's own distribution as it is."""
MAX_SHOWN: Final = 100


def check_sampling(params: SamplingParams) -> None:
    """Raise UnknownParameter, which names the parameter, for a value beyond its limit."""
    for name, limit in SAMPLING_LIMITS.items():
        given = getattr(params, name)
        values = [bias for _, bias in given] if name == "logit_bias" else [given]
        if refused := [value for value in values if not limit.allows(value)]:
            raise UnknownParameter(f"{name}: {refused[0]:g} cannot be honoured: send {limit}", param=name)


def overflow_of(params: SamplingParams) -> UnknownParameter:
    """Return the error of a request whose parameters leave no number to sample by, although the logits are finite."""
    shaping = [name for name in (*SAMPLING_LIMITS, "grammar") if name != "top_logprobs"]
    given = {name: getattr(params, name) for name in shaping if getattr(params, name) != getattr(NEUTRAL, name)}
    shown = ", ".join(f"{name} {value}"[:MAX_SHOWN] for name, value in given.items())
    return UnknownParameter(
        f"no token can be sampled with {shown}, and the model's own scores are finite: send more moderate values",
        param=next(iter(given), None),
    )


def _within_limit(temperature: float) -> float:
    if not (limit := SAMPLING_LIMITS["temperature"]).allows(temperature):
        raise PydanticCustomError(
            "unsupported",
            "{value} cannot be honoured: send {limit}",
            {"value": temperature, "limit": f"0, or at least {limit.low:g}"},
        )
    return temperature


Temperature = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_within_limit)]
"""A temperature that every engine can sample at."""
