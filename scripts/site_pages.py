"""The hook of the documentation site: it adds the pages and tables that are written from the code."""

from __future__ import annotations

import posixpath
import re
from typing import Any

import algorithm_reference
import command_reference
import configuration_reference
import error_reference
import metric_reference
import parameter_matrix
import route_reference
from mkdocs.structure.files import File

PAGES = {
    "commands.md": command_reference.page,
    "configuration.md": configuration_reference.page,
    "errors.md": error_reference.page,
    "metrics.md": metric_reference.page,
    "routes.md": route_reference.page,
}
TABLES = {
    "<!-- The table of stop rules is written here. -->": algorithm_reference.stop_rules,
    "<!-- The tables of estimators and losses are written here. -->": algorithm_reference.tables,
    "<!-- The tables of fields are written here. -->": parameter_matrix.matrix,
}
"""Each stands for a text of the code in a page that a person writes."""
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(#[^)]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page with its tables. A link to a file of the repository becomes its text and the path of the file."""
    for mark, text in TABLES.items():
        if mark in markdown:
            markdown = markdown.replace(mark, text())
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def replace(found: re.Match[str]) -> str:
        path = posixpath.normpath(f"{folder}/{found[2]}")
        return found[0] if path.startswith("docs/") else f"{found[1]} (`{path}`)"

    return LINK.sub(replace, markdown)
