"""Tables of Markdown."""

from __future__ import annotations


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table of Markdown; a line break or a bar in a cell does not break it."""
    cells = [head, *([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)]
    first, *rest = [f"| {' | '.join(line)} |\n" for line in cells]
    return "".join([first, f"|{'---|' * len(head)}\n", *rest])
