"""A hook of the documentation site: a link to a file of the repository becomes the name of the file.

Place in the flow: mkdocs calls it for every page. On the site there are only pages; in a checkout the links work.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page with `text (path)` in place of each link to a file outside the pages."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def replace(found: re.Match[str]) -> str:
        path = posixpath.normpath(f"{folder}/{found[2]}")
        return found[0] if path.startswith("docs/") else f"{found[1]} (`{path}`)"

    return LINK.sub(replace, markdown)
