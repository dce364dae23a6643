"""The ways that docs/architecture.md lists go through files and functions that there are, each file once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
MOST_FILES = {
    "The way of a begin": 10, "The way of one chat completion": 25, "The way from an end to published weights": 18
}  # fmt: skip


def defined_in(path: Path) -> set[str]:
    """The functions and classes of a module, and the methods with the name of their class."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found |= {node.name, *(f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name"))}
    return found


@pytest.mark.parametrize("heading", re.findall(r"^## (The way .+)$", PAGE.read_text(), re.MULTILINE))
def test_a_way_names_files_and_functions_that_there_are(heading: str) -> None:
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|[^|]+\| (`[^|]+) \| (`[^|]+`) \|$", section, re.MULTILINE)
    assert rows
    for files, functions in rows:
        defined = set().union(*(defined_in(ROOT / file) for file in re.findall(r"`(\S+\.py)`", files)))
        assert set(re.findall(r"`(\S+)`", functions)) <= defined, files
    if heading in MOST_FILES:
        listed = [files for files, _ in rows]
        assert len(set(listed)) == len(listed) <= MOST_FILES[heading]
