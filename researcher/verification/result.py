"""The result of a verification: one check per kind of record, with the number checked and every mismatch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

TOLERANCE = 1e-9
"""The largest difference between two ways of adding the same numbers."""

OUT_OF_SCOPE = (
    "leases, which say who works on a study",
    "retractions of findings, which later studies add",
    "events that were added after the end of the study",
    "episodes, events and readings of recorded trainings, to which their servers go on adding",
    "logs of recorders, output of detached processes, lock files, and report.pdf, which is made from report.html",
    "files outside of the folder of the study, such as checkpoints of named servers",
    "rows or files that were changed together with their digests: --sign and --key find these",
)
"""What no check covers, in words for people."""


@dataclass(slots=True)
class RecordCheck:
    """The check of one kind of record.

    `mismatches` have one line each with the place and the difference. `not_kept` counts what could not be compared, and
    `notes` say why.
    """

    kind: str
    checked: int
    mismatches: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    not_kept: int = 0

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count what cannot be compared, and note the reason once."""
        self.not_kept += count
        if reason not in self.notes:
            self.notes.append(reason)


@dataclass(frozen=True, slots=True)
class Verification:
    """All checks of one study.

    `digest` is that of the rows at its end, as in its report; None while the study is not over. `signed` is the digest
    of what was signed now, if anything was.
    """

    study_id: str
    digest: str | None
    checks: tuple[RecordCheck, ...]
    signed: str | None = None

    @property
    def mismatches(self) -> int:
        return sum(len(check.mismatches) for check in self.checks)

    @property
    def checked(self) -> int:
        return sum(check.checked for check in self.checks)

    def lines(self) -> list[str]:
        """Return lines for people: a table of the kinds with mismatches and notes below each, then the sum."""
        width = max(len(check.kind) for check in self.checks)
        lines = [f"{'what':<{width}}  checked  mismatches  not kept"]
        for check in self.checks:
            numbers = f"{check.checked:>7}  {len(check.mismatches):>10}  {check.not_kept:>8}"
            lines.append(f"{check.kind:<{width}}  {numbers}")
            lines += [f"  MISMATCH {mismatch}" for mismatch in check.mismatches]
            lines += [f"  note: {note}" for note in check.notes]
        found = f"{self.mismatches} mismatches" if self.mismatches else "no mismatch"
        digest = [] if self.digest is None else [f"digest of the rows that its report is made of: {self.digest}"]
        scope = [f"not compared: {each}" for each in OUT_OF_SCOPE]
        digest += [] if self.signed is None else [f"signed: {self.signed}"]
        return [*lines, *scope, *digest, f"study {self.study_id}: {self.checked} things checked, {found}"]

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study_id,
            "digest": self.digest,
            "signed": self.signed,
            "checked": self.checked,
            "mismatches": self.mismatches,
            "not_compared": list(OUT_OF_SCOPE),
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
