"""The settings of every job of a study that neither a person nor a factor sets."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from swarm import TrainJob

BASE_JOB: Mapping[str, Any] = MappingProxyType(
    {
        "algorithm": "grpo",
        "project_name": "research",
        "model": "nano",
        "batch_size": 16,
        "num_repeat": 8,
        # With four optimizer steps per batch, 1e-3 takes the bundled model from chance to skill in thirty steps.
        "lr": 1e-3,
        "mini_batch_num": 4,
        "temperature": 1.0,
    }
)
DEFAULT_STEPS = 30
FOR_THE_BUNDLED_MODEL = ("lr", "mini_batch_num")
"""The settings of BASE_JOB that suit only the bundled model; another model starts from the defaults of a job."""


def usual_settings(fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fixed settings, with those that every job of a study has beside them."""
    settings = {**BASE_JOB, **fixed}
    if settings["model"] != BASE_JOB["model"]:
        usual = {name: TrainJob.model_fields[name].default for name in FOR_THE_BUNDLED_MODEL}
        settings |= {name: value for name, value in usual.items() if name not in fixed}
    return settings
