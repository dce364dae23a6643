"""The report as PDF: the HTML report on pages.

Place in the flow: `researcher report --pdf` calls `write_pdf` after the report was written. The style sheet of the HTML
report has the rules of its pages. This module knows nothing of studies.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

from researcher.errors import ResearchError


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
