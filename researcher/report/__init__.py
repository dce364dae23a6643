"""The report of a study: facts from the database, figures, Markdown and HTML."""

from researcher.report.write import ReportPaths, build_report

__all__ = ["ReportPaths", "build_report"]
