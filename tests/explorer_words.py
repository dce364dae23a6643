"""What a page of the explorer shows, for the explorer's tests."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest


def words(page: AppTest) -> str:
    """Return all that a page shows, as text."""
    parts = [*page.markdown, *page.caption, *page.warning, *page.error, *page.title, *page.info, *page.text, *page.code]
    tables = [part.value.to_string() for part in [*page.dataframe, *page.table]]
    widgets = [*page.slider, *page.selectbox, *page.multiselect, *page.button_group]
    headings = [part.value for part in page.subheader]
    labels = [f"{widget.label} {widget.value}" for widget in widgets]
    return "\n".join([*(str(part.value) for part in parts), *tables, *labels, *headings]).replace("\\", "")
