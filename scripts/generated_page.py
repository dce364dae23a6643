"""The two ways of every script that writes a page of the documentation: write it, or say whether it is up to date."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def write_or_check(page: str, text: str, arguments: list[str]) -> int:
    """Write the page, or with `--check` only compare it. Return the exit code: 1 for a page that is out of date."""
    path = DOCS / page
    if arguments == ["--check"]:
        return int(not path.exists() or path.read_text(encoding="utf-8") != text)
    path.write_text(text, encoding="utf-8")
    return 0


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table of Markdown; a line break or a bar in a cell does not break it."""
    cells = [head, *([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)]
    first, *rest = [f"| {' | '.join(line)} |\n" for line in cells]
    return "".join([first, f"|{'---|' * len(head)}\n", *rest])
