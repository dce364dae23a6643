"""What was out of the ordinary about model calls, counted since the engine was started for its job.

Place in the flow: completion.py and the model routes count, the status shows. Knows nothing of calls themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

MAX_NAMES = 100
"""Clients choose the names of the fields they send; beyond these they are counted as `other`."""

OTHER = "other"


class Oddity(StrEnum):
    """An attempt joined a running call, or was told a finished one again; a call was given up by its caller; a turn
    was withheld from training because its tokens do not spell what was shown."""

    JOINED = "joined"
    REPLAYED = "replayed"
    ORPHANED = "orphaned"
    DECODE_MISMATCH = "decode_mismatch"


@dataclass(slots=True)
class CallCounts:
    """`ignored_fields` counts the fields without effect by name."""

    oddities: Counter[str] = field(default_factory=Counter[str])
    ignored_fields: Counter[str] = field(default_factory=Counter[str])

    def count(self, oddity: Oddity) -> None:
        self.oddities[oddity.value] += 1

    def ignore(self, names: Iterable[str]) -> None:
        for name in names:
            known = name in self.ignored_fields or len(self.ignored_fields) < MAX_NAMES
            self.ignored_fields[name if known else OTHER] += 1
