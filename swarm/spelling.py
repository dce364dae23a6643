"""What a person probably meant who named a setting that there is not.

Place in the flow: bottom of the package; config.py and schemas say it where they refuse a name. A hint is all it is:
nothing is ever read under another name than its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

UNKNOWN = "extra_forbidden"
"""pydantic's type of the error, which the one with a hint keeps."""

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
"""What other trainers call the same thing, which is spelled too differently to be found."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """`: did you mean 'x'?`, or nothing if no known name is close."""
    elsewhere = NAMES_ELSEWHERE.get(name)
    close = [elsewhere] if elsewhere in known else difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def with_hints(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """The same error, with a hint at each setting of `model` that is unknown."""
    details = [_with_hint(detail, model) for detail in error.errors(include_url=False)]
    return ValidationError.from_exception_data(error.title, details)


def _with_hint(detail: Any, model: type[BaseModel]) -> InitErrorDetails:
    location = detail["loc"]
    kind, message = detail["type"], detail["msg"]
    if kind == UNKNOWN and len(location) == 1:
        message = f"unknown setting{did_you_mean(str(location[0]), model.model_fields)}"
    # Any other message is taken over as it stands: braces in it are no placeholders.
    shown = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=shown, loc=location, input=detail["input"])
