"""A hook of the documentation site: a link to a file of the repository becomes the name of the file.

Place in the flow: mkdocs calls it for every page. On the site there are only pages; in a checkout the links work.
"""

from __future__ import annotations

import re
from typing import Any

OUT_OF_PAGES = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with `text (path)` in place of each link to a file outside the pages."""
    return OUT_OF_PAGES.sub(r"\1 (`\2`)", markdown)
