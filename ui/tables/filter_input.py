"""The field in which a filter of a table is typed."""

from __future__ import annotations

from collections.abc import Collection

import streamlit as st

from ui import formats
from ui.tables.filters import Filter, UnreadableFilter, parse_filter

HELP = (
    "Words that occur in a row, and conditions: `lr>=1e-3`, `status=complete`, `model!=nano`, `note~figure`, "
    '`"two words"`. All have to hold. Any column, setting or metric has a name.'
)


def read_filter(names: Collection[str], *, example: str) -> Filter | None:
    """Show the field, and return the filter in it; explain one that cannot be read, and return None."""
    text = st.text_input("Filter", placeholder=example, key="filter", bind="query-params", help=HELP)
    try:
        return parse_filter(text, names)
    except UnreadableFilter as error:
        st.warning(f"The filter cannot be read: {formats.plain(str(error))}.", icon=":material/filter_alt_off:")
        return None
