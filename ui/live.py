"""Parts of pages that follow the database: drawn anew when it changes, and left alone while it does not."""

from __future__ import annotations

import time
from collections.abc import Callable

import streamlit as st

from experiments_db import StoreError

REFRESH = "5s"
CLOCK_S = 120.0
"""A page is also drawn this often, because durations on it grow."""


def follow(show: Callable[..., object], *ids: str, token: Callable[[], object], is_on: bool = True) -> None:
    """Call `show` with these ids in a fragment, and run the page again when `token` gives another value.

    `token` is asked every five seconds by each browser tab, so it must cost next to nothing. What queries.py reads is
    kept while the database does not change, and makes a good token: a record, or a tuple of several. The token must
    change with everything that `show` draws. With `is_on` False nothing is followed.
    """
    # The token comes first: a change while `show` reads then counts as one that is not drawn yet.
    drawn = (token(), time.monotonic()) if is_on else None
    st.fragment(show)(*ids)
    if drawn is not None:
        st.fragment(_look, run_every=REFRESH)(token, *drawn)


def _look(token: Callable[[], object], drawn: object, drawn_at: float) -> None:
    try:
        present = token()
    except StoreError:
        # Another process may have locked the database for a moment; the page goes on showing what it was.
        return
    if present != drawn or time.monotonic() - drawn_at >= CLOCK_S:
        st.rerun()
