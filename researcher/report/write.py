"""The writer of a study's report: Markdown, one HTML file and the figures, from the database alone.

Place in the flow: the last node of the loop and `researcher report` call this. It may be called at any time and any
number of times. The same database gives the same report.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from experiments_db import ExperimentStore
from researcher.report.numbers.gather import gather
from researcher.report.render import WRITER, render_html, render_markdown

__all__ = ["WRITER", "ReportPaths", "build_report"]


@dataclass(frozen=True, slots=True)
class ReportPaths:
    markdown: Path
    html: Path
    figures: tuple[Path, ...]
    data: tuple[Path, ...]


def build_report(store: ExperimentStore, study_id: str, directory: Path, *, has_images: bool = True) -> ReportPaths:
    """Write report.md, report.html and figures/ under `directory`, replacing an older report.

    The data of each figure lies beside it as CSV. Without `has_images` the figures are empty files, because drawing
    takes longer than everything else.

    Raises StudyNotFound if the study was never framed, RecordNotFound if there is no such study.
    """
    # matplotlib imports slowly, and a study runs for long before it draws anything.
    from researcher.report.drawing.figures import draw_all

    facts = gather(store, study_id)
    pictures = draw_all(facts, has_images=has_images)
    folder = directory / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    files = {picture.name: f"figures/{picture.name}.png" for picture in pictures}
    tables = {picture.name: f"figures/{picture.name}.csv" for picture in pictures}
    for picture in pictures:
        _write(directory / files[picture.name], picture.light_png)
        _write(directory / tables[picture.name], picture.csv.encode())
    markdown, html = directory / "report.md", directory / "report.html"
    _write(markdown, render_markdown(facts, pictures, files).encode())
    _write(html, render_html(facts, pictures).encode())
    return ReportPaths(
        markdown,
        html,
        figures=tuple(directory / name for name in files.values()),
        data=tuple(directory / name for name in tables.values()),
    )


def _write(path: Path, content: bytes) -> None:
    """Write the file atomically: a concurrent reader sees the older file."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".report-", delete=False) as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)
    os.replace(file.name, path)
