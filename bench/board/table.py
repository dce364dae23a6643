"""`python -m bench table`: writes the stored results into docs/benchmarks.md.

Place in the flow: bench/__main__.py hands over to this; versions.py reads what is stored.

Exit codes: 0 done, 1 with `--check` if the page says something else, 2 wrong usage or a file that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.board.figures import FIGURES
from bench.board.verdict import Verdict
from bench.board.versions import DIRECTORY, StoredResultInvalid, read_documents

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN = "<!-- Written by python -m bench table. -->"
END = "<!-- End of what is written. -->"


def main(
    results: Annotated[Path, typer.Option(help="Directory of stored results.")] = DIRECTORY,
    page: Annotated[Path, typer.Option(help="Page whose marked part is written.")] = PAGE,
    is_check: Annotated[bool, typer.Option("--check", help="Write nothing; say whether the page is right.")] = False,
) -> None:
    """Write the figures of every version that was measured into the page of benchmarks."""
    try:
        text = page.read_text(encoding="utf-8")
        written = replace_tables(text, render_tables(read_documents(results)))
    except (OSError, StoredResultInvalid, ValueError) as error:
        typer.echo(f"bench: {error}", err=True)
        raise typer.Exit(2) from None
    if is_check and written != text:
        typer.echo(f"bench: {page} differs from {results}: run python -m bench table", err=True)
        raise typer.Exit(1)
    if not is_check:
        page.write_text(written, encoding="utf-8")


def replace_tables(text: str, tables: str) -> str:
    """Raises ValueError if the page has no marked part."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


def render_tables(documents: Sequence[dict[str, Any]]) -> str:
    """Markdown: what each figure means, then a table for each kind of machine; ends in a line break."""
    lines = ["| figure | what | unit | called worse or better from |", "|---|---|---|---|"]
    for name, figure in FIGURES.items():
        lines.append(f"| `{name}` | {figure.meaning} | {figure.unit} | {figure.least_effect:.0%} |")

    def machine(document: dict[str, Any]) -> tuple[str, int]:
        return document["cpu"], document["cores"]

    # Sorting is stable: within a machine the newest measurement stays first.
    for (cpu, cores), measured in groupby(sorted(documents, key=machine), key=machine):
        heads = ["version", "compared with", "measured", "load", *(f"`{name}`" for name in FIGURES)]
        lines += ["", f"## {cpu}, {cores} cores", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        lines += [_row(document) for document in measured]
    return "\n".join(lines) + "\n"


def _row(document: dict[str, Any]) -> str:
    against = document["against"]
    cells = [
        f"{document['version']} `{document['commit']}`",
        f"{against['version']} `{against['commit']}`",
        document["date"][:10],
        f"{document['load_1m']:g}",
        *(render_change(document["figures"].get(name)) for name in FIGURES),
    ]
    return f"| {' | '.join(cells)} |"


def render_change(change: dict[str, Any] | None) -> str:
    """The value of the newer version, and the interval of its relative change."""
    if change is None:
        return "not measured"
    value = f"{change['new']:.3g}"
    if change["low"] is None:
        return f"{value} ({change['verdict']})"
    text = f"{value} ({change['low']:+.0%} to {change['high']:+.0%})"
    return text if change["verdict"] == Verdict.WITHIN_NOISE else f"**{text} {change['verdict']}**"
