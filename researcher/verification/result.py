"""The result of a verification: one check per kind of record, with the number checked and every mismatch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

TOLERANCE = 1e-9
"""The largest difference between two ways of adding the same numbers."""


@dataclass(slots=True)
class RecordCheck:
    """The check of one kind of record.

    `mismatches` have one line each with the place and the difference. `notes` say what could not be checked, and why.
    """

    kind: str
    checked: int
    mismatches: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Verification:
    """All checks of one study.

    `digest` is that of the rows at its end, as in its report; None while the study is not over.
    """

    study_id: str
    digest: str | None
    checks: tuple[RecordCheck, ...]

    @property
    def mismatches(self) -> int:
        return sum(len(check.mismatches) for check in self.checks)

    @property
    def checked(self) -> int:
        return sum(check.checked for check in self.checks)

    def lines(self) -> list[str]:
        """Return lines for people: a table of the kinds with mismatches and notes below each, then the sum."""
        width = max(len(check.kind) for check in self.checks)
        lines = [f"{'what':<{width}}  checked  mismatches"]
        for check in self.checks:
            lines.append(f"{check.kind:<{width}}  {check.checked:>7}  {len(check.mismatches):>10}")
            lines += [f"  MISMATCH {mismatch}" for mismatch in check.mismatches]
            lines += [f"  note: {note}" for note in check.notes]
        found = f"{self.mismatches} mismatches" if self.mismatches else "no mismatch"
        digest = [] if self.digest is None else [f"digest of the rows that its report is made of: {self.digest}"]
        return [*lines, *digest, f"study {self.study_id}: {self.checked} things checked, {found}"]

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study_id,
            "digest": self.digest,
            "checked": self.checked,
            "mismatches": self.mismatches,
            "checks": [asdict(check) for check in self.checks],
        }


def differences(stored: Any, computed: Any, where: str, *, tolerance: float = TOLERANCE) -> Iterator[str]:
    """Yield one line for each place where two JSON documents differ; numbers may differ by `tolerance`."""
    if isinstance(stored, Mapping) and isinstance(computed, Mapping):
        for name in sorted({*map(str, stored), *map(str, computed)}):
            yield from differences(
                stored.get(name), computed.get(name), f"{where}.{name}" if where else name, tolerance=tolerance
            )
    elif _is_list(stored) and _is_list(computed) and len(stored) == len(computed):
        for index, (one, other) in enumerate(zip(stored, computed, strict=True)):
            yield from differences(one, other, f"{where}[{index}]", tolerance=tolerance)
    elif not _is_same(stored, computed, tolerance):
        yield f"{where}: stored {_short(stored)}, recomputed {_short(computed)}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_same(stored: Any, computed: Any, tolerance: float) -> bool:
    numbers = [value for value in (stored, computed) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == 2:
        return math.isclose(numbers[0], numbers[1], rel_tol=tolerance, abs_tol=tolerance)
    return stored == computed


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
