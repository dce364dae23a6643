"""An episode as people read it: its conversation, and its samples token by token. Every text is shown as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import streamlit as st

from experiments_db import JsonObject
from ui import formats, token_view
from ui.token_view import Coloring

LONG_LINES, LONG_CHARACTERS, LONG_HEIGHT = 24, 2500, 420
"""From so many lines or characters on a text scrolls, in a box of this height."""
MAX_CHARACTERS = 200_000
"""Of one text: a browser that is sent more stands still."""


def choose_coloring(choices: Sequence[Coloring] = (Coloring.MASK, Coloring.LOGPROB, Coloring.VERSION)) -> Coloring:
    """Return what the tokens are coloured by, as the user chooses."""
    chosen = st.segmented_control("Colour tokens by", choices, default=choices[0], required=True, key="coloring")
    return Coloring(chosen)


def colorings_of(advantage: float | None) -> list[Coloring]:
    """Return what the tokens of an episode can be coloured by. A held-out episode has no advantage."""
    return [coloring for coloring in Coloring if coloring is not Coloring.ADVANTAGE or advantage is not None]


def show_episode(
    messages: Sequence[JsonObject],
    samples: Sequence[JsonObject],
    coloring: Coloring,
    *,
    advantage: float | None = None,
) -> None:
    """Show the conversation, and below it each sample with its tokens."""
    st.subheader("Conversation", anchor=False)
    with st.container(border=True):
        show_messages(messages)
    for number, sample in enumerate(samples, start=1):
        count = formats.count(len(sample.get("token_ids", ())), "token")
        st.subheader(f"Sample {number} of {len(samples)}, {count}", anchor=False)
        with st.container(border=True):
            st.html(token_view.render(sample, coloring, advantage=advantage))
    if samples:
        st.caption(f"{token_view.LEGENDS[coloring]} Hover over a token for what was recorded with it.")
    else:
        st.caption("The tokens of this episode were not kept.")


def show_messages(messages: Iterable[Any]) -> None:
    """Show messages in OpenAI's shape, each under its role."""
    shown = [message if isinstance(message, Mapping) else {"content": message} for message in messages]
    for message in shown:
        show_message(message)
    if not shown:
        st.caption("There is no message.")


def show_message(message: Mapping[str, Any]) -> None:
    """Show one message: its role, its reasoning, its text and its tool calls."""
    role, name = str(message.get("role") or "?"), message.get("name")
    st.markdown(" ".join([f":gray-badge[{formats.plain(role)}]", formats.name(str(name)) if name else ""]))
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        st.caption("reasoning")
        show_long_text(as_text(reasoning))
    if content := message.get("content"):
        show_long_text(as_text(content))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list | tuple) else ():
        _show_call(call)


def _show_call(call: Any) -> None:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        st.code(show_json(call), language=None, wrap_lines=True)
        return
    st.markdown(f":violet-badge[calls] {formats.name(str(function.get('name')))}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            # The model wrote no JSON: what it wrote is shown.
            show_long_text(arguments)
            return
    st.code(formats.shortened(show_json(arguments), MAX_CHARACTERS), language=None, wrap_lines=True)


def show_long_text(text: str) -> None:
    """Show a text as it is; a long one scrolls in a box."""
    shown = formats.printable(text[:MAX_CHARACTERS])
    is_long = len(shown) > LONG_CHARACTERS or shown.count("\n") > LONG_LINES
    with st.container(height=LONG_HEIGHT if is_long else "content", border=is_long):
        st.text(shown)
    if len(text) > MAX_CHARACTERS:
        st.caption(f"The first {MAX_CHARACTERS:,} of {len(text):,} characters.")


def as_text(content: Any) -> str:
    """Return the content of a message: its text, or JSON if there is more to it."""
    return content if isinstance(content, str) else show_json(content)


def show_json(document: Any) -> str:
    """Return a JSON document as indented text."""
    return formats.printable(json.dumps(document, indent=2, ensure_ascii=False))
