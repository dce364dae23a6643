"""The writer of a study's report from the database alone: Markdown, figures, one HTML file, and on demand a PDF."""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from experiments_db import ExperimentStore
from researcher.errors import ResearchError
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
    for picture in pictures:
        _write(directory / picture.file, picture.png)
        _write((directory / picture.file).with_suffix(".csv"), picture.csv.encode())
    markdown, html = directory / "report.md", directory / "report.html"
    text = render_markdown(facts, pictures)
    _write(markdown, text.encode())
    _write(html, render_html(text, facts.charter.topic, pictures).encode())
    figures = tuple(directory / picture.file for picture in pictures)
    return ReportPaths(markdown, html, figures, data=tuple(path.with_suffix(".csv") for path in figures))


def write_pdf(html: Path, pdf: Path) -> None:
    """Write an HTML file as PDF; nothing that it names is loaded, and the same file gives the same PDF.

    Raises ResearchError if WeasyPrint, or a library that it needs, is not installed.
    """
    try:
        # WeasyPrint prints advice of several lines when a library is missing.
        with redirect_stdout(io.StringIO()):
            from weasyprint import HTML
            from weasyprint.urls import URLFetcher
    except ModuleNotFoundError as error:
        raise ResearchError("a PDF needs WeasyPrint: pip install 'swarm-researcher[researcher]'") from error
    except OSError as error:
        raise ResearchError(
            "a PDF needs Pango: apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0"
        ) from error
    page = HTML(string=html.read_text(encoding="utf-8"), url_fetcher=URLFetcher(allowed_protocols={"data"}))
    page.write_pdf(pdf)


def _write(path: Path, content: bytes) -> None:
    """Write the file atomically: a concurrent reader sees the older file."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".report-", delete=False) as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)
    os.replace(file.name, path)
