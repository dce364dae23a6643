"""Prices of what trainings and studies use: a small YAML file of the user's."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swarm.errors import BadRequest

_PRICE = Field(default=None, ge=0, allow_inf_nan=False)


class Prices(BaseModel):
    """The prices in one currency, which the file need not name.

    `cpu_hour` is the price of a machine for an hour, without its GPUs. `gpu_hour` is the price of one GPU for an hour.
    `input_tokens` and `output_tokens` are the prices of a million tokens of the language model that plans and reviews a
    study. None is an unknown price.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu_hour: float | None = _PRICE
    gpu_hour: float | None = _PRICE
    input_tokens: float | None = _PRICE
    output_tokens: float | None = _PRICE

    @property
    def of_tokens(self) -> tuple[float, float] | None:
        """The prices of a million tokens, for input and output, if both are known."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens, self.output_tokens

    def require_machines(self, gpus: int) -> None:
        """Raise BadRequest unless the price of a run with so many GPUs is known."""
        lacking = "gpu_hour" if gpus and self.gpu_hour is None else "cpu_hour" if self.cpu_hour is None else None
        if lacking is not None:
            raise BadRequest(f"--prices: the file lacks {lacking}, and this uses it: add its price", param="prices")

    def of_hours(self, hours: float, gpus: int) -> float:
        """Return the price of a machine with so many GPUs. Raise BadRequest if it is not known."""
        self.require_machines(gpus)
        return hours * ((self.cpu_hour or 0.0) + gpus * (self.gpu_hour or 0.0))


def read_prices(path: Path) -> Prices:
    """Return the prices of a YAML file. Raise BadRequest if it cannot be read or names something else."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Prices.model_validate(content)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadRequest(f"--prices {path} cannot be read: {error}", param="prices") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BadRequest(
            f"--prices {path}: {where}: {first['msg']}; a price is a number of {', '.join(Prices.model_fields)}",
            param="prices",
        ) from error
