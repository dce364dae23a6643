"""What the board measures: the probes, and the figures that each gives.

Place in the flow: everything beside it asks here what a figure means. It does not know how a figure is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Probe(StrEnum):
    """A program in probe.py has each of these as its job."""

    TRAINING = "training"
    CONTROL_PLANE = "control_plane"


@dataclass(frozen=True, slots=True)
class Figure:
    """`least_effect` is the smallest relative change that is called worse or better, as a share."""

    probe: Probe
    meaning: str
    unit: str
    is_more_better: bool
    least_effect: float


PROCESSOR_EFFECT = 0.05
SPEED_EFFECT = 0.15
"""The clock also counts what other programs take, in bursts that no pairing removes."""


def _processor_time(probe: Probe, meaning: str, unit: str) -> Figure:
    return Figure(probe, f"processor time of {meaning}", unit, is_more_better=False, least_effect=PROCESSOR_EFFECT)


def _speed(probe: Probe, meaning: str) -> Figure:
    return Figure(probe, meaning, "episodes/s", is_more_better=True, least_effect=SPEED_EFFECT)


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "sampler_cpu": _processor_time(Probe.TRAINING, "the worker for the tokens it samples", "ms per 1,000 tokens"),
        "learner_cpu": _processor_time(Probe.TRAINING, "the worker for its training step", "ms per step"),
        "gateway_cpu": _processor_time(
            Probe.TRAINING, "the server for tokens that the worker samples", "ms per 1,000 tokens"
        ),
        "training_speed": _speed(Probe.TRAINING, "whole training steps by the clock"),
        "server_cpu": _processor_time(
            Probe.CONTROL_PLANE, "the server for an episode without a model", "ms per episode"
        ),
        "client_cpu": _processor_time(Probe.CONTROL_PLANE, "the client for such an episode", "ms per episode"),
        "episode_speed": _speed(Probe.CONTROL_PLANE, "such episodes by the clock"),
    }
)
