"""The table of findings for people.

Place in the flow: `swarm doctor` prints it. It knows nothing of the checks.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarm.doctor.examination import Health, TimedFinding

STYLES = {Health.OK: "green", Health.WARN: "yellow", Health.FAIL: "bold red"}


def table_of(outcomes: Sequence[TimedFinding]) -> RenderableType:
    """Return a table with one row for each check, its remedy below its finding, and a last line with the totals."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for outcome in outcomes:
        finding = outcome.finding
        text = Text(finding.message)
        if finding.remedy is not None:
            text.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(finding.verdict.value, style=STYLES[finding.verdict]), outcome.name, text)
    return Group(table, Text(_sum(outcomes), style="dim"))


def _sum(outcomes: Sequence[TimedFinding]) -> str:
    counts = {verdict: sum(outcome.finding.verdict is verdict for outcome in outcomes) for verdict in Health}
    return ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
