"""An episode as people read it: its conversation, and its samples token by token.

Place in the flow: the pages of runs and of trainings show their episodes through this module. It reads nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import streamlit as st

from experiments_db import JsonObject
from ui import formats, token_view


def choose_coloring() -> token_view.Coloring:
    """Return what the tokens are coloured by, as the user chooses."""
    choices = list(token_view.Coloring)
    chosen = st.segmented_control("Colour tokens by", choices, default=choices[0], required=True, key="coloring")
    return token_view.Coloring(chosen)


def show_episode(messages: Sequence[JsonObject], samples: Sequence[JsonObject], coloring: token_view.Coloring) -> None:
    """Show the conversation, and below it each sample with its tokens."""
    st.subheader("Conversation", anchor=False)
    with st.container(border=True):
        for message in messages:
            show_message(message)
    for number, sample in enumerate(samples, start=1):
        count = formats.count(len(sample.get("token_ids", ())), "token")
        st.subheader(f"Sample {number} of {len(samples)}, {count}", anchor=False)
        with st.container(border=True):
            st.html(token_view.render(sample, coloring))
    st.caption(f"{token_view.LEGENDS[coloring]} Hover over a token for what was recorded with it.")


def show_message(message: Any) -> None:
    role, content = str(message.get("role", "?")), message.get("content")
    st.markdown(f":gray-badge[{formats.plain(role)}]")
    if content:
        st.text(formats.printable(content if isinstance(content, str) else show_json(content)))
    if calls := message.get("tool_calls"):
        st.code(show_json(calls), language="json")


def show_json(document: Any) -> str:
    """Return a JSON document as indented text."""
    return formats.printable(json.dumps(document, indent=2, ensure_ascii=False))
