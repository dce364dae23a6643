"""What can go wrong, and the order in which it does: a schedule drawn from a seed.

Place in the flow: the injector takes one fault after another from here and writes down what each of them hit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    RESEARCHER_KILLED = "researcher killed"
    SERVER_KILLED = "server killed"
    PROGRAM_KILLED = "program killed"
    ENVIRONMENT_KILLED = "environment killed"
    MODEL_FAILED = "language model failed"
    DISK_FULL = "disk full"
    DATABASE_LOCKED = "database locked"
    CLOCK_JUMPED = "clock jumped"


KILLS = (
    FaultKind.RESEARCHER_KILLED,
    FaultKind.SERVER_KILLED,
    FaultKind.PROGRAM_KILLED,
    FaultKind.ENVIRONMENT_KILLED,
)

SHARES: Mapping[FaultKind, int] = {
    FaultKind.RESEARCHER_KILLED: 9,
    FaultKind.SERVER_KILLED: 9,
    FaultKind.PROGRAM_KILLED: 9,
    FaultKind.ENVIRONMENT_KILLED: 8,
    FaultKind.MODEL_FAILED: 8,
    FaultKind.DISK_FULL: 4,
    FaultKind.DATABASE_LOCKED: 3,
    FaultKind.CLOCK_JUMPED: 4,
}
"""How many of each kind a bag holds that the schedule is drawn from; it is filled again once it is empty."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fault to come: `pause_s` after the one before. `chance` decides whatever else is random about it."""

    kind: FaultKind
    pause_s: float
    chance: random.Random


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that happened, `at_s` seconds after the faults began, and what it hit."""

    kind: FaultKind
    at_s: float
    target: str


def draw(seed: int, kinds: Mapping[FaultKind, int], mean_pause_s: float) -> Iterator[Drawn]:
    """Faults without end. `kinds` says how many of each kind a bag holds; pauses are between half and one and a half
    of the mean."""
    chance = random.Random(seed)
    while True:
        bag = [kind for kind, count in kinds.items() for _ in range(count)]
        chance.shuffle(bag)
        for kind in bag:
            pause_s = chance.uniform(0.5, 1.5) * mean_pause_s
            yield Drawn(kind, pause_s, random.Random(chance.getrandbits(64)))
