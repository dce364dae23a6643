"""Hints at the name that a user probably meant by an unknown setting."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

UNKNOWN = "extra_forbidden"
"""pydantic's type of the error for an unknown setting. The error with a hint has the same type."""

NAMES_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "learning_rate": "lr",
        "epochs": "ppo_epochs",
        "max_steps": "total_steps",
        "group_size": "num_repeat",
        "num_generations": "num_repeat",
        "n": "num_repeat",
        "max_tokens": "max_response_length",
        "beta": "kl_loss_coef",
        "lr_scheduler": "lr_scheduler_type",
        "lr_schedule": "lr_scheduler_type",
        "warmup_steps": "lr_warmup_steps",
    }
)
"""Names of settings in other trainers that are too different for a spelling match, with the names here."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a hint such as `: did you mean 'x'?`, or an empty string if no known name is similar."""
    elsewhere = NAMES_ELSEWHERE.get(name)
    close = [elsewhere] if elsewhere in known else difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def with_hints(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """Return the same error with a hint at each unknown setting of `model`."""
    details = [_with_hint(detail, model) for detail in error.errors(include_url=False)]
    return ValidationError.from_exception_data(error.title, details)


def _with_hint(detail: Any, model: type[BaseModel]) -> InitErrorDetails:
    location = detail["loc"]
    kind, message = detail["type"], detail["msg"]
    if kind == UNKNOWN and len(location) == 1:
        message = f"unknown setting{did_you_mean(str(location[0]), model.model_fields)}"
    # The message is passed as a value, because pydantic would read braces in it as placeholders.
    shown = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=shown, loc=location, input=detail["input"])
