"""The outcome of a run as one page of text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from bench.gpu.schedule import Figure, PartReport
from bench.results import Conditions

SMALL = "On a CPU models and batches are hundreds of times smaller: the figures say nothing about a GPU."


@dataclass(frozen=True, slots=True)
class RunReport:
    """A whole run. `versions` are those of the libraries that decide the figures."""

    device: str
    minutes: float
    conditions: Conditions
    versions: dict[str, str]
    parts: tuple[PartReport, ...]

    @property
    def failures(self) -> list[str]:
        """Parts and cases that failed, as `part: case`."""
        found = [each.module for each in self.parts if each.failure]
        return found + [
            f"{each.module}: {figure.case}"
            for each in self.parts
            for figure in each.figures
            if figure.metric == "failure"
        ]


def to_json(report: RunReport) -> dict[str, Any]:
    return {**asdict(report), "failures": report.failures}


def to_page(report: RunReport) -> str:
    """Return the page: conditions, every part with its figures, and at the end what failed."""
    conditions = report.conditions
    lines = [
        f"bench gpu on {report.device}, {report.minutes:g} minutes, {conditions.date}",
        f"swarm {conditions.version} ({conditions.git_sha or 'no git'}), {conditions.cores} x {conditions.cpu}, "
        f"load average {conditions.load_1m:.2f} before",
        ", ".join(f"{name} {version}" for name, version in report.versions.items()),
    ]
    if report.device == "cpu":
        lines.append(SMALL)
    for part in report.parts:
        lines += ["", f"{part.title} ({part.took_s:.0f} s of {part.box_s:.0f} s)"]
        lines += [f"  FAILED: {part.failure}"] if part.failure else []
        lines += _of_figures(part.figures)
    lines += ["", f"Failed: {'; '.join(report.failures) or 'nothing'}"]
    return "\n".join(lines) + "\n"


def _of_figures(figures: Sequence[Figure]) -> list[str]:
    lines: list[str] = []
    for case, group in groupby(figures, key=lambda figure: figure.case):
        lines.append(f"  {case}")
        lines += [f"    {figure.metric:<38} {_written(figure)}".rstrip() for figure in group]
    return lines


def _written(figure: Figure) -> str:
    if isinstance(figure.value, str):
        return figure.value
    value = f"{figure.value:,.0f}" if abs(figure.value) >= 1000 else f"{figure.value:.4g}"
    return f"{value:>12} {figure.unit}"
